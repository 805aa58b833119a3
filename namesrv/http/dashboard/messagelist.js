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
const CLOCKS_MS = 10_000; // by which the clock of a group's next leader may be behind
const NONE = { commitLogOffset: -1, storeTimestamp: 0 }; // stands for the newest message of a group that has none
const FILTERS = ["tag", "key", "property", "text", "group"];

/** Return the filters in the values of a form. */
export const filtersOf = (given) => Object.fromEntries(FILTERS.map((name) => [name, (given[name] ?? "").trim()]));

export const idOf = (message) => message.offsetMsgId;
const titleOf = (message) => message.keys || message.msgId || idOf(message);

/** Rows of messages. `choice(message)`: an element before each row, or null. */
export function messageRows(items, choice = () => null) {
  return h("ul", { class: "rows messages", "aria-label": "Messages" }, items.map((message) => {
    const chosen = choice(message);
    return h("li", { "data-key": idOf(message) || `${message.queueId}-${message.queueOffset}`, class: chosen && "chosen" },
      chosen,
      h("a", { class: "row", href: `#/messages/${seg(idOf(message))}` },
        h("span", { class: "name" }, titleOf(message)),
        h("span", { class: "muted" }, `${message.group ? `${message.group} · ` : ""}queue ${message.queueId} · offset ${number(message.queueOffset)}`),
        h("span", { class: "muted" }, message.tags ?? ""),
        h("span", { class: "num muted" }, ago(message.storeTimestamp)),
        h("span", { class: "preview" }, preview(message))));
  }));
}

/** The newest messages of a topic. `load(filters)` begins anew, `more()` goes on to older ones,
 *  `follow(true)` adds what comes. `topicOf()` names the topic when it is loaded. */
export function newest(app, topicOf) {
  const state = { items: [], next: null, scanned: 0, errors: [], error: "", busy: false, loaded: false, following: false, missed: false };
  let topic = "";
  let filters = {};
  let timer = 0;
  let round = 0;
  let marks = new Map(); // group → its newest message that is known: clocks of groups differ, each has one log
  let unseen = null; // stands for that of a group that is not in there
  let looking = 0; // the round of which a look for what came is under way

  const ask = (extra) => get(`/topics/${seg(topic)}/messages${query({ limit: PAGE, ...filters, ...extra })}`);

  async function run(mine, extra, take) {
    try {
      const page = await ask(extra);
      if (mine !== round) return;
      Object.assign(state, { errors: page.errors, error: "", loaded: true });
      take(page);
    } catch (error) {
      if (mine === round) state.error = error.message;
    }
  }

  function ended(mine) {
    if (mine === round) state.busy = false;
    app.update();
  }

  async function load(given = {}) {
    topic = topicOf();
    filters = filtersOf(given);
    Object.assign(state, { items: [], next: null, scanned: 0, busy: true, loaded: false, missed: false });
    const mine = ++round;
    app.update();
    await run(mine, {}, (page) => {
      Object.assign(state, { items: page.items, next: page.next, scanned: page.scanned });
      marks = new Map();
      unseen = page.next ? null : NONE;
      note(page.items);
    });
    ended(mine);
  }

  function note(items) {
    for (const one of items)
      if (one.commitLogOffset > (marks.get(one.group) ?? NONE).commitLogOffset) marks.set(one.group, one);
  }

  async function more() {
    if (state.busy || !state.next) return;
    state.busy = true;
    app.update();
    const mine = round;
    await run(mine, { before: state.next }, (page) => {
      state.items = [...state.items, ...page.items];
      state.next = page.next;
      state.scanned += page.scanned;
    });
    ended(mine);
  }

  /** Ask a group for what came after the newest message of it that is known. One of which none is known only tells
   *  its newest. */
  async function cameTo(group) {
    const mark = marks.get(group) ?? unseen;
    const since = mark && Math.max(0, mark.storeTimestamp - CLOCKS_MS);
    const page = await ask({ group, ...(mark ? { sinceMs: since } : { limit: 1 }) }).catch((error) => {
      if (error.status === 404) return { items: [], errors: [] }; // it has not got the topic
      return { items: [], errors: [{ group, error: error.message }] };
    });
    const fresh = mark ? page.items.filter((one) => one.commitLogOffset > mark.commitLogOffset) : [];
    return { ...page, group, fresh, missed: Boolean(page.next && fresh.length && fresh.length === page.items.length) };
  }

  async function look() {
    if (document.hidden || state.busy || !state.loaded || looking === round) return;
    const mine = (looking = round);
    const groups = filters.group ? [filters.group] : (app.cluster?.groups ?? []).map(({ name }) => name);
    const pages = await fewAtOnce(groups, cameTo);
    if (looking === mine) looking = 0;
    if (mine !== round) return;
    for (const { group, items, errors } of pages) {
      note(items);
      if (!errors.length && !marks.has(group)) marks.set(group, NONE);
    }
    const fresh = pages.flatMap((one) => one.fresh).sort((one, other) => other.storeTimestamp - one.storeTimestamp);
    state.items = [...fresh, ...state.items];
    Object.assign(state, { errors: pages.flatMap((one) => one.errors), error: "", missed: state.missed || pages.some((one) => one.missed) });
    if (state.items.length > FOLLOWED_MAX) {
      state.items.length = FOLLOWED_MAX;
      state.next = null; // what is older is asked for by a new search
    }
    app.update();
  }

  function follow(on) {
    clearInterval(timer);
    state.following = on;
    if (on) timer = setInterval(look, FOLLOW_MS);
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
