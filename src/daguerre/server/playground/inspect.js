// The candidates of one position, and what can be done with it.

import { candidates } from "./client.js";
import { percent, visible } from "./canvas.js";
import { button, element } from "./elements.js";

export class Inspector {
  // onUse(place, text): have this text at the place
  constructor(page, onUse) {
    this.page = page;
    this.onUse = onUse;
    page.closeCandidates.addEventListener("click", () => this.close());
  }

  close() {
    this.asking?.abort();
    if (!this.page.candidates.hidden) this.origin?.focus();
    this.page.candidates.hidden = true;
  }

  // Ask for the candidates of a position of a recording after its first `num` steps.
  async show(recording, num, gap, position) {
    this.asking?.abort();
    this.asking = new AbortController();
    this.origin = document.activeElement;
    const { signal } = this.asking;
    const { page } = this;
    page.candidatesHeading.textContent = `Candidates of position ${position}`;
    page.candidatesAbout.textContent = "Asking…";
    page.candidateList.replaceChildren();
    page.candidates.hidden = false;
    const body = { id: recording.head.id, gap, position, top: 8 };
    if (num > 0) body.event = num - 1;
    try {
      const answer = await candidates(body, signal);
      this.fill(answer, { recording, gap, position });
      page.candidatesHeading.focus();
    } catch (error) {
      if (error.name !== "AbortError") page.candidatesAbout.textContent = error.message;
    }
  }

  fill(answer, place) {
    const { page } = this;
    const drawn = answer.drawn;
    const was = drawn ? `It has “${word(drawn)}”, number ${drawn.rank + 1} with ${percent(drawn.probability)}. ` : "It is open. ";
    page.candidatesAbout.textContent = `${was}These are the model's tokens for it, given all others (entropy ${answer.entropy.toFixed(2)} nats, one forward).`;
    page.candidateList.replaceChildren(...answer.candidates.map((one) => this.line(one, place, drawn)));
  }

  line(one, place, drawn) {
    const bar = element("span", "bar");
    bar.style.setProperty("--share", `${(100 * one.probability).toFixed(1)}%`);
    bar.setAttribute("aria-hidden", "true");
    const parts = [element("code", "", word(one)), bar, element("span", "number", percent(one.probability))];
    if (!one.special) {
      parts.push(button("small", "Pin", () => this.onUse(place, one.text)));
      parts[3].setAttribute("aria-label", `Pin “${word(one)}” at position ${place.position}`);
    }
    return element("li", drawn && drawn.id === one.id ? "is-drawn" : "", ...parts);
  }
}

function word(one) {
  if (one.special) return one.special === "end" ? "end of the text" : "special token";
  return visible(one.text);
}
