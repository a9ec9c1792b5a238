"""Drafts: the caller's, and where the tokens of others come from and how sure each is.

A draft never changes a text, only how many forwards it takes. The numbers here are those of the default model on its
held-out prompts (docs/log.md); with another model they cost time at worst.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from operator import mul
from typing import Literal

import numpy as np

from daguerre.models.core.config import ModelConfig
from daguerre.models.tokenizer import Tokenizer

MAX_VERIFIED, MIN_VERIFIED = 32, 2
"""Draft tokens that a forward verifies: at most, and right after a token that differed."""
BEGUN = 16
"""As many tokens are taken to have agreed before the first."""
SURE, LONGEST_TAIL = 3, 16
"""How many tokens, that agree or are found again, make a place in the draft certain; and how many are looked for."""


@dataclass(frozen=True, eq=False)
class Draft:
    """The likely text of one gap."""

    text: str
    tokenizer: Tokenizer

    def tokens(self, begun: bytes = b"") -> np.ndarray:
        """Its tokens, int64, without the bytes that the gap has already, if it begins with them."""
        rest = self.text.encode().removeprefix(begun)
        ids = self.tokenizer.encode_plain(rest.decode("utf-8", errors="ignore"), begins=False)
        return np.array(ids, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Alignment:
    """The place in `draft`, int64 (N,), of the next token: `place`, which is a guess after a difference.

    known     the place behind the last SURE tokens or more that agreed one after the other
    misses    tokens of the text since it last agreed with the draft
    agreed    tokens of the text since they last differed; where the place was found again, those that it was found by
    accepted  tokens of the text that agreed, each at another place
    """

    draft: np.ndarray
    place: int = 0
    known: int = 0
    misses: int = 0
    agreed: int = BEGUN
    accepted: int = 0

    def ahead(self, room: int) -> np.ndarray:
        """The tokens to verify next, at most `room`."""
        return self.draft[self.place :][: max(0, min(room, MAX_VERIFIED, MIN_VERIFIED + self.agreed))]

    def after(self, text: np.ndarray, num: int) -> Alignment:
        """The alignment after the last `num` tokens of `text`, int64."""
        at = self
        for end in range(len(text) - num + 1, len(text) + 1):
            at = at._after_one(text[:end])
        return at

    def _after_one(self, text: np.ndarray) -> Alignment:
        if self.place < len(self.draft) and text[-1] == self.draft[self.place]:
            place, agreed = self.place + 1, self.agreed + 1
            known = place if agreed >= SURE else self.known
            return replace(self, place=place, known=known, misses=0, agreed=agreed, accepted=self.accepted + 1)
        return self._found_again(text)

    def _found_again(self, text: np.ndarray) -> Alignment:
        """Behind a token that differed: where the longest part of the text's end stands in the draft, the first such
        place from the known one on; before that one only where so much is found that it is certain.
        """
        missed = replace(self, misses=self.misses + 1, agreed=0)
        num, places = longest_match(self.draft, text, LONGEST_TAIL)
        onward = places[places >= self.known]
        if onward.size or num >= SURE:
            place = onward[0] if onward.size else places[-1]
            return replace(missed, place=int(place), agreed=num - 1)
        return replace(missed, place=min(len(self.draft), self.known + missed.misses))  # as if each token replaced one


def longest_match(draft: np.ndarray, text: np.ndarray, most: int) -> tuple[int, np.ndarray]:
    """How many tokens, at most `most`, of the end of `text` stand somewhere in `draft`, both int64; and the places
    right behind them there, ascending.
    """
    length, ends = 0, NO_PLACES
    found = (draft == text[-1]).nonzero()[0]
    while len(found):
        length, ends = length + 1, found
        if length == min(most, len(text)):
            break
        found = ends[ends >= length]
        found = found[draft[found - length] == text[len(text) - 1 - length]]
    return length, ends + 1


NO_PLACES = np.zeros(0, dtype=np.int64)
Source = Literal["head", "lookup", "caller", "second"]

MIN_ACCEPTED = 0.05
"""A draft ends before the token with which the chance that all of it is accepted falls below this."""
MIN_GAIN = 0.45
"""What the model's draft gains where the text ends, less the time of the draft head. Masked rows follow a place of a
draft if the chance that the text ends there, times this, is at least the time that they take, or if the chance is one
half."""
CYCLE_TIME = 0.2
"""What a cycle takes more than a step of mode "ar" besides its rows and the draft head, as a share of the latter."""
MASKED_PLACES = 1.5
"""Behind how many places of a draft there are masked rows on average."""
WORTH_DRAFTING = 1.1
"""The model drafts where text is written this many times as fast with its drafts alone as in mode "ar". Drafts from the
text are faster than "ar" without them."""
UNKNOWN_ACCEPTANCE = ((0.65, 0.4), (0.45, 0.35))
"""The acceptance of a draft by depth, at temperatures 0 and 1, where a model's config does not say it: poor."""
TRUST = 4
"""As many drafts, where they take forwards of their own, tell as much of their acceptance as a model's config does; and
as many tokens of drafts from the text as the table of their acceptance.
"""
DOUBT = 0.7
"""What part of the expected tokens of drafts from a text are right, in a crowd, before any was seen."""
LOOKED_UP = 8
"""The most tokens of a draft from the text."""
LOOKUP_ACCEPTANCE = (
    ((0.34, 0.22), (0.80, 0.56)),
    ((0.65, 0.49), (0.85, 0.67)),
    ((0.75, 0.58), (0.89, 0.74)),
    ((0.84, 0.69), (0.91, 0.76)),
    ((0.87, 0.69), (0.92, 0.79)),
    ((0.96, 0.81), (0.95, 0.85)),
)
"""How often tokens are right after a match of 1, 2, ..., 6 and more tokens, at temperatures 0 and 1: the first, and
each later one given that those before it were."""
LONGEST_MATCH = len(LOOKUP_ACCEPTANCE)
CALLER_ACCEPTANCE = 0.99
"""How often a token of the caller's draft is right, at most: after n that agreed, 1 - 1 / (n + SELDOM) of them are."""
SELDOM = 20


