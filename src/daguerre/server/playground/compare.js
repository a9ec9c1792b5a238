// Two runs in a table, with bars for their times.

import { element } from "./elements.js";

const ROWS = [
  ["Time", (one) => one.result.seconds, (value) => `${value.toFixed(2)} s`, "less"],
  ["Forwards", (one) => one.result.usage.forwards, String, "less"],
  ["Tokens", (one) => one.result.usage.completion_tokens, String, ""],
  ["Tokens a forward", (one) => one.result.usage.tokens_per_forward, (value) => value.toFixed(2), "more"],
  ["Tokens a second", (one) => one.result.usage.completion_tokens / one.result.seconds, (value) => value.toFixed(0), "more"],
  ["Mean probability", meanProbability, (value) => (Number.isNaN(value) ? "–" : `${(100 * value).toFixed(0)}%`), "more"],
];

function meanProbability(recording) {
  const known = recording.result.tokens.filter((token) => token.logprob !== null);
  return known.reduce((sum, token) => sum + Math.exp(token.logprob), 0) / known.length;
}

function heading(text, scope) {
  return Object.assign(element("th", "", text), { scope });
}

function bar(share) {
  const made = element("span", "bar");
  made.style.setProperty("--share", `${Math.round(100 * share)}%`);
  made.setAttribute("aria-hidden", "true");
  return made;
}

export function showComparison(page, recordings) {
  const ready = recordings.length === 2 && recordings.every((one) => one.result);
  page.comparison.hidden = !ready;
  if (!ready) return;
  const names = recordings.map((one, index) => heading(`${"AB"[index]}: ${one.name}`, "col"));
  const head = element("tr", "", element("td"), ...names);
  page.comparison.querySelector("thead").replaceChildren(head);
  page.comparison.querySelector("tbody").replaceChildren(...ROWS.map((row) => line(row, recordings)));
  page.verdict.textContent = verdict(recordings);
}

function line([name, value, words, better], recordings) {
  const values = recordings.map(value);
  const best = better === "less" ? Math.min(...values) : Math.max(...values);
  const kind = (one) => (better && one === best && values[0] !== values[1] ? "best" : "");
  const cells = values.map((one) => element("td", kind(one), words(one), bar(one / Math.max(...values))));
  return element("tr", "", heading(name, "row"), ...cells);
}

function verdict([a, b]) {
  const same = a.text === b.text;
  const words = same ? "The same text." : "The texts differ.";
  const ratio = a.result.seconds / b.result.seconds;
  if (ratio > 0.97 && ratio < 1.03) return `Equally fast. ${words}`;
  const [fast, times] = ratio > 1 ? ["B", ratio] : ["A", 1 / ratio];
  return `${fast} was ${times.toFixed(1)} times as fast. ${words} They ran one after the other.`;
}
