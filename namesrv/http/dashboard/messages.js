// The messages page: the newest of a topic, and messages by key, id, queue offset or time.

import { get, query, seg } from "/dashboard/api.js";
import { h } from "/dashboard/dom.js";
import { field, groupNames, localTime, suggested, topicNames } from "/dashboard/forms.js";
import { plural } from "/dashboard/format.js";
import { messageRows, newest, saveLines } from "/dashboard/messagelist.js";
import { empty, head, problem } from "/dashboard/parts.js";

const LIMIT = 64;
const HOUR_MS = 3600_000;
const WAYS = [
  ["newest", "newest"],
  ["key", "key"],
  ["uniqueKey", "unique key"],
  ["id", "message id"],
  ["offset", "queue offset"],
  ["time", "time"],
];

export function messagesPage(app, _, parameters) {
  const fields = Object.fromEntries(parameters);
  const first = fields.by ?? (fields.uniqueKey ? "uniqueKey" : fields.offset ? "offset" : fields.key ? "key" : "newest");
  const state = { by: first, topic: fields.topic ?? "", result: null, form: null, error: "", busy: false, topics: [] };
  const list = newest(app, () => state.topic);
  let timer = 0;
  let round = 0; // of searches: only the last one's answer is shown

  async function suggest(text) {
    state.topic = text;
    clearTimeout(timer);
    timer = setTimeout(async () => {
      try {
        state.topics = await topicNames(text);
        app.update();
      } catch {
        state.topics = []; // suggestions only
      }
    }, 180);
  }

  async function search(form) {
    const own = ++round;
    Object.assign(fields, form);
    if (state.by === "id") {
      app.go(`messages/${seg(form.id.trim())}`);
      return;
    }
    Object.assign(state, { topic: form.topic, form });
    if (state.by === "newest") {
      await list.load(form);
      return;
    }
    Object.assign(state, { busy: true, error: "", result: null });
    app.update();
    const answer = await get(pathOf(state.by, form)).then((result) => ({ result }), (error) => ({ error: error.message }));
    if (own !== round) return;
    Object.assign(state, answer, { busy: false });
    app.update();
  }

  /** Add the next page of what was found. */
  async function nextPage() {
    if (state.busy) return;
    const own = ++round;
    Object.assign(state, { busy: true, error: "" });
    app.update();
    try {
      const page = await get(pathOf(state.by, state.form, state.result.next));
      if (own !== round) return;
      state.result = { ...page, items: [...state.result.items, ...page.items] };
    } catch (error) {
      if (own !== round) return;
      state.error = error.message;
    }
    state.busy = false;
    app.update();
  }

  const visible = () => (state.by === "newest" ? list.state.items : state.result?.items ?? []);

  return {
    start() {
      suggest(state.topic);
      const complete = { newest: state.topic, key: fields.key, uniqueKey: fields.uniqueKey, offset: fields.queueId, time: null }[state.by];
      if (complete) search({ ...fields, topic: state.topic });
    },
    stop: () => list.stop(),
    render() {
      const byNewest = state.by === "newest";
      return [
        head("Messages", h("div", { class: "buttons" },
          byNewest && h("button", { type: "button", "data-do": "follow", "aria-pressed": String(list.state.following), disabled: !list.state.loaded }, list.state.following ? "Stop following" : "Follow live"),
          h("button", { type: "button", "data-do": "save", disabled: !visible().length }, "Download"))),
        h("form", { class: "card form", "data-submit": "search", "data-key": `form-${state.by}` },
          h("fieldset", { class: "ways" }, h("legend", { class: "hidden" }, "Search by"),
            WAYS.map(([name, title]) => h("button", { type: "button", class: "way", "data-do": "by", "data-by": name, "aria-pressed": String(state.by === name) }, title))),
          h("div", { class: "fields" },
            state.by !== "id" && suggested("Topic", { name: "topic", value: state.topic, required: true, "data-input": "topic" }, state.topics),
            inputs(state.by, fields, groupNames(app)),
            h("button", { type: "submit", class: "primary" }, byNewest ? "Show" : "Search"))),
        byNewest ? (list.state.loaded || list.state.busy || list.state.error) && list.render() : [
          state.error && problem(state.error),
          state.busy && h("p", { class: "loading" }, "Asking the leaders…"),
          state.result && results(state.result, state.busy),
        ],
      ];
    },
    inputs: { topic: suggest },
    actions: {
      by: ({ by }) => {
        round += 1;
        Object.assign(state, { by, result: null, error: "", busy: false });
        list.stop();
      },
      search,
      more: () => (state.by === "newest" ? list.more() : nextPage()),
      follow: () => list.follow(!list.state.following),
      save: () => saveLines(visible()),
    },
  };
}

function inputs(by, fields, groups) {
  switch (by) {
    case "newest": return [
      field("Tag", { name: "tag", value: fields.tag ?? "" }),
      field("Key", { name: "key", value: fields.key ?? "" }),
      field("Property", { name: "property", value: fields.property ?? "", placeholder: "name or name=value" }),
      field("Text in the body", { name: "text", value: fields.text ?? "" }),
    ];
    case "key": return field("Key", { name: "key", value: fields.key ?? "", required: true });
    case "uniqueKey": return field("Unique key", { name: "uniqueKey", value: fields.uniqueKey ?? "", required: true });
    case "id": return field("Message id (offsetMsgId)", { name: "id", value: fields.id ?? "", required: true, pattern: "[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56}" });
    case "offset": return [
      field("Queue", { name: "queueId", type: "number", min: "0", value: fields.queueId ?? "0", required: true }),
      field("Offset", { name: "offset", type: "number", min: "0", value: fields.offset ?? "0", required: true }),
      groups.length > 1 && suggested("Broker group", { name: "group", value: fields.group ?? "", required: true }, groups),
    ];
    default: return [
      field("From", { name: "begin", type: "datetime-local", step: "1", value: fields.begin ?? localTime(Date.now() - HOUR_MS), required: true }),
      field("Until", { name: "end", type: "datetime-local", step: "1", value: fields.end ?? "" }),
    ];
  }
}

function pathOf(by, { topic, key, uniqueKey, queueId, offset, group, begin, end }, cursor = "") {
  if (by === "key") return `/messages${query({ topic, key, limit: LIMIT })}`;
  if (by === "uniqueKey") return `/messages${query({ topic, uniqueKey, limit: LIMIT })}`;
  if (by === "offset") return `/topics/${seg(topic)}/queues/${seg(queueId ?? "0")}/messages${query({ offset: cursor || offset, group, limit: LIMIT })}`;
  const moment = (text) => (text ? new Date(text).getTime() : "");
  return `/messages${query({ topic, startMs: moment(begin), endMs: moment(end), limit: LIMIT, cursor })}`;
}

function results({ items, next, errors = [] }, busy) {
  return [
    errors.map((one) => problem(`${one.group} did not answer: ${one.error}`)),
    items.length ? h("p", { class: "muted" }, plural(items.length, "message"), next || items.length >= LIMIT ? ", the first ones" : "") : empty("No messages found."),
    messageRows(items),
    next && h("button", { type: "button", class: "quiet wide", "data-do": "more", disabled: busy }, busy ? "Loading…" : "Show later ones"),
  ];
}
