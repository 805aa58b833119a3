// Dialogs that ask before an action, and notices that report its result.

import { ApiError } from "/dashboard/api.js";
import { h, show } from "/dashboard/dom.js";

const TOAST_MS = 6000;

/** Show a dialog; resolve to the form's values, or null. `paragraphs` explain what will happen. `typed`: a
 *  name that must be typed before the action. `preview(values)`: elements that show, as the form is
 *  filled, what would be done; a promise of them may be given, too. */
export function ask({ title, paragraphs = [], fields = [], action, danger = false, typed = "", preview = null, wide = false }) {
  const dialog = document.getElementById("dialog");
  return new Promise((resolve) => {
    const previewBox = preview && h("div", { class: "outlook", "aria-live": "polite" });
    const form = h("form", { method: "dialog" },
      h("h2", { id: "dialog-title" }, title),
      paragraphs.map((text) => h("p", null, text)),
      fields,
      previewBox,
      typed && h("label", null, `Type ${typed} to confirm`, h("input", { name: "typed", required: true, autocomplete: "off", spellcheck: "false", pattern: escapePattern(typed), title: typed })),
      h("div", { class: "buttons" },
        h("button", { type: "button", class: "quiet", "data-cancel": true }, "Cancel"),
        h("button", { type: "submit", class: danger ? "danger" : "primary" }, action)));
    let result = null;
    const values = () => Object.fromEntries(new FormData(form));
    form.addEventListener("submit", () => { result = values(); });
    form.querySelector("[data-cancel]").addEventListener("click", () => dialog.close());
    if (previewBox) livePreview(form, previewBox, () => preview(values()));
    dialog.className = wide ? "wide" : "";
    dialog.replaceChildren(form);
    const closed = () => {
      // The close event comes a moment later; by then the dialog may show the next question.
      if (dialog.open && form.isConnected) return;
      dialog.removeEventListener("close", closed);
      resolve(result);
    };
    dialog.addEventListener("close", closed);
    dialog.showModal();
    (form.querySelector("input, select, textarea") ?? form.querySelector("[data-cancel]")).focus();
  });
}

const escapePattern = (text) => text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");

/** Show what the form would do, now and after each change of it; only the latest answer counts. */
function livePreview(form, container, build) {
  let latest = 0;
  let timer = 0;
  const refresh = async () => {
    const own = ++latest;
    let content;
    try {
      content = await build();
    } catch (error) {
      content = h("p", { class: "warn-text" }, error.message);
    }
    if (own === latest) show(container, content);
  };
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(refresh, 150);
  });
  refresh();
}

export function toast(text, kind = "") {
  const box = h("div", { class: `toast ${kind}` }, text);
  document.getElementById("toasts").append(box);
  setTimeout(() => box.remove(), TOAST_MS);
}

/** Perform an action and report its result. Return true if it succeeded. */
export async function attempt(what, work) {
  try {
    const answer = await work();
    const failed = (answer?.results ?? []).filter((one) => one.outcome !== "ok");
    if (failed.length) {
      toast(`${what}: partly done. ${failed.map((one) => `${one.group}: ${one.error}`).join("; ")}`, "warn");
    } else toast(`${what}: done.`, "good");
    return true;
  } catch (error) {
    const unknown = error instanceof ApiError && error.code === "OUTCOME_UNKNOWN";
    toast(`${what}: ${unknown ? "the outcome is unknown. " : ""}${error.message}`, unknown ? "warn" : "bad");
    return false;
  }
}
