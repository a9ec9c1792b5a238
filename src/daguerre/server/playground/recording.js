import { Explanation } from "./explanation.js";

// What one request did: its first tokens, the changes of each step, and its result. Any step can be shown again.

export class Recording {
  constructor(body, name) {
    this.body = body;
    this.name = name;
    this.head = null;
    this.steps = [];
    this.result = null;
    this.explanation = null;
    this.running = true;
    this.boards = [];
  }

  // An event of the server's stream.
  add(name, data) {
    if (name === "begin") {
      this.head = data;
      this.boards = [data.gaps];
    } else if (name === "step") {
      this.steps.push(data);
      this.boards.push(this.boards.at(-1).map((tokens, gap) => changed(tokens, data.gaps[gap])));
    } else if (name === "end") {
      this.result = data;
      this.running = false;
      if (data.concepts) this.explanation = new Explanation(data.concepts, data.starts);
    }
  }

  // How many of the steps were done at a time, in seconds.
  stepsAt(seconds) {
    let num = 0;
    while (num < this.steps.length && this.steps[num].seconds <= seconds) num += 1;
    return num;
  }

  // The texts around the gaps.
  get around() {
    const { body } = this;
    return this.head?.around ?? (body.kind === "infill" ? [body.prefix, body.suffix] : [body.prompt ?? "", ""]);
  }

  // The tokens of each gap after `num` steps, without what lies behind the end of the text.
  board(num) {
    const over = this.result !== null && num >= this.steps.length;
    return (this.boards[num] ?? []).map((tokens) => shown(tokens, over));
  }

  // Tokens that were taken back from the text before a gap and drawn again; the pins of a request do not count them.
  healed(gap) {
    const tokens = this.boards.at(-1)?.[gap] ?? [];
    let num = 0;
    while (num < tokens.length && tokens[num].state === "drawn" && tokens[num].text === "") num += 1;
    return num;
  }

  stats(num) {
    const over = this.result !== null && num >= this.steps.length;
    const usage = this.result?.usage;
    const step = this.steps[Math.min(num, this.steps.length) - 1];
    const tokens = over ? usage.completion_tokens : this.board(num).flat().filter((t) => t.state === "drawn" && t.text).length;
    const forwards = over ? usage.forwards : (step?.forwards ?? 0);
    return { forwards, tokens, rate: forwards ? tokens / forwards : 0, seconds: over ? this.result.seconds : (step?.seconds ?? 0) };
  }

  // The whole text, as the result has it.
  get text() {
    if (!this.result) return "";
    if (this.head.around) return this.result.text;
    return this.around[0] + this.result.text + this.around[1];
  }
}

function changed(tokens, news) {
  if (!news.length) return tokens;
  const out = tokens.slice();
  for (const token of news) out[token.position] = token;
  return out;
}

function shown(tokens, over) {
  const end = tokens.findIndex((token) => token.state === "end");
  const open = tokens.findIndex((token) => token.state === "open");
  if (end >= 0 && (over || open < 0 || end < open)) return tokens.slice(0, end + 1);
  return over && open >= 0 ? tokens.slice(0, open) : tokens;
}
