// The scaling page: broker groups by machine, the balance of leaders, drains, and definitions that differ.

import { call, get, query, seg } from "/dashboard/api.js";
import { leads } from "/dashboard/cluster.js";
import { ask, attempt, toast } from "/dashboard/dialog.js";
import { h } from "/dashboard/dom.js";
import { select } from "/dashboard/forms.js";
import { bytes, moment, number, plural, rate, replicaName, span } from "/dashboard/format.js";
import { bar, both, empty, facts, head, polled, problem, table } from "/dashboard/parts.js";

const BALANCE_MS = 5000;
const DRAINS_MS = 3000;
const COUNT_SHARE = 10; // a broker counts all queues, so a tenth of the time is spent on that at most
const ROWS_SHOWN = 20; // topics of a draining group
const DIFFERENCES_MAX = 500;
const WAITING = ["delayed", "timers", "transactions", "popped"];
const LOST = [["deadLetters", "dead letter"], ["writers", "exactly-once writer"], ["idempotent", "window of idempotent sends", "windows of idempotent sends"]];
const capitalize = (text) => text[0].toUpperCase() + text.slice(1);

export function scalingPage(app) {
  const state = { cluster: "", balance: null, drains: [], largest: new Map(), definitions: null, comparing: false, moving: false, error: "", errors: [] };
  let open = true;

  const clusters = () => [...new Set((app.cluster?.groups ?? []).map((group) => group.cluster))].sort();
  const selectedCluster = () => (clusters().length > 1 ? state.cluster || clusters()[0] : "");
  const isRegistered = (group) => group.brokers.some((one) => one.registered);
  const groups = () => (app.cluster?.groups ?? []).filter((group) => isRegistered(group) && (!selectedCluster() || group.cluster === selectedCluster()));
  const groupOf = (name) => groups().find((group) => group.name === name);

  async function reportErrors(work) {
    try {
      await work();
      state.error = "";
    } catch (error) {
      state.error = error.message;
    }
    app.update();
  }

  const loadBalance = () => reportErrors(async () => {
    const balance = await get(`/leader-balance${query({ cluster: selectedCluster() })}`);
    if (!state.moving) state.balance = balance;
  });

  let nextCount = 0;
  const loadDrains = () => reportErrors(async () => {
    const start = performance.now();
    const { items, errors } = await get("/drains");
    nextCount = performance.now() + COUNT_SHARE * (performance.now() - start);
    for (const one of items) state.largest.set(one.brokerName, Math.max(one.remaining, state.largest.get(one.brokerName) ?? 0));
    state.drains = items;
    state.errors = errors;
  });

  const anyDrains = () => state.drains.length > 0 || groups().some((group) => drainingMs(group));

  async function balance() {
    const moves = state.balance.items.filter((one) => one.moves);
    const values = await ask({
      title: `Move ${plural(moves.length, "leader")}?`,
      paragraphs: [
        "The preferred leader of each broker group is set, one group after the other. A leader transfers leadership once the replica has been caught up for five seconds; sends wait for some milliseconds, and none fails.",
        "Leaving this page stops after the current group.",
      ],
      fields: [h("ul", { class: "plain" }, moves.map((one) => h("li", null, `${one.group}: ${one.leader} → ${one.target}`)))],
      action: "Move leaders",
    });
    if (!values) return;
    state.moving = true;
    app.update();
    let moved = 0;
    await attempt("Balance of leaders", async () => {
      let answer = null;
      do {
        answer = await call("POST", `/leader-balance${query({ cluster: selectedCluster() })}`);
        state.balance = answer;
        moved += answer.moved ? 1 : 0;
        app.refresh();
      } while (answer.moved && open);
      const remaining = answer.items.filter((one) => one.moves);
      if (remaining.length && open) throw new Error(`${remaining[0].target} does not lead ${remaining[0].group} yet; leadership is transferred once it is caught up. Repeat the balance later.`);
    });
    toast(`${plural(moved, "leader")} moved.`);
    state.moving = false;
    loadBalance();
  }

  async function drain(name) {
    const values = await ask({
      title: `Drain ${name}?`,
      paragraphs: [
        "Producers send to other broker groups, and no send fails. Topics, consumer groups, delayed and timer messages are not created in this group any more.",
        "Consumers read the rest as before. The group stays until it is removed, and draining can be cancelled.",
      ],
      action: "Drain",
      danger: true,
      typed: name,
    });
    if (values) await change(`Draining of ${name}`, "PUT", `/groups/${seg(name)}/drain`);
  }

  async function cancel(name) {
    const values = await ask({
      title: `Cancel the draining of ${name}?`,
      paragraphs: ["Routes give its topics write permission again, and producers send to them."],
      action: "Cancel draining",
    });
    if (values) await change(`Cancellation of the draining of ${name}`, "DELETE", `/groups/${seg(name)}/drain`);
  }

  async function remove(name) {
    const status = state.drains.find((one) => one.brokerName === name);
    if (!status) return;
    const values = await ask({
      title: `Remove ${name} from the cluster?`,
      paragraphs: [
        status.isEmpty ? "The group is empty: no message is lost." : `The group is not empty: ${status.remainder}. Clients cannot read this content after the removal.`,
        lostWith(status).length > 0 && `Lost with the group: ${lostWith(status).join(", ")}.`,
        "Its brokers leave the routes and do not register again, so this cannot be undone. Their stores are kept, and mqaudit can read them.",
      ].filter(Boolean),
      action: status.isEmpty ? `Remove ${name}` : `Remove ${name} and lose its content`,
      danger: true,
      typed: name,
    });
    if (values) await change(`Removal of ${name}`, "POST", `/groups/${seg(name)}/drain/remove`, { lose: !status.isEmpty });
  }

  async function change(what, method, path, body) {
    await attempt(what, () => call(method, path, { body }));
    app.refresh();
    loadDrains();
  }

  /** Read all pages of the definitions that differ, or the first DIFFERENCES_MAX rows. */
  async function compare(values) {
    const like = values?.like ?? state.definitions?.like ?? "";
    state.comparing = true;
    await reportErrors(async () => {
      const result = { like, items: [], groups: [], errors: [], complete: true };
      let cursor = "";
      do {
        const page = await get(`/definitions${query({ cluster: selectedCluster(), like, cursor })}`);
        result.items.push(...page.items);
        result.groups = page.groups;
        result.errors = page.errors;
        cursor = page.next;
      } while (cursor && open && result.items.length < DIFFERENCES_MAX);
      result.complete = !cursor;
      state.definitions = result;
    });
    state.comparing = false;
    app.update();
  }

  const toAlign = () => state.definitions.items.filter((one) => ["made", "changed"].includes(one.outcome));

  async function align() {
    const items = toAlign();
    const values = await ask({
      title: `Align ${plural(items.length, "definition")}?`,
      paragraphs: [
        "Topics and consumer groups that are missing are created, and numbers of queues are raised to the largest of any group. Nothing is deleted or lowered.",
        state.definitions.like && `Consumer groups get their settings in ${state.definitions.like}.`,
        "A definition that changes meanwhile is skipped.",
      ].filter(Boolean),
      fields: [h("ul", { class: "plain" }, items.slice(0, ROWS_SHOWN).map((one) => h("li", null, `${one.name}: ${one.why || one.outcome}`)), items.length > ROWS_SHOWN && h("li", { class: "muted" }, `and ${number(items.length - ROWS_SHOWN)} more`))],
      action: "Align",
    });
    if (!values) return;
    const results = [];
    await attempt(`Alignment of ${plural(items.length, "definition")}`, async () => {
      for (const { kind, name } of items) {
        const path = kind === "topic" ? `/topics/${seg(name)}` : `/subscription-groups/${seg(name)}`;
        const body = kind === "topic" ? undefined : { like: state.definitions.like };
        const answer = await call("POST", `${path}/align${query({ cluster: selectedCluster() })}`, { body });
        results.push(...answer.results.map((one) => ({ ...one, group: `${name} in ${one.group}` })));
      }
      return { results };
    });
    await compare();
  }

  const polls = both(polled(loadBalance, BALANCE_MS, () => !state.moving), polled(loadDrains, DRAINS_MS, () => anyDrains() && performance.now() > nextCount));
  return {
    start: polls.start,
    stop() {
      open = false;
      polls.stop();
    },
    render() {
      if (!app.cluster) return app.error ? problem(app.error) : h("p", { class: "loading" }, "Asking the brokers…");
      return [
        head("Scaling", clusters().length > 1 && h("div", { class: "chips", role: "group", "aria-label": "Clusters" }, clusters().map((name) =>
          h("button", { type: "button", class: "way", "data-do": "cluster", "data-cluster": name, "aria-pressed": String(name === selectedCluster()) }, name)))),
        (app.error || state.error) && problem(app.error || state.error),
        state.errors.map((one) => problem(`${one.group} does not count its content: ${one.error}`)),
        balanceOf(app, state),
        machinesOf(groups(), state.balance),
        groupsOf(app, groups()),
        groups().length ? state.drains.filter((one) => groupOf(one.brokerName)).map((one) => drainOf(app, one, state.largest.get(one.brokerName))) : empty("No broker has registered here yet."),
        definitionsOf(app, state, groups(), toAlign),
      ];
    },
    actions: {
      cluster: ({ cluster }) => {
        Object.assign(state, { cluster, balance: null, definitions: null });
        loadBalance();
      },
      balance,
      drain: ({ group }) => drain(group),
      cancel: ({ group }) => cancel(group),
      remove: ({ group }) => remove(group),
      compare,
      align,
    },
  };
}

