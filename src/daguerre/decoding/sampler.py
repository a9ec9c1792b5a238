"""`TokenSampler`: asks a session for draws, and turns the answers into proposals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from daguerre.canvas import Canvas, Decision
from daguerre.models.forward import Answer, Draws, Logits, Rules, SequentialDraws
from daguerre.models.rows import first_run
from daguerre.models.session import Asking, Session
from daguerre.sampling.logits import (
    Proposals,
    SamplingParams,
    biased,
    chunks,
    entropies,
    no_token_left,
    propose,
    softmax,
)
from daguerre.sampling.random import TOKEN, Counter
from daguerre.sampling.rules import Forbidden, Rule, forbidden

if TYPE_CHECKING:
    from daguerre.sampling.constrained import Constraint


@dataclass(frozen=True, eq=False)
class TokenSampler:
    """Draws the tokens of a run.

    by_step     False: a position's random number is the same in every step, as in modes "ar" and "speculative"
    constraint  all tokens of a gap are on one of its paths
    reads       the fields of proposals that the policy reads (`Policy.reads`)
    as_drawn    policies rank by the distributions that tokens are drawn from (`sampling.logits.propose`)
    """

    params: SamplingParams
    rng: Counter
    by_step: bool = True
    constraint: Constraint | None = None
    reads: tuple[str, ...] = ()
    as_drawn: bool = False
    _last: dict[str, Any] = field(default_factory=dict)

    def propose(
        self,
        session: Session,
        canvas: Canvas,
        rules: Sequence[Rule],
        step: int,
        positions: np.ndarray | None = None,
    ) -> Asking[Proposals]:
        """A token for each of these positions, int64 (A,), or for each open one of the active span, under the rules, by
        one forward.
        """
        positions = canvas.active_positions() if positions is None else positions
        if self.constraint is not None or self.as_drawn or not session.draws:
            answer = yield from session.ask(canvas, positions, Logits())
            assert answer.logits is not None
            return self.from_logits(canvas, positions, answer.logits, rules, step, answer.evidence)
        ask = Draws(self.rules(canvas, rules, step), positions, "entropies" in self.reads, 2 * ("best" in self.reads))
        answer = yield from session.ask(canvas, positions, ask)
        return proposals_of(positions, answer)

    def propose_sequentially(
        self, session: Session, canvas: Canvas, rules: Sequence[Rule], step: int, threshold: float
    ) -> Asking[Proposals]:
        """Tokens for the first open positions of the active span, drawn from the left, each given the one before it.

        They end before a committed position, and with the first, from the second on, whose probability is below
        `threshold`.
        """
        positions = first_run(canvas.active_positions())
        if session.draws and self.constraint is None and not self.as_drawn:
            ask = SequentialDraws(self.rules(canvas, rules, step), positions, threshold)
            answer = yield from session.ask(canvas, positions, ask)
            assert answer.tokens is not None
            return proposals_of(positions[: len(answer.tokens)], answer)
        parts: list[Proposals] = []
        distributions = yield from session.sequential_logits(canvas)
        token = int(canvas.tokens[positions[0] - 1])
        while (logits := (yield from distributions.after(token))) is not None:
            place = positions[[len(parts)]]
            parts.append(self.from_logits(canvas, place, logits[None], rules, step, distributions.evidence))
            token = int(parts[-1].tokens[0])
            if len(parts) > 1 and parts[-1].confidence[0] < threshold:
                break
        return Proposals.join(parts)

    def from_logits(
        self,
        canvas: Canvas,
        positions: np.ndarray,
        logits: np.ndarray,
        rules: Sequence[Rule],
        step: int,
        evidence: np.ndarray | None = None,
    ) -> Proposals:
        """A token for each position (A,), from logits (A, V), which are changed."""
        greedy, step = self.params.temperature == 0, step if self.by_step else 0
        entropy, num_best = "entropies" in self.reads, 2 * ("best" in self.reads)
        if self.constraint is None:
            found = forbidden(rules, canvas)
            parts = [self._drawn(found, positions[rows], logits[rows], step) for rows in chunks(*logits.shape)]
            made = Proposals.join(parts)
            return made if evidence is None else replace(made, evidence=evidence)
        logits = biased(logits, self.params, precise=False)
        forbidden(rules, canvas).apply(positions, logits)
        u = np.zeros(len(positions)) if greedy else self.rng.uniform(TOKEN, positions, step)
        made = self.constraint.propose(canvas, positions, logits, self.params, u)
        probs = softmax(logits) if self.reads else logits
        return replace(
            made,
            entropies=entropies(probs) if entropy else None,
            best=-np.sort(-probs, axis=-1)[:, :num_best] if num_best else None,
            evidence=evidence,
        )

    def _drawn(self, found: Forbidden, positions: np.ndarray, logits: np.ndarray, step: int) -> Proposals:
        """Draws without a constraint from a few rows of logits (a, V), which are changed."""
        logits = biased(logits, self.params)
        found.apply(positions, logits)
        greedy = self.params.temperature == 0
        return propose(
            positions,
            logits,
            self.params,
            None if greedy else self.rng.exponential(TOKEN, positions, step, logits.shape[-1]),
            entropy="entropies" in self.reads,
            num_best=2 * ("best" in self.reads),
            as_drawn=self.as_drawn,
        )

    def rules(self, canvas: Canvas, rules: Sequence[Rule], step: int) -> Rules:
        """The rules of a backend's draws; the same object for steps that draw alike."""
        last = self._last
        if self.params.temperature == 0 or not self.by_step:
            step = 0
        if last.get("step") == step and last["given"] is rules and last["constant"]:
            return cast(Rules, last["rules"])
        now = forbidden(rules, canvas)
        if last.get("step") != step or last["forbidden"] != now:
            params = self.params
            last["rules"] = Rules(
                temperature=params.temperature,
                top_p=params.top_p,
                top_k=params.top_k,
                min_p=params.min_p,
                logit_bias=params.logit_bias or {},
                bans=np.array(now.bans, dtype=np.int64).reshape(-1, 3),
                allowed_at=now.only_at,
                allowed=np.array(now.only, dtype=np.int32),
                rng=self.rng,
                purpose=TOKEN,
                step=step,
            )
        last.update(step=step, given=rules, constant=all(rule.constant for rule in rules), forbidden=now)
        return cast(Rules, last["rules"])

    def greedy(self) -> TokenSampler:
        """This sampler at temperature 0."""
        return replace(self, params=replace(self.params, temperature=0.0), _last={})


def proposals_of(positions: np.ndarray, answer: Answer) -> Proposals:
    """Proposals from the draws at positions (A,). InputError where no token was left to draw."""
    assert answer.tokens is not None and answer.probabilities is not None
    if -1 in answer.tokens.tolist():
        raise no_token_left()
    return Proposals(
        positions,
        answer.tokens,
        answer.probabilities,
        None,
        answer.entropies,
        answer.best_probabilities,
        answer.evidence,
    )


def evidence_at(decision: Decision, positions: np.ndarray, evidence: np.ndarray | None) -> np.ndarray | None:
    """The head's evidence for each commit of a decision, (k, ...), from its evidence (A, ...) for positions (A,),
    ascending; NaN for commits without a draw.
    """
    if evidence is None:
        return None
    if decision.positions is positions:
        return evidence
    if not len(positions):
        return np.full((len(decision), *evidence.shape[1:]), np.nan, dtype=np.float32)
    places = positions.searchsorted(decision.positions)
    places[places == len(positions)] = 0
    out: np.ndarray = evidence[places].astype(np.float32, copy=False)
    out[positions[places] != decision.positions] = np.nan
    return out
