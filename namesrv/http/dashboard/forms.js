// Fields of forms and dialogs.

import { get, query } from "/dashboard/api.js";
import { h } from "/dashboard/dom.js";

const SUGGESTIONS = 50;

export const field = (title, attributes, hint) =>
  h("label", { "data-key": attributes.name }, title,
    h("input", { type: "text", autocomplete: "off", spellcheck: "false", ...attributes }),
    hint && h("span", { class: "hint" }, hint));

export const area = (title, attributes) => h("label", { "data-key": attributes.name }, title, h("textarea", { rows: "5", spellcheck: "false", ...attributes }));

/** A text for which there are suggestions; anything may be typed. */
export const suggested = (title, attributes, names) =>
  h("label", { "data-key": attributes.name }, title,
    h("input", { type: "text", autocomplete: "off", spellcheck: "false", placeholder: "select or type", list: `known-${attributes.name}`, ...attributes }),
    h("datalist", { id: `known-${attributes.name}` }, names.map((name) => h("option", { value: name }))));

/** The names of some topics, those that contain `text`. */
export const topicNames = async (text = "") => (await get(`/topics${query({ q: text.trim(), limit: SUGGESTIONS })}`)).items.map((one) => one.topic);

/** A selection of one; `options`: [value, label]. */
export const select = (title, name, options, selected, hint) =>
  h("label", { "data-key": name }, title,
    h("select", { name }, options.map(([value, label]) => h("option", { value, selected: value === selected }, label))),
    hint && h("span", { class: "hint" }, hint));

export const tick = (label, name, checked = false) => h("label", { class: "choice" }, h("input", { type: "checkbox", name, checked }), h("span", null, label));

/** Several fields side by side. */
export const row = (...fields) => h("div", { class: "beside" }, fields);

/** In which broker groups a change is made; nothing to choose where there is one. */
export const groupsField = (names) =>
  names.length > 1 && select("Broker groups", "group", [["", `all ${names.length} broker groups`], ...names.map((name) => [name, name])], "");

export const groupNames = (app) => (app.cluster?.groups ?? []).map((group) => group.name);

/** Parse lines of name=value; throws an error that names a wrong line. */
export function pairs(text) {
  const properties = {};
  for (const line of text.split("\n").map((one) => one.trim()).filter(Boolean)) {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`"${line}" is not name=value`);
    properties[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return properties;
}

/** A moment for an input of type datetime-local, in this browser's zone. */
export function localTime(ms) {
  const at = new Date(ms - new Date(ms).getTimezoneOffset() * 60000);
  return at.toISOString().slice(0, 19);
}
