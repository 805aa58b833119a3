// The operator log: each broker group's own record, newest first.

import { h } from "/dashboard/dom.js";
import { field, select } from "/dashboard/forms.js";
import { iso, moment, plural } from "/dashboard/format.js";
import { newest } from "/dashboard/messagelist.js";
import { empty, head, problem } from "/dashboard/parts.js";

const TOPIC = "RAFTMQ_SYS_OPERATOR_LOG";
const ACTIONS = {
  putTopic: "set up topic", deleteTopic: "deleted topic", emptyTopic: "emptied topic", putSubscriptionGroup: "set up group", deleteSubscriptionGroup: "deleted group",
  resetOffsets: "reset offsets of", pauseConsumerGroup: "paused", resumeConsumerGroup: "resumed", putConsumeMode: "set the mode of",
  sendMessage: "sent a message to", resendMessage: "resent a dead letter", resendMessages: "resent dead letters", putAccount: "set up account",
  deleteAccount: "deleted account", putWhiteAddresses: "replaced the addresses without account", addMember: "added a member", promoteMember: "promoted",
  removeMember: "removed", transferLeadership: "transferred leadership", putPreferredLeader: "set the preferred leader", deletePreferredLeader: "removed the preferred leader",
  changeConfig: "changed the configuration", setLogLevel: "set the log level of", injectFault: "injected a fault", healFaults: "healed faults", stopNode: "stopped the broker",
  putDrain: "drained the group", deleteDrain: "cancelled the draining", removeGroup: "removed the group", deleteWriter: "deleted a writer", cloneOffsets: "copied offsets from and to", moveMember: "moved a member", deleteExpiredLog: "deleted expired log", cleanQueues: "cleaned queues",
};
const OUTCOMES = { done: ["good", "done"], failed: ["bad", "failed"], unknown: ["warn", "unknown"], asked: ["warn", "no outcome recorded"] };

/** Return the actions in these messages, each once, with its latest outcome. */
function actionsOf(items) {
  const byKey = new Map();
  for (const message of items) {
    let action;
    try {
      action = JSON.parse(message.text);
    } catch {
      continue; // not one of ours
    }
    const key = `${message.group} ${action.id}`;
    if (!byKey.has(key)) byKey.set(key, { ...action, key, group: message.group });
    else if (action.outcome === "asked") byKey.get(key).at = action.at; // the time of the request
  }
  return [...byKey.values()];
}

/** Return how the action was requested, unless with the person's own token. */
function requestedWith({ via, by }) {
  if (!via || via === by) return "";
  return h("span", { class: "muted" }, via === "remoting" ? ", over the remoting protocol" : `, with the name server's token ${via}`);
}

export function auditPage(app) {
  const list = newest(app, () => TOPIC);
  const state = { filters: {} };
  const load = (filters = state.filters) => {
    state.filters = filters;
    return list.load(filters);
  };
  return {
    start() {
      load();
      list.follow(true);
    },
    stop: () => list.stop(),
    render() {
      const shown = actionsOf(list.state.items);
      return [
        head("Operator log", h("span", { class: "muted" }, list.state.loaded ? plural(shown.length, "action") : "")),
        h("form", { class: "card form", "data-submit": "filter", "data-key": "filter" },
          h("div", { class: "fields" },
            select("Action", "tag", [["", "any"], ...Object.entries(ACTIONS)], ""),
            field("Text in the record", { name: "text", placeholder: "a name, a topic" }),
            h("button", { type: "submit", class: "primary" }, "Filter"))),
        list.state.error && problem(list.state.error),
        list.state.errors.map((one) => problem(`${one.group} did not answer: ${one.error}`)),
        list.state.busy && !shown.length && h("p", { class: "loading" }, "Asking the leaders…"),
        list.state.loaded && !shown.length && empty("Nothing is recorded. Records are kept as long as messages."),
        shown.length > 0 && h("section", { class: "card", "data-key": "deeds" }, h("ol", { class: "deeds" }, shown.map((one) => {
          const [kind, outcome] = OUTCOMES[one.outcome] ?? ["", one.outcome];
          return h("li", { "data-key": one.key },
            h("time", { class: "mono", datetime: iso(one.at) }, moment(one.at)),
            h("span", { class: `tag ${kind}` }, outcome),
            h("div", null,
              h("p", null, h("strong", null, one.by), ` ${ACTIONS[one.what] ?? one.what} `, one.target && h("strong", null, one.target), h("span", { class: "muted" }, ` in ${one.group}`), requestedWith(one)),
              one.error && h("p", { class: "warn-text" }, one.error),
              one.detail && h("details", null, h("summary", null, "request"), h("code", null, one.detail))));
        }))),
        list.state.next && h("button", { type: "button", class: "quiet wide", "data-do": "more", disabled: list.state.busy }, "Show older ones"),
      ];
    },
    actions: { filter: load, more: () => list.more() },
  };
}
