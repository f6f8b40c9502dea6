// The page for operators: asks the exit every two seconds, and shows the view that the address names: all clients, one client, or the
// audit log.

import { setNoWireGuard } from "/add.js";
import { ask, forgetToken, hasToken, useToken } from "/api.js";
import { fetchAudit, forgetAudit, onAuditTurn, showAudit } from "/audit.js";
import { draw } from "/chart.js";
import { drawClient, fetchClient, forgetClient, openConfirm, showClient } from "/client.js";
import { onDecision } from "/decide.js";
import { at, clientLink, pager, reasons, rows, text } from "/dom.js";
import { bits, bytes, capital, clientState, exitLag, exitState, fleetLine, fleetTrouble, milliseconds, moment, perSecond, time } from "/words.js";

const EVERY = 2000;
const ALL_CLIENTS = { search: "", state: "all", sort: "name", page: 0 };
const VIEWS = ["overview", "client", "audit"];

let timer;
let asking = 0;
let before; // The last overview and when it arrived. Rates are differences between two overviews.
let table = { ...ALL_CLIENTS }; // Which clients are shown.
let day; // The rates of the last day and when they arrived.
let view = { name: "overview" };

start();

function start() {
  onDecision({ leave, refresh });
  onAuditTurn(refresh);
  at("gate").addEventListener("submit", enter);
  at("leave").addEventListener("click", () => leave(""));
  at("find").addEventListener("submit", (event) => event.preventDefault());
  at("search").addEventListener("input", () => turn({ search: at("search").value.trim().toLowerCase(), page: 0 }));
  at("which").addEventListener("change", () => turn({ state: at("which").value, page: 0 }));
  at("sort").addEventListener("change", () => turn({ sort: at("sort").value, page: 0 }));
  for (const button of document.querySelectorAll("[data-sort]")) button.addEventListener("click", () => turn({ sort: button.dataset.sort, page: 0 }));
  at("clients-earlier").addEventListener("click", () => turn({ page: Math.max(table.page - 1, 0) }));
  at("clients-later").addEventListener("click", () => turn({ page: table.page + 1 }));
  for (const choice of document.getElementsByName("span")) choice.addEventListener("change", redraw);
  document.addEventListener("visibilitychange", () => { if (!document.hidden && hasToken()) refresh(); });
  addEventListener("resize", () => { redraw(); drawClient(); });
  addEventListener("hashchange", () => go(true));
  go(false);
  if (hasToken()) refresh();
  else leave("");
}

// Shows the view that the address names, from which the browser's own buttons lead back.
function go(hasMoved) {
  const [, client] = /^#client\/([a-z0-9._-]+)$/.exec(location.hash) ?? [];
  view = client ? { name: "client", client } : { name: location.hash === "#audit" ? "audit" : "overview" };
  if (view.name !== "client") forgetClient();
  if (!hasToken() || !hasMoved) return;
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  refresh().then(() => {
    scrollTo(0, 0);
    at({ overview: "clients-title", client: "client-title", audit: "audit-title" }[view.name]).focus({ preventScroll: true });
  });
}

async function refresh() {
  clearTimeout(timer);
  const mine = ++asking;
  const of = view;
  try {
    const what = { overview: () => ask("/api/clients", table), client: () => fetchClient(of.client), audit: fetchAudit }[of.name];
    const [overview, shown] = await Promise.all([ask("/api/overview"), what()]);
    if (span() === "day" && isStale(day)) day = { when: Date.now(), series: await ask("/api/day") };
    // Another request was sent meanwhile, or the token was forgotten.
    if (mine !== asking || !hasToken()) return;
    showHead(overview);
    if (of.name === "overview") showOverview(overview, shown);
    for (const name of VIEWS) at(`${name}-view`).hidden = name !== of.name;
    if (of.name === "client") showClient(shown);
    if (of.name === "audit") showAudit(shown);
    before = { when: Date.now(), overview };
    at("figures").hidden = false;
    redraw();
    trouble(overview.reload_error ? `The latest reload failed: ${overview.reload_error}` : fleetTrouble(overview.fleet));
  } catch (error) {
    if (mine !== asking || !hasToken()) return;
    if (error.status === 401) return leave(capital(error.message));
    const since = before ? ` The figures are from ${new Date(before.when).toLocaleTimeString()}.` : "";
    trouble(`The exit does not answer${error.status ? `: ${error.message}` : ""}.${since}`);
  }
  if (!document.hidden) timer = setTimeout(refresh, EVERY);
}

// A long line moves slowly, so it is updated once a minute. A short one is updated at each refresh.
function isStale(day) {
  return !day || Date.now() - day.when > (day.series.to_clients.length > 60 ? 60_000 : 0);
}

// Shows another page, order or selection of the table of clients.
function turn(change) {
  table = { ...table, ...change };
  at("sort").value = table.sort;
  refresh();
}

function enter(event) {
  event.preventDefault();
  if (!useToken(at("token").value.trim())) return leave("This is not a token.");
  refresh();
}

function leave(sentence) {
  clearTimeout(timer);
  asking += 1;
  before = day = undefined;
  forgetToken();
  table = { ...ALL_CLIENTS };
  for (const id of ["figures", "leave", "state", "views"]) at(id).hidden = true;
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  for (const list of document.querySelectorAll("tbody")) list.replaceChildren();
  for (const figure of document.querySelectorAll("dd")) {
    figure.textContent = "";
    delete figure.dataset.shown;
  }
  forgetClient();
  forgetAudit();
  trouble("");
  for (const form of document.forms) form.reset();
  for (const place of document.querySelectorAll("[data-forget]")) place.replaceChildren();
  at("token").value = "";
  document.title = "Warren exit";
  at("gate-said").textContent = sentence;
  at("gate").hidden = false;
  at("token").focus();
}

