// Two runs in a table, with bars for their times.

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

function cell(tag, text, scope) {
  const made = document.createElement(tag);
  made.textContent = text;
  if (scope) made.scope = scope;
  return made;
}

function bar(share) {
  const made = document.createElement("span");
  made.className = "bar";
  made.style.setProperty("--share", `${Math.round(100 * share)}%`);
  made.setAttribute("aria-hidden", "true");
  return made;
}

export function showComparison(page, recordings) {
  const ready = recordings.length === 2 && recordings.every((one) => one.result);
  page.comparison.hidden = !ready;
  if (!ready) return;
  const head = document.createElement("tr");
  head.append(cell("td", ""), ...recordings.map((one, index) => cell("th", `${"AB"[index]}: ${one.name}`, "col")));
  page.comparison.querySelector("thead").replaceChildren(head);
  page.comparison.querySelector("tbody").replaceChildren(...ROWS.map((row) => line(row, recordings)));
  page.verdict.textContent = verdict(recordings);
}

function line([name, value, words, better], recordings) {
  const values = recordings.map(value);
  const best = better === "less" ? Math.min(...values) : Math.max(...values);
  const row = document.createElement("tr");
  row.append(cell("th", name, "row"));
  for (const one of values) {
    const made = cell("td", words(one));
    if (better && one === best && values[0] !== values[1]) made.className = "best";
    made.append(bar(one / Math.max(...values)));
    row.append(made);
  }
  return row;
}

function verdict([a, b]) {
  const same = a.text === b.text;
  const words = same ? "The same text." : "The texts differ.";
  const ratio = a.result.seconds / b.result.seconds;
  if (ratio > 0.97 && ratio < 1.03) return `Equally fast. ${words}`;
  const [fast, times] = ratio > 1 ? ["B", ratio] : ["A", 1 / ratio];
  return `${fast} was ${times.toFixed(1)} times as fast. ${words} They ran one after the other.`;
}