@dataclass(eq=False, slots=True)
class Drafted:
    """A draft of D tokens.

    tokens   int64 (D,)
    reached  the chances that at least 0, 1, ..., D of them are accepted
    source   "head": the model, with or without a draft head; "second": a second model
    """

    tokens: np.ndarray
    reached: Sequence[float]
    source: Source = "head"

    @classmethod
    def of(cls, tokens: np.ndarray, acceptance: Sequence[float], source: Source = "head") -> Drafted:
        """A draft whose tokens are accepted with these chances (D,), each given that those before it are."""
        return cls(tokens, (1.0, *accumulate(acceptance, mul)), source)

    def __len__(self) -> int:
        return len(self.reached) - 1

    def first(self, num: int) -> Drafted:
        """The first `num` tokens, fewer where the chance that all are accepted gets small."""
        kept = len(self)
        while kept > 0 and (kept > num or self.reached[kept] < MIN_ACCEPTED):
            kept -= 1
        return self if kept == len(self) else Drafted(self.tokens[:kept], self.reached[: kept + 1], self.source)

    def after(self, tokens: np.ndarray) -> Drafted:
        """What is left of it behind these tokens (k,), which the text has got meanwhile; nothing if it has others."""
        num = len(tokens)
        if not num or not np.array_equal(self.tokens[:num], tokens):
            return NO_DRAFT if num else self
        reached = [chance / self.reached[num] for chance in self.reached[num:]]
        return Drafted(self.tokens[num:], reached, self.source)

    def fastest(self, room: int, row_time: float) -> tuple[int, float]:
        """How many of its first tokens, at most `room`, are likely to commit the most tokens in their time; and the
        speed of these.
        """
        tokens, fastest, kept = 0.0, 0.0, 0
        for num, chance in enumerate(self.reached[: room + 1]):
            if num and chance < MIN_ACCEPTED:
                break
            tokens += chance
            if tokens > fastest * (1 + row_time * num):
                fastest, kept = tokens / (1 + row_time * num), num
        return kept, fastest

    def speed(self, row_time: float) -> float:
        """Tokens that a forward commits on average, in units of the time that mode "ar" takes for one."""
        return sum(self.reached) / (1 + row_time * len(self))

    def ends(self, chance: float) -> tuple[int, ...]:
        """The places 0 .. D, by how many tokens are accepted, at which the text ends with at least this chance.

        Not the last one of a draft from the text: what is right to its end goes on.
        """
        last = 0.0 if self.source != "lookup" else self.reached[-1]
        after = *self.reached[1:], last
        return tuple(
            [place for place, (here, more) in enumerate(zip(self.reached, after, strict=True)) if here - more >= chance]
        )


NO_DRAFT = Drafted(np.zeros(0, dtype=np.int64), (1.0,))


def best(drafts: Iterable[Drafted], room: int, row_time: float) -> Drafted:
    """The draft that is likely to commit the most tokens in its time, of at most `room` tokens; of equals the first."""
    chosen, most, highest = NO_DRAFT, 0, 0.0
    for draft in drafts:
        num, speed = draft.fastest(room, row_time)
        if speed > highest:
            chosen, most, highest = draft, num, speed
    return chosen.first(most)


