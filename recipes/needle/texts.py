"""Python files with assignments planted in them, and questions for their values: what the recipe `needle` trains on.

    python recipes/needle/texts.py --corpus CORPUS --out DIR

CORPUS is what `daguerre data python` wrote; DIR becomes a corpus that `daguerre train` takes as --data.

A needle is a line `walnut_ratio = 48213`, a question `assert walnut_ratio == 48213`. A training text has many of both,
at distances whose logarithms are as likely, so that windows shorter than the text have whole pairs, too. No word of a
held-out name, and no held-out value, is in any training text's needles; held-out texts are files of the frozen sample's
packages, of which no corpus has any.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from daguerre.heldout import load_frozen
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.shards import Shard, write_tokens

LENGTHS = (512, 1024, 2048, 4096)
SHARES = (0.1, 0.2, 0.3, 0.4)
"""Of training texts, by length."""
TOKENS_PER_NEEDLE = 180
NEAREST = 30
"""The least distance of a question from its needle, in tokens, about."""
QUESTIONS = 3
"""Questions for each needle of a training text."""
DIGITS = 5
WORDS = (
    "amber anchor apple arrow autumn badge bamboo banner basin beacon birch blanket bottle branch breeze brick "
    "bridge bronze bubble bucket butter button cabin cactus camel candle canyon carbon carpet castle cedar cellar "
    "chalk cherry circus clover cobalt coffee comet copper coral cotton crane crater crystal curtain daisy desert "
    "diamond dolphin dragon drawer eagle echo ember engine falcon feather fern fiddle flame flint forest fossil "
    "fountain galaxy garden garlic geyser ginger glacier goblin granite grape harbor hazel helmet hollow honey "
    "horizon hunter iceberg indigo island ivory jacket jasmine jungle juniper kettle kitten ladder lagoon lantern "
    "lemon lily linen lizard lobster magnet mango maple marble meadow melon meteor mirror monsoon mosaic mustard "
    "needle nickel nutmeg oasis ocean olive onion opal orchid otter oyster paddle panther paper parrot pebble "
    "pepper pickle pigeon pillow planet plaster plum pocket pony poplar prairie pumpkin puppet quarry quartz "
    "rabbit radish raven ribbon river rocket saddle saffron salmon sapphire satin scarlet shadow silver sparrow "
    "spider spruce squirrel stable summer sunset tavern temple thistle thunder tiger timber tomato tower trumpet "
    "tulip tunnel turtle umbrella valley vanilla velvet village violet walnut walrus willow window winter wizard "
    "wolf yarrow zebra zephyr"
).split()


@dataclass(frozen=True)
class Needle:
    """A name and its value."""

    name: str
    value: str

    @property
    def line(self) -> str:
        """The line that is planted."""
        return f"{self.name} = {self.value}\n"

    @property
    def question(self) -> str:
        """What is written before the value where it is asked for."""
        return f"assert {self.name} =="


def is_held(word: str) -> bool:
    """Whether a word of a name, or a value, is for held-out texts: one in four, by its hash."""
    return hashlib.sha256(word.encode()).digest()[0] % 4 == 0


def draw_needles(num: int, held: bool, rng: np.random.Generator) -> list[Needle]:
    """Needles of unlike names, all of training or all held out."""
    words = [word for word in WORDS if is_held(word) == held]
    found: dict[str, Needle] = {}
    while len(found) < num:
        first, second = rng.choice(words, 2, replace=False)
        value = str(rng.integers(10 ** (DIGITS - 1), 10**DIGITS))
        if is_held(value) == held:
            found.setdefault(f"{first}_{second}", Needle(f"{first}_{second}", value))
    return list(found.values())


def planted(lines: Sequence[str], at: Sequence[tuple[float, str]]) -> str:
    """The lines of a file with others among them, each at a share of the way through."""
    edges = np.cumsum([0, *map(len, lines)])
    out: list[tuple[int, int, str]] = [(number, -1, line) for number, line in enumerate(lines)]
    for order, (depth, line) in enumerate(sorted(at, key=lambda one: one[0])):
        out.append((int(np.searchsorted(edges, depth * edges[-1], side="right")) - 1, -2 - len(at) + order, line))
    return "".join(line for _, _, line in sorted(out, key=lambda one: one[:2]))


def training_text(filler: Sequence[int], tokenizer: Tokenizer, length: int, rng: np.random.Generator) -> list[int]:
    """The tokens of a file with needles, and questions behind them: at most `length`."""
    num = max(1, length // TOKENS_PER_NEEDLE)
    at: list[tuple[float, str]] = []
    for needle in draw_needles(num, False, rng):
        depth = float(rng.uniform(0, 1)) ** 1.5  # more of them early, so that some distances are as long as the text
        at.append((depth, needle.line))
        far = np.log([NEAREST / length, 1 - depth + NEAREST / length])
        ends = [depth + float(np.exp(rng.uniform(*far))) for _ in range(QUESTIONS)]
        at += [(min(end, 1.0), f"{needle.question} {needle.value}\n") for end in ends]
    room = length - 2 - sum(len(tokenizer.encode(line)) for _, line in at)
    text = tokenizer.decode(list(filler[: max(16, room)]))
    return tokenizer.encode(planted(text.splitlines(keepends=True), at))[: length - 2]


def fillers(shard: Shard, length: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Runs of a corpus's text, of one file or of several that follow each other, without end."""
    inner = np.asarray(shard.tokens)
    special = set(shard.starts.tolist())
    while True:
        start = int(rng.integers(0, max(1, len(inner) - 2 * length)))
        run = inner[start : start + length + 64]
        keep = [int(t) for place, t in enumerate(run, start) if place not in special and place + 1 not in special]
        yield np.array(keep[:length])


