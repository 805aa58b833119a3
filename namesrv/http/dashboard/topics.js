// The topics page: the list of all topics, and one topic with its queues and consumers.

import { fewAtOnce, get, query, seg } from "/dashboard/api.js";
import { h, lazy } from "/dashboard/dom.js";
import { ago, number, plural } from "/dashboard/format.js";
import { ofTopic } from "/dashboard/history.js";
import { createTopic, deleteTopic, editTopic, queueCount, sendMessage } from "/dashboard/topicedit.js";
import { back, bar, both, empty, facts, head, lagScale, polled, problem, table } from "/dashboard/parts.js";

const PAGE = 1000;
const SHOWN_MAX = 5000; // rows on the page; beyond that a search is quicker than scrolling
const TYPING_MS = 180;
const GROUP_PAGES = 5; // of consumer groups, looked through for the readers of a topic
const READERS_MAX = 200; // that are asked how far they are

export const permissions = (perm) => [perm & 4 && "read", perm & 2 && "write"].filter(Boolean).join(", ") || "none";

/** A long list by name: the server searches it, and pages are loaded as they are scrolled to. */
export function longList(app, { path, nameOf, more: extra = () => ({}) }) {
  const list = { items: [], next: null, q: "", error: "", errors: [], loaded: false, version: 0 };
  let timer = 0;
  let request = null;

  list.load = async (more = false) => {
    request?.abort();
    const own = (request = new AbortController());
    try {
      const page = await get(path + query({ q: list.q, limit: PAGE, cursor: more ? list.next : "", ...extra() }), { signal: own.signal });
      list.items = more ? [...list.items, ...page.items] : page.items;
      list.next = page.next;
      list.errors = page.errors ?? [];
      list.error = "";
      list.loaded = true;
      list.version += 1;
    } catch (error) {
      if (request !== own) return; // it was ended by the next one
      list.error = error.message;
    }
    request = null;
    app.update();
  };
  list.refresh = async () => {
    if (!request) await list.load();
  };
  list.search = (text) => {
    list.q = text.trim();
    clearTimeout(timer);
    timer = setTimeout(() => list.load(), TYPING_MS);
  };
  list.count = () => `${number(list.items.length)}${list.next ? "+" : ""}`;
  list.more = () =>
    list.next && (list.items.length < SHOWN_MAX
      ? h("button", { type: "button", class: "quiet wide", "data-do": "more" }, "Show more")
      : empty("The list is longer: search for a part of a name."));
  list.problems = () => [
    list.error && problem(list.error),
    list.errors.map((one) => problem(`${one.group} did not answer: ${one.error}`)),
  ];
  list.nameOf = nameOf;
  return list;
}

export const searchBox = (label, value) =>
  h("input", { type: "search", class: "search", "aria-label": label, placeholder: label, "data-input": "search", "data-key": "search", value, autocomplete: "off", spellcheck: "false" });

const DEAD = "%DLQ%";
const KINDS = [["own", "topics"], ["retry", "retries"], ["dead", "dead letters"], ["system", "system"], ["", "all"]];

export function topicsPage(app, _, parameters) {
  const state = { kind: parameters.get("kind") ?? "own" };
  const list = longList(app, { path: "/topics", nameOf: (item) => item.topic, more: () => ({ kind: state.kind }) });
  const row = ({ topic, groups }) =>
    h("li", { "data-key": topic }, h("a", { class: "row", href: topic.startsWith(DEAD) ? `#/dead/${seg(topic.slice(DEAD.length))}` : `#/topics/${seg(topic)}` },
      h("span", { class: "name" }, topic),
      h("span", { class: "muted" }, groups.map((one) => one.group).join(", ")),
      h("span", { class: "num" }, queueCount(groups)),
      h("span", { class: "muted perm" }, permissions(groups.reduce((perm, one) => perm | one.perm, 0)))));

  return {
    start: () => list.load(),
    render() {
      const rows = lazy("ul", { class: "rows", "aria-label": "Topics", "data-key": "rows" }, list.version, () => list.items.map(row));
      return [
        head("Topics", h("span", { class: "muted grow" }, list.loaded ? list.count() : ""),
          h("button", { type: "button", class: "primary", "data-do": "create", disabled: app.me.role !== "admin" }, "New topic…")),
        h("div", { class: "toolbar" },
          searchBox("Part of a topic's name", list.q),
          h("div", { class: "chips", role: "group", "aria-label": "Kinds of topics" }, KINDS.map(([kind, title]) =>
            h("button", { type: "button", class: "way", "data-do": "kind", "data-kind": kind, "aria-pressed": String(state.kind === kind) }, title)))),
        list.problems(),
        list.loaded ? (list.items.length ? rows : empty(list.q ? "No topic name contains this text." : "No topics of this kind.")) : h("p", { class: "loading" }, "Reading the topics…"),
        list.more(),
      ];
    },
    inputs: { search: list.search },
    actions: {
      more: () => list.load(true),
      create: () => createTopic(app),
      kind: ({ kind }) => {
        state.kind = kind;
        list.load();
      },
    },
  };
}

