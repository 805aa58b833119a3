// Topics made, changed and deleted, and a message sent to one.

import { call, query, seg, versioned } from "/dashboard/api.js";
import { ask, attempt } from "/dashboard/dialog.js";
import { h } from "/dashboard/dom.js";
import { area, field, groupNames, groupsField, localTime, pairs, row, select, tick } from "/dashboard/forms.js";
import { number, plural } from "/dashboard/format.js";

const TYPES = [
  ["NORMAL", "NORMAL: in no particular order"],
  ["FIFO", "FIFO: in order within a message group"],
  ["DELAY", "DELAY: delivered at a time"],
  ["TRANSACTION", "TRANSACTION: committed or rolled back"],
  ["PRIORITY", "PRIORITY"],
  ["MIXED", "MIXED: any kind"],
];
const PERMISSIONS = [["6", "read and write"], ["4", "read only"], ["2", "write only"], ["0", "neither"]];
const NAME = "[%\\|a-zA-Z0-9_\\-]+";

const bodyOf = (values) => ({
  readQueueNums: Number(values.readQueueNums),
  writeQueueNums: Number(values.writeQueueNums),
  perm: Number(values.perm),
  order: Boolean(values.order),
  messageType: values.messageType,
});

const fieldsOf = (topic) => [
  row(
    field("Write queues", { name: "writeQueueNums", type: "number", min: "0", max: "65536", required: true, value: topic.writeQueueNums }),
    field("Read queues", { name: "readQueueNums", type: "number", min: "0", max: "65536", required: true, value: topic.readQueueNums })),
  row(
    select("Permission", "perm", PERMISSIONS.some(([value]) => value === String(topic.perm)) ? PERMISSIONS : [...PERMISSIONS, [String(topic.perm), `${topic.perm}`]], String(topic.perm)),
    select("Message type", "messageType", TYPES, topic.messageType)),
  tick("Ordered: the queues of an unavailable broker stay in the route", "order", topic.order),
];

export async function createTopic(app) {
  const values = await ask({
    title: "New topic",
    paragraphs: ["Producers and consumers can use the topic once the name servers have its route, after a moment."],
    fields: [
      field("Name", { name: "name", required: true, maxlength: "127", pattern: NAME, title: "letters, digits, _ - % |" }),
      fieldsOf({ readQueueNums: 8, writeQueueNums: 8, perm: 6, order: false, messageType: "NORMAL" }),
      groupsField(groupNames(app)),
    ],
    action: "Create topic",
  });
  if (!values) return;
  const headers = { "If-None-Match": "*" };
  const path = `/topics/${seg(values.name)}${query({ group: values.group })}`;
  if (await attempt(`Topic ${values.name}`, () => call("PUT", path, { body: bodyOf(values), headers }))) app.go(`topics/${seg(values.name)}`);
}

export async function editTopic(app, topic) {
  const { value, version } = await versioned("GET", `/topics/${seg(topic)}`);
  const names = value.groups.map((one) => one.group);
  const before = value.groups[0];
  const differing = value.groups.some((one) => ["readQueueNums", "writeQueueNums", "perm", "order", "messageType"].some((key) => one[key] !== before[key]));
  const values = await ask({
    title: `Change ${topic}`,
    paragraphs: [
      "The change takes effect at once for new sends and pulls. Fewer write queues: the other queues are still read. Fewer read queues: messages in the other queues are not read any more, so lower the write queues first, and the read queues once the others are empty.",
      differing && `The definitions of the groups differ; this is that of ${before.group}.`,
    ].filter(Boolean),
    fields: [fieldsOf(before), groupsField(names)],
    preview: (now) => changes(before, bodyOf(now)),
    action: "Change topic",
  });
  if (!values) return;
  await attempt(`Change of ${topic}`, () => call("PUT", `/topics/${seg(topic)}${query({ group: values.group })}`, { body: { ...bodyOf(values), filterType: before.filterType, sysFlag: before.sysFlag }, headers: { "If-Match": version } }));
}

function changes(before, after) {
  const changed = Object.entries(after).filter(([key, value]) => before[key] !== value);
  if (!changed.length) return h("p", { class: "muted" }, "No changes yet.");
  return h("ul", { class: "plain" }, changed.map(([key, value]) => h("li", null, h("code", null, key), `: ${before[key]} → `, h("strong", null, String(value)))));
}

export async function deleteTopic(app, topic, queues) {
  const stored = (queues ?? []).reduce((sum, one) => sum + Math.max(0, one.maxOffset - one.minOffset), 0);
  const values = await ask({
    title: `Delete ${topic}`,
    paragraphs: [
      `The topic is deleted in every broker group, with the offsets of its consumer groups. Its ${plural(stored, "message")} cannot be read any more. A new topic of this name starts empty.`,
      "Until retention deletes the messages, mqadmin updateTopic --keepMessages restores them. The offsets are lost.",
    ],
    typed: topic,
    action: "Delete topic",
    danger: true,
  });
  if (!values) return;
  if (await attempt(`Deletion of ${topic}`, () => call("DELETE", `/topics/${seg(topic)}`, { headers: { "If-Match": "*" } }))) app.go("topics");
}

export async function sendMessage(app, topic, groups) {
  const values = await ask({
    title: `Send a message to ${topic}`,
    paragraphs: ["Every consumer group of the topic receives the message."],
    fields: [
      area("Body", { name: "body", required: true }),
      row(field("Keys (separated by blanks)", { name: "keys" }), field("Tag", { name: "tags" })),
      area("Properties, a line each: name=value", { name: "properties", rows: "2" }),
      row(
        select("Delivered", "when", [["", "at once"], ["level", "after a delay level"], ["time", "at a time"]], ""),
        field("Delay level", { name: "level", type: "number", min: "1", max: "64", value: "3" }),
        field("Time", { name: "time", type: "datetime-local", step: "1", value: localTime(Date.now() + 60_000) })),
      row(field("Queue (any, if empty)", { name: "queueId", type: "number", min: "0" }), groups.length > 1 && select("Broker group", "group", [["", "any"], ...groups.map((name) => [name, name])], "")),
    ],
    action: "Send",
    wide: true,
  });
  if (!values) return;
  await attempt("The message", async () => {
    const body = {
      topic,
      body: values.body,
      properties: pairs(values.properties),
      ...(values.keys && { keys: values.keys }),
      ...(values.tags && { tags: values.tags }),
      ...(values.queueId && { queueId: Number(values.queueId) }),
      ...(values.when === "level" && { delayLevel: Number(values.level) }),
      ...(values.when === "time" && { deliverAtMs: new Date(values.time).getTime() }),
    };
    const sent = await call("POST", `/messages${query({ group: values.group })}`, { body });
    if (!values.when) app.go(`messages/${seg(sent.offsetMsgId)}`);
    return sent;
  });
}

export const queueCount = (groups) => {
  const count = groups.reduce((sum, one) => sum + one.writeQueueNums, 0);
  return [number(count), h("span", { class: "muted" }, count === 1 ? " queue" : " queues")];
};
