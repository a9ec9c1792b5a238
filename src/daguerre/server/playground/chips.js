// Lists of small things that can be removed.

export function showChips(list, words, onRemove) {
  list.replaceChildren(...words.map((text, index) => {
    const item = document.createElement("li");
    const remove = document.createElement("button");
    remove.type = "button";
    remove.textContent = "×";
    remove.setAttribute("aria-label", `Remove ${text}`);
    remove.addEventListener("click", () => {
      onRemove(index);
      (list.querySelectorAll("button")[index] ?? list.closest("section, details, fieldset")?.querySelector("input, textarea, button"))?.focus();
    });
    item.append(text, remove);
    return item;
  }));
}
