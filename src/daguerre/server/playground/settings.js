// How to decode: the fields of one setting, or of two that are compared.

import { element } from "./elements.js";
import { OPTIONS } from "./options.js"; // which the server makes of its table of options

const EMPTY = { mode: "automatic", policy: "default", effort: "not set" };

const FIELDS = Object.entries(OPTIONS).map(([name, { values, ...rest }]) => {
  const label = (name[0].toUpperCase() + name.slice(1)).replace("_", " ");
  return { name, label, ...rest, ...(values ? { options: ["", ...values], empty: EMPTY[name] } : {}) };
});

function control(field, letter, value) {
  const made = element(field.options ? "select" : "input");
  if (field.options) {
    for (const option of field.options) made.add(new Option(option || field.empty, option));
  } else {
    Object.assign(made, { type: "number", step: field.step, placeholder: "default" });
    if (field.min !== undefined) made.min = field.min;
    if (field.max !== undefined) made.max = field.max;
  }
  Object.assign(made, { id: `${letter}-${field.name}`, title: field.help, value: value ?? "" });
  made.dataset.setting = field.name;
  return element("label", "", `${field.label} `, made);
}

const OF_MASKS = ["policy", "effort", "block_size", "steps", "threshold"];

// The fields that a model has, with its modes; without facts, of a model that is not loaded, all.
function fieldsOf(facts) {
  const modes = facts?.daguerre?.modes;
  if (!modes) return FIELDS;
  const denoises = modes.some((mode) => !["ar", "speculative", "fim", "beam"].includes(mode));
  return FIELDS.filter(({ name }) => denoises || !OF_MASKS.includes(name))
    .map((field) => (field.name === "mode" ? { ...field, options: ["", ...modes] } : field));
}

// A setting without what a model does not have.
export function possible(setting, facts) {
  const fields = fieldsOf(facts);
  const kept = Object.entries(setting).filter(([name, value]) =>
    fields.some((field) => field.name === name && (name !== "mode" || field.options.includes(value))));
  return Object.fromEntries(kept);
}

// Show the fields of the settings: an object for each letter, which is changed as the user types.
export function showSettings(root, settings, facts, onChange) {
  root.replaceChildren();
  const fields = fieldsOf(facts);
  const letters = Object.keys(settings);
  for (const letter of letters) {
    const legend = letters.length > 1 ? element("legend", "", `Setting ${letter.toUpperCase()}`) : element("legend", "hidden", "Setting");
    const controls = fields.map((field) => control(field, letter, settings[letter][field.name]));
    const group = element("fieldset", "", legend, ...controls);
    group.addEventListener("input", (event) => {
      const { setting } = event.target.dataset;
      settings[letter][setting] = event.target.value;
      if (event.target.value === "") delete settings[letter][setting];
      onChange();
    });
    root.append(group);
  }
}

// The options of `daguerre.Decode`, and the effort, of one setting.
export function optionsOf(setting) {
  const options = {};
  for (const { name, options: words } of FIELDS) {
    if (name === "effort" || setting[name] === undefined) continue;
    options[name] = words ? setting[name] : Number(setting[name]);
  }
  return { options, ...(setting.effort ? { effort: setting.effort } : {}) };
}

// One line about a setting.
export function nameOf(setting) {
  const words = Object.entries(setting).map(([name, value]) => (name === "mode" || name === "policy" ? value : `${name.replace("_", " ")} ${value}`));
  return words.join(", ") || "automatic";
}
