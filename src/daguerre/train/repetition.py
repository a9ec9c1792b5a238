"""How much a text repeats itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

GRAM = 4
"""Words, or tokens, of a run that counts as repeated when a text has it twice or more."""


def repeated(words: Sequence[Hashable]) -> float:
    """The share of runs of GRAM words that a text has twice or more; 0 for one that is shorter."""
    counts = Counter(tuple(words[start : start + GRAM]) for start in range(len(words) - GRAM + 1))
    return sum(number for number in counts.values() if number > 1) / max(1, sum(counts.values()))
