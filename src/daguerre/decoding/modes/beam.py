"""Mode "beam": the text of a gap that makes the whole text most likely, as far as a beam search finds it.

A model of causal context with a shift knows the probability of a text. Of two texts x for the gap between a prefix c
and a suffix s, the better one makes c x s more likely, and

    log p(x | c, s)  =  log p(x | c) + log p(s | c, x) - log p(s | c),

whose last term is the same for all. The search extends hypotheses from the left by the autoregressive distribution,
without the suffix. A hypothesis may be finished after every token: its score then has the log-probability of the
suffix's first token, and the best finished ones are rescored by more of the suffix. Denoising sees the suffix and
commits the text piece by piece; this compares whole texts of the gap, and takes several times as long.

A gap that stands for whole lines (`daguerre.decoding.modes.lines`) is searched without its last line break; each text
has a log-prior besides, which is low for lines that are in the context already, and lowest for blank ones.

Letters: P hypotheses, A nodes of a tree, S tokens of the suffix, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from daguerre.canvas import Canvas, Decision
from daguerre.decoding.denoise import Run
from daguerre.decoding.healing import keeping
from daguerre.decoding.modes.lines import Edge
from daguerre.decoding.options import DecodeOptions
from daguerre.decoding.plan import Gap, Mode, Plan, Steps
from daguerre.decoding.sampler import evidence_at
from daguerre.errors import InputError, UnsupportedError
from daguerre.models.rows import Tree
from daguerre.models.session import Asking
from daguerre.sampling.logits import biased, log_softmax
from daguerre.trace import Event

SUFFIX_TOKENS = 32
"""Tokens of the suffix that hypotheses are rescored by: with more of them no more lines were right (docs/log.md)."""
ROWS = 512
"""Rows of a forward that rescores, about: as many hypotheses as fit, at least one."""


class Beam(Mode):
    """The likeliest text of one gap that a search finds."""

    name = "beam"
    options = frozenset({"num_beams", "no_repeat_context_lines", "cache"})
    shapes = changeable = searches_length = keeps_drafts = False
    commits_last = needs_next_token = True
    distribution = "search"
    no_spans = "scores texts of many lengths, each with the text after the gap"
    writes_gaps = True

    def check_request(self, num_gaps: int, infilling: bool, heal: bool | None) -> None:
        """One gap, with a text after it."""
        super().check_request(num_gaps, infilling, heal)
        if not infilling:
            raise InputError(
                'mode "beam" chooses by the text after the gap, and there is none: give a suffix, or use mode "ar"'
            )
        if num_gaps > 1:
            raise UnsupportedError(f'mode "beam" fills one gap, and these are {num_gaps}: use mode "block" or "full"')

    def check_draft(self, settings: DecodeOptions) -> None:
        """It takes none."""
        raise UnsupportedError('mode "beam" searches from an empty gap and takes no draft: leave out the draft')

    def bound(self, plan: Plan) -> int:
        """A forward for each token, and at most one for each finished hypothesis."""
        return plan.gaps[0].healing.num_tokens + plan.max_tokens + 1 + plan.decode.num_beams

    def run(self, run: Run, canvas: Canvas) -> Steps:
        """Fill the gap with the best hypothesis, in one event."""
        canvas = canvas.at(canvas.gaps[0])
        filled = yield from fill_by_beam(run)
        if filled is not None:
            decision, evidence = filled
            canvas = canvas.apply(decision)
            yield Event(run.counts.forwards - 1, decision, canvas, evidence)
        return canvas


@dataclass(frozen=True)
class Hypothesis:
    """The first tokens of a gap's text, their log-probabilities in nats, and what the model's head said of each.

    `rest` is what healing took back and the hypothesis has not repeated yet; `num_new` counts the tokens that brought
    new text; `written` is that text.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    rest: bytes
    num_new: int = 0
    written: bytes = b""
    evidence: tuple[np.ndarray, ...] = ()

    @property
    def score(self) -> float:
        return sum(self.logprobs)

    def extended(self, token: int, piece: bytes, logprob: float, said: Sequence[np.ndarray] = ()) -> Hypothesis:
        """With one more token, whose bytes are `piece`, and its evidence, if there is any."""
        new = piece[len(self.rest) :]
        return Hypothesis(
            (*self.tokens, token),
            (*self.logprobs, logprob),
            self.rest[len(piece) :],
            self.num_new + int(bool(new)),
            self.written + new,
            (*self.evidence, *said),
        )


