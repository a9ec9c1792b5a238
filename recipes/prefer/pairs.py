"""Pairs of answers from a model's own samples: of a prompt's samples one that parses, and one that does not.

    python recipes/prefer/pairs.py --out DIR [--model MODEL] [--prompts 1600] [--samples 8] [--source FOLDER] [--code]

texts.jsonl   The rejected text ends with the line where the parser stops, and the chosen one with the line at which it
              is as long, so that the difference is no matter of length.
lines.jsonl   The same rejected texts, all but the last line of each as part of the prompt: that line is rejected, and
              another one that the model writes in its place, and that the parser reads, is chosen.

With --code no comment and no long string is chosen in place of a line, and lines.jsonl has more pairs: of the same
texts, all as part of the prompt up to the last token after which the model still finds a rest of the line that the
parser reads. That rest is chosen, and the old one rejected, so such a pair is about the token that was wrong.

Rows are {"prompt", "chosen", "rejected"}. A file that is there is not made again.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from written import CodePrompt, WrittenCode, as_long_as, library_prompts, samples, up_to_failure, verdict

import daguerre
from daguerre.evals import results
from daguerre.models.tokenizer import Tokenizer

TEXTS, LINES = "texts.jsonl", "lines.jsonl"
MOST = 2
"""Pairs of a prompt."""
LINE_TOKENS, TRIES = 24, 2
"""Most tokens of a line that is chosen, and how often one is drawn."""
REST_TOKENS, REST_TRIES = 20, 3
"""The same of the rest of a line, behind each beginning."""
EVASIONS = ("#", '"""', "'''", 'r"""')
"""How a comment or a long string begins."""


def pairs_of(prompt: CodePrompt, written: Sequence[WrittenCode], rng: np.random.Generator) -> Iterator[dict[str, str]]:
    """At most MOST rows of a prompt's samples, each sample in one row."""
    good = [one.text for one in written if not one.failed and one.text.strip()]
    bad = [one.text for one in written if one.failed and one.text.strip()]
    rng.shuffle(good)
    rng.shuffle(bad)
    for chosen, rejected in list(zip(good, bad, strict=False))[:MOST]:
        rejected = up_to_failure(prompt.text, rejected)
        if (chosen := as_long_as(chosen, rejected)) != rejected:
            yield {"prompt": prompt.text, "chosen": chosen, "rejected": rejected}


def write_texts(model: Any, prompts: Sequence[CodePrompt], num: int, seed: int, out: Path) -> Counter[str]:
    """Write the pairs of `num` samples of each prompt; how many samples have each verdict, and how many "pairs"."""
    rng, counts, rows = np.random.default_rng(seed), Counter[str](), list[dict[str, str]]()
    for prompt, written in zip(prompts, samples(model, prompts, num, seed), strict=True):
        counts.update(one.verdict for one in written)
        rows += pairs_of(prompt, written, rng)
    counts["pairs"] = len(rows)
    out.mkdir(parents=True, exist_ok=True)
    results.write_lines(out / TEXTS, rows)
    return counts


def write_lines(model: Any, num: int, seed: int, out: Path, code: bool) -> int:
    """Write the pairs of lines of the first `num` rows of texts; how many there are."""
    with (out / TEXTS).open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in islice(file, num)]
    made = list(lines_of(model, rows, seed, code))
    if code:
        made += branches_of(model, rows, seed)
        np.random.default_rng(seed).shuffle(made)
    results.write_lines(out / LINES, made)
    return len(made)


def lines_of(model: Any, rows: Sequence[Mapping[str, str]], seed: int, code: bool) -> Iterator[dict[str, str]]:
    """A pair of each row of texts whose last line has a better one."""
    cut = [row["rejected"].rstrip("\n").rfind("\n") + 1 for row in rows]
    prompts = [CodePrompt("", row["prompt"] + row["rejected"][:place]) for row, place in zip(rows, cut, strict=True)]
    written = samples(model, prompts, TRIES, seed, LINE_TOKENS)
    for row, place, prompt, some in zip(rows, cut, prompts, written, strict=True):
        rejected = row["rejected"][place:]
        for text in (one.text for one in some):
            line = text[: text.find("\n") + 1]
            evades = code and line.strip().startswith(EVASIONS)
            if line.strip() and line != rejected and not evades and verdict(prompt.text + line) != "failed":
                yield {"prompt": prompt.text, "chosen": line, "rejected": rejected}
                break


