// Figures over time: what the brokers noted, drawn by uPlot.

import { get, query } from "/dashboard/api.js";
import { h, lazy } from "/dashboard/dom.js";
import { bytes, number, rate, span } from "/dashboard/format.js";
import { empty, head, polled, problem } from "/dashboard/parts.js";
import uPlot from "/dashboard/uplot.js";

const HOUR_MS = 3600000;
const RANGES = [["15 min", HOUR_MS / 4], ["1 h", HOUR_MS], ["6 h", 6 * HOUR_MS], ["24 h", 24 * HOUR_MS], ["7 d", 168 * HOUR_MS]];
const RELOAD_MS = 15000; // as often as brokers note their figures
const POINTS = 120;
const HEIGHT = 180;
const LINES_MAX = 8; // of one plot: more cannot be told apart
const COLOURS = ["--c3", "--c2", "--c4", "--bad", "--c1"];
const DASHES = [[], [6, 4], [2, 3]];

const BROKERS = [
  { title: "Messages stored per second", names: ["messagesInPerS"], shown: rate },
  { title: "Messages delivered per second", names: ["messagesOutPerS"], shown: rate },
  { title: "Duration of group commits, 50th and 99th percentile", names: ["appendP50Ms", "appendP99Ms"], needs: "10 group commits a point", shown: (ms) => (ms < 10 ? `${ms.toFixed(1)} ms` : span(ms)) },
  { title: "Log written per second", names: ["logBytesPerS"], shown: bytes },
];
const TOPIC = [
  { title: "Stored per second", names: ["messagesInPerS"], shown: rate },
  { title: "Messages in the topic", names: ["messages"], shown: number },
];
const CONSUMERS = [
  { title: "Lag", names: ["lag"], shown: number },
  { title: "Consumed per second", names: ["messagesOutPerS"], shown: rate },
];

export const ofTopic = (app, topic) => history(app, { topic }, TOPIC);
export const ofConsumers = (app, name) => history(app, { consumerGroup: name }, CONSUMERS);

export function historyPage(app) {
  const part = history(app, {}, BROKERS);
  return {
    start: part.start,
    stop: part.stop,
    render: () => [head("History"), part.render()],
    actions: part.actions,
  };
}

/** A part of a page: plots of what is asked for. */
function history(app, parameters, plots) {
  const state = { range: 1, data: null, error: "", nodes: [], version: 0, closed: false };

  async function load() {
    const untilMs = app.cluster?.at ?? Date.now(); // the name server's clock, if it is known
    const { range } = state;
    try {
      const data = await get(`/history${query({ ...parameters, untilMs, sinceMs: untilMs - RANGES[range][1], points: POINTS })}`);
      if (range !== state.range || state.closed) return; // another one was asked for meanwhile, or nothing
      Object.assign(state, { data, error: "", version: state.version + 1 });
      draw();
    } catch (error) {
      state.error = error.message;
    }
    app.update();
  }

  function draw() {
    drop();
    state.nodes = plots.map((plot) => ({ plot, ...plotOf(plot, state.data, `${plot.title} ${state.version}`) }));
  }

  /** Let the plots go: uPlot keeps each until it is destroyed. */
  function drop() {
    for (const { chart, observer } of state.nodes) {
      observer?.disconnect();
      chart?.destroy();
    }
    state.nodes = [];
  }

  const { start, stop } = polled(load, RELOAD_MS);
  return {
    start,
    stop() {
      stop();
      state.closed = true;
      drop();
    },
    render: () => [
      h("div", { class: "toolbar", "data-key": "history-range" },
        h("h2", { class: "grow" }, "Over time"),
        h("div", { class: "chips", role: "group", "aria-label": "Range" }, RANGES.map(([title], at) =>
          h("button", { type: "button", class: "way", "data-do": "range", "data-range": String(at), "aria-pressed": String(state.range === at) }, title)))),
      state.error && problem(state.error),
      (state.data?.errors ?? []).map((one) => problem(`${one.group} did not answer: ${one.error}`)),
      state.nodes.map(({ plot, node, lines, more }) => h("section", { class: "card", "data-key": `history-${plot.title}` },
        h("div", { class: "card-head" }, h("h3", null, plot.title), h("span", { class: "muted" }, more ? `and ${more} more` : "")),
        lines.length ? [placeholder(node), legend(lines, plot.shown)] : empty(emptyText(plot, state.data.times)))),
    ],
    actions: {
      range: ({ range }) => {
        state.range = Number(range);
        load();
        app.update();
      },
    },
  };
}

