"""Arrays as text, with a state for each (number of items, how many of the wanted ones, which values are used up)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import product
from math import comb

from daguerre.sampling.constraints.dfa import Dfa
from daguerre.sampling.constraints.nfa import Nfa
from daguerre.sampling.constraints.objects import Put
from daguerre.sampling.constraints.schema import Schema
from daguerre.sampling.constraints.values import Arrays, Const, Expr, Not, every

ENTRY = 500
"""About how many bytes an entry of a table of `write` takes: for the budget's memory."""
Arm = tuple[Expr, "Seen"]
Seen = tuple[tuple[int, ...], frozenset[str]]
"""How many of each wanted set of items there were, and which values are used up."""


class ArrayText:
    """Writes arrays; `dfa`: the automaton of a set of items."""

    def __init__(self, schema: Schema, dfa: Callable[[Expr], Dfa]) -> None:
        self.schema, self.dfa = schema, lru_cache(maxsize=None)(dfa)

    def write(self, nfa: Nfa, shape: Arrays, put: Put, entry: int, last: int) -> None:
        wanted = shape.contains
        self.schema.limits.check("wanted", len(wanted), f"asks for {len(wanted)} kinds of items of one array")
        unique = self._used_up(shape)
        top = (
            max(shape.least, shape.num_prefix, 1, *(want.start for want in wanted))
            if shape.most is None
            else shape.most
        )
        start: tuple[int, Seen] = (0, ((0,) * len(wanted), frozenset()))
        states = {start: nfa.literal(entry, b"[")}
        begins: dict[tuple[int, Seen, Expr], int] = {}
        waiting = [start]
        while waiting:
            count, seen = waiting.pop()
            state = states[count, seen]
            if count >= shape.least and _satisfied(shape, seen[0]):
                nfa.link(nfa.literal(state, b"]"), last)
            more = min(count + 1, top) if shape.most is None else count + 1
            for item, seen_then in self._arms(shape, count, seen, unique) if more <= top else ():
                if (more, seen_then) not in states:
                    nfa.budget.hold(ENTRY)
                    states[more, seen_then] = nfa.state()
                    waiting.append((more, seen_then))
                if (more, seen_then, item) not in begins:
                    nfa.budget.hold(ENTRY)
                    begin = begins[more, seen_then, item] = nfa.state()
                    nfa.link(put(begin, expr=item), states[more, seen_then])
                nfa.link(nfa.literal(state, b"," * (count > 0)), begins[more, seen_then, item])
        nfa.budget.hold(-ENTRY * (len(states) - 1 + len(begins)))

    def _used_up(self, shape: Arrays) -> bool:
        """Whether the values that are used up have to be remembered. UnsupportedError where they are too many."""
        if not shape.unique or (shape.most is not None and shape.most <= 1):
            return False
        places = range(min(shape.num_prefix + 1, shape.most or shape.num_prefix + 1))
        texts: set[bytes] = set()
        most = self.schema.limits.unique_sets
        for i in places:
            found = self.dfa(shape.item(i)).strings(most, self.schema.budget)
            texts |= set(found or ())
            num = comb(len(texts), 1) if found is not None else most + 1
            longest = len(texts) if shape.most is None else min(len(texts), shape.most)
            num = max(num, sum(comb(len(texts), k) for k in range(min(longest, 64) + 1)))
            if num > most:
                self.schema.refuse(
                    f"uniqueItems at {shape.unique[0]}",
                    f"is supported where its items have few values, of which at most {most:,} sets can be used up: "
                    f"list them in an enum, lower maxItems, or compile with limits=Limits(unique_sets=...); else",
                )
                return False
        return True

    def _arms(self, shape: Arrays, i: int, seen: Seen, unique: bool) -> Iterator[Arm]:
        """(an item, what is then seen): where `unique`, each of the values that are not used up."""
        counts, used = seen
        for item, then in _arms(shape, i, counts):
            if not unique:
                yield item, (then, used)
                continue
            for text in sorted(self.dfa(item).strings(self.schema.limits.unique_sets, self.schema.budget) or ()):
                value = repr(json.loads(text, parse_float=_number))
                if value not in used:
                    yield Const(text.decode()), (then, used | {value})


def _satisfied(shape: Arrays, counts: tuple[int, ...]) -> bool:
    return all(number >= want.least for number, want in zip(counts, shape.contains, strict=True))


def _arms(shape: Arrays, i: int, counts: tuple[int, ...]) -> Iterator[tuple[Expr, tuple[int, ...]]]:
    """(an item, the counts after it): once for each choice of the wanted sets that it counts for.

    Where there is no upper limit, an item that is not counted may be in the set, too.
    """
    choices: list[list[tuple[list[Expr], int]]] = []
    for number, want in zip(counts, shape.contains, strict=True):
        if i < want.start or (want.most is None and number >= want.least):
            choices.append([([], number)])
        elif want.most is None:
            choices.append([([], number), ([want.item], number + 1)])
        else:
            counted = [([want.item], number + 1)] if number < want.most else []
            choices.append([([Not(want.item)], number), *counted])
    for chosen in product(*choices):
        yield every([shape.item(i), *(expr for exprs, _ in chosen for expr in exprs)]), tuple(n for _, n in chosen)


def items(shape: Arrays) -> Iterator[Expr]:
    """What items may be."""
    for i in range(max(shape.num_prefix, *(want.start for want in shape.contains), 0) + 1):
        yield from {expr: None for expr, _ in _arms(shape, i, (0,) * len(shape.contains))}
        for k, want in enumerate(shape.contains):
            if want.most is not None:
                full = tuple(w.most or 0 if j == k else 0 for j, w in enumerate(shape.contains))
                yield from {expr: None for expr, _ in _arms(shape, i, full)}


def _number(text: str) -> float | int:
    """Equal for equal numbers, whatever their text."""
    value = float(text)
    return int(value) if value.is_integer() else value
