// The dead letters of a consumer group: looked through, and resent one by one, several or all.

import { ApiError, call, get, query, seg } from "/dashboard/api.js";
import { ask, toast } from "/dashboard/dialog.js";
import { h } from "/dashboard/dom.js";
import { field } from "/dashboard/forms.js";
import { number, plural } from "/dashboard/format.js";
import { filtersOf, idOf, newest, saveLines } from "/dashboard/messagelist.js";
import { back, bar, head, problem } from "/dashboard/parts.js";

const BATCH = 32; // resent by one request; the progress goes on by so many
const PAGE = 256;
const FAILURES_MAX = 20; // failures that are listed

export function deadPage(app, group) {
  const topic = `%DLQ%${group}`;
  const list = newest(app, () => topic);
  const state = { filters: {}, selected: new Set(), work: null, closed: false };

  const load = (form = {}) => {
    state.filters = filtersOf(form);
    state.selected.clear();
    return list.load(form);
  };

  const running = () => state.work && !state.work.ended;

  /** Resend what `pages` yields, a batch at a time, until its end or until it is stopped. */
  async function resend(total, pages) {
    const work = (state.work = { total, done: 0, failed: [], unknown: 0, stopped: false, ended: false, error: "" });
    let inFlight = 0; // of the batch that is not answered yet
    try {
      for await (const ids of pages)
        for (let at = 0; at < ids.length && !work.stopped; at += BATCH) {
          const batch = ids.slice(at, at + BATCH);
          inFlight = batch.length;
          const { items } = await call("POST", "/messages/resend", { body: { messageIds: batch } });
          inFlight = 0;
          for (const one of items) {
            if (one.outcome === "ok") work.done += 1;
            else if (one.outcome === "unknown") work.unknown += 1;
            else work.failed.push(one);
          }
          app.update();
        }
    } catch (error) {
      work.error = error.message;
      if (!(error instanceof ApiError && error.status < 500)) work.unknown += inFlight;
    }
    work.ended = true;
    if (state.closed) toast(`${group}: ${[...amounts(work), "stopped because the page was left"].join(" · ")}`, "warn");
    state.selected.clear();
    app.update();
  }

  async function* selectedIds() {
    yield [...state.selected];
  }

  /** The ids of all dead letters that fit these filters and are there now, newest first; those that
   *  die meanwhile are newer and are left alone. */
  async function* allIds(filters, work) {
    let before = "";
    do {
      const page = await get(`/topics/${seg(topic)}/messages${query({ limit: PAGE, ...filters, before })}`);
      yield page.items.map(idOf);
      before = page.next;
    } while (before && !work().stopped);
  }

  const paragraphs = (what) => [
    `A copy of ${what} is written to the retry topic of ${group}, whose consumers receive it as a retry. The dead letters are kept: resending twice writes two copies.`,
    "Keep this page open until it is done. Stopping does not take back what was resent.",
  ];

  async function some() {
    const count = state.selected.size;
    if (await ask({ title: `Resend ${plural(count, "dead letter")}?`, paragraphs: paragraphs("each"), action: "Resend" })) resend(count, selectedIds());
  }

  async function all() {
    const { filters } = state; // others may be looked at while it runs
    const filtered = Object.values(filters).some(Boolean);
    const values = await ask({
      title: `Resend all dead letters of ${group}${filtered ? " that fit the filter" : ""}?`,
      paragraphs: paragraphs("each of them"),
      typed: group,
      action: "Resend all",
    });
    if (values) resend(null, allIds(filters, () => state.work));
  }

  return {
    start: () => load(),
    stop() {
      list.stop();
      state.closed = true;
      if (state.work) state.work.stopped = true;
    },
    render() {
      const locked = app.me.role === "viewer" || running();
      return [
        back(`consumers/${seg(group)}`, group),
        head(`Dead letters of ${group}`, h("div", { class: "buttons" },
          h("button", { type: "button", "data-do": "some", disabled: locked || !state.selected.size }, `Resend ${state.selected.size ? number(state.selected.size) : "selected"}…`),
          h("button", { type: "button", "data-do": "all", disabled: locked || !list.state.items.length }, "Resend all…"),
          h("button", { type: "button", class: "quiet", "data-do": "save", disabled: !list.state.items.length }, "Download"))),
        state.work && progress(state.work),
        h("form", { class: "card form", "data-submit": "filter", "data-key": "filter" },
          h("div", { class: "fields" },
            field("Tag", { name: "tag" }), field("Key", { name: "key" }),
            field("Property", { name: "property", placeholder: "name or name=value" }), field("Text in the body", { name: "text" }),
            h("button", { type: "submit", class: "primary" }, "Filter"))),
        list.state.items.length > 0 && h("label", { class: "choice", "data-key": "every" },
          h("input", { type: "checkbox", "data-input": "every", "data-key": `every-${state.selected.size === list.state.items.length}`, checked: state.selected.size === list.state.items.length }), "Select all shown"),
        list.render((message) => {
          const id = idOf(message);
          const on = state.selected.has(id);
          return h("input", { type: "checkbox", "data-input": "one", "data-key": `${id}-${on}`, value: id, checked: on, "aria-label": `Select ${message.keys || id}` });
        }),
      ];
    },
    inputs: {
      one: (id, box) => {
        if (box.checked) state.selected.add(id);
        else state.selected.delete(id);
        app.update();
      },
      every: (_, box) => {
        state.selected = new Set(box.checked ? list.state.items.map(idOf) : []);
        app.update();
      },
    },
    actions: {
      filter: load,
      more: () => list.more(),
      some,
      all,
      save: () => saveLines(list.state.items),
      halt: () => {
        state.work.stopped = true;
        app.update();
      },
    },
  };
}

/** How many were resent; how many were not, and how many perhaps. */
const amounts = (work) => [
  `${plural(work.done, "dead letter")} resent${work.total === null ? "" : ` of ${number(work.total)}`}`,
  work.failed.length > 0 && `${number(work.failed.length)} failed`,
  work.unknown > 0 && `${number(work.unknown)} unknown: check before you resend them`,
].filter(Boolean);

function progress(work) {
  const processed = work.done + work.failed.length + work.unknown;
  const [first, ...others] = amounts(work);
  return h("section", { class: "card", role: "status", "data-key": "progress" },
    h("div", { class: "card-head" },
      h("p", null, h("strong", null, first),
        others.map((text) => h("span", { class: "warn-text" }, ` · ${text}`)),
        work.ended ? (work.stopped ? " · stopped" : work.error ? "" : " · done") : work.stopped ? " · stopping…" : "…"),
      !work.ended && h("button", { type: "button", class: "small", "data-do": "halt", disabled: work.stopped }, "Stop")),
    work.total !== null && bar(processed / Math.max(1, work.total), "good"),
    work.error && problem(work.error),
    work.failed.length > 0 && h("ul", { class: "plain" }, work.failed.slice(0, FAILURES_MAX).map((one) => h("li", null, h("span", { class: "mono" }, one.messageId), ` ${one.error}`))));
}
