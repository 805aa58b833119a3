// The events page: events as they happen, and a timeline of each failover.

import { get } from "/dashboard/api.js";
import { h } from "/dashboard/dom.js";
import { ago, clock, iso, number } from "/dashboard/format.js";
import { empty, head, polled, problem, timeline } from "/dashboard/parts.js";

const EVENTS_SHOWN = 200;
const KINDS = {
  roleChanged: "role",
  electionStarted: "election",
  transfer: "transfer",
  diskState: "disk",
  fault: "fault",
  memberChanged: "member",
  preferredLeaderChanged: "preferred leader",
  routeChanged: "route",
  joinedCluster: "joined",
  drain: "drain",
};

export function eventsPage(app) {
  const state = { failovers: null, error: "", kind: "" };
  async function load() {
    try {
      state.failovers = (await get("/failovers?limit=20")).items;
      state.error = "";
    } catch (error) {
      state.error = error.message;
    }
    app.update();
  }
  return {
    ...polled(load, 3000),
    render() {
      const names = new Map((app.cluster?.groups ?? []).flatMap((group) => group.brokers.map((one) => [one.address, one.name])));
      const nameOf = (text) => names.get(text) ?? text;
      const visible = app.events.filter((one) => !state.kind || one.kind === state.kind).slice(0, EVENTS_SHOWN);
      return [
        head("Events", h("a", { class: "button", href: "#/audit" }, "Operator log")),
        state.error && problem(state.error),
        h("section", { class: "card" }, h("h2", null, "Failovers"),
          state.failovers?.length ? state.failovers.slice(0, 5).map((one) => h("div", { class: "block", "data-key": `${one.group}-${one.startedAt}` }, h("h3", null, one.group), timeline(one, nameOf))) : empty("No failovers seen by this name server.")),
        h("section", { class: "card" },
          h("div", { class: "card-head" }, h("h2", null, "Live"),
            h("div", { class: "chips", role: "group", "aria-label": "Kinds" }, [["", "all"], ...Object.entries(KINDS)].map(([kind, title]) =>
              h("button", { type: "button", class: "way", "data-do": "kind", "data-kind": kind, "aria-pressed": String(state.kind === kind) }, title)))),
          visible.length ? h("ol", { class: "events", "aria-live": "off" }, visible.map((one) => h("li", null,
            h("time", { class: "mono", datetime: iso(one.at), title: ago(one.at) }, clock(one.at)),
            h("span", { class: `tag ${one.kind}` }, KINDS[one.kind] ?? one.kind),
            h("span", null, h("strong", null, one.node || one.group || ""), one.node && one.group ? h("span", { class: "muted" }, ` of ${one.group}`) : "", one.term ? h("span", { class: "muted" }, ` · term ${number(one.term)}`) : ""),
            h("span", { class: "detail" }, describe(one, nameOf))))) : empty("No events yet.")),
      ];
    },
    actions: {
      kind: ({ kind }) => {
        state.kind = kind;
        app.update();
      },
    },
  };
}

function describe({ kind, detail }, nameOf) {
  if (kind === "routeChanged" && "addresses" in detail)
    return detail.leader ? `routes name ${nameOf(detail.leader)} as leader; ${number(Object.keys(detail.addresses).length)} registered` : "no leader is registered";
  if (kind === "routeChanged" && "nameServer" in detail)
    return typeof detail.brokerId === "number" ? `registered as broker ${detail.brokerId} at ${detail.nameServer}` : `unregistered at ${detail.nameServer} (${detail.reason})`;
  if (kind === "preferredLeaderChanged") return detail.name ? `${detail.name} is the preferred leader` : `no preferred leader${detail.was ? `, was ${detail.was}` : ""}`;
  return Object.entries(detail)
    .filter(([, value]) => value !== null && value !== "" && value !== undefined)
    .map(([name, value]) => (value === true ? name : `${name} ${typeof value === "object" ? JSON.stringify(value) : nameOf(String(value))}`))
    .join(", ");
}
