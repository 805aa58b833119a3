// The cluster page: each replica's own view of its group, side by side.

import { call, get, seg } from "/dashboard/api.js";
import { ask, attempt } from "/dashboard/dialog.js";
import { h } from "/dashboard/dom.js";
import { ago, bytes, number, plural, rate, replicaName, span } from "/dashboard/format.js";
import { changeMembers, preferLeader } from "/dashboard/leadership.js";
import { bar, empty, head, polled, problem, sparkline, timeline } from "/dashboard/parts.js";

const FAULTS_MS = 3000;
const LAG_SHOWN_FULL = 1000; // frames behind that fill the bar
const SEVERITY = { critical: ["bad", "Critical"], warning: ["warn", "Difference"], notice: ["", "Notice"] };

export const leads = (node) => node?.role === "leader" || node?.role === "master";
const classic = (group) => group.brokers.some(({ node }) => node?.mode === "classic");

export function clusterPage(app) {
  const faults = new Map(); // address → the faults in force, where they may be switched; null: not there

  /** Ask once which nodes accept faults, and repeatedly which faults are in force. */
  async function loadFaults() {
    for (const group of app.cluster?.groups ?? [])
      for (const broker of group.brokers) {
        if (!broker.node || faults.get(broker.address) === null) continue;
        try {
          faults.set(broker.address, (await get(path(group, broker, "faults"))).items);
        } catch (error) {
          // 404: it runs without the fault layer; after another failure it is asked again
          if (error.status === 404) faults.set(broker.address, null);
        }
      }
    app.update();
  }

  return {
    ...polled(loadFaults, FAULTS_MS),
    render() {
      if (!app.cluster) return app.error ? problem(app.error) : h("p", { class: "loading" }, "Asking the brokers…");
      const { groups } = app.cluster;
      return [
        app.error && problem(`${app.error}. The state below was read ${ago(app.cluster.at)}.`),
        head("Cluster", h("span", { class: "muted" }, `name server ${app.cluster.nameServer.address}`)),
        tiles(app),
        differences(app.cluster.findings),
        groups.length ? groups.map((group) => card(app, group, faults)) : empty("No broker has registered here yet."),
      ];
    },
    actions: {
      transfer: ({ group }) => transfer(app, group),
      preferred: ({ group }) => preferLeader(app, groupOf(app, group)),
      members: ({ group }) => changeMembers(app, groupOf(app, group)),
      forget: ({ group, address }) => forget(app, group, address),
      faults: ({ group, address }) => switchFaults(app, group, address, faults.get(address) ?? []).then(loadFaults),
    },
  };
}

const path = (group, broker, tail) => `/brokers/${seg(group.name)}/${seg(broker.address)}/${tail}`;

function tiles(app) {
  const { groups, topicCount } = app.cluster;
  const brokers = groups.flatMap((group) => group.brokers);
  const answering = brokers.filter((broker) => broker.node).length;
  const ledCount = groups.filter((group) => group.brokers.some(({ node }) => leads(node))).length;
  const last = app.samples.at(-1) ?? { sends: 0, pulls: 0 };
  const tile = (title, value, kind, more) =>
    h("div", { class: `tile ${kind ?? ""}`, "data-key": title }, h("span", { class: "label" }, title), h("span", { class: "figure" }, value), more);
  return h("section", { class: "tiles", "aria-label": "Overview" },
    tile("Groups with a leader", `${ledCount} of ${groups.length}`, ledCount < groups.length ? "bad" : ""),
    tile("Brokers answering", `${answering} of ${brokers.length}`, answering < brokers.length ? "bad" : ""),
    tile("Topics", number(topicCount), "", h("a", { href: "#/topics" }, "all topics")),
    tile("Sends per second", rate(last.sends), "", sparkline(app.samples.map((one) => one.sends), "sends per second, the last three minutes")),
    tile("Pulls per second", rate(last.pulls), "", sparkline(app.samples.map((one) => one.pulls), "pulls per second, the last three minutes")));
}

function differences(findings) {
  if (!findings.length)
    return h("section", { class: "note good", "data-key": "findings" }, h("strong", null, "All replicas agree."), " Their views do not differ.");
  return h("section", { class: "findings", "aria-label": "Differences", "data-key": "findings" },
    h("h2", null, "Differences"),
    h("ul", null, findings.map((one) => {
      const [kind, title] = SEVERITY[one.severity];
      return h("li", { class: kind }, h("span", { class: `tag ${kind}` }, title), h("span", null, one.text));
    })));
}

