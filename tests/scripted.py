"""A backend whose logits are a test's, and denoisers that run on it: real sessions, answers by NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from daguerre.canvas import Canvas
from daguerre.models.backbone_session import BackboneSession
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import (
    Answer,
    Cycle,
    DraftStep,
    Draws,
    Forward,
    Hidden,
    Logits,
    LogProbs,
    Rules,
    SequentialDraws,
    acceptance_of,
)
from daguerre.sampling.logits import Proposals, SamplingParams, biased, log_softmax, propose
from daguerre.sampling.rules import Forbidden

Says = Callable[[Canvas, int], dict[int, float]]
"""From what a row sees, and the position that it predicts, to logits of tokens; all others are -20. A position is open
where the row sees a mask, or nothing."""


class TokenCache:
    """What clean rows have read, in place of their keys."""

    def __init__(self) -> None:
        self.tokens = self.positions = np.zeros(0, dtype=np.int64)

    @property
    def length(self) -> int:
        return len(self.tokens)

    def truncate(self, length: int) -> None:
        self.tokens, self.positions = self.tokens[:length], self.positions[:length]

    def moved(self, by: np.ndarray) -> TokenCache:
        other = TokenCache()
        other.tokens, other.positions = self.tokens, self.positions + by
        return other


@dataclass
class Scripted:
    """A denoiser, and its own backend, whose logits are what a test `says`.

    asked  the positions that each forward predicts
    draws  False: its sessions are asked for logits alone, as those of guidance are
    """

    config: ModelConfig
    says: Says
    draws: bool = True
    asked: list[list[int]] = field(default_factory=list)

    @property
    def backend(self) -> Any:
        return self

    def session(self, canvas: Canvas, cache: str = "auto") -> BackboneSession:
        kept = None if cache == "none" or self.config.context == "full" else TokenCache()
        session = BackboneSession(self.config, kept)
        session.draws = self.draws
        return session

    def cache(self, capacity: int, *, int8: bool = False) -> TokenCache:
        return TokenCache()

    def forward(self, batch: Sequence[Forward | DraftStep]) -> list[Answer]:
        return [self._step(one) if isinstance(one, DraftStep) else self._answer(one) for one in batch]

    def _step(self, ask: DraftStep) -> Answer:
        """There is no draft head, and hidden states are the logits themselves."""
        return Answer(hidden=ask.rows, logits=ask.rows.copy())

    def _answer(self, forward: Forward) -> Answer:
        logits, ask = self._logits(forward), forward.ask
        if isinstance(ask, Hidden):
            return Answer(hidden=logits)
        if isinstance(ask, Logits):
            return Answer(logits=logits)
        if isinstance(ask, LogProbs):
            return Answer(log_probs=log_softmax(logits)[np.arange(len(logits)), ask.tokens])
        if isinstance(ask, Draws):
            made = drawn(ask.rules, ask.positions, logits, entropy=ask.entropy, num_best=ask.num_best)
            return Answer(
                tokens=made.tokens,
                probabilities=made.probabilities,
                entropies=made.entropies,
                best_probabilities=made.best,
            )
        if isinstance(ask, SequentialDraws):
            tokens, probabilities = draw_sequentially(ask.rules, ask.positions, logits)
            below = np.flatnonzero(probabilities[1:] < ask.threshold)
            num = len(tokens) if not below.size else int(below[0]) + 2
            return Answer(tokens=tokens[:num], probabilities=probabilities[:num])
        return cycle(ask, logits)

    def _logits(self, forward: Forward) -> np.ndarray:
        """Float32 (A, V), of the wanted rows."""
        cache, layout = forward.cache, forward.layout
        tokens, positions, past = forward.tokens, layout.position, 0
        if cache is not None:
            assert isinstance(cache, TokenCache)
            past = cache.length
            tokens, positions = np.concatenate([cache.tokens, tokens]), np.concatenate([cache.positions, positions])
            end = past + layout.num_clean
            cache.tokens, cache.positions = tokens[:end], positions[:end]
        seen, own = layout.dense(past), layout.position[forward.wanted] + int(self.config.shift)
        self.asked.append(own.tolist())
        out = np.full((len(own), self.config.vocab_size), -20.0, dtype=np.float32)
        for row, position, sees in zip(out, own.tolist(), seen[forward.wanted], strict=True):
            for token, logit in self.says(self._view(tokens[sees], positions[sees], position), position).items():
                row[token] = logit
        return out

    def _view(self, tokens: np.ndarray, positions: np.ndarray, position: int) -> Canvas:
        """What a row sees, as a canvas up to the last position that it knows of."""
        assert len(np.unique(positions)) == len(positions), "a row sees a position twice"
        length = max(position, positions.max(initial=0)) + 1
        whole, opened = np.full(length, self.config.mask_id), np.ones(length, dtype=bool)
        whole[positions], opened[positions] = tokens, tokens == self.config.mask_id
        edges = np.flatnonzero(np.diff(np.concatenate([[0], opened, [0]])))
        return Canvas(whole, opened, tuple(pairwise(edges.tolist()))[::2])


def drawn(rules: Rules, positions: np.ndarray, logits: np.ndarray, **more: Any) -> Proposals:
    """Draws by the NumPy reference from logits (A, V), which stay as they are."""
    params = SamplingParams(rules.temperature, rules.top_p, rules.top_k, rules.logit_bias, rules.min_p)
    logits = biased(logits.copy(), params)
    bans = tuple((token, start, end) for token, start, end in rules.bans.tolist())
    Forbidden(bans, rules.allowed_at, () if rules.allowed is None else tuple(rules.allowed)).apply(positions, logits)
    noise = None
    if rules.temperature:
        assert rules.rng is not None
        noise = rules.rng.exponential(rules.purpose, positions, rules.step, logits.shape[-1])
    return propose(positions, logits, params, noise, **more)


def draw_sequentially(rules: Rules, positions: np.ndarray, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and probabilities, one position after the other."""
    made = [drawn(rules, positions[row : row + 1], logits[row : row + 1]) for row in range(len(positions))]
    tokens = np.array([one.tokens[0] for one in made], dtype=np.int64)
    return tokens, np.array([one.probabilities[0] for one in made])


def cycle(ask: Cycle, logits: np.ndarray) -> Answer:
    """A cycle of speculation by its definition; a model without a draft head."""
    num = len(ask.draft) + 1
    made = drawn(ask.rules, ask.positions, logits[:num])
    place = 0
    while place < len(ask.draft) and made.tokens[place] == ask.draft[place]:
        place += 1
    behind = logits[num:][ask.groups[place] : ask.groups[place + 1]]
    draft, probabilities = draw_sequentially(ask.rules, ask.positions[place] + 1 + np.arange(len(behind)), behind)
    acceptance = np.array([acceptance_of(probability, ask.rules.temperature) for probability in probabilities])
    num = int((np.cumprod(acceptance) >= ask.worth).sum())
    return Answer(None, None, None, made.tokens, made.probabilities, draft=draft[:num], acceptance=acceptance[:num])
