// Lists of small things that can be removed.

import { button, element } from "./elements.js";

export function showChips(list, words, onRemove) {
  list.replaceChildren(...words.map((text, index) => {
    const remove = button("", "×", () => {
      onRemove(index);
      (list.querySelectorAll("button")[index] ?? list.closest("section, details, fieldset")?.querySelector("input, textarea, button"))?.focus();
    });
    remove.setAttribute("aria-label", `Remove ${text}`);
    return element("li", "", text, remove);
  }));
}
