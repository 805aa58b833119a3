// The dead letters of a consumer group: looked through, and resent one by one, several or all.

import { call, get, query, seg } from "/dashboard/api.js";
import { save } from "/dashboard/bodies.js";
import { ask } from "/dashboard/dialog.js";
import { h } from "/dashboard/dom.js";
import { field } from "/dashboard/forms.js";
import { number, plural } from "/dashboard/format.js";
import { idOf, lines, newest } from "/dashboard/messagelist.js";
import { back, bar, head, problem } from "/dashboard/parts.js";

const BATCH = 32; // resent by one request; the progress goes on by so many
const PAGE = 256;
const TOLD_MAX = 20; // failures that are listed

export function deadPage(app, group) {
  const topic = `%DLQ%${group}`;
  const list = newest(app, () => topic);
  const state = { filters: {}, chosen: new Set(), work: null };

  const load = (filters = state.filters) => {
    state.filters = filters;
    state.chosen.clear();
    return list.load(filters);
  };

  const running = () => state.work && !state.work.ended;

  /** Resend what `pages` yields, a batch at a time, until its end or until it is stopped. */
  async function resend(total, pages) {
    const work = (state.work = { total, done: 0, failed: [], unknown: 0, stopped: false, ended: false, error: "" });
    try {
      for await (const ids of pages)
        for (let at = 0; at < ids.length && !work.stopped; at += BATCH) {
          const { items } = await call("POST", "/messages/resend", { body: { messageIds: ids.slice(at, at + BATCH) } });
          for (const one of items) {
            if (one.outcome === "ok") work.done += 1;
            else if (one.outcome === "unknown") work.unknown += 1;
            else work.failed.push(one);
          }
          app.update();
        }
    } catch (error) {
      work.error = error.message;
    }
    work.ended = true;
    state.chosen.clear();
    app.update();
  }

  async function* chosenIds() {
    yield [...state.chosen];
  }

  /** The ids of all dead letters that fit the filters and are there now, newest first; those that
   *  die meanwhile are newer and are left alone. */
  async function* allIds(work) {
    let before = "";
    do {
      const page = await get(`/topics/${seg(topic)}/messages${query({ limit: PAGE, ...state.filters, before })}`);
      yield page.items.map(idOf);
      before = page.next;
    } while (before && !work().stopped);
  }

  const words = (what) => [
    `A copy of ${what} is written to the retry topic of ${group}, whose consumers get it as if it had been delivered again. The dead letters stay where they are: resending twice means two copies.`,
    "Keep this page open until it is done; it may be stopped, and what is resent then stays resent.",
  ];

  async function some() {
    const count = state.chosen.size;
    if (await ask({ title: `Resend ${plural(count, "dead letter")}?`, words: words("each"), action: "Resend" })) resend(count, chosenIds());
  }

  async function all() {
    const filtered = Object.values(state.filters).some(Boolean);
    const given = await ask({
      title: `Resend all dead letters of ${group}${filtered ? " that fit the filter" : ""}?`,
      words: words("each of them"),
      typed: group,
      action: "Resend all",
    });
    if (given) resend(null, allIds(() => state.work));
  }

  return {
    start: () => load(),
    stop() {
      list.stop();
      if (state.work) state.work.stopped = true;
    },
    render() {
      const locked = app.me.role === "viewer" || running();
      return [
        back(`consumers/${seg(group)}`, group),
        head(`Dead letters of ${group}`, h("div", { class: "buttons" },
          h("button", { type: "button", "data-do": "some", disabled: locked || !state.chosen.size }, `Resend ${state.chosen.size ? number(state.chosen.size) : "chosen"}…`),
          h("button", { type: "button", "data-do": "all", disabled: locked || !list.state.items.length }, "Resend all…"),
          h("button", { type: "button", class: "quiet", "data-do": "save", disabled: !list.state.items.length }, "Download these"))),
        state.work && progress(state.work),
        h("form", { class: "card form", "data-submit": "filter", "data-key": "filter" },
          h("div", { class: "fields" },
            field("Tag", { name: "tag" }), field("Key", { name: "key" }),
            field("Property", { name: "property", placeholder: "name or name=value" }), field("Text in the body", { name: "text" }),
            h("button", { type: "submit", class: "primary" }, "Filter"))),
        list.state.items.length > 0 && h("label", { class: "choice", "data-key": "every" },
          h("input", { type: "checkbox", "data-input": "every", "data-key": `every-${state.chosen.size === list.state.items.length}`, checked: state.chosen.size === list.state.items.length }), "all that are shown"),
        list.render((message) => {
          const id = idOf(message);
          const on = state.chosen.has(id);
          return h("input", { type: "checkbox", "data-input": "one", "data-key": `${id}-${on}`, value: id, checked: on, "aria-label": `Choose ${message.keys || id}` });
        }),
      ];
    },
    inputs: {
      one: (id, box) => {
        if (box.checked) state.chosen.add(id);
        else state.chosen.delete(id);
        app.update();
      },
      every: (_, box) => {
        state.chosen = new Set(box.checked ? list.state.items.map(idOf) : []);
        app.update();
      },
    },
    actions: {
      filter: load,
      more: () => list.more(),
      some,
      all,
      save: () => save(`${topic}.jsonl`.replace(/[^\w.-]/g, "_"), lines(list.state.items), "application/jsonl"),
      halt: () => {
        state.work.stopped = true;
        app.update();
      },
    },
  };
}

function progress(work) {
  const past = work.done + work.failed.length + work.unknown;
  const told = `${plural(work.done, "dead letter")} resent${work.total === null ? "" : ` of ${number(work.total)}`}`;
  return h("section", { class: "card", role: "status", "data-key": "progress" },
    h("div", { class: "card-head" },
      h("p", null, h("strong", null, told),
        work.failed.length > 0 && h("span", { class: "warn-text" }, ` · ${number(work.failed.length)} not`),
        work.unknown > 0 && h("span", { class: "warn-text" }, ` · ${number(work.unknown)} perhaps: look before you try again`),
        work.ended ? (work.stopped ? " · stopped" : work.error ? "" : " · done") : work.stopped ? " · stopping…" : "…"),
      !work.ended && h("button", { type: "button", class: "small", "data-do": "halt", disabled: work.stopped }, "Stop")),
    work.total !== null && bar(past / Math.max(1, work.total), "good"),
    work.error && problem(work.error),
    work.failed.length > 0 && h("ul", { class: "plain" }, work.failed.slice(0, TOLD_MAX).map((one) => h("li", null, h("span", { class: "mono" }, one.messageId), ` ${one.error}`))));
}
