// A message's body as text, as JSON or in hexadecimal digits; copied and downloaded.

import { toast } from "/dashboard/dialog.js";
import { h } from "/dashboard/dom.js";
import { bytes, number } from "/dashboard/format.js";

const CHARACTERS_MAX = 20000; // characters
const HEX_BYTES_MAX = 16384; // bytes

/** Return a body as {text} or {data: base64}; lists leave large bodies out. */
export const bodyOf = ({ text, body }) => (typeof text === "string" ? { text } : { data: body ?? "" });

export const preview = (message) => (bodyOf(message).text ?? `${bytes(message.bodySize)} of data`).slice(0, 160);

/** Return the ways in which a body can be shown, the best first. */
function formatsOf(message) {
  if (bodyOf(message).text === undefined) return ["hex"];
  return indented(message) === null ? ["text", "hex"] : ["JSON", "text", "hex"];
}

const layouts = new WeakMap(); // message → its body as indented JSON: a page is rendered every second

function indented(message) {
  if (!layouts.has(message)) layouts.set(message, indentedText(bodyOf(message).text));
  return layouts.get(message);
}

function indentedText(text) {
  if (!/^\s*[[{]/.test(text)) return null;
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  return layout(text);
}

/** Indent JSON text; numbers stay as they are written, which a parser would round. */
function layout(text) {
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) ?? [];
  let depth = 0;
  let out = "";
  const line = () => `\n${"  ".repeat(depth)}`;
  tokens.forEach((token, at) => {
    if (token === "}" || token === "]") {
      depth -= 1;
      out += "{[".includes(tokens[at - 1]) ? token : line() + token;
    } else if (token === "{" || token === "[") {
      depth += 1;
      out += token + ("}]".includes(tokens[at + 1]) ? "" : line());
    } else if (token === ",") out += token + line();
    else out += token === ":" ? ": " : token;
  });
  return out;
}

/** The bytes of a body, and perhaps more, up to `maxBytes`; compressed ones are as they were sent. */
function raw({ text, body }, maxBytes = Infinity) {
  if (typeof body !== "string") return new TextEncoder().encode((text ?? "").slice(0, maxBytes));
  return Uint8Array.from(atob(body.slice(0, Math.ceil(maxBytes / 3) * 4)), (letter) => letter.charCodeAt(0));
}

function hex(message) {
  const all = raw(message, HEX_BYTES_MAX);
  const lines = [];
  for (let at = 0; at < Math.min(all.length, HEX_BYTES_MAX); at += 16) {
    const part = [...all.slice(at, at + 16)];
    const digits = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    lines.push(`${at.toString(16).padStart(6, "0")}  ${digits}  ${part.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : "·")).join("")}`);
  }
  return lines.join("\n");
}

function shownAs(message, way) {
  if (way === "hex") return hex(message);
  const { text } = bodyOf(message);
  return way === "JSON" ? indented(message) ?? text : text;
}

/** The body's card. `requested`: the way in which it is shown, "" for the best. */
export function bodyCard(message, requested) {
  const possible = formatsOf(message);
  const way = possible.includes(requested) ? requested : possible[0];
  const text = shownAs(message, way);
  return h("section", { class: "card", "data-key": "body" },
    h("div", { class: "card-head" },
      h("h2", null, "Body", h("span", { class: "muted" }, ` ${bytes(message.bodySize)}`)),
      h("div", { class: "buttons" },
        h("div", { class: "chips", role: "group", "aria-label": "Shown as" }, possible.map((name) =>
          h("button", { type: "button", class: "way", "data-do": "way", "data-way": name, "aria-pressed": String(name === way) }, name))),
        h("button", { type: "button", class: "small", "data-do": "copy" }, "Copy"),
        h("button", { type: "button", class: "small", "data-do": "download" }, "Download"))),
    h("pre", { class: "body", tabindex: "0" }, text.slice(0, CHARACTERS_MAX)),
    text.length > CHARACTERS_MAX && h("p", { class: "muted" }, `The first ${number(CHARACTERS_MAX)} characters of ${number(text.length)}.`));
}

export async function copy(message, requested) {
  const possible = formatsOf(message);
  try {
    await navigator.clipboard.writeText(shownAs(message, possible.includes(requested) ? requested : possible[0]));
    toast("Copied.", "good");
  } catch {
    toast("The browser allows copying over HTTPS only. Select the text instead.", "warn");
  }
}

/** Save bytes or text as a file of that name. */
export function save(name, content, type) {
  const address = URL.createObjectURL(new Blob([content], { type }));
  const link = h("a", { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

export function download(message) {
  const kind = { JSON: ["json", "application/json"], text: ["txt", "text/plain"] }[formatsOf(message)[0]] ?? ["bin", "application/octet-stream"];
  save(`${message.topic}-${message.queueId}-${message.queueOffset}.${kind[0]}`.replace(/[^\w.-]/g, "_"), raw(message), kind[1]);
}
