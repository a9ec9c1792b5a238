// The draft on the page: a text whose tokens are colored by how sure the model was. Elements are kept from step to step,
// so that the focus and a selection stay where they are.

import { element } from "./elements.js";

const MOST_OPEN = 160; // beyond, open positions at the end are counted in place of drawn

export function level(probability) {
  return Math.min(4, Math.floor(probability * 5));
}

export function percent(probability) {
  if (probability > 0 && probability < 0.005) return "<1%";
  return probability >= 0.995 && probability < 1 ? ">99%" : `${Math.round(probability * 100)}%`;
}

export function visible(text) {
  return text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣");
}

export function described(token) {
  const place = `position ${token.position}`;
  if (token.state === "open") return `${place}: open`;
  if (token.state === "end") return `${place}: end of the text`;
  const text = token.text.trim() ? `“${token.text.trim()}”` : token.text.includes("\n") ? "line break" : "space";
  if (token.state !== "drawn") return `${place}: ${text}, ${token.state}`;
  return `${place}: ${text}, ${percent(token.probability)}, forward ${token.step + 1}`;
}

export class DraftView {
  // onPick(gap, position) and onSelect({gap, start, end} or null)
  constructor(root, { onPick, onSelect }) {
    this.root = root;
    this.onPick = onPick;
    this.onSelect = onSelect;
    this.selected = null;
    this.heat = null;
    this.marked = ""; // the gap and position of the token that is explained
    this.focus = "0:0";
    root.addEventListener("click", (event) => this.clicked(event));
    root.addEventListener("keydown", (event) => this.typed(event));
    root.addEventListener("mousedown", () => this.pressed());
    document.addEventListener("selectionchange", () => this.selectionChanged());
  }

  show(recording, num) {
    const board = recording.board(num);
    const step = num > 0 ? recording.steps[num - 1]?.step : -1;
    if (this.recording !== recording) this.begin(recording, board.length);
    board.forEach((tokens, gap) => this.showGap(gap, tokens, step));
    this.root.setAttribute("aria-busy", String(recording.running));
    this.roving();
  }

  begin(recording, numGaps) {
    this.recording = recording;
    this.root.replaceChildren();
    this.gaps = [];
    this.select(null);
    this.focus = "0:0";
    for (let gap = 0; gap < numGaps; gap += 1) {
      const place = element("span", "gap");
      this.gaps.push(place);
      this.root.append(element("span", "given", recording.around[gap]), place);
    }
    this.root.append(element("span", "given", recording.around[numGaps] ?? ""));
  }

  showGap(gap, tokens, step) {
    const place = this.gaps[gap];
    const drawn = tokens.filter((token) => token.state === "open" || token.state === "end" || token.text);
    const lastFilled = drawn.findLastIndex((token) => token.state !== "open");
    const kept = drawn.slice(0, Math.max(lastFilled + 1, MOST_OPEN));
    while (place.children.length > kept.length) place.lastChild.remove();
    kept.forEach((token, index) => {
      const spot = place.children[index] ?? place.appendChild(tokenElement(gap));
      fillToken(spot, token, step, this.heat?.(gap, token.position));
      spot.classList.toggle("marked", this.marked === `${gap}:${token.position}`);
    });
    place.dataset.more = drawn.length > kept.length ? `  +${drawn.length - kept.length} open` : "";
  }

  tokens() {
    return [...this.root.querySelectorAll(".token")];
  }

  clicked(event) {
    const token = event.target.closest(".token");
    if (!token || !document.getSelection().isCollapsed) return;
    this.moveFocus(token, true);
    this.pick(token);
  }

  // Text cannot be selected from an element on that takes the focus: while the button is down, none does.
  pressed() {
    for (const token of this.root.querySelectorAll("[tabindex]")) token.removeAttribute("tabindex");
    document.addEventListener("mouseup", () => this.roving(), { once: true });
  }

  pick(token) {
    if (token.dataset.state !== "end") this.onPick(Number(token.dataset.gap), Number(token.dataset.position));
  }

