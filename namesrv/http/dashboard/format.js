// Formats figures and times for display.

const numberFormat = new Intl.NumberFormat("en");

export const number = (value) => (typeof value === "number" ? numberFormat.format(value) : "–");

export function bytes(value) {
  if (typeof value !== "number") return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

export function rate(value) {
  if (typeof value !== "number") return "–";
  if (value >= 10000) return `${(value / 1000).toFixed(value >= 100000 ? 0 : 1)}k`;
  return value >= 100 || Number.isInteger(value) ? numberFormat.format(Math.round(value)) : value.toFixed(1);
}

export function span(ms) {
  if (typeof ms !== "number") return "–";
  if (ms < 2000) return `${numberFormat.format(Math.round(ms))} ms`;
  if (ms < 10000) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export function ago(ms, now = Date.now()) {
  if (!ms) return "–";
  const elapsedMs = now - ms;
  return elapsedMs < 2000 ? "just now" : `${elapsedMs < 10000 ? `${Math.round(elapsedMs / 1000)} s` : span(elapsedMs)} ago`;
}

const pad = (value, digits = 2) => String(value).padStart(digits, "0");

/** A time for machines; null for one beyond what a Date can say, which clients may claim. */
export const iso = (ms) => (isTime(ms) ? new Date(ms).toISOString() : null);

const isTime = (ms) => !Number.isNaN(new Date(ms).getTime());

export function clock(ms) {
  if (!ms) return "–";
  if (!isTime(ms)) return `${ms} ms`;
  const at = new Date(ms);
  return `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}.${pad(at.getMilliseconds(), 3)}`;
}

export function moment(ms) {
  if (!ms) return "–";
  if (!isTime(ms)) return clock(ms);
  const at = new Date(ms);
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${clock(ms)}`;
}

/** Return a replica's name; in classic groups that is only its broker id. */
export const replicaName = (name) => (/^\d+$/.test(name) ? `broker ${name}` : name);

export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;
