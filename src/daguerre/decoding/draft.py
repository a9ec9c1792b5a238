"""A draft of the caller: the likely text of a request, and the place in it that the text so far has reached."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from daguerre.models.tokenizer import Tokenizer

MAX_VERIFIED, MIN_VERIFIED = 16, 2
"""Draft tokens that a forward verifies: at most, and right after a token that differed."""
TAIL = 4
"""After a difference, the place in the draft is found by at most this many tokens at the end of the text."""


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

    known     the first place that the text has not passed for certain
    misses    tokens of the text since it last agreed with the draft
    agreed    tokens of the text since they last differed
    accepted  tokens of the text that agreed, each at another place
    """

    draft: np.ndarray
    place: int = 0
    known: int = 0
    misses: int = 0
    agreed: int = MAX_VERIFIED
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
            place = self.place + 1
            return replace(self, place=place, known=place, misses=0, agreed=self.agreed + 1, accepted=self.accepted + 1)
        missed = replace(self, misses=self.misses + 1, agreed=0)
        for num in range(min(TAIL, len(text)), 0, -1):
            found = occurrences(self.draft, text[-num:])
            found = found[found > self.known]
            if found.size:
                return replace(missed, place=int(found[0]))
        return replace(missed, place=min(len(self.draft), self.known + missed.misses))  # as if each token replaced one


def occurrences(draft: np.ndarray, tail: np.ndarray) -> np.ndarray:
    """The places in a draft (N,) right after the occurrences of `tail`, int64, ascending."""
    if len(tail) > len(draft):
        return np.zeros(0, dtype=np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(draft, len(tail))
    return np.flatnonzero((windows == tail).all(axis=-1)) + len(tail)
