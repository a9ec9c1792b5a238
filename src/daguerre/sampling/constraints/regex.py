r"""Regular expressions: the dialect, its parser, and the automaton of a pattern.

The dialect is the regular part of ECMA-262, which JSON Schema names, over Unicode characters:

* literals, `.` (all but \n, \r, U+2028, U+2029), classes `[a-z]`, `[^...]`, `\d \w \s` and their complements, ASCII but
  for `\s`; `\p{...}` of a general category; `\t \n \r \f \v \0 \xHH \uHHHH \u{H...}`, and `\` before any punctuation;
* `|`, groups `(...)`, `(?:...)` and `(?<name>...)`, `* + ? {n} {n,} {n,m}`, and the lazy forms, which mean the same
  here;
* `^` and `$`, at the very start and end of the text alone;
* `(?i)` at the start and `(?i:...)`: letters of either case;
* lookahead at the start, `^(?=...)` and `^(?!...)`, before a pattern without `|` outside groups;
* `(?&name)`, which calls a rule of a grammar.

Back-references, other lookaround, word boundaries, other flags and atomic groups are an InputError that names the part
and its place. docs/constraints.md says where languages differ. A few characters that they disagree on (U+001C to
U+001F, U+0085, U+FEFF) are neither `\s` nor `\S`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from daguerre.errors import InputError, unknown
from daguerre.sampling.constraints.automata import new_nfa
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.characters import (
    CATEGORIES,
    CLASSES,
    CONTROLS,
    DOT,
    any_case,
    category,
    either_case,
)
from daguerre.sampling.constraints.dfa import Dfa, intersect, subtract
from daguerre.sampling.constraints.nfa import Nfa
from daguerre.sampling.constraints.utf8 import ANY, LAST, SURROGATES, Ranges, outside, ranges_of

MAX_NESTING, COUNT_DIGITS = 100, 9
NODE = 300
"""About how many bytes a part of a tree takes: for the budget's memory."""

LOOKS = ("(?=", "(?!")
REFUSED_GROUPS = {
    "?=": "lookahead behind the start",
    "?!": "lookahead behind the start",
    "?<=": "lookbehind",
    "?<!": "lookbehind",
    "?>": "an atomic group",
    "?P=": "a back-reference",
    "?(": "a condition",
    "?#": "a comment",
}


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Sequence:
    """One part after another; none is the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alternation:
    """Any one of the parts."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part `least` to `most` times; most None is without end. lazy: as few times as possible (`matches`)."""

    part: Node
    least: int
    most: int | None
    lazy: bool = False


@dataclass(frozen=True, slots=True)
class Anchor:
    """The start of the text, or its end."""

    at_end: bool


@dataclass(frozen=True, slots=True)
class RuleReference:
    """A rule of the grammar."""

    rule: str


Node = Chars | Sequence | Alternation | Repeat | Anchor | RuleReference


def parse(pattern: str, budget: Budget) -> Node:
    """The tree of a pattern. InputError, with the place, for syntax that the dialect does not have."""
    return Parser(pattern, budget).parse()


def regex_dfa(pattern: str, budget: Budget, search: bool = False) -> Dfa:
    """The minimal automaton of the texts that match as a whole or, with `search`, that hold a match somewhere."""
    looks, tree = Parser(pattern, budget).parse_all(search)
    found = _tree_dfa(tree, pattern, budget, search)
    for negative, look in looks:
        begins = _tree_dfa(Sequence((Anchor(False), look)), pattern, budget, search=True)
        found = (subtract if negative else intersect)(found, begins, budget)
    return found


def _tree_dfa(tree: Node, pattern: str, budget: Budget, search: bool) -> Dfa:
    nfa = new_nfa(budget)
    anything = partial(nfa.chars, ranges=ANY)
    entry = nfa.state()
    inner = nfa.repeat(entry, anything, 0, None) if search else entry
    last = write(nfa, tree, inner, {}, {}, pattern)
    if search:
        last = nfa.repeat(last, anything, 0, None)
    end = nfa.state()
    nfa.link(last, end)
    return nfa.determinize(entry, end)


def grammar_dfa(rules: Mapping[str, str], start: str, depth: int, budget: Budget) -> Dfa:
    """The automaton of a grammar: named patterns that may call one another, and themselves, with `(?&name)`.

    A rule is entered at most `depth` times inside itself; text that needs more is not in the language. InputError for a
    rule that is not there.
    """
    if start not in rules:
        raise unknown("rule", start, rules)
    trees = {name: parse(pattern, budget) for name, pattern in rules.items()}
    nfa = new_nfa(budget)
    entry = nfa.state()
    last = write(nfa, trees[start], entry, trees, dict.fromkeys(rules, depth) | {start: depth - 1}, rules[start])
    end = nfa.state()
    nfa.link(last, end)
    return nfa.determinize(entry, end)


