// The view of one client: its figures and its day, and what an operator can change of it.

import { ask } from "/api.js";
import { draw } from "/chart.js";
import { changed, decide, NameField } from "/decide.js";
import { at, clientLink, fillLines, reasons, rows, say, text } from "/dom.js";
import { bits, bytes, clientState, limit, milliseconds, moment, perSecond, person, time, when } from "/words.js";

const renamed = new NameField("new-name", "new-name-shown", "rename-said");

let shown; // The name of the client that is shown.
let latest; // Its latest answer, and when it arrived.
let before; // The answer before that, from which rates of drops come.

at("rename").addEventListener("click", openRename);
at("rename-form").addEventListener("submit", rename);
at("limit").addEventListener("click", openLimit);
at("limit-form").addEventListener("submit", setLimit);
at("limit-off").addEventListener("click", (event) => sendLimit(null, event.currentTarget));
at("forwards-open").addEventListener("click", openForwards);
at("forward-form").addEventListener("submit", addForward);
at("disable").addEventListener("click", () => openConfirm(latest?.answer.client.disabled ? "enable" : "disable", shown));
at("remove").addEventListener("click", () => openConfirm("remove", shown));
at("confirm-form").addEventListener("submit", confirm);

// Asks the exit for a client. A client that is gone is no error.
export async function fetchClient(name) {
  if (name !== shown) forgetClient();
  shown = name;
  try {
    return { client: await ask("/api/client", { name }) };
  } catch (error) {
    if (error.status !== 409) throw error;
    return { gone: true };
  }
}

export function forgetClient() {
  shown = latest = before = undefined;
  for (const id of ["client-title", "forwards-name", "client-key"]) text(id, "");
  at("client-body").hidden = true;
  at("client-gone").hidden = true;
}

export function showClient({ client: answer, gone }) {
  at("client-gone").hidden = !gone;
  at("client-body").hidden = Boolean(gone);
  text("client-title", shown);
  if (gone) return;
  before = latest;
  latest = { answer, when: Date.now() };
  const { client } = answer;
  const { session } = client;
  const [look, words] = clientState(client);
  text("client-state", words);
  at("client-state").className = `pill ${look === "connected" ? "" : look === "disabled" ? "bad" : "dull"}`;
  text("disable", client.disabled ? "Enable" : "Disable");
  text("client-out", session ? bits(session.rates.bits_per_second_out) : "–");
  text("client-in", session ? bits(session.rates.bits_per_second_in) : "–");
  text("client-rtt", milliseconds(session?.rtt_ms));
  text("client-loss", session ? `${session.rates.loss_percent.toFixed(1)} %` : "–");
  text("client-carried-out", bytes(client.traffic.to_client));
  text("client-carried-in", bytes(client.traffic.from_client));
  showFacts(client);
  const seconds = before ? (latest.when - before.when) / 1000 : 0;
  const earlier = before?.answer.drops;
  reasons("client-drops", answer.drops, seconds, (row) => perSecond(row.count - (earlier?.find((one) => one.reason === row.reason)?.count ?? 0), earlier ? seconds : 0));
  const entries = answer.audit.map((entry, index) => ({ ...entry, name: `${index}` }));
  rows("client-audit", entries, (entry) => [
    { text: moment(entry.time) },
    { class: "wide", text: entry.what },
    { class: "wide quiet", label: "By", text: person(entry) },
  ]);
  at("client-audit").hidden = entries.length === 0;
  at("no-client-audit").hidden = entries.length > 0;
  if (at("forwards-dialog").open) showForwards(client.forwards);
  drawClient();
}

export function drawClient() {
  if (latest?.answer.day && !at("client-view").hidden) draw(at("client-chart"), latest.answer.day, bits, (what) => text("client-pointed", what), "the client");
}

function showFacts(client) {
  const addresses = [client.ipv4, client.ipv6].filter(Boolean);
  const lines = {
    "client-addresses": addresses.length ? addresses : ["none yet"],
    "client-prefixes": client.prefixes.length ? client.prefixes : ["none"],
    "client-forwards": client.forwards.length ? client.forwards : ["none"],
  };
  for (const [id, list] of Object.entries(lines)) fillLines(at(id), list);
  const connections = client.session?.connections;
  text("client-protocol", client.wireguard ? "WireGuard" : connections ? `Warren, ${connections} ${connections === 1 ? "connection" : "connections"}` : "Warren");
  text("client-limit", client.rate_limit ? limit(client.rate_limit) : "none");
  text("client-seen", client.last_seen ? `${when(client.last_seen)}, ${moment(client.last_seen)}` : "never");
  text("client-session", client.session ? time(client.session.since_seconds) : "not connected");
  text("client-created", moment(client.created));
  text("client-key", client.next_public_key ? `${client.public_key}, then ${client.next_public_key}` : client.public_key);
}

