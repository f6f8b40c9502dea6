// The page for operators: asks the exit every two seconds, shows the answer, and sends the operator's decisions.

import { draw, make } from "/chart.js";

const EVERY = 2000;
const KEY = "warren-token";
const at = (id) => document.getElementById(id);

let token = sessionStorage.getItem(KEY);
let timer;
let asking = 0;
let before; // The last overview and when it arrived. Rates are differences between two overviews.
let table = { search: "", sort: "name", page: 0 }; // Which clients are shown.
let latest = []; // The clients that are shown.
let day; // The rates of the last day and when they arrived.

start();

function start() {
  at("gate").addEventListener("submit", enter);
  at("leave").addEventListener("click", () => leave(""));
  at("invite").addEventListener("click", openInvite);
  at("invite-form").addEventListener("submit", invite);
  at("remove-form").addEventListener("submit", remove);
  at("forward-form").addEventListener("submit", addForward);
  at("copy").addEventListener("click", copy);
  at("find").addEventListener("submit", (event) => event.preventDefault());
  at("search").addEventListener("input", () => turn({ search: at("search").value.trim().toLowerCase(), page: 0 }));
  at("sort").addEventListener("change", () => turn({ sort: at("sort").value, page: 0 }));
  at("earlier").addEventListener("click", () => turn({ page: Math.max(table.page - 1, 0) }));
  at("later").addEventListener("click", () => turn({ page: table.page + 1 }));
  at("invite-dialog").addEventListener("close", forgetInvitation);
  for (const button of document.querySelectorAll("[data-close]")) button.addEventListener("click", () => button.closest("dialog").close());
  for (const choice of document.getElementsByName("span")) choice.addEventListener("change", redraw);
  document.addEventListener("visibilitychange", () => { if (!document.hidden && token) refresh(); });
  addEventListener("resize", redraw);
  if (token) refresh();
  else leave("");
}

// Asking the exit.

class Refused extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

async function ask(path, body) {
  const options = { headers: { Authorization: `Bearer ${token}` }, cache: "no-store", credentials: "omit", redirect: "error" };
  if (body) Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  if (body) options.headers["Content-Type"] = "application/json";
  const answer = await fetch(path, options);
  const value = await answer.json();
  if (!answer.ok) throw new Refused(answer.status, value.error);
  return value;
}

async function refresh() {
  clearTimeout(timer);
  const mine = ++asking;
  try {
    const [overview, clients] = await Promise.all([ask("/api/overview"), ask("/api/clients", table)]);
    if (span() === "day" && isStale(day)) day = { when: Date.now(), series: await ask("/api/day") };
    // Another request was sent meanwhile, or the token was forgotten.
    if (mine !== asking || !token) return;
    show(overview, clients);
    trouble("");
  } catch (error) {
    if (mine !== asking || !token) return;
    if (error.status === 401) return leave(capital(error.message));
    const since = before ? ` The figures are from ${new Date(before.when).toLocaleTimeString()}.` : "";
    trouble(`The exit does not answer${error.status ? `: ${error.message}` : ""}.${since}`);
  }
  if (!document.hidden) timer = setTimeout(refresh, EVERY);
}

// A day's line moves slowly once it is long. At first, each value is news.
function isStale(day) {
  return !day || Date.now() - day.when > (day.series.to_clients.length > 60 ? 60_000 : 0);
}

// Shows other clients.
function turn(change) {
  table = { ...table, ...change };
  refresh();
}

function enter(event) {
  event.preventDefault();
  token = at("token").value.trim();
  // A field of an HTTP request can hold no other characters.
  if (!/^[\x21-\x7e]+$/.test(token)) return leave("This is not a token.");
  sessionStorage.setItem(KEY, token);
  refresh();
}

function leave(sentence) {
  clearTimeout(timer);
  asking += 1;
  token = before = day = undefined;
  table = { search: "", sort: "name", page: 0 };
  at("find").reset();
  sessionStorage.removeItem(KEY);
  for (const id of ["figures", "leave", "state"]) at(id).hidden = true;
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  for (const rows of document.querySelectorAll("tbody")) rows.replaceChildren();
  trouble("");
  latest = [];
  text("forwards-name", "");
  at("endpoint").textContent = at("foot").textContent = at("token").value = "";
  at("gate-said").textContent = sentence;
  at("gate").hidden = false;
  at("token").focus();
}

// Showing.

