"""Mode "ancestral": from noise to text by the posterior of a process, in a number of steps known at the start.

It serves every process. A masked model without a time input predicts the same as long as the text stays the same, so a
step after one that changed nothing takes no forward (MDLM, arXiv 2406.07524, section 4.2). For masked models the policy
"first_hitting" draws from the same distribution, with fewer forwards yet. With `remask` written tokens may become masks
again.

Letters: L positions, A active positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from daguerre.canvas import Canvas, Decision, Span
from daguerre.decoding.denoise import Run
from daguerre.decoding.options import DecodeOptions
from daguerre.decoding.plan import Mode, Plan, Steps
from daguerre.decoding.sampler import evidence_at
from daguerre.errors import InputError, UnsupportedError
from daguerre.models.core.config import ModelConfig
from daguerre.noise.checks import check_process
from daguerre.noise.reverse import Reverse, reverse_of
from daguerre.sampling.logits import biased, inverse_cdf, tempered
from daguerre.sampling.random import NOISE, TOKEN, Counter
from daguerre.sampling.rules import forbidden
from daguerre.trace import Event

TAIL = 1e-5
"""The noise level of the last forward of a greedy tail, as the published samplers have it."""
Probs = Callable[[np.ndarray, float, np.ndarray], Generator[Any, Any, np.ndarray]]
"""A denoiser as the sampler sees it: tokens (L,), t and positions (A,) to probabilities (A, V), none on the mask. The
driver of the run computes the forwards that it yields."""


class Ancestral(Mode):
    """All at once, from noise to text, in `steps` forwards."""

    name = "ancestral"
    traced = False
    options = frozenset({"steps", "greedy_tail", "remask", "temperature", "top_p", "top_k", "min_p", "n", "cache"})
    heals = shapes = changeable = keeps_commits = searches_length = commits_each_step = False

    def check_model(self, config: ModelConfig) -> None:
        """Full context, and noise to undo."""
        if config.context != "full":
            raise UnsupportedError(
                'mode "ancestral" needs a model with full context: use mode "block" with policy "first_hitting", which '
                "has the same distribution in each span"
            )
        check_process(config)

    def check_draft(self, settings: DecodeOptions) -> None:
        """It takes none."""
        raise UnsupportedError('mode "ancestral" begins with noise and takes no draft: leave out one of the two')

    def check_canvas(
        self, settings: DecodeOptions, config: ModelConfig, canvas: Canvas, budgets: Sequence[Span]
    ) -> None:
        """No cache: every forward computes all rows."""
        if settings.cache not in ("auto", "none"):
            raise UnsupportedError(
                f'mode "ancestral" computes every forward anew, and cache="{settings.cache}" keeps numbers: leave out '
                'cache, or use mode "block"'
            )

    def bound(self, plan: Plan) -> int:
        """The number of steps."""
        return plan.decode.steps or plan.max_tokens

    def run(self, run: Run, canvas: Canvas) -> Steps:
        """Write all gaps by the posterior of the model's process; temperature, cuts and bans change the model's
        distribution first.
        """
        plan, params = run.plan, run.sampler.params
        rules, canvas = plan.rules(canvas), canvas.at((canvas.gaps[0][0], canvas.gaps[-1][1]))
        last_evidence = list[np.ndarray | None]()

        def probs(tokens: np.ndarray, t: float, positions: np.ndarray) -> Generator[Any, Any, np.ndarray]:
            answer = yield from run.session.ask_noisy(tokens, t, positions)
            assert answer.logits is not None
            last_evidence[:], logits = [answer.evidence], biased(answer.logits, params)
            forbidden(rules, canvas).apply(positions, logits)
            return tempered(logits, params)

        steps, tail = plan.decode.steps or len(canvas.active_positions()), plan.decode.greedy_tail
        process = reverse_of(plan.config, plan.decode.remask)
        sampler = Sampler(process, probs, times(steps, tail), tail, not plan.config.time_input)
        return (yield from sampler.run(canvas, run.sampler.rng, run.deadline.late, lambda: last_evidence[0]))


def never_late() -> bool:
    return False


def no_evidence() -> None:
    return None


def step_tokens(
    process: Reverse, tokens_BL: np.ndarray, probs_BLV: np.ndarray, t: float, s: float, u_BL: np.ndarray
) -> np.ndarray:
    """x_s from x_t, int64 (B, L): each position is drawn independently from the posterior by its number in [0, 1)."""
    posterior = process.posterior(tokens_BL, probs_BLV, t, s)
    if s == 0 and process.mask_id is not None:
        posterior[..., process.mask_id] = 0.0  # a schedule's last 1e-16
    return inverse_cdf(posterior.reshape(-1, posterior.shape[-1]), u_BL.reshape(-1)).reshape(tokens_BL.shape)


def likeliest(process: Reverse, tokens_BL: np.ndarray, probs_BLV: np.ndarray, t: float) -> np.ndarray:
    """The most likely clean tokens, int64 (B, L), in place of all that noise may still change at t."""
    posterior = process.posterior(tokens_BL, probs_BLV, t, 0.0)
    certain = np.take_along_axis(posterior, tokens_BL[..., None], -1)[..., 0] == 1
    return np.where(certain, tokens_BL, probs_BLV.argmax(-1))


def times(num_steps: int, greedy_tail: bool = False) -> list[float]:
    """The noise level of each of `num_steps` forwards, from 1 down in equal steps, and 0 behind them; with a greedy
    tail the last forward is at TAIL.
    """
    if num_steps < 1:
        raise InputError(f"num_steps must be a whole number from 1 up, not {num_steps}")
    if greedy_tail:
        return [*np.linspace(1, TAIL, num_steps).tolist(), 0.0]
    return [1 - step / num_steps for step in range(num_steps + 1)]


@dataclass(frozen=True)
class Sampler:
    """From noise to text by the posterior of a process, over the noise levels `times`, which fall to 0.

    greedy_tail  the last forward takes the most likely tokens in place of draws (Duo, arXiv 2506.10892, section 4.2)
    steady       predictions do not depend on t, so they are kept as long as the text stays the same
    """

    process: Reverse
    probs: Probs
    times: Sequence[float]
    greedy_tail: bool = False
    steady: bool = False

    def run(
        self,
        canvas: Canvas,
        rng: Counter,
        late: Callable[[], bool] = never_late,
        evidence: Callable[[], np.ndarray | None] = no_evidence,
    ) -> Steps:
        """Write the open positions of the active span; returns the canvas.

        Yields one event a step, whose decision commits, replaces and reopens. A process without a mask first yields an
        event, also of step 0, that writes its noise, and its last decision lists every position. The denoiser sees
        fixed positions, and nothing changes them. Once it is `late`, one step goes to t = 0. `evidence` returns what
        the head says about the last predictions, (A, ...).
        """
        active, mask_id = canvas.active_positions(), self.process.mask_id
        if not active.size:
            return canvas
        now = self.process.prior_from(rng.uniform(NOISE, active, 0))
        if mask_id is None:
            _check_alone(canvas, active)
            noise = _decision(canvas, active, now, None, np.zeros(len(active)))
            canvas = canvas.apply(noise)
            yield Event(0, noise, canvas)
        clean = None
        for step, (t, s) in enumerate(pairwise(self.times)):
            s = 0.0 if late() else s
            if clean is None:
                clean = yield from self.probs(visible(canvas, mask_id), t, active)
            now = self._step(now, clean, t, s, rng.uniform(TOKEN, active, step))
            chance = clean[np.arange(len(active)), now]
            decision = _decision(canvas, active, now, mask_id, chance, last=s == 0 and mask_id is None)
            canvas = canvas.apply(decision)
            yield Event(step, decision, canvas, evidence_at(decision, active, evidence()))
            if s == 0:
                break
            clean = clean if self.steady and not (len(decision) or len(decision.reopen)) else None
        return canvas

    def _step(self, tokens_A: np.ndarray, clean_AV: np.ndarray, t: float, s: float, u_A: np.ndarray) -> np.ndarray:
        """x_s from x_t, int64 (A,)."""
        if s == 0 and self.greedy_tail:
            return likeliest(self.process, tokens_A, clean_AV, t)
        return step_tokens(self.process, tokens_A, clean_AV, t, s, u_A)


def visible(canvas: Canvas, mask_id: int | None) -> np.ndarray:
    """The canvas as a denoiser sees it, int64 (L,): the mask where it is open."""
    return canvas.tokens if mask_id is None else np.where(canvas.open, mask_id, canvas.tokens)


def _check_alone(canvas: Canvas, active: np.ndarray) -> None:
    if canvas.open.sum() > len(active):
        raise InputError(
            "without a mask no position can be left open: make the active span hold all gaps of the canvas"
        )


def _decision(
    canvas: Canvas,
    active: np.ndarray,
    after: np.ndarray,
    mask_id: int | None,
    chance: np.ndarray,
    last: bool = False,
) -> Decision:
    """The decision that makes the `active` positions (A,) hold `after` (A,), where a mask is an open position.

    The `last` one lists unchanged positions too: only then are their probabilities known.
    """
    opened = canvas.open[active]
    masked = np.zeros(len(active), dtype=bool) if mask_id is None else after == mask_id
    changed = ~masked & (opened | last | (after != canvas.tokens[active]))
    return Decision(
        positions=active[changed],
        tokens=after[changed],
        probabilities=chance[changed],
        confidence=chance[changed],
        reopen=active[masked & ~opened],
        replace=active[changed & ~opened],
    )