@dataclass(frozen=True)
class Finished:
    """A hypothesis that ends the gap, the log-probabilities, in nats, of the first tokens of the suffix after it, its
    log-prior, and what the model's head said of the token after it.
    """

    hypothesis: Hypothesis
    suffix_logprobs: tuple[float, ...]
    log_prior: float = 0.0
    evidence: tuple[np.ndarray, ...] = ()

    @property
    def score(self) -> float:
        return self.hypothesis.score + sum(self.suffix_logprobs) + self.log_prior


def fill_by_beam(run: Run) -> Asking[tuple[Decision, np.ndarray | None] | None]:
    """The decision that fills the only gap of a plan, and the evidence of its commits; None where time is up before any
    hypothesis is finished.

    InputError where no token is left to draw.
    """
    plan = run.plan
    canvas, (gap,) = plan.canvas, plan.gaps
    edge = Edge.of(plan)
    found = yield from beam_search(run, edge)
    if not found:
        return None
    found = yield from rescore(run, canvas.tokens[: gap.start], found, edge.suffix[:SUFFIX_TOKENS])
    best = max(found, key=lambda one: one.score)
    tokens, logprobs, said = best.hypothesis.tokens, best.hypothesis.logprobs, best.hypothesis.evidence
    if edge.ending is not None:
        tokens, logprobs = (*tokens, edge.ending), (*logprobs, best.suffix_logprobs[0])
        said = (*said, *best.evidence)
    decision = _decision(canvas, plan.filler, tokens, logprobs)
    return decision, evidence_at(decision, decision.positions[: len(said)], np.stack(said) if said else None)


def beam_search(run: Run, edge: Edge) -> Asking[list[Finished]]:
    """The best finished hypotheses, at most `num_beams`, best first, scored by one token of the suffix."""
    plan = run.plan
    canvas, (gap,), decode, context = plan.canvas, plan.gaps, plan.decode, edge.context
    before, first_suffix_token = canvas.tokens[: gap.start], int(edge.suffix[0])
    extensions = _Extensions(gap, gap.max_tokens - edge.num_tokens, decode.stop, plan.config.ends)
    beam, found = [Hypothesis((), (), gap.healing.text)], list[Finished]()
    while beam and not run.deadline.late():
        tree, nodes = Tree.of([hypothesis.tokens for hypothesis in beam])
        last = np.array([path[-1] if path else -1 for path in nodes])
        answer = yield from run.session.tree_logits(before, tree, last)
        assert answer.logits is not None
        said = [()] * len(beam) if answer.evidence is None else [(row,) for row in answer.evidence]
        plain_logprobs = log_softmax(answer.logits)  # of the suffix, which the caller wrote: no bias is added
        logprobs = log_softmax(biased(answer.logits, decode.sampling)) if decode.logit_bias else plain_logprobs
        for hypothesis, row, of_row in zip(beam, plain_logprobs, said, strict=True):
            long_enough = hypothesis.num_new + edge.num_tokens >= gap.min_tokens and not hypothesis.rest
            complete = long_enough and not extensions.stops(edge.ended(hypothesis.written))
            if complete and not (decode.no_repeat_context_lines and context.repeated(hypothesis.written)):
                nats = float(row[first_suffix_token])
                found.append(Finished(hypothesis, (nats,), context.log_prior(hypothesis.written), of_row))
        found = sorted(found, key=lambda one: -one.score)[: decode.num_beams]
        lowest = found[-1].score if len(found) == decode.num_beams else -np.inf
        extended = extensions.likeliest(beam, logprobs, decode.num_beams, said)
        beam = [hypothesis for hypothesis in extended if hypothesis.score > lowest]
    if not found and not run.deadline.late():
        raise InputError(
            "no text of the gap is left: loosen logit_bias, no_repeat_context_lines, stop, min_tokens or max_tokens"
        )
    return found


