"""Examples stacked into the tensors of one forward, and the loss of that forward.

Letters: B examples, R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import NO_SPAN, PADDING, BatchLayout, Rows, run_batch
from daguerre.train.noising import IGNORE, NUM_LEVELS, REVISED, Example
from daguerre.train.objectives import Loss, Objective

TENSORS = ("tokens", "target", "weight", "level", "guess", "time", "origin")


@dataclass(frozen=True)
class Batch:
    """Tensors of one forward: tokens, target, level, guess, origin int64 (B, R); weight, time float32 (B, R); the
    layout; the norm.

    `num_tokens` is how many tokens the texts have in all; `loss`, `teacher`, `certainty` and `group` are the
    objective's; `seed` is that of random numbers that the loss needs; with `window` the loss is a mean over all
    micro-batches of a step, and `norm` this one's part. `concepts`, bool (B, T, N), are those of each
    token of the texts, by its place there, to which `origin` refers; None: not labeled. `plain`, bool (B, R): rows of
    texts without a prompt; None: not said.
    """

    tokens: Tensor
    layout: BatchLayout
    target: Tensor
    weight: Tensor
    level: Tensor
    guess: Tensor
    time: Tensor
    origin: Tensor
    norm: float
    num_tokens: int
    loss: Loss | None = None
    teacher: str = "data"
    certainty: float = 0.0
    group: int = 0
    seed: int = 0
    window: bool = False
    concepts: Tensor | None = None
    plain: Tensor | None = None

    def to(self, device: torch.device | str) -> Self:
        held = {each.name: getattr(self, each.name) for each in fields(self)}
        moved: dict[str, Any] = {name: one.to(device) for name, one in held.items() if isinstance(one, Tensor)}
        return replace(self, layout=replace(self.layout, rows=self.layout.rows.to(device)), **moved)


def collate(examples: Sequence[Example], objective: Objective, pad_id: int) -> Batch:
    """Stack examples: clean rows padded on the right to a common number, then noisy rows padded likewise."""
    num_clean = max(e.num_clean for e in examples)
    num_noisy = max(len(e.tokens) - e.num_clean for e in examples)
    names = {
        "tokens": pad_id,
        "position": 0,
        "span": PADDING,
        "segment": 0,
        "horizon": 0,
        "gap": NO_SPAN,
        "document": 0,
    }
    names |= {"target": IGNORE, "weight": 0, "level": IGNORE, "guess": 0, "time": 0, "origin": IGNORE}
    out = {}
    for name, fill in names.items():
        dtype = np.float32 if name in ("weight", "time") else np.int64
        empty = np.full((len(examples), num_clean + num_noisy), fill, dtype=dtype)
        out[name] = stacked(empty, num_clean, examples, [getattr(example, name) for example in examples])
    rows = Rows(**{n: out[n] for n in ("position", "span", "document", "segment", "horizon", "gap")})
    runs = not bool(rows.document.any() or rows.segment.any())  # one text, read as a whole
    plain = objective.context == "causal" and objective.layout != "infill" and runs
    layout = BatchLayout(rows, num_clean, objective.context, objective.block_size, plain)
    num_tokens = sum(e.num_tokens for e in examples)
    norm = float(out["weight"].sum()) if objective.normalizer == "masked" else float(num_tokens)
    return Batch(
        **{name: out[name] for name in TENSORS},  # type: ignore[arg-type]
        layout=layout,
        norm=max(norm, 1.0),
        num_tokens=num_tokens,
        loss=objective.loss,
        teacher=objective.teacher,
        certainty=objective.certainty,
        group=objective.num_drafted,
    )


def stacked(empty: np.ndarray, num_clean: int, examples: Sequence[Example], values: Sequence[np.ndarray]) -> Tensor:
    """One label of the rows of examples, in an array (B, R) of what padding has: clean rows, then noisy ones from
    column `num_clean` on.
    """
    for row, example, value in zip(empty, examples, values, strict=True):
        num = example.num_clean
        row[:num] = value[:num]
        row[num_clean : num_clean + len(value) - num] = value[num:]
    return torch.from_numpy(empty)


def batch_seed(seed: int, index: int) -> int:
    """The seed of what is drawn in the forward of micro-batch number `index`."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1)[0])


