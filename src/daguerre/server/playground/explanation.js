// An explanation as data: of which parts the logit of each token consists. The formulas are those of
// daguerre.decoding.explanation.

const TINY = Number.MIN_VALUE;
const sum = (values) => values.reduce((all, value) => all + value, 0);
const partsOf = (token) => token.concepts.map((one) => one.part);

export class Explanation {
  // data: `concepts` of a result; starts: the first position of each gap on the canvas
  constructor(data, starts) {
    this.numKnown = data.num_known;
    this.names = data.names;
    this.error = data.error;
    this.tokens = data.tokens.map((token) => read(token, data.num_known));
    this.places = new Map(this.tokens.map((token) => [placeOf(token.position, starts), token]));
  }

  // The token at a position of a gap; undefined where there is none.
  at(gap, position) {
    return this.places.get(`${gap}:${position}`);
  }

  nameOf(number) {
    return this.names[number] ?? (number < this.numKnown ? `known ${number}` : `discovered ${number - this.numKnown}`);
  }

  // How much of the predictions of tokens goes through named concepts, and through all.
  sharesOf(tokens) {
    const each = tokens.filter((token) => token.asked).map((token) => {
      const total = Math.max(Math.abs(token.known) + Math.abs(token.discovered) + Math.abs(token.residual), TINY);
      return [Math.abs(token.known) / total, (Math.abs(token.known) + Math.abs(token.discovered)) / total];
    });
    const mean = (place) => sum(each.map((one) => one[place])) / Math.max(1, each.length);
    return { known: mean(0), all: mean(1) };
  }

  // The concepts with the largest shares of some tokens: number, share, the sum of their parts.
  top(tokens, num) {
    const found = new Map();
    const asked = tokens.filter((token) => token.asked);
    for (const token of asked) {
      const size = Math.max(sum(partsOf(token).map(Math.abs)) + Math.abs(token.residual), TINY);
      for (const { number, part } of token.concepts) {
        const one = found.get(number) ?? { number, share: 0, part: 0 };
        found.set(number, { number, share: one.share + Math.abs(part) / size / asked.length, part: one.part + part });
      }
    }
    return [...found.values()].sort((a, b) => b.share - a.share || a.number - b.number).slice(0, num);
  }

  // The lines of the text in which a token begins.
  lines(num) {
    const texts = this.tokens.map((token) => token.text).join("").split("\n");
    const groups = new Map();
    let line = 1;
    for (const token of this.tokens) {
      groups.set(line, [...(groups.get(line) ?? []), token]);
      line += token.text.split("\n").length - 1;
    }
    return [...groups].map(([number, tokens]) => ({ number, text: texts[number - 1], shares: this.sharesOf(tokens), top: this.top(tokens, num) }));
  }

  // What a token is colored by, "known", "all" or a concept's number: from -1 to 1, null for a token without a value.
  heat(token, by) {
    if (!token?.asked) return { value: null, words: "not asked of the model" };
    if (by === "known" || by === "all") {
      const value = this.sharesOf([token])[by];
      return { value, words: `${Math.round(100 * value)}% by ${by === "known" ? "named" : "all"} concepts` };
    }
    const part = partOf(token, by);
    return { value: part / Math.max(this.most(by), 1e-9), words: `${this.nameOf(by)} ${signed(part)}` };
  }

  // The largest part of a concept in any token, without its sign.
  most(number) {
    return Math.max(0, ...this.tokens.map((token) => Math.abs(partOf(token, number))));
  }
}

export function partOf(token, number) {
  return token.concepts.find((one) => one.number === Number(number))?.part ?? 0;
}

export function signed(value) {
  return (value < 0 ? "−" : "+") + Math.abs(value).toFixed(2);
}

function read(token, numKnown) {
  if (token.logit === null) return { ...token, asked: false, concepts: [] };
  const { weights, effects, added, bans } = token;
  const concepts = token.concepts.map((number, place) => ({ number, part: weights[place] * effects[place], steered: added[place] * effects[place], ban: bans[place] }));
  const total = (chosen, name) => sum(concepts.filter(chosen).map((one) => one[name]));
  return {
    ...token, asked: true, concepts,
    known: total((one) => one.number < numKnown, "part"),
    discovered: total((one) => one.number >= numKnown, "part"),
    steering: total(() => true, "steered"),
    banned: total(() => true, "ban"),
  };
}

function placeOf(position, starts) {
  const gap = starts.findLastIndex((start) => start <= position);
  return `${gap}:${position - starts[gap]}`;
}
