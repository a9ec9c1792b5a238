"""What the processes with noise among the tokens share: one formula each for corruption, posterior and NELBO.

    q(x_t given x_0) = alpha_t [x_t = x_0] + noise_t(x_t)

The noise does not depend on x_0: some mass for the mask, and the same mass for each of N ordinary tokens. A token turns
into another one, y, at the rate jump_t(y) = noise_t'(y) - (alpha_t'/alpha_t) noise_t(y), whatever it was. With x = x_0
and the model's distribution x_theta in its place, the integrand of the NELBO in continuous time is then

    jump_t(z) / q_t(z given x) * [ KL(q_t(. given x) || q_t(. given x_theta)) + r - log r - 1 ],
    z = x_t,  r = q_t(z given x) / q_t(z given x_theta)

(GIDD, arXiv 2503.04482). With all mass on the mask it is MDLM's, with none there UDLM's and Duo's.

What x_theta is. The bound is smallest, and equal to the entropy of the text, for x_theta(i) = p(x_0(i) given x_t
without its position i), not for p(x_0(i) given x_t): noise_t knows what x_t(i) itself says about x_0(i), by Bayes'
rule, and `cross_entropy` adds it. Both losses have the same minimum.

Letters: B sequences, L positions, V vocabulary, N tokens that noise may draw.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from daguerre.errors import InputError
from daguerre.noise.checks import check_inside, check_step


@dataclass(frozen=True, eq=False)
class Marginals:
    """alpha_t, and noise_t of each noise token and of the mask; their sum alpha + N each + mask is 1. Tensors (B,)."""

    alpha: Tensor
    each: Tensor
    mask: Tensor


@dataclass(frozen=True)
class Replacing(ABC):
    """Every token is replaced independently by a draw of the noise.

    noise_ids  [first, end): the N ids that uniform noise draws. Ids outside, reserved ones and the end of text, never
               appear as noise: such an id is known to be clean, and it stays to the end. Where such an id is
               part of the text (<eos>, <null>) it is corrupted like any other; what is given to the model
               (<bos>, a prompt) is for the caller to put back and to leave out of a loss.
    mask_id    the mask, outside of noise_ids, or None
    holes      ids within [first, end) that noise does not draw either
    """

    noise_ids: tuple[int, int]
    mask_id: int | None
    holes: tuple[int, ...] = field(default=(), kw_only=True)
    needs_time: ClassVar[bool] = True

    def __post_init__(self) -> None:
        first, end = self.noise_ids
        if not 0 <= first < end:
            raise InputError(f"noise_ids must be a run [first, end) of token ids, not {self.noise_ids}")
        if self.mask_id is not None and first <= self.mask_id < end and self.mask_id not in self.holes:
            raise InputError(f"the mask {self.mask_id} must lie outside of noise_ids {self.noise_ids}")

    @abstractmethod
    def level(self, t: Tensor) -> Marginals:
        """alpha and noise at times t in [0, 1], any shape."""

    @abstractmethod
    def arrival(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """jump_t of each noise token and of the mask at times t in (0, 1), same shape."""

    @abstractmethod
    def prior_from(self, u: Tensor) -> Tensor:
        """x_1 from uniform numbers on [0, 1), int64 of the same shape."""

    @property
    def num_noise(self) -> int:
        """N."""
        return len(self.drawn_ids)

    @cached_property
    def drawn_ids(self) -> Tensor:
        """The ids that noise draws, int64 (N,), ascending."""
        ids = torch.arange(*self.noise_ids)
        return ids[~torch.isin(ids, torch.tensor(self.holes, dtype=torch.int64))]

    def uniform_tokens(self, u: Tensor) -> Tensor:
        """Tokens of noise_ids from uniform numbers on [0, 1), int64 of the same shape."""
        return self.drawn_ids.to(u.device)[(u * self.num_noise).long()]

    def spread(self, tokens: Tensor, each: Tensor, mask: Tensor) -> Tensor:
        """`each` at noise tokens, `mask` at masks, 0 at other tokens; shapes broadcast."""
        drawn = (tokens >= self.noise_ids[0]) & (tokens < self.noise_ids[1])
        if self.holes:
            drawn &= ~torch.isin(tokens, torch.tensor(self.holes, device=tokens.device))
        out = torch.where(drawn, each, 0.0)
        return out if self.mask_id is None else torch.where(tokens == self.mask_id, mask, out)

    def corrupt(self, x0_BL: Tensor, t_B: Tensor, generator: torch.Generator) -> Tensor:
        """A draw from q(x_t given x_0)."""
        level = self.level(t_B.double())
        u, which = torch.rand((2, *x0_BL.shape), generator=generator, dtype=torch.float64, device=x0_BL.device)
        noise = self.uniform_tokens(which)
        if self.mask_id is not None:
            noise = torch.where(u < (level.alpha + level.mask)[:, None], self.mask_id, noise)
        return torch.where(u < level.alpha[:, None], x0_BL, noise)

    def jump_rate(self, xt_BL: Tensor, t_B: Tensor) -> Tensor:
        """jump_t(x_t), the rate at which any other token turns into x_t, float64 (B, L)."""
        each, mask = self.arrival(t_B.double())
        return self.spread(xt_BL, each[:, None], mask[:, None])

    def posterior(self, xt_BL: Tensor, probs_BLV: Tensor, t: float, s: float) -> Tensor:
        """p(x_s given x_t) for s < t, float64 (B, L, V), from `probs`, x_theta, with no mass on the mask.

        q(x_t given x_s) q_s(x_s given x_theta) / q_t(x_t given x_theta): UDLM's and GIDD's posterior with x_theta for
        x_0. With x_theta as above it is Bayes' rule. A token that noise never draws stays.
        """
        check_step(t, s)
        times = torch.tensor([t, s], dtype=torch.float64, device=probs_BLV.device)
        level = self.level(times)
        ids = torch.arange(probs_BLV.shape[-1], device=probs_BLV.device)
        noise_t, noise_s = self.spread(ids, level.each[:, None], level.mask[:, None])
        (alpha_t, alpha_s), index = level.alpha, xt_BL[..., None]
        survive = alpha_t / alpha_s
        before = alpha_s * probs_BLV.double() + noise_s
        now = alpha_t * probs_BLV.double().gather(-1, index) + noise_t[index]
        out = (noise_t - survive * noise_s).clamp_min(0)[index] * before
        out = out.scatter_add(-1, index, survive * before.gather(-1, index)) / now
        stays = torch.zeros_like(out).scatter_(-1, index, 1.0)
        return torch.where(noise_t[index] == 0, stays, out)

    def weight(self, x0_BL: Tensor, xt_BL: Tensor, t_B: Tensor) -> Tensor:
        """jump_t(z) / q_t(z given x_0) of the NELBO, float64 (B, L); 0 at tokens that noise never draws."""
        level = self.level(t_B.double())
        q = self.spread(xt_BL, level.each[:, None], level.mask[:, None]) + level.alpha[:, None] * (xt_BL == x0_BL)
        return self.jump_rate(xt_BL, t_B) / q

    def divergence(self, logits_BLV: Tensor, x0_BL: Tensor, xt_BL: Tensor, t_B: Tensor) -> Tensor:
        """KL(q_t(. given x_0) || q_t(. given x_theta)) + r - log r - 1, float64 (B, L); 0 where noise never draws x_t.

        The sum over noise tokens is -sum_y noise log1p(alpha x_theta(y) / noise), exact where x_theta is small.
        """
        check_inside(t_B)
        level = self.level(t_B.double())
        alpha, each, mask = level.alpha[:, None], level.each[:, None], level.mask[:, None]
        drawn, (x0, xt) = self._drawn(x0_BL, xt_BL)
        log_probs = self._log_probs(logits_BLV)
        ratio = (alpha / each)[..., None] * log_probs[..., self.drawn_ids.to(log_probs.device)].exp()
        noise_0 = self.spread(x0, each, mask)
        log_0 = log_probs.gather(-1, x0[..., None])[..., 0] + alpha.log()
        log_t = log_probs.gather(-1, xt[..., None])[..., 0] + alpha.log()
        q_0 = alpha + noise_0
        of_x0 = q_0 * (q_0.log() - torch.logaddexp(log_0, noise_0.log()))
        of_x0 = of_x0 + noise_0 * torch.logaddexp(log_0 - each.log(), torch.zeros_like(log_0))
        kl = of_x0 - each * ratio.log1p().sum(-1)
        noise_z = self.spread(xt, each, mask)
        log_r = (noise_z + alpha * (xt == x0)).log() - torch.logaddexp(log_t, noise_z.log())
        return torch.where(drawn, kl + torch.expm1(log_r) - log_r, 0.0)

    def nelbo(self, logits_BLV: Tensor, x0_BL: Tensor, xt_BL: Tensor, t_B: Tensor) -> Tensor:
        """Integrand of the NELBO over t in (0, 1), nats a token, at all positions, float64 (B, L)."""
        return self.weight(x0_BL, xt_BL, t_B) * self.divergence(logits_BLV, x0_BL, xt_BL, t_B)

    def cross_entropy(self, logits_BLV: Tensor, x0_BL: Tensor, xt_BL: Tensor, t_B: Tensor) -> Tensor:
        """-log p(x_0 given x_t), float64 (B, L), p(x_0 given x_t) proportional to x_theta(x_0) q_t(x_t given x_0).

        The unweighted loss for training: no bound, the same minimum as the NELBO.
        """
        check_inside(t_B)
        level = self.level(t_B.double())
        drawn, (x0, xt) = self._drawn(x0_BL, xt_BL)
        noise = self.spread(xt, level.each[:, None], level.mask[:, None])
        likelihood = torch.log1p(level.alpha[:, None] / noise)
        joint = self._log_probs(logits_BLV).scatter_add(-1, xt[..., None], likelihood[..., None])
        return torch.where(drawn, joint.logsumexp(-1) - joint.gather(-1, x0[..., None])[..., 0], 0.0)

    def _drawn(self, x0_BL: Tensor, xt_BL: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Where noise may have drawn x_t (B, L), and x_0, x_t with a noise token in place of all others, whose loss is
        0: the formulas would be 0/0 there.
        """
        one = torch.ones((), dtype=torch.float64, device=xt_BL.device)
        drawn = self.spread(xt_BL, one, one) > 0
        x0, xt = (torch.where(drawn, tokens, self.drawn_ids[0].item()) for tokens in (x0_BL, xt_BL))
        return drawn, (x0, xt)

    def _log_probs(self, logits_BLV: Tensor) -> Tensor:
        """log x_theta, float64; the mask's logit is left out."""
        logits = logits_BLV.double()
        if self.mask_id is not None:
            logits = logits.index_fill(-1, torch.tensor(self.mask_id, device=logits.device), -torch.inf)
        return logits.log_softmax(-1)
