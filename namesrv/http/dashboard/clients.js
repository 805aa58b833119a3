// The clients page: producers and consumers that are connected, by group.

import { get, seg } from "/dashboard/api.js";
import { clients } from "/dashboard/consumers.js";
import { h } from "/dashboard/dom.js";
import { number, plural } from "/dashboard/format.js";
import { empty, head, polled, problem } from "/dashboard/parts.js";
import { searchBox } from "/dashboard/topics.js";

const REFRESH_MS = 5000;

/** Merge the broker groups' lists: a client is connected to several brokers, and is shown once. */
function merged(items) {
  const connections = new Map();
  for (const { name, clients: rows } of items) {
    const own = connections.get(name) ?? new Map();
    for (const one of rows) if (!own.has(one.clientId)) own.set(one.clientId, one);
    connections.set(name, own);
  }
  return [...connections].map(([name, rows]) => ({ name, clients: [...rows.values()] })).sort((one, other) => one.name.localeCompare(other.name));
}

export function clientsPage(app) {
  const state = { producers: [], consumers: [], errors: [], error: "", loaded: false, q: "" };

  async function load() {
    try {
      const connections = await get("/connections");
      Object.assign(state, { producers: merged(connections.producers), consumers: merged(connections.consumers), errors: connections.errors, error: "", loaded: true });
    } catch (error) {
      state.error = error.message;
    }
    app.update();
  }

  const matches = ({ name, clients: rows }) => [name, ...rows.flatMap((one) => [one.clientId, one.address])].some((text) => String(text).toLowerCase().includes(state.q));

  const section = (title, groups, link) => {
    const shown = groups.filter(matches);
    return h("section", { class: "card", "data-key": title },
      h("h2", null, title, h("span", { class: "muted" }, ` ${number(shown.length)}`)),
      shown.length ? shown.map((one) => h("div", { class: "block", "data-key": one.name },
        h("div", { class: "card-head" }, h("h3", null, link ? h("a", { href: link(one.name) }, one.name) : one.name), h("span", { class: "muted" }, plural(one.clients.length, "client"))),
        clients(one.clients, `${title.toLowerCase()} ${one.name}`))) : empty(state.q ? "No name or address contains this text." : "No clients are connected."));
  };

  return {
    ...polled(load, REFRESH_MS),
    render: () => [
      head("Clients"),
      searchBox("Part of a group, client or address", state.q),
      state.error && problem(state.error),
      state.errors.map((one) => problem(`${one.group} did not answer: ${one.error}`)),
      !state.loaded && !state.error && h("p", { class: "loading" }, "Asking the leaders…"),
      state.loaded && [section("Producers", state.producers), section("Consumers", state.consumers, (name) => `#/consumers/${seg(name)}`)],
    ],
    inputs: {
      search: (text) => {
        state.q = text.trim().toLowerCase();
        app.update();
      },
    },
  };
}
