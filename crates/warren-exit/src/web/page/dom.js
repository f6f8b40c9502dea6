// The elements of the page. All text becomes text nodes, so no name can become markup.

import { make } from "/chart.js";

export const at = (id) => document.getElementById(id);

export function text(id, value) {
  if (at(id).textContent !== value) at(id).textContent = value;
}

// Tells a screen reader what has happened.
export const say = (sentence) => text("said", sentence);

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

export const clientLink = (name) => `#client/${encodeURIComponent(name)}`;

// Rows keep their elements, so that the keyboard focus stays where it is.
export function rows(id, list, cells, state) {
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
  if (wanted.link) cell.append(element("a"));
  if (wanted.button) {
    const button = element("button", { type: "button", textContent: wanted.button });
    button.append(element("span", { className: "unseen", textContent: ` ${wanted.for}` }));
    button.addEventListener("click", wanted.act);
    cell.append(button);
  }
  return cell;
}

function fill(cell, wanted) {
  if (wanted.class !== undefined && cell.className !== wanted.class) cell.className = wanted.class;
  if (wanted.lines) return fillLines(cell, wanted.lines);
  if (wanted.text === undefined) return;
  const place = wanted.dot ? cell.lastElementChild : wanted.link ? cell.firstElementChild : cell;
  if (place.textContent !== wanted.text) place.textContent = wanted.text;
  if (wanted.link && place.getAttribute("href") !== wanted.link) place.setAttribute("href", wanted.link);
}

export function fillLines(place, lines) {
  const shown = lines.join("\n");
  if (place.dataset.shown === shown) return;
  place.dataset.shown = shown;
  place.replaceChildren(...lines.map((line) => element("span", { textContent: line })));
}

// Shows which page of a list this is, and whether there are others.
export function pager(id, page, pages) {
  at(`${id}-pages`).hidden = pages < 2;
  text(`${id}-page-now`, `Page ${page + 1} of ${pages}`);
  at(`${id}-earlier`).disabled = page === 0;
  at(`${id}-later`).disabled = page + 1 >= pages;
}

// A table of drop reasons with their counts. `more` returns the present rate of a reason, as text.
export function reasons(id, list, seconds, more) {
  const seen = list.filter((row) => row.count > 0).map((row) => ({ ...row, name: row.reason }));
  rows(id, seen, (row) => [
    { text: row.reason.replaceAll("_", " ") },
    { class: "quiet", text: row.what },
    { class: "number", label: "Now", text: more(row, seconds) },
    { class: "number", label: "Since start", text: row.count.toLocaleString("en") },
  ]);
  at(id).hidden = seen.length === 0;
  at(`no-${id}`).hidden = seen.length > 0;
}

// A QR code with the light margin that readers need.
export function qrCode({ size, path }, label) {
  const quietZone = 4;
  const side = size + 2 * quietZone;
  return make(
    "svg",
    { viewBox: `${-quietZone} ${-quietZone} ${side} ${side}`, role: "img", "aria-label": label, "shape-rendering": "crispEdges" },
    make("path", { d: path, fill: "#000" }),
  );
}