def opened_over_time(batch: Batch, ratio: float, rng: np.random.Generator) -> Batch:
    """The batch with the attention to later positions opened in part: each edge from a row to a later position may be
    seen with probability `ratio`; 0 is causal, 1 the full layout (DiffuGPT, Gong et al. 2024, section 3.2).
    """
    position = batch.layout.rows.position[:, None, :]
    drawn = torch.from_numpy(rng.random((position.shape[2],) * 2) < ratio).to(position.device)
    return replace(batch, layout=replace(batch.layout, seen=drawn | (position <= position.transpose(1, 2))))


@dataclass(frozen=True)
class LossReport:
    """The loss (scalar, with gradient) and detached sums in nats, with counts: of clean rows, next-token cross-entropy;
    by noise level, masked cross-entropy or the loss of the process.

    `parts` are means that a loss reports besides, by name. `accepted`, of a batch of groups: how many drafted tokens
    are accepted, (3, K) by measure and place, of `num_drafts` drafts; the measures are those of `acceptance.MEASURES`.
    """

    loss: Tensor
    clean_sum: float = 0.0
    clean_count: int = 0
    level_sum: np.ndarray = field(default_factory=lambda: np.zeros(NUM_LEVELS))
    level_count: np.ndarray = field(default_factory=lambda: np.zeros(NUM_LEVELS, dtype=np.int64))
    accepted: np.ndarray | None = None
    num_drafts: int = 0
    parts: Mapping[str, float] = field(default_factory=dict)


BatchLoss = Callable[[Backbone, Batch, str], LossReport]


def batch_loss(model: Backbone, batch: Batch, attn_impl: str = "sdpa") -> LossReport:
    """Forward a batch; the loss, cross-entropy in float32 or that of the process, on the rows that have a target.

    Logits are computed for those rows alone.
    """
    return loss_of_hidden(model, batch, hidden_states(model, batch, attn_impl))


def hidden_states(model: Backbone, batch: Batch, attn_impl: str = "sdpa") -> Tensor:
    """The hidden states (B, R, D) of a batch."""
    time = batch.time if model.config.time_input else None
    return run_batch(model, batch.tokens, batch.layout, attn_impl=attn_impl, time_BR=time)


def loss_of_hidden(model: Backbone, batch: Batch, hidden: Tensor) -> LossReport:
    """The loss of a batch, from hidden states (B, R, D)."""
    has_target = batch.target != IGNORE
    target, level, weight = batch.target[has_target], batch.level[has_target], batch.weight[has_target]
    logits = model.logits(hidden[has_target])
    if batch.loss is None:
        ce = F.cross_entropy(logits, target, reduction="none")
    else:
        x0, xt = target[:, None], batch.tokens[has_target][:, None]
        ce = batch.loss(logits[:, None], x0, xt, batch.time[has_target])[:, 0].float()
    loss = (weight * ce).sum() / batch.norm
    if batch.certainty:
        right = (level >= 0) & (logits.argmax(-1) == target)
        loss = loss + batch.certainty * (weight[right] * entropy(logits[right])).sum() / batch.norm
    with torch.no_grad():
        bins = torch.where(level == IGNORE, NUM_LEVELS, torch.where(level == REVISED, NUM_LEVELS + 1, level))
        sums = ce.new_zeros(NUM_LEVELS + 2).index_add_(0, bins, ce.detach()).cpu().numpy()
        counts = torch.bincount(bins, minlength=NUM_LEVELS + 2).cpu().numpy()
    by_level = slice(0, NUM_LEVELS)
    return LossReport(loss, float(sums[NUM_LEVELS]), int(counts[NUM_LEVELS]), sums[by_level], counts[by_level])


def entropy(logits: Tensor) -> Tensor:
    """Entropy in nats (...,) of logits (..., V), some of which may be minus infinity."""
    log_probs = F.log_softmax(logits, dim=-1)
    return -(log_probs.exp() * log_probs.masked_fill(log_probs == float("-inf"), 0.0)).sum(-1)
