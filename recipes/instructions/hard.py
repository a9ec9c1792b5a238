"""Of the tasks that make.py wrote, those that a model finds hard, to go on with:

    python recipes/instructions/hard.py --data DIR --model MODEL --out DIR

    OUT/train.jsonl   the hard merges; for each of them EASY others, OTHERS other tasks, and PLAIN rows of code

A merge is hard if its answer has a token to which the model gives a probability of less than BELOW, given the right
tokens before it. To know that takes one forward of the model, much less than a step of training.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from pathlib import Path

from make import TRAIN
from rich.progress import track

import daguerre
from daguerre.files import atomic_write
from daguerre.model import Model
from daguerre.scoring.likelihood import score_tokens

BELOW = 0.6
EASY, OTHERS, PLAIN = 0.1, 0.4, 0.5
"""Rows for each hard merge."""
MERGE = "\n#> apply\n"
"""What the prompt of a merge has, and that of no other task."""


def least(model: Model, prompt: str, answer: str) -> float:
    """The probability of the least likely token of an answer, each given all before it."""
    begin = [model.tokenizer.start_id, *model.tokenizer.encode(prompt)]
    tokens = [*begin, *model.tokenizer.encode(answer)]
    scores = score_tokens(model.denoiser.backend, tokens, given=len(begin))
    return math.exp(-scores.by_token.max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that make.py wrote")
    parser.add_argument("--model", required=True, help="the model of a first run")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--num", type=int, help="merges that are looked at; all by default")
    options = parser.parse_args()
    model, rng = daguerre.load(options.model), random.Random(0)
    rows = [json.loads(line) for line in (options.data / TRAIN).read_text(encoding="utf-8").splitlines()]
    merges, others, plain = list[dict[str, str]](), list[dict[str, str]](), list[dict[str, str]]()
    for row in rows:
        (plain if "text" in row else merges if MERGE in row["prompt"] else others).append(row)
    hard, easy = list[dict[str, str]](), list[dict[str, str]]()
    for row in track(merges[: options.num], "merges"):
        (hard if least(model, row["prompt"], row["completion"]) < BELOW else easy).append(row)
    out = list(hard)
    for some, share in ((easy, EASY), (others, OTHERS), (plain, PLAIN)):
        out += rng.sample(some, min(len(some), round(share * len(hard))))
    rng.shuffle(out)
    options.out.mkdir(parents=True, exist_ok=True)
    with atomic_write(options.out / TRAIN) as file:
        file.write("".join(json.dumps(row) + "\n" for row in out).encode())
    print(f"{len(hard):,} of {len(hard) + len(easy):,} merges are hard; {len(out):,} rows")


if __name__ == "__main__":
    main()
