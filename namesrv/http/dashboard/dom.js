// Builds elements from data. Text stays text: nothing here parses HTML, so no message body, topic
// name or broker's answer can become markup.

const SVG = "http://www.w3.org/2000/svg";

/** h("p", {class: "x"}, "text", child, [more]): false, null and undefined attributes are left out. */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === false || value === null || value === undefined) continue;
    if (name === "style") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) add(element, child);
    else if (child instanceof Node) element.append(child);
    else if (child !== null && child !== undefined && child !== false) element.append(String(child));
  }
}

/** A long list at a page's top level; it is built again only when `version` changes. */
export function lazy(tag, attributes, version, build) {
  const element = h(tag, { ...attributes, "data-version": version });
  element.build = () => add(element, build());
  return element;
}

/** Make `old` look like `fresh` with the least change, so that focus, selection and scrolling stay.
 *  Children with data-key are matched by it. An input that somebody is typing into is left alone. */
export function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (fresh.build) {
    if (old.dataset.version === fresh.dataset.version) return;
    fresh.build();
  }
  for (const { name } of [...old.attributes])
    if (name !== "style" && name !== "open" && !fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes)
    if (name !== "style" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  if (old.style && old.style.cssText !== fresh.style.cssText) old.style.cssText = fresh.style.cssText;
  if (old.nodeName === "INPUT" || old.nodeName === "SELECT" || old.nodeName === "TEXTAREA") return;
  morphChildren(old, fresh);
}

function morphChildren(old, fresh) {
  const keyed = new Map();
  for (const child of old.children) if (child.dataset?.key) keyed.set(child.dataset.key, child);
  let at = old.firstChild;
  for (const freshChild of [...fresh.childNodes]) {
    const key = freshChild.dataset?.key;
    const match = key ? keyed.get(key) : at && !at.dataset?.key ? at : null;
    if (!match) {
      freshChild.build?.();
      old.insertBefore(freshChild, at);
      continue;
    }
    if (match === at) at = at.nextSibling;
    else old.insertBefore(match, at);
    morph(match, freshChild);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

/** Replace the content of `container` by `children` with the least change. */
export function show(container, ...children) {
  const fresh = container.cloneNode(false);
  add(fresh, children);
  morphChildren(container, fresh);
}