def training_texts(
    shard: Shard, tokenizer: Tokenizer, num_tokens: int, rng: np.random.Generator
) -> Iterator[tuple[np.ndarray, int]]:
    """Texts with needles until there are so many tokens, as `write_tokens` takes them."""
    source, done = fillers(shard, max(LENGTHS), rng), 0
    while done < num_tokens:
        length = int(rng.choice(LENGTHS, p=SHARES))
        ids = np.array(training_text(next(source).tolist(), tokenizer, length, rng))
        done += len(ids)
        yield ids, sum(len(tokenizer.token_bytes(int(token))) for token in ids)


DEPTHS = tuple(share / 8 for share in range(9))


@dataclass(frozen=True)
class NeedleQuestion:
    """What follows a held-out text and asks for a needle, the answer, and how deep in the text the needle is."""

    tokens: list[int]
    answer: list[int]
    needle: Needle
    depth: float


@dataclass(frozen=True)
class NeedleProbe:
    """A held-out text with a needle at each of DEPTHS, 0 the beginning and 1 the end, and a question about each. Text,
    question and answer have `length` tokens at most, <bos> included.
    """

    tokens: list[int]
    questions: list[NeedleQuestion]
    length: int


@lru_cache(maxsize=1)
def held_out_tokens(tokenizer: Tokenizer) -> list[int]:
    """The frozen sample, one file after the other."""
    return [token for document in load_frozen() for token in tokenizer.encode(document.text)]


def probes(tokenizer: Tokenizer, length: int, num: int, seed: int = 0) -> list[NeedleProbe]:
    """Held-out texts, each of which is a run of the frozen sample."""
    rng = np.random.default_rng([seed, length])
    stream = held_out_tokens(tokenizer)
    out = []
    for _ in range(num):
        needles = draw_needles(len(DEPTHS), True, rng)
        order = rng.permutation(len(needles))  # or a name would say how deep
        placed = [(depth, needles[at]) for depth, at in zip(DEPTHS, order, strict=True)]
        questions = [
            NeedleQuestion(
                tokenizer.encode(f"\n{needle.question}"), tokenizer.encode(f" {needle.value}\n"), needle, depth
            )
            for depth, needle in placed
        ]
        lines = sum(len(tokenizer.encode(needle.line)) for needle in needles)
        room = length - 1 - lines - max(len(one.tokens) + len(one.answer) for one in questions)
        start = int(rng.integers(0, len(stream) - room))
        text = tokenizer.decode(stream[start : start + room])
        body = tokenizer.encode(
            planted(text.splitlines(keepends=True), [(depth, needle.line) for depth, needle in placed])
        )
        out.append(NeedleProbe(body[-(room + lines) :], questions, length))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="what `daguerre data python` wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder of the new corpus")
    parser.add_argument("--tokens", type=int, default=4_000_000, help="of training texts (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    tokenizer = Tokenizer.load(options.corpus / "tokenizer.json")
    parts = {}
    for split, num in (("train", options.tokens), ("val", options.tokens // 400)):
        rng = np.random.default_rng([options.seed, split == "val"])
        parts[split] = training_texts(Shard.open(options.corpus, split), tokenizer, num, rng)
    write_tokens(options.out, parts, tokenizer)


if __name__ == "__main__":
    main()
