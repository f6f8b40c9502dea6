// Questions to the exit. The token stays in this tab.

const KEY = "warren-token";

let token = sessionStorage.getItem(KEY);

export class Refused extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

export const hasToken = () => Boolean(token);

// Stores a token. Refuses characters that a field of an HTTP request cannot contain.
export function useToken(typed) {
  if (!/^[\x21-\x7e]+$/.test(typed)) return false;
  token = typed;
  sessionStorage.setItem(KEY, token);
  return true;
}

export function forgetToken() {
  token = undefined;
  sessionStorage.removeItem(KEY);
}

export async function ask(path, body) {
  const options = { headers: { Authorization: `Bearer ${token}` }, cache: "no-store", credentials: "omit", redirect: "error" };
  if (body) Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  if (body) options.headers["Content-Type"] = "application/json";
  const answer = await fetch(path, options);
  const value = await answer.json();
  if (!answer.ok) throw new Refused(answer.status, value.error);
  return value;
}
