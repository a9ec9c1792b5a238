"""Mode "renoise": every step draws a whole canvas again, keeps what the model is sure of, and makes the rest random.

The sampler of DiffusionGemma (transformers, `models/diffusion_gemma`). A canvas begins as random tokens. Each step
draws a token for every position, at a temperature that falls from `t_max` to `t_min`. The positions of lowest entropy,
as many as are nearly independent (`sampling.policies.entropy_bounded`), get theirs; all others become random again. The
text is the most likely tokens of the last step: once these are those of the step before, and the mean entropy is below
`max_entropy`, or after `steps` steps. The next canvas follows it.

A canvas is always whole, as in training: where the text ends sooner, positions beyond its end are drawn and dropped.

Letters: A positions of the canvas.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from daguerre.canvas import Canvas, Decision
from daguerre.decoding.denoise import Run
from daguerre.decoding.options import DecodeOptions
from daguerre.decoding.plan import Mode, Plan, Steps
from daguerre.decoding.sampler import evidence_at, proposals_of
from daguerre.errors import InputError, UnsupportedError
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import Refinement, Rules
from daguerre.models.session import Asking
from daguerre.noise.reverse import Reverse, reverse_of
from daguerre.sampling.logits import Proposals
from daguerre.sampling.policies.base import Progress
from daguerre.sampling.policies.entropy_bounded import EntropyBounded
from daguerre.sampling.random import NOISE, TOKEN
from daguerre.sampling.rules import forbidden
from daguerre.trace import Event

STEPS = 48


class Renoise(Mode):
    """Canvases of `block_size` positions, each in `steps` forwards at most."""

    name = "renoise"
    options = frozenset({"block_size", "steps", "gamma", "t_max", "t_min", "max_entropy", "n", "cache"})
    commits_last = True
    traced = False
    heals = shapes = infills = changeable = keeps_commits = keeps_drafts = searches_length = False
    holds_pins, commits_each_step = True, False

    def check_model(self, config: ModelConfig) -> None:
        """Random tokens in place of masks, and no noise level to tell the model."""
        if config.process != "uniform" or config.time_input or config.context != "causal":
            raise UnsupportedError(
                'mode "renoise" needs a model that tells random tokens from text by itself, such as DiffusionGemma: '
                'use mode "ancestral" for uniform noise with a noise level, and "block" for masks'
            )

    def check_request(self, num_gaps: int, infilling: bool, heal: bool | None) -> None:
        """A completion, and no healing."""
        if infilling:
            raise UnsupportedError(
                'mode "renoise" cannot infill, since a canvas does not see what comes after it: complete the text '
                "before the gap, and pin what must follow"
            )
        if heal:
            raise InputError('mode "renoise" heals no word: leave out heal')

    def check_draft(self, settings: DecodeOptions) -> None:
        """It takes none."""
        raise UnsupportedError('mode "renoise" begins with noise and takes no draft: leave out one of the two')

    def span_size(self, settings: DecodeOptions, config: ModelConfig, max_tokens: int, infilling: bool) -> int:
        """The option's, or the length that the model was trained with."""
        return settings.block_size or config.block_size or max_tokens

    def bound(self, plan: Plan) -> int:
        """`steps` for each canvas."""
        return plan.num_spans * (plan.decode.steps or STEPS)

    def run(self, run: Run, canvas: Canvas) -> Steps:
        """One canvas after the other, until the text, the budget or the time ends."""
        process = reverse_of(run.plan.config)
        for span in run.plan.spans(canvas):
            if run.has_ended(canvas):
                break
            canvas = canvas.at(span)
            if not canvas.active_positions().size:
                continue
            denoising = CanvasDenoising.of(run, process, canvas)
            noise = denoising.begin(canvas)
            canvas = canvas.apply(noise)
            yield Event(denoising.first, noise, canvas)
            canvas = yield from denoising.steps(canvas)
        return canvas


@dataclass(frozen=True, eq=False)
class Step:
    """What the model says about a canvas.

    drawn      tokens, with their entropies
    likeliest  int64 (A,): the most likely tokens, of probabilities `chance`, (A,); pinned ones where these are
    entropies  (A,): of the distributions at the step's temperature, in nats
    conditioning   of the next forward
    """

    drawn: Proposals
    likeliest: np.ndarray
    chance: np.ndarray
    entropies: np.ndarray
    conditioning: Any


