// The messages page: it finds messages and shows where each of them is stored.

import { call, get, query, seg } from "/dashboard/api.js";
import { ask, attempt } from "/dashboard/dialog.js";
import { h } from "/dashboard/dom.js";
import { ago, bytes, clock, moment, number, plural, replicaName } from "/dashboard/format.js";
import { back, empty, facts, head, polled, problem } from "/dashboard/parts.js";

const LIMIT = 64;
const SUGGESTIONS = 50;
const BODY_SHOWN = 20000; // characters
const WAYS = [
  ["key", "key"],
  ["uniqueKey", "unique key"],
  ["id", "message id"],
  ["offset", "queue offset"],
  ["time", "time"],
];

const idOf = (message) => message.offsetMsgId;
const uniqueOf = (message) => message.msgId ?? "";
const keysOf = (message) => message.keys ?? "";
const tagsOf = (message) => message.tags ?? "";

export function messagesPage(app, _, parameters) {
  const given = Object.fromEntries(parameters);
  const state = { by: given.by ?? (given.uniqueKey ? "uniqueKey" : given.offset ? "offset" : "key"), topic: given.topic ?? "", found: null, error: "", busy: false, topics: [] };
  let timer = 0;

  async function suggest(text) {
    state.topic = text;
    clearTimeout(timer);
    timer = setTimeout(async () => {
      try {
        state.topics = (await get(`/topics${query({ q: text.trim(), limit: SUGGESTIONS })}`)).items.map((one) => one.topic);
        app.update();
      } catch {
        state.topics = []; // suggestions only
      }
    }, 180);
  }

  async function search(form) {
    Object.assign(given, form);
    if (state.by === "id") {
      app.go(`messages/${seg(form.id.trim())}`);
      return;
    }
    Object.assign(state, { busy: true, error: "", found: null, topic: form.topic });
    app.update();
    try {
      state.found = await get(where(state.by, form));
    } catch (error) {
      state.error = error.message;
    }
    state.busy = false;
    app.update();
  }

  return {
    start() {
      suggest(state.topic);
      const complete = { key: given.key, uniqueKey: given.uniqueKey, offset: given.queueId, time: null }[state.by];
      if (complete) search({ ...given, topic: state.topic });
    },
    render() {
      return [
        head("Messages"),
        h("form", { class: "card form", "data-submit": "search", "data-key": `form-${state.by}` },
          h("fieldset", { class: "ways" }, h("legend", { class: "hidden" }, "Search by"),
            WAYS.map(([name, title]) => h("button", { type: "button", class: "way", "data-do": "by", "data-by": name, "aria-pressed": String(state.by === name) }, title))),
          h("div", { class: "fields" },
            state.by !== "id" && field("Topic", { name: "topic", value: state.topic, required: true, list: "topics", "data-input": "topic" }),
            inputs(state.by, given),
            h("button", { type: "submit", class: "primary" }, "Search")),
          h("datalist", { id: "topics" }, state.topics.map((topic) => h("option", { value: topic })))),
        state.error && problem(state.error),
        state.busy && h("p", { class: "loading" }, "Asking the leaders…"),
        state.found && results(state.found),
      ];
    },
    inputs: { topic: suggest },
    actions: {
      by: ({ by }) => {
        Object.assign(state, { by, found: null, error: "" });
        app.update();
      },
      search,
    },
  };
}

const field = (title, attributes) => h("label", { "data-key": attributes.name }, title, h("input", { type: "text", autocomplete: "off", spellcheck: "false", ...attributes }));

