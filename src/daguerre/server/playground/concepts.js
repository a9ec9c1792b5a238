// The concepts of a text that was written: colors of its tokens, the parts of one token's logit, and the lines.

import { visible } from "./canvas.js";
import { button, element } from "./elements.js";
import { signed } from "./explanation.js";

const MOST = { known: 8, discovered: 5 }; // of the concepts of a token that are listed; the others are added up
const LISTED = 40; // concepts to color by
const percent = (value) => `${Math.round(100 * value)}%`;

export class Concepts {
  // onPaint(): show the drafts again; onCandidates(pane, gap, position); catalog(model): facts of concepts by number
  constructor(page, { onPaint, onCandidates, catalog }) {
    Object.assign(this, { page, onPaint, onCandidates, catalog, by: "known", about: new Map() });
    page.colorBy.addEventListener("change", () => this.color(page.colorBy.value));
    page.tokenCandidates.addEventListener("click", () => this.onCandidates(this.pane, ...this.place));
  }

  clear() {
    this.pane = null;
    for (const part of [this.page.concepts, this.page.colorByLabel, this.page.heatLegend]) part.hidden = true;
    this.page.confidenceLegend.hidden = false;
  }

  // Show the concepts of runs that are done, as far as they were asked for.
  async begin(panes) {
    this.panes = panes.filter((pane) => pane.recording.explanation);
    if (!this.panes.length) return;
    this.show(this.panes[0]);
    const { model } = this.pane.recording.head;
    this.about = await this.catalog(model);
    if (this.pane) this.show(this.pane);
  }

  // Whether a token of a pane is explained as it is shown now.
  explains(pane, gap, position) {
    return Boolean(this.pane && pane.over && pane.recording.explanation?.at(gap, position));
  }

  show(pane) {
    const { page } = this;
    const explanation = (this.explanation = pane.recording.explanation);
    if (this.pane !== pane) this.place = null;
    this.pane = pane;
    const { known, all } = explanation.sharesOf(explanation.tokens);
    const num = explanation.tokens.filter((token) => token.asked).length;
    page.conceptsHeading.textContent = this.panes.length > 1 ? `Concepts of ${pane.title}` : "Concepts";
    page.conceptsAbout.textContent = `${num} tokens: ${percent(known)} of a logit goes through named concepts, ${percent(all)} through all. The parts add up to the logits within ${explanation.error.toFixed(6)}.`;
    page.concepts.hidden = page.colorByLabel.hidden = false;
    this.showChoices();
    this.showTop();
    this.showLines();
    this.showToken();
    this.color(this.by);
  }

  showChoices() {
    const { page, explanation } = this;
    const group = element("optgroup");
    group.label = "one concept, in logits";
    const numbers = new Set(explanation.top(explanation.tokens, LISTED).map((one) => String(one.number)));
    if (/^\d+$/.test(this.by)) numbers.add(this.by);
    group.append(...[...numbers].map((number) => new Option(explanation.nameOf(number), number)));
    page.colorBy.replaceChildren(new Option("confidence", ""), new Option("share of named concepts", "known"), new Option("share of all concepts", "all"), group);
  }

  // Color the tokens: by confidence where `by` is empty.
  color(by) {
    const { page } = this;
    this.by = String(by);
    if (this.by && ![...page.colorBy.options].some((one) => one.value === this.by)) page.colorBy.lastChild.append(new Option(this.explanation.nameOf(by), by));
    page.colorBy.value = this.by;
    for (const pane of this.panes) pane.heat = this.by ? (gap, position) => heatAt(pane, gap, position, this.by) : null;
    page.confidenceLegend.hidden = Boolean(this.by);
    page.heatLegend.hidden = !this.by;
    const share = this.by === "known" || this.by === "all";
    const most = share ? 0 : this.explanation.most(this.by);
    page.heatLegend.querySelector(".lowers").hidden = share;
    page.heatLow.textContent = share ? "0%" : signed(-most);
    page.heatHigh.textContent = share ? "100% of the logit" : `${signed(most)} logits`;
    for (const button of page.concepts.querySelectorAll("[data-number]")) button.setAttribute("aria-pressed", String(button.dataset.number === this.by));
    this.onPaint();
  }

  showTop() {
    const { page, explanation } = this;
    const top = explanation.top(explanation.tokens, 10);
    const scale = { low: 0, high: Math.max(TINY, ...top.map((one) => one.share)) };
    page.topConcepts.replaceChildren(...top.map((one) => this.row(one.number, one.share, percent(one.share), scale)));
  }

