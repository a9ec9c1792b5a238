"""Required and forbidden strings of a text: keywords, forbidden strings, an ending, and strings in an interval of
tokens.

Each is a small automaton whose state is the length of the longest prefix of its string that ends the bytes read
(Knuth, Morris and Pratt); several together are their intersection. Intervals count tokens, everything else bytes.

Letters: K columns of symbols, C classes of tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from daguerre.errors import InputError
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.dfa import Dfa, intersect, start_at, table_dfa
from daguerre.sampling.constraints.indices import DEAD, NONE
from daguerre.sampling.constraints.product import intersect_tokens, table
from daguerre.sampling.constraints.reference.dfa import Table
from daguerre.sampling.constraints.regex import regex_dfa
from daguerre.sampling.constraints.tokens import TokenAutomaton, VocabularyBytes, lift

LOOK = 1024
"""Steps between two looks at a budget."""
EDGE = 24
"""About how many bytes an edge of `counted` takes."""
Within = tuple[str | tuple[int, ...], int, int]
"""A text, or tokens, and the interval [start, end) of token positions in which it occurs."""


@dataclass(frozen=True)
class Wording:
    """The required and forbidden strings of one gap's text.

    keywords   occur in it
    forbidden  do not occur from `before` to `after`, except inside one of these two alone
    ending     is at its end; "" for none
    within     each occurs in the bytes, or among the tokens, of an interval
    before, after   bytes around the gap
    followed   another gap follows `after`: no forbidden string may begin in this gap and reach it
    """

    keywords: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()
    ending: str = ""
    within: tuple[Within, ...] = ()
    before: bytes = b""
    after: bytes = b""
    followed: bool = False

    def __post_init__(self) -> None:
        wanted = [(f"keyword {word!r}", word) for word in self.keywords]
        wanted += [(f"ending {self.ending!r}", self.ending)]
        wanted += [(f"pinned {text!r}", text) for text, _, _ in self.within if isinstance(text, str)]
        budget = Budget()
        for name, text in wanted:
            budget.look()
            for word in self.forbidden:
                if word in text:
                    raise InputError(f"the {name} contains {word!r}, which is forbidden: leave out one of the two")

    @property
    def constrains(self) -> bool:
        """False where every text is allowed."""
        return bool(self.keywords or self.forbidden or self.ending or self.within)

    def crosses(self, word: bytes, begun: int) -> bool:
        """Whether what is after the gap begins with what a word has after its first `begun` bytes, or may."""
        if len(word) - begun <= len(self.after):
            return self.after.startswith(word[begun:])
        return self.followed and word.startswith(self.after, begun)


def matcher(pattern: Sequence[int], num_symbols: int, budget: Budget) -> tuple[np.ndarray, np.ndarray]:
    """(next state (m+1, K), column of each symbol (num_symbols,)) for a pattern of m symbols.

    In state j the longest prefix of the pattern that ends what was read has j symbols. Column 0 is that of all symbols
    the pattern does not have.
    """
    symbols = sorted(set(pattern))
    column = np.zeros(num_symbols, dtype=np.int64)
    column[symbols] = 1 + np.arange(len(symbols))
    budget.hold(4 * (len(pattern) + 1) * (1 + len(symbols)))
    delta = np.zeros((len(pattern) + 1, 1 + len(symbols)), dtype=np.int32)
    behind = 0  # the state after all but the first symbol
    for state, symbol in enumerate([*pattern, None]):
        if state % LOOK == 0:
            budget.look()
        delta[state] = delta[behind]
        if symbol is not None:
            next_behind = delta[behind, column[symbol]] if state else 0
            delta[state, column[symbol]] = state + 1
            behind = int(next_behind)
    return delta, column


def _shorter(word: bytes) -> list[int]:
    """For each state but the first, the length of the longest shorter prefix of `word` that ends its first bytes; for
    state 0 it is 0.
    """
    out = [0, 0]
    for state in range(1, len(word)):
        size = out[state]
        while size and word[size] != word[state]:
            size = out[size]
        out.append(size + (word[size] == word[state]))
    return out


def _crossing(word: bytes, around: Wording, budget: Budget) -> np.ndarray:
    """Bool (m,): whether a word that is read as far as a state, or a prefix of it that ends there, may be completed by
    what is after the gap.
    """
    crosses, shorter = np.zeros(len(word), dtype=bool), _shorter(word)
    for state in range(1, len(word)):
        if state % LOOK == 0:
            budget.look()
        crosses[state] = around.crosses(word, state) or crosses[shorter[state]]
    return crosses


def holding(word: bytes, budget: Budget) -> Dfa:
    """All strings in which a word occurs."""
    delta, column = matcher(word, 256, budget)
    delta[-1] = len(word)
    return table_dfa(delta, column.astype(np.uint8), np.arange(len(delta)) == len(word))


def ending_with(word: bytes, budget: Budget) -> Dfa:
    """All strings that end with a word."""
    delta, column = matcher(word, 256, budget)
    return table_dfa(delta, column.astype(np.uint8), np.arange(len(delta)) == len(word))


def avoiding(word: bytes, around: Wording, budget: Budget) -> Dfa:
    """All strings of the gap with which `word` occurs neither in them nor across their edges; minimal."""
    delta, column = matcher(word, 256, budget)
    kept = np.where(delta == len(word), DEAD, delta)[:-1]
    begun = 0
    for byte in around.before[max(0, len(around.before) - len(word) + 1) :]:  # too few for all of the word
        begun = int(delta[begun, column[byte]])
    return Dfa(start_at(Table(kept, column.astype(np.uint8), ~_crossing(word, around, budget)), begun))


def wording_dfa(wording: Wording, budget: Budget) -> Dfa:
    """The texts, whole characters of UTF-8, of a wording but for its intervals."""
    dfa = regex_dfa("[^]*", budget)
    for word in wording.forbidden:
        dfa = intersect(dfa, avoiding(word.encode(), wording, budget), budget)
    for word in wording.keywords:
        dfa = intersect(dfa, holding(word.encode(), budget), budget)
    return intersect(dfa, ending_with(wording.ending.encode(), budget), budget) if wording.ending else dfa


@lru_cache(maxsize=64)
def compile_wording(wording: Wording, tokenizer: Tokenizer) -> TokenAutomaton:
    """The texts of a wording. InputError when there are none, or it is too large."""
    budget = Budget()
    dfa = wording_dfa(wording, budget)
    if dfa.is_empty:
        raise InputError("no text has all the keywords and the ending and nothing that is forbidden: loosen them")
    automaton = lift(dfa, VocabularyBytes.make(tokenizer), budget)
    for content, start, end in wording.within:
        automaton = intersect_tokens(automaton, _interval(content, start, end, tokenizer, budget), budget)
    return automaton


def _interval(
    content: str | tuple[int, ...], start: int, end: int, tokenizer: Tokenizer, budget: Budget
) -> TokenAutomaton:
    """The token sequences whose positions [start, end) hold the text, or the tokens."""
    vocabulary = VocabularyBytes.make(tokenizer)
    if isinstance(content, str):
        one = lift(holding(content.encode(), budget), vocabulary, budget)
        return counted(table(one), one.class_of_token, start, end, budget)
    delta, column = matcher(content, tokenizer.vocab_size, budget)
    return counted(delta, np.where(vocabulary.lengths > 0, column, NONE), start, end, budget)


def counted(delta_SC: np.ndarray, class_of_token: np.ndarray, start: int, end: int, budget: Budget) -> TokenAutomaton:
    """An automaton that searches only at the positions [start, end): it begins there in state 0 of `delta_SC`
    (m + 1, C), and has found what it looks for in state m.

    Its states: `start` that wait, one for each position and state of the search, and the last, which has found it.
    """
    m, num_classes = len(delta_SC) - 1, delta_SC.shape[1]
    found, classes = start + (end - start) * m, np.arange(num_classes)
    budget.states(found)
    budget.hold(EDGE * found * num_classes)
    edges = [(np.full(num_classes, i), np.full(num_classes, i + 1), classes) for i in range(start)]
    for position in range(start, end):
        here = start + (position - start) * m
        src, cls = np.divmod(np.arange(m * num_classes), num_classes)
        to = delta_SC[src, cls]
        dst = np.where(to == m, found, here + m + to)
        kept = (to == m) | ((to != DEAD) & (position + 1 < end))
        edges.append((here + src[kept], dst[kept], cls[kept]))
    edges.append((np.full(num_classes, found), np.full(num_classes, found), classes))
    src, dst, cls = (np.concatenate(part).astype(np.int32) for part in zip(*edges, strict=True))
    return TokenAutomaton.of_edges(np.arange(found + 1) == found, class_of_token.astype(np.int32), (src, dst, cls))