def worth_drafting(config: ModelConfig, temperature: float, most: int, row_time: float, head_time: float) -> int:
    """How many tokens, at most `most`, the model should draft to be fastest, by their acceptance, which the model's
    config says, and the times of a row and of a step of the draft head on this machine; 0 if that is not faster.
    """
    cold, warm = config.draft_acceptance or UNKNOWN_ACCEPTANCE
    share, tokens, reached, fastest, out = min(temperature, 1.0), 1.0, 1.0, WORTH_DRAFTING, 0
    base, each = 1 + CYCLE_TIME, head_time * bool(config.draft_head) + (1 + MASKED_PLACES) * row_time
    if config.mask_id is None:  # a published model, whose step hides what else a cycle takes
        base, each = 1, head_time * bool(config.draft_head) + (1 + MASKED_PLACES * config.has_draft_rows) * row_time
    if config.masks_in_place:
        base, each = 2 + CYCLE_TIME, 2 * row_time  # a draft takes a forward of its own
    for num, (greedy, sampled) in enumerate(zip(cold[:most], warm[:most], strict=True), start=1):
        reached *= (1 - share) * greedy + share * sampled
        tokens += reached
        if tokens / (base + num * each) > fastest:
            fastest, out = tokens / (base + num * each), num
    return out


class Apart:
    """Drafts of `num` tokens by forwards of their own, and whether one more is worth its time: by what the model's
    config says of their acceptance at first, then by how many tokens were accepted.

    always: every draft is
    """

    def __init__(self, config: ModelConfig, temperature: float, num: int, always: bool) -> None:
        cold, warm = config.draft_acceptance or UNKNOWN_ACCEPTANCE
        share = min(temperature, 1.0)
        chances = [(1 - share) * greedy + share * sampled for greedy, sampled in zip(cold, warm, strict=True)]
        self.num, self._always = num, always
        self._accepted, self._made = TRUST * sum(accumulate(chances[:num], mul)), TRUST

    def worth(self, other: Drafted, row_time: float) -> bool:
        """Whether it is faster than to verify the `other` draft at once."""
        speed = (1 + self._accepted / self._made) / (2 * (1 + row_time * self.num))
        return self._always or speed > other.speed(row_time)

    def count(self, accepted: int) -> None:
        """Count a draft that was verified."""
        self._accepted, self._made = self._accepted + accepted, self._made + 1


@dataclass
class LookedUp:
    """How many tokens of drafts from a text were right, beside how many were expected, and the `factor` of the last
    draft's chances. A wrong one costs a text that is alone little, and in a crowd others' time.
    """

    right: float = DOUBT * TRUST
    expected: float = float(TRUST)
    factor: float = 1.0

    def judged(self, draft: Drafted, crowd: int) -> Drafted:
        """The draft; in a crowd with chances by what the earlier ones were worth."""
        self.factor = 1.0 if crowd == 1 else min(1.0, self.right / self.expected)
        if crowd == 1:
            return draft
        return Drafted(draft.tokens, [1.0, *(chance * self.factor for chance in draft.reached[1:])], draft.source)

    def count(self, draft: Drafted, right: int) -> None:
        """Count a draft from a text that was verified."""
        self.right, self.expected = self.right + right, self.expected + sum(draft.reached[1:]) / self.factor


def look_up(text: np.ndarray, temperature: float) -> Drafted:
    """What followed the most recent of the longest earlier matches of the last tokens of `text`, int64 (N,).

    Where the match overlaps the end of the text, its period goes on.
    """
    num = len(text)
    ends = found = (text[:-1] == text[-1]).nonzero()[0]
    length = 0
    while len(found):  # `longest_match`, without its call in every cycle
        length, ends = length + 1, found
        if length == LONGEST_MATCH:
            break
        found = ends[ends >= length]
        found = found[text[found - length] == text[num - 1 - length]]
    if not length:
        return NO_DRAFT
    after = text[ends[-1] + 1 : ends[-1] + 1 + LOOKED_UP]
    tokens = after if len(after) == LOOKED_UP else np.resize(after, LOOKED_UP)
    return Drafted(tokens, _lookup_reached(length, min(temperature, 1.0)), "lookup")


@lru_cache(maxsize=256)
def _lookup_reached(length: int, temperature: float) -> tuple[float, ...]:
    first, later = (
        (1 - temperature) * greedy + temperature * sampled for greedy, sampled in LOOKUP_ACCEPTANCE[length - 1]
    )
    return (1.0, *(first * later**place for place in range(LOOKED_UP)))


def given_by_caller(given: Alignment, room: int, in_place: float) -> Drafted:
    """The next tokens of the caller's draft, at most `room`; in_place: how likely its place has been found."""
    tokens = given.ahead(room)
    acceptance = min(CALLER_ACCEPTANCE, 1 - 1 / (given.agreed + SELDOM))
    return Drafted(tokens, (1.0, *(in_place * acceptance**num for num in range(1, len(tokens) + 1))), "caller")
