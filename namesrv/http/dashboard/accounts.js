// The accounts page: what each client's account may do, shown before it is saved.

import { call, get, query, seg } from "/dashboard/api.js";
import { ask, attempt } from "/dashboard/dialog.js";
import { h } from "/dashboard/dom.js";
import { area, field, groupNames, groupsField, row, select, tick } from "/dashboard/forms.js";
import { plural } from "/dashboard/format.js";
import { empty, head, polled, problem, table } from "/dashboard/parts.js";

const REFRESH_MS = 10000;
const TOPIC_RIGHTS = { DENY: "nothing", PUB: "send", SUB: "consume", "PUB|SUB": "send and consume", "SUB|PUB": "send and consume", ANY: "send and consume" };
const PERMISSIONS = [["DENY", "nothing"], ["PUB", "PUB: send"], ["SUB", "SUB: consume"], ["PUB|SUB", "PUB|SUB: both"]];
const NONE = { accessKey: "", admin: false, defaultTopicPerm: "DENY", defaultGroupPerm: "DENY", topicPerms: [], groupPerms: [], whiteRemoteAddress: "" };

const parseLines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);
const canonical = (word) => (["ANY", "SUB|PUB"].includes(word) ? "PUB|SUB" : word || "DENY");

const bodyOf = (values) => ({
  admin: Boolean(values.admin),
  defaultTopicPerm: values.defaultTopicPerm,
  defaultGroupPerm: values.defaultGroupPerm,
  topicPerms: parseLines(values.topicPerms),
  groupPerms: parseLines(values.groupPerms),
  whiteRemoteAddress: values.whiteRemoteAddress.trim(),
  ...(values.secretKey && { secretKey: values.secretKey }),
});

/** What an account may do, in sentences. */
function rights(account) {
  const wrong = [...account.topicPerms, ...account.groupPerms].filter((one) => !/^[^=]+=(DENY|PUB|SUB|PUB\|SUB|SUB\|PUB|ANY)$/.test(one));
  const each = (perms) => perms.map((one) => one.split("=")).map(([name, word]) => h("li", null, h("code", null, name), `: ${TOPIC_RIGHTS[word] ?? word}`));
  const unrestricted = account.admin && !account.topicPerms.length && !account.groupPerms.length;
  return [
    wrong.length > 0 && h("p", { class: "warn-text" }, `Not name=permission: ${wrong.join(", ")}`),
    account.whiteRemoteAddress && h("p", { class: "warn-text" }, `From ${account.whiteRemoteAddress} it may do everything, without its secret.`),
    unrestricted ? h("p", null, h("strong", null, "Everything"), ", and it may change topics, groups and accounts.") : [
      account.admin && h("p", null, "It may change topics, groups and accounts."),
      h("ul", { class: "plain" },
        each(account.topicPerms), h("li", null, account.topicPerms.length ? "other topics: " : "any topic: ", h("strong", null, TOPIC_RIGHTS[account.defaultTopicPerm])),
        account.groupPerms.length > 0 && account.groupPerms.map((one) => one.split("=")).map(([name, word]) => h("li", null, "as group ", h("code", null, name), `: ${word === "DENY" || word === "PUB" ? "nothing" : "consume"}`)),
        h("li", null, account.groupPerms.length ? "as another group: " : "as any group: ", h("strong", null, ["SUB", "PUB|SUB"].includes(canonical(account.defaultGroupPerm)) ? "consume" : "nothing"))),
    ],
  ];
}

