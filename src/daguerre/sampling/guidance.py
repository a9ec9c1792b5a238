"""Guidance: a denoiser around another, whose logits lean toward the prompt, or to what a callable scores.

Classifier-free guidance (Ho and Salimans, arXiv 2207.12598; for masked text Nie et al., arXiv 2410.18514) asks a second
time with the prompt hidden, or a negative text in its place, and goes from that answer past the first:

    other + scale * (own - other)

A row's constant changes no law, so it is the same of logits and of log-probabilities. LLaDA writes scale - 1 for scale:
its `cfg_scale` s is our s + 1. At scale 1 the answer is the first one, to the bit, and the second is not asked for.

Letters: A asked positions, D tokens of a draft, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import count

import numpy as np
from torch import Tensor

from daguerre.canvas import Canvas, Decision
from daguerre.errors import InputError
from daguerre.models.config import ModelConfig
from daguerre.models.denoiser import Behind, CacheMode, Counts, Denoiser, Session, Verification
from daguerre.models.rows import Tree

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda share: 1.0,
    "linear": lambda share: share,
    "cosine": lambda share: (1 - math.cos(math.pi * share)) / 2,
}
"""How far from 1 to its value the scale is, by the share of the gaps that is committed. Little is known of a text of
which nothing stands yet, so two of them begin at nothing."""

Scorer = Callable[[Canvas, np.ndarray, np.ndarray], np.ndarray]
"""From the canvas, the asked positions int64 (A,) and their logits float32 (A, V) to what is added to these: (A, V) or
a shape that broadcasts to it, finite wherever the logits are. It must be a function of what it is given."""


@dataclass(frozen=True)
class Guidance:
    """What is done to logits: a `scale` and how it grows, and what a `scorer` adds."""

    scale: float = 1.0
    schedule: str = "constant"
    scorer: Scorer | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale >= 0):
            raise InputError(f"guidance must be a number from 0 up, and 1 is none; not {self.scale}")
        if self.scorer is not None and not callable(self.scorer):
            raise InputError(f"scorer must be callable, not {self.scorer!r:.40}")

    def at(self, canvas: Canvas) -> float:
        """The scale for a canvas."""
        share = 1 - float(canvas.open.sum() / canvas.in_gap.sum())
        return 1 + (self.scale - 1) * SCHEDULES[self.schedule](share)


def hidden_prefix(config: ModelConfig, num_prefix: int, negative: Sequence[int]) -> np.ndarray:
    """What stands for a prefix of `num_prefix` tokens, <bos> included, in the second question: <bos> and `negative`.

    Masks between the two keep gaps where they are in full context, as LLaDA hides its prompt, and at their place in
    the grid in block context. A settled row is never a mask in causal context, where the prompt is left out.
    """
    spare = num_prefix - 1 - len(negative)
    if config.context == "block":
        assert config.block_size is not None
        num_masks = spare % config.block_size
    else:
        num_masks = max(0, spare) if config.context == "full" else 0
    return np.array([config.bos_id, *[config.mask_id] * num_masks, *negative], dtype=np.int64)


class Guided:
    """A `Denoiser` around `denoiser`. prefix: int64 tokens that take the place of those before the first gap in the
    second question; None: there is none, and `guidance` has a scorer alone.
    """

    def __init__(self, denoiser: Denoiser, guidance: Guidance, prefix: np.ndarray | None) -> None:
        self.config = denoiser.config
        self._denoiser, self._guidance, self._prefix = denoiser, guidance, prefix

    def session(self, canvas: Canvas, cache: CacheMode = "auto") -> GuidedSession:
        """Sessions of both questions."""
        own = self._denoiser.session(canvas, cache)
        if self._prefix is None:
            return GuidedSession(own, self._guidance, None, None)
        other = self._denoiser.session(behind_prefix(canvas, self._prefix), cache)
        return GuidedSession(own, self._guidance, other, self._prefix)


def behind_prefix(canvas: Canvas, prefix: np.ndarray) -> Canvas:
    """The canvas with `prefix` in place of what is before its first gap; all else moves with it."""
    first = canvas.gaps[0][0]
    moved = len(prefix) - first
    return Canvas(
        np.concatenate([prefix, canvas.tokens[first:]]),
        np.concatenate([np.zeros(len(prefix), dtype=bool), canvas.open[first:]]),
        tuple((start + moved, end + moved) for start, end in canvas.gaps),
        None if canvas.span is None else (canvas.span[0] + moved, canvas.span[1] + moved),
    )


class GuidedSession:
    """A `Session` of one request. `counts` are of both questions together."""

    def __init__(self, own: Session, guidance: Guidance, other: Session | None, prefix: np.ndarray | None) -> None:
        self._own, self._guidance, self._other, self._prefix = own, guidance, other, prefix
        self.counts, self._counted = own.counts, Counts()

    def logits(self, canvas: Canvas, asked: np.ndarray) -> np.ndarray:
        """Float32 logits (A, V) of the asked positions; see `Session`."""
        own, other = self._own.logits(canvas, asked), None
        if self._other is not None and self._prefix is not None and self._guidance.at(canvas) != 1:
            moved = asked + len(self._prefix) - canvas.gaps[0][0]
            other = self._other.logits(behind_prefix(canvas, self._prefix), moved)
            self._count()
        return self._leaning(canvas, asked, own, other)

    def in_turn(self, canvas: Canvas) -> Behind:
        """Both answers, one position after the other; see `Session`."""
        first, other = int(canvas.asked()[0]), None
        own = self._own.in_turn(canvas)
        if self._other is not None and self._prefix is not None and self._guidance.at(canvas) != 1:
            other = self._other.in_turn(behind_prefix(canvas, self._prefix))
            self._count()
        return self._each(canvas, first, own, other)

    def noisy_logits(self, tokens_BL: Tensor, t: float, asked: np.ndarray) -> np.ndarray:
        """As they are: mode "ancestral" is not guided (`Decode`). See `Session`."""
        return self._own.noisy_logits(tokens_BL, t, asked)

    def branches(self, given: np.ndarray, tree: Tree, asked: np.ndarray) -> np.ndarray:
        """As they are: mode "beam" is not guided (`Decode`). See `Session`."""
        return self._own.branches(given, tree, asked)

    def verify(self, canvas: Canvas, draft: np.ndarray, ahead: int) -> Verification:
        """Both answers about a draft; each law leans as it does where it is asked for alone. See `Session`."""
        assert canvas.span is not None
        start = canvas.span[0]
        drafted = [_with_draft(canvas, draft[:num]) for num in range(len(draft) + 1)]
        own, other = self._own.verify(canvas, draft, ahead), None
        if self._other is not None and self._prefix is not None and any(self._guidance.at(c) != 1 for c in drafted):
            other = self._other.verify(behind_prefix(canvas, self._prefix), draft, ahead)
            self._count()

        def leaning(row: int, first: int, own_AV: np.ndarray, other_AV: np.ndarray | None) -> np.ndarray:
            return self._leaning(drafted[row], first + np.arange(len(own_AV)), own_AV, other_AV)

        def behind(row: int) -> Behind:
            theirs = None if other is None else other.behind(row)
            return self._each(drafted[row], start + row + 1, own.behind(row), theirs)

        laws = [
            leaning(row, start + row, own.logits[row : row + 1], None if other is None else other.logits[row : row + 1])
            for row in range(len(drafted))
        ]
        return Verification(np.concatenate(laws), behind)

    def _each(self, canvas: Canvas, first: int, own: Behind, other: Behind | None) -> Behind:
        """What is behind, from position `first` on, after guidance."""
        places = count(first)

        def behind(token: int) -> np.ndarray | None:
            law, against = own(token), None if other is None else other(token)
            if law is None:
                return None
            return self._leaning(
                canvas, np.array([next(places)]), law[None], None if against is None else against[None]
            )[0]

        return behind

    def _leaning(self, canvas: Canvas, asked: np.ndarray, own: np.ndarray, other: np.ndarray | None) -> np.ndarray:
        """Logits (A, V) after guidance; what is minus infinity stays so."""
        scale, out = self._guidance.at(canvas), own
        if other is not None and scale != 1:
            known = np.isfinite(own)
            difference = np.subtract(own, other, out=np.zeros_like(own), where=known)
            out = own + np.float32(scale - 1) * difference
        if self._guidance.scorer is not None:
            out = out + _scored(self._guidance.scorer, canvas, asked, out)
        return out

    def _count(self) -> None:
        """Add what the other session has computed since the last time."""
        assert self._other is not None
        now = replace(self._other.counts)
        for name in (field.name for field in fields(Counts)):
            new = getattr(now, name) - getattr(self._counted, name)
            setattr(self.counts, name, getattr(self.counts, name) + new)
        self._counted = now


def _with_draft(canvas: Canvas, draft: np.ndarray) -> Canvas:
    """The draft's tokens committed at the start of the active span, which then is the position behind them."""
    assert canvas.span is not None
    place = canvas.span[0] + len(draft)
    sure = np.ones(len(draft))
    return canvas.apply(Decision(np.arange(canvas.span[0], place), draft, sure, sure)).at((place, place + 1))


def _scored(scorer: Scorer, canvas: Canvas, asked: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """What a scorer adds, float32 (A, V); nothing to minus infinity. InputError when a number is not finite."""
    added = scorer(canvas, asked, logits.copy())
    try:
        out = np.broadcast_to(np.asarray(added, dtype=np.float32), logits.shape)
    except (TypeError, ValueError):
        raise InputError(f"the scorer's answer must have the shape of its logits, here {logits.shape}") from None
    out = np.where(np.isfinite(logits), out, np.float32(0))
    if not np.isfinite(out).all():
        raise InputError(
            "the scorer's answer must be finite: to ban a token, use logit_bias or a large negative number"
        )
    return out
