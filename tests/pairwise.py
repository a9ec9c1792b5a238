"""Pairwise choice: few cases in which every two values of different factors meet at least once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

Value = tuple[str, int]
"""A factor, and the number of one of its values."""


def covering(factors: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Cases that have a value of each factor, the same whenever they are made; the first has all first values.

    Greedy: a case begins with the first pair that no case has yet, and adds for each other factor the value that makes
    most new pairs with what it has, or else with what it may still get.
    """
    names = sorted(factors, key=lambda name: -len(factors[name]))
    values = {name: [(name, number) for number in range(len(factors[name]))] for name in names}
    left = {frozenset((a, b)) for one, other in combinations(names, 2) for a in values[one] for b in values[other]}
    cases, case = list[dict[str, Any]](), [values[name][0] for name in names]
    while True:
        left -= {frozenset(pair) for pair in combinations(case, 2)}
        cases.append({name: factors[name][dict(case)[name]] for name in factors})
        if not left:
            return cases
        case = min(sorted(pair, key=lambda value: names.index(value[0])) for pair in left)
        for name in names:
            if name not in dict(case):
                case.append(max(values[name], key=lambda value: _new(left, case, value)))


def _new(left: set[frozenset[Value]], case: list[Value], value: Value) -> tuple[int, int]:
    """Pairs that no case has yet: of a value with those of a case, and with any."""
    return sum(frozenset((value, other)) in left for other in case), sum(value in pair for pair in left)
