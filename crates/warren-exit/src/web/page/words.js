// Figures and times as people read them.

function scaled(value, units, step) {
  let place = 0;
  while (value >= step * 0.9995 && place < units.length - 1) {
    value /= step;
    place += 1;
  }
  const digits = place === 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return `${Number(value.toFixed(digits))} ${units[place]}`;
}

export const bits = (value) => scaled(value, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s"], 1000);

export const bytes = (value) => scaled(value, ["B", "kB", "MB", "GB", "TB", "PB"], 1000);

export const milliseconds = (value) => (value ? `${value.toFixed(value < 10 ? 1 : 0)} ms` : "–");

export function perSecond(count, seconds) {
  if (count <= 0 || seconds <= 0) return "0 /s";
  const rate = count / seconds;
  return `${rate < 10 ? rate.toFixed(1) : Math.round(rate).toLocaleString("en")} /s`;
}

export function time(seconds) {
  const [d, h, m, s] = [86400, 3600, 60, 1].map((unit, index, units) => Math.floor((seconds % (units[index - 1] ?? Infinity)) / unit));
  if (d) return `${d} d ${h} h`;
  if (h) return `${h} h ${m} min`;
  if (m) return `${m} min ${s} s`;
  return `${s} s`;
}

// An exit's fleet in one line.
export function fleetLine(fleet) {
  const serving = fleet.exits.filter((exit) => exit.state === "serving").length;
  return `${fleet.name}, one of a fleet: ${serving} of ${fleet.exits.length} exits serve`;
}

// An exit of the fleet: the look of its state, and its state in words.
export function exitState(exit, own) {
  const looks = { serving: ["connected", "serves clients"], draining: ["disabled", "sends its clients away"], gone: ["offline", "not heard of for 10 s"] };
  const [look, words] = looks[exit.state] ?? ["offline", exit.state];
  return [look, exit.name === own ? `${words} (this exit)` : words];
}

// Whether an exit has applied the fleet's latest change. Its heartbeats say so a few seconds late.
export function exitLag(exit) {
  if (exit.state === "gone") return "–";
  return exit.behind_seconds < 5 ? "applied" : `not applied for ${time(exit.behind_seconds)}`;
}

// What is wrong with the fleet, and what that means for clients. Empty if nothing is wrong or there is no fleet.
export function fleetTrouble(fleet) {
  if (!fleet) return "";
  if (fleet.is_removed) return "Clients are sent away, because this exit was removed from its fleet.";
  if (fleet.is_stale) return `Clients are sent away until the fleet's store can be used again: ${fleet.reason ?? `it has not answered for ${time(fleet.silent_seconds)}`}.`;
  if (fleet.store !== "reachable") return `The fleet's store does not answer: ${fleet.reason ?? "no reason is known"}. Clients are served, and nobody can be enrolled.`;
  if (fleet.is_clock_wrong) return "This host's clock is wrong, so no invitation is redeemed at this exit.";
  const [ending] = Object.entries(fleet.certificate_days ?? {}).filter(([, days]) => days < 14).sort((one, other) => one[1] - other[1]);
  if (ending) return `The certificate ${ending[0]} of the fleet's store ${expiry(ending[1])}.`;
  return fleet.is_draining ? "Clients are sent to other exits of the fleet." : "";
}

// When a certificate with this many days left expires.
function expiry(days) {
  const whole = Math.floor(days);
  if (whole < 0) return "has expired";
  if (whole === 0) return "expires in less than a day";
  return `expires in ${whole} ${whole === 1 ? "day" : "days"}`;
}

export function when(timestamp) {
  const seconds = (Date.now() - Date.parse(timestamp)) / 1000;
  if (seconds < 60) return "just now";
  return `${time(seconds).split(" ").slice(0, 2).join(" ")} ago`;
}

// A time in this browser's time zone, such as 2026-11-26 18:03.
export function moment(timestamp) {
  const at = new Date(timestamp);
  const two = (number) => String(number).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}`;
}

// A limit such as 20mbit in words.
export function limit(rate) {
  const [, number, unit] = /^(\d+)([kmg])bit$/.exec(rate) ?? [];
  return number ? `${number} ${{ k: "kbit/s", m: "Mbit/s", g: "Gbit/s" }[unit]} each way` : rate;
}

// Begins a sentence with a capital letter, unless it begins with ports such as tcp/8443.
export const capital = (sentence) => /^(tcp|udp)\//.test(sentence) ? sentence : sentence.charAt(0).toUpperCase() + sentence.slice(1);

// A client's present state: the look, and the state in words.
export function clientState(client) {
  if (client.disabled) return ["disabled", "disabled"];
  if (client.session) return ["connected", `connected for ${time(client.session.since_seconds)}`];
  return ["offline", client.last_seen ? `seen ${when(client.last_seen)}` : "never seen"];
}

// Who made a change, and how.
export function person(entry) {
  if (entry.by === "invitation") return "the client, by invitation";
  const user = entry.login ? `${entry.user ?? "?"} (login ${entry.login})` : (entry.user ?? "unknown user");
  return `${user}, ${entry.by}${entry.from ? ` from ${entry.from}` : ""}`;
}
