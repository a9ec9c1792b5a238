r"""The places at which a pattern of the dialect of `regex` matches, in time that is linear in the text.

The pattern becomes a list of instructions, which are followed as `re` follows a pattern: the first way that leads to a
match is taken, greedy or lazy as it is written. What has failed from an instruction at a place fails whatever came
before, so it is noted and not tried again: no pattern takes more steps than it has instructions, times the characters.
(Davis, Servant, Lee: Using selective memoization to defeat regular expression denial of service, 2021.)

Matches are those of `re.finditer`, empty ones included, where both read a pattern alike and no part that is repeated
begins with nothing, as in `(?:|a)*`: a round of it that takes nothing is tried last here. `\d`, `\w`, `\s`, `\b` and
`.` are those of ECMA-262, `$` is the end of the text alone, and `\b` and `\B` are read, which `regex` cannot.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from dataclasses import dataclass
from typing import NamedTuple

from daguerre.errors import InputError
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.characters import WORD
from daguerre.sampling.constraints.regex import Alternation, Anchor, Chars, Node, Parser, Repeat, Sequence, shown
from daguerre.sampling.constraints.utf8 import Ranges, ranges_of

MAX_STEPS = 2_000_000
"""Of following a pattern through a text: some seconds."""
LOOK = 4096
"""Steps between two looks at the budget."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """A place with a letter, a digit or an underscore on one side alone, or any other place."""

    negated: bool


class _Parser(Parser):
    """Also reads word boundaries."""

    def atom(self) -> Node:
        for text in ("\\b", "\\B"):
            if self.take(text):
                return Boundary(text == "\\B")  # type: ignore[return-value]
        return super().atom()


class _Held(dict[str, bool]):
    """Whether a character is in a set, for those that were asked about."""

    def __init__(self, ranges: Ranges) -> None:
        self.ranges = ranges
        self._begins, self._ends = [begin for begin, _ in ranges], [end for _, end in ranges]

    def __missing__(self, char: str) -> bool:
        place = bisect_right(self._begins, ord(char)) - 1
        self[char] = place >= 0 and ord(char) <= self._ends[place]
        return self[char]


class _Instruction(NamedTuple):
    """An instruction: what it does, and what follows it; of two that may follow, `next` is tried first.

    TAKE  a character of `held`
    FORK  goes on at `next`, else at `other`
    MEET  a place that several ways lead to, which is tried once
    LOOP  a FORK that is also a MEET
    BACK  to the LOOP `next`; where a round of it took nothing, on to `other`, as `re` does
    TEST  of the place between two characters: an `Anchor` or a `Boundary`
    """

    kind: int
    next: int = 0
    other: int = 0
    held: _Held | None = None
    test: Anchor | Boundary | None = None


TAKE, FORK, MEET, LOOP, BACK, TEST, DONE = range(7)


class _Writer:
    """Writes the instructions of a tree."""

    def __init__(self, budget: Budget) -> None:
        self.steps = list[_Instruction]()
        self._budget, self._sets = budget, dict[Ranges, _Held]()

    def add(self, step: _Instruction) -> int:
        self._budget.steps(len(self.steps))
        self.steps.append(step)
        return len(self.steps) - 1

    def write(self, node: Node | Boundary) -> None:
        match node:
            case Chars(ranges):
                self.add(_Instruction(TAKE, held=self._sets.setdefault(ranges, _Held(ranges))))
            case Sequence(parts):
                for part in parts:
                    self.write(part)
            case Alternation(parts):
                self._choice(parts)
            case Repeat(part, least, most, lazy):
                for _ in range(least):
                    self.write(part)
                if most is None:
                    self._loop(part, lazy)
                else:
                    self._options(part, most - least, lazy)
            case Anchor() | Boundary():
                self.add(_Instruction(TEST, test=node))
            case _:
                raise InputError("a pattern calls no rules: write out what it means")

    def _fork(self, kind: int, here: int, other: int, lazy: bool) -> None:
        """Let the step `here` go on with what follows it, or at `other`; first there, where it is lazy."""
        self.steps[here] = _Instruction(kind, *((other, here + 1) if lazy else (here + 1, other)))

    def _choice(self, parts: tuple[Node, ...]) -> None:
        ends = list[int]()
        for part in parts[:-1]:
            fork = self.add(_Instruction(FORK))
            self.write(part)
            ends.append(self.add(_Instruction(FORK)))
            self._fork(FORK, fork, len(self.steps), lazy=False)
        self.write(parts[-1])
        meet = self.add(_Instruction(MEET))
        for end in ends:
            self.steps[end] = _Instruction(FORK, meet, meet)

    def _loop(self, part: Node, lazy: bool) -> None:
        loop = self.add(_Instruction(LOOP))
        self.write(part)
        back = self.add(_Instruction(BACK))
        meet = self.add(_Instruction(MEET))
        self.steps[back] = _Instruction(BACK, loop, meet)
        self._fork(LOOP, loop, meet, lazy)

    def _options(self, part: Node, num: int, lazy: bool) -> None:
        forks = list[int]()
        for _ in range(num):
            forks.append(self.add(_Instruction(FORK)))
            self.write(part)
        meet = self.add(_Instruction(MEET))
        for fork in forks:
            self._fork(FORK, fork, meet, lazy)


class _Search:
    """A pattern on its way through a text."""

    def __init__(self, pattern: str, text: str, budget: Budget) -> None:
        writer = _Writer(budget)
        writer.write(_Parser(pattern, budget).parse())
        writer.add(_Instruction(DONE))
        self._steps, self._text, self._budget = writer.steps, text, budget
        self._pattern, self._num, self._word = pattern, 0, _Held(WORD)
        self._first = self._begins()
        self._tried = dict[int, bytearray]()

    def _begins(self) -> re.Pattern[str] | None:
        """What finds the characters that a match begins with, in one step of `re` for all that lies between; None where
        a match may be empty.
        """
        left, seen, found, inner = [(0, False)], set[tuple[int, bool]](), list[tuple[int, int]](), False
        while left:
            at, at_edge = place = left.pop()
            if place in seen:
                continue
            seen.add(place)
            step = self._steps[at]
            if step.kind == TAKE:
                assert step.held is not None
                found += step.held.ranges
                inner |= not at_edge
            elif step.kind in (DONE, BACK):
                return None
            elif step.kind in (MEET, TEST):
                left.append((at + 1, at_edge or step.test == Boundary(False)))
            else:
                left += (step.next, at_edge), (step.other, at_edge)
        chars = ranges_of(found)
        edge = not inner and ranges_of([*chars, *WORD]) == WORD
        each = "".join(f"\\U{begin:08x}-\\U{end:08x}" for begin, end in chars)
        return re.compile(f"{'(?<![0-9A-Za-z_])' if edge else ''}[{each}]" if each else "(?!)")

    def all(self) -> list[tuple[int, int]]:
        """The matches, as `re.finditer` has them."""
        out, at, advances = list[tuple[int, int]](), 0, False
        while (found := self._next(at, advances)) is not None:
            out.append(found)
            at, advances = found[1], found[0] == found[1]
            for tried in self._tried.values():  # the way that led to the match has not failed
                tried[at] = 0
            self._spend(len(self._tried))
        return out

    def _next(self, begin: int, advances: bool) -> tuple[int, int] | None:
        """The first match from a place on; `advances`: an empty one is none there."""
        first, start = self._first, begin
        while start <= len(self._text):
            if first is not None:
                if (found := first.search(self._text, start)) is None:
                    return None
                start = found.start()
            end = self._match(start, advances and start == begin)
            if end is not None:
                return start, end
            start += 1
        return None

    def _match(self, start: int, advances: bool) -> int | None:
        """Where the match that begins at a place ends."""
        steps, text, size = self._steps, self._text, len(self._text) + 1
        left, num = array("q", [start]), 0
        while left:
            at, place = divmod(left.pop(), size)
            while True:
                num += 1
                if num == LOOK:
                    self._spend(num)
                    num = 0
                kind, first, other, held, test = steps[at]
                if kind == TAKE:
                    if place == size - 1 or not held[text[place]]:  # type: ignore[index]
                        break
                    at, place = at + 1, place + 1
                    continue
                if kind in (MEET, LOOP):
                    tried = self._tried_at(at)
                    if tried[place]:
                        break
                    tried[place] = 1
                if kind in (FORK, LOOP):
                    if other != first:
                        left.append(other * size + place)
                    at = first
                elif kind == BACK:
                    at = other if self._tried_at(first)[place] else first
                elif kind == MEET:
                    at += 1
                elif kind == TEST:
                    if not self._holds(test, place):
                        break
                    at += 1
                elif advances and place == start:
                    break
                else:
                    self._spend(num)
                    return place
        self._spend(num)
        return None

    def _tried_at(self, at: int) -> bytearray:
        found = self._tried.get(at)
        if found is None:
            self._budget.hold(len(self._text) + 1)
            found = self._tried[at] = bytearray(len(self._text) + 1)
        return found

    def _holds(self, test: Anchor | Boundary | None, place: int) -> bool:
        text = self._text
        if isinstance(test, Anchor):
            return place == (len(text) if test.at_end else 0)
        assert test is not None
        before, behind = place > 0 and self._word[text[place - 1]], place < len(text) and self._word[text[place]]
        return (before != behind) != test.negated

    def _spend(self, num: int) -> None:
        self._num += num
        if self._num > MAX_STEPS:
            raise InputError(
                f"the pattern {shown(self._pattern)} takes more than {MAX_STEPS:,} steps through this text: write a "
                "simpler one, or name the spans"
            )
        self._budget.look()


def find_matches(pattern: str, text: str, budget: Budget | None = None) -> list[tuple[int, int]]:
    """Spans [start, end) of the matches of a pattern in a text, in characters, ascending and apart.

    InputError for a pattern that the dialect does not have (back-references, lookaround), naming the part, and for one
    that takes too many steps or too much memory.
    """
    return _Search(pattern, text, budget or Budget(max_steps=20_000, max_bytes=32 << 20)).all()
