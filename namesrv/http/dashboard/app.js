// The application: it chooses the page by the address after #, holds the state, reads events and polls.

import { call, follow, get, onUnauthorized } from "/dashboard/api.js";
import { ask, toast } from "/dashboard/dialog.js";
import { h, show } from "/dashboard/dom.js";
import { icon } from "/dashboard/icons.js";
import { accountsPage } from "/dashboard/accounts.js";
import { auditPage } from "/dashboard/audit.js";
import { clientsPage } from "/dashboard/clients.js";
import { clusterPage } from "/dashboard/cluster.js";
import { consumersPage, consumerPage } from "/dashboard/consumers.js";
import { deadPage } from "/dashboard/deadletters.js";
import { eventsPage } from "/dashboard/events.js";
import { historyPage } from "/dashboard/history.js";
import { messagePage } from "/dashboard/message.js";
import { messagesPage } from "/dashboard/messages.js";
import { scalingPage } from "/dashboard/scaling.js";
import { topicsPage, topicPage } from "/dashboard/topics.js";

const POLL_MS = 2000;
const LOGIN_PAUSE_MS = 60_000; // before a read asks for a login again
const EVENTS_KEPT = 500;
const SAMPLES_KEPT = 90; // three minutes of polls
const REFRESH_DELAY_MS = 60; // events arrive in bursts: one refresh for all of them
const URGENT = new Set(["roleChanged", "routeChanged", "electionStarted", "transfer", "diskState", "memberChanged", "preferredLeaderChanged", "drain"]);

const PAGES = [
  ["cluster", "Cluster", clusterPage],
  ["scaling", "Scaling", scalingPage],
  ["topics", "Topics", topicsPage, topicPage],
  ["consumers", "Consumers", consumersPage, consumerPage],
  ["messages", "Messages", messagesPage, messagePage],
  ["history", "History", historyPage],
  ["clients", "Clients", clientsPage],
  ["accounts", "Accounts", accountsPage],
  ["events", "Events", eventsPage],
];
// Pages that are reached from others.
const SUBPAGES = [["dead", "Dead letters", consumersPage, deadPage], ["audit", "Operator log", auditPage]];

const main = document.getElementById("main");

export const app = {
  cluster: null, // the last answer
  error: "", // why the last refresh failed
  events: [], // latest first
  samples: [], // {at, sends, pulls}
  live: false,
  me: { name: "", role: "admin" },
  update,
  refresh,
  go: (path) => { location.hash = `#/${path}`; },
};

let page = null;
let scheduled = false;
let refreshing = false;
let refreshAgain = false;

function update() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    renderHeader();
    if (page) show(main, page.render());
  });
}

/** Load the cluster's state once, and once more if that was asked for in the meantime. */
async function refresh() {
  if (refreshing) {
    refreshAgain = true;
    return;
  }
  refreshing = true;
  try {
    app.cluster = await get("/cluster");
    app.error = "";
    sample();
  } catch (error) {
    app.error = error.message;
  }
  refreshing = false;
  update();
  if (refreshAgain) {
    refreshAgain = false;
    refresh();
  }
}

function sample() {
  let sends = 0;
  let pulls = 0;
  for (const group of app.cluster.groups)
    for (const { node } of group.brokers) {
      if (!node) continue;
      if (node.role === "leader" || node.role === "master") sends += node.rates?.sendsPerS ?? 0;
      pulls += node.rates?.pullsPerS ?? 0;
    }
  app.samples.push({ at: app.cluster.at, sends, pulls });
  if (app.samples.length > SAMPLES_KEPT) app.samples.shift();
}

function onEvent(event) {
  app.events.unshift(event);
  app.events.sort((one, other) => other.at - one.at);
  app.events.length = Math.min(app.events.length, EVENTS_KEPT);
  if (URGENT.has(event.kind)) setTimeout(refresh, REFRESH_DELAY_MS);
  update();
}

function renderHeader() {
  const [current] = currentRoute();
  show(
    document.getElementById("nav"),
    PAGES.map(([name, title]) =>
      h("a", { href: `#/${name}`, "data-key": name, title, "aria-current": name === current && "page" }, icon(name), h("span", null, title)),
    ),
  );
  const health = document.getElementById("health");
  const [kind, summary] = healthOf();
  health.className = `pill ${kind}`;
  if (health.textContent !== summary) health.textContent = summary;
  const live = document.getElementById("live");
  live.className = app.live ? "live on" : "live";
  const liveText = app.live ? "live" : "reconnecting…";
  if (live.textContent !== liveText) live.textContent = liveText;
}

function healthOf() {
  if (app.error) return ["bad", app.error];
  if (!app.cluster) return ["", "connecting…"];
  const { findings, groups } = app.cluster;
  if (!groups.length) return ["warn", "no brokers"];
  const critical = findings.filter((one) => one.severity === "critical").length;
  if (critical) return ["bad", `${critical} critical`];
  const others = findings.filter((one) => one.severity === "warning").length;
  if (others) return ["warn", `${others} ${others === 1 ? "difference" : "differences"}`];
  return ["good", "all replicas agree"];
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // typed by hand, or truncated: the page reports that it does not exist
  }
}