export function accountsPage(app) {
  const state = { accounts: null, error: "" };

  async function load() {
    try {
      state.accounts = await get("/accounts");
      state.error = "";
    } catch (error) {
      state.error = error.message;
    }
    app.update();
  }

  /** Ask how an account shall be; `only`: in that broker group, "" in all. */
  async function edit(key, only) {
    const item = state.accounts.items.find((one) => one.accessKey === key);
    const before = item?.groups.find((one) => !only || one.group === only) ?? NONE;
    const values = await ask({
      title: item ? `Change account ${key}${only && ` in ${only}`}` : "New account",
      paragraphs: [`Clients sign their requests with the secret. The change takes effect at once in ${only || "every broker group"}, also for open connections.`],
      fields: [
        !item && field("Access key", { name: "accessKey", required: true, minlength: "7", maxlength: "256", pattern: "[!-~]+" }),
        field(item ? "New secret (empty: unchanged)" : "Secret", { name: "secretKey", type: "password", required: !item, minlength: "7", maxlength: "256", pattern: "[!-~]+", autocomplete: "new-password" }),
        tick("Administrator: may change topics, groups and accounts", "admin", before.admin),
        row(
          select("Other topics", "defaultTopicPerm", PERMISSIONS, canonical(before.defaultTopicPerm)),
          select("Other consumer groups", "defaultGroupPerm", PERMISSIONS, canonical(before.defaultGroupPerm))),
        row(
          area("Topics, a line each: name=permission", { name: "topicPerms", rows: "3", value: before.topicPerms.join("\n"), placeholder: "Orders=PUB|SUB" }),
          area("Consumer groups, a line each: name=permission", { name: "groupPerms", rows: "3", value: before.groupPerms.join("\n"), placeholder: "billing=SUB" })),
        field("Addresses that need no secret", { name: "whiteRemoteAddress", value: before.whiteRemoteAddress, placeholder: "none" }),
        !only && groupsField(groupNames(app)),
      ],
      preview: (now) => [h("h3", null, "Permissions"), rights(bodyOf(now))],
      action: item ? "Change account" : "Create account",
      wide: true,
    });
    if (!values) return;
    const name = item ? key : values.accessKey;
    await attempt(`Account ${name}`, async () => {
      if (!item) checkIsNew(await get("/accounts"), name, values.group);
      return call("PUT", `/accounts/${seg(name)}${query({ group: only || values.group })}`, { body: bodyOf(values) });
    });
    load();
  }

  async function remove(key) {
    const values = await ask({
      title: `Delete account ${key}`,
      paragraphs: ["Clients that sign with it are rejected at once, in every broker group. This cannot be undone: a new account of this name needs its secret and permissions again."],
      typed: key,
      action: "Delete account",
      danger: true,
    });
    if (values) await attempt(`Deletion of ${key}`, () => call("DELETE", `/accounts/${seg(key)}`));
    load();
  }

  async function white(group) {
    const { whiteAddresses } = state.accounts.groups.find((one) => one.group === group);
    const values = await ask({
      title: `Addresses that need no account in ${group}`,
      paragraphs: ["Clients at these addresses may do everything. Patterns: 192.168.1.*, 10.0.{1,2}.*, 10.0.0.10-20."],
      fields: [area("Addresses, one a line", { name: "addresses", value: whiteAddresses.join("\n") })],
      action: "Replace",
      danger: true,
    });
    if (values) await attempt(`Addresses of ${group}`, () => call("PUT", `/white-addresses${query({ group })}`, { body: { addresses: parseLines(values.addresses) } }));
    load();
  }

  return {
    ...polled(load, REFRESH_MS),
    render() {
      const { accounts, error } = state;
      const on = accounts?.groups.some((one) => one.enabled);
      const off = (accounts?.groups ?? []).filter((one) => !one.enabled).map((one) => one.group);
      return [
        head("Accounts", on && h("div", { class: "buttons" },
          h("button", { type: "button", class: "primary", "data-do": "create" }, "New account…"))),
        error && problem(error),
        !accounts && !error && h("p", { class: "loading" }, "Asking the leaders…"),
        accounts?.errors.map((one) => problem(`${one.group} did not answer: ${one.error}`)),
        off.length > 0 && h("p", { class: "note" }, `Access control is off in ${off.join(", ")}: clients may do everything there. aclEnable=true switches it on.`),
        accounts && on && h("section", { class: "card" }, h("h2", null, plural(accounts.items.length, "account")),
          accounts.items.length ? table("Accounts", [["Account", ""], ["Permissions", ""], ["Broker groups", ""], ["", ""]], accounts.items.flatMap((item) => rowsOf(item, accounts)).map(({ accessKey, account, differs, names, only }) => [
            h("strong", { class: "mono" }, accessKey),
            h("div", null, rights(account), differs && h("p", { class: "warn-text" }, "The definitions of the broker groups differ.")),
            names,
            h("div", { class: "buttons" },
              h("button", { type: "button", class: "small", "data-do": "edit", "data-name": accessKey, "data-group": only }, "Change…"),
              h("button", { type: "button", class: "small quiet", "data-do": "remove", "data-name": accessKey }, "Delete…")),
          ])) : empty("No accounts.")),
        on && h("section", { class: "card" }, h("h2", null, "Addresses without an account"), accounts.groups.map((one) => h("p", { "data-key": one.group }, h("strong", null, one.group), ": ", one.whiteAddresses.join(", ") || "none", " ",
          one.enabled && h("button", { type: "button", class: "small", "data-do": "white", "data-group": one.group }, "Change…")))),
      ];
    },
    actions: {
      create: () => edit("", ""),
      edit: ({ name, group }) => edit(name, group),
      remove: ({ name }) => remove(name),
      white: ({ group }) => white(group),
    },
  };
}

const same = (one, other) => JSON.stringify({ ...one, group: "" }) === JSON.stringify({ ...other, group: "" });

/** Throw if an account is, or may be, in the broker group where it shall be made; none: in any of them. */
function checkIsNew({ items, errors }, key, group) {
  const namesOf = (groups = []) => groups.map((one) => one.group).filter((one) => !group || one === group).join(", ");
  const existing = namesOf(items.find((one) => one.accessKey === key)?.groups);
  if (existing) throw new Error(`it exists in ${existing} already.`);
  const silent = namesOf(errors);
  if (silent) throw new Error(`${silent} does not say whether it exists.`);
}

/** One row where all broker groups are known to have an account alike, which is changed in all of them; otherwise
 *  one for each group that has it, where it is changed alone. */
function rowsOf({ accessKey, groups }, accounts) {
  const differs = !groups.every((one) => same(one, groups[0]));
  const inAll = groups.length === accounts.groups.filter((one) => one.enabled).length && !accounts.errors.length;
  if (inAll && !differs) return [{ accessKey, account: groups[0], names: groups.map((one) => one.group).join(", "), only: "" }];
  return groups.map((account) => ({ accessKey, account, differs, names: account.group, only: account.group }));
}