function inputs(by, given) {
  switch (by) {
    case "key": return field("Key", { name: "key", value: given.key ?? "", required: true });
    case "uniqueKey": return field("Unique key", { name: "uniqueKey", value: given.uniqueKey ?? "", required: true });
    case "id": return field("Message id (offsetMsgId)", { name: "id", value: given.id ?? "", required: true, pattern: "[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56}" });
    case "offset": return [
      field("Queue", { name: "queueId", type: "number", min: "0", value: given.queueId ?? "0", required: true }),
      field("Offset", { name: "offset", type: "number", min: "0", value: given.offset ?? "0", required: true }),
      field("Broker group (if several)", { name: "group", value: given.group ?? "" }),
    ];
    default: return [
      field("From", { name: "begin", type: "datetime-local", step: "1", value: given.begin ?? "" }),
      field("Queue", { name: "queueId", type: "number", min: "0", value: given.queueId ?? "0", required: true }),
      field("Broker group (if several)", { name: "group", value: given.group ?? "" }),
    ];
  }
}

function where(by, { topic, key, uniqueKey, queueId, offset, group, begin }) {
  const queue = `/topics/${seg(topic)}/queues/${seg(queueId ?? "0")}/messages`;
  if (by === "key") return `/messages${query({ topic, key, limit: LIMIT })}`;
  if (by === "uniqueKey") return `/messages${query({ topic, uniqueKey, limit: LIMIT })}`;
  if (by === "offset") return queue + query({ offset, group, limit: LIMIT });
  return queue + query({ timeMs: begin ? new Date(begin).getTime() : 0, group, limit: LIMIT });
}

function results({ items, errors = [] }) {
  return [
    errors.map((one) => problem(`${one.group} did not answer: ${one.error}`)),
    items.length ? h("p", { class: "muted" }, plural(items.length, "message"), items.length >= LIMIT ? ", the first ones" : "") : empty("Nothing found."),
    h("ul", { class: "rows messages", "aria-label": "Messages" }, items.map((message) =>
      h("li", { "data-key": idOf(message) || `${message.queueId}-${message.queueOffset}` }, h("a", { class: "row", href: `#/messages/${seg(idOf(message))}` },
        h("span", { class: "name" }, keysOf(message) || uniqueOf(message) || idOf(message)),
        h("span", { class: "muted" }, `${message.group ? `${message.group} · ` : ""}queue ${message.queueId} · offset ${number(message.queueOffset)}`),
        h("span", { class: "muted" }, tagsOf(message)),
        h("span", { class: "num muted" }, ago(message.storeTimestamp)),
        h("span", { class: "preview" }, preview(message)))))),
  ];
}

const preview = (message) => (bodyOf(message).text ?? `${bytes(message.bodySize)} of data`).slice(0, 160);

/** Return a body as {text} or {data: base64}; lists leave large bodies out. */
const bodyOf = ({ text, body }) => (typeof text === "string" ? { text } : { data: body ?? "" });

export function messagePage(app, id) {
  const state = { trace: null, error: "" };

  async function load() {
    try {
      state.trace = await get(`/messages/${seg(id)}/trace`);
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
        head(keysOf(message) || "Message", dead && h("div", { class: "buttons" }, h("button", { type: "button", "data-do": "resend", disabled: app.me.role === "viewer" }, "Resend…"))),
        error && problem(error),
        h("section", { class: "card" }, facts([
          ["Topic", h("a", { href: `#/topics/${seg(message.topic)}` }, message.topic)],
          ["Queue", `${number(message.queueId)} of ${group}`],
          ["Queue offset", number(message.queueOffset)],
          ["Log offset", number(message.commitLogOffset)],
          ["Tags", tagsOf(message) || "–"],
          ["Keys", keysOf(message) || "–"],
          ["Born", [moment(message.bornTimestamp), h("span", { class: "muted" }, ` ${message.bornHost ?? ""}`)]],
          ["Stored", [moment(message.storeTimestamp), h("span", { class: "muted" }, ` ${message.storeHost ?? ""}`)]],
          ["Delivered again", number(message.reconsumeTimes ?? 0)],
          ["Unique key", h("span", { class: "mono" }, uniqueOf(message) || "–"), "long"],
          ["Message id", h("span", { class: "mono" }, id), "long"],
        ])),
        h("section", { class: "card" }, h("h2", null, "Where it has been"), steps(trace)),
        body(message),
        Object.keys(message.properties ?? {}).length > 0 && h("section", { class: "card" }, h("h2", null, "Properties"),
          facts(Object.entries(message.properties).map(([name, value]) => [name, h("span", { class: "mono" }, String(value)), String(value).length > 24 && "long"]))),
      ];
    },
    actions: { resend: () => resend(id, state.trace.message, app) },
  };
}