def write(nfa: Nfa, node: Node, entry: int, trees: Mapping[str, Node], left: Mapping[str, int], pattern: str) -> int:
    """Write a tree into `nfa` from `entry` on, and return the state it ends in. `left`: how often each of the rules in
    `trees` may still be entered.
    """

    def part_of(part: Node) -> Callable[[int], int]:
        return lambda state: write(nfa, part, state, trees, left, pattern)

    match node:
        case Chars(ranges):
            return nfa.chars(entry, ranges)
        case Sequence(parts):
            for part in parts:
                entry = part_of(part)(entry)
            return entry
        case Alternation(parts):
            return nfa.one_of(entry, [part_of(part) for part in parts])
        case Repeat(part, least, most, _):
            return nfa.repeat(entry, part_of(part), least, most)
        case Anchor(at_end):
            last, before = nfa.state(), nfa.state()
            nfa.link(entry, before)
            nfa.link_at(before, last, at_end)
            return last
        case RuleReference(rule):
            if rule not in trees:
                raise unknown(f"rule of the grammar (called in {shown(pattern)})", rule, trees)
            if left[rule] < 1:
                return nfa.state()  # nothing leads there: this call is too deep
            return write(nfa, trees[rule], entry, trees, {**left, rule: left[rule] - 1}, pattern)


def shown(pattern: str) -> str:
    """A pattern as an error message quotes it."""
    return repr(pattern if len(pattern) <= 60 else pattern[:57] + "...")