const leaderOf = (group) => group.brokers.find(({ name, node }) => name === group.leader && leads(node));
const drainingMs = (group) => leaderOf(group)?.node.drainingMs ?? 0;

/** Return what is lost with a group, as texts. */
const lostWith = (status) => LOST.filter(([kind]) => status[kind]).map(([kind, ...names]) => plural(status[kind], ...names));

/** Return the host at which the group's members know a replica, as the balance does. */
function machineOf(group, broker) {
  const members = leaderOf(group)?.node.members ?? broker.node?.members ?? [];
  const address = members.find((one) => one.id === broker.name)?.address ?? broker.address;
  return address.slice(0, address.lastIndexOf(":")).replace(/^\[|\]$/g, "");
}

function balanceOf(app, { balance, moving }) {
  if (!balance) return h("p", { class: "loading", "data-key": "balance" }, "Asking the brokers…");
  const moves = balance.items.filter((one) => one.moves);
  const skipped = balance.items.filter((one) => one.reason && one.reason !== "no Raft group");
  if (!moves.length && !skipped.length)
    return h("section", { class: "note good", "data-key": "balance" }, h("strong", null, "Leaders are balanced."), " Zones and machines lead as many groups as they should.");
  const line = (kind, title, text) => h("li", { class: kind }, h("span", { class: `tag ${kind}` }, title), h("span", null, text));
  return h("section", { class: "findings", "aria-label": "Balance of leaders", "data-key": "balance" },
    h("div", { class: "card-head" }, h("h2", null, moves.length ? "Leaders are out of balance" : "Some groups are skipped"),
      moves.length > 0 && h("button", { type: "button", class: "primary", "data-do": "balance", disabled: moving || app.me.role === "viewer" }, moving ? "Moving leaders…" : "Balance leaders…")),
    h("ul", null,
      moves.map((one) => line("warn", "Move", `${one.group}: ${one.target} should lead instead of ${one.leader}`)),
      skipped.map((one) => line("", "Skipped", `${one.group}: ${one.reason}`))));
}

