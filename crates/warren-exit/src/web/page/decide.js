// Decisions in dialogs: a name that somebody types, and a request that the exit may refuse.

import { ask } from "/api.js";
import { at, element } from "/dom.js";
import { capital } from "/words.js";

// Milliseconds without a key press before a name is looked up.
const PAUSE = 200;

let leave = () => {};
let refresh = () => {};

// Sets what to do when the token is refused (`leave`) and after a change (`refresh`).
export function onDecision(change) {
  ({ leave, refresh } = change);
}

export const changed = () => refresh();

// Sends a decision, and returns the answer. Shows a refusal in the dialog, and returns undefined for it.
export async function decide(path, body, button, said) {
  if (button) button.disabled = true;
  at(said).textContent = "";
  try {
    return await ask(path, body);
  } catch (error) {
    if (error.status === 401) leave(capital(error.message));
    else at(said).textContent = error.status ? `${capital(error.message)}.` : "The exit does not answer.";
    return undefined;
  } finally {
    if (button) button.disabled = false;
  }
}

// A field for any name that a person types. The name that the exit makes of it is shown below before it is used.
export class NameField {
  constructor(input, shown, said) {
    Object.assign(this, { input: at(input), shown: at(shown), said });
    this.hint = this.shown.textContent;
    this.input.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.name = undefined;
      this.timer = setTimeout(() => this.lookUp(), PAUSE);
    });
  }

  // Clears the field. `of` is the client that gets another name, if one does.
  reset(of) {
    clearTimeout(this.timer);
    Object.assign(this, { of, name: undefined });
    this.shown.textContent = this.hint;
  }

  // The name to use. If it has not been shown yet, shows it and returns undefined.
  async chosen() {
    clearTimeout(this.timer);
    const typed = this.input.value.trim();
    if (this.name && this.typed === typed) return this.name;
    await this.lookUp();
    // A name that is exactly what was typed has been seen.
    return this.name === typed ? this.name : undefined;
  }

  async lookUp() {
    const typed = this.input.value.trim();
    if (!typed) return void (this.shown.textContent = this.hint);
    const answer = await decide("/api/name", { text: typed, of: this.of ?? null }, undefined, this.said);
    // The exit does not answer, or the answer is out of date because more was typed.
    if (!answer || typed !== this.input.value.trim()) return;
    Object.assign(this, { name: answer.name, typed });
    const { name, wanted, holder } = answer;
    const why = holder ? `${wanted} is ${holder === "client" ? "a client" : "invited"} already. ` : "";
    this.shown.replaceChildren(`${why}The name will be: `, element("strong", { textContent: name }));
  }
}

for (const button of document.querySelectorAll("[data-close]")) {
  button.addEventListener("click", () => button.closest("dialog").close());
}
