"""The vocabulary of a GGUF file's tokenizer, of which as much is given to the library `tokenizers` as a text needs.

The library takes a third of a second for 150,000 tokens, and holds the interpreter meanwhile. A short text has few of
them: a token that is no part of it can never come about, so the tokens that are, and the pairs that make these, give
the ids that all would give. After some texts, and for long ones, the whole tokenizer is made.
"""

from __future__ import annotations

import json
import logging
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from daguerre.errors import DataError
from daguerre.models.gguf.scores import scored_merges
from daguerre.models.gguf.token_types import ADDED, TEXT
from daguerre.models.texts import Texts, all_likely_among, among, joined_numbers, lengths, numbers_of_parts
from daguerre.models.tokenizer import byte_of_character
from daguerre.models.tokenizer_fields import panics_raised
from daguerre.models.tokenizer_json import FALLBACK, MARK, TokenizerFile, Words, flagged, layout_of, listed

LOG = logging.getLogger(__name__)
LONGEST = 1 << 13
"""Characters of a text, from which on the whole tokenizer is made."""
MOST, EACH = 1 << 14, 1 << 10
"""Characters of all texts together, for which parts are made, and what each text counts beside its own."""
Pairs = Sequence[tuple[str, str]]


LETTERS = {byte: character for character, byte in byte_of_character().items()}


