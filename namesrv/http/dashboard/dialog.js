// Dialogs that ask before an action, and notices that report its result.

import { ApiError } from "/dashboard/api.js";
import { h } from "/dashboard/dom.js";

const TOAST_MS = 6000;

/** Show a dialog; resolve to the form's values, or null. `words` explain what will happen. */
export function ask({ title, words = [], fields = [], action, danger = false }) {
  const dialog = document.getElementById("dialog");
  return new Promise((resolve) => {
    const form = h("form", { method: "dialog" },
      h("h2", { id: "dialog-title" }, title),
      words.map((text) => h("p", null, text)),
      fields,
      h("div", { class: "buttons" },
        h("button", { type: "button", class: "quiet", "data-cancel": true }, "Cancel"),
        h("button", { type: "submit", class: danger ? "danger" : "primary" }, action)));
    let given = null;
    form.addEventListener("submit", () => { given = Object.fromEntries(new FormData(form)); });
    form.querySelector("[data-cancel]").addEventListener("click", () => dialog.close());
    dialog.replaceChildren(form);
    const closed = () => {
      // The close event comes a moment later; by then the dialog may show the next question.
      if (dialog.open && form.isConnected) return;
      dialog.removeEventListener("close", closed);
      resolve(given);
    };
    dialog.addEventListener("close", closed);
    dialog.showModal();
    (form.querySelector("input, select, textarea") ?? form.querySelector("[data-cancel]")).focus();
  });
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
      toast(`${what}: done in part. ${failed.map((one) => `${one.group}: ${one.error}`).join("; ")}`, "warn");
    } else toast(`${what}: done.`, "good");
    return true;
  } catch (error) {
    const unknown = error instanceof ApiError && error.code === "OUTCOME_UNKNOWN";
    toast(`${what}: ${unknown ? "nobody knows yet whether it was done. " : ""}${error.message}`, unknown ? "warn" : "bad");
    return false;
  }
}
