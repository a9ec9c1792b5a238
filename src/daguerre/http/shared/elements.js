// Elements of a page. What is said goes into them as text, never as markup.

export const $ = (id) => document.getElementById(id);

export function element(name, className = "", ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

export function button(className, words, act) {
  const made = element("button", className, words);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}
