"""Weights of logits: for each class of tokens and each bundle of classes, the highest token and the sum.

Work on tokens is done in the precision of the logits, all that follows in float64.

Letters: A wanted positions, P positions of a span, C classes, S classes of all bundles, B bundles, V vocabulary.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from daguerre.models.contention import CONTENTION, num_threads
from daguerre.sampling.constraints import compiled
from daguerre.sampling.constraints.compiled import address
from daguerre.sampling.constraints.indices import ranges
from daguerre.sampling.constraints.reference.paths import pick
from daguerre.sampling.constraints.tokens import StatePairs, TokenAutomaton

KINDS = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}
"""The library's name of each type of logits."""
MANY = 1 << 18
"""Logits from which on rows are shared by threads."""
TINY = 1e-30
"""Below it a sum of float32 may have lost small terms."""


def weigh(
    logp_AV: np.ndarray, automaton: TokenAutomaton, temperatures: Sequence[float] = (1.0,), best: bool = True
) -> list[Weights]:
    """The weights of log-probabilities (A, V), or of logits, over each of some temperatures."""
    sums = WeightSums(np.ascontiguousarray(logp_AV), automaton, temperatures, best)
    return [Weights(sums, t) for t in range(len(temperatures))]


class WeightSums:
    """What a pass over logits gives for T temperatures; see `weigh_classes` in native/weights.h."""

    def __init__(
        self, logp_AV: np.ndarray, automaton: TokenAutomaton, temperatures: Sequence[float], best: bool
    ) -> None:
        self.logp_AV, self.automaton = logp_AV, automaton
        self.temperatures = np.array(temperatures, dtype=logp_AV.dtype)
        (num_rows, _), num_classes, num = logp_AV.shape, automaton.num_classes, len(temperatures)
        self.top_A = np.empty(num_rows, dtype=logp_AV.dtype)
        self.most_AC = np.empty((num_rows if best else 0, num_classes), dtype=logp_AV.dtype)
        self.sum_TAC, self.total_TA = np.empty((num, num_rows, num_classes)), np.empty((num, num_rows))
        made = compiled.library()
        self.made = None if made is None or logp_AV.dtype not in KINDS else made
        if self.made is None:
            for t in range(num):
                self._sum(t)
        else:
            self._sum_compiled(self.made)

    def _sum_compiled(self, made: Any) -> None:
        logits, tiles, temperatures = self.logp_AV, self.automaton.tiles, self.temperatures.astype(np.float64)
        most = address(self.most_AC) if len(self.most_AC) else None
        self.parts_TAS = np.empty((*self.total_TA.shape, len(tiles.segment)))
        out = address(self.top_A), address(self.sum_TAC), most, address(self.total_TA), address(self.parts_TAS)
        arrays = tiles.place, tiles.end, tiles.segment, tiles.cls, tiles.first, tiles.of_class
        sizes = len(tiles.segment), self.automaton.num_classes, self.automaton.vocab_size
        held = (
            ctypes.byref(compiled.TilesStruct(*map(address, arrays), *sizes)),
            address(temperatures),
            len(temperatures),
        )
        getattr(made, f"weigh_{KINDS[logits.dtype]}")(address(logits), len(logits), *held, *out, threads_for(logits))

    def _sum(self, t: int) -> None:
        """The slow reference of `weigh_classes`."""
        logp_AV, order, first = self.logp_AV, self.automaton.order, self.automaton.first_token
        top_A = logp_AV.max(axis=1)
        self.top_A[:] = np.where(top_A == -np.inf, 0, top_A)
        held = logp_AV.take(order, axis=1)
        if len(self.most_AC):
            np.maximum.reduceat(held[:, : first[-1]], first[:-1], axis=1, out=self.most_AC)
        np.exp((held - self.top_A[:, None]) / self.temperatures[t], out=held)
        self.sum_TAC[t] = np.add.reduceat(held[:, : first[-1]], first[:-1], axis=1)
        self.total_TA[t] = held.sum(axis=1, dtype=np.float64)


def threads_for(logits: np.ndarray) -> int:
    """How many threads share the rows of logits (A, V): as many as a forward uses, where there is enough to do."""
    return CONTENTION.threads(num_threads()) if logits.size >= MANY else 1


