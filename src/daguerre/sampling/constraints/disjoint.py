"""Which alternatives of an oneOf can hold together."""

from __future__ import annotations

from collections.abc import Sequence

from daguerre.errors import UnsupportedError
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.schema import LoopError, Schema
from daguerre.sampling.constraints.text import compact
from daguerre.sampling.constraints.values import NOTHING, And, Expr, Values

MAX_TEXTS = 64
Texts = frozenset[str]


def overlaps(whole: Schema, parts: Sequence[Expr], kinds: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs (i, j), j < i, of sets that may have a value of some kinds in common. They are read as widely as they may
    be.
    """
    loose = whole if whole.is_loose else whole.loose
    marks = [_marks(loose, part, kinds) for part in parts]
    found: list[tuple[int, int]] = []
    for i in range(len(parts)):
        rivals = [j for j in range(i) if not _differ(marks[i], marks[j])]
        found += [(i, j) for j in rivals if not _exclude(loose, And((parts[i], parts[j])), kinds)]
        whole.budget.steps(0)
    return found


def _exclude(whole: Schema, both: Expr, kinds: Sequence[str]) -> bool:
    try:
        return whole.never_values(whole.values(both).only(*kinds))
    except (LoopError, UnsupportedError):
        return False


def _differ(a: dict[str | None, Texts], b: dict[str | None, Texts]) -> bool:
    return any(not texts & b[place] for place, texts in a.items() if place in b)


def _marks(whole: Schema, expr: Expr, kinds: Sequence[str]) -> dict[str | None, Texts]:
    """The few values that a set has (None), or that every object of it has as the member of a name."""
    try:
        held = whole.values(expr).only(*kinds)
        if (texts := _few(held, whole.budget)) is not None:
            return {None: texts}
        if held.without("objects") != NOTHING or len(held.objects) != 1:
            return {}
        shape = held.objects[0]
        found = {name: _few(whole.values(shape.member(name)), whole.budget) for name in shape.required}
        return {name: texts for name, texts in found.items() if texts is not None}
    except (LoopError, UnsupportedError):
        return {}


def _few(held: Values, budget: Budget) -> Texts | None:
    """The values, as text, where they are few strings, booleans and null; else None."""
    if held.arrays or held.objects or not held.numbers.is_empty:
        return None
    strings = held.strings.strings(MAX_TEXTS, budget)
    if strings is None:
        return None
    words = ["null"] * held.null + [str(word) for word in held.booleans]
    return frozenset([*words, *(compact(text.decode()) for text in strings)])