function show(overview, clients) {
  const now = Date.now();
  const seconds = before ? (now - before.when) / 1000 : 0;
  const last = before?.overview;
  const dropped = (list) => list.reduce((sum, row) => sum + row.count, 0);
  const { connected, enrolled } = overview.clients;

  at("gate").hidden = true;
  at("leave").hidden = at("state").hidden = false;
  text("endpoint", overview.endpoint ?? "no endpoint in exit.toml");
  text("state", overview.stopping ? "stopping" : "up");
  at("state").classList.toggle("bad", overview.stopping);
  text("connected", `${connected} of ${enrolled}`);
  text("rate-out", bits(overview.rates.bits_per_second_out));
  text("rate-in", bits(overview.rates.bits_per_second_in));
  text("rate-drops", perSecond(last ? dropped(overview.drops) - dropped(last.drops) : 0, seconds));
  const repair = overview.repair;
  for (const name of ["lost", "spurious", "repaired", "given_up", "late", "repeated", "waiting"]) {
    text(`repair-${name.replace("_", "-")}`, repair[name].toLocaleString("en"));
  }
  text("repair-kept", bytes(repair.kept_bytes));
  text("since", time(overview.since_seconds));
  const cpu = last ? (100 * (overview.process.cpu_seconds - last.process.cpu_seconds)) / seconds : 0;
  text("process", `${Math.max(cpu, 0).toFixed(cpu < 10 ? 1 : 0)} %, ${bytes(overview.process.rss_kib * 1024)}`);
  text("foot", `Warren ${overview.version}`);
  document.title = `${connected} of ${enrolled} connected, Warren exit`;
  if (overview.reload_error) trouble(`The latest reload changed nothing: ${overview.reload_error}`);

  latest = clients.rows;
  showClients(clients, enrolled);
  const { open, first } = overview.invitations;
  rows("invitations", first, invitationCells);
  at("invitations-card").hidden = open === 0;
  text("more-invitations", open > first.length ? `${(open - first.length).toLocaleString("en")} more: warren exit client list` : "");
  reasons("drops", overview.drops, last?.drops, seconds);
  reasons("strangers", overview.strangers, last?.strangers, seconds);
  const never = overview.drops.filter((row) => row.count === 0);
  text("zero-count", String(never.length));
  if (at("zero-drops").childElementCount !== never.length) {
    at("zero-drops").replaceChildren(...never.map((row) => element("li", { textContent: row.what })));
  }
  before = { when: now, overview };
  at("figures").hidden = false;
  redraw();
}

function showClients(clients, enrolled) {
  // The last page may have gone.
  if (table.page >= clients.pages) return turn({ page: clients.pages - 1 });
  rows("clients", clients.rows, clientCells, (client) => clientState(client)[0]);
  at("find").hidden = enrolled < 2;
  at("no-clients").hidden = enrolled > 0;
  at("no-match").hidden = enrolled === 0 || clients.matching > 0;
  at("clients").hidden = clients.rows.length === 0;
  at("pages").hidden = clients.pages < 2;
  text("page-now", `Page ${table.page + 1} of ${clients.pages}`);
  at("earlier").disabled = table.page === 0;
  at("later").disabled = table.page + 1 >= clients.pages;
}

function clientState(client) {
  if (client.disabled) return ["disabled", "disabled"];
  if (client.session) return ["connected", `for ${time(client.session.since_seconds)}`];
  return ["offline", client.last_seen ? `seen ${when(client.last_seen)}` : "never seen"];
}

function clientCells(client) {
  const session = client.session;
  // Cells that are empty for an offline client take no room on a phone.
  const live = session ? "number" : "number none";
  const addresses = [client.ipv4, client.ipv6].filter(Boolean);
  return [
    { class: "name", text: client.name },
    { class: "wide", dot: true, text: client.disabled ? "disabled" : clientState(client).join(" ").replace("offline ", "") },
    { class: "wide addresses", lines: addresses.length ? addresses : ["none yet"] },
    { class: live, label: "To client", text: session ? bits(session.rates.bits_per_second_out) : "–" },
    { class: live, label: "From client", text: session ? bits(session.rates.bits_per_second_in) : "–" },
    { class: live, label: "Round trip", text: session?.rtt_ms ? `${session.rtt_ms.toFixed(session.rtt_ms < 10 ? 1 : 0)} ms` : "–" },
    { class: live, label: "Loss", text: session ? `${session.rates.loss_percent.toFixed(1)} %` : "–" },
    { class: "number", label: "Carried", text: bytes(client.traffic.to_client + client.traffic.from_client) },
    { class: "action", button: "Forwards", for: client.name, count: client.forwards.length, act: () => openForwards(client.name) },
    { class: "action", button: "Revoke", for: client.name, act: () => openRemove(client.name, true) },
  ];
}

