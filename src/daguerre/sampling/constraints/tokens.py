"""From bytes to tokens: an automaton over a vocabulary, with classes of tokens that act alike.

The vocabulary is read as a trie. A node of the trie is a function from states to states; few of those are distinct, so
each is computed once, whatever the size of the vocabulary, and tokens with the same function are one class. No array of
states x vocabulary is ever made.

Letters: Q states, V vocabulary, E edges, C classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np

from daguerre.errors import InputError
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.constraints import compiled
from daguerre.sampling.constraints.arrays import DEAD, NONE, hash64, ranges
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.compiled import Call, Handle, address
from daguerre.sampling.constraints.dfa import Dfa
from daguerre.sampling.constraints.reference import lift as reference

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
    _trie: Handle | None = None

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> Vocabulary:
        lengths = np.array([len(text) for text in texts], dtype=np.int64)
        return cls(np.frombuffer(b"".join(texts), dtype=np.uint8), np.cumsum(lengths) - lengths, lengths)

    def pointer(self, made: Any) -> int:
        """The vocabulary as a trie in the library."""
        if self._trie is None:
            held = made.vocabulary_new(
                address(self.text), address(self.offsets), address(self.lengths), len(self.lengths)
            )
            object.__setattr__(self, "_trie", Handle(made, held, "vocabulary_free"))
        assert self._trie is not None
        return self._trie.pointer

    @staticmethod
    @lru_cache(maxsize=8)
    def make(tokenizer: Tokenizer) -> Vocabulary:
        """The same for equal tokenizers; they never change. UnsupportedError if tokens cannot be read as bytes."""
        tokenizer.require_bytes("a constraint")
        return Vocabulary.of([tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)])


def lift(dfa: Dfa, vocabulary: Vocabulary, budget: Budget, ignored: tuple[str, ...] = ()) -> TokenAutomaton:
    """The automaton over tokens of an automaton over bytes. InputError when its language is empty, or when no text of
    it can be written in this vocabulary.
    """
    made = compiled.library()
    if made is None:
        arrays = reference.lift(dfa.table, vocabulary.text, vocabulary.offsets, vocabulary.lengths, budget)
    else:
        arrays = _lifted(Call(made, budget), dfa, vocabulary)
    return _not_empty(TokenAutomaton(*arrays, ignored))


def _lifted(call: Call, dfa: Dfa, vocabulary: Vocabulary) -> reference.Arrays:
    made = call.made
    handle = Handle(made, call("lift_new", dfa.pointer(call), vocabulary.pointer(made), call.limits), "lift_free")
    accept = np.empty(made.lift_num_states(handle.pointer), dtype=bool)
    class_of_token = np.empty(len(vocabulary.lengths), dtype=np.int32)
    src, dst, cls = (np.empty(made.lift_num_edges(handle.pointer), dtype=np.int32) for _ in range(3))
    made.lift_read(handle.pointer, *map(address, (accept, class_of_token, src, dst, cls)))
    return accept, class_of_token, src, dst, cls


def useful(whole: TokenAutomaton) -> TokenAutomaton:
    """Without the states that no text in these tokens visits, and with classes renumbered. InputError when nothing
    is left.
    """
    arrays = reference.useful(whole.accept, whole.class_of_token, whole.src, whole.dst, whole.cls)
    return _not_empty(TokenAutomaton(*arrays, whole.ignored))


def _not_empty(automaton: TokenAutomaton) -> TokenAutomaton:
    if not automaton.num_states:
        raise InputError("the constraint allows no text that this vocabulary can write: loosen it")
    return automaton
