// One message: what it says, where it is stored, and which consumer groups had it.

import { call, get, seg } from "/dashboard/api.js";
import { bodyCard, copy, download } from "/dashboard/bodies.js";
import { ask, attempt } from "/dashboard/dialog.js";
import { h } from "/dashboard/dom.js";
import { bytes, clock, moment, number, plural, replicaName } from "/dashboard/format.js";
import { back, facts, head, polled, problem } from "/dashboard/parts.js";

export function messagePage(app, id) {
  const state = { trace: null, error: "", way: "" };

  async function load() {
    try {
      const trace = await get(`/messages/${seg(id)}/trace`);
      state.trace = { ...trace, message: state.trace?.message ?? trace.message }; // a message stays as it is
      state.error = "";
    } catch (error) {
      state.error = error.message;
    }
    app.update();
  }

  return {
    ...polled(load, 5000),
    render() {
      const { trace, error } = state;
      if (!trace) return [back("messages", "Messages"), head("Message"), error ? problem(error) : h("p", { class: "loading" }, "Asking the leader…")];
      const { message, group } = trace;
      const dead = String(message.topic).startsWith("%DLQ%");
      return [
        back("messages", "Messages"),
        head(message.keys || "Message", dead && h("div", { class: "buttons" }, h("button", { type: "button", "data-do": "resend", disabled: app.me.role === "viewer" }, "Resend…"))),
        error && problem(error),
        h("section", { class: "card" }, facts([
          ["Topic", h("a", { href: `#/topics/${seg(message.topic)}` }, message.topic)],
          ["Queue", `${number(message.queueId)} of ${group}`],
          ["Queue offset", number(message.queueOffset)],
          ["Log offset", number(message.commitLogOffset)],
          ["Tags", message.tags || "–"],
          ["Keys", message.keys || "–"],
          ["Born", [moment(message.bornTimestamp), h("span", { class: "muted" }, ` ${message.bornHost ?? ""}`)]],
          ["Stored", [moment(message.storeTimestamp), h("span", { class: "muted" }, ` ${message.storeHost ?? ""}`)]],
          ["Redeliveries", number(message.reconsumeTimes ?? 0)],
          ["Unique key", h("span", { class: "mono" }, message.msgId || "–"), "long"],
          ["Message id", h("span", { class: "mono" }, id), "long"],
        ])),
        h("section", { class: "card" }, h("h2", null, "Trace"), steps(trace)),
        bodyCard(message, state.way),
        Object.keys(message.properties ?? {}).length > 0 && h("section", { class: "card" }, h("h2", null, "Properties"),
          facts(Object.entries(message.properties).map(([name, value]) => [name, h("span", { class: "mono" }, String(value)), String(value).length > 24 && "long"]))),
      ];
    },
    actions: {
      resend: () => resend(id, state.trace.message, app),
      copy: () => copy(state.trace.message, state.way),
      download: () => download(state.trace.message),
      way: ({ way }) => {
        state.way = way;
        app.update();
      },
    },
  };
}

const ON_REPLICA = {
  durable: ["good", "stored and synced"],
  written: ["good", "stored, not synced yet"],
  missing: ["warn", "not replicated yet"],
  deleted: ["", "deleted by retention"],
  unknown: ["bad", "unknown"],
};

function steps({ message, replicas, consumers, consumersLeftOut, consumersError }) {
  const step = (kind, when, title, detail) => h("li", { class: kind }, h("span", { class: "when" }, when), h("span", { class: "what" }, title), h("span", { class: "who" }, detail));
  const delay = message.storeTimestamp - message.bornTimestamp;
  return [
    h("ol", { class: "marks trace" },
      step("good", clock(message.bornTimestamp), "Sent", `by the producer at ${message.bornHost ?? "an unknown host"}`),
      step("good", clock(message.storeTimestamp), "Stored", `by ${message.storeHost ?? "the leader"}${delay >= 0 ? `, ${number(delay)} ms later` : ""}`),
      replicas.map((one) => {
        const [kind, text] = ON_REPLICA[one.state];
        return step(kind, "now", `On ${replicaName(one.name)}`, [text, one.error && `: ${one.error}`, one.behindBytes && `: ${bytes(one.behindBytes)} behind`]);
      }),
      consumers.map((one) => {
        const link = h("a", { href: `#/consumers/${seg(one.name)}` }, one.name);
        if (one.state === "consumed") return step("good", "now", ["Consumed by ", link], `its offset is ${number(one.consumerOffset)}`);
        if (one.state === "passed") return step("", "now", ["Filtered by ", link], `its filter is ${one.expression}`);
        if (one.state === "waiting") return step("warn", "now", ["Waiting for ", link], `${plural(one.messagesBefore, "message")} before it${one.clients ? "" : "; no clients connected"}`);
        return step(one.error ? "bad" : "", "now", link, one.error ?? "has consumed nothing of this queue");
      })),
    consumersError && problem(`Consumer groups are unknown: ${consumersError}`),
    !consumers.length && !consumersError && h("p", { class: "muted" }, "No consumer group reads this queue."),
    consumersLeftOut > 0 && h("p", { class: "muted" }, `${plural(consumersLeftOut, "consumer group")} were not checked.`),
  ];
}

async function resend(id, message, app) {
  const consumerGroup = message.topic.slice("%DLQ%".length);
  const values = await ask({
    title: "Resend this dead letter?",
    paragraphs: [`A copy is written to the retry topic of ${consumerGroup}, whose consumers receive it as a retry. The dead letter is kept: resending twice writes two copies.`],
    action: "Resend",
  });
  if (values) await attempt("Resend", () => call("POST", `/messages/${seg(id)}/resend`));
  app.update();
}
