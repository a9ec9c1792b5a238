"""Patterns, schemas and strings that would hold the process: each is answered, in time that is linear in it, or
refused; and what was begun for a client that has left ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
import pytest

Ask = Callable[..., httpx2.Response]
REQUESTS, COMPLETIONS = "/v1/daguerre/requests", "/v1/completions"


def edited(text: str, pattern: str) -> dict[str, Any]:
    return {"kind": "edit", "text": text, "pattern": pattern, "stream": False, "max_tokens": 2}


def test_no_pattern_of_a_request_backtracks(ask: Ask, subtests: pytest.Subtests) -> None:
    evil = [
        ("(a+)+$", "a" * 32 + "!"),
        ("(a|a)*b", "a" * 5_000),
        ("(a|aa)+$", "a" * 5_000 + "!"),
        ("(?:a{0,40}){0,40}b", "a" * 200),
        ("(.*)*(.*)*x", "y" * 2_000),
        ("(a*)*?(b|c)", "a" * 5_000),
    ]
    for pattern, text in evil:
        with subtests.test(pattern=pattern):
            answer = ask(REQUESTS, edited(text, pattern))
            error = answer.json()["error"]
            assert answer.status_code == 400 and error["param"] == "pattern"
            assert "matches nowhere" in error["message"] or "steps" in error["message"]


def test_what_the_automaton_does_not_have_is_refused_by_name(ask: Ask) -> None:
    wanted = {r"(a)\1": "back-reference", "(?=a)b": "lookahead", "(?<=a)b": "lookbehind", "(?P=x)": "back-reference"}
    for pattern, name in wanted.items():
        answer = ask(REQUESTS, edited("ab", pattern))
        assert answer.status_code == 400 and name in answer.json()["error"]["message"], pattern


def test_a_pattern_still_finds_what_is_edited(ask: Ask) -> None:
    answer = ask(REQUESTS, edited("x = foo(1)\nfoobar\n", r"\bfoo\b"))
    assert answer.status_code == 200 and answer.json()["around"] == ["x = ", "(1)\nfoobar\n"]


def test_constraints_of_many_states_are_refused_in_the_end(ask: Ask, subtests: pytest.Subtests) -> None:
    long = "x" * 200_000
    for name, value in (
        ("schema", {"enum": [long]}),
        ("schema", {"enum": ["y", long]}),
        ("choices", [long]),
        ("regex", "x{0,200000}y"),
        ("forbidden", [long]),
        ("schema", {"pattern": "(a{0,90}){0,90}"}),
    ):
        with subtests.test(name=name):
            answer = ask(COMPLETIONS, {"prompt": "x", "max_tokens": 4, "daguerre": {name: value}})
            assert answer.status_code in (200, 400, 413), answer.text[:300]


def test_a_client_that_leaves_frees_its_place(leave: Callable[..., int], ask: Ask) -> None:
    """Its pattern, which takes all the steps that one may, is given up: the next one need not wait for it."""
    assert [leave(REQUESTS, edited("a" * 400_000 + "!", "(a|aa)+$"), 0.2) for _ in range(4)] == [499] * 4
    assert ask(COMPLETIONS, {"prompt": "x", "max_tokens": 4, "daguerre": {"regex": "[0-9]+"}}).status_code == 200


def test_a_hundred_thousand_stop_strings_are_refused(ask: Ask) -> None:
    many, long = [f"s{number}" for number in range(100_000)], "s" * 100_000
    for path, body in (
        (REQUESTS, {"prompt": "x", "options": {"stop": many}}),
        (REQUESTS, {"prompt": "x", "options": {"stop": [long]}}),
        (COMPLETIONS, {"prompt": "x", "stop": many}),
        ("/completion", {"prompt": "x", "stop": many}),
        ("/v1/fim/completions", {"prompt": "x", "stop": many}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "stop_sequences": many}),
    ):
        assert ask(path, body).status_code == 400, path
