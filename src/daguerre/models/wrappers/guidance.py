"""Guidance: a wrapper of a denoiser that moves its logits toward the prompt, or by what a scorer adds.

Classifier-free guidance (Ho and Salimans, arXiv 2207.12598; for masked text Nie et al., arXiv 2410.18514) computes the
logits a second time with the prompt hidden, or replaced by a negative text, and extrapolates from these:

    unconditional + scale * (conditional - unconditional)

Logits and log-probabilities give the same result, because they differ by a constant for each row. LLaDA's
`cfg_scale` s is our scale s + 1. At scale 1 the answer is the conditional one, bit for bit, and the unconditional one
is not computed. Otherwise both are computed in one batch.

Letters: A wanted positions, D tokens of a draft, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from daguerre.canvas import Canvas
from daguerre.errors import InputError
from daguerre.models.core.config import ModelConfig
from daguerre.models.denoiser import CacheMode, Denoiser
from daguerre.models.forward import Answer, Ask, Backend, Logits, Rules
from daguerre.models.guidance import Guidance, Scorer
from daguerre.models.rows import Tree
from daguerre.models.session import Asking, Counts, NextLogits, Session, Verification, together
from daguerre.models.wrappers.rewriting import with_draft


def unconditional_prefix(config: ModelConfig, num_prefix: int, negative: Sequence[int]) -> np.ndarray:
    """What replaces a prefix of `num_prefix` tokens, <bos> included, for unconditional logits: <bos>, if the model has
    one, and `negative`.

    Masks between the two keep the positions of gaps in full context (LLaDA hides its prompt so) and their offset in the
    grid of blocks in block context. In causal context a clean row is never a mask, so the prompt is left out. Where
    a first position is predicted by the token before it, something comes first: a whole block of masks, and in causal
    context <eos>, after which texts begin where documents are packed.
    """
    spare = num_prefix - len(config.first) - len(negative)
    if config.context == "block":
        assert config.block_size is not None
        num_masks = spare % config.block_size
    else:
        num_masks = max(0, spare) if config.context == "full" else 0
    start = [*config.first, *[config.placeholder] * num_masks]
    if config.shift and not (start or negative):
        start = [config.placeholder] * (config.block_size or 1) if config.context == "block" else [config.eos_id]
    return np.array([*start, *negative], dtype=np.int64)


class Guided:
    """A `Denoiser` that wraps `denoiser`. prefix: int64 tokens that replace those before the first gap for
    unconditional logits; None: these are not computed, and `guidance` has only a scorer.
    """

    def __init__(self, denoiser: Denoiser, guidance: Guidance, prefix: np.ndarray | None) -> None:
        self.config = denoiser.config
        self._denoiser, self._guidance, self._prefix = denoiser, guidance, prefix

    @property
    def backend(self) -> Backend:
        """The backend of the wrapped denoiser."""
        return self._denoiser.backend

    def session(self, canvas: Canvas, cache: CacheMode = "auto") -> GuidedSession:
        """A fresh session, with one inner session for each of the two kinds of logits."""
        inner = self._denoiser.session(canvas, cache)
        if self._prefix is None:
            return GuidedSession(inner, self._guidance, None, None)
        other = self._denoiser.session(with_prefix(canvas, self._prefix), cache)
        return GuidedSession(inner, self._guidance, other, self._prefix)


def with_prefix(canvas: Canvas, prefix: np.ndarray) -> Canvas:
    """The canvas with `prefix` in place of the tokens before its first gap; all later positions shift accordingly."""
    first = canvas.gaps[0][0]
    moved = len(prefix) - first
    return Canvas(
        np.concatenate([prefix, canvas.tokens[first:]]),
        np.concatenate([np.zeros(len(prefix), dtype=bool), canvas.open[first:]]),
        tuple((start + moved, end + moved) for start, end in canvas.gaps),
        None if canvas.span is None else (canvas.span[0] + moved, canvas.span[1] + moved),
    )


class GuidedSession:
    """A `Session` of one request. `counts` include conditional and unconditional forwards."""

    draws: bool = False

    def __init__(self, own: Session, guidance: Guidance, other: Session | None, prefix: np.ndarray | None) -> None:
        self._own, self._guidance, self._other, self._prefix = own, guidance, other, prefix
        self.counts: Counts = own.counts
        self.explains = own.explains
        if other is not None:
            other.counts = own.counts

    def ask(self, canvas: Canvas, positions: np.ndarray, ask: Ask) -> Asking[Answer]:
        """Guided float32 logits (A, V) of the wanted positions; see `Session`."""
        assert isinstance(ask, Logits)
        own, against = self._own.ask(canvas, positions, ask), None
        if self._needs_unconditional(canvas):
            assert self._other is not None and self._prefix is not None
            moved = positions + len(self._prefix) - canvas.gaps[0][0]
            against = self._other.ask(self._with_prefix(canvas), moved, ask)
        return (yield from self._both(canvas, positions, own, against))

    def draft(self, canvas: Canvas, num: int, ask: Ask) -> Asking[Answer]:
        """Guided float32 logits of a draft, as if all of it came next; see `Session`."""
        assert isinstance(ask, Logits) and canvas.span is not None
        own, against = self._own.draft(canvas, num, ask), None
        if self._needs_unconditional(canvas):
            assert self._other is not None
            against = self._other.draft(self._with_prefix(canvas), num, ask)
        return (yield from self._both(canvas, canvas.span[0] + np.arange(num), own, against))

    def _both(
        self, canvas: Canvas, positions: np.ndarray, own: Asking[Answer], against: Asking[Answer] | None
    ) -> Asking[Answer]:
        """The answer with logits that are guided by those of the unconditional one, if there is one."""
        if against is None:
            answer, other = (yield from own), Answer()
        else:
            answer, other = yield from together(own, against)
        assert answer.logits is not None
        logits = self._guided(canvas, positions, answer.logits, other.logits)
        return replace(answer, logits=logits, evidence=self.told([canvas], answer.evidence, other.evidence))

    def sequential_logits(self, canvas: Canvas) -> Asking[NextLogits]:
        """Guided logits, one position at a time; see `Session`."""
        first, own, other = int(canvas.active_positions()[0]), self._own.sequential_logits(canvas), None
        if self._needs_unconditional(canvas):
            assert self._other is not None
            found, other = yield from together(own, self._other.sequential_logits(self._with_prefix(canvas)))
        else:
            found = yield from own
        return _GuidedNextLogits(self, canvas, first, found, other)

    def verify(
        self, canvas: Canvas, draft: np.ndarray, ahead: int, ends: tuple[int, ...] | None = None
    ) -> Asking[Verification]:
        """Guided verification; each distribution is guided as `ask` would guide it. See `Session`."""
        assert canvas.span is not None
        start = canvas.span[0]
        drafted = [with_draft(canvas, draft[:num]) for num in range(len(draft) + 1)]
        own, other = self._own.verify(canvas, draft, ahead, ends), None
        if any(map(self._needs_unconditional, drafted)):
            assert self._other is not None
            unconditional = self._other.verify(self._with_prefix(canvas), draft, ahead, ends)
            found, other = yield from together(own, unconditional)
        else:
            found = yield from own

        def following(row: int) -> NextLogits:
            against = None if other is None else other.following(row)
            return _GuidedNextLogits(self, drafted[row], start + row + 1, found.following(row), against)

        rows = [slice(row, row + 1) for row in range(len(drafted))]
        logits = [
            self._guided(
                at, np.array([start + row.start]), found.logits[row], None if other is None else other.logits[row]
            )
            for at, row in zip(drafted, rows, strict=True)
        ]
        said = self.told(drafted, found.evidence, None if other is None else other.evidence)
        return Verification(np.concatenate(logits), following, said)

    def cycle(
        self,
        canvas: Canvas,
        draft: np.ndarray,
        ahead: int,
        ends: tuple[int, ...] | None,
        rules: Rules,
        worth: float,
    ) -> Asking[Answer]:
        """Never called, because `draws` is False. See `Session`."""
        raise AssertionError("a guided session does not draw")

    def tree_logits(self, given: np.ndarray, tree: Tree, wanted: np.ndarray) -> Asking[Answer]:
        """Unguided logits: mode "beam" is not guided (`Decode`). See `Session`."""
        return self._own.tree_logits(given, tree, wanted)

    def tree_log_probs(self, given: np.ndarray, tree: Tree, wanted: np.ndarray) -> Asking[np.ndarray]:
        """Unguided. See `Session`."""
        return self._own.tree_log_probs(given, tree, wanted)

    def ask_noisy(self, tokens: np.ndarray, level: float, positions: np.ndarray) -> Asking[Answer]:
        """Unguided logits: mode "ancestral" is not guided (`Decode`). See `Session`."""
        return self._own.ask_noisy(tokens, level, positions)

    def ask_tokens(self, clean: np.ndarray, noisy: np.ndarray, ask: Ask, conditioning: Any = None) -> Asking[Answer]:
        """Unguided: mode "renoise" is not guided (`Decode`). See `Session`."""
        return self._own.ask_tokens(clean, noisy, ask, conditioning)

    def _needs_unconditional(self, canvas: Canvas) -> bool:
        return self._other is not None and self._guidance.at(canvas) != 1

    def _with_prefix(self, canvas: Canvas) -> Canvas:
        assert self._prefix is not None
        return with_prefix(canvas, self._prefix)

    def told(self, canvases: Sequence[Canvas], own: np.ndarray | None, other: np.ndarray | None) -> np.ndarray | None:
        """The evidence, (A, 2P, E), of the conditional one, (A, P, E), and of the unconditional one: each part is
        weighed by its share of the logits. The canvases are one for all rows, or one for each. A head's own evidence
        stays that of the conditional distribution.
        """
        if own is None or self._other is None or not self.explains:
            return own
        scale = np.array([[self._guidance.at(canvas)] for canvas in canvases], dtype=np.float32)
        own, other = own.copy(), np.zeros_like(own) if other is None else other.copy()
        own[..., 0] *= scale
        other[..., 0] *= 1 - scale
        return np.concatenate([own, other], axis=1)

    def _guided(self, canvas: Canvas, positions: np.ndarray, own: np.ndarray, other: np.ndarray | None) -> np.ndarray:
        """Logits (A, V) after guidance; minus infinity stays minus infinity."""
        scale, out = self._guidance.at(canvas), own
        if other is not None and scale != 1:
            known = np.isfinite(own)
            difference = np.subtract(own, other, out=np.zeros_like(own), where=known)
            out = own + np.float32(scale - 1) * difference
        if self._guidance.scorer is not None:
            out = out + _scored(self._guidance.scorer, canvas, positions, out)
        return out


class _GuidedNextLogits:
    """Guided distributions of consecutive positions, from `first` on."""

    def __init__(
        self, session: GuidedSession, canvas: Canvas, first: int, own: NextLogits, other: NextLogits | None
    ) -> None:
        self._session, self._canvas, self._places = session, canvas, count(first)
        self._own, self._other = own, other

    @property
    def evidence(self) -> np.ndarray | None:
        """The evidence for the last distribution."""
        other = None if self._other is None else self._other.evidence
        return self._session.told([self._canvas], self._own.evidence, other)

    def after(self, token: int) -> Asking[np.ndarray | None]:
        """The guided logits of the next position; see `NextLogits`."""
        if self._other is None:
            logits, against = (yield from self._own.after(token)), None
        else:
            logits, against = yield from together(self._own.after(token), self._other.after(token))
        if logits is None:
            return None
        position = np.array([next(self._places)])
        other = None if against is None else against[None]
        return self._session._guided(self._canvas, position, logits[None], other)[0]


def _scored(scorer: Scorer, canvas: Canvas, positions: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """What a scorer adds, float32 (A, V); 0 where the logits are minus infinity. InputError if it is not finite."""
    added = scorer(canvas, positions, logits.copy())
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
