// Concepts in the request: whether its tokens are explained, and the operations that steer it.

import { concepts } from "./client.js";
import { showChips } from "./chips.js";

const STRENGTHS = { add: "4", suppress: "1", forbid: "" };
const NO_HEADS = "This model has no concept heads, so nothing can be explained or steered. Serve one that has: daguerre serve --model concepts.";

export class Steer {
  constructor(page, form) {
    Object.assign(this, { page, form, models: new Map(), catalogs: new Map() });
    page.steerAdd.addEventListener("click", () => this.add());
    page.steerConcept.addEventListener("focus", () => this.listNames());
    page.steerConcept.addEventListener("input", () => this.describe());
    page.steerKind.addEventListener("change", () => this.showKind());
    for (const field of [page.steerConcept, page.steerStrength]) {
      field.addEventListener("keydown", (event) => {
        if (event.key !== "Enter") return;
        event.preventDefault();
        this.add();
      });
    }
    this.showKind();
  }

  // The models of the server, with what it says about their concepts.
  setModels(facts) {
    this.models = new Map(facts.map((one) => [one.id, one.concepts]));
    this.catalogs.clear();
  }

  // The concepts of a model by number; none where it has none, or cannot be asked.
  catalog(model) {
    if (!this.catalogs.has(model)) {
      const asked = concepts(model).then((answer) => new Map(answer.data.map((one) => [one.number, one])));
      this.catalogs.set(model, asked.catch((error) => this.without(model, error)));
    }
    return this.catalogs.get(model);
  }

  without(model, error) {
    if (error.status === 400) this.models.set(model, null);
    else this.catalogs.delete(model);
    this.show(this.form.state);
    return new Map();
  }

  // What depends on the model, and on the state.
  show(state) {
    const { page } = this;
    const none = this.models.get(state.model) === null;
    const words = [state.explain && "explained", state.steer.length && `${state.steer.length} steered`].filter(Boolean).join(", ");
    page.explain.disabled = none && !state.explain;
    page.steering.disabled = none && !state.steer.length;
    page.conceptsWhy.textContent = none ? NO_HEADS : "";
    page.conceptsSummary.textContent = words || (none ? "not with this model" : "");
    page.exactly.hidden = !state.steer.some((one) => one.kind === "forbid");
    const named = state.steer.map(({ kind, concept, strength }) => [kind, concept, strength].filter((word) => word !== undefined).join(" "));
    showChips(page.steers, named, (index) => this.form.set({ steer: state.steer.filter((_, i) => i !== index) }));
    if (this.listed !== undefined && this.listed !== state.model) this.forget();
  }

  forget() {
    this.listed = undefined;
    this.known = new Map();
    this.page.steerNames.replaceChildren();
    this.describe();
  }

  async listNames() {
    const { model } = this.form.state;
    if (this.listed === model || this.models.get(model) === null) return;
    const found = await this.catalog(model);
    if (this.form.state.model !== model) return;
    this.listed = model;
    this.known = new Map([...found.values()].map((one) => [one.name, one]));
    this.page.steerNames.replaceChildren(...[...this.known.keys()].sort().map((name) => new Option("", name)));
    this.describe();
  }

  describe() {
    const one = this.known?.get(this.page.steerConcept.value.trim());
    this.page.steerAbout.textContent = one ? [one.group, one.description].filter(Boolean).join(": ") : "";
    this.page.steerAbout.classList.remove("wrong");
  }

  showKind() {
    const { steerKind, steerStrength } = this.page;
    steerStrength.disabled = steerKind.value === "forbid";
    steerStrength.placeholder = STRENGTHS[steerKind.value];
    steerStrength.value = "";
  }

  add() {
    const { page, form } = this;
    const [concept, kind] = [page.steerConcept.value.trim(), page.steerKind.value];
    if (!concept) return page.steerConcept.focus();
    if (this.known?.size && !this.known.has(concept) && !/^((known|discovered) )?\d+$/.test(concept)) {
      page.steerAbout.textContent = `This model has no concept “${concept}”: choose one of the list, or write “discovered 17”.`;
      page.steerAbout.classList.add("wrong");
      return page.steerConcept.focus();
    }
    const strength = kind === "forbid" ? {} : { strength: Number(page.steerStrength.value || STRENGTHS[kind]) };
    const others = form.state.steer.filter((one) => one.concept !== concept);
    form.set({ steer: [...others, { kind, concept, ...strength }] });
    page.steerConcept.value = page.steerStrength.value = "";
    this.describe();
    return page.steerConcept.focus();
  }
}
