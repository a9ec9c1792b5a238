// Runs before the page is drawn, so that a chosen theme does not flash. Storage may be forbidden: then nothing is kept.
"use strict";
const THEMES = ["auto", "light", "dark"];

function storedTheme() {
  try {
    const name = localStorage.getItem("daguerre-theme");
    return THEMES.includes(name) ? name : "auto";
  } catch {
    return "auto";
  }
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  const button = document.getElementById("theme");
  if (button) {
    button.textContent = `Theme: ${name}`;
    button.setAttribute("aria-label", `Color theme: ${name === "auto" ? "automatic" : name}`);
  }
  try {
    localStorage.setItem("daguerre-theme", name);
  } catch {
    // it holds for this page alone
  }
}

setTheme(storedTheme());
document.addEventListener("DOMContentLoaded", () => {
  setTheme(document.documentElement.dataset.theme);
  document.getElementById("theme").addEventListener("click", () => {
    const now = THEMES.indexOf(document.documentElement.dataset.theme);
    setTheme(THEMES[(now + 1) % THEMES.length]);
  });
});
