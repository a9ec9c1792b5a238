// The form: what is typed goes into the state, and a state into the form.

import { examplesOf } from "./examples.js";
import { fresh, parsedSchema } from "./request.js";
import { showChips } from "./chips.js";
import { possible, showSettings } from "./settings.js";

const RULES = { schema: "JSON Schema", regex: "Regular expression", choices: "Texts, one a line" };
const HINTS = { schema: "JSON of a schema", regex: "a regular expression", choices: "one of several texts" };

export class Form {
  // onChange(state) after every change
  constructor(root, page, onChange) {
    this.root = root;
    this.page = page;
    this.onChange = onChange;
    this.state = fresh();
    this.models = [];
    root.addEventListener("input", (event) => this.typed(event.target));
    page.compare.addEventListener("change", () => this.set({ compare: page.compare.checked }));
    page.pinAdd.addEventListener("click", () => this.addPin());
    page.pinText.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.addPin();
    });
    page.markSpan.addEventListener("click", () => this.markSpan());
    page.example.addEventListener("change", () => {
      const values = examplesOf(this.facts)[page.example.value];
      if (values) this.load({ ...fresh(values), model: this.state.model });
    });
  }

  // What is known of the models.
  setModels(models) {
    this.models = models;
  }

  get facts() {
    return this.models.find((one) => one.id === this.state.model);
  }

  // Show what the model has, and leave out of the settings what it has not.
  fit() {
    const { state, facts, page } = this;
    for (const letter of ["a", "b"]) state[letter] = possible(state[letter], facts);
    const chosen = page.example.value;
    page.example.replaceChildren(new Option("Choose…", ""), ...Object.keys(examplesOf(facts)).map((name) => new Option(name, name)));
    page.example.value = chosen in examplesOf(facts) ? chosen : "";
    const gaps = facts?.daguerre?.gaps;
    for (const kind of ["infill", "fill", "edit"]) {
      const told = kind === "edit" && facts?.daguerre?.chat_template;
      this.root.querySelector(`[name=kind][value=${kind}]`).closest("label").hidden = gaps === "none" && !told;
    }
    const told = state.kind === "edit" && facts?.daguerre?.chat_template;
    if (gaps === "none" && !told && state.kind !== "generate") state.kind = "generate";
  }

  set(values) {
    Object.assign(this.state, values);
    this.show();
    this.onChange(this.state);
  }

  load(state) {
    this.state = state;
    this.page.shape.open = false; // unless it has something
    this.show();
    this.onChange(state);
  }

  typed(target) {
    const { field } = target.dataset;
    if (target.name === "kind") this.state.kind = target.value;
    else if (field === "model") return this.set({ model: target.value });
    else if (field) this.state[field] = target.type === "checkbox" ? target.checked : target.value;
    else return undefined;
    if (field === "text") this.state.spans = [];
    this.showParts();
    return this.onChange(this.state);
  }

  show() {
    this.fit();
    const { state, root } = this;
    for (const control of root.querySelectorAll("[data-field]")) {
      if (control.type === "checkbox") control.checked = state[control.dataset.field];
      else control.value = state[control.dataset.field];
    }
    for (const radio of root.querySelectorAll("[name=kind]")) radio.checked = radio.value === state.kind;
    this.page.compare.checked = state.compare;
    const settings = state.compare ? { a: state.a, b: state.b } : { a: state.a };
    showSettings(this.page.settings, settings, this.facts, () => this.onChange(state));
    if (state.constraint || state.pins.length) this.page.shape.open = true;
    this.showParts();
  }

  // What depends on other fields.
  showParts() {
    const { state, page, root } = this;
    for (const part of root.querySelectorAll("[data-kind]")) part.hidden = part.dataset.kind !== state.kind;
    page.changeable.disabled = state.kind === "fill" || state.kind === "edit";
    page.maxTokens.disabled = state.kind === "edit";
    page.ruleLabel.hidden = !state.constraint;
    page.ruleName.textContent = RULES[state.constraint] ?? "";
    const shaped = [HINTS[state.constraint], state.pins.length && `${state.pins.length} pinned`].filter(Boolean);
    page.shapeSummary.textContent = shaped.join(", ");
    page.ruleError.textContent = this.ruleProblem();
    const named = state.pins.map((pin) => `“${pin.text}” at ${pin.at}`);
    showChips(page.pins, named, (index) => this.set({ pins: state.pins.filter((_, i) => i !== index) }));
    const marked = state.spans.map(([start, end]) => `“${state.text.slice(start, end)}”`);
    showChips(page.spans, marked, (index) => this.set({ spans: state.spans.filter((_, i) => i !== index) }));
  }

  ruleProblem() {
    if (this.state.constraint !== "schema" || !this.state.rule.trim()) return "";
    try {
      parsedSchema(this.state.rule);
      return "";
    } catch (error) {
      return error.message;
    }
  }

  addPin() {
    const { pinText, pinAt } = this.page;
    if (!pinText.value) return pinText.focus();
    this.pin({ text: pinText.value, at: Number(pinAt.value) });
    pinText.value = "";
    return pinText.focus();
  }

  // A pin in place of those at the same position.
  pin(pin) {
    const others = this.state.pins.filter((one) => Number(one.at) !== pin.at || (one.gap ?? 0) !== (pin.gap ?? 0));
    this.set({ pins: [...others, pin].sort((a, b) => a.at - b.at) });
  }

  markSpan() {
    const { selectionStart: start, selectionEnd: end } = this.page.text;
    if (start === end) return this.page.text.focus();
    const apart = this.state.spans.filter(([a, b]) => b < start || a > end);
    return this.set({ spans: [...apart, [start, end]].sort((a, b) => a[0] - b[0]) });
  }
}
