"""How likely texts are: a teacher's own answers under both models, and any text under the teacher.

Letters: L tokens of a text, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from daguerre.evals.workers import Progress
from daguerre.model import Model
from daguerre.scoring.likelihood import score_tokens

if TYPE_CHECKING:
    from torch import Tensor

    from daguerre.models.core.backbone import Backbone
    from daguerre.train.batch import Batch

SEQUENCES = 4
"""Texts of a forward in which the KL is measured."""


@dataclass(frozen=True)
class ToldAnswer:
    """A prompt, and what the teacher answered: token ids, without what every canvas begins with."""

    prompt: list[int]
    new: list[int]

    @property
    def ids(self) -> list[int]:
        return self.prompt + self.new


def next_log_probs(model: Backbone, ids: Sequence[int], given: int) -> Tensor:
    """Logarithms of a model's probabilities of each token of a text behind the `given` ones, (L - given, V); before the
    text stands what every canvas begins with.
    """
    import torch

    from daguerre.models.core.batched import BatchLayout, run_batch

    device, first = model.embedding.weight.device, model.config.first
    with torch.no_grad():
        tokens = torch.tensor([[*first, *ids[:-1]]], device=device)
        hidden = run_batch(model, tokens, BatchLayout.causal(tokens.shape[1], device=device))
        return model.logits(hidden[0, len(first) + given - 1 :]).log_softmax(-1)


def nats_of(model: Backbone, ids: Sequence[int], given: int) -> tuple[np.ndarray, np.ndarray]:
    """Of each token of a text behind the `given` ones: its nats under an autoregressive model, float (L - given,), and
    whether it is the most likely one, bool.
    """
    log_probs = next_log_probs(model, ids, given).cpu()
    told = np.asarray(ids[given:])
    return -log_probs.numpy()[np.arange(len(told)), told].astype(np.float64), (log_probs.argmax(-1).numpy() == told)


def bits_of_answers(model: Model, teacher: Model, told: Sequence[ToldAnswer], progress: Progress) -> dict[str, Any]:
    """Bits per byte of the teacher's answers: under the teacher, and under the model from left to right, where its
    context knows that, and one token a forward in blocks from the left.
    """
    size, config = model.config.block_size or 4, model.config
    kinds: dict[str, dict[str, Any]] = {f"blocks of {size}": {"kind": "chain", "layout": size}}
    if config.can_draft:
        kinds["left to right"] = {"kind": "ar"}
    nats, num_bytes = dict.fromkeys(("teacher", *kinds), 0.0), 0
    for done, one in enumerate(told):
        progress("bits", done, len(told))
        num_bytes += len(teacher.tokenizer.decode_bytes(one.new))
        nats["teacher"] += float(nats_of(teacher.backbone, one.ids, len(one.prompt))[0].sum())
        for name, how in kinds.items():
            given = len(config.first) + len(one.prompt)
            nats[name] += score_tokens(model.denoiser.backend, [*config.first, *one.ids], given=given, **how).value
    return {name: value / math.log(2) / max(1, num_bytes) for name, value in nats.items()}


def distance(
    model: Model, teacher: Model, told: Sequence[ToldAnswer], seed: int, progress: Progress
) -> dict[str, float]:
    """The mean KL(teacher || model), in nats: of masked tokens of the teacher's answers in random states of the model's
    blocks (`kl`), and of next tokens (`kl_next`), where the model has them.
    """
    from daguerre.train.teach.loss import TaughtLoss
    from daguerre.train.teach.options import Teaching
    from daguerre.train.teach.teacher import FrozenTeacher

    loss = TaughtLoss(Teaching(), FrozenTeacher(teacher.backbone, Path()))
    sums, counts = {"kl": 0.0, "kl_next": 0.0}, {"kl": 0, "kl_next": 0}
    for start in range(0, len(told), SEQUENCES):
        progress("KL", start, len(told))
        batch = _batch_of(told[start : start + SEQUENCES], model, [seed, start])
        report = loss(model.backbone, batch.to(model.backbone.embedding.weight.device))
        for name, num in (("kl", int(report.level_count.sum())), ("kl_next", report.clean_count)):
            if num:
                sums[name], counts[name] = sums[name] + num * report.parts[name], counts[name] + num
    return {name: sums[name] / num for name, num in counts.items() if num}


def _batch_of(told: Sequence[ToldAnswer], model: Model, seed: Sequence[int]) -> Batch:
    """Answers in blocks of which a share is masked, uniform on (0, 1]."""
    from daguerre.train.sft.batches import batch_of
    from daguerre.train.sft.presets import Sft, answer_loss
    from daguerre.train.sft.texts import Text, examples_of

    config, rng = model.config, np.random.default_rng(seed)
    loss = answer_loss(Sft(times="uniform", padding="unsupervised", complementary=False), config, None)
    rows = []
    for one in told:
        ids = [*config.first, *one.ids]
        text = Text(np.array(ids), np.arange(len(ids)) >= len(ids) - len(one.new))
        rows.append(examples_of(text, loss, config, rng.random(), rng, config.block_size or 4))
    return batch_of(rows, [len(one.new) for one in told], loss, config)
