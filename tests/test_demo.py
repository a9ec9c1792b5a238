"""The demonstration: on held-out code, in place on a terminal, plain text elsewhere."""

from __future__ import annotations

import ast
import io

import pytest
from rich.console import Console

import daguerre
from daguerre.heldout import load_frozen
from daguerre.view import demo


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "ROUNDS", 1)
    monkeypatch.setattr(demo, "COMPLETION_TOKENS", 20)
    monkeypatch.setattr(demo, "FRAME_SECONDS", 0.0)


def test_the_function_shown_is_whole_with_its_missing_line() -> None:
    before, line, after = demo.infill_parts(load_frozen())
    functions = [n for n in ast.walk(ast.parse(before + line + after)) if isinstance(n, ast.FunctionDef)]
    place = demo.MISSING - demo.FUNCTION.first + 1
    assert any(f.lineno < place <= (f.end_lineno or 0) for f in functions)
    assert len(line) >= 8
    assert line not in before + after


def test_beginnings_are_of_functions() -> None:
    for place in demo.BEGINNINGS:
        assert place.lines(load_frozen())[0].lstrip().startswith("def ")


@pytest.mark.parametrize("live", [False, True], ids=["plain", "terminal"])
def test_the_demonstration_runs(live: bool) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=live, width=110, no_color=not live)
    demo.show(console, daguerre.load(), live=live)
    text = screen.getvalue()
    for word in ("written", "by beam", "true", "completing", "block 16", "tokens/s", "MODEL_CARD.md"):
        assert word in text
    assert ("\x1b[" in text) == live
