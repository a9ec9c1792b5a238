"""Parts that call one another, as one automaton: against the same language as a pattern, and the reference."""

from __future__ import annotations

import random

import pytest

from daguerre.errors import InputError
from daguerre.sampling.constraints import Budget, compiled
from daguerre.sampling.constraints.automata import new_nfa
from daguerre.sampling.constraints.dfa import Dfa, empty
from daguerre.sampling.constraints.linking import Links, call_of
from daguerre.sampling.constraints.regex import regex_dfa
from sampling.constraints.test_compiled import equal

Text = list[list[str | int]]
"""A part: any of some sequences of letters and of calls of other parts."""


def part(texts: Text) -> Dfa:
    nfa = new_nfa(Budget())
    entry, last = nfa.state(), nfa.state()
    for sequence in texts:
        state = nfa.state()
        nfa.link(entry, state)
        for item in sequence:
            state = nfa.literal(state, item.encode() if isinstance(item, str) else call_of(item))
        nfa.link(state, last)
    return nfa.determinize(entry, last)


def pattern(parts: list[Text], root: int) -> str:
    """The same with each part written out where it is called."""
    held = ["".join(x if isinstance(x, str) else pattern(parts, x) for x in text) for text in parts[root]]
    return f"({'|'.join(held)})"


def some_parts(rng: random.Random, number: int = 5) -> list[Text]:
    """Parts that call later ones. None holds the empty text."""
    return [
        [
            [rng.choice([*"ab", *range(n + 1, number)] if n + 1 < number else "ab") for _ in range(rng.randint(1, 3))]
            for _ in range(rng.randint(1, 3))
        ]
        for n in range(number)
    ]


def links(parts: list[Dfa]) -> Links:
    """Each part is used as it is: a number of a call is that of a part."""
    return Links(parts, list(range(len(parts))), [list(range(len(parts)))] * len(parts))


def linked(parts: list[Dfa], root: int) -> Dfa:
    return links(parts).linked(root, Budget())


def test_linked_parts_have_the_language_of_the_text_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, merged = random.Random(0), 0
    for _ in range(60):
        parts = some_parts(rng)
        held, expected = links([part(texts) for texts in parts]), regex_dfa(pattern(parts, 0), Budget())
        fast, fast_sizes = held.linked(0, Budget()), held.sizes(0, Budget())
        with monkeypatch.context() as patch:
            patch.setattr(compiled, "library", lambda: None)
            slow, slow_sizes = held.linked(0, Budget()), held.sizes(0, Budget())
        assert equal(fast, expected) and equal(slow, expected)
        assert fast_sizes == slow_sizes
        merged += fast_sizes[0] > len(fast)
    assert merged > 30


def test_one_part_serves_in_several_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    nested = part([["(", 0, ")"], ["x"]])
    held = Links([empty(), nested], [1, 1, 0], [[1], [2], []])  # once within itself, and then nothing more
    expected = regex_dfa(r"\(x\)|x", Budget())
    assert equal(held.linked(0, Budget()), expected)
    monkeypatch.setattr(compiled, "library", lambda: None)
    assert equal(held.linked(0, Budget()), expected)


def test_a_part_is_copied_once_for_each_state_behind_it() -> None:
    parts = [part([["ab"]]), part([["x", 0, "y"], ["z", 0, "y"], ["w", 0, "v"], [2]]), part([["p", 0]])]
    whole, copies = links(parts).sizes(1, Budget())
    assert copies == 3  # before y, before v, and at the end of part 2
    assert linked(parts, 1).accepts(b"xaby") and not linked(parts, 1).accepts(b"xabv")
    assert whole == 1 + 7 + 3 * len(parts[0]) + 2


def test_a_part_that_may_go_on_and_what_may_follow_it_are_kept_apart() -> None:
    parts = [part([["a"], ["aa"]]), part([[0, "ab"], [0, 0]])]
    assert equal(linked(parts, 1), regex_dfa("aa?ab|aa?aa?", Budget()))


def test_an_empty_part_leads_nowhere() -> None:
    parts = [empty(), part([["x", 0], ["y"]])]
    assert equal(linked(parts, 1), regex_dfa("y", Budget()))


def test_parts_that_are_too_large_together_are_refused() -> None:
    doubled: list[Text] = [[["a", n + 1, "b", n + 1, "c"]] for n in range(12)]
    held = links([part(texts) for texts in [*doubled, [["a"]]]])
    with pytest.raises(InputError, match="1,000 steps"):
        held.linked(0, Budget(max_steps=1_000))
