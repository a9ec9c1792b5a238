"""Files of prompts and answers, corpora of them, and the loss of a text by its definition."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from daguerre.canvas import Canvas
from daguerre.model import Model
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.forward import Logits
from daguerre.models.session import compute
from daguerre.train.batch import Batch
from daguerre.train.distill.loss import answers_to_learn
from daguerre.train.noising import IGNORE
from daguerre.train.recipe import Recipe, TrainedShape
from daguerre.train.sft.batches import AnswerBatches
from daguerre.train.sft.corpus import AnswerFiles
from daguerre.train.sft.presets import Sft, answer_loss
from daguerre.train.sft.texts import Text
from daguerre.train.shards import Shard
from daguerre.train.stage import Stage

WORDS = "name value index total count = + - ( ) [ ] : return for in if not".split()
STAGE = Stage(until=1.0, length=64, sequences=3, micro_batches=2)
SHAPE = TrainedShape(width=32, num_layers=2, num_heads=4, num_kv_heads=2, mlp_width=48, max_positions=64)
RECIPE = Recipe(
    name="answers",
    tokenizer="2k",
    model=SHAPE,
    sft=Sft(),
    stages=(STAGE,),
    steps=6,
    precision="float32",
    eval_steps=3,
    checkpoint_steps=2,
)


def some_pairs(num: int = 24, seed: int = 0) -> list[dict[str, str]]:
    """Rows of prompts and completions of unlike lengths."""
    rng = np.random.default_rng(seed)
    words = [" ".join(rng.choice(WORDS, size=size)) for size in rng.integers(1, 9, 2 * num)]
    return [
        {"prompt": f"{prompt} -> ", "completion": said} for prompt, said in zip(words[::2], words[1::2], strict=True)
    ]


def write_rows(path: Path, rows: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def corpus_of(rows: Sequence[Any], folder: Path, model: Model, longest: int = 64) -> Shard:
    """The training split of a corpus of these rows."""
    folder.mkdir(parents=True, exist_ok=True)
    file = write_rows(folder / "rows.jsonl", rows)
    made = AnswerFiles([file], folder / "corpus", longest, 0.1)
    return Shard.open(made(model.tokenizer, model.config), "train")


def batches_of(shard: Shard, model: Model, seed: int = 0, family: str | None = None, **options: Any) -> AnswerBatches:
    return AnswerBatches(shard, answer_loss(Sft(**options), model.config, family), model.config, seed)


def hidden_answers(model: Model, folder: Path, *, packing: bool = False, seed: int = 0) -> AnswerBatches:
    """Batches of some pairs for distillation: all of each answer is masked."""
    loss = answers_to_learn(Sft(packing=packing, padding="unsupervised"), model.config, None)
    return AnswerBatches(corpus_of(some_pairs(12), folder, model), loss, model.config, seed)


def placed(batch: Batch, row: int, model: Model) -> tuple[np.ndarray, np.ndarray]:
    """Of a sequence with one text: the positions that noisy rows predict, and those that clean rows predict."""
    has, position = (batch.target[row] != IGNORE).numpy(), batch.layout.rows.position[row].numpy()
    noisy = np.arange(len(has)) >= batch.layout.num_clean
    return position[has & noisy] + model.config.noisy_offset, position[has & ~noisy] + 1


def masked_loss(model: Model, text: Text, masked: Sequence[int]) -> dict[int, float]:
    """The cross-entropy at each masked position of a text, as decoding computes it: the whole canvas at once, or block
    after block, what is before a block being known."""
    config, num = model.config, len(text.tokens)
    mask, out = np.zeros(num, dtype=bool), dict[int, float]()
    mask[list(masked)] = True
    denoiser = BackboneDenoiser(model.backbone, backend="torch")
    size = config.block_size if config.context == "block" and config.block_size else num
    for start in range(0, num, size):
        end = min(start + size, num)
        still = mask & (np.arange(num) >= start)
        if not still[start:end].any():
            continue
        first = int(np.flatnonzero(still[start:end])[0]) + start if config.context == "causal" else max(1, start)
        canvas = Canvas(text.tokens, still, ((1, num),), (first, end))
        positions = np.flatnonzero(still[:end])
        answer = compute(denoiser.session(canvas).ask(canvas, positions, Logits()), denoiser.backend)
        assert answer.logits is not None
        logits = torch.from_numpy(answer.logits).double()
        losses = F.cross_entropy(logits, torch.from_numpy(text.tokens[positions]), reduction="none")
        out |= dict(zip(positions.tolist(), losses.tolist(), strict=True))
    return out


def unpacked(maker: AnswerBatches) -> AnswerBatches:
    return replace(maker, loss=replace(maker.loss, packing=False))