class Parser:
    """Reads one pattern."""

    def __init__(self, pattern: str, budget: Budget) -> None:
        self.pattern, self.at, self.nesting, self.budget = pattern, 0, 0, budget
        self.either_case = self.take("(?i)")

    def parse_all(self, search: bool) -> tuple[list[tuple[bool, Node]], Node]:
        """(what the text must, or must not, begin with; the rest): lookahead at the start of a pattern."""
        began = self.at
        anchored = self.take("^")
        if not self.pattern.startswith(LOOKS, self.at):
            self.at = began
            return [], self.parse()
        if search and not anchored:
            raise self.error("lookahead without ^ before it")
        looks: list[tuple[bool, Node]] = []
        while self.pattern.startswith(LOOKS, self.at):
            opened, negative = self.at, self.ahead("(?!")
            self.at += 3
            looks.append((negative, self.inside(opened)))
        rest = self.sequence()
        if self.ahead("|"):
            raise self.error("a choice beside lookahead, without a group around it", began)
        return looks, self.ended(Sequence((Anchor(False), rest)) if anchored else rest)

    def parse(self) -> Node:
        return self.ended(self.choice())

    def ended(self, tree: Node) -> Node:
        if self.at < len(self.pattern):
            raise self.error("a closing parenthesis that nothing opened")
        return tree

    def error(self, what: str, at: int | None = None) -> InputError:
        place = self.at if at is None else at
        part = f", {self.pattern[place : place + 12]!r}" if len(self.pattern) > 12 else ""
        return InputError(f"the pattern {shown(self.pattern)} has {what} at character {place}{part}: write it without")

    def ahead(self, text: str) -> bool:
        return self.pattern.startswith(text, self.at)

    def take(self, text: str) -> bool:
        found = self.ahead(text)
        self.at += len(text) * found
        return found

    def next(self) -> str:
        if self.at >= len(self.pattern):
            raise self.error("an end that comes too soon")
        self.at += 1
        return self.pattern[self.at - 1]

    def choice(self) -> Node:
        parts = [self.sequence()]
        while self.take("|"):
            parts.append(self.sequence())
        return parts[0] if len(parts) == 1 else Alternation(tuple(parts))

    def sequence(self) -> Node:
        parts: list[Node] = []
        while self.at < len(self.pattern) and not (self.ahead("|") or self.ahead(")")):
            parts.append(self.repeated())
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def repeated(self) -> Node:
        began = self.at
        self.budget.hold(NODE)
        node = self.atom()
        counts = self.counts()
        if counts is None:
            return node
        if isinstance(node, Anchor):
            raise self.error("a repeated anchor", began)
        least, most = counts
        if most is not None and most < least:
            raise self.error(f"a repetition of at least {least} and at most {most} times", began)
        lazy = self.take("?")
        if self.ahead("+"):
            raise self.error("a possessive repetition")
        if self.counts() is not None:
            raise self.error("a repetition of a repetition", began)
        return Repeat(node, least, most, lazy)

    def counts(self) -> tuple[int, int | None] | None:
        for sign, found in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.take(sign):
                return found
        if not self.ahead("{"):
            return None
        end = self.pattern.find("}", self.at)
        least, comma, most = self.pattern[self.at + 1 : end].partition(",") if end > 0 else ("", "", "")
        if any(len(count) > COUNT_DIGITS and count.isdigit() for count in (least, most)):
            raise self.error(f"a repetition count of more than {COUNT_DIGITS} digits, which no option raises,")
        if not _is_count(least) or not (most == "" or _is_count(most)):
            raise self.error("an opening brace that is no repetition; write \\{ for the character")
        self.at = end + 1
        return int(least), (int(most) if most else None) if comma else int(least)

    def atom(self) -> Node:
        began, char = self.at, self.next()
        if char == "(":
            return self.group(began)
        if char == "[":
            return Chars(self.character_class(began))
        if char == ".":
            return Chars(DOT)
        if char in "^$":
            return Anchor(char == "$")
        if char == "\\":
            return Chars(self.cased(self.escape(began, in_class=False)))
        if char in "*+?{":
            raise self.error("a repetition of nothing", began)
        return Chars(self.cased(self.one(ord(char), began)))

    def cased(self, ranges: Ranges) -> Ranges:
        return either_case(ranges) if self.either_case else ranges

    def group(self, began: int) -> Node:
        for sign, name in REFUSED_GROUPS.items():
            if self.ahead(sign):
                raise self.error(f"{name}, (" + sign + "...), which no finite automaton reads", began)
        if self.take("?&"):
            return RuleReference(self.name(")"))
        if self.take("?P<") or self.take("?<"):
            self.name(">")
        elif self.take("?i:"):
            before, self.either_case = self.either_case, True
            inner = self.inside(began)
            self.either_case = before
            return inner
        elif self.ahead("?i)"):
            raise self.error("(?i) behind the start; write (?i:...)", began)
        elif self.ahead("?") and not self.take("?:"):
            raise self.error("flags other than i, or an unknown kind of group,", began)
        return self.inside(began)

    def inside(self, began: int) -> Node:
        """What is in a group, after its opening, which began there."""
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            raise self.error(f"more than {MAX_NESTING} groups inside one another, which no option raises,", began)
        inner = self.choice()
        self.nesting -= 1
        if not self.take(")"):
            raise self.error("a group that is not closed", began)
        return inner

    def name(self, end: str) -> str:
        began, close = self.at, self.pattern.find(end, self.at)
        found = self.pattern[self.at : close] if close > 0 else ""
        if not found.replace("-", "_").isidentifier():
            raise self.error("a group without a proper name", began)
        self.at = close + 1
        return found

    def character_class(self, began: int) -> Ranges:
        negated = self.take("^")
        parts: list[tuple[int, int]] = []
        while not self.take("]"):
            if self.at >= len(self.pattern):
                raise self.error("a class that is not closed", began)
            low = self.member()
            if self.ahead("-") and not self.ahead("-]") and len(low) == 1 and low[0][0] == low[0][1]:
                self.at += 1
                high = self.member()
                if len(high) != 1 or high[0][0] != high[0][1] or high[0][0] < low[0][0]:
                    raise self.error("a range whose ends are not two characters in order")
                parts.append((low[0][0], high[0][0]))
            else:
                parts += low
        chosen = ranges_of(parts)
        if self.either_case:
            chosen = any_case(chosen) if negated else either_case(chosen)
        return outside(chosen) if negated else chosen

    def member(self) -> Ranges:
        began, char = self.at, self.next()
        return self.escape(began, in_class=True) if char == "\\" else self.one(ord(char), began)

    def escape(self, began: int, in_class: bool) -> Ranges:
        char = self.next()
        if char in CLASSES:
            return CLASSES[char]
        if char == "b" and in_class:
            return self.one(8, began)
        if char in "bB":
            raise self.error("a word boundary, \\" + char + ", which no finite automaton reads", began)
        if char == "0" and not self.pattern[self.at : self.at + 1].isdigit():
            return self.one(0, began)
        if char.isdigit() or char == "k":
            raise self.error("a back-reference, \\" + char + ", which no finite automaton reads", began)
        if char in "pP":
            return self.category(char == "P", began)
        if char in "xu":
            return self.one(self.hexadecimal(char, began), began)
        if char in CONTROLS:
            return self.one(CONTROLS[char], began)
        if char in "AZz":
            instead = "^" if char == "A" else "$"
            raise self.error("\\" + char + f", which ECMA-262 does not have; write {instead}", began)
        if char.isalnum():
            raise self.error("the unknown escape \\" + char, began)
        return self.one(ord(char), began)

    def category(self, negated: bool, began: int) -> Ranges:
        name = self.pattern[self.at + 1 : max(self.pattern.find("}", self.at), 0)] if self.ahead("{") else ""
        found = name.removeprefix("General_Category=").removeprefix("gc=")
        if found not in CATEGORIES:
            raise self.error("a Unicode property that is no general category; list the ranges instead", began)
        self.at += len(name) + 2
        return category(found, negated)

    def hexadecimal(self, kind: str, began: int) -> int:
        if kind == "u" and self.take("{"):
            close = self.pattern.find("}", self.at)
            digits, self.at = self.pattern[self.at : max(close, 0)], close + 1
        else:
            length = 2 if kind == "x" else 4
            digits = self.pattern[self.at : self.at + length].ljust(length)
            self.at += length
        if not digits or len(digits) > 8 or any(d not in "0123456789abcdefABCDEF" for d in digits):
            raise self.error("an escape whose digits are wrong", began)
        return int(digits, 16)

    def one(self, code: int, began: int) -> Ranges:
        if code > LAST or SURROGATES[0] <= code <= SURROGATES[1]:
            raise self.error(f"U+{code:04X}, which is no character", began)
        return ((code, code),)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit()