def rescore(run: Run, before: np.ndarray, found: Sequence[Finished], suffix: np.ndarray) -> Asking[list[Finished]]:
    """The hypotheses scored by all of `suffix` (S,); as they are where time is up before all are rescored.

    Their scores already have the first token of the suffix.
    """
    if len(suffix) == 1:
        return list(found)
    out: list[Finished] = []
    size = max(1, ROWS // max(len(one.hypothesis.tokens) + len(suffix) for one in found))
    for start in range(0, len(found), size):
        if run.deadline.late():
            return list(found)
        some = found[start : start + size]
        tree, nodes = Tree.of([[*one.hypothesis.tokens, *suffix[:-1].tolist()] for one in some])
        behind = np.array([path[len(one.hypothesis.tokens) :] for path, one in zip(nodes, some, strict=True)])
        answer = yield from run.session.tree_logits(before, tree, behind.reshape(-1))
        assert answer.logits is not None
        logprobs = log_softmax(answer.logits)
        of_suffix = logprobs[np.arange(len(logprobs)), np.tile(suffix[1:], len(some))]
        nats = of_suffix.reshape(len(some), -1).tolist()
        out += [
            replace(one, suffix_logprobs=(*one.suffix_logprobs, *more)) for one, more in zip(some, nats, strict=True)
        ]
    return out


class _Extensions:
    """The tokens that may extend a hypothesis: those that heal the gap first, then any that make no stop string."""

    def __init__(self, gap: Gap, most: int, stop: Sequence[str], ends: Sequence[int]) -> None:
        self._gap, self._most, self._stop = gap, most, [text.encode() for text in stop]
        self._pieces = gap.healing.vocabulary.of
        stopping = [token for token, piece in enumerate(self._pieces) if self.stops(piece)] if stop else []
        self._never = np.array(sorted({*stopping, *ends}), dtype=np.int64)

    def likeliest(
        self, beam: Sequence[Hypothesis], logprobs: np.ndarray, num: int, said: Sequence[tuple[np.ndarray, ...]]
    ) -> list[Hypothesis]:
        """The `num` best hypotheses of one token more, best first; `logprobs` (P, V) are of that token, and so is what
        the head `said`, of each hypothesis.
        """
        scores = np.full(logprobs.shape, -np.inf)
        for row, hypothesis in enumerate(beam):
            if hypothesis.rest:
                left = self._gap.healing.num_tokens - len(hypothesis.tokens) - 1
                kept = list(keeping(self._gap.healing.vocabulary, hypothesis.rest, left))
                scores[row, kept] = hypothesis.score + logprobs[row, kept]
            elif hypothesis.num_new < self._most:
                scores[row] = hypothesis.score + logprobs[row]
                scores[row, self._never] = -np.inf
        out: list[Hypothesis] = []
        for index in _descending(scores.reshape(-1), num + sum(map(len, self._stop))):
            row, token = divmod(index, logprobs.shape[1])
            extended = beam[row].extended(token, self._pieces[token], float(logprobs[row, token]), said[row])
            if not self.stops(extended.written):
                out.append(extended)
        return out[:num]

    def stops(self, text: bytes) -> bool:
        """Whether a stop string is in the text."""
        return any(stop in text for stop in self._stop)


def _descending(values: np.ndarray, num: int) -> list[int]:
    """Indices of the `num` largest of values (n,) above minus infinity, largest first, equal ones in their order."""
    if num < len(values):
        kept = np.flatnonzero(values >= np.partition(values, -num)[-num])
    else:
        kept = np.arange(len(values))
    kept = kept[np.argsort(-values[kept], kind="stable")][:num]
    return kept[np.isfinite(values[kept])].tolist()


def _decision(canvas: Canvas, filler: int | None, tokens: Sequence[int], logprobs: Sequence[float]) -> Decision:
    """Commit the tokens, and what fills a gap after them."""
    start, end = canvas.gaps[0]
    num, probabilities = len(tokens), np.exp(logprobs)
    decision = Decision(start + np.arange(num), np.array(tokens), probabilities, probabilities)
    rest = np.arange(start + num, end)
    if not len(rest):
        return decision
    assert filler is not None
    sure = np.ones(len(rest))
    return Decision.join([decision, Decision(rest, np.full(len(rest), filler), sure, sure)])