class Weights:
    """Log-probabilities (A, V), or logits, over a temperature: nothing depends on their sum.

    top_A    the highest of each row
    sum_AC   the probability of each class, divided by that of the row's likeliest token; float64
    total_A  the log of the sum of all tokens' probabilities: 0 for log-probabilities, but for rounding; float64
    most_AC  with `best`, the highest of each class, as given
    """

    def __init__(self, sums: WeightSums, t: int) -> None:
        self.logp_AV, self.automaton, self._made = sums.logp_AV, sums.automaton, sums.made
        self.temperature, self.top_A, self.most_AC = sums.temperatures[t], sums.top_A, sums.most_AC
        self.sum_AC = sums.sum_TAC[t]
        if sums.made is not None:
            self._parts_AS = sums.parts_TAS[t]
        with np.errstate(divide="ignore"):
            self.total_A = np.log(sums.total_TA[t]) + self.top_A / np.float64(self.temperature)
        self.faint = np.nonzero(self.sum_AC < TINY)
        if len(self.faint[0]):  # relative to the row's likeliest token these vanish: they need a separate scale
            self._faint_logs = self._by_itself(*self.faint)
            self.sum_AC[self.faint] = np.exp(self._faint_logs)

    @cached_property
    def best_AC(self) -> np.ndarray:
        """The log-probability of the likeliest token of each class, less that of the row's likeliest; float64."""
        return np.asarray((self.most_AC - self.top_A[:, None].astype(np.float64)) / self.temperature)

    @cached_property
    def all_AC(self) -> np.ndarray:
        """The logarithms of `sum_AC`, also of sums that underflow."""
        with np.errstate(divide="ignore"):
            out = np.log(self.sum_AC)
        if len(self.faint[0]):
            out[self.faint] = self._faint_logs
        return out

    def draw(self, rows: np.ndarray, classes: np.ndarray, u: np.ndarray) -> np.ndarray:
        """(N,): of each of some rows a token of a class, drawn by u in [0, 1) from their weights in the row."""
        first = self.automaton.first_token
        begin, end = first[classes], first[classes + 1]
        if self._made is None:
            each = zip(rows.tolist(), begin.tolist(), end.tolist(), u.tolist(), strict=True)
            return np.array([self._drawn(i, self.automaton.order[b:e], one) for i, b, e, one in each], dtype=np.int64)
        tiles, out = self.automaton.tiles, np.empty(len(rows), dtype=np.int64)
        known = np.where(self.sum_AC[rows, classes] < TINY, 0, tiles.of_class[classes + 1] - tiles.of_class[classes])
        places = [np.ascontiguousarray(one) for one in (rows, begin, end, tiles.of_class[classes], known)]
        arrays = self.automaton.order, *places, np.ascontiguousarray(u, dtype=np.float64), self._parts_AS, tiles.starts
        sizes = len(rows), self.automaton.vocab_size, len(tiles.segment)
        draws = ctypes.byref(compiled.DrawsStruct(*map(address, arrays), *sizes))
        given = address(self.logp_AV), address(self.top_A), float(self.temperature), draws, address(out)
        getattr(self._made, f"draw_{KINDS[self.logp_AV.dtype]}")(*given, threads_for(self.logp_AV))
        return out

    def _drawn(self, i: int, tokens: np.ndarray, u: float) -> int:
        """The slow reference of `draw_token` in native/weights.h."""
        logs = self.logp_AV[i].take(tokens)
        weights = np.exp((logs - logs.max()) / self.temperature)
        return int(tokens[pick(weights, u)[0]])

    def first(self, classes_A: np.ndarray) -> np.ndarray:
        """(A,): the likeliest token of a class in each row, the first of several."""
        logits, most, automaton = self.logp_AV, self.most_AC, self.automaton
        if self._made is None:
            of_class = [automaton.tokens_of(cls) for cls in classes_A.tolist()]
            found = [int(held[row.take(held).argmax()]) for row, held in zip(logits, of_class, strict=True)]
            return np.array(found, dtype=np.int64)
        out, chosen = np.empty(len(logits), dtype=np.int64), np.ascontiguousarray(classes_A, dtype=np.int64)
        held = automaton.class_of_token.astype(np.int32, copy=False)
        rows = address(logits), *map(int, logits.shape), address(most), most.shape[1]
        find = getattr(self._made, f"first_{KINDS[logits.dtype]}")
        find(*rows, address(held), address(chosen), address(out), threads_for(logits))
        return out

    def likeliest(self, factor_AC: np.ndarray, share: float) -> Weights:
        """The weights of the fewest likeliest tokens of each row whose probabilities sum to `share`; of equally likely
        ones, the first. factor_AC: logarithm of the factor from a token's weight, relative to the row's likeliest
        token, to its probability.
        """
        automaton, logits, top_A = self.automaton, self.logp_AV, self.top_A
        least = math.log1p(-share) - math.log(automaton.vocab_size)  # all below it together have less than 1 - share
        factor_AC = factor_AC - (top_A.astype(np.float64) / self.temperature)[:, None]
        if self._made is None:
            kept_AV = self._likeliest(factor_AC, least, share)
            return weigh(kept_AV, automaton, [float(self.temperature)], best=False)[0]
        on, shares_AC, sum_AC = classes_of(automaton), np.empty(factor_AC.shape), np.empty(factor_AC.shape)
        out = address(shares_AC), address(sum_AC)
        limits = address(factor_AC), float(self.temperature), address(top_A), least, share, *out
        keep = getattr(self._made, f"likeliest_{KINDS[logits.dtype]}")
        kept = keep(address(logits), len(logits), ctypes.byref(on), *limits, threads_for(logits))
        return NativeWeights(self, compiled.Handle(self._made, kept, "kept_free"), factor_AC, shares_AC, sum_AC)

    def _likeliest(self, factor_AC: np.ndarray, least: float, share: float) -> np.ndarray:
        """The slow reference of `Likeliest` in native/weights.h: the logits, minus infinity of all other tokens."""
        automaton, out_AV = self.automaton, np.full_like(self.logp_AV, -np.inf)
        tokens, counts = automaton.order[: automaton.first_token[-1]], np.diff(automaton.first_token)
        for row, logits, factor in zip(out_AV, self.logp_AV, factor_AC, strict=True):
            logs = logits.take(tokens).astype(np.float64) / self.temperature + factor.repeat(counts)
            held = np.flatnonzero(logs >= least)
            held = held[np.lexsort((tokens[held], -logs[held]))]
            probs = np.exp(logs[held])
            kept = tokens[held[np.cumsum(probs) - probs < share]]
            row[kept] = logits[kept]
        return out_AV

    def relative(self, logp: np.ndarray, rows: slice | int) -> np.ndarray:
        """Log-probabilities of some rows less the highest of each row, over the temperature; changed in place."""
        logp -= self.top_A[rows, None] if isinstance(rows, slice) else self.top_A[rows]
        if self.temperature != 1:
            logp /= self.temperature
        return logp

    def _by_itself(self, rows: np.ndarray, classes: np.ndarray) -> np.ndarray:
        """The logs of some entries of `sum_AC`, summed without the rest of their rows."""
        first = self.automaton.first_token
        counts = first[classes + 1] - first[classes]
        tokens = self.automaton.order[ranges(first[classes], first[classes + 1])]
        held = self.logp_AV[rows.repeat(counts), tokens].astype(np.float64) - self.top_A[rows].repeat(counts)
        held /= self.temperature
        return np.asarray(np.logaddexp.reduceat(held, np.cumsum(counts) - counts))