function showHead(overview) {
  const { connected, enrolled } = overview.clients;
  at("gate").hidden = true;
  for (const id of ["leave", "state", "views"]) at(id).hidden = false;
  text("endpoint", overview.endpoint ?? "no endpoint in exit.toml");
  text("state", overview.stopping ? "stopping" : "up");
  at("state").classList.toggle("bad", overview.stopping);
  text("foot", `Warren ${overview.version}`);
  for (const [id, isShown] of [["to-clients", view.name !== "audit"], ["to-audit", view.name === "audit"]]) {
    if (isShown) at(id).setAttribute("aria-current", "page");
    else at(id).removeAttribute("aria-current");
  }
  document.title = view.name === "client" ? `${view.client}, Warren exit` : `${connected} of ${enrolled} connected, Warren exit`;
  setNoWireGuard(overview.no_wireguard);
  text("fleet", overview.fleet ? fleetLine(overview.fleet) : "");
  at("fleet").hidden = !overview.fleet;
}

function showOverview(overview, clients) {
  const seconds = before ? (Date.now() - before.when) / 1000 : 0;
  const last = before?.overview;
  const dropped = (list) => list.reduce((sum, row) => sum + row.count, 0);
  const { connected, enrolled } = overview.clients;
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

  showClients(clients, enrolled);
  showFleet(overview.fleet);
  const { open, first } = overview.invitations;
  rows("invitations", first, invitationCells);
  at("invitations-card").hidden = open === 0;
  text("more-invitations", open > first.length ? `${(open - first.length).toLocaleString("en")} more: warren exit client list` : "");
  for (const id of ["drops", "strangers"]) {
    const earlier = last?.[id];
    reasons(id, overview[id], seconds, (row) => perSecond(row.count - (earlier?.find((one) => one.reason === row.reason)?.count ?? row.count), seconds));
  }
  const never = overview.drops.filter((row) => row.count === 0);
  text("zero-count", String(never.length));
  if (at("zero-drops").childElementCount !== never.length) {
    at("zero-drops").replaceChildren(...never.map((row) => Object.assign(document.createElement("li"), { textContent: row.what })));
  }
}

function showFleet(fleet) {
  at("fleet-card").hidden = !fleet;
  rows("fleet-exits", fleet?.exits ?? [], (exit) => [
    { class: "name", text: exit.name },
    { class: "wide", dot: true, text: exitState(exit, fleet.name)[1] },
    { class: "number", label: "Clients", text: `${exit.sessions.toLocaleString("en")} of ${exit.max_sessions.toLocaleString("en")}` },
    { class: "number", label: "Traffic", text: bits(exit.bits_per_second) },
    { class: "number", label: "Cores", text: exit.cores.toFixed(1) },
    { label: "Latest change", text: exitLag(exit) },
  ], (exit) => exitState(exit)[0]);
}

function showClients(clients, enrolled) {
  // There may be fewer pages than before.
  if (table.page >= clients.pages) return turn({ page: clients.pages - 1 });
  rows("clients", clients.rows, clientCells, (client) => clientState(client)[0]);
  for (const button of document.querySelectorAll("[data-sort]")) {
    const order = button.dataset.sort === table.sort ? (table.sort === "name" ? "ascending" : "descending") : "none";
    button.closest("th").setAttribute("aria-sort", order);
  }
  at("find").hidden = enrolled < 2;
  at("no-clients").hidden = enrolled > 0;
  at("no-match").hidden = enrolled === 0 || clients.matching > 0;
  at("clients").hidden = clients.rows.length === 0;
  text("matching", clients.matching < enrolled ? `${clients.matching.toLocaleString("en")} of ${enrolled.toLocaleString("en")} clients match.` : "");
  pager("clients", table.page, clients.pages);
}

function clientCells(client) {
  const session = client.session;
  // Cells that are empty for an offline client take no room on a phone.
  const live = session ? "number" : "number none";
  const addresses = [client.ipv4, client.ipv6].filter(Boolean);
  return [
    { class: "name", text: client.name, link: clientLink(client.name) },
    { class: "wide", dot: true, text: clientState(client)[1] },
    { class: "wide addresses", lines: addresses.length ? addresses : ["none yet"] },
    { class: live, label: "To client", text: session ? bits(session.rates.bits_per_second_out) : "–" },
    { class: live, label: "From client", text: session ? bits(session.rates.bits_per_second_in) : "–" },
    { class: live, label: "Round trip", text: milliseconds(session?.rtt_ms) },
    { class: live, label: "Loss", text: session ? `${session.rates.loss_percent.toFixed(1)} %` : "–" },
    { class: "number", label: "Carried", text: bytes(client.traffic.to_client + client.traffic.from_client) },
  ];
}

function invitationCells(invitation) {
  return [
    { class: "name", text: invitation.name },
    { class: "wide", label: "Expires", text: moment(invitation.expires) },
    { class: "action", button: "Withdraw", for: invitation.name, act: () => openConfirm("withdraw", invitation.name) },
  ];
}

function trouble(sentence) {
  text("trouble", sentence);
  at("trouble").hidden = !sentence;
}

function redraw() {
  if (!before || view.name !== "overview") return;
  if (span() === "day" && !day) return void refresh();
  draw(at("chart"), span() === "day" ? day.series : before.overview.minutes, bits, (what) => text("pointed", what), "clients");
}

const span = () => document.querySelector("input[name=span]:checked").value;