def branches_of(model: Any, rows: Sequence[Mapping[str, str]], seed: int) -> list[dict[str, str]]:
    """A pair of each row of texts whose last line has a better rest."""
    failed = [row for row in rows if verdict(row["prompt"] + row["rejected"]) == "failed"]  # others ended too early
    branches = [Branch.of(row, model.tokenizer) for row in failed]
    while left := [one for one in branches if one.bad - one.good > 1]:
        seed += len(left)
        prompts = [CodePrompt("", one.before + one.beginning(one.middle)) for one in left]
        for one, written in zip(left, samples(model, prompts, REST_TRIES, seed, REST_TOKENS), strict=True):
            one.look([each.text for each in written])
    return [one.pair() for one in branches if one.chosen]


@dataclass
class Branch:
    """A line that the parser does not read behind the text before it. Behind its first `good` tokens the model found
    another rest of the line that it reads, and behind `bad` of them it found none.
    """

    before: str
    line: str
    pieces: list[str]
    good: int
    bad: int
    chosen: str = ""

    @classmethod
    def of(cls, row: Mapping[str, str], tokenizer: Tokenizer) -> Branch:
        """Of a row of texts."""
        place = row["rejected"].rstrip("\n").rfind("\n") + 1
        line = row["rejected"][place:]
        pieces = [tokenizer.decode([token]) for token in tokenizer.encode(line)]
        pieces = pieces if "".join(pieces) == line else list(line)
        return cls(row["prompt"] + row["rejected"][:place], line, pieces, -1, len(pieces))

    @property
    def middle(self) -> int:
        return (self.good + self.bad) // 2

    def beginning(self, num: int) -> str:
        """The first tokens of the line."""
        return "".join(self.pieces[:num])

    def look(self, texts: Sequence[str]) -> None:
        """What the model wrote behind `middle` tokens."""
        begun = self.beginning(self.middle)
        for text in texts:
            rest = text[: text.find("\n") + 1]
            evades = not begun.strip() and rest.strip().startswith(EVASIONS)
            if (begun + rest).strip() and rest.endswith("\n") and not evades:
                if begun + rest != self.line and verdict(self.before + begun + rest) != "failed":
                    self.good, self.chosen = self.middle, rest
                    return
        self.bad = self.middle

    def pair(self) -> dict[str, str]:
        begun = self.beginning(self.good)
        return {"prompt": self.before + begun, "chosen": self.chosen, "rejected": self.line[len(begun) :]}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder of pairs.jsonl")
    parser.add_argument("--model", default="default", help="the model that is sampled (%(default)s)")
    parser.add_argument("--prompts", type=int, default=1600, help="beginnings of code (%(default)s)")
    parser.add_argument("--samples", type=int, default=8, help="of each (%(default)s)")
    parser.add_argument("--source", type=Path, help="a folder of Python, in place of the standard library")
    parser.add_argument("--lines", type=int, default=2150, help="texts whose lines are paired (%(default)s)")
    parser.add_argument("--code", action="store_true", help="choose no comments, and pair rests of lines as well")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    model = daguerre.load(options.model)
    if not (options.out / TEXTS).is_file():
        prompts = library_prompts(model.tokenizer, options.prompts, options.seed, options.source)
        print(dict(write_texts(model, prompts, options.samples, options.seed, options.out)))
    if not (options.out / LINES).is_file():
        print(write_lines(model, options.lines, options.seed, options.out, options.code), "pairs of lines")


if __name__ == "__main__":
    main()