function machinesOf(groups, balance) {
  if (!balance?.machines.length) return null;
  const figures = new Map();
  for (const group of groups)
    for (const broker of group.brokers) {
      if (!broker.node) continue;
      const machine = machineOf(group, broker);
      const sum = figures.get(machine) ?? { sends: 0, pulls: 0, used: null, free: null };
      if (leads(broker.node)) sum.sends += broker.node.rates?.sendsPerS ?? 0;
      sum.pulls += broker.node.rates?.pullsPerS ?? 0;
      const { usedRatio, freeBytes } = broker.node.disk ?? {};
      if (typeof usedRatio === "number" && usedRatio >= (sum.used ?? 0)) Object.assign(sum, { used: usedRatio, free: freeBytes });
      figures.set(machine, sum);
    }
  const zones = balance.machines.some((one) => one.zone);
  const columns = [["Machine"], ["Leads", "num"], ["Should lead", "num"], ["Groups", "num"], ["Sends/s", "num"], ["Pulls/s", "num"], ["Disk", "num"], ["", "wide"]];
  return h("section", { class: "card", "data-key": "machines" }, h("h2", null, "Machines"),
    table("Machines", zones ? [["Zone"], ...columns] : columns, balance.machines.map((one) => {
      const sum = figures.get(one.machine) ?? {};
      const uneven = one.leaders !== one.leadersAfter;
      return [
        ...(zones ? [one.zone || "–"] : []),
        h("span", { class: "mono" }, one.machine),
        h("span", { class: uneven ? "warn-text" : "" }, number(one.leaders)),
        number(one.leadersAfter), number(one.groups), rate(sum.sends), rate(sum.pulls),
        typeof sum.used === "number" && sum.used >= 0 ? [`${Math.round(sum.used * 100)} %`, h("span", { class: "muted" }, `, ${bytes(sum.free)} free`)] : "–",
        bar(sum.used ?? 0, (sum.used ?? 0) > 0.75 ? "warn" : ""),
      ];
    })));
}

