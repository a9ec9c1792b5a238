// An edit by instruction: the text, or the lines that the marked parts are in, written again by a model that takes instructions.

// The message of the request: the text with marks around those lines.
export function messageOf({ text, spans }) {
  if (!spans.length) return marked("current_file_content", text.replace(/\n$/, ""));
  const [start, end] = linesOf(text, spans);
  const region = marked("code_to_edit", text.slice(start, end));
  return marked("current_file_content", `${text.slice(0, start)}${region}${text.slice(end).replace(/\n$/, "")}`);
}

// Where the lines begin and end, without the last one's break.
function linesOf(text, spans) {
  const first = Math.min(...spans.map(([start]) => start));
  const last = Math.max(...spans.map(([, end]) => end));
  const end = text.indexOf("\n", Math.max(first, last - 1));
  return [first ? text.lastIndexOf("\n", first - 1) + 1 : 0, end < 0 ? text.length : end];
}

function marked(name, text) {
  return `<|${name}|>\n${text}\n<|/${name}|>`;
}

// The text with the answer in place of those lines: a fenced region, or None where nothing changes.
export function textOf({ text, spans }, answer) {
  if (answer === "None") return text;
  const lines = answer.split("\n");
  const region = lines.slice(1, -1).join("\n");
  const ends = text.endsWith("\n") ? "\n" : "";
  if (!spans.length) return region + ends;
  const [start, end] = linesOf(text, spans);
  return text.slice(0, start) + region + text.slice(end);
}