function invitationCells(invitation) {
  return [
    { class: "name", text: invitation.name },
    { class: "wide", label: "Expires", text: new Date(invitation.expires).toLocaleString() },
    { class: "action", button: "Withdraw", for: invitation.name, act: () => openRemove(invitation.name, false) },
  ];
}

function reasons(id, list, earlier, seconds) {
  const seen = list.filter((row) => row.count > 0).map((row) => ({ ...row, name: row.reason }));
  const more = (row) => row.count - (earlier?.find((one) => one.reason === row.reason)?.count ?? row.count);
  rows(id, seen, (row) => [
    { text: row.reason.replaceAll("_", " ") },
    { class: "quiet", text: row.what },
    { class: "number", label: "Now", text: perSecond(more(row), seconds) },
    { class: "number", label: "Since start", text: row.count.toLocaleString("en") },
  ]);
  at(id).hidden = seen.length === 0;
  at(`no-${id}`).hidden = seen.length > 0;
}

// Rows keep their elements, so that the keyboard focus stays where it is.
function rows(id, list, cells, state) {
  const body = at(id).tBodies[0];
  const old = new Map([...body.rows].map((row) => [row.dataset.name, row]));
  list.forEach((item, index) => {
    let row = old.get(item.name);
    old.delete(item.name);
    const wanted = cells(item);
    if (!row) row = element("tr", {}, ...wanted.map(cell));
    row.dataset.name = item.name;
    if (state) row.className = state(item);
    wanted.forEach((one, column) => fill(row.cells[column], one));
    if (body.rows[index] !== row) body.insertBefore(row, body.rows[index] ?? null);
  });
  for (const row of old.values()) row.remove();
}

function cell(wanted) {
  const cell = element("td", { className: wanted.class ?? "" });
  if (wanted.label) cell.dataset.label = wanted.label;
  if (wanted.dot) cell.append(element("span", { className: "dot" }), element("span"));
  if (wanted.button) {
    const button = element("button", { type: "button", textContent: wanted.button });
    button.append(element("span", { className: "unseen", textContent: ` ${wanted.for}` }));
    if (wanted.count !== undefined) button.firstChild.after(element("span", { className: "count" }));
    button.addEventListener("click", wanted.act);
    cell.append(button);
  }
  return cell;
}

function fill(cell, wanted) {
  if (wanted.class !== undefined && cell.className !== wanted.class) cell.className = wanted.class;
  if (wanted.lines) {
    const shown = wanted.lines.join("\n");
    if (cell.dataset.shown === shown) return;
    cell.dataset.shown = shown;
    cell.replaceChildren(...wanted.lines.map((line) => element("span", { textContent: line })));
  } else if (wanted.text !== undefined) {
    const place = wanted.dot ? cell.lastElementChild : cell;
    if (place.textContent !== wanted.text) place.textContent = wanted.text;
  } else if (wanted.count !== undefined) {
    const shown = wanted.count ? ` (${wanted.count})` : "";
    const place = cell.querySelector(".count");
    if (place.textContent !== shown) place.textContent = shown;
  }
}

function redraw() {
  if (!before) return;
  if (span() === "day" && !day) return void refresh();
  draw(at("chart"), span() === "day" ? day.series : before.overview.minutes, bits, (what) => text("pointed", what));
}

const span = () => document.querySelector("input[name=span]:checked").value;

// Inviting and removing.

function openInvite() {
  at("invite-said").textContent = "";
  at("invite-form").reset();
  at("invite-form").hidden = false;
  at("invited").hidden = true;
  at("invite-dialog").setAttribute("aria-labelledby", "invite-title");
  at("invite-dialog").showModal();
  at("name").focus();
}

async function invite(event) {
  event.preventDefault();
  const name = at("name").value;
  const invitation = await decide("/api/invite", { name, hours: Number(at("hours").value) }, event.submitter, "invite-said");
  if (!invitation || !at("invite-dialog").open) return;
  text("invited-name", invitation.name);
  text("invited-until", new Date(invitation.expires).toLocaleString());
  at("line").value = invitation.line;
  at("qr-details").hidden = !invitation.qr;
  if (invitation.qr) at("qr").replaceChildren(code(invitation.qr));
  at("invite-form").hidden = true;
  at("invited").hidden = false;
  at("invite-dialog").setAttribute("aria-labelledby", "invited-title");
  at("copy").focus();
  refresh();
}

// An invitation is shown once: the page forgets it when the dialog closes.
function forgetInvitation() {
  at("line").value = "";
  at("qr").replaceChildren();
  at("qr-details").open = false;
  at("copy").textContent = "Copy line";
}

