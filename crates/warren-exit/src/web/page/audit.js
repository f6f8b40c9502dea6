// The view of the audit log: what operators did, the newest first.

import { ask } from "/api.js";
import { at, clientLink, pager, rows, text } from "/dom.js";
import { moment, person } from "/words.js";

let query = { search: "", page: 0 };

export function onAuditTurn(refresh) {
  const turn = (change) => {
    query = { ...query, ...change };
    refresh();
  };
  at("audit-find").addEventListener("submit", (event) => event.preventDefault());
  at("audit-search").addEventListener("input", () => turn({ search: at("audit-search").value, page: 0 }));
  at("audit-earlier").addEventListener("click", () => turn({ page: Math.max(query.page - 1, 0) }));
  at("audit-later").addEventListener("click", () => turn({ page: query.page + 1 }));
}

export const fetchAudit = () => ask("/api/audit", query);

export function forgetAudit() {
  query = { search: "", page: 0 };
  at("audit-find").reset();
}

export function showAudit(answer) {
  // Numbered from the oldest, so that a new entry does not change the others.
  const first = answer.matching - query.page * 50;
  const entries = answer.rows.map((entry, index) => ({ ...entry, name: `${first - index}-${entry.time}` }));
  rows("audit", entries, (entry) => [
    { class: "when", text: moment(entry.time) },
    { class: "name", link: entry.client && clientLink(entry.client), text: entry.client ?? "the exit" },
    { class: "wide", text: entry.what },
    { class: "wide quiet", label: "By", text: person(entry) },
  ]);
  at("audit").hidden = entries.length === 0;
  text("no-audit", query.search ? "No entry matches." : "Nobody has changed anything yet.");
  at("no-audit").hidden = entries.length > 0;
  at("audit-failing").hidden = !answer.failing;
  pager("audit", query.page, answer.pages);
}