function groupsOf(app, groups) {
  if (!groups.length) return null;
  const isAdmin = app.me.role === "admin";
  const button = (name, group, title, kind = "") => h("button", { type: "button", class: `small ${kind}`, "data-do": name, "data-group": group, disabled: !isAdmin }, title);
  return h("section", { class: "card", "data-key": "groups" }, h("h2", null, "Broker groups"),
    table("Broker groups", [["Group"], ["Leader"], ["Machine"], ["Topics", "num"], ["Sends/s", "num"], ["Log", "num"], ["State"], [""]], groups.map((group) => {
      const leader = leaderOf(group);
      const sinceMs = drainingMs(group);
      const log = leader?.node.commitLog;
      return [
        h("strong", null, group.name),
        leader ? replicaName(leader.name) : h("span", { class: "warn-text" }, "none"),
        leader ? h("span", { class: "mono" }, machineOf(group, leader)) : "–",
        number(group.topicCount), leader ? rate(leader.node.rates?.sendsPerS ?? 0) : "–",
        log ? bytes(log.maxOffset - log.minOffset) : "–",
        sinceMs ? h("span", { class: "tag warn" }, `draining for ${span(Math.max(0, Date.now() - sinceMs))}`) : leader?.node.mode === "classic" ? "classic" : "in use",
        leader && leader.node.mode !== "classic" && !sinceMs && groups.length > 1 && button("drain", group.name, "Drain…"),
      ];
    })));
}

function drainOf(app, status, largest) {
  const isAdmin = app.me.role === "admin";
  const done = largest ? 1 - status.remaining / largest : Number(status.isEmpty);
  const rows = status.unconsumed.slice(0, ROWS_SHOWN);
  const more = status.unconsumed.length - rows.length;
  return h("section", { class: "card", "data-key": `drain-${status.brokerName}`, "aria-label": `Draining of ${status.brokerName}` },
    h("div", { class: "card-head" },
      h("div", null, h("h2", null, `${status.brokerName} is draining`), h("p", { class: "muted" }, status.isEmpty ? "The group is empty and can be removed." : status.remainder)),
      h("div", { class: "buttons" },
        h("button", { type: "button", "data-do": "cancel", "data-group": status.brokerName, disabled: !isAdmin }, "Cancel…"),
        h("button", { type: "button", class: status.isEmpty ? "danger" : "", "data-do": "remove", "data-group": status.brokerName, disabled: !isAdmin }, "Remove…"))),
    bar(done, status.isEmpty ? "good" : ""),
    facts([
      ["Remaining", plural(status.remaining, "message")],
      ["Empty", status.isEmpty ? "now" : status.emptyAtMs ? `in about ${span(Math.max(0, status.emptyAtMs - Date.now()))}` : "unknown: nothing is consumed"],
      ["Draining since", moment(status.drainingMs)],
      ["Sends", status.takesSends ? "accepted from clients with an older route" : "rejected"],
      ...WAITING.filter((kind) => status[kind]).map((kind) => [capitalize(kind), number(status[kind])]),
      status.latestDueMs && ["Latest due", moment(status.latestDueMs)],
      lostWith(status).length > 0 && ["Lost with the group", lostWith(status).join(", "), "long"],
    ]),
    rows.length > 0 && table(`Not consumed in ${status.brokerName}`, [["Topic"], ["Consumer group"], ["Not consumed", "num"]], rows.map((one) => [one.topic, one.group || h("span", { class: "warn-text" }, "no consumer group"), number(one.messages)])),
    more > 0 && h("p", { class: "muted" }, `and ${plural(more, "more row")}; mqadmin drainStatus has all`));
}

function definitionsOf(app, state, groups, toAlign) {
  const { definitions, comparing } = state;
  if (groups.length < 2) return null;
  const count = definitions ? toAlign().length : 0;
  return h("section", { class: "card", "data-key": "definitions" },
    h("div", { class: "card-head" }, h("h2", null, "Definitions"),
      count > 0 && h("button", { type: "button", "data-do": "align", disabled: comparing || app.me.role !== "admin" }, `Align ${number(count)}…`)),
    h("form", { class: "form", "data-submit": "compare", "data-key": "form" },
      h("div", { class: "fields" },
        select("Differing settings of consumer groups", "like", [["", "keep"], ...groups.map((group) => [group.name, `as in ${group.name}`])], ""),
        h("button", { type: "submit", disabled: comparing }, comparing ? "Comparing…" : "Compare groups"))),
    definitions?.errors.map((one) => problem(`${one.group} did not answer: ${one.error}`)),
    definitions && !definitions.items.length && !definitions.errors.length && empty(`Topics and consumer groups are alike in ${definitions.groups.join(", ")}.`),
    definitions?.items.length > 0 && table("Definitions that differ", [["Kind"], ["Name"], ["Definitions"], ["Alignment"]], definitions.items.map((one) => [
      one.kind === "topic" ? "topic" : "consumer group",
      h("strong", null, one.name),
      h("ul", { class: "plain" }, Object.entries(one.has).map(([group, text]) => h("li", null, `${group}: `, h("span", { class: text === "missing" ? "warn-text" : "" }, text)))),
      [one.outcome, one.why && h("p", { class: "muted" }, one.why)],
    ])),
    definitions && !definitions.complete && h("p", { class: "muted" }, `The first ${number(definitions.items.length)} are shown. Align them, and compare again.`));
}