@dataclass(frozen=True, eq=False)
class CanvasDenoising:
    """The denoising of one canvas.

    positions  int64 (A,): all of the canvas, also beyond the budget
    free       bool (A,): False where a token is pinned
    pinned     int64 (A,): these tokens; nothing reads the others
    active     int64: the positions that the text gets
    first      how many forwards the request has taken before
    """

    run: Run
    process: Reverse
    positions: np.ndarray
    free: np.ndarray
    pinned: np.ndarray
    active: np.ndarray
    first: int

    @classmethod
    def of(cls, run: Run, process: Reverse, canvas: Canvas) -> CanvasDenoising:
        """That on the active span."""
        assert canvas.span is not None
        start, end = canvas.span
        positions = np.arange(start, min(start + run.plan.span_size, run.plan.config.max_positions))
        free, pinned = np.ones(len(positions), dtype=bool), np.zeros(len(positions), dtype=np.int64)
        free[: end - start], pinned[: end - start] = canvas.open[start:end], canvas.tokens[start:end]
        return cls(run, process, positions, free, pinned, canvas.active_positions(), run.counts.forwards)

    def begin(self, canvas: Canvas) -> Decision:
        """The decision that writes noise."""
        nothing = np.zeros(len(self.positions))
        return self.decision(canvas, self.noise(0), nothing, nothing)

    def steps(self, canvas: Canvas) -> Steps:
        """Yields an event for each forward, of which the last lists every position; returns the canvas. Once it is
        late, the step under way is the last.
        """
        num_steps = self.run.plan.decode.steps or STEPS
        clean, tokens, rules = canvas.tokens[: self.positions[0]], self.noise(0), self.rules(canvas)
        found: Step | None = None
        for number in range(num_steps):
            heated = replace(rules, temperature=self.heat(number / num_steps), step=self.first + number)
            before, found = found, (yield from self.ask(clean, tokens, heated, found))
            last = self.settled(before, found) or number + 1 == num_steps or self.run.deadline.late()
            if last:
                tokens, chance = found.likeliest, found.chance
            else:
                kept = self.sure(found)
                tokens = self.with_pins(np.where(kept, found.drawn.tokens, self.noise(number + 1)))
                chance = np.where(kept, found.drawn.probabilities, 0.0)
            decision = self.decision(canvas, tokens, chance, -found.entropies, last)
            canvas = canvas.apply(decision)
            evidence = evidence_at(decision, self.positions, found.drawn.evidence)
            yield Event(self.first + number, decision, canvas, evidence)
            if last:
                break
        return canvas

    def rules(self, canvas: Canvas) -> Rules:
        """How tokens are drawn, but for temperature and step."""
        plan = self.run.plan
        bans = np.array(forbidden(plan.rules(canvas), canvas).bans, dtype=np.int64).reshape(-1, 3)
        return Rules(logit_bias=plan.decode.logit_bias or {}, bans=bans, rng=self.run.sampler.rng, purpose=TOKEN)

    def heat(self, done: float) -> float:
        """The temperature of a step before which this share of all steps is done."""
        decode = self.run.plan.decode
        return decode.t_min + (decode.t_max - decode.t_min) * (1 - done)

    def ask(self, clean: np.ndarray, tokens: np.ndarray, rules: Rules, before: Step | None) -> Asking[Step]:
        """What the model says about `tokens` (A,) after the clean ones, and after the step `before`. InputError where
        no token was left to draw.
        """
        conditioning = None if before is None else before.conditioning
        asked = Refinement(rules, self.positions)
        answer = yield from self.run.session.ask_tokens(clean, tokens, asked, conditioning)
        assert answer.best_tokens is not None and answer.best_probabilities is not None
        assert answer.entropies is not None
        likeliest, chance = self.with_pins(answer.best_tokens[:, 0]), answer.best_probabilities[:, 0]
        drawn = proposals_of(self.positions, answer)
        return Step(drawn, likeliest, chance, answer.entropies, answer.conditioning)

    def settled(self, before: Step | None, now: Step) -> bool:
        """Whether the canvas is done."""
        if before is None or not np.array_equal(before.likeliest, now.likeliest):
            return False
        return bool(now.entropies[self.free].mean() < self.run.plan.decode.max_entropy)

    def with_pins(self, tokens: np.ndarray) -> np.ndarray:
        """Tokens (A,), and the pinned ones in their places."""
        return np.where(self.free, tokens, self.pinned)

    def noise(self, step: int) -> np.ndarray:
        """Random tokens (A,) before a step, and the pinned ones."""
        u = self.run.sampler.rng.uniform(NOISE, self.positions, self.first + step)
        return self.with_pins(self.process.prior_from(u))

    def sure(self, found: Step) -> np.ndarray:
        """Bool (A,): where the drawn token is kept."""
        policy, among = EntropyBounded(self.run.plan.decode.gamma), found.drawn.keep(self.free)
        kept = policy.decide(among, Progress(0, 0, len(among)), self.run.sampler.rng)
        return np.isin(self.positions, kept.positions)

    def decision(
        self, canvas: Canvas, tokens: np.ndarray, chance: np.ndarray, confidence: np.ndarray, every: bool = False
    ) -> Decision:
        """The decision that makes the active positions hold those of `tokens` (A,); with `every` it lists unchanged
        ones, too.
        """
        place = self.active - self.positions[0]
        opened = canvas.open[self.active]
        listed = opened | every | (tokens[place] != canvas.tokens[self.active])
        at, changed = place[listed], self.active[listed & ~opened]
        return Decision(self.active[listed], tokens[at], chance[at], confidence[at], replace=changed)
