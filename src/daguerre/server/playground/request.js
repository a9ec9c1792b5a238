// The state of the page, and the request that it stands for.

import { optionsOf } from "./settings.js";

export const START = {
  model: "", kind: "generate", prompt: "class Config:\n    def __init__(self, name, value=None):\n        self.name = name\n        ", prefix: "", suffix: "", template: "", text: "", spans: [], instruction: "",
  max_tokens: "6", timeout: "", changeable: false, constraint: "", rule: "", pins: [], compare: false,
  explain: false, steer: [], forbid_exactly: false,
  a: { mode: "block", block_size: "48", threshold: "0.5" }, b: { mode: "block", policy: "confidence", steps: "8" },
};

export function fresh(values = {}) {
  return { ...structuredClone(START), ...structuredClone(values) };
}

export class FormError extends Error {}

// The server counts characters; JavaScript counts the halves of those beyond the basic plane.
export function characters(text, index) {
  return Array.from(text.slice(0, index)).length;
}

const TEXTS = { generate: ["prompt"], infill: ["prefix", "suffix"], fill: ["template"], edit: ["text"] };

function constraint(state) {
  if (!state.constraint || !state.rule.trim()) return {};
  if (state.constraint === "choices") return { choices: state.rule.split("\n").filter((line) => line) };
  if (state.constraint === "regex") return { regex: state.rule.trim() };
  return { schema: parsedSchema(state.rule) };
}

export function parsedSchema(rule) {
  try {
    return JSON.parse(rule);
  } catch (error) {
    throw new FormError(`The schema is not JSON yet: ${error.message}.`);
  }
}

// What is explained and steered: concepts are forbidden after all else.
export function conceptOptions(state) {
  const changed = state.steer.filter((one) => one.kind !== "forbid");
  const forbid = state.steer.filter((one) => one.kind === "forbid").map((one) => one.concept);
  const steer = changed.map(({ kind, concept, strength }) => ({ kind, concepts: [concept], strength }));
  return {
    ...(state.explain ? { explain: true } : {}),
    ...(steer.length ? { steer } : {}),
    ...(forbid.length ? { forbid } : {}),
    ...(forbid.length && state.forbid_exactly ? { forbid_exactly: true } : {}),
  };
}

// The body of a request with one of the settings, "a" or "b". FormError says what is missing.
export function bodyOf(state, letter) {
  const { options, effort } = optionsOf(state[letter]);
  const body = { kind: state.kind };
  if (state.model) body.model = state.model;
  for (const name of TEXTS[state.kind]) body[name] = state[name];
  if (state.kind === "fill" && !state.template.includes("<gap>")) throw new FormError("The template has no gap: write <gap> where text is to be filled in.");
  if (state.kind === "edit") {
    if (!state.spans.length) throw new FormError("Nothing is marked: select a part of the text and press “Rewrite the selected part”.");
    body.spans = state.spans.map((span) => span.map((index) => characters(state.text, index)));
  }
  if (state.max_tokens && state.kind !== "edit") body.max_tokens = Number(state.max_tokens);
  if (state.timeout) body.timeout = Number(state.timeout);
  if (effort) body.effort = effort;
  if (state.changeable && (state.kind === "generate" || state.kind === "infill")) body.changeable = true;
  const pins = state.pins.map((pin) => ({ text: pin.text, at: Number(pin.at), ...(pin.gap ? { gap: pin.gap } : {}) }));
  body.options = { ...options, ...constraint(state), ...(pins.length ? { pins } : {}), ...conceptOptions(state) };
  return body;
}

// Whether a text keeps the rule, as far as a browser can say; null where there is none.
export function checked(state, texts) {
  if (!state.constraint || !state.rule.trim()) return null;
  try {
    if (state.constraint === "schema") {
      texts.forEach((text) => JSON.parse(text));
      return { right: true, words: "Valid JSON" };
    }
    const kept = state.constraint === "regex"
      ? texts.every((text) => new RegExp(`^(?:${state.rule.trim()})$`, "su").test(text))
      : texts.every((text) => state.rule.split("\n").includes(text));
    return { right: kept, words: kept ? "Keeps the rule" : "Does not keep the rule" };
  } catch (error) {
    return { right: false, words: state.constraint === "schema" ? "Not valid JSON" : `Cannot be checked here: ${error.message}` };
  }
}