  typed(event) {
    const all = this.tokens();
    const now = all.indexOf(event.target);
    if (now < 0) return;
    const to = { ArrowRight: now + 1, ArrowDown: now + 1, ArrowLeft: now - 1, ArrowUp: now - 1, Home: 0, End: all.length - 1 }[event.key];
    if (event.key === "Enter" || event.key === " ") this.pick(event.target);
    else if (event.key === "Escape") this.select(null);
    else if (to !== undefined && all[to]) {
      if (event.shiftKey) this.extend(event.target, all[to]);
      else this.select(null);
      this.moveFocus(all[to], true);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  moveFocus(token, take) {
    if (!token) return;
    this.focus = `${token.dataset.gap}:${token.dataset.position}`;
    this.roving();
    if (take) token.focus();
  }

  // One token alone is a stop of the Tab key; arrow keys move between tokens.
  roving() {
    const all = this.tokens();
    const now = all.find((token) => `${token.dataset.gap}:${token.dataset.position}` === this.focus) ?? all[0];
    for (const token of this.root.querySelectorAll("[tabindex]")) if (token !== now) token.removeAttribute("tabindex");
    if (now) now.tabIndex = 0;
  }

  extend(from, to) {
    const [a, b] = [Number(from.dataset.position), Number(to.dataset.position)];
    if (from.dataset.gap !== to.dataset.gap) return;
    if (!this.selected || this.selected.gap !== Number(from.dataset.gap)) this.anchor = a;
    this.select({ gap: Number(from.dataset.gap), start: Math.min(this.anchor, b), end: Math.max(this.anchor, b) + 1 });
  }

  selectionChanged() {
    const chosen = document.getSelection();
    if (chosen.isCollapsed || !chosen.rangeCount || !this.root.contains(chosen.anchorNode)) return;
    const range = chosen.getRangeAt(0);
    const inside = this.tokens().filter((token) => range.intersectsNode(token) && overlaps(range, token));
    const same = inside.filter((token) => token.dataset.gap === inside[0].dataset.gap);
    if (!same.length) return;
    const places = same.map((token) => Number(token.dataset.position));
    this.select({ gap: Number(same[0].dataset.gap), start: places[0], end: places.at(-1) + 1 });
  }

  select(selected) {
    this.selected = selected;
    for (const token of this.root.querySelectorAll(".token")) {
      const { gap, position } = token.dataset;
      const inside = selected && Number(gap) === selected.gap && position >= selected.start && position < selected.end;
      token.classList.toggle("selected", Boolean(inside));
    }
    this.onSelect(selected);
  }
}

// Whether a range has some of an element's text, not only its edge.
function overlaps(range, token) {
  const own = document.createRange();
  own.selectNodeContents(token);
  return range.compareBoundaryPoints(Range.END_TO_START, own) < 0 && range.compareBoundaryPoints(Range.START_TO_END, own) > 0;
}

function tokenElement(gap) {
  const made = element("span", "token");
  made.setAttribute("role", "button");
  made.dataset.gap = gap;
  return made;
}

function fillToken(spot, token, step, heat) {
  const text = token.state === "open" ? "░" : token.state === "end" ? "∎" : token.text;
  if (spot.textContent !== text) spot.textContent = text;
  const fresh = token.state === "drawn" && token.step === step;
  const selected = spot.classList.contains("selected");
  spot.className = `token ${token.state}${token.final ? " final" : ""}${fresh ? " fresh" : ""}${selected ? " selected" : ""}`;
  spot.dataset.position = token.position;
  spot.dataset.state = token.state;
  if (token.state === "drawn" && !heat) spot.dataset.level = level(token.probability);
  else delete spot.dataset.level;
  if (heat?.value) spot.dataset.heat = heat.value < 0 ? "lowers" : "raises";
  else delete spot.dataset.heat;
  spot.style.setProperty("--heat", Math.abs(heat?.value ?? 0).toFixed(3));
  const words = heat ? `${described(token)}, ${heat.words}` : described(token);
  spot.setAttribute("aria-label", words);
  spot.title = words;
}
