// A list of messages, and the newest of a topic: filtered, paged, and followed as they come.

import { fewAtOnce, get, query, seg } from "/dashboard/api.js";
import { bodyOf, preview, save } from "/dashboard/bodies.js";
import { toast } from "/dashboard/dialog.js";
import { h } from "/dashboard/dom.js";
import { ago, number, plural } from "/dashboard/format.js";
import { empty, problem } from "/dashboard/parts.js";

const PAGE = 64;
const FOLLOW_MS = 1000;
const FOLLOWED_MAX = 500; // messages on the page while it follows
const CLOCK_SKEW_MS = 10_000; // by which the clock of a group's next leader may be behind
const NONE = { commitLogOffset: -1, storeTimestamp: 0 }; // stands for the newest message of a group that has none
const FILTERS = ["tag", "key", "property", "text", "group"];

/** Return the filters in the values of a form. */
export const filtersOf = (form) => Object.fromEntries(FILTERS.map((name) => [name, (form[name] ?? "").trim()]));

export const idOf = (message) => message.offsetMsgId;
const titleOf = (message) => message.keys || message.msgId || idOf(message);

/** Rows of messages. `choice(message)`: an element before each row, or null. */
export function messageRows(items, choice = () => null) {
  return h("ul", { class: "rows messages", "aria-label": "Messages" }, items.map((message) => {
    const selected = choice(message);
    return h("li", { "data-key": idOf(message) || `${message.queueId}-${message.queueOffset}`, class: selected && "chosen" },
      selected,
      h("a", { class: "row", href: `#/messages/${seg(idOf(message))}` },
        h("span", { class: "name" }, titleOf(message)),
        h("span", { class: "muted" }, `${message.group ? `${message.group} · ` : ""}queue ${message.queueId} · offset ${number(message.queueOffset)}`),
        h("span", { class: "muted" }, message.tags ?? ""),
        h("span", { class: "num muted" }, ago(message.storeTimestamp)),
        h("span", { class: "preview" }, preview(message))));
  }));
}

/** The newest messages of a topic. `load(filters)` starts again, `more()` adds older ones,
 *  `follow(true)` adds new ones. `topicOf()` names the topic when it is loaded. */
