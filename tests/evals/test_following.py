"""IFEval's instructions: what follows them and what does not, and a model's answers to a file of prompts."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from daguerre.errors import DataError, UnsupportedError
from daguerre.evals.following.answering import FollowAnswer, read_prompts, summary
from daguerre.evals.following.checks import CHECKS, follows, loosely, sentences
from daguerre.evals.harness import evaluate
from daguerre.evals.report import markdown
from daguerre.model import Model
from server.test_chat_format import model_of

CASES: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "change_case:capital_word_frequency": (
        {"capital_relation": "at least", "capital_frequency": 2},
        ["A NEW-WORLD order", "I AM"],
        ["NEW-WORLD order", ""],
    ),
    "change_case:english_capital": ({}, ["ALL OF IT."], ["All of it."]),
    "change_case:english_lowercase": ({}, ["all of it."], ["All of it."]),
    "combination:repeat_prompt": ({"prompt_to_repeat": " Write a poem."}, ["write a poem. Roses"], ["Roses"]),
    "combination:two_responses": ({}, ["one ****** two", "******\none******two"], ["a******a", "a", "a******b******c"]),
    "detectable_content:number_placeholders": ({"num_placeholders": 2}, ["[name] of [place]"], ["[name of place]"]),
    "detectable_content:postscript": ({"postscript_marker": "P.P.S"}, ["Bye\nP. P.S. more"], ["P.S. more"]),
    "detectable_format:constrained_response": ({}, ["Well. My answer is no."], ["My answer is No"]),
    "detectable_format:json_format": ({}, ['```json\n{"a": [1]}\n```', "3"], ["{'a': 1}", 'So: {"a": 1}']),
    "detectable_format:multiple_sections": (
        {"section_spliter": "SECTION", "num_sections": 2},
        ["SECTION 1\na\nSECTION 2\nb"],
        ["SECTION 1\na\nsection 2"],
    ),
    "detectable_format:number_bullet_lists": ({"num_bullets": 2}, ["* a\n  - b"], ["* a", "* a\n* b\n* c", "**a\n- b"]),
    "detectable_format:number_highlighted_sections": ({"num_highlights": 2}, ["*a* *b*", "**a** *b*"], ["*a*", "* *"]),
    "detectable_format:title": ({}, ["<<Joy>>"], ["<< >>", "<Joy>"]),
    "keywords:existence": ({"keywords": ["war", "Peace"]}, ["WARS and peace"], ["war"]),
    "keywords:forbidden_words": ({"forbidden_words": ["war"]}, ["wars"], ["a War!"]),
    "keywords:frequency": ({"relation": "less than", "keyword": "war", "frequency": 2}, ["war", "x"], ["war, Wars"]),
    "keywords:letter_frequency": (
        {"let_relation": "at least", "letter": "Q", "let_frequency": 2},
        ["quite Quiet"],
        ["quite"],
    ),
    "language:response_language": ({"language": "de"}, ["Das ist gut."], ["This is good."]),
    "length_constraints:nth_paragraph_first_word": (
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "weekend"},
        ["a\n\n\"Weekend's end"],
        ["a\n\nb", "weekend\n\na", "a\n\nweekend\n\nb"],
    ),
    "length_constraints:number_paragraphs": (
        {"num_paragraphs": 2},
        ["a\n***\nb\n***"],
        ["a", "a***b***c", "a*** ***b"],
    ),
    "length_constraints:number_sentences": (
        {"relation": "at least", "num_sentences": 2},
        ["Is it so? Yes"],
        ["Dr. E. Smith is here.", "3.5 is e.g. a number."],
    ),
    "length_constraints:number_words": ({"relation": "less than", "num_words": 4}, ["one, two - three"], ["a b c d"]),
    "punctuation:no_comma": ({}, ["a; b"], ["a, b"]),
    "startend:end_checker": ({"end_phrase": "That is all. "}, ['So, "that is all."'], ["That is all. Bye"]),
    "startend:quotation": ({}, [' "a" '], ['"', 'a "b"', '"a']),
}
"""Arguments, answers that follow, and answers that do not."""


@pytest.fixture
def telling(monkeypatch: pytest.MonkeyPatch) -> None:
    """A langdetect that knows German by one word."""
    fake = types.ModuleType("langdetect")
    found = {"detect": lambda text: "de" if "ist" in text.split() else "en", "LangDetectException": ValueError}
    fake.__dict__.update(found, DetectorFactory=types.SimpleNamespace())
    monkeypatch.setitem(sys.modules, "langdetect", fake)


@pytest.mark.usefixtures("telling")
@pytest.mark.parametrize("name", CHECKS)
def test_each_instruction_tells_what_follows_it(name: str) -> None:
    arguments, right, wrong = CASES[name]
    given = {**arguments, "another": None}
    assert [text for text in right if not follows(name, text, given)] == []
    assert [text for text in wrong if follows(name, text, given)] == []
    assert not follows(name, " \n", given)


def test_a_loose_reading_leaves_out_lines_and_asterisks() -> None:
    assert loosely("*Sure!*\nyes, *so*\nBye") == [
        "*Sure!*\nyes, *so*\nBye", "yes, *so*\nBye", "*Sure!*\nyes, *so*", "yes, *so*",
        "Sure!\nyes, so\nBye", "yes, so\nBye", "Sure!\nyes, so", "yes, so",
    ]  # fmt: skip


def test_sentences() -> None:
    assert sentences('He said "no!" Then\n\nmore') == ['He said "no!"', "Then", "more"]


def test_shares_are_of_prompts_and_of_instructions() -> None:
    given = [
        FollowAnswer(2, "x", 4, 2, True, ["a", "b"], [True, False], [True, True]),
        FollowAnswer(1, "y", 6, 3, False, ["a"], [True], [True]),
    ]
    found = summary(given, 3)
    shares = [found[f"{read}_{unit}s"]["share"] for read in ("strict", "loose") for unit in ("prompt", "instruction")]
    assert shares == [1 / 2, 2 / 3, 1, 1]
    assert found["by_instruction"] == {"a": {"num": 2, "loose": 1}, "b": {"num": 1, "loose": 1}}
    assert (found["tokens_per_forward"], found["ended"], found["tokens"]) == (2, 0.5, 5)
    assert [one["key"] for one in found["answers"]] == [1, 2]


def test_a_chat_model_answers_a_file_of_prompts(tmp_path: Path, causal: Model) -> None:
    model = model_of("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}<|assistant|>")
    rows = [
        {"key": 7, "prompt": "No comma.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
        {
            "key": 3,
            "prompt": "Auf Deutsch.",
            "instruction_id_list": ["language:response_language"],
            "kwargs": [{"language": "de"}],
        },
    ]
    path = tmp_path / "input_data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.MonkeyPatch.context() as without:
        without.setitem(sys.modules, "langdetect", None)
        report = evaluate(model, what=["instructions"], ifeval=path)
    found = report["instructions"]
    assert (found["num"], found["left_out"]) == (1, 1)
    (one,) = found["answers"]
    assert one["text"] == model.chat([{"role": "user", "content": "No comma."}], one["tokens"], temperature=0).text
    assert one["strict"] == ["," not in one["text"]]
    assert "| punctuation:no_comma | 1 |" in markdown(report) and "1 prompt that ask" in markdown(report)

    with pytest.raises(UnsupportedError, match="chat template"):
        evaluate(causal, what=["instructions"], ifeval=path)
    with pytest.raises(DataError, match="--ifeval"):
        evaluate(model, what=["instructions"])
    for text, word in (
        ("{}\n", "line 1"),
        ("", "no prompts"),
        (json.dumps(rows[0]).replace("no_comma", "no_dot"), "no_dot"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=word):
            read_prompts(path)
