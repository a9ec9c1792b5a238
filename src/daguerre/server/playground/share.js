// The state of the page in its address, behind the "#": it is never sent to the server.

import { START, fresh } from "./request.js";

export function encoded(state) {
  const changed = Object.entries(state).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(START[name]));
  const bytes = new TextEncoder().encode(JSON.stringify(Object.fromEntries(changed)));
  const binary = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

// The state of an address; null where there is none, or it is damaged.
export function decoded(fragment) {
  const found = /^#?s=([\w-]+)$/.exec(fragment);
  if (!found) return null;
  try {
    const binary = atob(found[1].replaceAll("-", "+").replaceAll("_", "/"));
    const bytes = Uint8Array.from(binary, (character) => character.charCodeAt(0));
    return checkedState(JSON.parse(new TextDecoder().decode(bytes)));
  } catch {
    return null;
  }
}

// Only what the page knows, and of the right type: an address may come from anybody.
function checkedState(value) {
  const state = fresh();
  for (const [name, first] of Object.entries(START)) {
    const given = value[name];
    if (given === undefined || typeof given !== typeof first || Array.isArray(given) !== Array.isArray(first)) continue;
    state[name] = given;
  }
  state.pins = state.pins.filter((pin) => typeof pin?.text === "string" && Number.isInteger(Number(pin.at)));
  const kinds = { add: "number", suppress: "number", forbid: "undefined" };
  state.steer = state.steer.filter((one) => typeof one?.concept === "string" && Object.hasOwn(kinds, one.kind) && typeof one.strength === kinds[one.kind]);
  state.spans = state.spans.filter((span) => Array.isArray(span) && span.length === 2 && span.every(Number.isInteger));
  return state;
}

export function link(state) {
  return `${location.origin}${location.pathname}#s=${encoded(state)}`;
}
