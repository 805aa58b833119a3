// Pieces that several pages share.

import { h, svg } from "/dashboard/dom.js";
import { ago, clock, number, span } from "/dashboard/format.js";

export const head = (title, ...more) => h("div", { class: "head" }, h("h1", null, title), more);

export const empty = (text) => h("p", { class: "empty" }, text);

export const problem = (text) => h("p", { class: "note bad", role: "alert" }, text);

export const back = (path, title) => h("a", { class: "back", href: `#/${path}` }, `← ${title}`);

/** Term and description, side by side. */
export const facts = (pairs) =>
  h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value, kind]) => h("div", { class: kind }, h("dt", null, name), h("dd", null, value))));

/** A table that scrolls in itself where it is too wide. `columns`: [title, "num" or ""]. */
export function table(label, columns, rows) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    h("table", null,
      h("thead", null, h("tr", null, columns.map(([title, kind]) => h("th", { scope: "col", class: kind }, title || h("span", { class: "hidden" }, kind === "wide" ? "Share" : "Actions"))))),
      h("tbody", null, rows.map((row) => h("tr", null, row.map((cell, at) => h("td", { class: columns[at][1] }, cell)))))));
}

/** The lag that fills a bar: a handful of messages must not look like a disaster. */
export const lagScale = (lags) => Math.max(100, ...lags);

/** A share as a bar; the figure stands beside it, so the bar is decoration. */
export const bar = (share, kind = "") =>
  h("span", { class: `bar ${kind}`, "aria-hidden": "true" }, h("span", { style: { width: `${Math.max(0, Math.min(1, share)) * 100}%` } }));

export function sparkline(values, label) {
  const width = 160;
  const height = 36;
  const max = Math.max(1, ...values) * 1.15;
  const step = width / Math.max(1, values.length - 1);
  const points = values.map((value, at) => `${(at * step).toFixed(1)},${(height - 3 - (value / max) * (height - 6)).toFixed(1)}`);
  return svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    points.length > 1 && svg("polygon", { class: "area", points: `0,${height} ${points.join(" ")} ${width},${height}` }),
    points.length > 1 && svg("polyline", { class: "line", points: points.join(" ") }));
}

const STAGES = {
  leaderLost: ["Leader lost", "its connection to the name server ended"],
  transfer: ["Transfer requested", "another leader was requested"],
  electionStarted: ["Election started", "a replica requested votes"],
  elected: ["Leader elected", "a majority voted"],
  leaderReady: ["Leader ready", "the first frame of its term is committed: sends are accepted"],
  routeChanged: ["Route updated", "the name server's route names it"],
};

/** A failover's timeline: a bar in proportion, and every step in words. */
export function timeline(failover, nameOf = (text) => text) {
  const firsts = [];
  for (const mark of failover.marks) if (!firsts.some((one) => one.what === mark.what)) firsts.push(mark);
  const total = Math.max(1, firsts.at(-1).sinceMs);
  const from = failover.oldLeader ? nameOf(failover.oldLeader) : "no leader";
  const to = failover.newLeader ? nameOf(failover.newLeader) : "no leader yet";
  const elections = failover.marks.filter((mark) => mark.what === "electionStarted").length;
  return h("div", { class: "failover" },
    h("p", { class: "lead" },
      h("strong", null, `${from} → ${to}`), ` in term ${number(failover.term)}, `,
      failover.planned ? "planned, " : "",
      failover.complete ? h("strong", { class: "took" }, span(failover.durationMs)) : h("strong", { class: "warn-text" }, "in progress"),
      h("span", { class: "muted" }, ` · ${ago(failover.startedAt)}`)),
    h("div", { class: "stages", "aria-hidden": "true" },
      firsts.slice(1).map((mark, at) =>
        h("span", { class: `stage ${mark.what}`, style: { "flex-grow": String(Math.max(0.02, (mark.sinceMs - firsts[at].sinceMs) / total)) } }))),
    h("ol", { class: "marks" },
      firsts.map((mark, at) => {
        const [title, meaning] = STAGES[mark.what] ?? [mark.what, ""];
        const count = mark.what === "electionStarted" && elections > 1 ? ` (${elections} in total)` : "";
        return h("li", { class: mark.what, title: meaning },
          h("span", { class: "when" }, at === 0 ? clock(mark.at) : `+${span(mark.sinceMs)}`),
          h("span", { class: "what" }, title + count),
          h("span", { class: "who" }, mark.node ? nameOf(mark.node) : ""));
      })));
}

/** `start` and `stop` of two parts of a page. */
export const both = (one, other) => ({
  start: () => { one.start(); other.start(); },
  stop: () => { one.stop(); other.stop(); },
});

/** Return `start` and `stop` of a page that loads at once, and every `everyMs` while it is visible and `enabled`
 *  unless it is loading still. */
export function polled(load, everyMs, enabled = () => true) {
  let timer = 0;
  let loading = false;
  async function poll() {
    if (loading) return;
    loading = true;
    try {
      await load();
    } finally {
      loading = false;
    }
  }
  return {
    start() {
      poll();
      timer = setInterval(() => !document.hidden && enabled() && poll(), everyMs);
    },
    stop: () => clearInterval(timer),
  };
}