function card(app, group, faults) {
  const names = new Map(group.brokers.map((broker) => [broker.address, broker.name]));
  const nameOf = (text) => names.get(text) ?? text;
  const findings = app.cluster.findings.filter((one) => one.group === group.name);
  const kind = classic(group) ? "Master and slaves, group" : "Raft group";
  return h("section", { class: "card", "data-key": `group-${group.name}`, "aria-label": `Group ${group.name}` },
    h("div", { class: "card-head" },
      h("div", null,
        h("h2", null, group.name, group.brokers.some(({ node }) => leads(node) && node.drainingMs) && [" ", h("span", { class: "tag warn" }, "draining")]),
        h("p", { class: "muted" }, `${kind} of ${group.brokers.length} in ${group.cluster || "no cluster"}${classic(group) ? "" : ` · term ${number(group.term)}`} · ${plural(group.topicCount, "topic")}`)),
      h("div", { class: "buttons" },
        !classic(group) && [
          h("button", { type: "button", "data-do": "transfer", "data-group": group.name, disabled: app.me.role === "viewer" }, "Transfer leadership…"),
          h("button", { type: "button", "data-do": "preferred", "data-group": group.name, disabled: app.me.role === "viewer" }, "Preferred leader…"),
          h("button", { type: "button", "data-do": "members", "data-group": group.name, disabled: app.me.role !== "admin" }, "Members…"),
        ])),
    h("div", { class: "replicas" }, group.brokers.map((broker) => replica(app, group, broker, findings, faults))),
    group.lastFailover && !classic(group) && h("div", { class: "block", "data-key": "failover" },
      h("h3", null, group.lastFailover.oldLeader ? "Last failover" : "First election"), timeline(group.lastFailover, nameOf)),
    viewsOf(group, findings));
}

/** Return how many frames (classic mode: bytes) a replica is behind the most advanced of its group. */
function behind(group, broker) {
  const of = (node) => (classic(group) ? node.commitLog?.maxOffset : node.commitIndex) ?? 0;
  const max = Math.max(...group.brokers.filter((one) => one.node).map((one) => of(one.node)));
  const leader = group.brokers.find((one) => leads(one.node));
  const peer = leader?.node.peers?.find((one) => one.id === broker.name);
  if (!classic(group) && typeof peer?.lagFrames === "number" && broker !== leader) return peer.lagFrames;
  return Math.max(0, max - of(broker.node));
}

function replica(app, group, broker, findings, faults) {
  const { node } = broker;
  if (!node) {
    return h("div", { class: "replica silent", "data-key": broker.address },
      h("div", { class: "who" }, h("strong", null, replicaName(broker.name)), h("span", { class: "role bad" }, "no answer")),
      h("p", { class: "muted" }, broker.error),
      h("p", { class: "muted" }, broker.registered ? "The broker is still registered." : `Its registration ended ${ago(broker.goneSinceMs)}.`),
      !broker.registered && h("button", { type: "button", class: "small quiet", "data-do": "forget", "data-group": group.name, "data-address": broker.address }, "Forget…"));
  }
  const leading = leads(node);
  const activeFaults = faults.get(broker.address);
  const ownFindings = findings.filter((one) => one.nodes.includes(broker.name));
  const lag = behind(group, broker);
  const unit = classic(group) ? bytes(lag) : plural(lag, "frame");
  const role = leading && node.leaderReady === false && node.mode !== "classic" ? `${node.role}, not ready` : node.role;
  return h("div", { class: `replica ${leading ? "leader" : ""} ${ownFindings.length ? "differs" : ""}`, "data-key": broker.address },
    h("div", { class: "who" },
      h("span", null, h("strong", null, replicaName(broker.name)),
        group.preferredLeader === broker.name && [" ", h("span", { class: "tag", title: "leads whenever it can" }, "preferred")]),
      h("span", { class: `role ${node.role}` }, role)),
    h("p", { class: "muted mono" }, broker.address),
    h("p", null, leading
      ? [`${rate(node.rates?.sendsPerS ?? 0)} sends/s · ${rate(node.rates?.pullsPerS ?? 0)} pulls/s`, bar(1, "good")]
      : [lag ? `${unit} behind` : "up to date", bar(1 - Math.min(1, lag / LAG_SHOWN_FULL), lag > LAG_SHOWN_FULL / 5 ? "warn" : "good")]),
    activeFaults && h("div", { class: "buttons" },
      activeFaults.length > 0 && h("span", { class: "tag bad" }, plural(activeFaults.length, "fault")),
      h("button", { type: "button", class: "small quiet", "data-do": "faults", "data-group": group.name, "data-address": broker.address, disabled: app.me.role !== "admin" }, "Faults…")));
}