function openRename() {
  at("rename-said").textContent = "";
  at("rename-form").reset();
  renamed.reset(shown);
  text("rename-title", `Rename ${shown}`);
  at("new-name").value = shown;
  at("rename-dialog").showModal();
  at("new-name").focus();
  at("new-name").select();
}

async function rename(event) {
  event.preventDefault();
  const to = await renamed.chosen();
  if (!to) return;
  const name = shown;
  if (to === name) return at("rename-dialog").close();
  if (!(await decide("/api/rename", { name, to }, event.submitter, "rename-said"))) return;
  at("rename-dialog").close();
  say(`${name} is ${to} now.`);
  location.replace(clientLink(to));
}

function openLimit() {
  at("limit-said").textContent = "";
  at("limit-form").reset();
  const [, number, unit] = /^(\d+)([kmg]bit)$/.exec(latest?.answer.client.rate_limit ?? "") ?? [];
  text("limit-title", `Limit of ${shown}`);
  if (number) Object.assign(at("limit-number"), { value: number });
  if (unit) at("limit-unit").value = unit;
  at("limit-off").hidden = !number;
  at("limit-dialog").showModal();
  at("limit-number").focus();
}

async function setLimit(event) {
  event.preventDefault();
  await sendLimit(`${at("limit-number").value}${at("limit-unit").value}`, event.submitter);
}

async function sendLimit(rate, button) {
  const name = shown;
  if (!(await decide("/api/limit", { name, rate }, button, "limit-said"))) return;
  at("limit-dialog").close();
  say(rate ? `${name} is limited to ${limit(rate)}.` : `${name} has no limit any more.`);
  changed();
}

// For each change: its verb, the text of the question before it, and the words after it.
const CONFIRM = {
  disable: ["Disable", "Its session ends at once, and it is refused until it is enabled again. Its name and addresses stay its own.", "is disabled"],
  enable: ["Enable", "It can connect again at once.", "is enabled"],
  remove: ["Remove", "Its session ends at once, and its key is refused from now on. To admit it again, send it a new invitation.", "is removed"],
  withdraw: ["Withdraw", "Its line will no longer enrol a client.", "is no longer invited"],
};

export function openConfirm(kind, name) {
  const [verb, what] = CONFIRM[kind];
  at("confirm-said").textContent = "";
  Object.assign(at("confirm-dialog").dataset, { name, kind });
  text("confirm-title", kind === "withdraw" ? `Withdraw the invitation for ${name}?` : `${verb} ${name}?`);
  text("confirm-what", what);
  text("confirm-do", verb);
  at("confirm-do").className = kind === "enable" ? "main" : "danger";
  at("confirm-dialog").showModal();
}

async function confirm(event) {
  event.preventDefault();
  const { name, kind } = at("confirm-dialog").dataset;
  const path = kind === "withdraw" ? "/api/remove" : `/api/${kind}`;
  // The answer to a removal is null, and an undefined one means that the change was refused.
  if ((await decide(path, { name }, event.submitter, "confirm-said")) === undefined) return;
  at("confirm-dialog").close();
  say(`${name} ${CONFIRM[kind][2]}.`);
  // The button that opened this dialog is about to disappear, so the focus moves elsewhere.
  if (kind === "remove") location.hash = "";
  else if (kind === "withdraw") at("clients-title").focus();
  changed();
}

function openForwards() {
  at("forward-said").textContent = "";
  at("forward-form").reset();
  text("forwards-name", shown);
  // A client with WireGuard's own apps has no profile, so its firewall decides.
  const wireguard = Boolean(latest?.answer.client.wireguard);
  at("forwards-profile").hidden = wireguard;
  at("forwards-firewall").hidden = !wireguard;
  showForwards(latest?.answer.client.forwards ?? []);
  at("forwards-dialog").showModal();
  at("forward-ports").focus();
}

function showForwards(forwards) {
  rows("forwards", forwards.map((forward) => ({ name: forward })), ({ name }) => [
    { class: "name", text: name },
    { class: "action", button: "Remove", for: name, act: (event) => removeForward(name, event.currentTarget) },
  ]);
  at("forwards").hidden = forwards.length === 0;
  at("no-forwards").hidden = forwards.length > 0;
}

async function addForward(event) {
  event.preventDefault();
  const [ports, to] = [at("forward-ports").value, at("forward-to").value];
  const forward = { name: shown, ports };
  if (to) forward.to = Number(to);
  await decideForwards("/api/forward", forward, event.submitter, `${ports} is forwarded.`);
}

async function removeForward(forward, button) {
  const ports = forward.split(" ")[0];
  await decideForwards("/api/unforward", { name: shown, ports }, button, `${ports} is no longer forwarded.`);
}

async function decideForwards(path, forward, button, done) {
  const answer = await decide(path, forward, button, "forward-said");
  if (!at("forwards-dialog").open) return;
  if (!answer) return at("forward-ports").focus();
  showForwards(answer.forwards);
  at("forward-form").reset();
  at("forward-ports").focus();
  say(done);
  changed();
}