class NativeWeights(Weights):
    """Some tokens of each row, which the library keeps, as `Weights` has all of them.

    factor_AC  logarithm of the factor from e^(logit / temperature) to a probability
    shares_AC  the sum of the probabilities of each class's
    sum_AC     the sum of the weights of each class's, on a scale for each row
    """

    def __init__(
        self,
        weights: Weights,
        kept: compiled.Handle,
        factor_AC: np.ndarray,
        shares_AC: np.ndarray,
        sum_AC: np.ndarray,
    ) -> None:
        self.logp_AV, self._kept, self.sum_AC = weights.logp_AV, kept, sum_AC
        self._factor_AC, self._shares_AC = factor_AC, shares_AC

    @cached_property
    def all_AC(self) -> np.ndarray:
        """See `Weights.all_AC`."""
        less_AC = np.where(self._shares_AC > 0, -self._factor_AC, -np.inf)
        most_A = less_AC.max(axis=1, keepdims=True)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self._shares_AC) + (less_AC - np.where(most_A > -np.inf, most_A, 0.0)))

    def tokens(self, row: int) -> np.ndarray:
        """Those of a row, in ascending order."""
        marked = np.zeros(self.logp_AV.shape[1], dtype=np.uint8)
        self._kept.made.kept_tokens(self._kept.pointer, row, address(marked))
        return np.flatnonzero(marked)

    def draw(self, rows: np.ndarray, classes: np.ndarray, u: np.ndarray) -> np.ndarray:
        """See `Weights.draw`."""
        out, kinds = np.empty(len(rows), dtype=np.int64), (np.int64, np.int64, np.float64)
        each = [np.ascontiguousarray(one, dtype=kind) for one, kind in zip((rows, classes, u), kinds, strict=True)]
        self._kept.made.kept_draw(self._kept.pointer, *map(address, each), len(out), address(out))
        return out


