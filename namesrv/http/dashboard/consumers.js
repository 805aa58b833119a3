// The consumers page: who reads which queue and how far behind; it also resets offsets and pauses groups.

import { call, get, seg } from "/dashboard/api.js";
import { ask, attempt } from "/dashboard/dialog.js";
import { h, lazy } from "/dashboard/dom.js";
import { ago, number, plural } from "/dashboard/format.js";
import { consumeMode, createGroup, deleteGroup, editGroup } from "/dashboard/groupedit.js";
import { ofConsumers } from "/dashboard/history.js";
import { back, bar, both, empty, facts, head, lagScale, polled, problem, table } from "/dashboard/parts.js";
import { resetOffsets } from "/dashboard/resets.js";
import { longList, searchBox } from "/dashboard/topics.js";

const REFRESH_MS = 3000;

const sumOf = (groups, field) => groups.reduce((sum, one) => sum + (typeof one[field] === "number" ? one[field] : 0), 0);
const clientsOf = (groups) => Math.max(0, ...groups.map((one) => one.clientCount ?? 0)); // a client is at every leader

export function consumersPage(app) {
  const list = longList(app, { path: "/consumer-groups", nameOf: (item) => item.name });
  return {
    ...polled(list.refresh, REFRESH_MS, () => list.items.length < 1000),
    render() {
      const max = lagScale(list.items.map((one) => sumOf(one.groups, "lag")));
      return [
        head("Consumer groups", h("span", { class: "muted grow" }, list.loaded ? list.count() : ""),
          h("div", { class: "buttons" },
            h("a", { class: "button", href: "#/topics?kind=dead" }, "Dead letters"),
            h("button", { type: "button", class: "primary", "data-do": "create", disabled: app.me.role !== "admin" }, "New group…"))),
        searchBox("Part of a consumer group's name", list.q),
        list.problems(),
        !list.loaded && !list.error && h("p", { class: "loading" }, "Asking the leaders…"),
        list.loaded && !list.items.length && empty("No consumer groups."),
        lazy("ul", { class: "rows", "aria-label": "Consumer groups", "data-key": "rows" }, list.version, () => list.items.map(({ name, groups }) => {
          const lag = sumOf(groups, "lag");
          const clients = clientsOf(groups);
          return h("li", { "data-key": name }, h("a", { class: "row", href: `#/consumers/${seg(name)}` },
            h("span", { class: "name" }, name),
            h("span", { class: clients ? "muted" : "warn-text" }, clients ? plural(clients, "client") : "no clients"),
            h("span", { class: "num" }, number(lag), h("span", { class: "muted" }, " behind")),
            bar(lag / max, lag ? "warn" : "")));
        })),
        list.more(),
      ];
    },
    inputs: { search: list.search },
    actions: { more: () => list.load(true), create: () => createGroup(app) },
  };
}

