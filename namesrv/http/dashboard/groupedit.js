// Consumer groups made, changed and deleted; whether their clients pull or pop.

import { ApiError, call, get, query, seg, versioned } from "/dashboard/api.js";
import { ask, attempt } from "/dashboard/dialog.js";
import { h } from "/dashboard/dom.js";
import { field, groupNames, groupsField, row, select, suggested, tick, topicNames } from "/dashboard/forms.js";

const NEW = {
  consumeEnable: true, consumeFromMinEnable: true, consumeBroadcastEnable: true, consumeMessageOrderly: false,
  retryQueueNums: 1, retryMaxTimes: 16, brokerId: 0, whichBrokerWhenConsumeSlowly: 1, notifyConsumerIdsChangedEnable: true,
};
const TICKS = [
  ["consumeEnable", "Consuming is enabled (otherwise the group is paused)"],
  ["consumeMessageOrderly", "Orderly: RocketMQ 5 clients receive the messages of a message group one after the other"],
  ["consumeBroadcastEnable", "Broadcasting is allowed: every client receives every message"],
  ["consumeFromMinEnable", "Without an offset, consuming may start at a queue's earliest message"],
  ["notifyConsumerIdsChangedEnable", "Clients are notified when other clients join or leave"],
];

const fieldsOf = (group) => [
  row(
    field("Maximum retries of a failed message", { name: "retryMaxTimes", type: "number", min: "-1", required: true, value: group.retryMaxTimes }, "then it becomes a dead letter; -1: the clients' own limit"),
    field("Queues of the retry topic", { name: "retryQueueNums", type: "number", min: "0", max: "65536", required: true, value: group.retryQueueNums })),
  TICKS.map(([name, label]) => tick(label, name, group[name])),
];

const bodyOf = (before, values) => ({
  ...Object.fromEntries(Object.keys(NEW).map((key) => [key, before[key]])),
  ...Object.fromEntries(TICKS.map(([name]) => [name, Boolean(values[name])])),
  retryMaxTimes: Number(values.retryMaxTimes),
  retryQueueNums: Number(values.retryQueueNums),
});

export async function createGroup(app) {
  const values = await ask({
    title: "New consumer group",
    paragraphs: ["Brokers may also create a consumer group when its first client connects. A group created here has these settings from the start."],
    fields: [
      field("Name", { name: "name", required: true, maxlength: "248", pattern: "[%\\|a-zA-Z0-9_\\-]+", title: "letters, digits, _ - % |" }),
      fieldsOf(NEW),
      groupsField(groupNames(app)),
    ],
    action: "Create group",
  });
  if (!values) return;
  const path = `/subscription-groups/${seg(values.name)}${query({ group: values.group })}`;
  if (await attempt(`Group ${values.name}`, () => call("PUT", path, { body: bodyOf(NEW, values), headers: { "If-None-Match": "*" } }))) app.go(`consumers/${seg(values.name)}`);
}

/** Return {groups, version}; groups is empty where the group has no settings of its own. */
async function settingsOf(name) {
  try {
    const { value, version } = await versioned("GET", `/subscription-groups/${seg(name)}`);
    return { groups: value.groups, version };
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return { groups: [], version: null };
    throw error;
  }
}

export async function editGroup(app, name) {
  const { groups, version } = await settingsOf(name);
  const before = groups[0] ?? NEW;
  const values = await ask({
    title: `Settings of ${name}`,
    paragraphs: [groups.length ? "The settings take effect at once, for the next pull and the next failed message." : "This group has no settings yet: these are the defaults."],
    fields: [fieldsOf(before), groupsField(groups.length ? groups.map((one) => one.group) : groupNames(app))],
    preview: (current) => {
      const changed = Object.entries(bodyOf(before, current)).filter(([key, value]) => before[key] !== value);
      return changed.length ? h("ul", { class: "plain" }, changed.map(([key, value]) => h("li", null, h("code", null, key), `: ${before[key]} → `, h("strong", null, String(value))))) : h("p", { class: "muted" }, "No changes yet.");
    },
    action: "Save settings",
  });
  if (!values) return;
  const headers = version ? { "If-Match": version } : { "If-None-Match": "*" };
  await attempt(`Settings of ${name}`, () => call("PUT", `/subscription-groups/${seg(name)}${query({ group: values.group })}`, { body: bodyOf(before, values), headers }));
}

export async function deleteGroup(app, name, view) {
  const values = await ask({
    title: `Delete ${name}`,
    paragraphs: [
      view.clients.length ? `Connected clients: ${view.clients.length}. They keep pulling, and create the group again if the brokers allow it.` : "No clients are connected.",
      "The settings are deleted. Without offsets, clients that return start like a new group.",
    ],
    fields: [tick(`Also delete the offsets in ${view.queues.length} queues; this cannot be undone`, "offsets")],
    typed: name,
    action: "Delete group",
    danger: true,
  });
  if (!values) return;
  const path = `/subscription-groups/${seg(name)}${query({ offsets: values.offsets ? "true" : "" })}`;
  if (await attempt(`Deletion of ${name}`, () => call("DELETE", path, { headers: { "If-Match": "*" } }))) app.go("consumers");
}

export async function consumeMode(name, view) {
  const topics = Object.keys(view.lagByTopic).filter((topic) => !topic.startsWith("%"));
  const set = new Map((await get(`/consumer-groups/${seg(name)}/modes`)).items.map((one) => [one.topic, one]));
  const values = await ask({
    title: `Consume mode of ${name}`,
    paragraphs: [
      "Pull: each queue is assigned to one client, which commits an offset. Pop: every client receives messages of every queue and acknowledges each.",
      "The mode is for RocketMQ 5 clients that let the broker assign queues (setClientRebalance(false)); other clients always pull. Clients adopt a change within half a minute.",
    ],
    fields: [
      topics.length ? select("Topic", "topic", topics.map((topic) => [topic, `${topic} (${set.get(topic)?.mode ?? "PULL"})`]), topics[0]) : suggested("Topic", { name: "topic", required: true }, await topicNames()),
      select("Mode", "mode", [["PULL", "pull"], ["POP", "pop"]], set.get(topics[0])?.mode === "POP" ? "PULL" : "POP"),
      field("Pop: neighbours with which a client shares its queues", { name: "share", type: "number", min: "-1", max: "65536", value: set.get(topics[0])?.popShareQueueNum ?? 0 }, "0: every client has all queues"),
    ],
    action: "Set mode",
  });
  if (!values) return;
  await attempt(`Mode of ${name}`, () => call("PUT", `/consumer-groups/${seg(name)}/modes/${seg(values.topic)}`, { body: { mode: values.mode, popShareQueueNum: Number(values.share) } }));
}
