"""Corpora of pairs of answers, made of the rows of `answers`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from answers import some_pairs, write_rows
from daguerre.model import Model
from daguerre.train.prefer.batches import PairBatches
from daguerre.train.prefer.options import Prefer, pair_loss
from daguerre.train.prefer.rows import PairReader
from daguerre.train.sft.corpus import AnswerFiles
from daguerre.train.shards import Shard


def some_preferences(num: int = 24, seed: int = 0) -> list[dict[str, str]]:
    """Rows of a prompt with two answers of unlike lengths."""
    first, second = some_pairs(num, seed), some_pairs(num, seed + 1)
    return [
        {"prompt": a["prompt"], "chosen": a["completion"] + " yes", "rejected": b["completion"] + " no"}
        for a, b in zip(first, second, strict=True)
    ]


def pair_batches(rows: Sequence[Any], folder: Path, model: Model, longest: int = 64, **options: Any) -> PairBatches:
    """Micro-batches of these rows for a model."""
    folder.mkdir(parents=True, exist_ok=True)
    file, how = write_rows(folder / "rows.jsonl", rows), Prefer(**options)
    made = AnswerFiles([file], folder / "corpus", longest, 0.1, PairReader(how.ends), pairs=True)
    shard = Shard.open(made(model.tokenizer, model.config), "train")
    return PairBatches(shard, pair_loss(model.config), model.config, 0, options=how)
