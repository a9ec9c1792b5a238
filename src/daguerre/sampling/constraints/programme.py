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
from typing import Protocol

import numpy as np

from daguerre.errors import InputError
from daguerre.sampling.constraints.dfa import DEAD
from daguerre.sampling.constraints.tokens import NONE, Edges, TokenAutomaton


class Programme:
    """An automaton on one row of positions, from a state on (0: the row is the whole text).

    `tokens` (L,) and `is_open` (L,) are a canvas's; tokens at open positions mean nothing. Every method that finds the
    language empty raises an InputError.
    """

    def __init__(self, automaton: TokenAutomaton, tokens: np.ndarray, is_open: np.ndarray, state: int = 0) -> None:
        self.automaton, self.state = automaton, state
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
            if self.open[i + 1] and np.array_equal(here, after):  # and so for the whole run of open positions
                while i >= down_to and self.open[i]:
                    alive[i - down_to] = here
                    i -= 1
        return alive

    def _pairs(self, position: int) -> tuple[np.ndarray, np.ndarray]:
        """The (src, dst) that a position allows."""
        cls = self.fixed[position]
        if cls == NONE:
            return self.automaton.neighbors
        edges = self.automaton.by_class
        chosen = slice(edges.first[cls], edges.first[cls + 1])
        return edges.src[chosen], edges.dst[chosen]

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
        scores_PC = self._scores(logp_AV, _class_max)
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
        scores_PC = self._scores(logp_AV, _class_sum)
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
            tokens = self._tokens_of(int(cls[edge]))
            out[asked] = tokens[_draw(logp_AV[asked, tokens].astype(np.float64), u)[0]]
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
        scores_PC = self._scores(logp_AV, _class_sum)
        to_go_PQ = self._to_go(scores_PC)
        edges = self.automaton.by_dst
        come_PQ = np.full_like(to_go_PQ, -np.inf)
        come_PQ[0, self.state] = 0.0
        for i, scores_C in enumerate(scores_PC):
            come_PQ[i + 1, edges.keys] = _log_sums(come_PQ[i].take(edges.src) + scores_C.take(edges.cls), edges)
        total = to_go_PQ[0, self.state]
        if total == -np.inf:
            raise self._empty()
        by_class = self.automaton.by_class
        share_AC = np.full((len(logp_AV), self.automaton.num_classes), -np.inf)
        for row, i in zip(share_AC, self.positions.tolist(), strict=False):
            paths = come_PQ[i].take(by_class.src) + to_go_PQ[i + 1].take(by_class.dst)
            row[by_class.keys] = _log_sums(paths, by_class) - total
        return share_AC

    def _to_go(self, scores_PC: np.ndarray) -> np.ndarray:
        """(P+1, Q): the log of the probability of completing the row from a state before each position."""
        edges = self.automaton.by_src
        to_go_PQ = np.full((len(scores_PC) + 1, self.automaton.num_states), -np.inf)
        to_go_PQ[-1, self._terminal(len(scores_PC))] = 0.0
        for i in range(len(scores_PC) - 1, -1, -1):
            paths = to_go_PQ[i + 1].take(edges.dst) + scores_PC[i].take(edges.cls)
            to_go_PQ[i, edges.keys] = _log_sums(paths, edges)
        return to_go_PQ

    def _scores(self, logp_AV: np.ndarray, reduce: Reduce) -> np.ndarray:
        """(P, C): what each class weighs at each position up to the last asked; at a fixed one, its own class alone."""
        num_asked = len(logp_AV)
        if num_asked > len(self.positions) or logp_AV.shape[1:] != (self.automaton.vocab_size,):
            raise InputError(
                f"log-probabilities of shape {logp_AV.shape} do not fit {len(self.positions)} open positions and a "
                f"vocabulary of {self.automaton.vocab_size}: give a row for each of the first open positions"
            )
        asked = self.positions[:num_asked]
        end = int(asked[-1]) + 1 if num_asked else 0
        scores_PC = np.full((end, self.automaton.num_classes), -np.inf)
        if num_asked:
            scores_PC[asked] = reduce(logp_AV, self.automaton)
        fixed = np.flatnonzero(~self.open[:end])
        scores_PC[fixed, self.fixed[fixed]] = 0.0
        return scores_PC

    def _terminal(self, position: int) -> np.ndarray:
        """(Q,): from which states what is right of a position completes."""
        return self.completes[position] if "completes" in self.__dict__ else self._backward(position)[0]

    def _tokens_of(self, cls: int) -> np.ndarray:
        first = self.automaton.first_token
        return self.automaton.tokens[first[cls] : first[cls + 1]]

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
            f"text has {need} tokens: raise max_tokens, move what is fixed, or loosen the constraint"
        )


class Reduce(Protocol):
    """From log-probabilities (A, V) to a weight for each class (A, C)."""

    def __call__(self, logp_AV: np.ndarray, automaton: TokenAutomaton) -> np.ndarray: ...


def _class_max(logp_AV: np.ndarray, automaton: TokenAutomaton) -> np.ndarray:
    """(A, C): the log-probability of the likeliest token of each class."""
    return np.maximum.reduceat(logp_AV.take(automaton.tokens, axis=1), automaton.first_token[:-1], axis=1)


def _class_sum(logp_AV: np.ndarray, automaton: TokenAutomaton) -> np.ndarray:
    """(A, C): the log of the probability of each class. Float64."""
    first = automaton.first_token
    held = logp_AV.take(automaton.tokens, axis=1).astype(np.float64)
    top_AC = np.maximum.reduceat(held, first[:-1], axis=1)
    top_AC[top_AC == -np.inf] = 0.0
    held -= np.repeat(top_AC, np.diff(first), axis=1)
    with np.errstate(divide="ignore"):
        return np.log(np.add.reduceat(np.exp(held, out=held), first[:-1], axis=1)) + top_AC


def _log_sums(paths_E: np.ndarray, edges: Edges) -> np.ndarray:
    """The log of the sum of exponentials over each run of edges with the same key."""
    top = np.maximum.reduceat(paths_E, edges.starts)
    top[top == -np.inf] = 0.0
    lengths = np.diff(edges.starts, append=len(paths_E))
    with np.errstate(divide="ignore"):
        return np.log(np.add.reduceat(np.exp(paths_E - np.repeat(top, lengths)), edges.starts)) + top


def _draw(logs: np.ndarray, u: float) -> tuple[int, float]:
    """An index drawn by u in [0, 1) from unnormalized logs, and what is left of u, again uniform on [0, 1)."""
    weights = np.exp(logs - logs.max())
    total = np.cumsum(weights)
    chosen = min(int(np.searchsorted(total, u * total[-1], side="right")), int(np.flatnonzero(weights)[-1]))
    rest = (u * total[-1] - (total[chosen] - weights[chosen])) / weights[chosen]
    return chosen, min(max(float(rest), 0.0), np.nextafter(1.0, 0.0))
