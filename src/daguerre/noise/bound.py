"""Likelihoods under noise with random tokens, in NumPy: a draw of the noise, and the bound's integrand.

The formulas are those of `noise.replacing`, which says where they are from, and which the tests compare these with. So
are the random numbers: those of PyTorch's generator on a CPU, which is MT19937.

Letters: B sequences, L positions, V vocabulary, N tokens that noise may draw.
"""

from __future__ import annotations

import numpy as np

from daguerre.noise.checks import check_inside
from daguerre.noise.reverse import ReverseSteps

LOW = 0xFFFFFFFF


class Uniforms:
    """The numbers of `torch.rand` in float64 after `torch.Generator().manual_seed`."""

    def __init__(self, seed: int) -> None:
        self._words = np.random.RandomState(seed & LOW)

    def draw(self, shape: tuple[int, ...]) -> np.ndarray:
        """Numbers on [0, 1), float64: 53 of the bits of two draws, the first of which are the high ones."""
        words = self._words.randint(0, LOW + 1, (*shape, 2), np.uint32).astype(np.uint64)
        whole = (words[..., 0] << np.uint64(32) | words[..., 1]) & np.uint64((1 << 53) - 1)
        out: np.ndarray = whole * 2.0**-53
        return out


class NoisyBound:
    """The bound of a process with random tokens (`noise.replacing`), whose levels are those of `steps`."""

    def __init__(self, steps: ReverseSteps) -> None:
        self._steps, self._ids = steps, np.flatnonzero(steps.drawn)

    def corrupt(self, x0_BL: np.ndarray, t_B: np.ndarray, seed: int) -> np.ndarray:
        """A draw from q(x_t given x_0)."""
        alpha, _, mask = self._levels(t_B)
        u, which = Uniforms(seed).draw((2, *x0_BL.shape))
        noise = self._ids[(which * len(self._ids)).astype(np.int64)]
        if self._steps.mask_id is not None:
            noise = np.where(u < alpha + mask, self._steps.mask_id, noise)
        return np.where(u < alpha, x0_BL, noise)

    def nelbo(self, logits_BLV: np.ndarray, x0_BL: np.ndarray, xt_BL: np.ndarray, t_B: np.ndarray) -> np.ndarray:
        """Integrand of the NELBO over t in (0, 1), nats a token, float64 (B, L)."""
        check_inside(t_B)
        alpha, each, mask = self._levels(t_B)
        drawn = self._spread(xt_BL, np.ones(1), np.ones(1)) > 0
        x0, xt = (np.where(drawn, tokens, self._ids[0]) for tokens in (x0_BL, xt_BL))  # others would be 0/0
        noise_0, noise_z, log_probs = self._spread(x0, each, mask), self._spread(xt, each, mask), self._logs(logits_BLV)
        log_0, log_t = (np.take_along_axis(log_probs, x[..., None], -1)[..., 0] + np.log(alpha) for x in (x0, xt))
        q_0, q_z = alpha + noise_0, noise_z + alpha * (xt == x0)
        with np.errstate(divide="ignore"):
            of_x0 = q_0 * (np.log(q_0) - np.logaddexp(log_0, np.log(noise_0)))
            of_x0 += noise_0 * np.logaddexp(log_0 - np.log(each), 0.0)
            log_r = np.log(q_z) - np.logaddexp(log_t, np.log(noise_z))
        ratio = (alpha / each)[..., None] * np.exp(log_probs[..., self._ids])
        kl = of_x0 - each * np.log1p(ratio).sum(axis=-1)
        weight = self._spread(xt, *self._arrivals(t_B)) / q_z
        return np.where(drawn, weight * (kl + np.expm1(log_r) - log_r), 0.0)

    def _levels(self, t_B: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """alpha, and the noise of each token that it draws and of the mask, (B, 1) each."""
        found = np.array([self._steps.shares(t) for t in t_B.tolist()])
        return found[:, :1], found[:, 1:2], found[:, 2:]

    def _arrivals(self, t_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """At which rate any token turns into each one that noise draws, and into the mask, (B, 1) each."""
        t, num = t_B[:, None], len(self._ids)
        if self._steps.mask_id is None:
            return 1 / (1 - t) / num, np.zeros_like(t)
        odds, gamma = self._steps.odds(t), self._steps.hybrid[1]
        mask = 1 / ((1 + odds) * (1 - t))
        return mask * odds * (1 - gamma + gamma / (2 * t)) / num, mask

    def _spread(self, tokens: np.ndarray, each: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """`each` at tokens that noise draws, `mask` at masks, 0 at others."""
        out = np.where(self._steps.drawn[tokens], each, 0.0)
        return out if self._steps.mask_id is None else np.where(tokens == self._steps.mask_id, mask, out)

    def _logs(self, logits_BLV: np.ndarray) -> np.ndarray:
        """log x_theta, float64; the mask's logit is left out."""
        logits = logits_BLV.astype(np.float64)
        if self._steps.mask_id is not None:
            logits[..., self._steps.mask_id] = -np.inf
        logits -= logits.max(axis=-1, keepdims=True)
        out: np.ndarray = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        return out
