r"""Sets of characters that patterns name: `\d`, `\s`, `.`, `\p{...}`, and letters of either case.

Where languages or versions of Unicode disagree on a character, it is in neither a set nor its complement.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import lru_cache

from daguerre.sampling.constraints.utf8 import LAST, Ranges, outside, ranges_of

DIGIT = ranges_of([(0x30, 0x39)])
WORD = ranges_of([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
SPACE = ranges_of(
    [(9, 13), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)]
    + [(code, code) for code in (0x2028, 0x2029, 0x202F, 0x205F, 0x3000)]
)
DISPUTED = ranges_of([(0x1C, 0x1F), (0x85, 0x85), (0xFEFF, 0xFEFF)])
DOT = outside(ranges_of([(10, 10), (13, 13), (0x2028, 0x2029)]))
CLASSES = {
    "d": DIGIT,
    "w": WORD,
    "s": SPACE,
    "D": outside(DIGIT),
    "W": outside(WORD),
    "S": outside(ranges_of(SPACE + DISPUTED)),
}
CONTROLS = {"t": 9, "n": 10, "r": 13, "f": 12, "v": 11, "0": 0}
CATEGORIES = {
    **dict.fromkeys(("L", "Letter"), ("Lu", "Ll", "Lt", "Lm", "Lo")),
    **dict.fromkeys(("Lu", "Uppercase_Letter"), ("Lu",)),
    **dict.fromkeys(("Ll", "Lowercase_Letter"), ("Ll",)),
    "Lt": ("Lt",),
    "Lm": ("Lm",),
    "Lo": ("Lo",),
    **dict.fromkeys(("M", "Mark"), ("Mn", "Mc", "Me")),
    **dict.fromkeys(("N", "Number"), ("Nd", "Nl", "No")),
    **dict.fromkeys(("Nd", "Decimal_Number", "digit"), ("Nd",)),
    "Nl": ("Nl",),
    "No": ("No",),
    **dict.fromkeys(("P", "Punctuation", "punct"), ("Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po")),
    "Pc": ("Pc",),
    "Pd": ("Pd",),
    **dict.fromkeys(("S", "Symbol"), ("Sm", "Sc", "Sk", "So")),
    "Sc": ("Sc",),
    "Sm": ("Sm",),
    **dict.fromkeys(("Z", "Separator"), ("Zs", "Zl", "Zp")),
    "Zs": ("Zs",),
    **dict.fromkeys(("Cc", "Control", "cntrl"), ("Cc",)),
}
r"""General categories by the names that `\p{...}` has for them."""


@lru_cache(maxsize=64)
def category(name: str, negated: bool) -> Ranges:
    """The characters of a general category, or all others that are assigned."""
    wanted = CATEGORIES[name]
    return ranges_of(
        part for own, parts in _by_category().items() if own != "Cn" and (own in wanted) != negated for part in parts
    )


@lru_cache(maxsize=1)
def _by_category() -> dict[str, list[tuple[int, int]]]:
    """Ranges of each general category."""
    found: dict[str, list[tuple[int, int]]] = {}
    begin, last = 0, unicodedata.category("\0")
    for code in range(1, LAST + 2):
        here = unicodedata.category(chr(code)) if code <= LAST else ""
        if here != last:
            found.setdefault(last, []).append((begin, code - 1))
            begin, last = code, here
    return found


@lru_cache(maxsize=1024)
def either_case(ranges: Ranges) -> Ranges:
    """With the other case of every letter, where each is the other's."""
    return ranges_of([*ranges, *_others(ranges, _cases()[0])])


@lru_cache(maxsize=1024)
def any_case(ranges: Ranges) -> Ranges:
    """With every character that some language takes for the same letter."""
    return ranges_of([*ranges, *_others(ranges, _cases()[1])])


def _others(ranges: Ranges, pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    held = {code for code, _ in pairs if any(low <= code <= high for low, high in ranges)}
    return [(other, other) for code, other in pairs if code in held]


@lru_cache(maxsize=1)
def _cases() -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    """Pairs of characters: the two cases of a letter, and all that fold to the same."""
    mutual: set[tuple[int, int]] = set()
    same: dict[str, set[int]] = {}
    for code in range(LAST + 1):
        char = chr(code)
        lower, upper = char.lower(), char.upper()
        if lower == upper == char:
            continue
        for folded in {char.casefold(), lower, upper.lower()}:
            same.setdefault(folded, set()).add(code)
        for other in {lower, upper} - {char}:
            if len(other) == 1 and char in (other.lower(), other.upper()):
                mutual.add((code, ord(other)))
    wide = {(a, b) for codes in same.values() for a in codes for b in codes if a != b}
    return tuple(sorted(mutual)), tuple(sorted(wide))