function code({ size, path }) {
  const quietZone = 4;
  const side = size + 2 * quietZone;
  return make(
    "svg",
    { viewBox: `${-quietZone} ${-quietZone} ${side} ${side}`, role: "img", "aria-label": "The line as a QR code", "shape-rendering": "crispEdges" },
    make("path", { d: path, fill: "#000" }),
  );
}

async function copy() {
  try {
    await navigator.clipboard.writeText(at("line").value);
    at("copy").textContent = "Copied";
    say("The line is copied.");
  } catch {
    at("line").focus();
    at("line").select();
    say("The line is selected. Press Ctrl+C to copy it.");
  }
}

function openRemove(name, isClient) {
  at("remove-said").textContent = "";
  at("remove-dialog").dataset.name = name;
  at("remove-dialog").dataset.after = isClient ? "clients-title" : "invitations-title";
  text("remove-title", isClient ? `Revoke ${name}?` : `Withdraw the invitation for ${name}?`);
  text("remove-what", isClient ? "Its session ends at once, and its key is refused from now on. To admit it again, send it a new invitation." : "Its line will no longer enrol a client.");
  text("remove-do", isClient ? "Revoke" : "Withdraw");
  at("remove-dialog").showModal();
}

async function remove(event) {
  event.preventDefault();
  const { name, after } = at("remove-dialog").dataset;
  if (!(await decide("/api/remove", { name }, event.submitter, "remove-said", true))) return;
  at("remove-dialog").close();
  say(`${name} is removed.`);
  // The row with the button that opened this dialog is about to disappear.
  at(after === "clients-title" ? after : "clients-title").focus();
  refresh();
}

// Forwards of a client.

function openForwards(name) {
  at("forward-said").textContent = "";
  at("forward-form").reset();
  text("forwards-name", name);
  showForwards(latest.find((client) => client.name === name)?.forwards ?? []);
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
  const forward = { name: at("forwards-name").textContent, ports };
  if (to) forward.to = Number(to);
  await decideForwards("/api/forward", forward, event.submitter, `${ports} is forwarded.`);
}

async function removeForward(forward, button) {
  const ports = forward.split(" ")[0];
  await decideForwards("/api/unforward", { name: at("forwards-name").textContent, ports }, button, `${ports} is no longer forwarded.`);
}

async function decideForwards(path, forward, button, done) {
  const answer = await decide(path, forward, button, "forward-said");
  if (!at("forwards-dialog").open) return;
  if (!answer) return at("forward-ports").focus();
  showForwards(answer.forwards);
  at("forward-form").reset();
  at("forward-ports").focus();
  say(done);
  refresh();
}

// Sends a decision. Shows a refusal in the dialog, and returns nothing then.
async function decide(path, body, button, said, isAnswerEmpty) {
  button.disabled = true;
  at(said).textContent = "";
  try {
    const answer = await ask(path, body);
    return isAnswerEmpty ? true : answer;
  } catch (error) {
    if (error.status === 401) leave(capital(error.message));
    else at(said).textContent = error.status ? `${capital(error.message)}.` : "The exit does not answer.";
    return undefined;
  } finally {
    button.disabled = false;
  }
}

// Words.

function text(id, value) {
  if (at(id).textContent !== value) at(id).textContent = value;
}

function trouble(sentence) {
  text("trouble", sentence);
  at("trouble").hidden = !sentence;
}

const say = (sentence) => text("said", sentence);

const capital = (sentence) => sentence.charAt(0).toUpperCase() + sentence.slice(1);

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function scaled(value, units, step) {
  let place = 0;
  while (value >= step * 0.9995 && place < units.length - 1) {
    value /= step;
    place += 1;
  }
  const digits = place === 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return `${Number(value.toFixed(digits))} ${units[place]}`;
}

const bits = (value) => scaled(value, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s"], 1000);

const bytes = (value) => scaled(value, ["B", "kB", "MB", "GB", "TB", "PB"], 1000);

function perSecond(count, seconds) {
  if (count <= 0 || seconds <= 0) return "0 /s";
  const rate = count / seconds;
  return `${rate < 10 ? rate.toFixed(1) : Math.round(rate).toLocaleString("en")} /s`;
}

function time(seconds) {
  const [d, h, m, s] = [86400, 3600, 60, 1].map((unit, index, units) => Math.floor((seconds % (units[index - 1] ?? Infinity)) / unit));
  if (d) return `${d} d ${h} h`;
  if (h) return `${h} h ${m} min`;
  if (m) return `${m} min ${s} s`;
  return `${s} s`;
}

function when(timestamp) {
  const seconds = (Date.now() - Date.parse(timestamp)) / 1000;
  if (seconds < 60) return "just now";
  return `${time(seconds).split(" ").slice(0, 2).join(" ")} ago`;
}