export function consumerPage(app, name) {
  const state = { view: null, error: "" };
  const history = ofConsumers(app, name);

  async function load() {
    try {
      state.view = await get(`/consumer-groups/${seg(name)}`);
      state.error = "";
    } catch (error) {
      state.error = error.message;
    }
    app.update();
  }

  const failed = (error) => {
    state.error = error.message;
  };

  return {
    ...both(polled(load, REFRESH_MS), history),
    render() {
      const { view, error } = state;
      const locked = app.me.role === "viewer";
      const paused = view?.consumeEnable === false;
      return [
        back("consumers", "Consumer groups"),
        head(name, view && h("div", { class: "buttons" },
          h("a", { class: "button", href: `#/dead/${seg(name)}` }, "Dead letters"),
          h("button", { type: "button", "data-do": "reset", disabled: locked || !view.queues.length }, "Reset offsets…"),
          h("button", { type: "button", "data-do": paused ? "resume" : "pause", disabled: locked }, paused ? "Resume…" : "Pause…"),
          h("button", { type: "button", "data-do": "edit", disabled: app.me.role !== "admin" }, "Settings…"),
          h("button", { type: "button", "data-do": "mode", disabled: app.me.role !== "admin" }, "Pull or pop…"),
          h("button", { type: "button", class: "quiet", "data-do": "remove", disabled: app.me.role !== "admin" }, "Delete…"))),
        error && problem(error),
        (view?.errors ?? []).map((one) => problem(`${one.group} did not answer: ${one.error}`)),
        !view && !error && h("p", { class: "loading" }, "Asking the leaders…"),
        view && [
          h("section", { class: "card" }, facts([
            ["Lag", number(view.lag)],
            view.inFlight > 0 && ["In flight", number(view.inFlight)],
            ["Clients", number(view.clients.length)],
            ["Queues", number(view.queues.length)],
            ["Consuming", paused ? h("span", { class: "tag warn" }, "paused") : "yes"],
            view.messageModel && ["Model", String(view.messageModel).toLowerCase()],
            view.consumeType && ["Type", { CONSUME_PASSIVELY: "push", CONSUME_ACTIVELY: "pull", CONSUME_POP: "pop" }[view.consumeType] ?? String(view.consumeType)],
          ])),
          Object.entries(view.lagByTopic).sort(retriesLast).map(([topic, lag]) => h("section", { class: "card", "data-key": topic },
            h("div", { class: "card-head" }, h("h2", null, h("a", { href: `#/topics/${seg(topic)}` }, topic)), h("span", { class: "muted" }, `${number(lag)} behind`)),
            queues(topic, view.queues.filter((one) => one.topic === topic)))),
          h("section", { class: "card" }, h("h2", null, "Clients"), clients(view.clients)),
          history.render(),
        ],
      ];
    },
    actions: {
      ...history.actions,
      reset: () => resetOffsets(name, Object.keys(state.view.lagByTopic).sort((one, other) => retriesLast([one], [other]))).then(load),
      edit: () => editGroup(app, name).catch(failed).then(load),
      mode: () => consumeMode(name, state.view).catch(failed).then(load),
      remove: () => deleteGroup(app, name, state.view),
      pause: () => setPaused(name, "pause", "Pause", "Brokers deliver no messages to this consumer group until it is resumed. Clients stay connected, offsets do not change, and the lag grows.").then(load),
      resume: () => setPaused(name, "resume", "Resume", "Brokers deliver messages to this consumer group again, from its offsets.").then(load),
    },
  };
}

const retriesLast = ([one], [other]) => one.startsWith("%") - other.startsWith("%") || one.localeCompare(other);

function queues(topic, rows) {
  const max = lagScale(rows.map((one) => one.lag ?? 0));
  return table(`Queues of ${topic}`, [["Queue", ""], ["Consumed", "num"], ["Stored", "num"], ["Lag", "num"], ["", "wide"], ["Last consumed", ""]],
    rows.map((one) => [
      h("span", null, h("span", { class: "muted" }, `${one.group} `), number(one.queueId)),
      number(one.consumerOffset), number(one.brokerOffset), number(one.lag), bar((one.lag ?? 0) / max, one.lag ? "warn" : ""), one.lastTimeMs > 0 ? ago(one.lastTimeMs) : "–",
    ]));
}

export function clients(rows, of = "") {
  if (!rows.length) return empty("No clients are connected.");
  return table(`Clients${of && ` of ${of}`}`, [["Client", ""], ["Address", ""], ["Language", ""], ["Version", ""]],
    rows.map((one) => [h("span", null, h("span", { class: "mono" }, one.clientId ?? "–"), (one.differs ?? []).map(differs)), h("span", { class: "mono" }, one.address ?? "–"), String(one.language ?? "–"), one.versionName || String(one.version ?? "–")]));
}

const filterOf = (expression) => expression ?? "nothing";

// Consumers of one group that subscribe to different things lose messages.
function differs({ topic, expression, others }) {
  return h("div", null, h("span", { class: "tag warn" }, "differs"), ` ${topic}: ${filterOf(expression)}; others: ${filterOf(others)}`);
}

async function setPaused(name, operation, title, paragraph) {
  const values = await ask({ title: `${title} ${name}?`, paragraphs: [paragraph], action: title });
  if (values) await attempt(`${title} ${name}`, () => call("POST", `/consumer-groups/${seg(name)}/${operation}`));
}