/** Return [page, argument, parameters] of the address. */
function currentRoute() {
  const [path, parameters = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/").map(decoded);
  return [name || "cluster", rest.join("/"), new URLSearchParams(parameters)];
}

function route() {
  const [name, argument, parameters] = currentRoute();
  const entry = [...PAGES, ...SUBPAGES].find(([known]) => known === name) ?? PAGES[0];
  const make = argument && entry[3] ? entry[3] : entry[2];
  page?.stop?.();
  page = make(app, argument, parameters);
  document.title = `${argument || entry[1]} · raftmq`;
  main.replaceChildren();
  window.scrollTo(0, 0);
  page.start?.();
  update();
}

document.addEventListener("click", (event) => {
  const target = event.target.closest?.("[data-do]");
  if (target && !target.disabled) page?.actions?.[target.dataset.do]?.(target.dataset, target);
});
document.addEventListener("input", (event) => {
  const name = event.target.dataset?.input;
  if (name) page?.inputs?.[name]?.(event.target.value, event.target);
});
document.addEventListener("submit", (event) => {
  const name = event.target.dataset?.submit;
  if (!name) return;
  event.preventDefault();
  page?.actions?.[name]?.(Object.fromEntries(new FormData(event.target)), event.target);
});
window.addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => !document.hidden && refresh());

let pendingLogin = null;
let declinedAt = -Infinity;
const ROUTE_KEY = "raftmq-route"; // the tab's address before it went to the provider
/** Return the way to log in with the company's account; null where there is none. */
async function companyLogin() {
  const ways = await get("/session").catch(() => ({})); // a token can be shown in any case
  if (!ways.oidc) return null;
  const link = h("a", { href: "/api/v1/session/oidc" }, "Log in with your company's account");
  link.addEventListener("click", (event) => event.ctrlKey || event.metaKey || sessionStorage.setItem(ROUTE_KEY, location.hash));
  return h("p", null, link);
}

const LOGIN_ERRORS = {
  busy: "Too many logins are in progress. Try again.",
  again: "The login timed out, or started in another browser. Log in again.",
  refused: "The login was cancelled or rejected.",
  role: "Your account has no role here. Ask the administrator of oidcRoles.",
  token: "The provider's answer was rejected; the name server's log has the reason.",
  provider: "The provider could not be reached; the name server's log has the reason.",
};
/** Restore the tab's address from before the login, and report a failed login. */
function restoreRoute() {
  const code = new URLSearchParams(location.search).get("login");
  const hash = sessionStorage.getItem(ROUTE_KEY);
  sessionStorage.removeItem(ROUTE_KEY);
  if (code) toast(LOGIN_ERRORS[code] ?? "The login failed.", "bad");
  if (code || hash) history.replaceState(null, "", `/${hash ?? location.hash}`);
}

onUnauthorized(async (isRead) => {
  // A dialog in use is not replaced, and polls do not ask again after the login was declined.
  const isDeclined = document.getElementById("dialog").open || (isRead && performance.now() - declinedAt < LOGIN_PAUSE_MS);
  if (!pendingLogin && isDeclined) return false;
  pendingLogin ??= companyLogin().then((company) => ask({
    title: "Log in",
    paragraphs: ["This name server requires a token. A session lasts twelve hours, at every name server with the same tokens; scripts cannot read it."],
    fields: [company, h("label", null, "Token", h("input", { name: "token", type: "password", autocomplete: "current-password", required: true }))],
    action: "Log in",
  })).then(async (values) => {
    pendingLogin = null;
    if (!values) {
      declinedAt = performance.now();
      return false;
    }
    try {
      await call("POST", "/session", { body: { token: values.token.trim() } });
    } catch (error) {
      toast(error.message, "bad");
    }
    me();
    return true; // the rejected request is repeated; a wrong token leads here again
  });
  return pendingLogin;
});

const THEMES = ["", "light", "dark"];
function theme(name) {
  document.documentElement.dataset.theme = name;
  localStorage.setItem("raftmq-theme", name);
}
document.getElementById("theme").addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme ?? "") + 1) % THEMES.length];
  theme(next);
  toast(`Colours: ${next || "as the system"}`);
});
theme(localStorage.getItem("raftmq-theme") ?? "");

/** Ask who the caller is, and show it; where everybody is admin there is nobody to log out. */
async function me() {
  try {
    app.me = await get("/whoami");
  } catch {
    return; // the server decides in any case; the buttons stay as for an admin
  }
  const button = document.getElementById("me");
  button.hidden = app.me.name === "local";
  button.textContent = `${app.me.name} · ${app.me.role}`;
  button.setAttribute("aria-label", `${app.me.name}, ${app.me.role}: log out`);
  update();
}

document.getElementById("me").addEventListener("click", async () => {
  const values = await ask({ title: "Log out?", paragraphs: [`You are ${app.me.name}, ${app.me.role}. This browser's session ends.`], action: "Log out" });
  if (!values) return;
  await call("DELETE", "/session");
  location.reload();
});

restoreRoute();
route();
await refresh();
await me();
setInterval(() => !document.hidden && refresh(), POLL_MS);
setInterval(update, 1000); // updates "12 s ago"
follow(onEvent, (connected) => {
  app.live = connected;
  update();
});