class GgufWords(Words):
    """Tokens by id, of which `used` (N,) are those of the model, and the values of a tokenizer.json without these."""

    def __init__(self, tokens: Texts, used: np.ndarray, values: Mapping[str, Any], named: Iterable[str]) -> None:
        self.tokens, self._values = tokens, values
        added = flagged(listed(values["added_tokens"])[0], named, tokens.find(*named))
        self._added = [token["id"] for token in added]
        self._used = used.copy()
        self._used[self._added] = True  # a token that a file calls unused may end a text
        self._late = [index for index in self._added if not used[index]]
        self.num_ids = 1 + int(np.flatnonzero(self._used)[-1])
        self.layout: TokenizerFile = layout_of(self, values, added)
        self._left = MOST
        self._last: tuple[str, tokenizers.models.Model | None] = "", None

    @abstractmethod
    def pairs(self, ids: np.ndarray | None) -> Pairs:
        """The pairs that are merged, in order: all, or those that make the tokens `ids`, of which each part is one."""

    @cached_property
    def whole(self) -> tokenizers.Tokenizer:
        """The tokenizer of all tokens. DataError for one that the library does not take."""
        return tokenizers.Tokenizer(self._model(None))

    @property
    def inner(self) -> tokenizers.Tokenizer:
        return self.whole

    def content(self) -> bytes:
        model = {**self._values["model"], "vocab": self._vocabulary(None), "merges": self.pairs(None)}
        given, added = self._values["added_tokens"], self.layout.added
        values = {**self._values, "added_tokens": given if added == given else added, "model": model}
        return json.dumps(values, ensure_ascii=False).encode()

    def texts(self) -> Texts:
        return self.tokens.kept(self._used).first(self.num_ids)

    def ids_of(self, texts: Iterable[str]) -> dict[str, int]:
        return {text: index for text, index in self.tokens.find(*texts).items() if self._used[index]}

    def part(self, text: str, normalized: str) -> tokenizers.models.Model | None:
        if "whole" in self.__dict__ or len(text) > LONGEST or (self.layout.byte_level and normalized != text):
            return None  # what is normalized in parts may differ from the whole
        last, model = self._last
        if model is None or text not in last:
            self._left -= EACH + len(text)
            if self._left < 0:
                return None
            model = self._model(self._within(text))
            self._last = text, model
        return model

    def _within(self, text: str) -> np.ndarray:
        """The tokens that a text can have, ascending, and perhaps some others."""
        if self.layout.byte_level:
            found = [self.tokens.within("".join(map(LETTERS.__getitem__, text.encode())))]
        else:
            spaced = text.replace(" ", MARK)
            ids, numbers, sizes = self._behind_mark  # which may be put before any part of a text
            found = [self.tokens.within(spaced), ids[among(numbers, numbers_of_parts(spaced, sizes))]]
        held = np.zeros(len(self.tokens), bool)
        held[np.concatenate([*found, self._always])] = True
        return np.flatnonzero(held & self._used)

    @cached_property
    def _always(self) -> np.ndarray:
        """Tokens of every part: the added ones, and those of single bytes."""
        return np.array([*self._added, *self.tokens.find(*FALLBACK).values()], np.int64)

    @cached_property
    def _behind_mark(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The tokens that begin with a mark; the numbers of what is behind it, and the lengths that this has."""
        starts, ends, form = self.tokens.ends[:-1], self.tokens.ends[1:], MARK.encode()
        ids = np.flatnonzero(ends - starts >= len(form))
        for offset, byte in enumerate(form):
            ids = ids[self.tokens.bytes[starts[ids] + offset] == byte]
        behind = starts[ids] + len(form)
        return ids, self.tokens.numbers_of(behind, ends[ids]), lengths(ends[ids] - behind)

    def _model(self, ids: np.ndarray | None) -> tokenizers.models.Model:
        flags = {name: value for name, value in self._values["model"].items() if name != "type"}
        try:
            with panics_raised():
                return tokenizers.models.BPE(vocab=self._vocabulary(ids), merges=[*self.pairs(ids)], **flags)
        except ValueError as error:
            raise DataError(f"the tokenizer cannot be used ({error}): copy its file again") from None

    def _vocabulary(self, ids: np.ndarray | None) -> dict[str, int]:
        if ids is not None:
            return {self.tokens[index]: index for index in ids.tolist()}
        late, used = {*self._late}, self._used.tolist()
        found = {text: i for i, (text, use) in enumerate(zip(self.tokens, used, strict=True)) if use and i not in late}
        return found | {self.tokens[index]: index for index in self._late}


class RankedWords(GgufWords):
    """With pairs that the file lists, each as two tokens with a space between. DataError where one is none, or is of
    tokens that are not there.
    """

    def __init__(
        self, tokens: Texts, used: np.ndarray, values: Mapping[str, Any], named: Iterable[str], merges: Texts
    ) -> None:
        super().__init__(tokens, used, values, named)
        self._merges = merges
        starts, ends = merges.ends[:-1], merges.ends[1:]
        spaces = np.flatnonzero(merges.bytes == ord(" "))
        if len(spaces) != len(merges) or not ((spaces >= starts) & (spaces < ends)).all():
            raise DataError("it has no list of pairs of tokens")
        left, right = merges.numbers_of(starts, spaces), merges.numbers_of(spaces + 1, ends)
        self._made = joined_numbers(left, spaces - starts, right)
        if not all_likely_among(np.concatenate([left, right, self._made]), tokens.numbers):
            raise DataError("its pairs are of tokens that it does not have")

    def pairs(self, ids: np.ndarray | None) -> Pairs:
        """Those that the file lists."""
        if ids is None:
            return [pair(merge) for merge in self._merges]
        parts = {self.tokens[index] for index in ids.tolist()}
        found = (pair(self._merges[place]) for place in among(self._made, self.tokens.numbers[ids]).tolist())
        return [(left, right) for left, right in found if left in parts and right in parts]


def pair(merge: str) -> tuple[str, str]:
    """Both tokens of a pair."""
    left, _, right = merge.partition(" ")
    return left, right


class ScoredWords(GgufWords):
    """With pairs that follow from the scores (N,) of what they make. kinds: the types of tokens, corrected. where: the
    file."""

    def __init__(
        self,
        tokens: Texts,
        used: np.ndarray,
        values: Mapping[str, Any],
        named: Iterable[str],
        kinds: np.ndarray,
        scores: np.ndarray,
        where: Path,
    ) -> None:
        super().__init__(tokens, used, values, named)
        self._where = where
        self._kinds, self._scores, self._told = kinds, scores, False

    def pairs(self, ids: np.ndarray | None) -> Pairs:
        """A warning where ids may not be those of llama.cpp."""
        made, letters = dict[str, float](), set[str]()
        for index in range(len(self.tokens)) if ids is None else ids.tolist():
            kind, text = self._kinds[index], self.tokens[index]
            if kind == TEXT or (kind == ADDED and MARK in text):  # others of these are found before
                made |= {text: float(self._scores[index])} if len(text) > 1 else {}
                letters |= {text} if len(text) == 1 else set()
        merges = scored_merges(made, letters)
        if not (merges.exact or self._told):
            self._told = True
            LOG.warning("%s has tokens of equal scores: ids of a few texts may not be those of llama.cpp", self._where)
        return merges.pairs