function viewsOf(group, findings) {
  const answering = group.brokers.filter((broker) => broker.node);
  if (!answering.length) return null;
  const max = Math.max(...answering.map(({ node }) => node.commitIndex ?? 0));
  const index = (value, of = max) =>
    typeof value !== "number" ? "–" : [number(value), value < of && h("span", { class: "muted delta" }, ` −${number(of - value)}`)];
  const raft = [
    ["Role", "role", (node) => node.role],
    ["Term", "term", (node) => number(node.term)],
    ["Leader", "leader", (node) => node.leader || "none"],
    ["Voted for", "votedFor", (node) => node.votedFor || "none"],
    ["Commit index", "commitIndex", (node) => index(node.commitIndex)],
    ["Applied index", "appliedIndex", (node) => index(node.appliedIndex, node.commitIndex)],
    ["Last index", "lastIndex", (node) => number(node.lastIndex)],
    ["Durable index", "durableIndex", (node) => index(node.durableIndex, node.lastIndex)],
    ["Preferred leader", "preferredLeader", (node) => node.preferredLeader || "none"],
    ["Last contact of the leader", "lastContactMs", (node, peer) => (typeof peer?.lastContactMs === "number" ? `${span(peer.lastContactMs)} ago` : "–")],
    ["Bytes in flight", "bytesInFlight", (node, peer) => (peer ? bytes(peer.bytesInFlight ?? 0) : "–")],
    ["Recovery", "recovered", (node) => (node.recovered === false ? node.recovering || "recovering" : "recovered")],
  ];
  const both = [
    ["Log", "commitLog", (node) => bytes((node.commitLog?.maxOffset ?? 0) - (node.commitLog?.minOffset ?? 0))],
    ["Disk", "disk", (node) => [node.disk?.state ?? "–", typeof node.disk?.usedRatio === "number" && h("span", { class: "muted" }, ` ${Math.round(node.disk.usedRatio * 100)} %${typeof node.disk.fullInMs === "number" ? `, full in ${span(node.disk.fullInMs)}` : ""}`)]],
    ["Clock", "clock", (node) => node.clockContradiction || "agrees with its log"],
    ["Members", "members", (node) => (node.members?.length ? node.members.map((one) => one.id + (one.role && one.role !== "voter" ? ` (${one.role})` : "")).join(", ") : "–")],
    ["Version", "version", (node) => node.version || "–"],
    ["Uptime", "bootTimeMs", (node) => (node.bootTimeMs ? span(Date.now() - node.bootTimeMs) : "–")],
  ];
  const rows = classic(group) ? [raft[0], ...both] : [...raft, ...both];
  const peers = answering.find(({ node }) => leads(node))?.node.peers ?? [];
  const isMarked = (field, name) => findings.some((one) => one.field === field && one.nodes.includes(name));
  return h("details", { class: "block", open: true, "data-key": "beliefs" },
    h("summary", null, "View of each replica"),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Views of the replicas of ${group.name}` },
      h("table", { class: "beliefs" },
        h("thead", null, h("tr", null, h("th", { scope: "col" }, h("span", { class: "hidden" }, "Field")), group.brokers.map((broker) =>
          h("th", { scope: "col", class: leads(broker.node) ? "leader" : "" }, replicaName(broker.name))))),
        h("tbody", null, rows.map(([title, field, value]) =>
          h("tr", null, h("th", { scope: "row" }, title), group.brokers.map((broker) => {
            if (!broker.node) return h("td", { class: "muted" }, field === "role" ? "no answer" : "");
            const differs = isMarked(field, broker.name);
            return h("td", { class: differs ? "differs" : "" }, value(broker.node, peers.find((one) => one.id === broker.name)), differs && h("span", { class: "hidden" }, " (differs)"));
          })))))));
}

// --- actions

const groupOf = (app, name) => app.cluster.groups.find((group) => group.name === name);

async function transfer(app, name) {
  const group = groupOf(app, name);
  const leader = group.brokers.find((broker) => leads(broker.node));
  const followers = group.brokers.filter((broker) => broker.node && !leads(broker.node));
  const values = await ask({
    title: `Transfer the leadership of ${name}`,
    paragraphs: [
      `${leader ? leader.name : "The leader"} stops accepting sends, waits until the chosen replica has every frame, and tells it to start an election at once. Sends wait meanwhile, usually for tens of milliseconds; clients then look up the new leader.`,
      "If the replica is not elected in time, the old leader continues to lead. No message is lost in either case.",
    ],
    fields: [h("fieldset", null, h("legend", null, "To"),
      h("label", { class: "choice" }, h("input", { type: "radio", name: "target", value: "", checked: true }), "the most advanced replica"),
      followers.map((broker) => h("label", { class: "choice" }, h("input", { type: "radio", name: "target", value: broker.name }),
        broker.name, h("span", { class: "muted" }, ` ${plural(behind(group, broker), "frame")} behind`))))],
    action: "Transfer leadership",
  });
  if (!values) return;
  await attempt(`Transfer of ${name}`, () => call("POST", `/groups/${seg(name)}/transfer`, { body: values.target ? { target: values.target } : {} }));
  app.refresh();
}

async function forget(app, group, address) {
  const values = await ask({
    title: `Forget ${address}?`,
    paragraphs: ["The broker is not registered and does not answer. Only the list of this name server changes; a broker that returns is listed again. No file is deleted, and the group's members do not change."],
    action: "Forget",
  });
  if (!values) return;
  await attempt(`Forgetting ${address}`, () => call("DELETE", `/brokers/${seg(group)}/${seg(address)}`));
  app.refresh();
}

const FAULTS = [
  ["slow", "Slow disk", "each write and sync is delayed by the milliseconds below, and sends with it"],
  ["stall", "Stalled disk", "writes and syncs hang until the fault is healed; a leader transfers leadership"],
  ["error", "Failing disk", "writes and syncs fail with an I/O error; a leader transfers leadership, and the replica does not vote until the broker is restarted"],
  ["full", "Full disk", "writes fail because the disk is full; a leader transfers leadership or rejects sends"],
  ["lie", "Lying disk", "syncs do nothing: a power failure loses what this replica has acknowledged"],
  ["clock", "Wrong clock", "the wall clock is off by the milliseconds below: store times are wrong, and retention may delete too early or too late"],
];

async function switchFaults(app, groupName, address, activeFaults) {
  const group = groupOf(app, groupName);
  const broker = group.brokers.find((one) => one.address === address);
  const url = path(group, broker, "faults");
  const choice = (value, title, meaning, checked) =>
    h("label", { class: "choice" }, h("input", { type: "radio", name: "kind", value, checked }), h("span", null, h("strong", null, title), h("span", { class: "muted" }, `: ${meaning}`)));
  const values = await ask({
    title: `Faults of ${broker.name}`,
    paragraphs: [
      "The fault affects this replica at once, until it is healed. The group keeps working while a majority works.",
      activeFaults.length ? `In force now: ${activeFaults.map((one) => one.kind).join(", ")}.` : "No fault is in force.",
    ],
    fields: [
      h("fieldset", null, h("legend", null, "Fault"),
        activeFaults.some((one) => one.own) && choice("heal", "Heal", "ends the faults injected from here", true),
        FAULTS.map(([value, title, meaning], at) => choice(value, title, meaning, !at && !activeFaults.some((one) => one.own)))),
      h("label", null, "Milliseconds (slow disk or wrong clock)", h("input", { name: "ms", type: "number", value: "200", min: "0", max: "60000" })),
    ],
    action: "Apply",
    danger: true,
  });
  if (!values) return;
  const ms = Number(values.ms) || 0;
  const body = { kind: values.kind, ...(values.kind === "slow" && { delayMs: ms }), ...(values.kind === "clock" && { offsetMs: ms }) };
  await attempt(`${values.kind} on ${broker.name}`, () => (values.kind === "heal" ? call("DELETE", url) : call("POST", url, { body })));
  app.refresh();
}
