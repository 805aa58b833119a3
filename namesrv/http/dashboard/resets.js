// A reset of a consumer group's offsets: shown queue by queue before it is done.

import { call, seg } from "/dashboard/api.js";
import { ask, attempt } from "/dashboard/dialog.js";
import { h } from "/dashboard/dom.js";
import { field, localTime, row, select, tick } from "/dashboard/forms.js";
import { number, plural } from "/dashboard/format.js";
import { table } from "/dashboard/parts.js";

const SHOWN_MAX = 64; // queues
const HOUR_MS = 3600_000;

const targetOf = (values) => {
  if (values.to === "time") return { timeMs: new Date(values.time).getTime() };
  return values.to === "offset" ? { offset: Number(values.offset) } : { position: values.to };
};

export async function resetOffsets(name, topics) {
  const path = `/consumer-groups/${seg(name)}/reset`;
  const bodyOf = (values) => ({ topic: values.topic, to: targetOf(values), force: Boolean(values.force) });
  const values = await ask({
    title: `Reset the offsets of ${name}`,
    paragraphs: ["A reset to earlier offsets consumes messages again; a reset to later offsets skips messages. It applies to every broker group with the topic. To be able to undo it, note the current offsets below."],
    fields: [
      select("Topic", "topic", topics.map((topic) => [topic, topic]), topics[0]),
      row(
        select("To", "to", [["time", "a time"], ["earliest", "the earliest message"], ["latest", "the latest: skip all messages"], ["offset", "an offset in every queue"]], "time"),
        field("Time (this browser's zone)", { name: "time", type: "datetime-local", step: "1", value: localTime(Date.now() - HOUR_MS) }),
        field("Offset", { name: "offset", type: "number", min: "0", value: "0" })),
      tick("Also while consumers are online (they continue at the new offsets)", "force"),
    ],
    preview: async (now) => previewOf(await call("POST", path, { body: { ...bodyOf(now), preview: true } })),
    action: "Reset offsets",
    danger: true,
    wide: true,
  });
  if (values) await attempt(`Reset of ${name}`, () => call("POST", path, { body: bodyOf(values) }));
}

function previewOf({ results }) {
  const queues = results.flatMap(({ group, outcome, value, error }) => (outcome === "ok" ? value.queues.map((one) => ({ group, ...one })) : [{ group, error }]));
  const known = queues.filter((one) => !one.error);
  const change = (one) => one.offset - (one.before ?? one.minOffset);
  const repeated = known.reduce((sum, one) => sum + Math.max(0, -change(one)), 0);
  const skipped = known.reduce((sum, one) => sum + Math.max(0, change(one)), 0);
  const online = Math.max(0, ...results.map((one) => one.value?.online ?? 0));
  return [
    h("p", null, h("strong", null, `${plural(repeated, "message")} again, ${number(skipped)} skipped`),
      online ? h("span", { class: "warn-text" }, ` · ${plural(online, "consumer")} online`) : " · no consumers online"),
    table("Preview of the reset", [["Queue", ""], ["Offset now", "num"], ["Offset then", "num"], ["Change", "num"], ["Messages left", "num"]],
      queues.slice(0, SHOWN_MAX).map((one) => (one.error
        ? [one.group, "–", "–", one.error, "–"]
        : [h("span", null, h("span", { class: "muted" }, `${one.group} `), number(one.queueId)), one.before === null ? "none" : number(one.before), number(one.offset),
          `${change(one) > 0 ? "+" : ""}${number(change(one))}`, number(one.maxOffset - one.offset)]))),
    queues.length > SHOWN_MAX && h("p", { class: "muted" }, `and ${plural(queues.length - SHOWN_MAX, "more queue")}`),
  ];
}
