"""The canvas programme: what an automaton allows on a row of positions, some of them fixed, and which of it is likely.

A row is judged as a whole: its fixed tokens are evidence, wherever they are, and a state may end a span only if the
rest of the row completes from it, which one pass from the right finds out. The asked positions are the first A open
ones; log-probabilities are known there, and nothing is known of the open positions to their right.

The law is that of independent positions, p(x) = prod_i p_i(x_i), given that x is in the language: Viterbi's algorithm
finds the most likely x, one pass backward and a walk forward draw x exactly, both passes give exact marginals. After
DINGO (arXiv 2505.23061), with sums beside maxima.

Letters: L positions of the row, A asked, P positions up to the last asked, Q states, C classes, E edges, V vocabulary.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from daguerre.errors import InputError
from daguerre.sampling.constraints.dfa import DEAD
from daguerre.sampling.constraints.tokens import NONE, Edges, TokenAutomaton

TINY = 1e-30
"""Below it a sum of float32 may have lost small terms."""
BLOCK = 256
"""A token is drawn from its class in two steps: a block of so many tokens, then one of them."""
BELOW_ONE = float(np.nextafter(1.0, 0.0))
SAFE_SPAN = 600.0
"""Factors whose logs span less than this in all multiply without underflow in float64."""


class Programme:
    """An automaton on one row of positions, from a state on (0: the row is the whole text).

    `tokens` (L,) and `is_open` (L,) are a canvas's; tokens at open positions mean nothing. Open positions below `floor`
    do not take the token `filler`. Every method that finds the language empty raises an InputError.
    """

    def __init__(
        self,
        automaton: TokenAutomaton,
        tokens: np.ndarray,
        is_open: np.ndarray,
        state: int = 0,
        filler: int | None = None,
        floor: int = 0,
    ) -> None:
        self.automaton, self.state, self.floor = automaton, state, 0 if filler is None else floor
        self.filler = NONE if filler is None else int(automaton.class_of_token[filler])
        self.open = is_open.astype(bool)
        self.fixed = np.where(self.open, NONE, automaton.class_of_token[np.where(self.open, 0, tokens)])
        self.positions = np.flatnonzero(self.open)
        foreign = np.flatnonzero(~self.open & (self.fixed == NONE))
        if len(foreign):
            raise InputError(
                f"the token {int(tokens[foreign[0]])} fixed at position {int(foreign[0])} is not in the constraint's "
                "language: change it, open it, or loosen the constraint"
            )

    def __len__(self) -> int:
        return len(self.open)

    @cached_property
    def completes(self) -> np.ndarray:
        """(L+1, Q): whether what is right of a position can be completed from a state before it. For all positions."""
        return self._backward(0)

    def _backward(self, down_to: int) -> np.ndarray:
        """Rows `down_to` to L of `completes`."""
        automaton = self.automaton
        alive = np.zeros((len(self) - down_to + 1, automaton.num_states), dtype=bool)
        alive[-1] = automaton.accept
        i = len(self) - 1
        while i >= down_to:
            after, here = alive[i + 1 - down_to], alive[i - down_to]
            src, dst = self._pairs(i)
            here[src[after[dst]]] = True
            i -= 1
            if self.open[i + 1] and np.array_equal(here, after):  # and so for the whole run of like open positions
                while i >= down_to and self.open[i] and i + 1 != self.floor:
                    alive[i - down_to] = here
                    i -= 1
        return alive

    def _pairs(self, position: int) -> tuple[np.ndarray, np.ndarray]:
        """The (src, dst) that a position allows."""
        cls = self.fixed[position]
        if cls == NONE:
            return self._unfilled if position < self.floor else self.automaton.neighbors
        edges = self.automaton.by_class
        chosen = slice(edges.first[cls], edges.first[cls + 1])
        return edges.src[chosen], edges.dst[chosen]

    @cached_property
    def _unfilled(self) -> tuple[np.ndarray, np.ndarray]:
        """Every (src, dst) but those of the filler."""
        kept = self.automaton.cls != self.filler
        return self.automaton.src[kept], self.automaton.dst[kept]

    def check(self) -> None:
        """InputError when nothing in the language fits the row."""
        if not self.completes[0, self.state]:
            raise self._empty()

    def forced(self) -> tuple[np.ndarray, np.ndarray]:
        """(open positions, tokens): where all that the language allows has the same token, and which."""
        self.check()
        reached = np.zeros(self.automaton.num_states, dtype=bool)
        reached[self.state] = True
        found: list[tuple[int, int]] = []
        first = self.automaton.first_token
        for i in range(len(self)):
            if self.open[i]:
                edges = self.automaton.by_class
                classes = np.unique(edges.cls[reached[edges.src] & self.completes[i + 1][edges.dst]])
                classes = classes[classes != self.filler] if i < self.floor else classes
                if len(classes) == 1 and first[classes[0] + 1] - first[classes[0]] == 1:
                    found.append((i, int(self.automaton.tokens[first[classes[0]]])))
            src, dst = self._pairs(i)
            following = np.zeros_like(reached)
            following[dst[reached[src]]] = True
            reached = following & self.completes[i + 1]
        out = np.array(found, dtype=np.int64).reshape(-1, 2)
        return out[:, 0], out[:, 1]

    def best(self, logp_AV: np.ndarray) -> np.ndarray:
        """Tokens (A,) of the most likely completion: Viterbi's algorithm. Of equals, an arbitrary but fixed one."""
        self._check_shape(logp_AV)
        scores_PC = self._scores(_class_max(logp_AV, self.automaton))
        edges = self.automaton.by_dst
        weight_PQ = np.full((len(scores_PC) + 1, self.automaton.num_states), -np.inf)
        weight_PQ[0, self.state] = 0.0
        for i, scores_C in enumerate(scores_PC):
            candidates = weight_PQ[i].take(edges.src)
            candidates += scores_C.take(edges.cls)
            weight_PQ[i + 1, edges.keys] = np.maximum.reduceat(candidates, edges.starts)
        last = np.where(self._terminal(len(scores_PC)), weight_PQ[-1], -np.inf)
        state = int(last.argmax())
        if last[state] == -np.inf:
            raise self._empty()
        classes = np.empty(len(scores_PC), dtype=np.int64)
        for i in range(len(scores_PC) - 1, -1, -1):
            run = slice(edges.first[state], edges.first[state + 1])
            best = int((weight_PQ[i][edges.src[run]] + scores_PC[i][edges.cls[run]]).argmax())
            classes[i], state = edges.cls[run][best], int(edges.src[run][best])
        asked = classes[self.positions[: len(logp_AV)]]
        return np.array([self._likeliest(row, cls) for row, cls in zip(logp_AV, asked, strict=True)], dtype=np.int64)

    def sample(self, logp_AV: np.ndarray, u_A: np.ndarray, top_p: float = 1.0) -> np.ndarray:
        """Tokens (A,) drawn from the law given the language, jointly and exactly; u_A in [0, 1) decides, position by
        position. Temperature and top-k are the caller's, before. With top_p below 1, each position keeps the fewest
        most likely tokens whose marginals, given the language, sum to it; where that empties the language, nothing is
        cut.
        """
        if top_p < 1.0:
            try:
                return self.sample(self._truncated(logp_AV, top_p), u_A)
            except InputError:
                return self.sample(logp_AV, u_A)
        self._check_shape(logp_AV)
        held_AT = _relative(logp_AV, self.automaton)
        scores_PC = self._scores(_class_sum(logp_AV, held_AT, self.automaton))
        to_go_PQ = self._to_go(scores_PC)
        edges, state = self.automaton.by_src, self.state
        if to_go_PQ[0, state] == -np.inf:
            raise self._empty()
        out = np.empty(len(logp_AV), dtype=np.int64)
        asked = 0
        for i, scores_C in enumerate(scores_PC):
            run = slice(edges.first[state], edges.first[state + 1])
            cls, dst = edges.cls[run], edges.dst[run]
            if not self.open[i]:
                state = int(dst[cls == self.fixed[i]][0])
                continue
            edge, u = _draw(scores_C[cls] + to_go_PQ[i + 1][dst], float(u_A[asked]))
            tokens, members = self._tokens_of(int(cls[edge])), self._members(int(cls[edge]))
            weights = held_AT[asked, members]
            sums = np.add.reduceat(weights, np.arange(0, len(weights), BLOCK), dtype=np.float64)
            if sums.sum() > TINY:
                block, u = _pick(sums, u)
                chosen = block * BLOCK + _pick(weights[block * BLOCK : (block + 1) * BLOCK], u)[0]
            else:
                chosen = _draw(logp_AV[asked, tokens].astype(np.float64), u)[0]
            out[asked] = tokens[chosen]
            asked, state = asked + 1, int(dst[edge])
        return out

    def marginals(self, logp_AV: np.ndarray) -> np.ndarray:
        """Probabilities (A, V) of each token at each asked position, given the language. Float64."""
        share_AC = self._shares(logp_AV)
        classes = self.automaton.class_of_token
        out = np.exp(logp_AV.astype(np.float64) + share_AC[:, classes])
        out[:, classes == NONE] = 0.0
        return out

    def probabilities(self, logp_AV: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """The marginals (A,) of one token at each asked position."""
        rows = np.arange(len(tokens))
        cls = self.automaton.class_of_token[tokens]
        held = np.exp(logp_AV[rows, tokens].astype(np.float64) + self._shares(logp_AV)[rows, cls])
        return np.where(cls == NONE, 0.0, held)

    def _shares(self, logp_AV: np.ndarray) -> np.ndarray:
        """(A, C): the log of what a token's probability is to be multiplied by for its marginal."""
        self._check_shape(logp_AV)
        held_AT = _relative(logp_AV, self.automaton)
        scores_PC = self._scores(_class_sum(logp_AV, held_AT, self.automaton))
        to_go_PQ = self._to_go(scores_PC)
        edges = self.automaton.by_dst
        come_PQ = np.full_like(to_go_PQ, -np.inf)
        come_PQ[0, self.state] = 0.0
        for i, scores_C in enumerate(scores_PC):
            come_PQ[i + 1, edges.keys] = _log_dot(come_PQ[i], edges.src, scores_C, edges.cls, edges)
        total = to_go_PQ[0, self.state]
        if total == -np.inf:
            raise self._empty()
        by_class = self.automaton.by_class
        share_AC = np.full((len(logp_AV), self.automaton.num_classes), -np.inf)
        for row, i in zip(share_AC, self.positions.tolist(), strict=False):
            paths = _log_dot(come_PQ[i], by_class.src, to_go_PQ[i + 1], by_class.dst, by_class)
            row[by_class.keys] = paths - total
        return share_AC

    def _check_shape(self, logp_AV: np.ndarray) -> None:
        if len(logp_AV) > len(self.positions) or logp_AV.shape[1:] != (self.automaton.vocab_size,):
            raise InputError(
                f"log-probabilities of shape {logp_AV.shape} do not fit {len(self.positions)} open positions and a "
                f"vocabulary of {self.automaton.vocab_size}: give a row for each of the first open positions"
            )

    def _to_go(self, scores_PC: np.ndarray) -> np.ndarray:
        """(P+1, Q): the log of the probability of completing the row from a state before each position."""
        edges = self.automaton.by_src
        to_go_PQ = np.full((len(scores_PC) + 1, self.automaton.num_states), -np.inf)
        to_go_PQ[-1, self._terminal(len(scores_PC))] = 0.0
        for i in range(len(scores_PC) - 1, -1, -1):
            to_go_PQ[i, edges.keys] = _log_dot(to_go_PQ[i + 1], edges.dst, scores_PC[i], edges.cls, edges)
        return to_go_PQ

    def _scores(self, scores_AC: np.ndarray) -> np.ndarray:
        """(P, C): what each class weighs at each position up to the last asked; at a fixed one, its own class alone."""
        asked = self.positions[: len(scores_AC)]
        end = int(asked[-1]) + 1 if len(asked) else 0
        scores_PC = np.full((end, self.automaton.num_classes), -np.inf)
        scores_PC[asked] = scores_AC
        scores_PC[asked[asked < self.floor], self.filler] = -np.inf
        fixed = np.flatnonzero(~self.open[:end])
        scores_PC[fixed, self.fixed[fixed]] = 0.0
        return scores_PC

    def _terminal(self, position: int) -> np.ndarray:
        """(Q,): from which states what is right of a position completes."""
        return self.completes[position] if "completes" in self.__dict__ else self._backward(position)[0]

    def _tokens_of(self, cls: int) -> np.ndarray:
        return self.automaton.tokens[self._members(cls)]

    def _members(self, cls: int) -> slice:
        """Where a class's tokens are in `automaton.tokens`."""
        first = self.automaton.first_token
        return slice(int(first[cls]), int(first[cls + 1]))

    def _likeliest(self, logp_V: np.ndarray, cls: int) -> int:
        tokens = self._tokens_of(cls)
        return int(tokens[logp_V[tokens].argmax()])

    def _truncated(self, logp_AV: np.ndarray, top_p: float) -> np.ndarray:
        probs_AV = self.marginals(logp_AV)
        order = np.argsort(-probs_AV, axis=1, kind="stable")
        ranked = np.take_along_axis(probs_AV, order, axis=1)
        cut = np.zeros(probs_AV.shape, dtype=bool)
        np.put_along_axis(cut, order, np.cumsum(ranked, axis=1) - ranked >= top_p, axis=1)
        return np.where(cut, -np.inf, logp_AV)

    def _empty(self) -> InputError:
        if self.state != DEAD and self.completes[0, self.state]:
            return InputError("no token is left that the constraint allows: loosen logit_bias, top_k or min_tokens")
        need = self.automaton.fewest_tokens(self.state)
        return InputError(
            f"nothing that the constraint allows fits the {len(self)} positions with what is fixed there; its shortest "
            f"text has {need} tokens: raise max_tokens, lower min_tokens, move what is fixed, or loosen the "
            "constraint"
        )


def _class_max(logp_AV: np.ndarray, automaton: TokenAutomaton) -> np.ndarray:
    """(A, C): the log-probability of the likeliest token of each class."""
    return np.maximum.reduceat(logp_AV.take(automaton.tokens, axis=1), automaton.first_token[:-1], axis=1)


def _relative(logp_AV: np.ndarray, automaton: TokenAutomaton) -> np.ndarray:
    """(A, T): probabilities of the automaton's tokens, class by class, over that of each row's likeliest token.

    In the precision of the log-probabilities.
    """
    held_AT = logp_AV.take(automaton.tokens, axis=1)
    held_AT -= _tops(logp_AV)
    return np.exp(held_AT, out=held_AT)


def _tops(logp_AV: np.ndarray) -> np.ndarray:
    top_A1 = logp_AV.max(axis=1, keepdims=True)
    return np.where(top_A1 == -np.inf, 0.0, top_A1).astype(logp_AV.dtype)


def _class_sum(logp_AV: np.ndarray, held_AT: np.ndarray, automaton: TokenAutomaton) -> np.ndarray:
    """(A, C): the log of the probability of each class. Float64."""
    first = automaton.first_token
    sum_AC = np.add.reduceat(held_AT, first[:-1], axis=1, dtype=np.float64)
    with np.errstate(divide="ignore"):
        log_AC = np.log(sum_AC) + _tops(logp_AV)
    faint = np.flatnonzero((sum_AC < TINY).any(axis=1))
    for i in faint:  # beside the likeliest token of the row some classes vanish: they need a scale of their own
        logs = logp_AV[i, automaton.tokens].astype(np.float64)
        top_C = np.maximum.reduceat(logs, first[:-1])
        top_C[top_C == -np.inf] = 0.0
        with np.errstate(divide="ignore"):
            log_AC[i] = np.log(np.add.reduceat(np.exp(logs - np.repeat(top_C, np.diff(first))), first[:-1])) + top_C
    return log_AC


def _log_dot(a: np.ndarray, a_E: np.ndarray, b: np.ndarray, b_E: np.ndarray, edges: Edges) -> np.ndarray:
    """The log of the sum of exp(a[a_E] + b[b_E]) over each run of edges with the same key."""
    top_a, top_b = a.max(), b.max()
    if top_a == -np.inf or top_b == -np.inf:
        return np.full(len(edges.keys), -np.inf)
    with np.errstate(divide="ignore"):
        if _span(a, top_a) + _span(b, top_b) < SAFE_SPAN:
            products_E = np.exp(a - top_a).take(a_E) * np.exp(b - top_b).take(b_E)
            return np.log(np.add.reduceat(products_E, edges.starts)) + (top_a + top_b)
        paths_E = a.take(a_E) + b.take(b_E)
        top = np.maximum.reduceat(paths_E, edges.starts)
        top[top == -np.inf] = 0.0
        lengths = np.diff(edges.starts, append=len(paths_E))
        return np.log(np.add.reduceat(np.exp(paths_E - np.repeat(top, lengths)), edges.starts)) + top


def _span(logs: np.ndarray, top: float) -> float:
    """How far below the top the least finite one is."""
    return top - logs.min(where=logs != -np.inf, initial=top)


def _draw(logs: np.ndarray, u: float) -> tuple[int, float]:
    """`_pick` from unnormalized logs."""
    return _pick(np.exp(logs - logs.max()), u)


def _pick(weights: np.ndarray, u: float) -> tuple[int, float]:
    """An index drawn by u in [0, 1), never one without weight, and what is left of u, again uniform on [0, 1)."""
    total = np.cumsum(weights, dtype=np.float64)
    at = u * total[-1]
    chosen = min(int(total.searchsorted(at, side="right")), int(total.searchsorted(total[-1])))
    rest = float((at - (total[chosen] - weights[chosen])) / weights[chosen])
    return chosen, min(max(rest, 0.0), BELOW_ONE)
