"""Figures in sentences of the documents: each is written here as its report gives it, and stands so in the document."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import daguerre
from daguerre.models.families import FAMILIES

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def report(name: str, task: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))[task]


def speculation(temperature: float) -> Any:
    outcomes = report("default-speculation", "speculation")["outcomes"]
    return next(each for each in outcomes if each["temperature"] == temperature)


def missing(method: str) -> Any:
    outcomes = report("default-infill", "infill")["outcomes"]
    return next(each for each in outcomes if (each["method"], each["length"]) == (method, "unknown"))


def faster() -> str:
    cold, hot = speculation(0.0), speculation(1.0)
    return (
        f"Self-speculation is {cold['speedup']:.2f} times as fast as one token at a time at temperature 0, where the "
        f"model repeats itself, and {hot['speedup']:.2f} times at 1 (medians of {cold['prompts']:,} prompts"
    )


def ours() -> str:
    task, cold = report("default-speculation", "speculation"), speculation(0.0)
    rates = [each["tokens_per_forward"] for each in (cold, speculation(1.0), task["lines"])]
    return "Ours, the default model: {:.1f} at temperature 0 and {:.1f} at 1, and {:.1f} on next lines".format(*rates)


def looping() -> str:
    first = next(each for each in report("default-speculation", "speculation")["first"] if each["temperature"] == 0)
    loops = f"Its greedy texts loop in {100 * speculation(0.0)['loops']:.0f} of 100 cases, which makes them easy to "
    return loops + f"draft: the first {first['new_tokens']} tokens are at {first['tokens_per_forward']:.1f}."


def lines_filled() -> str:
    beam, novel = missing("infill, beam"), missing("infill, beam, novel")
    return (
        f"Fill a missing line exactly more often than once in {int(1 / beam['exact'])}, and that only in mode `beam` "
        f"(once in {int(1 / novel['exact'])} if it may assume that the line is not in the context already); "
        f"{100 * beam['parses']:.0f}% of the filled files still parse."
    )


def edits() -> str:
    outcomes = report("default-edit", "edit")["outcomes"]
    assert not any(each["changed"] for each in outcomes)
    return f"On {sum(each['num'] for each in outcomes)} edits of held-out code no byte outside changed"


def size() -> str:
    return f"{daguerre.load().backbone.num_parameters / 1e6:.1f} million parameters"


QUOTED: list[tuple[str, Callable[[], str]]] = [
    ("README.md", faster),
    ("README.md", size),
    ("README.md", lambda: f"[{len(FAMILIES)} families](docs/families.md)"),
    ("docs/decoding.md", ours),
    ("docs/decoding.md", looping),
    ("docs/canvas.md", edits),
    ("MODEL_CARD.md", lines_filled),
    ("MODEL_CARD.md", lambda: f"{daguerre.load().backbone.num_parameters:,} parameters"),
]


def prose(name: str) -> str:
    """A document without the tables that a command writes, its lines joined."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return " ".join(re.sub(r"<!-- figures.*?<!-- end -->", "", text, flags=re.DOTALL).split())


def test_a_quoted_figure_is_that_of_its_report(subtests: pytest.Subtests) -> None:
    for document, sentence in QUOTED:
        said = sentence()
        with subtests.test(document, said=said):
            assert said in prose(document)


def test_no_other_figure_is_quoted(subtests: pytest.Subtests) -> None:
    """Every decimal number is in a sentence of QUOTED, in a table that a command writes, or names a version."""
    versions = r"Python 3\.\d+ to 3\.\d+|Qwen[\d.]+|SDAR-[\d.]+B|Apache-2\.0|LLaDA[\d.]+|http://[\d.:]+"
    for document in ("README.md", "docs/when-slower.md"):
        text = prose(document)
        for name, sentence in QUOTED:
            if name == document:
                text = text.replace(sentence(), "")
        text = re.sub(r"```.*?```", "", text)
        with subtests.test(document):
            assert re.findall(r"\d*\.\d+|\d+(?:\.\d+)?%", re.sub(versions, "", text)) == []
