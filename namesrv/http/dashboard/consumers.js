// The consumers page: who reads which queue and how far behind; it also resets offsets and pauses groups.

import { call, get, seg } from "/dashboard/api.js";
import { ask, attempt } from "/dashboard/dialog.js";
import { h, lazy } from "/dashboard/dom.js";
import { ago, number, plural } from "/dashboard/format.js";
import { back, bar, empty, facts, head, lagScale, polled, problem, table } from "/dashboard/parts.js";
import { longList, searchBox } from "/dashboard/topics.js";

const REFRESH_MS = 3000;

const sumOf = (groups, field) => groups.reduce((sum, one) => sum + (typeof one[field] === "number" ? one[field] : 0), 0);
const clientsOf = (groups) => Math.max(0, ...groups.map((one) => one.clientCount ?? 0)); // a client is at every leader

export function consumersPage(app) {
  const list = longList(app, { path: "/consumer-groups", nameOf: (item) => item.name });
  return {
    ...polled(() => list.load(), REFRESH_MS, () => list.items.length < 1000),
    render() {
      const most = lagScale(list.items.map((one) => sumOf(one.groups, "lag")));
      return [
        head("Consumer groups", h("span", { class: "muted" }, list.loaded ? list.count() : "")),
        searchBox("Part of a consumer group's name", list.q),
        list.told(),
        !list.loaded && !list.error && h("p", { class: "loading" }, "Asking the leaders…"),
        list.loaded && !list.items.length && empty("No consumer group has been here."),
        lazy("ul", { class: "rows", "aria-label": "Consumer groups", "data-key": "rows" }, list.version, () => list.items.map(({ name, groups }) => {
          const lag = sumOf(groups, "lag");
          const clients = clientsOf(groups);
          return h("li", { "data-key": name }, h("a", { class: "row", href: `#/consumers/${seg(name)}` },
            h("span", { class: "name" }, name),
            h("span", { class: clients ? "muted" : "warn-text" }, clients ? plural(clients, "client") : "nobody connected"),
            h("span", { class: "num" }, number(lag), h("span", { class: "muted" }, " behind")),
            bar(lag / most, lag ? "warn" : "")));
        })),
        list.more(),
      ];
    },
    inputs: { search: list.search },
    actions: { more: () => list.load(true) },
  };
}

export function consumerPage(app, name) {
  const state = { view: null, error: "" };

  async function load() {
    try {
      state.view = await get(`/consumer-groups/${seg(name)}`);
      state.error = "";
    } catch (error) {
      state.error = error.message;
    }
    app.update();
  }

  return {
    ...polled(load, REFRESH_MS),
    render() {
      const { view, error } = state;
      const locked = app.me.role === "viewer";
      const paused = view?.consumeEnable === false;
      return [
        back("consumers", "Consumer groups"),
        head(name, view && h("div", { class: "buttons" },
          h("button", { type: "button", "data-do": "reset", disabled: locked || !view.queues.length }, "Reset offsets…"),
          h("button", { type: "button", "data-do": paused ? "resume" : "pause", disabled: locked }, paused ? "Resume…" : "Pause…"))),
        error && problem(error),
        (view?.errors ?? []).map((one) => problem(`${one.group} did not answer: ${one.error}`)),
        !view && !error && h("p", { class: "loading" }, "Asking the leaders…"),
        view && [
          h("section", { class: "card" }, facts([
            ["Lag", number(view.lag)],
            ["Clients", number(view.clients.length)],
            ["Queues", number(view.queues.length)],
            ["Consuming", paused ? h("span", { class: "tag warn" }, "paused") : "yes"],
            view.messageModel && ["Model", String(view.messageModel).toLowerCase()],
            view.consumeType && ["Type", { CONSUME_PASSIVELY: "push", CONSUME_ACTIVELY: "pull" }[view.consumeType] ?? String(view.consumeType)],
          ])),
          Object.entries(view.lagByTopic).sort(retriesLast).map(([topic, lag]) => h("section", { class: "card", "data-key": topic },
            h("div", { class: "card-head" }, h("h2", null, h("a", { href: `#/topics/${seg(topic)}` }, topic)), h("span", { class: "muted" }, `${number(lag)} behind`)),
            queues(view.queues.filter((one) => one.topic === topic)))),
          h("section", { class: "card" }, h("h2", null, "Clients"), clients(view.clients)),
        ],
      ];
    },
    actions: {
      reset: () => reset(name, state.view).then(load),
      pause: () => hold(name, "pause", "Pause", "Brokers stop giving messages to this consumer group until it is resumed. Clients stay connected, offsets stay where they are, and the lag grows.").then(load),
      resume: () => hold(name, "resume", "Resume", "Brokers give messages to this consumer group again, from the offsets where it stood.").then(load),
    },
  };
}

