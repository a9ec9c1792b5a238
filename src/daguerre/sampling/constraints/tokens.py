"""From bytes to tokens: an automaton over a vocabulary, with classes of tokens that act alike.

The vocabulary is read as a trie, one byte of all its tokens at a time. A node of the trie is a function from states to
states; few of those are distinct, so each is computed once, whatever the size of the vocabulary, and tokens with the
same function are one class. No array of states x vocabulary is ever made.

Letters: Q states, V vocabulary, E edges, C classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import IO

import numpy as np

from daguerre.errors import InputError
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.dfa import DEAD, Dfa, distinct_columns, hash64, ranges, reach

NONE = -1
FIELDS = ("accept", "class_of_token", "src", "dst", "cls")


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges in one order: those with key k are first[k] to first[k+1]."""

    src: np.ndarray
    dst: np.ndarray
    cls: np.ndarray
    first: np.ndarray


@dataclass(frozen=True, eq=False)
class Pairs:
    """Distinct (src, dst), in that order, and the bundle that leads from one to the other: a set of classes.

    Pairs of state q are first[q] to first[q+1]; the classes of bundle b are classes[starts[b]:starts[b+1]], ascending.
    Few bundles are distinct: in a bounded string, whatever was read, the same tokens are n characters long.
    """

    src: np.ndarray
    dst: np.ndarray
    bundle: np.ndarray
    first: np.ndarray
    classes: np.ndarray
    starts: np.ndarray

    @property
    def num_bundles(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def bundles_of(self) -> tuple[np.ndarray, np.ndarray]:
        """(bundles, first): those that class c is in are bundles[first[c]:first[c+1]]."""
        order = np.argsort(self.classes, kind="stable")
        bundles = np.repeat(np.arange(self.num_bundles), np.diff(self.starts))[order]
        return bundles, np.searchsorted(self.classes[order], np.arange(int(self.classes.max(initial=NONE)) + 2))


@dataclass(frozen=True, eq=False)
class TokenAutomaton:
    """A language over tokens, of at least one text; every state leads to one.

    State 0 is the start; an edge is (src, class of tokens) -> dst, arrays (E,) int32.
    `accept` (Q,) bool; `class_of_token` (V,) int32 holds NONE for a token that is never allowed, specials among them.
    `ignored` lists what a lenient compilation left out, as "keyword at place".
    """

    accept: np.ndarray
    class_of_token: np.ndarray
    src: np.ndarray
    dst: np.ndarray
    cls: np.ndarray
    ignored: tuple[str, ...] = ()

    @property
    def num_states(self) -> int:
        return len(self.accept)

    @property
    def vocab_size(self) -> int:
        return len(self.class_of_token)

    @cached_property
    def num_classes(self) -> int:
        return int(self.class_of_token.max(initial=NONE)) + 1

    @cached_property
    def order(self) -> np.ndarray:
        """All tokens (V,), class by class, each in ascending order; those without a class come last."""
        return np.argsort(np.where(self.class_of_token == NONE, self.num_classes, self.class_of_token), kind="stable")

    @cached_property
    def first_token(self) -> np.ndarray:
        """(C+1,): the tokens of class c are order[first_token[c]:first_token[c+1]]."""
        counts = np.bincount(self.class_of_token[self.class_of_token != NONE], minlength=self.num_classes)
        return np.concatenate([[0], np.cumsum(counts)])

    @cached_property
    def by_src(self) -> Edges:
        return self._sorted(self.src, self.num_states)

    @cached_property
    def by_class(self) -> Edges:
        return self._sorted(self.cls, self.num_classes)

    def _sorted(self, key: np.ndarray, num_keys: int) -> Edges:
        order = np.lexsort((self.cls, self.dst, key))
        first = np.searchsorted(key[order], np.arange(num_keys + 1))
        return Edges(self.src[order], self.dst[order], self.cls[order], first)

    @cached_property
    def pairs(self) -> Pairs:
        """Which state leads to which, and by what."""
        edges = self.by_src
        codes = edges.src.astype(np.int64) * self.num_states + edges.dst
        begins = np.flatnonzero(np.diff(codes, prepend=-1))
        src, dst = np.divmod(codes[begins], self.num_states)
        ends = np.append(begins[1:], len(codes))[: len(begins)]
        hashes = hash64(edges.cls.astype(np.uint64))
        sums = np.add.reduceat(hashes, begins) if len(begins) else hashes
        _, member, bundle = np.unique(sums, return_index=True, return_inverse=True)
        classes = edges.cls[ranges(begins[member], ends[member])].astype(np.int64)
        starts = np.concatenate([[0], np.cumsum(ends[member] - begins[member])])
        written = classes[ranges(starts[bundle], starts[bundle + 1])]
        assert np.array_equal(written, edges.cls)  # no two hashes were equal by chance
        return Pairs(src, dst, bundle, np.searchsorted(src, np.arange(self.num_states + 1)), classes, starts)

    def step(self, state: int, token: int) -> int:
        """The state after a token, or DEAD."""
        return self.step_class(state, int(self.class_of_token[token]))

    def step_class(self, state: int, cls: int) -> int:
        """The state after a token of a class, or DEAD."""
        edges = self.by_src
        run = slice(edges.first[state], edges.first[state + 1])
        found = edges.dst[run][edges.cls[run] == cls]
        return int(found[0]) if len(found) else DEAD

    def walk(self, tokens: Iterable[int], state: int = 0) -> int:
        """The state after some tokens, or DEAD."""
        for token in tokens:
            if state == DEAD:
                break
            state = self.step(state, token)
        return state

    def accepts(self, tokens: Iterable[int]) -> bool:
        """Whether the tokens, all of them, are in the language."""
        state = self.walk(tokens)
        return state != DEAD and bool(self.accept[state])

    def with_filler(self, token: int) -> TokenAutomaton:
        """The language followed by any number of `token`s: <eos> after a completion, <null> at the end of a gap.

        InputError when the token has a meaning in the language.
        """
        if self.class_of_token[token] != NONE:
            raise InputError(f"token {token} is part of the language: a filler must be a special token such as <eos>")
        end, filler = self.num_states, self.num_classes
        class_of_token = self.class_of_token.copy()
        class_of_token[token] = filler
        sources = np.append(np.flatnonzero(self.accept), end)
        return TokenAutomaton(
            np.append(self.accept, True),
            class_of_token,
            np.append(self.src, sources).astype(np.int32),
            np.append(self.dst, np.full(len(sources), end)).astype(np.int32),
            np.append(self.cls, np.full(len(sources), filler)).astype(np.int32),
            self.ignored,
        )

    def without(self, tokens: Sequence[int]) -> TokenAutomaton:
        """The texts of the language that can be written without some tokens. InputError when none can."""
        class_of_token = self.class_of_token.copy()
        class_of_token[list(tokens)] = NONE
        left = np.isin(self.cls, class_of_token)
        columns = self.src[left], self.dst[left], self.cls[left]
        return useful(TokenAutomaton(self.accept, class_of_token, *columns, self.ignored))

    def next_classes(self, state: int) -> np.ndarray:
        """The classes of tokens that may follow a state."""
        edges = self.by_src
        return edges.cls[edges.first[state] : edges.first[state + 1]]

    def tokens_of(self, cls: int) -> np.ndarray:
        """The tokens of a class, ascending."""
        return self.order[self.first_token[cls] : self.first_token[cls + 1]]

    def fewest_tokens(self, state: int = 0) -> int:
        """The length of the shortest text of the language from a state on, in tokens."""
        src, dst = self.pairs.src, self.pairs.dst
        seen = np.zeros(self.num_states, dtype=bool)
        seen[state] = True
        steps = 0
        while not (seen & self.accept).any():
            seen[dst[seen[src]]] = True
            steps += 1
        return steps

    def save(self, file: IO[bytes]) -> None:
        """Write the arrays as an `.npz`."""
        np.savez_compressed(file, ignored=np.array(self.ignored, dtype=str), **{f: getattr(self, f) for f in FIELDS})

    @classmethod
    def load(cls, path: Path) -> TokenAutomaton:
        """What `save` wrote; any exception when it is damaged."""
        with path.open("rb") as file, np.load(file, allow_pickle=False) as held:
            return cls(**{name: held[name] for name in FIELDS}, ignored=tuple(held["ignored"].tolist()))


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The bytes of all tokens, end to end: token t has `lengths[t]` bytes from `offsets[t]`; specials have none."""

    text: np.ndarray
    offsets: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> Vocabulary:
        lengths = np.array([len(text) for text in texts], dtype=np.int64)
        return cls(np.frombuffer(b"".join(texts), dtype=np.uint8), np.cumsum(lengths) - lengths, lengths)

    @staticmethod
    @lru_cache(maxsize=8)
    def make(tokenizer: Tokenizer) -> Vocabulary:
        """The same for equal tokenizers; they never change. UnsupportedError if tokens cannot be read as bytes."""
        tokenizer.require_bytes("a constraint")
        return Vocabulary.of([tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)])


def lift(dfa: Dfa, vocabulary: Vocabulary, budget: Budget, ignored: tuple[str, ...] = ()) -> TokenAutomaton:
    """The automaton over tokens of a minimal automaton over bytes. InputError when its language is empty, or when no
    text of it can be written in this vocabulary.
    """
    functions = _Functions(dfa, budget)
    function_of = np.where(vocabulary.lengths > 0, 0, NONE)
    alive = np.flatnonzero(vocabulary.lengths)
    for i in range(int(vocabulary.lengths.max(initial=0))):
        after = functions.after(function_of[alive], vocabulary.text[vocabulary.offsets[alive] + i])
        function_of[alive] = after
        alive = alive[(after != NONE) & (vocabulary.lengths[alive] > i + 1)]
    used, class_of_token = distinct(function_of - NONE, len(functions.edges) + 1)
    used += NONE
    dead = int(used[0] == NONE)
    edges = [functions.edges[f] for f in used[dead:].tolist()]
    src, dst = (np.concatenate([edge[i] for edge in edges] or [np.zeros(0, np.int32)]) for i in (0, 1))
    cls = np.repeat(np.arange(len(edges), dtype=np.int32), [len(edge[0]) for edge in edges])
    whole = TokenAutomaton(dfa.accept, (class_of_token - dead).astype(np.int32), src, dst, cls, ignored)
    return useful(whole)


def distinct(values: np.ndarray, bound: int) -> tuple[np.ndarray, np.ndarray]:
    """(distinct values, ascending; the place of each value among them) of numbers from 0 to `bound` - 1; by a table
    where that is small, since it takes a twentieth of the time that sorting does.
    """
    if bound > 4 * len(values) + 1000:
        found, at = np.unique(values, return_inverse=True)
        return found, at
    place_of = np.zeros(bound, dtype=np.int64)
    place_of[values] = 1
    found = np.flatnonzero(place_of)
    place_of[found] = np.arange(len(found))
    return found, place_of[values]


class _Functions:
    """What texts do to states: function f takes src to dst for every pair of `edges[f]`, and all else to DEAD."""

    def __init__(self, dfa: Dfa, budget: Budget) -> None:
        columns, number_of = distinct_columns(dfa.delta_QK)
        self.delta_QK, self.class_of_byte = dfa.delta_QK[:, columns], number_of[dfa.class_of_byte]
        states = np.arange(len(dfa), dtype=np.int32)
        self.budget, self.size = budget, len(dfa)
        self.edges: list[tuple[np.ndarray, np.ndarray]] = [(states, states)]
        self._number: dict[tuple[bytes, bytes], int] = {}
        self._after: dict[int, int] = {}

    def after(self, functions: np.ndarray, text: np.ndarray) -> np.ndarray:
        """The functions of texts that are one byte longer, NONE for what leads nowhere."""
        width = self.delta_QK.shape[1]
        steps, at = distinct(functions * width + self.class_of_byte[text], len(self.edges) * width)
        return np.array([self._extended(step, *divmod(step, width)) for step in steps.tolist()], dtype=np.int64)[at]

    def _extended(self, step: int, function: int, column: int) -> int:
        if step not in self._after:
            src, dst = self.edges[function]
            target = self.delta_QK[dst, column]
            live = target != DEAD
            self._after[step] = self._numbered(src[live], target[live]) if live.any() else NONE
        return self._after[step]

    def _numbered(self, src: np.ndarray, dst: np.ndarray) -> int:
        key = src.tobytes(), dst.tobytes()
        if key not in self._number:
            self._number[key] = len(self.edges)
            self.edges.append((src, dst))
            self.size += len(src)
            self.budget.edges(self.size)
        return self._number[key]


def useful(whole: TokenAutomaton) -> TokenAutomaton:
    """Without the states that no text in these tokens visits, and with classes renumbered. InputError when nothing
    is left.
    """
    start = np.zeros(whole.num_states, dtype=bool)
    start[0] = True
    kept = reach(whole.src, whole.dst, start) & reach(whole.dst, whole.src, whole.accept)
    if not kept[0]:
        raise InputError("the constraint allows no text that this vocabulary can write: loosen it")
    state = np.cumsum(kept, dtype=np.int32) - 1
    edge = kept[whole.src] & kept[whole.dst]
    classes, cls = np.unique(whole.cls[edge], return_inverse=True)
    number = np.full(whole.num_classes + 1, NONE, dtype=np.int32)
    number[classes] = np.arange(len(classes), dtype=np.int32)
    return TokenAutomaton(
        whole.accept[kept],
        number[whole.class_of_token],
        state[whole.src[edge]],
        state[whole.dst[edge]],
        cls.astype(np.int32),
        whole.ignored,
    )