/** When there will be a line: a rate is over the time since the point before, so the second point begins it. */
const emptyText = ({ needs }, [first, second]) => [
  "No figures in this range.",
  second && `A line starts ${span(2 * (second - first))} after a broker's start${needs ? `, with ${needs}` : ""}.`,
].filter(Boolean).join(" ");

const lastOf = (values) => values.findLast((value) => value !== null) ?? null;

/** The lines of a plot; those with most at the end, if they are too many, by name: so each keeps its colour. */
export function linesOf(plot, data) {
  const lines = data.groups.flatMap(({ group, series }) =>
    series.filter((one) => plot.names.includes(one.name) && one.values.some((value) => value !== null)).map((one) => ({
      label: [group, one.topic, plot.names.length > 1 && one.name.replace(/^append|Ms$/g, "").toLowerCase()].filter(Boolean).join(" · "),
      values: one.values,
      last: lastOf(one.values),
    })));
  const ranked = lines.toSorted((one, other) => other.last - one.last || one.label.localeCompare(other.label));
  const shown = ranked.slice(0, LINES_MAX).toSorted((one, other) => one.label.localeCompare(other.label));
  return { shown, more: ranked.length - shown.length };
}

/** Where a value has none beside it: no line shows it. */
export const isolated = (values) => values.flatMap((value, at) =>
  (value !== null && (values[at - 1] ?? null) === null && (values[at + 1] ?? null) === null ? [at] : []));

function plotOf(plot, data, key) {
  const { shown, more } = linesOf(plot, data);
  const lines = shown.map((line, at) => ({ ...line, colour: COLOURS[at % COLOURS.length], dash: DASHES[Math.floor(at / COLOURS.length) % DASHES.length] }));
  const summary = lines.map((line) => `${line.label} ${plot.shown(line.last)}`).join(", ");
  const node = h("div", { class: "plot", role: "img", "data-key": key, "data-version": key, "aria-label": `${plot.title}, at the end: ${summary}` });
  if (!lines.length) return { node, lines, more: 0 };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
  const chart = new uPlot({
    width: 600,
    height: HEIGHT,
    legend: { show: false },
    cursor: { drag: { x: false, y: false }, points: { size: 6 } },
    scales: { y: { range: (_, __, max) => [0, (max || 1) * 1.1] } },
    axes: [{ ...axis, values: times }, { ...axis, size: 70, values: (_, values) => values.map((value) => plot.shown(value)) }],
    series: [{}, ...lines.map((line) => ({ label: line.label, stroke: colour(line.colour), dash: line.dash, width: 2, points: { size: 6, fill: colour(line.colour), filter: () => isolated(line.values) } }))],
    hooks: { setCursor: [({ cursor }) => updateLegend(node, cursor.idx, data.times, lines, plot.shown)] },
  }, [data.times.map((ms) => ms / 1000), ...lines.map((line) => line.values)], node);
  const observer = new ResizeObserver(() => node.clientWidth && node.clientWidth !== chart.width && chart.setSize({ width: node.clientWidth, height: HEIGHT }));
  observer.observe(node);
  return { node, chart, observer, lines, more };
}

/** Times for people: hours, and the day where it begins. */
const times = (_, seconds) => seconds.map((one, at) => {
  const when = new Date(one * 1000);
  const clock = when.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  const isNewDay = !at || when.getDate() !== new Date(seconds[at - 1] * 1000).getDate();
  return isNewDay ? `${clock}\n${when.toLocaleDateString("en-CA")}` : clock;
});

/** What stands for a plot in a page that is rendered again: what is on the page already is left alone. */
function placeholder(node) {
  if (!node.isConnected) return node;
  const { key } = node.dataset;
  return lazy("div", { class: "plot", role: "img", "data-key": key, "aria-label": node.getAttribute("aria-label") }, key, () => []);
}

/** Show in the legend what was at the moment under the cursor. */
function updateLegend(node, at, times, lines, shown) {
  const items = node.parentElement?.querySelectorAll(".legend .num") ?? [];
  lines.forEach((line, n) => {
    const value = at === null || at === undefined ? line.last : line.values[at];
    if (items[n]) items[n].textContent = value === null ? "–" : shown(value);
  });
  const when = node.parentElement?.querySelector(".legend .when");
  if (when) when.textContent = at === null || at === undefined ? "" : new Date(times[at]).toLocaleString();
}

function legend(lines, shown) {
  return h("ul", { class: "legend" }, lines.map((line) =>
    h("li", null, h("span", { class: "dot", style: { background: `var(${line.colour})` } }), h("span", null, line.label), h("span", { class: "num" }, shown(line.last)))),
    h("li", { class: "when muted" }));
}