const ON_REPLICA = {
  durable: ["good", "on its disk, synced"],
  written: ["good", "in its log, not synced yet"],
  missing: ["warn", "not there yet"],
  deleted: ["", "deleted by retention"],
  unknown: ["bad", "unknown"],
};

function steps({ message, replicas, consumers, consumersLeftOut, consumersError }) {
  const step = (kind, when, title, detail) => h("li", { class: kind }, h("span", { class: "when" }, when), h("span", { class: "what" }, title), h("span", { class: "who" }, detail));
  const delay = message.storeTimestamp - message.bornTimestamp;
  return [
    h("ol", { class: "marks trace" },
      step("good", clock(message.bornTimestamp), "Made", `by the producer at ${message.bornHost ?? "an unknown host"}`),
      step("good", clock(message.storeTimestamp), "Stored", `by ${message.storeHost ?? "the leader"}${delay >= 0 ? `, ${number(delay)} ms later` : ""}`),
      replicas.map((one) => {
        const [kind, words] = ON_REPLICA[one.state];
        return step(kind, "now", `On ${replicaName(one.name)}`, [words, one.error && `: ${one.error}`, one.behindBytes && `: ${bytes(one.behindBytes)} behind`]);
      }),
      consumers.map((one) => {
        const link = h("a", { href: `#/consumers/${seg(one.name)}` }, one.name);
        if (one.state === "consumed") return step("good", "now", ["Had by ", link], `it is at offset ${number(one.consumerOffset)}`);
        if (one.state === "waiting") return step("warn", "now", ["Waits for ", link], `${plural(one.messagesBefore, "message")} before it${one.clients ? "" : "; nobody is connected"}`);
        return step(one.error ? "bad" : "", "now", link, one.error ?? "has consumed nothing of this queue");
      })),
    consumersError && problem(`Consumer groups are not known: ${consumersError}`),
    !consumers.length && !consumersError && h("p", { class: "muted" }, "No consumer group reads this queue."),
    consumersLeftOut > 0 && h("p", { class: "muted" }, `${plural(consumersLeftOut, "consumer group")} were not looked at.`),
  ];
}

function body(message) {
  const { text, data } = bodyOf(message);
  const size = message.bodySize ?? text?.length;
  const shown = text ?? hex(data);
  return h("section", { class: "card" },
    h("h2", null, "Body", h("span", { class: "muted" }, ` ${bytes(size)}${text === undefined ? ", not text" : ""}`)),
    h("pre", { class: "body", tabindex: "0" }, shown.slice(0, BODY_SHOWN)),
    shown.length > BODY_SHOWN && h("p", { class: "muted" }, `The first ${number(BODY_SHOWN)} characters of ${number(shown.length)}.`));
}

function hex(base64) {
  let raw = "";
  try {
    raw = atob(base64);
  } catch {
    return base64;
  }
  const lines = [];
  for (let at = 0; at < Math.min(raw.length, 4096); at += 16) {
    const part = [...raw.slice(at, at + 16)].map((letter) => letter.charCodeAt(0));
    const left = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    lines.push(`${at.toString(16).padStart(6, "0")}  ${left}  ${part.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : "·")).join("")}`);
  }
  return lines.join("\n");
}

async function resend(id, message, app) {
  const consumerGroup = message.topic.slice("%DLQ%".length);
  const given = await ask({
    title: "Resend this dead message?",
    words: [`A copy is written to the retry topic of ${consumerGroup}, whose consumers get it as if it had been delivered again. The dead message stays where it is; resending twice means two copies.`],
    action: "Resend",
  });
  if (given) await attempt("Resend", () => call("POST", `/messages/${seg(id)}/resend`));
  app.update();
}
