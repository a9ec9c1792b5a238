"""What a sampler needs of a noise process, in NumPy: where to begin, and how to go from t to an earlier s.

The formulas are those of `noise.absorbing`, `noise.replacing`, `noise.hybrid` and `noise.remasking`, which say where
they are from, and which the tests compare these with; schedules are linear, as those of `noise.process.process_of`.

Letters: B sequences, L positions, V vocabulary, N tokens that noise may draw.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from daguerre.errors import InputError
from daguerre.models.core.config import ModelConfig
from daguerre.noise.checks import check_process, check_step


class Reverse(Protocol):
    """A process undone."""

    @property
    def mask_id(self) -> int | None:
        """The token that stands for none yet, if the process has one."""

    def prior_from(self, u: np.ndarray) -> np.ndarray:
        """x_1 from uniform numbers on [0, 1), int64 of the same shape."""

    def posterior(self, xt_BL: np.ndarray, probs_BLV: np.ndarray, t: float, s: float) -> np.ndarray:
        """p(x_s given x_t, x_0 ~ probs) for 0 <= s < t <= 1, float64 (B, L, V). `probs` gives no mass to the mask."""


@dataclass(frozen=True)
class Unmasking:
    """The absorbing process undone. With `most` above 0 a token that is written becomes a mask again with probability
    min(most, s/(1-t)) (ReMDM).
    """

    mask_id: int
    most: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.most <= 1:
            raise InputError(f"remask must be a probability, from 0 to 1, not {self.most}")

    def prior_from(self, u: np.ndarray) -> np.ndarray:
        """All masks, whatever `u`."""
        return np.full(u.shape, self.mask_id)

    def posterior(self, xt_BL: np.ndarray, probs_BLV: np.ndarray, t: float, s: float) -> np.ndarray:
        """A mask stays one with probability (s - sigma (1-t)) / t; see `Reverse`."""
        check_step(t, s)
        sigma = min(self.most, s / (1 - t)) if t < 1 else self.most
        stay = (s - sigma * (1 - t)) / t
        masked = probs_BLV.astype(np.float64) * (1 - stay)
        masked[..., self.mask_id] = stay
        written = np.zeros_like(masked)
        np.put_along_axis(written, xt_BL[..., None], 1 - sigma, axis=-1)
        written[..., self.mask_id] = np.where(xt_BL == self.mask_id, 1 - sigma, sigma)
        return np.where((xt_BL == self.mask_id)[..., None], masked, written)


@dataclass(frozen=True)
class ReverseSteps:
    """A process with random tokens undone: uniform, or with a mask hybrid.

    drawn   bool (V,): the tokens that noise draws
    hybrid  p_uniform and gamma of a hybrid process
    """

    drawn: np.ndarray
    mask_id: int | None = None
    hybrid: tuple[float, float] = (0.1, 1.0)

    def prior_from(self, u: np.ndarray) -> np.ndarray:
        """Masks, or random tokens."""
        ids = np.flatnonzero(self.drawn)
        return ids[(u * len(ids)).astype(np.int64)] if self.mask_id is None else np.full(u.shape, self.mask_id)

    def posterior(self, xt_BL: np.ndarray, probs_BLV: np.ndarray, t: float, s: float) -> np.ndarray:
        """q(x_t given x_s) q_s(x_s given x_theta) / q_t(x_t given x_theta); a token that noise never draws stays."""
        check_step(t, s)
        (alpha_t, noise_t), (alpha_s, noise_s) = self._level(t), self._level(s)
        index, probs = xt_BL[..., None], probs_BLV.astype(np.float64)
        survive = alpha_t / alpha_s
        before, certain = alpha_s * probs + noise_s, noise_t[index] == 0
        now = alpha_t * np.take_along_axis(probs, index, -1) + noise_t[index]
        out = np.maximum(noise_t - survive * noise_s, 0)[index] * before
        with np.errstate(divide="ignore", invalid="ignore"):  # of tokens that stay
            again = np.take_along_axis(out, index, -1) + survive * np.take_along_axis(before, index, -1)
            np.put_along_axis(out, index, again, axis=-1)
            out /= now
        stays = np.zeros_like(out)
        np.put_along_axis(stays, index, 1.0, axis=-1)
        return np.where(certain, stays, out)

    def _level(self, t: float) -> tuple[float, np.ndarray]:
        """The share of tokens that survive to t, and of each token of the vocabulary the share that is it by noise."""
        alpha, each, mask = self.shares(t)
        noise = np.where(self.drawn, each, 0.0)
        if self.mask_id is not None:
            noise[self.mask_id] = mask
        return alpha, noise

    def shares(self, t: float) -> tuple[float, float, float]:
        """The share of tokens that survive to t, and by noise of each token that it draws, and of the mask."""
        num = int(self.drawn.sum())
        if self.mask_id is None:
            return 1 - t, t / num, 0.0
        odds = self.odds(t)
        return (1 - t) / (1 + odds), odds / (1 + odds) / num, t / (1 + odds)

    def odds(self, t: Any) -> Any:
        """c(t) of a hybrid process, of a number or an array."""
        share, gamma = self.hybrid
        return 2**gamma * share / (1 - share) * (t * (1 - t)) ** (gamma / 2)


def reverse_of(config: ModelConfig, remask: float = 0.0) -> Reverse:
    """What undoes the noise of a model: `noise.process.process_of`, or for the absorbing process `noise.remasking` with
    a probability of `remask`. UnsupportedError for a model without the mask that its process needs.
    """
    check_process(config)
    if config.process == "absorbing":
        assert config.mask_id is not None
        return Unmasking(config.mask_id, remask)
    first, end = config.noise_ids or (int(config.ordinary_ids[0]), int(config.ordinary_ids[-1]) + 1)
    drawn = np.zeros(config.vocab_size, np.bool_)
    drawn[first:end] = True
    if config.noise_ids is None:
        drawn[list(config.reserved_ids)] = False
    return ReverseSteps(drawn, config.mask_id if config.process == "hybrid" else None)
