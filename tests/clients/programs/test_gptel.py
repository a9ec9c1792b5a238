"""Emacs with gptel."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tasks import ANSWER, PRICES, QUESTION, holds
from wire import Wire

WORKED = "How many hours did Ada work this month?"
Emacs = Callable[[str, str], str]


@pytest.fixture
def emacs(program: Callable[[str], Path], wire: Wire, home: Path, start: Callable[..., str]) -> Emacs:
    """emacs(function, asked): runs a function of emacs.el in a folder of one file."""
    command = shutil.which("emacs") or pytest.skip("Emacs is not installed")
    paths = [program(f"plugins/{name}") for name in ("compat", "transient/lisp", "gptel")]
    (home / "work" / "prices.py").write_text(PRICES)
    loaded = [word for path in paths for word in ("-L", path)]

    def run(function: str, asked: str) -> str:
        environment = {"DAGUERRE_HOST": wire.url.removeprefix("http://"), "ASKED": asked}
        script = Path(__file__).with_name("emacs.el")
        return start(command, "-Q", "--batch", *loaded, "-l", script, "-f", function, env=environment)

    return run


def test_answers_about_a_file(emacs: Emacs, wire: Wire) -> None:
    assert ANSWER in emacs("answer-about-a-file", QUESTION).rpartition(QUESTION)[2]
    assert wire.asked("/chat/completions")[0].streamed


def test_calls_a_tool(emacs: Emacs, wire: Wire) -> None:
    assert "137" in emacs("call-a-tool", WORKED)
    assert wire.exchanges[-1].asked["messages"][-1]["role"] == "tool"


def test_rewrites_a_function(emacs: Emacs, home: Path) -> None:
    emacs("rewrite-a-function", "Refuse a negative tax: raise ValueError.")
    text = (home / "work" / "prices.py").read_text()
    before, after = PRICES.partition("def calc")[0], PRICES[PRICES.index("\n\ndef receipt") :]
    assert text.startswith(before) and text.endswith(after), text
    asserts = "assert calc([1, 2], 0.5) == 4.5\ntry: calc([1], -1)\nexcept ValueError: pass\nelse: raise AssertionError"
    assert holds(text, asserts), text
