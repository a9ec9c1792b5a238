// The draft of each run, with its numbers.

import { DraftView, described, percent, visible } from "./canvas.js";
import { element } from "./elements.js";
import { checked } from "./request.js";

export class Pane {
  constructor(root, template, handlers) {
    this.root = template.content.firstElementChild.cloneNode(true);
    root.append(this.root);
    this.view = new DraftView(this.root.querySelector(".canvas"), {
      onPick: (gap, position) => handlers.onPick(this, gap, position),
      onSelect: (selected) => handlers.onSelect(this, selected),
    });
    this.num = 0;
    this.heat = null; // of a text that is done, (gap, position) => {value, words}: what its tokens are colored by
  }

  // Whether the whole text is shown.
  get over() {
    return Boolean(this.recording.result) && this.num >= this.recording.steps.length;
  }

  begin(recording, state, title) {
    this.recording = recording;
    this.state = state;
    this.title = title;
    this.root.querySelector(".pane-name").textContent = title;
    this.root.querySelector(".canvas").setAttribute("aria-label", title ? `Draft, ${title}` : "Draft");
  }

  show(seconds) {
    const { recording } = this;
    if (!recording?.head) return;
    this.num = recording.stepsAt(seconds);
    this.view.heat = this.over ? this.heat : null;
    this.view.show(recording, this.num);
    const stats = recording.stats(this.num);
    this.stat("forwards", stats.forwards);
    this.stat("tokens", stats.tokens);
    this.stat("rate", stats.rate.toFixed(2));
    this.stat("time", `${stats.seconds.toFixed(2)} s`);
    this.stat("mode", recording.head.mode);
    this.showCheck();
  }

  stat(name, value) {
    this.root.querySelector(`[data-stat=${name}]`).textContent = value;
  }

  showCheck() {
    const { recording } = this;
    const place = this.root.querySelector(".check-result");
    const found = this.over ? checked(this.state, recording.result.texts) : null;
    const words = found ? `${found.right ? "✓" : "✗"} ${found.words}` : "";
    if (place.textContent !== words) place.textContent = words;
    place.classList.toggle("wrong", Boolean(found && !found.right));
  }

  // The same as a table, for those who do not see colors.
  rows() {
    const tokens = this.recording?.head ? this.recording.board(this.num).flat() : [];
    return tokens.filter((token) => token.state !== "drawn" || token.text).map((token) => {
      const drawn = token.state === "drawn";
      const text = token.state === "open" ? "" : token.state === "end" ? "(end)" : visible(token.text);
      const cells = [token.position, text, token.final && token.state !== "end" ? `${token.state}, final` : token.state,
        drawn ? token.step + 1 : "", drawn ? percent(token.probability) : ""];
      const row = element("tr", "", ...cells.map((words) => element("td", "", words)));
      row.title = described(token);
      return row;
    });
  }

  remove() {
    this.view.select(null);
    this.root.remove();
  }
}