const retriesLast = ([one], [other]) => one.startsWith("%") - other.startsWith("%") || one.localeCompare(other);

function queues(rows) {
  const most = lagScale(rows.map((one) => one.lag ?? 0));
  return table("Queues of this consumer group", [["Queue", ""], ["Consumed", "num"], ["Stored", "num"], ["Lag", "num"], ["", "wide"], ["Last consumed", ""]],
    rows.map((one) => [
      h("span", null, h("span", { class: "muted" }, `${one.group} `), number(one.queueId)),
      number(one.consumerOffset), number(one.brokerOffset), number(one.lag), bar((one.lag ?? 0) / most, one.lag ? "warn" : ""), one.lastTimeMs > 0 ? ago(one.lastTimeMs) : "–",
    ]));
}

function clients(rows) {
  if (!rows.length) return empty("Nobody is connected.");
  return table("Clients", [["Client", ""], ["Address", ""], ["Language", ""], ["Version", ""]],
    rows.map((one) => [h("span", { class: "mono" }, one.clientId ?? "–"), h("span", { class: "mono" }, one.address ?? "–"), String(one.language ?? "–"), String(one.version ?? "–")]));
}

async function reset(name, view) {
  const topics = Object.entries(view.lagByTopic).sort(retriesLast).map(([topic]) => topic);
  const given = await ask({
    title: `Reset the offsets of ${name}`,
    words: [
      "In every broker group that has the topic, the consumer group's offsets are set to the place chosen here. Going back, messages are consumed again; going forward, those in between are never consumed. It cannot be undone by itself: note the offsets if you may want them back.",
    ],
    fields: [
      h("label", null, "Topic", h("select", { name: "topic" }, topics.map((topic) => h("option", { value: topic }, topic)))),
      h("label", null, "To", h("select", { name: "to" },
        h("option", { value: "time" }, "a time"), h("option", { value: "earliest" }, "the earliest message there is"), h("option", { value: "latest" }, "the latest: skip what waits"))),
      h("label", null, "Time (this browser's zone)", h("input", { name: "time", type: "datetime-local", step: "1", value: local(Date.now() - 3600_000) })),
      h("label", { class: "choice" }, h("input", { type: "checkbox", name: "force" }), "although consumers are online (they will go on from there)"),
    ],
    action: "Reset offsets",
    danger: true,
  });
  if (!given) return;
  const to = given.to === "time" ? { timeMs: new Date(given.time).getTime() } : { position: given.to };
  await attempt(`Reset of ${name}`, () => call("POST", `/consumer-groups/${seg(name)}/reset`, { body: { topic: given.topic, to, force: Boolean(given.force) } }));
}

async function hold(name, deed, title, words) {
  const given = await ask({ title: `${title} ${name}?`, words: [words], action: title });
  if (given) await attempt(`${title} ${name}`, () => call("POST", `/consumer-groups/${seg(name)}/${deed}`));
}

function local(ms) {
  const at = new Date(ms - new Date(ms).getTimezoneOffset() * 60000);
  return at.toISOString().slice(0, 19);
}
