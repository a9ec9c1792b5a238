"""What a record says of each committed token: its logit, and the concepts that it is the sum of.

A record keeps, of each token that the model was asked for, the logit before temperature, logit_bias and bans; how much
of it all known concepts, all discovered ones, the residual, bans of concepts, and the projection's bias are; and of the
`TOP` known and discovered concepts with the largest contributions their weights and contributions. Numbers have seven
digits. Of a model without concept heads it keeps the logit alone.

`columns` writes them, from the `attributions` of a run's evidence; `differences` compares them with those of a replay.

Letters: A tokens, P parts of guidance, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from daguerre.decoding.explanation import TokenExplanation, explain
from daguerre.decoding.steering import ProgramControls
from daguerre.models.heads import Heads, sigmoid

TOP = 8
SUMS = ("logit", "known", "discovered", "residual", "bans", "bias")
LISTS = ("concepts", "weights", "contributions")
IDENTITY = 1e-4
"""How far the parts may miss the logit, as a share of the largest of them."""


@dataclass(frozen=True)
class Tolerance:
    """How far a replay may be from a record. relative: of a logit or a part of it, as a share of the largest part of
    that token; weight: of a concept's weight.
    """

    name: str
    relative: float
    weight: float


EXACT = Tolerance("same", 1e-5, 1e-5)
"""The native backend again, with the same type and instruction set, gives the same bits."""
SINGLE = Tolerance("float32", 1e-3, 1e-3)
"""float32 on PyTorch or another instruction set, where sums have another order."""
HALF = Tolerance("bfloat16", 0.05, 0.05)
"""bfloat16 likewise, where each layer rounds to 8 bits: .027 was seen between the two backends."""


@dataclass(frozen=True, eq=False)
class ConceptAttribution:
    """The logit of one token, and the concepts that it is the sum of.

    sums       the logit and its parts
    concepts, weights, contributions   of all kept concepts, the largest contributions first
    shares     the sum of the absolute weights of the parts: 1, or more under guidance
    loose      concepts that rounding may add to the kept ones, or take from them: by how much their weight and their
               contribution may then differ
    loose_logit   by how much the logit may, since steering changes the weights of kept concepts alone
    loose_size    by how much the length of the residual may
    """

    sums: dict[str, float]
    concepts: np.ndarray
    weights: np.ndarray
    contributions: np.ndarray
    num_known: int
    shares: float = 1.0
    loose: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    loose_logit: float = 0.0
    loose_size: float = 0.0

    @classmethod
    def of(cls, token: TokenExplanation, num_known: int, **more: Any) -> ConceptAttribution:
        """The attribution of a token that was explained."""
        parts, known = token.contributions, token.concepts < num_known
        assert token.logit is not None
        values = token.logit, parts[known].sum(), parts[~known].sum(), token.residual, token.bans.sum(), token.bias
        sums = {name: float(value) for name, value in zip(SUMS, values, strict=True)}
        return cls(sums, token.concepts, token.weights, parts, num_known, **more)

    @cached_property
    def scale(self) -> float:
        """What tolerances are shares of: the largest part, at least 1, and more under guidance."""
        return self.shares * max(1.0, *(abs(value) for value in self.sums.values()))

    def top(self) -> np.ndarray:
        """The places of the concepts that a record lists: of known and of discovered ones the `TOP` largest."""
        order = np.argsort(-np.abs(self.contributions), kind="stable")
        known = self.concepts[order] < self.num_known
        return np.concatenate([order[known][:TOP], order[~known][:TOP]])

    def slack(self, name: str) -> float:
        """By how much a sum may differ because of the loose concepts."""
        sizes = {number: size for number, (_, size) in self.loose.items()}
        if name == "residual":
            return sum(sizes.values())
        if name in ("known", "discovered"):
            return sum(size for number, size in sizes.items() if (number < self.num_known) == (name == "known"))
        return self.loose_logit if name == "logit" else 0.0


def attributions(
    heads: Heads,
    controls: ProgramControls | None,
    evidence: np.ndarray,
    tokens: Sequence[int],
    tolerance: Tolerance | None = None,
) -> list[ConceptAttribution]:
    """The attributions of tokens from their evidence, float32 (A, P, E) as in `decoding.explanation`; with a tolerance,
    also which concepts are loose where weights may differ by that much.
    """
    if not len(tokens):
        return []
    ids, width = np.array(list(tokens), dtype=np.int64), heads.config.width
    if heads.config.concepts is not None:
        found = explain(heads, controls, evidence, [("", token, 0) for token in tokens])
        more = [{}] * len(found) if tolerance is None else _loose(heads, controls, evidence, ids, tolerance.weight)
        return [
            ConceptAttribution.of(one, heads.shape.known, shares=float(np.abs(parts[:, 0]).sum()), **loose)
            for one, parts, loose in zip(found, evidence, more, strict=True)
        ]
    said, rows, bias = (each.astype(np.float64) for each in (evidence, heads.rows(ids), heads.bias(ids)))
    logit = ((said[..., :1] * said[..., 1 : 1 + width]).sum(axis=1) * rows).sum(axis=-1) + bias
    none, shares = np.zeros(0), np.abs(evidence[..., 0]).sum(axis=1).tolist()
    kept = none.astype(np.int64), none, none, 0
    return [
        ConceptAttribution({"logit": value}, *kept, share) for value, share in zip(logit.tolist(), shares, strict=True)
    ]


def _loose(
    heads: Heads, controls: ProgramControls | None, evidence: np.ndarray, ids: np.ndarray, by: float
) -> list[dict[str, Any]]:
    """`loose`, `loose_logit` and `loose_size` of each token, where weights may differ `by` so much: a kept concept is
    loose if one that is not kept has nearly its weight, and the other way round. Steering at most doubles a weight that
    it changes.
    """
    shape, width = heads.shape, heads.config.width
    found = sigmoid(heads.logits(evidence[..., 1 : 1 + width].reshape(-1, width)))
    kinds, kept = np.split(found, [shape.known], axis=-1), (shape.kept_known, shape.kept_discovered)
    loose = np.concatenate([_near_edge(one, num, by) for one, num in zip(kinds, kept, strict=True)], axis=-1)
    weights = (np.abs(evidence[..., :1]) * loose.reshape(*evidence.shape[:2], -1)).sum(axis=1)
    if not weights.any():
        return [{}] * len(ids)
    steered = set[int]() if controls is None else set(controls.concepts.tolist())
    out = []
    for row, token in zip(weights, ids, strict=True):
        numbers = row.nonzero()[0]
        vectors = heads.vectors(numbers).astype(np.float64)
        effects = np.abs(vectors @ heads.rows(token[None])[0].astype(np.float64))
        sizes = {
            int(number): (twice * float(row[number]), twice * float(row[number] * effect))
            for number, effect in zip(numbers.tolist(), effects, strict=True)
            for twice in (1 + (number in steered),)
        }
        logit = sum(size for number, (_, size) in sizes.items() if number in steered)
        size = float(row[numbers].astype(np.float64) @ np.linalg.norm(vectors, axis=-1))
        out.append({"loose": sizes, "loose_logit": logit, "loose_size": size})
    return out


@dataclass(frozen=True, eq=False)
class Unexplained:
    """How much of the variance of a text's hidden states h its concepts leave to the residuals e.

    sizes    |e| of each token, float64 (A,)
    spread   the sum of |h - mean h|^2
    share    sum |e|^2 / spread: 0 where concepts say everything, above 1 where they say less than the mean. None for
             fewer than two tokens, under guidance, where h has two parts, and for a model without concept heads
    """

    sizes: np.ndarray = field(default_factory=lambda: np.zeros(0))
    spread: float = 0.0

    @classmethod
    def of(cls, heads: Heads, evidence: np.ndarray) -> Unexplained:
        """Of A tokens, from their evidence, float32 (A, P, E)."""
        width = heads.config.width
        if heads.config.concepts is None or evidence.shape[0] < 2 or evidence.shape[1] > 1:
            return cls()
        h = evidence[:, 0, 1 : 1 + width]
        sizes = np.linalg.norm(heads.kept(h).residual.astype(np.float64), axis=-1)
        exact = h.astype(np.float64)
        return cls(sizes, float(np.square(exact - exact.mean(axis=0)).sum()))

    @property
    def share(self) -> float | None:
        return float(np.square(self.sizes).sum()) / self.spread if self.spread else None

    def differs(self, recorded: float | None, loose: Sequence[float], tolerance: Tolerance) -> bool:
        """Whether a recorded share is another one. loose: by how much each |e| may differ."""
        share = self.share
        if recorded is None or share is None:
            return recorded is not share
        slack = float((2 * self.sizes * np.array(loose) + np.square(loose)).sum()) / self.spread
        return not abs(recorded - share) <= 4 * tolerance.relative * max(1.0, share) + slack


def _near_edge(weights: np.ndarray, num: int, by: float) -> np.ndarray:
    """Weights (A, C), with 0 for those that are surely among the `num` largest, or surely not."""
    if num >= weights.shape[-1]:
        return np.zeros_like(weights)
    first = -np.partition(-weights, (num - 1, num), axis=-1)
    last, following = first[:, num - 1 : num], first[:, num : num + 1]
    return np.where((weights <= following + by) & (weights >= last - by), weights, 0.0)


def short(value: float) -> float:
    """A number with seven digits, which are those of float32."""
    return float(f"{value:.7g}")


def columns(tokens: Sequence[ConceptAttribution | None]) -> dict[str, Any]:
    """The columns of one step; None: the model was not asked for that token."""
    names = SUMS if any(one is not None and "known" in one.sums for one in tokens) else SUMS[:1]
    out: dict[str, Any] = {name: [None if one is None else short(one.sums[name]) for one in tokens] for name in names}
    if len(names) > 1:
        tops = [(one, one.top()) if one is not None else None for one in tokens]
        out["concepts"] = [[] if each is None else each[0].concepts[each[1]].tolist() for each in tops]
        for name in ("weights", "contributions"):
            out[name] = [
                [] if each is None else [short(value) for value in getattr(each[0], name)[each[1]].tolist()]
                for each in tops
            ]
    return out


def asked(step: Mapping[str, Any]) -> np.ndarray:
    """Bool (k,): the tokens of a step that the model was asked for."""
    return np.array([value is not None for value in step["logit"]], dtype=bool)


def differences(step: Mapping[str, Any], place: int, found: ConceptAttribution, tolerance: Tolerance) -> Iterator[str]:
    """What a record says of the token at a place of a step and a replay does not, in words."""
    sums = {name: step[name][place] for name in SUMS if name in step}
    if set(sums) != set(found.sums):
        yield "has other parts than this model has"
        return
    for name, value in sums.items():
        if not abs(value - found.sums[name]) <= tolerance.relative * found.scale + found.slack(name):
            yield f"{name} is {value:.6g} in the record and {found.sums[name]:.6g} in the replay"
    if len(sums) > 1:
        off = abs(sums["logit"] - sum(value for name, value in sums.items() if name != "logit"))
        if not off <= IDENTITY * max(1.0, *map(abs, sums.values())):
            yield f"the parts miss the logit by {off:.3g}"
        concepts, weights, parts = (step[name][place] for name in LISTS)
        yield from _of_concepts(concepts, weights, parts, found, tolerance)


def _of_concepts(
    concepts: Sequence[int],
    weights: Sequence[float],
    parts: Sequence[float],
    found: ConceptAttribution,
    tolerance: Tolerance,
) -> Iterator[str]:
    """What is wrong with the concepts that are listed for a token, each in a sentence."""
    places = {int(concept): place for place, concept in enumerate(found.concepts)}
    for concept, weight, part in zip(concepts, weights, parts, strict=True):
        place, (more_weight, more_part) = places.get(concept), found.loose.get(concept, (0.0, 0.0))
        if place is None:
            if not more_weight:
                yield f"concept {concept} is no part of the replay"
            continue
        again, part_again = float(found.weights[place]), float(found.contributions[place])
        if not abs(weight - again) <= tolerance.weight * found.shares * max(1.0, abs(again)) + more_weight:
            yield f"concept {concept} weighs {weight:.6g} in the record and {again:.6g} in the replay"
        if not abs(part - part_again) <= tolerance.relative * found.scale + more_part:
            yield f"concept {concept} contributes {part:.6g} in the record and {part_again:.6g} in the replay"
    listed, top = set(concepts), found.top()
    for known in (True, False):
        own = [abs(part) for concept, part in zip(concepts, parts, strict=True) if (concept < found.num_known) == known]
        due = [place for place in top if (found.concepts[place] < found.num_known) == known]
        num_loose = sum((number < found.num_known) == known for number in found.loose)
        if abs(len(own) - len(due)) > num_loose:
            yield f"{len(own)} {'known' if known else 'discovered'} concepts are listed, and {len(due)} are due"
        for place in due:
            concept, part = int(found.concepts[place]), abs(float(found.contributions[place]))
            is_larger = part > min(own, default=0) + tolerance.relative * found.scale
            if is_larger and concept not in listed and concept not in found.loose:
                yield f"concept {concept}, which contributes {part:.6g}, is not in the record"
