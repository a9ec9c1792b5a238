"""How many held-out answers of a run of `daguerre train sft` its model writes exactly, and the model it began with.

python benchmarks/answers.py runs/sft default
"""

from __future__ import annotations

import argparse
from pathlib import Path

import daguerre
from daguerre.train.sft.corpus import tokenizer_in
from daguerre.train.shards import Shard

MORE = 8
"""Tokens that an answer may be longer than the right one."""


def exact(name: str | Path, shard: Shard, most: int) -> tuple[int, int]:
    """Of the held-out texts with one answer, how many a model writes exactly, greedily; and their number."""
    model, right, num = daguerre.load(name), 0, 0
    assert shard.answers is not None
    for start, end in zip(shard.starts[:most], shard.starts[1:], strict=False):
        tokens, answer = shard.tokens[start:end].astype(int), shard.answers[start:end].astype(bool)
        first = int(answer.argmax())
        if not answer[first:].all():
            continue
        given = tokens[len(model.config.first) : first].tolist()
        want = model.tokenizer.decode(tokens[first:].tolist())
        right += model.generate(given, len(tokens) - first + MORE, heal=False).text == want
        num += 1
    return right, num


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="the folder of the run")
    parser.add_argument("start", nargs="?", help="the model that it began with")
    parser.add_argument("--most", type=int, default=200, help="texts that are asked for")
    options = parser.parse_args()
    shard = Shard.open(options.run / "data", "val", tokenizer_in(options.run / "data").sha256)
    for name in (options.start, options.run / "model"):
        if name is not None:
            right, num = exact(name, shard, options.most)
            print(f"{name}: {right} of {num} held-out answers exact")


if __name__ == "__main__":
    main()
