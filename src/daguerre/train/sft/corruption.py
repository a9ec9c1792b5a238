"""Wrong tokens among the visible ones of answers, which a model learns to correct: what a stage may plant.

    random  a share of the visible tokens is replaced by others, drawn uniformly (token-to-token, LLaDA2.1)
    self    the same, by the model's own most likely wrong tokens (arXiv 2606.17175; `train.self_generated`)
    hybrid  masks and random tokens are as the hybrid process has them at the text's level: GIDD, and SCDD (arXiv
            2603.02230), whose noisy texts have the same distribution
    edit    a text is there once more, without masks, its answer changed by some insertions, deletions and
            substitutions, and all of it is learned (Seed Diffusion, arXiv 2508.02193)

The loss of what is corrected is its mean cross-entropy, added to the loss of what is masked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from daguerre.models.core.config import ModelConfig
from daguerre.noise.hybrid import Hybrid
from daguerre.train.noising import Ints
from daguerre.train.objectives import MIN_TIME


@dataclass(frozen=True)
class Planted:
    """What a span holds besides its masks: the tokens that are read, int64, which of them are learned, and which the
    model's own guess replaces, bool each.
    """

    read: Ints
    learned: np.ndarray
    guessed: np.ndarray


def plant_random(
    tokens: Ints, visible: np.ndarray, share: float, config: ModelConfig, rng: np.random.Generator, guess: bool
) -> Planted:
    """A `share` of the visible tokens, each independently, replaced by others or by the model's guesses."""
    wrong = visible & (rng.random(len(tokens)) < share)
    read = np.where(wrong & (not guess), others(tokens, config, rng), tokens)
    return Planted(read, wrong, wrong & guess)


def plant_hybrid(
    tokens: Ints, free: np.ndarray, t: float, share: float, config: ModelConfig, rng: np.random.Generator
) -> tuple[np.ndarray, Planted]:
    """Which free tokens are masked, and what is planted, by the hybrid process whose share of random tokens is greatest
    at t = 1/2, where it is `share`. At least one token is masked.
    """
    assert config.mask_id is not None
    ordinary = config.ordinary_ids
    first, last = int(ordinary[0]), int(ordinary[-1])
    holes = tuple(i for i in config.reserved_ids if first <= i <= last)
    process = Hybrid((first, last + 1), config.mask_id, p_uniform=share, holes=holes)
    level = torch.tensor([min(max(t, MIN_TIME), 1 - MIN_TIME)], dtype=torch.float64)
    generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
    noisy = process.corrupt(torch.from_numpy(tokens)[None], level, generator)[0].numpy()
    masked = free & (noisy == config.mask_id)
    if not masked.any():
        masked[rng.choice(np.flatnonzero(free))] = True
    wrong = free & ~masked & (noisy != tokens)
    return masked, Planted(np.where(wrong, noisy, tokens), wrong, np.zeros(len(tokens), dtype=bool))


def plant_edits(tokens: Ints, free: np.ndarray, share: float, config: ModelConfig, rng: np.random.Generator) -> Planted:
    """The free tokens changed by floor(n alpha) edits, alpha uniform in [0, share]; all of them are learned.

    What is moved past the end is cut off; where too little is left masks follow, so that every token keeps its place.
    """
    places = np.flatnonzero(free)
    edited = edits(tokens[places], int(len(places) * rng.uniform(0, share)), config, rng)
    read = tokens.copy()
    read[places] = np.concatenate([edited, np.full(len(places), config.placeholder)])[: len(places)]
    return Planted(read, free.copy(), np.zeros(len(tokens), dtype=bool))


def edits(tokens: Ints, num: int, config: ModelConfig, rng: np.random.Generator) -> Ints:
    """Tokens after `num` insertions, deletions and substitutions, each kind as likely, at places drawn uniformly."""
    out = tokens.copy()
    for _ in range(num):
        kind = rng.integers(3) if len(out) else 0
        if kind == 0:
            out = np.insert(out, rng.integers(len(out) + 1), rng.choice(config.ordinary_ids))
        else:
            place = int(rng.integers(len(out)))
            out = np.delete(out, place) if kind == 1 else _with(out, place, others(out[[place]], config, rng)[0])
    return out


def _with(tokens: Ints, place: int, token: int) -> Ints:
    tokens[place] = token
    return tokens


def others(tokens: Ints, config: ModelConfig, rng: np.random.Generator) -> Ints:
    """Ordinary tokens, each drawn uniformly from all but the token in its place."""
    ordinary = config.ordinary_ids
    place = np.searchsorted(ordinary, tokens)
    known = ordinary[np.minimum(place, len(ordinary) - 1)] == tokens
    drawn = rng.integers(0, len(ordinary) - known)
    return ordinary[drawn + (known & (drawn >= place))]
