"""Trying a concept: which strength is chosen, and what says whether a text has it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import daguerre
from backends import needs_compiler
from daguerre.concepts.own import OwnConcept, OwnTaxonomy
from daguerre.concepts.taxonomy import taxonomy
from daguerre.concepts.trying import (
    ConceptFinder,
    ConceptTrial,
    PythonFinder,
    RuledFinder,
    TextFinder,
    finder_of,
    held_out_prompts,
)
from daguerre.errors import InputError, UnsupportedError
from daguerre.heldout import load_frozen
from daguerre.model import Model
from test_cli import Called
from test_cli import call as call

pytestmark = needs_compiler


@pytest.fixture(scope="module")
def model() -> Model:
    return daguerre.load("concepts")


class Scripted(ConceptFinder):
    """Has it where the strength that the trial wrote with is 6 or more, and is sound below 10."""

    said_by = "the test"

    def has(self, prompt: str, text: str) -> bool:
        return float(text) >= 6

    def sound(self, prompt: str, text: str, plain: str) -> float:
        return float(float(text) < 10) or 0.25


def test_the_strength_with_the_best_score_is_chosen_on_other_prompts(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = list[tuple[str, float]]()

    def write(self: ConceptTrial, prompt: str, strength: float) -> str:
        written.append((prompt, strength))
        return str(strength)

    monkeypatch.setattr(ConceptTrial, "write", write)
    prompts = [f"prompt {number}" for number in range(6)]
    added = ConceptTrial(model=model, name="for_loop", finder=Scripted()).run(prompts, 2, None)

    assert added.strength == 6.0 and [one.strength for one in added.scores] == [0.0, 4.0, 6.0, 8.0, 12.0]
    assert [(one.share, one.sound) for one in added.scores] == [(0, 1), (0, 1), (1, 1), (1, 1), (1, 0.25)]
    assert {prompt for prompt, strength in written if strength not in (0.0, 6.0)} == {*prompts[2:]}
    assert [(one.prompt, one.had, one.has) for one in added.shown] == [(prompt, False, True) for prompt in prompts[:2]]
    forbidden = ConceptTrial(model=model, name="for_loop", finder=Scripted(), kind="forbid")
    assert forbidden.run(prompts, 1, None).strength == 6.0, "all have it: the first of equals"
    with pytest.raises(InputError, match="give more"):
        forbidden.run(prompts, 6, None)


def test_a_concept_that_is_added_is_written(call: Callable[..., Called]) -> None:
    code, out, error = call("concepts", "try", "try_block", "--num", "3", "--max-tokens", "20", "--json")
    assert code == 0, error
    found = json.loads(out)
    assert found["said_by"] == "its definition" and found["steer"][0]["strength"] == found["strength"] > 0
    assert sum(one["has"] for one in found["shown"]) > sum(one["had"] for one in found["shown"])
    assert "sound" in error


def test_who_says_that_a_text_has_a_concept(model: Model) -> None:
    own = OwnTaxonomy((OwnConcept(name="comment", means="x", pattern="Doc"), OwnConcept(name="docstring", means="x")))
    finders = [finder_of(model, name, given)[0] for name, given in (("for_loop", None), ("comment", own))]
    assert isinstance(finders[0], PythonFinder) and isinstance(finders[1], RuledFinder)
    asked, unnamed = finder_of(model, "docstring", own)[0], finder_of(model, "discovered 3", None)[0]
    assert type(asked) is type(unnamed) is TextFinder
    assert finders[0].has("def f(x):\n    ", "for y in x:\n        pass\n")
    assert not finders[0].has("for y in x:\n    ", "print(y)\n")
    assert finders[1].has("Do", "c") and not finders[1].has("Doc", "x")
    syntax = OwnTaxonomy((OwnConcept(name="comment", means="x", syntax="ast.Assert"),))
    by_syntax = finder_of(model, "comment", syntax)[0]
    assert by_syntax.has("def f(x):\n    ", "assert x\n    return (x +") and not by_syntax.has("assert x\n", "y = (x +")
    labeled = OwnTaxonomy((OwnConcept(name="docstring", labeled=True),))
    assert type(finder_of(model, "docstring", labeled)[0]) is TextFinder
    documented = 'def f(x):\n    """Return x as it is."""\n'
    assert asked.has(documented[:14], documented[14:]) and not asked.has(documented, "    return x\n")
    assert asked.sound("x = ", "1\n", "1\n") == 1.0 > asked.sound("x = ", "zq%$\n", "1\n") > 0
    with pytest.raises(UnsupportedError, match="no concept heads"):
        finder_of(daguerre.load(), "for_loop", None)


def test_held_out_prompts_end_before_a_concept_that_is_forbidden(call: Callable[..., Called], tmp_path: Path) -> None:
    concept = taxonomy().named("docstring")
    texts, prompts = [one.text for one in load_frozen()], held_out_prompts(concept, forbid=True, num=3)
    assert len(prompts) == 3
    for prompt in prompts:
        behind = [text[len(prompt) :].lstrip(" ").lstrip("rRuU") for text in texts if text.startswith(prompt)]
        assert any(each.startswith(('"', "'")) for each in behind)
    assert len(held_out_prompts(None, forbid=False, num=4)) == 4
    (tmp_path / "prompts.jsonl").write_text('{"prompt": ""}')
    code, _, error = call("concepts", "try", "docstring", "--prompts", str(tmp_path / "prompts.jsonl"))
    assert code == 2 and 'needs "prompt"' in error
