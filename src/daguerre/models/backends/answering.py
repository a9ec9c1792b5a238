"""From hidden states to answers, in PyTorch: logits, log-probabilities, draws, cycles.

The reference for `native/answers.h`, and the implementation for every head other than the vocabulary projection. Draws
equal those of `sampling.logits`, which is NumPy.

Letters: A rows, D width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from daguerre.errors import UnsupportedError
from daguerre.models.backends.edits import check_edit
from daguerre.models.core.backbone import Backbone
from daguerre.models.forward import (
    Answer,
    Cycle,
    DraftStep,
    Draws,
    Edit,
    Forward,
    Head,
    Hidden,
    LogProbs,
    Refinement,
    Rules,
    SequentialDraws,
    acceptance_of,
    num_agreed,
)

LOGITS_AT_ONCE = 1 << 23
"""The most numbers that a draw, or a score, makes of logits at a time."""


@dataclass(frozen=True, eq=False, slots=True)
class Drawn:
    """Tokens drawn for rows, (A,) tensors; see `Answer`."""

    tokens: Tensor
    probabilities: Tensor
    entropies: Tensor | None
    best_tokens: Tensor | None
    best_probabilities: Tensor | None

    @staticmethod
    def join(parts: Sequence[Drawn]) -> Drawn:
        """All rows of `parts`, which have the same fields."""
        columns = [[getattr(part, each.name) for part in parts] for each in fields(Drawn)]
        return Drawn(*(None if column[0] is None else torch.cat(column) for column in columns))  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False, slots=True)
class Editing:
    """What is done to hidden states on their way to logits: an `Edit` as tensors, each by its rows, and whether the
    states are returned as evidence.
    """

    explain: bool
    concepts: Tensor | None = None
    write: Tensor | None = None
    mask: Tensor | None = None
    shift: Tensor | None = None
    scale: Tensor | None = None
    ban: Tensor | None = None

    @classmethod
    def of(cls, one: Forward | DraftStep, device: torch.device) -> Editing:
        """That of a request."""
        if one.edit is None:
            return cls(one.explain)
        values = (getattr(one.edit, each.name) for each in fields(Edit))
        return cls(one.explain, *(None if x is None else _tensor(x).to(device) for x in values))

    def rows(self, rows: slice) -> Editing:
        """That of some rows."""
        parts = (None if x is None else x[rows] for x in (self.shift, self.scale, self.ban))
        return Editing(self.explain, self.concepts, self.write, self.mask, *parts)

    def edited(self, backbone: Backbone, hidden: Tensor) -> Tensor:
        """Hidden states (A, D) with what concepts write into them."""
        if self.concepts is None or self.write is None or self.shift is None or self.scale is None:
            return hidden
        amounts = self.shift
        if self.scale.any():
            assert backbone.concepts is not None
            amounts = amounts + self.scale * backbone.concepts.weights(hidden)[:, self.concepts.long()]
        return (hidden.float() + amounts @ self.write).to(hidden.dtype)

    def banned(self, logits: Tensor) -> Tensor:
        """Logits (A, V) less what is banned."""
        return logits if self.mask is None or self.ban is None else logits - self.ban @ self.mask


def _tensor(x: np.ndarray) -> Tensor:
    """A tensor of an array that nobody changes: of the same memory, which may be megabytes, where PyTorch allows it."""
    return torch.from_numpy(x if x.flags.c_contiguous and x.flags.writeable else x.copy())


class Answering:
    """Computes answers from hidden states, with a backbone's vocabulary projection and draft head, or with another
    `head` in place of the projection.
    """

    def __init__(self, backbone: Backbone, head: Head | None = None) -> None:
        self.backbone, self._head = backbone, head

    def answer(self, forward: Forward, hidden: Tensor) -> Answer:
        """The answer to a forward from the hidden states (A, D) of its wanted rows."""
        ask, editing = forward.ask, self._editing(forward, hidden)
        if isinstance(ask, Hidden):
            assert forward.edit is None and not forward.explain
            return Answer(hidden=array(hidden.float()))
        if isinstance(ask, LogProbs):
            return self._log_probs(ask, hidden, editing)
        if isinstance(ask, Cycle):
            return self._cycle(ask, hidden, editing)
        if isinstance(ask, SequentialDraws):
            return self._draw_sequentially(ask, hidden, editing)
        if isinstance(ask, Refinement):
            return self._refine(ask, hidden, editing)
        logits, evidence = self._logits(hidden, editing)
        if isinstance(ask, Draws):
            return _answer(draw(logits, ask.rules, ask.positions, ask.entropy, ask.num_best), evidence)
        return Answer(logits=array(logits), evidence=evidence)

    @torch.inference_mode()
    def answer_of(self, forward: Forward, hidden: np.ndarray) -> Answer:
        """The answer to a forward from the hidden states, float32 (A, D), of another backend."""
        rows = torch.from_numpy(hidden)
        exact = isinstance(forward.ask, Hidden)
        answer = self.answer(forward, rows if exact else rows.to(self.backbone.embedding.weight.dtype))
        answer.conditioning = None if answer.conditioning is None else answer.conditioning.float().numpy()
        return answer

    @torch.inference_mode()
    def step(self, ask: DraftStep) -> Answer:
        """One step of the draft head; see `DraftStep`."""
        weight = self.backbone.embedding.weight
        rows = torch.from_numpy(ask.rows).to(weight.device, weight.dtype)
        state = None if ask.state is None else torch.from_numpy(ask.state).to(weight.device, weight.dtype)
        state = self._next_state(rows, state, ask.token)
        logits, evidence = self._logits(state, self._editing(ask, state))
        return Answer(hidden=array(state.float()), logits=array(logits), evidence=evidence)

    def _editing(self, one: Forward | DraftStep, hidden: Tensor) -> Editing:
        """UnsupportedError where a request cannot be explained or edited."""
        if one.edit is not None:
            check_edit(self.backbone.config, one.edit, len(hidden))
        if one.explain and self._head is not None:
            raise UnsupportedError("a head that replaces the vocabulary projection is not explained: leave out head")
        return Editing.of(one, hidden.device)

    def _logits(self, hidden: Tensor, editing: Editing) -> tuple[Tensor, np.ndarray | None]:
        """Logits of hidden states (A, D), edited, and the evidence for them."""
        edited = editing.edited(self.backbone, hidden)
        logits, evidence = (self.backbone.logits(edited), None) if self._head is None else self._head(edited)
        return editing.banned(logits), array(hidden.float()) if editing.explain else evidence

    def _log_probs(self, ask: LogProbs, hidden: Tensor, editing: Editing) -> Answer:
        """At most LOGITS_AT_ONCE logits are in memory at a time."""
        tokens = torch.from_numpy(ask.tokens).to(hidden.device)
        out, step = [], max(1, LOGITS_AT_ONCE // self.backbone.config.vocab_size)
        for start, rows, wanted in zip(
            range(0, len(hidden), step), hidden.split(step), tokens.split(step), strict=True
        ):
            logits = self._logits(rows, editing.rows(slice(start, start + step)))[0].double()
            out.append(logits.gather(1, wanted[:, None])[:, 0] - logits.logsumexp(-1))
        said = array(hidden.float()) if editing.explain else None
        return Answer(log_probs=array(torch.cat(out)) if out else np.zeros(0), evidence=said)

    def _refine(self, ask: Refinement, hidden: Tensor, editing: Editing) -> Answer:
        """At most LOGITS_AT_ONCE logits are in memory at a time."""
        size = max(1, LOGITS_AT_ONCE // self.backbone.config.vocab_size)
        drawn, evidence, conditioning = list[Drawn](), list[np.ndarray](), list[Tensor]()
        for start, rows in zip(range(0, len(hidden), size), hidden.split(size), strict=True):
            logits, found = self._logits(rows, editing.rows(slice(start, start + size)))
            one, tempered = refine(logits, ask.rules, ask.positions[start : start + size])
            kept = self.backbone.conditioning(tempered)
            drawn.append(one)
            evidence += [] if found is None else [found]
            conditioning += [] if kept is None else [kept]
        answer = _answer(Drawn.join(drawn), np.concatenate(evidence) if evidence else None)
        answer.conditioning = torch.cat(conditioning) if conditioning else None
        return answer

    def _next_state(self, row: Tensor, state: Tensor | None, token: int) -> Tensor:
        head, embedding = self.backbone.draft_head, self.backbone.embedding.weight
        if head is None or state is None:
            return row
        out: Tensor = head(row, embedding[token : token + 1], state)
        return out

    def _chain(
        self,
        rules: Rules,
        positions: np.ndarray,
        rows: Tensor,
        state: Tensor | None,
        token: int,
        editing: Editing,
        among: Sequence[int] = (),
    ) -> Iterator[tuple[Drawn, Tensor, np.ndarray | None]]:
        """Draw a token for each of the rows (A, D) in order, each given the one before; with its state (1, D) and the
        head's evidence. Ends where no token is left. among: the tokens that are drawn; empty: all.
        """
        for index in range(len(rows)):
            if token < 0:
                return
            one = slice(index, index + 1)
            state = self._next_state(rows[one], state, token)
            logits, evidence = self._logits(state, editing.rows(one))
            drawn = draw(_only(logits, among), rules, positions[one])
            yield drawn, state, evidence
            token = int(drawn.tokens)

    def _draw_sequentially(self, ask: SequentialDraws, rows: Tensor, editing: Editing) -> Answer:
        """Stops after a token, but for the first, whose probability is below the threshold."""
        tokens, probabilities, evidence = list[int](), list[float](), list[np.ndarray]()
        for drawn, _, found in self._chain(ask.rules, ask.positions, rows, None, 0, editing):
            tokens.append(int(drawn.tokens))
            probabilities.append(float(drawn.probabilities))
            evidence += [] if found is None else [found]
            if len(tokens) > 1 and probabilities[-1] < ask.threshold:
                break
        return Answer(
            tokens=np.array(tokens, dtype=np.int64),
            probabilities=np.array(probabilities),
            evidence=np.concatenate(evidence) if evidence else None,
        )

    def _cycle(self, ask: Cycle, hidden: Tensor, editing: Editing) -> Answer:
        """Draws of the rows that read the draft, and a new draft after the first token that differs from it."""
        num = len(ask.draft) + 1
        logits, evidence = self._logits(hidden[:num], editing.rows(slice(num)))
        drawn = _answer(draw(logits, ask.rules, ask.positions), evidence)
        assert drawn.tokens is not None
        last = num_agreed(drawn.tokens, ask.draft)
        behind = slice(num + int(ask.groups[last]), num + int(ask.groups[last + 1]))
        rows, state, token = hidden[behind], hidden[last : last + 1], int(drawn.tokens[last])
        positions = int(ask.positions[last]) + 1 + np.arange(len(rows))
        among = self.backbone.config.draft_tokens
        tokens, acceptance = list[int](), list[float]()
        for one, now, _ in self._chain(ask.rules, positions, rows, state, token, editing.rows(behind), among):
            chance = self._acceptance(now, one, ask.rules.temperature)
            if not math.prod(acceptance) * chance >= ask.worth:
                break
            tokens.append(int(one.tokens))
            acceptance.append(chance)
        drawn.draft, drawn.acceptance = np.array(tokens, dtype=np.int64), np.array(acceptance)
        return drawn

    def _acceptance(self, state: Tensor, drawn: Drawn, temperature: float) -> float:
        """The chance that a drafted token is accepted, from the state (1, D) whose distribution it was drawn from."""
        head, probability = self.backbone.draft_head, float(drawn.probabilities)
        if head is None or head.confidence is None or probability == 0:
            return acceptance_of(probability, temperature)
        return float(head.acceptance(state, drawn.probabilities.log().to(state.dtype), temperature))


def _only(logits: Tensor, among: Sequence[int]) -> Tensor:
    """Logits (A, V) of some tokens, minus infinity for all others; no tokens stand for all."""
    if not among:
        return logits
    kept = torch.tensor(among, device=logits.device)
    return torch.full_like(logits, float("-inf")).index_copy(-1, kept, logits[..., kept])


def _answer(drawn: Drawn, evidence: np.ndarray | None) -> Answer:
    return Answer(
        tokens=array(drawn.tokens),
        probabilities=array(drawn.probabilities),
        entropies=None if drawn.entropies is None else array(drawn.entropies),
        best_tokens=None if drawn.best_tokens is None else array(drawn.best_tokens),
        best_probabilities=None if drawn.best_probabilities is None else array(drawn.best_probabilities),
        evidence=evidence,
    )


def array(x: Tensor) -> np.ndarray:
    """A NumPy array of a tensor that needs no gradient."""
    out: np.ndarray = x.cpu().numpy()
    return out


def draw(logits: Tensor, rules: Rules, positions: np.ndarray, entropy: bool = False, num_best: int = 0) -> Drawn:
    """Draw a token for each row of float32 logits (A, V) by `rules`: in float32 at temperature 0, else in float64."""
    logits = forbid(biased(logits, rules), rules, positions)
    top, likeliest = logits.max(dim=-1)
    some_left = torch.isfinite(top)
    weights = (logits - top[:, None]).exp()
    total = weights.sum(-1).double()
    if rules.temperature == 0:
        tokens = likeliest
    else:
        rows = max(1, LOGITS_AT_ONCE // logits.shape[-1])
        places = [positions[start : start + rows] for start in range(0, len(positions), rows)]
        tokens = torch.cat([_raced(*part, rules) for part in zip(logits.split(rows), places, strict=True)])
    probabilities = weights.gather(1, tokens[:, None])[:, 0].double() / total
    best = weights.double().div(total[:, None]).sort(dim=-1, descending=True, stable=True) if num_best else None
    surprise = torch.where(weights > 0, weights * (logits - top[:, None]), 0.0).sum(-1).double()
    return Drawn(
        torch.where(some_left, tokens, -1),
        torch.where(some_left, probabilities, 0.0),
        torch.where(some_left, total.log() - surprise / total, 0.0) if entropy else None,
        None if best is None else best.indices[:, :num_best],
        None if best is None else best.values[:, :num_best],
    )


def _raced(logits: Tensor, positions: np.ndarray, rules: Rules) -> Tensor:
    """Tokens, int64 (a,), drawn by a race on each of a few rows of logits (a, V)."""
    assert rules.rng is not None
    noise = rules.rng.exponential(rules.purpose, positions, rules.step, logits.shape[-1])
    return _race(_cut(logits, rules), torch.from_numpy(noise).to(logits.device))


def refine(logits: Tensor, rules: Rules, positions: np.ndarray) -> tuple[Drawn, Tensor]:
    """What `Refinement` asks for, from float32 logits (A, V), which are changed; and these divided by the temperature,
    (A, V). A token is the first whose cumulative probability exceeds a number in [0, 1). In float32, but for sums.
    """
    assert rules.rng is not None and rules.temperature > 0
    for token, bias in rules.logit_bias.items():
        logits[:, token] += bias
    logits = forbid(logits, rules, positions)
    top, likeliest = logits.max(dim=-1, keepdim=True)
    log_total, tempered = logits.logsumexp(-1, keepdim=True), logits / rules.temperature
    probs = tempered.softmax(-1)
    total = probs.cumsum(-1, dtype=torch.float64)
    u = torch.from_numpy(rules.rng.uniform(rules.purpose, positions, rules.step)).to(logits.device)
    tokens = torch.searchsorted(total, u[:, None] * total[:, -1:], right=True).clamp_max(logits.shape[-1] - 1)
    best, chances = ((logits.gather(1, which) - log_total).exp().double() for which in (likeliest, tokens))
    surprise = torch.linalg.vecdot(probs, (tempered - top / rules.temperature).clamp_min(-1e4))
    entropy = (tempered.logsumexp(-1) - top[:, 0] / rules.temperature - surprise).double()
    drawn = torch.where(torch.isfinite(top[:, 0]), tokens[:, 0], -1)
    return Drawn(drawn, chances[:, 0], entropy, likeliest, best), tempered


def biased(logits: Tensor, rules: Rules) -> Tensor:
    """A copy of logits (A, V) with the bias added."""
    out = logits.clone() if rules.temperature == 0 else logits.double()
    for token, bias in rules.logit_bias.items():
        out[:, token] += bias
    return out


def forbid(logits: Tensor, rules: Rules, positions: np.ndarray) -> Tensor:
    """Set to minus infinity, in place, the logits of all tokens that may not be drawn at positions (A,)."""
    for token, start, end in rules.bans.tolist():
        held = np.flatnonzero((positions >= start) & (positions < end))
        if held.size:
            logits[torch.from_numpy(held).to(logits.device), token] = -math.inf
    if rules.allowed_at is not None and rules.allowed is not None:
        for row in np.flatnonzero(positions == rules.allowed_at).tolist():
            kept = torch.from_numpy(rules.allowed).long().to(logits.device)
            only = torch.full_like(logits[row], -math.inf)
            only[kept] = logits[row, kept]
            logits[row] = only
    return logits


def _cut(logits: Tensor, rules: Rules) -> Tensor:
    """Probabilities (A, V) at the temperature, after top-k, top-p and min-p; see `sampling.logits.tempered`."""
    probs = (logits / rules.temperature).softmax(-1)
    if rules.top_k is None and rules.top_p == 1.0:
        return _likely_enough(probs, rules.min_p)
    ranked, order = probs.sort(dim=-1, descending=True, stable=True)
    if rules.top_k is not None:
        ranked[:, rules.top_k :] = 0.0
        ranked /= ranked.sum(-1, keepdim=True)
    if rules.top_p < 1.0:
        ranked[ranked.cumsum(-1) - ranked >= rules.top_p] = 0.0
        ranked /= ranked.sum(-1, keepdim=True)
    return torch.zeros_like(probs).scatter_(-1, order, _likely_enough(ranked, rules.min_p))


def _likely_enough(probs: Tensor, min_p: float) -> Tensor:
    """See `sampling.logits.likely_enough`."""
    if not min_p:
        return probs
    kept = torch.where(probs >= min_p * probs.amax(-1, keepdim=True), probs, 0.0)
    return kept / kept.sum(-1, keepdim=True)


def _race(probs: Tensor, noise: Tensor) -> Tensor:
    """The winner argmin_v E_v / p_v of each row, int64 (A,); see `sampling.logits.race`."""
    return torch.where(probs > 0, noise / probs, math.inf).argmin(-1)
