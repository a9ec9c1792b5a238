"""Explanations: the logit of each committed token as a sum over concepts, from the very forward that committed it.

A forward that explains returns the hidden state h of each token that it drew, as evidence (`trace.Event.evidence`).
With the concept heads' weights w_c and vectors K_c, the row W_y of the vocabulary projection, and what steering
changed, the logit of the token y was

    logit = sum_c w'_c (K_c . W_y)  +  residual . W_y  -  sum_c ban_c mask_c[y]  +  bias_y,    w'_c = w_c + added_c

over all concepts that h keeps or that were steered. It is the logit before temperature, logit_bias, scorers and bans of
tokens. Under guidance h, w and the residual have two parts, whose logits are added with the weights s and 1 - s; so are
the weights of concepts. The residual is computed from h and not as what is missing from the sum, so
`Explanation.error` finds a number that is wrong.

Evidence of a token, (P, E): for each of P parts [weight, h (D), shift (J), scale (J), ban (J)], the last three where
there is steering of J concepts; added_c = shift + scale w_c.

Letters: A tokens, P parts, D width, J steered concepts, K kept ones, C concepts of one token.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from daguerre.decoding.steering import ProgramControls
from daguerre.models.catalog import Catalog
from daguerre.models.heads import Heads
from daguerre.trace import Event, Place

ROWS_AT_ONCE = 256
NO_NUMBERS = np.zeros(0)
OVER_CONCEPTS = ("concepts", "weights", "added", "effects", "bans")
"""The arrays of a token's explanation."""
TOP = 10
LISTED = 4
"""Named concepts that a printed explanation has; a fifth line adds up all others."""


@dataclass(frozen=True, eq=False)
class TokenExplanation:
    """Why a token has its logit. Arrays are over its concepts, those of the largest contributions first.

    position   on the canvas
    logit      computed from h; None where the model was not asked for this token: it was kept from a draft, pinned,
               or the only one that a constraint allowed. Then all else is empty
    concepts   int (C,): their numbers
    weights    float (C,), after steering
    added      float (C,): the part of `weights` that steering added
    effects    float (C,): K_c . W_y, logits for each unit of weight
    bans       float (C,): what bans took from the logit, 0 or less
    residual   the residual's part of the logit
    bias       of the vocabulary projection; 0 in most models
    """

    text: str
    id: int
    position: int
    logit: float | None = None
    concepts: np.ndarray = field(default_factory=lambda: NO_NUMBERS.astype(np.int64))
    weights: np.ndarray = field(default_factory=lambda: NO_NUMBERS)
    added: np.ndarray = field(default_factory=lambda: NO_NUMBERS)
    effects: np.ndarray = field(default_factory=lambda: NO_NUMBERS)
    bans: np.ndarray = field(default_factory=lambda: NO_NUMBERS)
    residual: float = 0.0
    bias: float = 0.0

    @property
    def contributions(self) -> np.ndarray:
        """Weight times effect of each concept, in logits, float (C,), without bans."""
        return self.weights * self.effects

    @property
    def steering(self) -> float:
        """How many logits of the contributions are there because of steering."""
        return float(self.added @ self.effects)

    @property
    def error(self) -> float:
        """By how much the sum of all parts misses the logit."""
        if self.logit is None:
            return 0.0
        return abs(self.logit - float(self.contributions.sum() + self.bans.sum()) - self.residual - self.bias)

    @property
    def size(self) -> float:
        """The sum of the absolute values of the concepts' contributions and of the residual."""
        return float(np.abs(self.contributions).sum()) + abs(self.residual)


@dataclass(frozen=True)
class ConceptShare:
    """A concept's part of a text.

    share         the mean over the text's tokens of |contribution| / (sum of all |contributions| + |residual|)
    contribution  the sum of its contributions, in logits
    num_tokens    of how many tokens it is a part
    """

    number: int
    name: str
    share: float
    contribution: float
    num_tokens: int


@dataclass(frozen=True)
class Shares:
    """How much of the predictions goes through concepts: means over tokens, 0 to 1.

    aggregated   (|known| + |discovered|) / (|known| + |discovered| + |residual|), of the summed contributions. A known
                 and a discovered sum that cancel each other make it larger
    known        |known| over the same
    absolute     the sum of |contribution| over concepts, over that and |residual|
    """

    aggregated: float
    known: float
    absolute: float


