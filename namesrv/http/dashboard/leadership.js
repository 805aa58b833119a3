// Dialogs that change a group's leader, its preferred leader and its members.

import { call, get, seg, versioned } from "/dashboard/api.js";
import { ask, attempt, toast } from "/dashboard/dialog.js";
import { h } from "/dashboard/dom.js";
import { number, plural } from "/dashboard/format.js";

const choice = (name, value, title, more, checked) =>
  h("label", { class: "choice" }, h("input", { type: "radio", name, value, checked, required: true }),
    h("span", null, title, more && h("span", { class: "muted" }, ` ${more}`)));

/** Ask the leader for what a dialog shows; return null if it does not answer. */
async function readOrToast(work) {
  try {
    return await work();
  } catch (error) {
    toast(error.message, "bad");
    return null;
  }
}

export async function preferLeader(app, group) {
  const path = `/groups/${seg(group.name)}/preferred-leader`;
  const answer = await readOrToast(async () => [await versioned("GET", path), await get(`/groups/${seg(group.name)}/members`)]);
  if (!answer) return;
  const [{ value, version }, { items }] = answer;
  const values = await ask({
    title: `Preferred leader of ${group.name}`,
    paragraphs: [
      "Another leader transfers leadership to the preferred leader once it has been connected and caught up for some seconds: at most twice a minute, and less often if it does not remain leader. Every replica stores the preference, which survives restarts.",
      value.name ? `Preferred now: ${value.name}. The leader reports: ${value.reason || "nothing yet"}.` : "No preferred leader is set.",
    ],
    fields: [h("fieldset", null, h("legend", null, "Preferred leader"),
      choice("name", "", "none", "any elected replica leads", !value.name),
      items.filter((one) => one.role === "voter").map((one) => choice("name", one.id, one.id, one.id === value.leader ? "leads now" : "", one.id === value.name)))],
    action: "Save",
  });
  if (!values || values.name === (value.name ?? "")) return;
  const headers = { "If-Match": version };
  await attempt(values.name ? `${values.name} as preferred leader` : "No preferred leader", () =>
    (values.name ? call("PUT", path, { body: { name: values.name }, headers }) : call("DELETE", path, { headers })));
  app.refresh();
}

export async function changeMembers(app, group) {
  const path = `/groups/${seg(group.name)}/members`;
  const answer = await readOrToast(() => get(path));
  if (!answer) return;
  const { items } = answer;
  const state = (one) => `${one.role}, ${one.recovered === false ? "recovering" : one.lagFrames ? `${plural(one.lagFrames, "frame")} behind` : "up to date"}`;
  const values = await ask({
    title: `Members of ${group.name}`,
    paragraphs: [
      "Voters elect the leader and count for the majority; a learner receives the log and does not count. The next step shows the effect before it is applied. To add a member, start a broker with raftJoin and POST /members.",
    ],
    fields: [h("fieldset", null, h("legend", null, "Change"),
      items.map((one) => [
        one.role === "learner" && choice("change", `promote ${one.id}`, h("strong", null, `Promote ${one.id}`), `to voter (${state(one)})`),
        choice("change", `remove ${one.id}`, h("strong", null, `Remove ${one.id}`), `(${state(one)})`),
      ]))],
    action: "Continue…",
  });
  if (!values?.change) return;
  const [change, id] = values.change.split(" ");
  const member = items.find((one) => one.id === id);
  await (change === "promote" ? promote(path, items, member) : remove(group, path, items, member));
  app.refresh();
}

/** Return how many of `voters` may fail. */
const faultTolerance = (voters) => Math.floor((voters - 1) / 2);
const voting = (voters) => `${plural(voters, "voter")}, of which ${faultTolerance(voters) === 0 ? "none" : number(faultTolerance(voters))} may fail`;
const voters = (items) => items.filter((one) => one.role === "voter").length;

async function promote(path, items, member) {
  const values = await ask({
    title: `Promote ${member.id} to voter?`,
    paragraphs: [
      `From then on it counts in elections and for acknowledged messages. The group has ${voting(voters(items))} now, and ${voting(voters(items) + 1)} then.`,
      "The promotion is rejected if it has not caught up.",
    ],
    action: "Promote",
  });
  if (values) await attempt(`Promotion of ${member.id}`, () => call("POST", `${path}/${seg(member.id)}/promote`));
}

async function remove(group, path, items, member) {
  const voter = member.role === "voter";
  const values = await ask({
    title: `Remove ${member.id} from ${group.name}?`,
    paragraphs: [
      voter
        ? `It does not count any more, receives no more of the log and leaves the routes; its files are kept. The group has ${voting(voters(items))} now, and ${voting(voters(items) - 1)} then.`
        : "It receives no more of the log; its files are kept. The group's voters do not change.",
      member.id === group.leader && "It leads until its removal is committed; then another leader is elected.",
      member.id === group.preferredLeader && "It is the preferred leader; the group has none afterwards.",
      "To return, it must be added as a learner, catch up and be promoted.",
    ].filter(Boolean),
    action: `Remove ${member.id}`,
    danger: true,
  });
  if (values) await attempt(`Removal of ${member.id}`, () => call("DELETE", `${path}/${seg(member.id)}`));
}
