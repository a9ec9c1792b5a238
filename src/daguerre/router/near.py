"""How near two texts are: the cosine of their counts of words and of pairs of words, if they agree in what turns a
meaning over.

The cosine of texts of n different words, one of which is exchanged for another, is 1 - 3 / (2n - 1) where no word is
first or last: .95 from 31 words on. What `marks_of` gives must therefore be equal, whatever the cosine is; names, and
words of other meaning that it does not know, are judged by the cosine alone.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Sequence

import numpy as np

DIMENSIONS = 1024
ROUNDING = 1e-9
"""By which the cosine of equal counts may be below 1."""
WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
QUOTED = re.compile(
    r"```.*?(?:```|\Z)|`[^`]+`|\"[^\"]*\"|“[^“”]*”|„[^„“”]*[“”]|«[^«»]*»|(?<!\w)'[^'\n]+'(?!\w)", re.DOTALL
)
LIGHT = ".,;:!?…\"'’"
"""Signs around words that may differ."""
AFTER = ".,;:?"
"""Signs after numbers and single letters that may differ; before them none may."""
EXACT = re.compile(
    r"[^\w'’-]|[\d_]|^-|-$|[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
    r"|[\U00020000-\U0003ffff]"
)
"""In a word that may not differ: digits, signs, and letters of scripts that write no spaces between words."""
TURNING = frozenset(
    """
    no not never none nothing nobody nowhere neither nor without except unless only cannot
    nicht kein keine keinen keiner keinem nie niemals ohne ne pas jamais sans aucun aucune non mai senza nunca sin sem
    não niet geen не нет без nie bez
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million billion half third
    quarter once twice double triple dozen both first second fourth fifth last next previous
    all any every some most least more less fewer many few or if before after above below over under up down left right
    min max minimum maximum increase decrease add remove include exclude ascending descending greater smaller larger
    higher lower high low long short longer shorter old new older newer better worse best worst off start stop enable
    disable true false yes wrong correct incorrect with against for
    """.split()
)
"""Words, in the case of letters that they are compared in, of which two texts must have the same in the same order."""


def marks_of(text: str) -> list[str]:
    """What near texts must agree in, in its order: quotations and code; numbers, signs and single letters; words of
    `TURNING`.
    """
    out = QUOTED.findall(text)
    for token in QUOTED.sub(' " ', unicodedata.normalize("NFC", text)).split():
        bare = token.strip(LIGHT)
        word = bare.lower().replace("’", "'")
        if bare and (EXACT.search(bare) or (len(bare) == 1 and word not in "ai")):
            out.append(token.rstrip(AFTER))
        elif word in TURNING:
            out.append("not" if word == "cannot" else word)
        elif word.endswith("n't"):
            out.append("not")
    return out


def vector_of(text: str) -> np.ndarray:
    """Signed counts of words and of pairs of words, hashed to as many dimensions; none is above 127."""
    words = WORD.findall(unicodedata.normalize("NFC", text).lower())
    pairs = (f"{one} {two}" for one, two in zip(words, words[1:], strict=False))
    hashes = np.fromiter((zlib.crc32(one.encode()) for one in (*words, *pairs)), np.uint32)
    signs = 1.0 - 2.0 * (hashes >> 31)
    return np.bincount(hashes % DIMENSIONS, signs, DIMENSIONS).clip(-127, 127).astype(np.int8)


def nearest(vector: bytes, others: Sequence[bytes]) -> tuple[int, float]:
    """Which of some vectors, at least one, has the largest cosine with a vector that is not 0, and the cosine."""
    one = np.frombuffer(vector, np.int8).astype(np.float32)
    some = np.frombuffer(b"".join(others), np.int8).reshape(len(others), DIMENSIONS).astype(np.float32)
    squares = np.einsum("ij,ij->i", some, some).astype(np.float64) * float(one @ one)
    cosines = (some @ one) / np.sqrt(np.maximum(squares, 1.0))
    best = int(cosines.argmax())
    return best, min(1.0, float(cosines[best]) + ROUNDING)