  showLines() {
    const { page, explanation } = this;
    page.conceptLines.replaceChildren(...explanation.lines(3).map((line) => {
      const head = element("th", "number", line.number);
      head.scope = "row";
      const shares = [line.shares.known, line.shares.all].map((share) => element("td", "number", percent(share)));
      const largest = line.top.map((one) => this.button(one.number, ` ${percent(one.share)}`));
      return element("tr", "", head, element("td", "code", line.text), ...shares, element("td", "largest", ...largest));
    }));
  }

  // Show a token: the one that was chosen last, where none is named.
  token(pane, gap, position) {
    if (pane !== this.pane) this.show(pane);
    this.place = [gap, position];
    for (const one of this.panes) one.view.marked = one === pane ? `${gap}:${position}` : "";
    this.showToken();
    this.color(this.by);
    this.page.tokenPanel.scrollIntoView({ block: "nearest" });
  }

  showToken() {
    const { page, explanation, place } = this;
    const token = place && explanation.at(...place);
    page.tokenCandidates.hidden = !token;
    page.tokenHeading.textContent = token ? `Token ${place[1]}: “${visible(token.text)}”` : "A token";
    if (!token?.asked) {
      page.tokenAbout.textContent = token ? "The model was not asked for this token: it was pinned, kept, or the only one possible." : "Choose a token of the draft.";
      page.tokenParts.replaceChildren();
      return;
    }
    page.tokenAbout.textContent = sentence(token);
    page.tokenParts.replaceChildren(...this.parts(token));
  }

  parts(token) {
    const scale = scaleOf([token.known, token.discovered, token.residual, token.steering, token.banned, token.bias, ...token.concepts.map((one) => one.part)]);
    const out = [];
    for (const [kind, name] of [["known", "Named concepts"], ["discovered", "Discovered concepts"]]) {
      const inside = token.concepts.filter((one) => one.part !== 0 && (one.number < this.explanation.numKnown) === (kind === "known"));
      const rest = inside.slice(MOST[kind]);
      out.push(total(name, token[kind], scale));
      for (const one of inside.slice(0, MOST[kind])) out.push(this.row(one.number, one.part, signed(one.part), scale, one.steered));
      if (rest.length) out.push(line(element("span", "part-name", `${rest.length} more`), rest.reduce((all, one) => all + one.part, 0), scale));
    }
    out.push(total("Residual", token.residual, scale, "rest"));
    if (token.steering) out.push(total("Due to steering", token.steering, scale));
    if (token.banned) out.push(total("Forbidden concepts", token.banned, scale));
    if (token.bias) out.push(total("Bias", token.bias, scale, "rest"));
    return out;
  }

  row(number, value, words, scale, steered = 0) {
    return line(this.button(number, steered ? " steered" : ""), value, scale, words);
  }

  // A concept's name, which colors the text by it.
  button(number, more = "") {
    const made = button("part-name", this.explanation.nameOf(number), () => this.color(String(number) === this.by ? "known" : number));
    made.dataset.number = number;
    made.setAttribute("aria-pressed", String(String(number) === this.by));
    const known = this.about.get(number);
    made.title = known ? [known.group, known.description].filter(Boolean).join(": ") : "";
    if (more) made.append(element("small", "", more));
    return made;
  }
}

const TINY = 1e-9;

function heatAt(pane, gap, position, by) {
  const { explanation } = pane.recording;
  const token = explanation.at(gap, position);
  return token ? explanation.heat(token, by) : undefined;
}

function scaleOf(values) {
  return { low: Math.max(0, ...values.map((value) => -value)), high: Math.max(TINY, ...values) };
}

function sentence(token) {
  const parts = [["named", token.known], ["discovered", token.discovered], ["residual", token.residual], ["forbidden", token.banned], ["bias", token.bias]];
  const said = parts.filter(([name, value]) => value || name === "named").map(([name, value]) => `${signed(value)} ${name}`);
  return `Logit ${token.logit.toFixed(2)} = ${said.join(" ")}`;
}

function total(name, value, scale, kind = "") {
  const made = line(element("strong", "part-name", name), value, scale, signed(value), kind);
  made.classList.add("total");
  return made;
}

function line(name, value, scale, words = signed(value), kind = value < 0 ? "lowers" : "raises") {
  const whole = scale.low + scale.high;
  const size = (100 * Math.abs(value)) / whole;
  const zero = (100 * scale.low) / whole;
  const bar = element("i", kind || (value < 0 ? "lowers" : "raises"));
  const track = element("span", "track", bar);
  track.setAttribute("aria-hidden", "true");
  track.style.setProperty("--zero", `${zero}%`);
  bar.style.setProperty("--left", `${value < 0 ? zero - size : zero}%`);
  bar.style.setProperty("--size", `${size}%`);
  return element("li", "", name, track, element("span", "number", words));
}
