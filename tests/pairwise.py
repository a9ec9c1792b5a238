"""Pairwise choice: few cases in which every two values of different factors meet at least once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

Value = tuple[str, int]
"""A factor, and the number of one of its values."""


def covering(factors: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Cases that have a value of each factor, the same whenever they are made; the first has all first values.

    Greedy: a case begins with the first pair that no case has yet, and adds for each other factor the value that makes
    most new pairs with what it has, or else with what it may still get, or else that has met it least.
    """
    names = sorted(factors, key=lambda name: -len(factors[name]))
    values = {name: [(name, number) for number in range(len(factors[name]))] for name in names}
    left = {frozenset((a, b)) for one, other in combinations(names, 2) for a in values[one] for b in values[other]}
    cases, case = list[dict[str, Any]](), [values[name][0] for name in names]
    met = Counter[frozenset[Value]]()
    while True:
        pairs = [frozenset(pair) for pair in combinations(case, 2)]
        left.difference_update(pairs)
        met.update(pairs)
        cases.append({name: factors[name][dict(case)[name]] for name in factors})
        if not left:
            return cases
        case = min(sorted(pair, key=lambda value: names.index(value[0])) for pair in left)
        for name in names:
            if name not in dict(case):
                case.append(max(values[name], key=lambda value: _worth(left, met, case, value)))


def of(cases: Iterable[Mapping[str, Any]], **fixed: Any) -> list[dict[str, Any]]:
    """Those of the cases that have these values; there are some."""
    found = [dict(case) for case in cases if fixed.items() <= case.items()]
    assert found, fixed
    return found


def _worth(
    left: set[frozenset[Value]], met: Counter[frozenset[Value]], case: list[Value], value: Value
) -> tuple[int, int, int]:
    """Pairs that no case has yet: of a value with those of a case, and with any; and how rarely it has met those."""
    pairs = [frozenset((value, other)) for other in case]
    return sum(pair in left for pair in pairs), sum(value in pair for pair in left), -sum(met[pair] for pair in pairs)