@dataclass(frozen=True)
class LineExplanation:
    """A line of the text: its number, from 1, its text, its tokens' shares, and its largest concepts."""

    number: int
    text: str
    shares: Shares
    top: tuple[ConceptShare, ...]


@dataclass(frozen=True)
class Explanation:
    """The explanations of a text's tokens, one for each token of the result, in order."""

    tokens: tuple[TokenExplanation, ...]
    catalog: Catalog = field(repr=False)

    @cached_property
    def explained(self) -> tuple[TokenExplanation, ...]:
        """The tokens that the model was asked for."""
        return tuple(token for token in self.tokens if token.logit is not None)

    def top(self, num: int = TOP, *, named: bool = False) -> tuple[ConceptShare, ...]:
        """The concepts with the largest shares of the text; named: of those that have names."""
        return _top(self.explained, self.catalog, num, named)

    def of(self, concept: str | int) -> np.ndarray:
        """The contribution of a concept to each token, in logits, float64 (tokens,); 0 where it is no part."""
        number = self.catalog.number(concept)
        return np.array([token.contributions[token.concepts == number].sum() for token in self.tokens])

    @cached_property
    def shares(self) -> Shares:
        """How much of the text's predictions goes through concepts."""
        return self.shares_of(self.tokens)

    def shares_of(self, tokens: Sequence[TokenExplanation]) -> Shares:
        """How much of the predictions of some of its tokens goes through concepts."""
        asked = [token for token in tokens if token.logit is not None]
        each = [_shares(token, self.catalog.num_known) for token in asked] or [(0.0, 0.0, 0.0)]
        return Shares(*(float(mean) for mean in np.mean(each, axis=0)))

    def lines(self, num: int = 3, *, named: bool = False) -> tuple[LineExplanation, ...]:
        """The text's lines with their `num` largest concepts; named: of those that have names. A token belongs to the
        line in which it begins; a line in which none begins is left out.
        """
        texts = "".join(token.text for token in self.tokens).split("\n")
        return tuple(
            LineExplanation(
                number,
                texts[number - 1],
                self.shares_of(some),
                _top([token for token in some if token.logit is not None], self.catalog, num, named),
            )
            for number, some in _by_line(self.tokens).items()
        )

    def raised(self, concept: str | int, num: int = 3) -> tuple[str, ...]:
        """The texts of this text's tokens whose logits a concept raised most, each once: what a discovered concept,
        which has no name, may be told by. In another text it may be others.
        """
        parts = self.of(concept)
        best = [self.tokens[place].text for place in np.argsort(-parts, kind="stable").tolist() if parts[place] > 0]
        return tuple(dict.fromkeys(best))[:num]

    def __str__(self) -> str:
        """A table of the largest named concepts, of at most five lines; the last one is all others together."""
        every = self.top(self.catalog.num_concepts)
        named = [one for one in every if one.number < self.catalog.num_known]
        rows = [(one.name, one.share, f"{one.contribution:+.1f} logits", one.num_tokens) for one in named[:LISTED]]
        others = [one for one in every if one.number >= self.catalog.num_known] + named[LISTED:]
        left = f"{len(others)} others, of which {len(others) - len(named[LISTED:])} have no name"
        rows.append((left, sum(one.share for one in others), "", 0))
        width = max(len(name) for name, *_ in rows)
        lines = (
            f"{name:{width}}  {100 * share:5.1f}%  {logits}" + (f"  {num} of {len(self.tokens)} tokens" if num else "")
            for name, share, logits, num in rows
        )
        return "\n".join(line.rstrip() for line in lines)

    def error(self) -> float:
        """The largest distance in logits between a token's logit and the sum of its parts: no more than rounding."""
        return max((token.error for token in self.tokens), default=0.0)

    def to_dict(self, num: int | None = None) -> dict[str, Any]:
        """All of it as JSON values; of each token all its concepts, or the `num` largest."""
        used = sorted({int(number) for token in self.tokens for number in token.concepts[:num]})
        return {
            "shares": vars(self.shares),
            "error": self.error(),
            "names": {str(number): self.catalog.name(number) for number in used},
            "tokens": [_token_dict(token, num) for token in self.tokens],
        }

    def to_json(self) -> str:
        """`to_dict` as JSON."""
        return json.dumps(self.to_dict(), allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _token_dict(token: TokenExplanation, num: int | None) -> dict[str, Any]:
    base: dict[str, Any] = {"text": token.text, "id": token.id, "position": token.position, "logit": token.logit}
    if token.logit is None:
        return base
    arrays = {name: getattr(token, name)[:num].tolist() for name in OVER_CONCEPTS}
    return base | arrays | {"residual": token.residual, "bias": token.bias}


def _shares(token: TokenExplanation, num_known: int) -> tuple[float, float, float]:
    parts, is_known = token.contributions, token.concepts < num_known
    known, discovered, rest = abs(parts[is_known].sum()), abs(parts[~is_known].sum()), abs(token.residual)
    each, tiny = np.abs(parts).sum(), np.finfo(np.float64).tiny
    total = max(known + discovered + rest, tiny)
    return (known + discovered) / total, known / total, each / max(each + rest, tiny)


def _top(tokens: Sequence[TokenExplanation], catalog: Catalog, num: int, named: bool) -> tuple[ConceptShare, ...]:
    shares, sums, nums = defaultdict[int, float](float), defaultdict[int, float](float), defaultdict[int, int](int)
    for token in tokens:
        parts, size = token.contributions, max(token.size, np.finfo(np.float64).tiny)
        for number, part in zip(token.concepts.tolist(), parts.tolist(), strict=True):
            shares[number] += abs(part) / size
            sums[number] += part
            nums[number] += 1
    some = [number for number in shares if number < catalog.num_known or not named]
    best = sorted(some, key=lambda number: (-shares[number], number))[:num]
    return tuple(ConceptShare(one, catalog.name(one), shares[one] / len(tokens), sums[one], nums[one]) for one in best)


def _by_line(tokens: Sequence[TokenExplanation]) -> dict[int, list[TokenExplanation]]:
    """The tokens that begin in each line, by its number, from 1."""
    out, number = defaultdict[int, list[TokenExplanation]](list), 1
    for token in tokens:
        out[number].append(token)
        number += token.text.count("\n")
    return out


def explain_run(
    heads: Heads,
    catalog: Catalog,
    controls: ProgramControls | None,
    events: Iterable[Event],
    places: Sequence[Place],
) -> Explanation:
    """The explanation of tokens at places from the events of the run that committed them, the last one of each."""
    said = dict[int, np.ndarray]()
    for event in events:
        decision = event.decision
        for index, position in enumerate(decision.positions.tolist()):
            said.pop(position, None)
            if event.evidence is not None and not np.isnan(event.evidence[index, 0, 0]):
                said[position] = event.evidence[index]
        for position in decision.pin.tolist():
            said.pop(position, None)
    asked = [place for place in places if place[2] in said]
    out = {place[2]: TokenExplanation(*place) for place in places}
    if asked:
        evidence = np.stack([said[position] for _, _, position in asked])
        out |= {one.position: one for one in explain(heads, controls, evidence, asked)}
    return Explanation(tuple(out.values()), catalog)


def explain(
    heads: Heads,
    controls: ProgramControls | None,
    evidence: np.ndarray,
    places: Sequence[Place],
) -> list[TokenExplanation]:
    """Explanations of tokens at places from their evidence, float32 (A, P, E)."""
    out = list[TokenExplanation]()
    for start in range(0, len(places), ROWS_AT_ONCE):
        some = places[start : start + ROWS_AT_ONCE]
        ids = np.array([token for _, token, _ in some], dtype=np.int64)
        parts = _Parts.of(heads, controls, evidence[start : start + ROWS_AT_ONCE], ids)
        out += [TokenExplanation(*place, **said) for place, said in zip(some, parts.tokens(), strict=True)]
    return out


@dataclass(frozen=True, eq=False)
class _Parts:
    """The parts of the logits of A tokens, float64 but the concepts, over the C' concepts of all P parts together.

    concepts, weights, added, effects, bans   (A, C')
    logit, residual, bias                     (A,)
    repeats   a concept may be there several times
    """

    concepts: np.ndarray
    weights: np.ndarray
    added: np.ndarray
    effects: np.ndarray
    bans: np.ndarray
    logit: np.ndarray
    residual: np.ndarray
    bias: np.ndarray
    repeats: bool

    @classmethod
    def of(cls, heads: Heads, controls: ProgramControls | None, evidence: np.ndarray, ids: np.ndarray) -> _Parts:
        width, num, parts = heads.config.width, len(ids), evidence.shape[1]
        share, h, amounts = (part.astype(np.float64) for part in np.split(evidence, [1, 1 + width], axis=-1))
        row, bias = heads.rows(ids).astype(np.float64), heads.bias(ids).astype(np.float64)
        found = heads.kept(evidence[..., 1 : 1 + width].reshape(-1, width))
        concepts, kept = (each.reshape(num, parts, -1) for each in (found.concepts, found.weights.astype(np.float64)))
        added, bans, changed = np.zeros_like(kept), np.zeros_like(kept), h
        if controls is not None:
            more, banned = _steered(controls, amounts, concepts, kept, ids)
            changed = changed + more @ controls.write.astype(np.float64)
            concepts = np.concatenate([concepts, np.broadcast_to(controls.concepts, more.shape)], axis=-1)
            kept, added = np.concatenate([kept, more], axis=-1), np.concatenate([added, more], axis=-1)
            bans = np.concatenate([bans, -banned], axis=-1)
        values = {"weights": share * kept, "added": share * added, "bans": share * bans, "concepts": concepts}
        arrays = {name: value.reshape(num, -1) for name, value in values.items()}
        logit = ((share * changed).sum(axis=1) * row).sum(axis=-1) + values["bans"].sum(axis=(1, 2)) + bias
        residual = ((share * found.residual.reshape(num, parts, -1)).sum(axis=1) * row).sum(axis=-1)
        effects = heads.effects(ids, arrays["concepts"]).astype(np.float64)
        repeats = parts > 1 or controls is not None
        return cls(**arrays, effects=effects, logit=logit, residual=residual, bias=bias, repeats=repeats)

    def tokens(self) -> Iterator[dict[str, Any]]:
        """The fields of each token's explanation: each concept once, the largest contributions first."""
        arrays = [getattr(self, name) for name in OVER_CONCEPTS]
        rows = (
            map(_in_order, map(_once, zip(*arrays, strict=True)))
            if self.repeats
            else zip(*_in_order(arrays), strict=True)
        )
        for row, logit, residual, bias in zip(rows, self.logit, self.residual, self.bias, strict=True):
            sums = {"logit": float(logit), "residual": float(residual), "bias": float(bias)}
            yield dict(zip(OVER_CONCEPTS, row, strict=True)) | sums


def _once(row: Sequence[np.ndarray]) -> list[np.ndarray]:
    """A token's arrays of OVER_CONCEPTS with each concept once."""
    concepts, first, place = np.unique(row[0], return_index=True, return_inverse=True)
    weights, added, effects, bans = row[1:]
    weights, added, bans = (np.bincount(place, values) for values in (weights, added, bans))
    return [concepts, weights, added, effects[first], bans]


def _in_order(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The arrays of OVER_CONCEPTS, (..., C) each, the largest contributions first."""
    _, weights, _, effects, bans = arrays
    order = np.argsort(-np.abs(weights * effects) - np.abs(bans), axis=-1, kind="stable")
    return [np.take_along_axis(values, order, axis=-1) for values in arrays]


def _steered(
    controls: ProgramControls, amounts: np.ndarray, concepts: np.ndarray, kept: np.ndarray, ids: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """What steering did, from its amounts (A, P, 3 J) and the kept concepts and their weights (A, P, K): what it added
    to the weights of the steered concepts, and what bans took from the logits, float64 (A, P, J) each.
    """
    shift, scale, ban = np.split(amounts, 3, axis=-1)
    own, place = np.zeros_like(shift), np.searchsorted(controls.concepts, concepts)
    found = np.isin(concepts, controls.concepts)
    own[(*found.nonzero()[:-1], place[found])] = kept[found]
    banned = np.zeros_like(ban) if controls.mask is None else ban * controls.mask[:, ids].T[:, None]
    return shift + scale * own, banned
