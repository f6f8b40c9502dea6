// Adding clients: an invitation for Warren, or a configuration for the WireGuard app of a phone.

import { changed, decide, NameField } from "/decide.js";
import { at, qrCode, say, text } from "/dom.js";
import { moment } from "/words.js";

const invited = new NameField("name", "name-shown", "invite-said");
const phone = new NameField("phone-name", "phone-name-shown", "phone-said");

let noWireGuard; // Why no phone can be added, if none can.
let download; // The address of the configuration within this tab.

at("invite").addEventListener("click", openInvite);
at("invite-form").addEventListener("submit", invite);
at("invite-dialog").addEventListener("close", forgetInvitation);
at("copy").addEventListener("click", copy);
at("add-phone").addEventListener("click", openPhone);
at("phone-form").addEventListener("submit", addPhone);
at("phone-dialog").addEventListener("close", forgetPhone);
at("phone-dialog").addEventListener("cancel", keepOpenOnce);

export function setNoWireGuard(why) {
  noWireGuard = why;
}

function openInvite() {
  at("invite-said").textContent = "";
  at("invite-form").reset();
  invited.reset();
  at("invite-form").hidden = false;
  at("invited").hidden = true;
  at("invite-dialog").setAttribute("aria-labelledby", "invite-title");
  at("invite-dialog").showModal();
  at("name").focus();
}

async function invite(event) {
  event.preventDefault();
  const name = await invited.chosen();
  if (!name) return;
  const answer = await decide("/api/invite", { name, hours: Number(at("hours").value) }, event.submitter, "invite-said");
  if (!answer || !at("invite-dialog").open) return;
  text("invited-name", answer.name);
  text("invited-until", moment(answer.expires));
  at("line").value = answer.line;
  at("qr-details").hidden = !answer.qr;
  if (answer.qr) at("qr").replaceChildren(qrCode(answer.qr, "The line as a QR code"));
  at("invite-form").hidden = true;
  at("invited").hidden = false;
  at("invite-dialog").setAttribute("aria-labelledby", "invited-title");
  at("copy").focus();
  changed();
}

// An invitation is shown once: the page forgets it when the dialog closes.
function forgetInvitation() {
  at("line").value = "";
  at("qr").replaceChildren();
  at("qr-details").open = false;
  at("copy").textContent = "Copy line";
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

function openPhone() {
  at("phone-said").textContent = "";
  at("phone-form").reset();
  phone.reset();
  at("phone-form").hidden = Boolean(noWireGuard);
  at("phone-impossible").hidden = !noWireGuard;
  text("phone-why", noWireGuard ?? "");
  at("phone-added").hidden = true;
  at("phone-dialog").setAttribute("aria-labelledby", noWireGuard ? "phone-not" : "phone-title");
  at("phone-dialog").showModal();
  if (!noWireGuard) at("phone-name").focus();
}

async function addPhone(event) {
  event.preventDefault();
  const name = await phone.chosen();
  if (!name) return;
  const answer = await decide("/api/wireguard", { name }, event.submitter, "phone-said");
  if (!answer || !at("phone-dialog").open) return;
  text("phone-added-name", answer.name);
  if (answer.qr) at("phone-qr").replaceChildren(qrCode(answer.qr, "The configuration as a QR code"));
  download = URL.createObjectURL(new Blob([answer.configuration], { type: "text/plain" }));
  at("phone-file").href = download;
  at("phone-file").download = answer.file;
  text("phone-file", `Download ${answer.file}`);
  at("phone-form").hidden = true;
  at("phone-added").hidden = false;
  at("phone-dialog").setAttribute("aria-labelledby", "phone-added-title");
  at("phone-dialog").dataset.isNew = "yes";
  at("phone-added-title").focus();
  changed();
}

// One press of Escape must not lose the only copy of a key.
function keepOpenOnce(event) {
  if (!at("phone-dialog").dataset.isNew) return;
  event.preventDefault();
  delete at("phone-dialog").dataset.isNew;
  at("phone-warning").hidden = false;
}

// A configuration is shown once: its key is nowhere else.
function forgetPhone() {
  if (download) URL.revokeObjectURL(download);
  download = undefined;
  at("phone-file").removeAttribute("href");
  at("phone-qr").replaceChildren();
  delete at("phone-dialog").dataset.isNew;
  at("phone-warning").hidden = true;
}