def classes_of(automaton: TokenAutomaton) -> compiled.ClassesStruct:
    """The tokens of a vocabulary by class, as the library has them."""
    of_token = automaton.class_of_token.astype(np.int32, copy=False)
    arrays = of_token, automaton.order, automaton.first_token
    out = compiled.ClassesStruct(*map(address, arrays), automaton.num_classes, automaton.vocab_size)
    out.arrays = arrays  # which it points to
    return out


def best_of_bundles(scores_PC: np.ndarray, pairs: StatePairs) -> np.ndarray:
    """(P, B): the highest score of a class of each bundle."""
    return over_lists("best_of_lists", np.maximum, scores_PC, pairs.classes, pairs.starts)


def sum_of_bundles(weights_PC: np.ndarray, pairs: StatePairs) -> np.ndarray:
    """(P, B): the sum over each bundle."""
    return over_lists("sum_lists", np.add, weights_PC, pairs.classes, pairs.starts)


def sum_of_classes(weights_AB: np.ndarray, pairs: StatePairs) -> np.ndarray:
    """(A, C): the sum over the bundles that each class is in."""
    return over_lists("sum_lists", np.add, weights_AB, *pairs.bundles_of)


def over_lists(name: str, reduce: np.ufunc, values: np.ndarray, members: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """values (P, N) float64, reduced over each of some lists of columns to (P, M): `members` (int32) of list m are
    members[starts[m]:starts[m+1]], and not empty.
    """
    made = compiled.library()
    if made is None:
        return np.asarray(reduce.reduceat(values.take(members, axis=1), starts[:-1], axis=1))
    values, out = np.ascontiguousarray(values, dtype=np.float64), np.empty((len(values), len(starts) - 1))
    arrays = map(address, (members, starts))
    getattr(made, name)(address(values), *values.shape, *arrays, out.shape[1], address(out))
    return out


def draw_classes(
    weights_AC: np.ndarray, pairs: StatePairs, bundles_A: np.ndarray, u_A: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(a class of each row's bundle (A,), the unused part of u_A): drawn from the classes' weights by u in [0, 1)."""
    made, rest = compiled.library(), np.empty(len(u_A))
    bundles, u = bundles_A.astype(np.int64, copy=False), u_A.astype(np.float64, copy=False)
    if made is None:
        chosen = np.empty(len(u_A), dtype=np.int64)
        for i, bundle in enumerate(bundles.tolist()):
            classes = pairs.classes[pairs.starts[bundle] : pairs.starts[bundle + 1]]
            at, rest[i] = pick(weights_AC[i].take(classes), u[i])
            chosen[i] = classes[at]
        return chosen, rest
    weights, chosen = np.ascontiguousarray(weights_AC, dtype=np.float64), np.empty(len(u_A), dtype=np.int64)
    arrays = pairs.classes, pairs.starts, np.ascontiguousarray(bundles), np.ascontiguousarray(u), chosen, rest
    made.draw_members(address(weights), *weights.shape, *map(address, arrays))
    return chosen, rest


def log_sum_of_bundles(scores_PC: np.ndarray, pairs: StatePairs) -> np.ndarray:
    """(P, B): the log of the sum of exponentials over each bundle."""
    return log_add(scores_PC.take(pairs.classes, axis=1), pairs.starts)


def log_add(logs: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """(P, N): the log of the sum of exponentials of logs[:, starts[n] : starts[n + 1]]; none of these is empty."""
    most = np.maximum.reduceat(logs, starts[:-1], axis=1)
    most = np.where(most > -np.inf, most, 0.0)
    sums = np.add.reduceat(np.exp(logs - most.repeat(np.diff(starts), axis=1)), starts[:-1], axis=1)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(sums) + most)