export function newest(app, topicOf) {
  const state = { items: [], next: null, scanned: 0, errors: [], error: "", busy: false, loaded: false, following: false, missed: false };
  let topic = "";
  let filters = {};
  let timer = 0;
  let round = 0;
  let newestOf = new Map(); // group → its newest message that is known: clocks of groups differ, each has one log
  let unknownMark = null; // stands for that of a group that is not in there
  let polling = 0; // the round of the poll that is under way

  const ask = (extra) => get(`/topics/${seg(topic)}/messages${query({ limit: PAGE, ...filters, ...extra })}`);

  async function run(own, extra, apply) {
    try {
      const page = await ask(extra);
      if (own !== round) return;
      Object.assign(state, { errors: page.errors, error: "", loaded: true });
      apply(page);
    } catch (error) {
      if (own === round) state.error = error.message;
    }
  }

  function ended(own) {
    if (own === round) state.busy = false;
    app.update();
  }

  async function load(form = {}) {
    topic = topicOf();
    filters = filtersOf(form);
    Object.assign(state, { items: [], next: null, scanned: 0, busy: true, loaded: false, missed: false });
    const own = ++round;
    app.update();
    await run(own, {}, (page) => {
      Object.assign(state, { items: page.items, next: page.next, scanned: page.scanned });
      newestOf = new Map();
      unknownMark = page.next ? null : NONE;
      noteNewest(page.items);
    });
    ended(own);
  }

  function noteNewest(items) {
    for (const one of items)
      if (one.commitLogOffset > (newestOf.get(one.group) ?? NONE).commitLogOffset) newestOf.set(one.group, one);
  }

  async function more() {
    if (state.busy || !state.next) return;
    state.busy = true;
    app.update();
    const own = round;
    await run(own, { before: state.next }, (page) => {
      state.items = [...state.items, ...page.items];
      state.next = page.next;
      state.scanned += page.scanned;
    });
    ended(own);
  }

  /** Read a group's messages after its newest known one. A group without a known message only reports
   *  its newest. */
  async function newerOf(group) {
    const newestKnown = newestOf.get(group) ?? unknownMark;
    const since = newestKnown && Math.max(0, newestKnown.storeTimestamp - CLOCK_SKEW_MS);
    const page = await ask({ group, ...(newestKnown ? { sinceMs: since } : { limit: 1 }) }).catch((error) => {
      if (error.status === 404) return { items: [], errors: [] }; // it has not got the topic
      return { items: [], errors: [{ group, error: error.message }] };
    });
    const fresh = newestKnown ? page.items.filter((one) => one.commitLogOffset > newestKnown.commitLogOffset) : [];
    return { ...page, group, fresh, missed: Boolean(page.next && fresh.length && fresh.length === page.items.length) };
  }

  async function poll() {
    if (document.hidden || state.busy || !state.loaded || polling === round) return;
    const own = (polling = round);
    const groups = filters.group ? [filters.group] : (app.cluster?.groups ?? []).map(({ name }) => name);
    const pages = await fewAtOnce(groups, newerOf);
    if (polling === own) polling = 0;
    if (own !== round) return;
    for (const { group, items, errors } of pages) {
      noteNewest(items);
      if (!errors.length && !newestOf.has(group)) newestOf.set(group, NONE);
    }
    const fresh = pages.flatMap((one) => one.fresh).sort((one, other) => other.storeTimestamp - one.storeTimestamp);
    state.items = [...fresh, ...state.items];
    Object.assign(state, { errors: pages.flatMap((one) => one.errors), error: "", missed: state.missed || pages.some((one) => one.missed) });
    if (state.items.length > FOLLOWED_MAX) {
      state.items.length = FOLLOWED_MAX;
      state.next = null; // a new search shows older ones
    }
    app.update();
  }

  function follow(on) {
    clearInterval(timer);
    state.following = on;
    if (on) timer = setInterval(poll, FOLLOW_MS);
    app.update();
  }

  return {
    state,
    load,
    more,
    follow,
    stop: () => follow(false),
    render: (choice) => [
      state.error && problem(state.error),
      state.errors.map((one) => problem(`${one.group} did not answer: ${one.error}`)),
      state.missed && h("p", { class: "note", role: "status" }, "More messages arrived than can be shown: some are left out."),
      state.loaded && h("p", { class: "muted" }, plural(state.items.length, "message"), state.scanned > state.items.length && ` of ${number(state.scanned)} scanned`, state.following && " · following"),
      state.busy && !state.items.length && h("p", { class: "loading" }, "Asking the leaders…"),
      state.loaded && !state.items.length && empty(state.next ? "No matching messages so far. Older ones can be shown." : "No matching messages."),
      messageRows(state.items, choice),
      state.next && h("button", { type: "button", class: "quiet wide", "data-do": "more", disabled: state.busy }, state.busy ? "Loading…" : "Show older ones"),
    ],
  };
}

const hasBody = ({ text, body, bodySize }) => !bodySize || typeof (text ?? body) === "string";

/** Save several messages as JSON lines, and say how many of them are without the body that lists leave out. */
export function saveLines(items) {
  save(`${items[0].topic}.jsonl`.replace(/[^\w.-]/g, "_"), lines(items), "application/jsonl");
  const count = items.filter((one) => !hasBody(one)).length;
  if (count) toast(`${plural(count, "message")} ${count === 1 ? "is" : "are"} saved without its body, which is too large for lists. Download it from the message's page.`, "warn");
}

const lines = (items) => items.map((one) => JSON.stringify({ ...one, body: bodyOf(one).text === undefined ? one.body : undefined })).join("\n");
