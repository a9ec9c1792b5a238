"""From bytes to tokens: an automaton over a vocabulary, with classes of tokens that act alike.

The vocabulary is read as a trie. A node of the trie is a function from states to states; few of those are distinct, so
each is computed once, whatever the size of the vocabulary, and tokens with the same function are one class. No array of
states x vocabulary is ever made.

Letters: Q states, V vocabulary, E edges, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np

from daguerre.errors import InputError
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.constraints import compiled
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.compiled import Handle, LimitedCalls, address
from daguerre.sampling.constraints.dfa import Dfa
from daguerre.sampling.constraints.indices import DEAD, NONE, ranges
from daguerre.sampling.constraints.reference import lift as reference
from daguerre.sampling.constraints.tiles import Tiles

LOOK = 1024
"""Steps between two looks at a budget."""
FIELDS = ("accept", "class_of_token")
PAIRS = ("first", "dst", "bundle", "starts", "classes")


@dataclass(frozen=True, eq=False)
class Edges:
    """A transition for each state and class of tokens: arrays (E,), in the order of src, dst and cls; those of state q
    are first[q] to first[q+1].
    """

    src: np.ndarray
    dst: np.ndarray
    cls: np.ndarray
    first: np.ndarray


@dataclass(frozen=True, eq=False)
class StatePairs:
    """Distinct (src, dst), in that order, and the bundle that leads from one to the other: a set of classes.

    Pairs of state q are first[q] to first[q+1]; the classes of bundle b are classes[starts[b]:starts[b+1]], ascending.
    Few bundles are distinct: in a bounded string, whatever was read, the same tokens are n characters long. Bundles are
    numbered as they first occur. `dst`, `bundle` and `classes` are int32, `first` and `starts` int64.
    """

    first: np.ndarray
    dst: np.ndarray
    bundle: np.ndarray
    starts: np.ndarray
    classes: np.ndarray

    def __len__(self) -> int:
        return len(self.dst)

    @property
    def num_bundles(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def src(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.first) - 1, dtype=np.int32), np.diff(self.first))

    @cached_property
    def bundles_of(self) -> tuple[np.ndarray, np.ndarray]:
        """(bundles, first): those that class c is in are bundles[first[c]:first[c+1]]."""
        order = np.argsort(self.classes, kind="stable")
        bundles = np.repeat(np.arange(self.num_bundles, dtype=np.int32), np.diff(self.starts))[order]
        return bundles, np.searchsorted(self.classes[order], np.arange(int(self.classes.max(initial=NONE)) + 2))

    def taking(self, cls: int) -> np.ndarray:
        """(B,): whether each bundle has a class."""
        bundles, first = self.bundles_of
        taken = np.zeros(self.num_bundles, dtype=bool)
        taken[bundles[first[cls] : first[cls + 1]]] = True
        return taken


@dataclass(frozen=True, eq=False)
class TokenAutomaton:
    """A language over tokens, of at least one text; every state leads to one.

    State 0 is the start. `accept` (Q,) bool; `class_of_token` (V,) int32 holds NONE for a token that is never allowed,
    specials among them; `pairs` are the transitions.
    `ignored` lists what a lenient compilation left out, as "keyword at place".
    """

    accept: np.ndarray
    class_of_token: np.ndarray
    pairs: StatePairs
    ignored: tuple[str, ...] = ()

    @classmethod
    def of_edges(
        cls,
        accept: np.ndarray,
        class_of_token: np.ndarray,
        edges: tuple[np.ndarray, np.ndarray, np.ndarray],
        ignored: tuple[str, ...] = (),
    ) -> TokenAutomaton:
        """From a transition for each state and class: `edges` are (src, dst, class)."""
        return cls(accept, class_of_token, StatePairs(*reference.pairs(len(accept), *edges)), ignored)

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
        """All tokens (V,) int32, class by class, each in ascending order; those without a class come last."""
        key = np.where(self.class_of_token == NONE, self.num_classes, self.class_of_token)
        return np.argsort(key, kind="stable").astype(np.int32)

    @cached_property
    def first_token(self) -> np.ndarray:
        """(C+1,): the tokens of class c are order[first_token[c]:first_token[c+1]]."""
        counts = np.bincount(self.class_of_token[self.class_of_token != NONE], minlength=self.num_classes)
        return np.concatenate([[0], np.cumsum(counts)])

    @cached_property
    def tiles(self) -> Tiles:
        return Tiles.of(self.order, self.first_token)

    @property
    def edges(self) -> Edges:
        """A transition for each state and class: many more than pairs, and made anew each time."""
        pairs = self.pairs
        counts = np.diff(pairs.starts)[pairs.bundle]
        cls = pairs.classes[ranges(pairs.starts[pairs.bundle], pairs.starts[pairs.bundle + 1])]
        first = np.concatenate([[0], np.cumsum(counts)])[pairs.first]
        return Edges(np.repeat(pairs.src, counts), np.repeat(pairs.dst, counts), cls, first)

    def step(self, state: int, token: int) -> int:
        """The state after a token, or DEAD."""
        return self.step_class(state, int(self.class_of_token[token]))

    def step_class(self, state: int, cls: int) -> int:
        """The state after a token of a class, or DEAD."""
        if cls == NONE:
            return DEAD
        pairs = self.pairs
        run = slice(pairs.first[state], pairs.first[state + 1])
        found = pairs.dst[run][self._takers(cls)[pairs.bundle[run]]]
        return int(found[0]) if len(found) else DEAD

    @cached_property
    def _takers(self) -> Callable[[int], np.ndarray]:
        """`StatePairs.taking` of the classes that were asked about."""
        return cache(self.pairs.taking)

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
        end, filler, pairs = self.num_states, self.num_classes, self.pairs
        class_of_token = self.class_of_token.copy()
        class_of_token[token] = filler
        accept, first = np.append(self.accept, True), np.append(pairs.first, pairs.first[-1])
        places = first[1:][accept]
        longer = StatePairs(
            first + np.concatenate([[0], np.cumsum(accept)]),
            np.insert(pairs.dst, places, end),
            np.insert(pairs.bundle, places, pairs.num_bundles),
            np.append(pairs.starts, pairs.starts[-1] + 1),
            np.append(pairs.classes, np.int32(filler)),
        )
        return TokenAutomaton(accept, class_of_token, longer, self.ignored)

    def without(self, tokens: Sequence[int]) -> TokenAutomaton:
        """The texts of the language that can be written without some tokens. InputError when none can."""
        class_of_token = self.class_of_token.copy()
        class_of_token[list(tokens)] = NONE
        edges = self.edges
        left = np.isin(edges.cls, class_of_token)
        return useful(self.accept, class_of_token, (edges.src[left], edges.dst[left], edges.cls[left]), self.ignored)

    def next_classes(self, state: int) -> np.ndarray:
        """The classes of tokens that may follow a state."""
        pairs = self.pairs
        bundles = np.unique(pairs.bundle[pairs.first[state] : pairs.first[state + 1]])
        return np.unique(pairs.classes[ranges(pairs.starts[bundles], pairs.starts[bundles + 1])])

    def tokens_of(self, cls: int) -> np.ndarray:
        """The tokens of a class, ascending."""
        return self.order[self.first_token[cls] : self.first_token[cls + 1]]

    @cached_property
    def num_bytes(self) -> int:
        """About the memory of its arrays, and of those that are made of them."""
        pairs = sum(getattr(self.pairs, name).nbytes for name in PAIRS)
        return 2 * (self.accept.nbytes + self.class_of_token.nbytes + pairs)

    def fewest_tokens(self, state: int = 0, most: int | None = None) -> int | None:
        """The length of the shortest text of the language from a state on, in tokens; None where it has more than
        `most`.
        """
        first, dst, budget = self.pairs.first, self.pairs.dst, Budget()
        seen = np.zeros(self.num_states, dtype=bool)
        seen[state] = True
        front, steps = np.array([state]), 0
        while not self.accept[front].any():  # each state is in one front alone
            if steps % LOOK == 0:
                budget.look()
            if steps == most:
                return None
            reached = dst[ranges(first[front], first[front + 1])]
            front = np.unique(reached[~seen[reached]])
            seen[front] = True
            steps += 1
        return steps

    def save(self, file: IO[bytes]) -> None:
        """Write the arrays as an `.npz`."""
        arrays = {name: getattr(self, name) for name in FIELDS} | {name: getattr(self.pairs, name) for name in PAIRS}
        np.savez_compressed(file, ignored=np.array(self.ignored, dtype=str), **arrays)

    @classmethod
    def load(cls, path: Path) -> TokenAutomaton:
        """What `save` wrote; any exception when it is damaged."""
        with path.open("rb") as file, np.load(file, allow_pickle=False) as held:
            pairs = StatePairs(**{name: held[name] for name in PAIRS})
            return cls(**{name: held[name] for name in FIELDS}, pairs=pairs, ignored=tuple(held["ignored"].tolist()))


@dataclass(frozen=True, eq=False)
class VocabularyBytes:
    """The bytes of all tokens, end to end: token t has `lengths[t]` bytes from `offsets[t]`; specials have none."""

    text: np.ndarray
    offsets: np.ndarray
    lengths: np.ndarray
    _trie: Handle | None = None

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> VocabularyBytes:
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
    def make(tokenizer: Tokenizer) -> VocabularyBytes:
        """That of a tokenizer, kept for equal ones. UnsupportedError if tokens cannot be read as bytes."""
        return VocabularyBytes.coded(tokenizer, ())

    @staticmethod
    @lru_cache(maxsize=8)
    def coded(tokenizer: Tokenizer, codes: tuple[tuple[int, bytes], ...]) -> VocabularyBytes:
        """As `make`, with codes for some special tokens. They begin with a byte that no text has; so no other token may
        have it.
        """
        tokenizer.require_bytes("a constraint")
        texts = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        if codes:
            texts = [b"" if codes[0][1][:1] in text else text for text in texts]
        for token, code in codes:
            texts[token] = code
        return VocabularyBytes.of(texts)


def lift(dfa: Dfa, vocabulary: VocabularyBytes, budget: Budget, ignored: tuple[str, ...] = ()) -> TokenAutomaton:
    """The automaton over tokens of an automaton over bytes. InputError when its language is empty, or when no text of
    it can be written in this vocabulary.
    """
    made = compiled.library()
    if made is None:
        texts = vocabulary.text, vocabulary.offsets, vocabulary.lengths
        return useful(*reference.lift(dfa.table, *texts, budget), ignored)
    return _not_empty(_lifted(LimitedCalls(made, budget), dfa, vocabulary, ignored))


def _lifted(call: LimitedCalls, dfa: Dfa, vocabulary: VocabularyBytes, ignored: tuple[str, ...]) -> TokenAutomaton:
    made = call.made
    handle = Handle(made, call("lift_new", dfa.pointer(call), vocabulary.pointer(made), call.limits), "lift_free")
    sizes = np.empty(4, dtype=np.int64)
    made.lift_sizes(handle.pointer, address(sizes))
    num_states, num_pairs, num_bundles, num_classes = sizes.tolist()
    call.budget.hold(9 * num_states + 8 * num_pairs + 8 * num_bundles + 4 * num_classes)
    accept, class_of_token = np.empty(num_states, dtype=bool), np.empty(len(vocabulary.lengths), dtype=np.int32)
    first, starts = (np.empty(number + 1, dtype=np.int64) for number in (num_states, num_bundles))
    dst, bundle, classes = (np.empty(number, dtype=np.int32) for number in (num_pairs, num_pairs, num_classes))
    arrays = (accept, class_of_token, first, dst, bundle, starts, classes)
    made.lift_read(handle.pointer, *map(address, arrays))
    return TokenAutomaton(accept, class_of_token, StatePairs(*arrays[2:]), ignored)


def useful(
    accept: np.ndarray,
    class_of_token: np.ndarray,
    edges: tuple[np.ndarray, np.ndarray, np.ndarray],
    ignored: tuple[str, ...],
) -> TokenAutomaton:
    """The automaton of these transitions (src, dst, class) without the states that no text visits, and with classes
    renumbered. InputError when nothing is left.
    """
    return _not_empty(TokenAutomaton.of_edges(*reference.useful(accept, class_of_token, edges), ignored))


def _not_empty(automaton: TokenAutomaton) -> TokenAutomaton:
    if not automaton.num_states:
        raise InputError("the constraint allows no text that this vocabulary can write: loosen it")
    return automaton
