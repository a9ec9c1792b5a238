"""The canvas programme: the texts that an automaton allows on a row of positions, some of them fixed, and their
probabilities.

A row is treated as a whole: fixed tokens are evidence, wherever they are, and a state may end a span only if the rest
of the row completes from it, which one pass from the right computes. The wanted positions are the first A open ones;
log-probabilities are known for them, and none for the open positions to their right.

The distribution is that of independent positions, p(x) = prod_i p_i(x_i), given that x is in the language: Viterbi's
algorithm finds the most likely x, a pass backward and a walk forward draw x exactly, both passes give exact marginals.
After DINGO (arXiv 2505.23061), with sums besides maxima. `spans.Paths` computes them on the span up to the last wanted
position.

Letters: L positions of the row, A wanted positions, P positions from the first to the last wanted one, Q states,
C classes, B bundles, V vocabulary.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property

import numpy as np

from daguerre.errors import InputError
from daguerre.sampling.constraints import compiled
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.caching import cached
from daguerre.sampling.constraints.compiled import address
from daguerre.sampling.constraints.forced import forced
from daguerre.sampling.constraints.indices import DEAD, NONE, ranges
from daguerre.sampling.constraints.reference.paths import SlowSpan
from daguerre.sampling.constraints.spans import CompiledSpan, Paths, paths, span, transitions
from daguerre.sampling.constraints.tokens import StatePairs, TokenAutomaton
from daguerre.sampling.constraints.weights import (
    Weights,
    best_of_bundles,
    draw_classes,
    log_add,
    log_sum_of_bundles,
    sum_of_bundles,
    sum_of_classes,
    weigh,
)

FAR = 4096
"""Tokens of a text up to which the shortest one is counted, for an error."""
MAX_BYTES = 32 << 20
"""Of what `completions` keeps."""


class Programme:
    """An automaton on one row of positions, from a state before position `begin` on.

    `tokens` (L,) and `is_open` (L,) are those of a canvas; tokens at open positions, and left of `begin`, are not read.
    Open positions below `floor` do not take the token `filler`. Every method raises InputError where no text is left.
    """

    def __init__(
        self,
        automaton: TokenAutomaton,
        tokens: np.ndarray,
        is_open: np.ndarray,
        state: int = 0,
        filler: int | None = None,
        floor: int = 0,
        begin: int = 0,
    ) -> None:
        self.automaton, self.state, self.begin = automaton, state, begin
        self.floor = 0 if filler is None else floor
        self.filler = NONE if filler is None else int(automaton.class_of_token[filler])
        self.open = is_open.astype(bool)
        self.fixed = np.where(self.open, NONE, automaton.class_of_token[np.where(self.open, 0, tokens)])
        self.fixed[:begin] = NONE
        self.positions = begin + np.flatnonzero(self.open[begin:])
        foreign = begin + np.flatnonzero(~self.open[begin:] & (self.fixed[begin:] == NONE))
        if len(foreign):
            raise InputError(
                f"the token {int(tokens[foreign[0]])} fixed at position {int(foreign[0])} is not in the constraint's "
                "language: change it, open it, or loosen the constraint"
            )

    def __len__(self) -> int:
        return len(self.open)

    @cached_property
    def completes(self) -> bool:
        """Whether the row can be completed from `state` before position `begin`."""
        held = completions(self.automaton, self.fixed.tobytes(), self.filler, self.floor)
        return self.state != DEAD and bool(_row(held, self.begin, self.automaton.num_states)[self.state])

    @cached_property
    def too_long(self) -> tuple[np.ndarray, np.ndarray] | None:
        """What the language allows at the first open position, (C,) bool: classes after which the row is too short for
        any text, and the others. None where there is none of the first, or where tokens to the right are fixed.
        """
        if not len(self.positions) or not self.open[self.positions[0] :].all():
            return None
        first, state, pairs = int(self.positions[0]), self.state, self.automaton.pairs
        for cls in self.fixed[self.begin : first].tolist():
            state = state if state == DEAD else self.automaton.step_class(state, cls)
        if state == DEAD:
            return None
        run = slice(pairs.first[state], pairs.first[state + 1])
        fits = self.terminal(first + 1)[pairs.dst[run]]
        if fits.all():
            return None
        out = np.zeros((2, self.automaton.num_classes), dtype=bool)
        for row, bundles in enumerate((pairs.bundle[run][~fits], pairs.bundle[run][fits])):
            out[row, pairs.classes[ranges(pairs.starts[bundles], pairs.starts[bundles + 1])]] = True
        return out[0], out[1]

    def terminal(self, position: int) -> np.ndarray:
        """(Q,): the states from which the row from a position on completes; cached until its tokens change."""
        if position == len(self):
            return self.automaton.accept
        behind = self.fixed.copy()
        behind[:position] = NONE
        held = completions(self.automaton, behind.tobytes(), self.filler, self.floor)
        return _row(held, position, self.automaton.num_states)

    def check(self) -> None:
        """InputError when no text of the language fits the row."""
        if not self.completes:
            raise self.empty()

    def forced(self, num: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(positions, tokens): those of the first `num` open positions, or of all, at which all texts that the language
        allows have the same token, and that token.
        """
        wanted = self.positions[:num]
        end = int(wanted[-1]) + 1 if len(wanted) else self.begin
        found = forced(
            self.automaton,
            self.span(end),
            self.fixed[self.begin : end].tobytes(),
            self.filler,
            self.floor - self.begin,
        )
        if found is None:
            raise self.empty()
        out = np.array(found, dtype=np.int64).reshape(-1, 2)
        return self.begin + out[:, 0], out[:, 1]

    def span(self, end: int) -> CompiledSpan | SlowSpan:
        """The automaton from `begin` to `end`; everything right of there is evidence."""
        return span(self.automaton, self.state, end - self.begin, self.terminal(end).tobytes())

    def weigh(self, logp_AV: np.ndarray, best: bool = False, temperature: float = 1.0) -> Weighed:
        """The programme with log-probabilities, or logits, divided by a temperature; `best`: for `Weighed.best`."""
        return self.weigh_each(logp_AV, [temperature], best)[0]

    def weigh_each(self, logp_AV: np.ndarray, temperatures: Sequence[float], best: bool = False) -> list[Weighed]:
        """`weigh` for each of some temperatures, in one pass over the logits."""
        if len(logp_AV) > len(self.positions) or logp_AV.shape[1:] != (self.automaton.vocab_size,):
            raise InputError(
                f"log-probabilities of shape {logp_AV.shape} do not fit {len(self.positions)} open positions and a "
                f"vocabulary of {self.automaton.vocab_size}: give a row for each of the first open positions"
            )
        return [Weighed(self, weights, best) for weights in weigh(logp_AV, self.automaton, temperatures, best)]

    def best(self, logp_AV: np.ndarray) -> np.ndarray:
        """Tokens (A,) of the most likely completion: Viterbi's algorithm. Of several, an arbitrary but fixed one."""
        return self.weigh(logp_AV, best=True).best()

    def sample(self, logp_AV: np.ndarray, u_A: np.ndarray, top_p: float = 1.0) -> np.ndarray:
        """Tokens (A,) drawn from the distribution given the language, jointly and exactly, by u_A in [0, 1), position
        by position. The caller applies temperature and top-k before. With top_p below 1, each position keeps the fewest
        most likely tokens whose marginals, given the language, sum to it; where no text is left then, nothing is cut.
        """
        return self.weigh(logp_AV).sample(u_A, top_p)

    def marginals(self, logp_AV: np.ndarray) -> np.ndarray:
        """Probabilities (A, V) of each token at each wanted position, given the language. Float64."""
        return self.weigh(logp_AV).marginals()

    def probabilities(self, logp_AV: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """The marginals (A,) of one token at each wanted position."""
        return self.weigh(logp_AV).probabilities(tokens)

    def empty(self) -> InputError:
        """The error that explains why no text is left."""
        if self.completes:
            return InputError(
                "no token is left that the constraint allows: loosen logit_bias, top_k, min_p or min_tokens"
            )
        _, need = shortest(self.automaton, len(self), self.state)
        return InputError(
            f"no text of the constraint fits the {len(self) - self.begin} positions with the tokens that are fixed "
            f"there; its shortest text has {need} tokens: raise max_tokens, lower min_tokens, move what is fixed, or "
            "loosen the constraint"
        )


class Weighed:
    """A programme with logp (A, V) at its first A open positions."""

    def __init__(self, programme: Programme, weights: Weights, best: bool) -> None:
        self.programme, self.automaton, self.weights = programme, programme.automaton, weights
        self.wanted = programme.positions[: len(weights.logp_AV)]
        self.first = int(self.wanted[0]) if len(self.wanted) else programme.begin
        self.end = int(self.wanted[-1]) + 1 if len(self.wanted) else programme.begin
        self.by_best = best

    @cached_property
    def paths(self) -> Paths:
        """The paths of the language from the first to the last wanted position. InputError when there is none."""
        programme, pairs = self.programme, self.automaton.pairs
        state, best_PB = self._walk(), None
        if state == DEAD:
            raise programme.empty()
        if self.by_best:
            best_PB = best_of_bundles(self._of_positions(self.weights.best_AC, -np.inf, 0.0), pairs)
        first = self.first - programme.begin
        found = paths(programme.span(self.end), first, state, self._weight_PB, lambda: self._score_PB, best_PB)
        if found is None or not found.possible:
            raise programme.empty()
        return found

    def _walk(self) -> int:
        """The state before the first wanted position."""
        programme, state = self.programme, self.programme.state
        for cls in programme.fixed[programme.begin : self.first].tolist():
            state = state if state == DEAD else self.automaton.step_class(state, cls)
        return state

    @cached_property
    def _weight_PB(self) -> np.ndarray:
        """(P, B): the weight of each bundle."""
        return sum_of_bundles(self._weight_PC, self.automaton.pairs)

    @cached_property
    def _weight_PC(self) -> np.ndarray:
        """(P, C): the weight of each class."""
        return self._of_positions(self.weights.sum_AC, 0.0, 1.0)

    @cached_property
    def _score_PB(self) -> np.ndarray:
        """The logarithms of `_weight_PB`, also of weights that underflow."""
        return log_sum_of_bundles(self._of_positions(self.weights.all_AC, -np.inf, 0.0), self.automaton.pairs)

    def _of_positions(self, values_AC: np.ndarray, nothing: float, certain: float) -> np.ndarray:
        """(P, C): the value of each class; at a fixed position one class is certain and the others have none."""
        programme, wanted = self.programme, self.wanted
        values_PC = np.full((self.end - self.first, self.automaton.num_classes), nothing)
        values_PC[wanted - self.first] = values_AC
        values_PC[wanted[wanted < programme.floor] - self.first, programme.filler] = nothing
        fixed = self.first + np.flatnonzero(~programme.open[self.first : self.end])
        values_PC[fixed - self.first, programme.fixed[fixed]] = certain
        return values_PC

    @cached_property
    def _share_PB(self) -> np.ndarray:
        """(P, B): the probability that a path takes each bundle at each position."""
        return self.paths.shares()

    def best(self) -> np.ndarray:
        """See `Programme.best`."""
        pairs, most_AC = self.automaton.pairs, self.weights.most_AC
        chosen = np.empty(len(self.wanted), dtype=np.int64)
        for i, bundle in enumerate(self.paths.best()[self.wanted - self.first].tolist()):
            classes = pairs.classes[pairs.starts[bundle] : pairs.starts[bundle + 1]]
            chosen[i] = classes[most_AC[i].take(classes).argmax()]
        return self.weights.first(chosen)

    def sample(self, u_A: np.ndarray, top_p: float = 1.0) -> np.ndarray:
        """See `Programme.sample`."""
        if top_p < 1.0:
            with suppress(InputError):
                return Weighed(self.programme, self.weights.likeliest(self._share_AC, top_p), best=False).sample(u_A)
        u_P = np.zeros(self.end - self.first)
        u_P[self.wanted - self.first] = u_A
        bundles_P, rest_P = self.paths.draw(u_P)
        at = self.wanted - self.first
        return self.weights.draw(np.arange(len(at)), *self._classes(bundles_P[at], rest_P[at]))

    def _classes(self, bundles_A: np.ndarray, u_A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(a class of each bundle, the unused part of u)."""
        pairs, at = self.automaton.pairs, self.wanted - self.first
        if not self.paths.is_exact:
            return draw_classes(self._weight_PC[at], pairs, bundles_A, u_A)
        logs_AC = self._of_positions(self.weights.all_AC, -np.inf, 0.0)[at] - self._log_PB(at, bundles_A)[:, None]
        return draw_classes(np.exp(np.minimum(logs_AC, 0.0)), pairs, bundles_A, u_A)

    def marginals(self) -> np.ndarray:
        """See `Programme.marginals`."""
        out_AV = np.zeros(self.weights.logp_AV.shape)
        for row, (tokens, logs) in zip(out_AV, self._log_marginals(), strict=True):
            row[tokens] = np.exp(logs)
        return out_AV

    def _log_marginals(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """For each wanted position the tokens that have a class, and the logarithms of their marginals."""
        share_AC, counts = self._share_AC, np.diff(self.automaton.first_token)
        tokens = self.automaton.order[: self.automaton.first_token[-1]]
        for i, row in enumerate(share_AC):
            yield tokens, self.weights.relative(self.weights.logp_AV[i].take(tokens), i) + row.repeat(counts)

    @property
    def _share_AC(self) -> np.ndarray:
        """The logarithm of the factor from a token's weight to its marginal, for each class."""
        pairs, at = self.automaton.pairs, self.wanted - self.first
        shares_AB = self._share_PB[at]
        with np.errstate(divide="ignore"):
            if not self.paths.is_exact:
                weight_AB = self._weight_PB[at]
                return np.log(sum_of_classes(shares_AB / np.where(weight_AB > 0, weight_AB, 1.0), pairs))
            score_AB = self._score_PB[at]
            logs_AB = np.log(shares_AB) - np.where(score_AB == -np.inf, 0.0, score_AB)
        bundles, first = pairs.bundles_of
        return log_add(logs_AB[:, bundles], first)

    def probabilities(self, tokens: np.ndarray) -> np.ndarray:
        """See `Programme.probabilities`."""
        (bundles, first), rows = self.automaton.pairs.bundles_of, np.arange(len(tokens))
        cls = self.automaton.class_of_token[tokens]
        known = np.where(cls == NONE, 0, cls)
        counts = first[known + 1] - first[known]
        held = bundles[ranges(first[known], first[known + 1])]
        at = (self.wanted - self.first).repeat(counts)
        with np.errstate(divide="ignore"):
            shares = np.log(self._share_PB[at, held])
        logp = (self.weights.logp_AV[rows, tokens] - self.weights.top_A) / self.weights.temperature
        logs = logp.astype(np.float64).repeat(counts) + shares - self._log_PB(at, held)
        sums = np.bincount(rows.repeat(counts), np.exp(logs), minlength=len(tokens))
        return np.where(cls == NONE, 0.0, sums)

    def _log_PB(self, positions: np.ndarray, bundles: np.ndarray) -> np.ndarray:
        """Some entries of `_score_PB`, 0 where nothing is likely."""
        if self.paths.is_exact:
            score = self._score_PB[positions, bundles]
        else:
            weight = self._weight_PB[positions, bundles]
            score = np.log(np.where(weight > 0, weight, 1.0))
        return np.where(score > -np.inf, score, 0.0)


def _row(packed: np.ndarray, position: int, num_states: int) -> np.ndarray:
    """(Q,): a row of `completions`."""
    return np.unpackbits(packed[position], count=num_states).astype(bool)


def shortest(automaton: TokenAutomaton, room: int, state: int = 0) -> tuple[bool, str]:
    """(whether `room` tokens are enough for some text from a state on, the number of tokens of the shortest, in words:
    texts are not followed far beyond the room).
    """
    most = max(room, FAR)
    need = automaton.fewest_tokens(state, most)
    return need is not None and need <= room, f"more than {most:,}" if need is None else str(need)


def _bytes_of(packed: np.ndarray) -> int:
    return packed.nbytes


def completions(automaton: TokenAutomaton, fixed: bytes, filler: int, floor: int) -> np.ndarray:
    """(L+1, Q), packed in bits: the states from which the row from each position on completes, for the classes `fixed`
    (L,), NONE where open. What is kept holds no automaton, which may have a thousand times its bytes.
    """
    return _completions(weakref.ref(automaton), fixed, filler, floor)


@cached(MAX_BYTES, _bytes_of)
def _completions(held: weakref.ref[TokenAutomaton], fixed: bytes, filler: int, floor: int) -> np.ndarray:
    automaton = held()
    assert automaton is not None
    classes = np.frombuffer(fixed, dtype=automaton.class_of_token.dtype)
    pairs = automaton.pairs
    unfilled = np.ones(pairs.num_bundles, dtype=bool)
    if filler != NONE:
        unfilled = np.diff(pairs.starts) > pairs.taking(filler)
    used = sorted(set(classes[classes != NONE].tolist()))
    allowed_KB = np.array([np.ones_like(unfilled), unfilled, *(pairs.taking(cls) for cls in used)])
    kind = np.where(classes == NONE, np.arange(len(classes)) < floor, 2 + np.searchsorted(used, classes))
    Budget().hold((len(classes) + 1) * automaton.num_states)
    alive = np.zeros((len(classes) + 1, automaton.num_states), dtype=bool)
    alive[-1] = automaton.accept
    made = compiled.library()
    if made is None:
        _complete(pairs, allowed_KB, kind, alive)
    else:
        kinds, on = kind.astype(np.int32), transitions(automaton)
        made.complete(ctypes.byref(on), address(allowed_KB), address(kinds), len(kinds), address(alive))
    return np.packbits(alive, axis=1)


def _complete(pairs: StatePairs, allowed_KB: np.ndarray, kind: np.ndarray, alive: np.ndarray) -> None:
    """Fill all rows of `alive` (L+1, Q) but the last: the slow reference of `complete` in native/spans.h."""
    for i in range(len(kind) - 1, -1, -1):
        alive[i, pairs.src[alive[i + 1][pairs.dst] & allowed_KB[kind[i]][pairs.bundle]]] = True