export function topicPage(app, topic) {
  const state = { config: null, queues: null, readers: null, error: "" };
  const history = ofTopic(app, topic);

  async function load() {
    try {
      const [config, queues] = await Promise.all([get(`/topics/${seg(topic)}`), get(`/topics/${seg(topic)}/queues`)]);
      Object.assign(state, { config, queues, error: "" });
      app.update();
      state.readers = await readersOf(topic);
    } catch (error) {
      state.error = error.message;
    }
    app.update();
  }

  const isSystem = () => state.config?.groups.some((one) => one.system);

  return {
    ...both(polled(load, 5000), history),
    render() {
      return [
        back("topics", "Topics"),
        head(topic, h("div", { class: "buttons" },
          h("a", { class: "button", href: `#/messages?topic=${seg(topic)}` }, "Messages"),
          h("button", { type: "button", "data-do": "send", disabled: app.me.role === "viewer" || !state.config }, "Send a message…"),
          h("button", { type: "button", "data-do": "edit", disabled: app.me.role !== "admin" || !state.config || isSystem() }, "Change…"),
          h("button", { type: "button", class: "quiet", "data-do": "remove", disabled: app.me.role !== "admin" || !state.config || isSystem() }, "Delete…"))),
        state.error && problem(state.error),
        !state.queues && !state.error && h("p", { class: "loading" }, "Asking the leaders…"),
        state.config?.groups.map((group) => h("section", { class: "card", "data-key": group.group },
          h("h2", null, group.group),
          facts([
            ["Read queues", number(group.readQueueNums)],
            ["Write queues", number(group.writeQueueNums)],
            ["Permission", permissions(group.perm)],
            ["Ordered", group.order ? "yes" : "no"],
            ["Message type", group.messageType ?? "NORMAL"],
            ...Object.entries(group.attributes ?? {}).filter(([name]) => name !== "message.type"),
          ]),
          queueTable(topic, group.group, state.queues?.items.filter((one) => one.group === group.group) ?? []))),
        state.readers && h("section", { class: "card" }, h("h2", null, "Consumer lag"),
          state.readers.notes.map(problem), readersTable(state.readers)),
        history.render(),
      ];
    },
    actions: {
      ...history.actions,
      send: () => sendMessage(app, topic, state.config.groups.map((one) => one.group)),
      edit: () => editTopic(app, topic).catch((error) => { state.error = error.message; }).then(load),
      remove: () => deleteTopic(app, topic, state.queues?.items),
    },
  };
}

/** Return whether one of all consumer groups reads a topic, or might: it is connected and has read nothing yet. */
const mayConsume = ({ groups }, topic) => {
  const topics = groups.flatMap((one) => one.topics);
  return topics.includes(topic) || (groups.some((one) => one.clientCount) && topics.every((one) => one.startsWith("%")));
};

/** Return the consumer groups that read a topic, those that are most behind first, and in `notes` what is not known. */
async function readersOf(topic) {
  const groups = [];
  let page = { next: "" };
  for (let count = 0; count < GROUP_PAGES && page.next !== null; count += 1) {
    page = await get(`/consumer-groups${query({ limit: PAGE, cursor: page.next })}`);
    groups.push(...page.items);
  }
  const readers = groups.filter((one) => mayConsume(one, topic));
  const each = await fewAtOnce(readers.slice(0, READERS_MAX), async ({ name }) => {
    try {
      const { queues, clients } = await get(`/consumer-groups/${seg(name)}`);
      const own = queues.filter((one) => one.topic === topic);
      const last = Math.max(0, ...own.map((one) => one.lastTimeMs ?? 0));
      return own.length ? { name, clients: clients.length, lag: own.reduce((sum, one) => sum + Math.max(0, one.lag ?? 0), 0), last } : null;
    } catch (error) {
      return { name, error: error.message };
    }
  });
  return {
    items: each.filter(Boolean).sort((one, other) => (other.lag ?? 0) - (one.lag ?? 0)),
    notes: [
      ...page.errors.map((one) => `${one.group} did not answer: ${one.error}`),
      page.next !== null && `Only the first ${plural(groups.length, "consumer group")} were searched.`,
      readers.length > READERS_MAX && `${plural(readers.length - READERS_MAX, "consumer group")} more may read it.`,
    ].filter(Boolean),
  };
}

function readersTable({ items, notes }) {
  if (!items.length) return empty(`No consumer group ${notes.length ? "that is known " : ""}has read this topic.`);
  const max = lagScale(items.map((one) => one.lag ?? 0));
  return table("Consumer groups of this topic", [["Consumer group", ""], ["Clients", "num"], ["Lag", "num"], ["", "wide"], ["Last consumed", ""]],
    items.map((one) => [
      h("a", { href: `#/consumers/${seg(one.name)}` }, one.name),
      one.error ? "–" : number(one.clients), one.error ? one.error : number(one.lag), bar((one.lag ?? 0) / max, one.lag ? "warn" : ""), one.last ? ago(one.last) : "–",
    ]));
}

function queueTable(topic, group, queues) {
  if (!queues.length) return empty("No queue has been written to.");
  const sum = queues.reduce((total, one) => total + Math.max(0, one.maxOffset - one.minOffset), 0);
  return [
    h("p", { class: "muted" }, `${plural(sum, "message")} in ${plural(queues.length, "queue")}`),
    table(`Queues of ${group}`, [["Queue", "num"], ["First", "num"], ["Next", "num"], ["Messages", "num"], ["Last stored", ""], ["", ""]],
      queues.map((one) => [
        number(one.queueId), number(one.minOffset), number(one.maxOffset), number(one.maxOffset - one.minOffset),
        one.lastStoreTimeMs > 0 ? ago(one.lastStoreTimeMs) : "–",
        one.maxOffset > one.minOffset && h("a", { href: `#/messages?topic=${seg(topic)}&by=offset&group=${seg(one.group)}&queueId=${one.queueId}&offset=${Math.max(one.minOffset, one.maxOffset - 32)}` }, "open"),
      ])),
  ];
}
