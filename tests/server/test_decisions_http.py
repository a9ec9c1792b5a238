"""Decisions over HTTP: both published bodies, and llama.cpp's path."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from daguerre.model import Model
from daguerre.scoring.decisions import Choice, YesNo
from daguerre.server.routes import decisions

STATE = "def area(radius):\n    return 3.14159 * radius ** 2"
LANGUAGES = {"python": "a language with indentation", "c": None, "c++": "classes"}
QUESTIONS = {
    "circle": {"type": "noul", "instructions": "It is about circles.", "criteria": {"true": "a circle", "false": None}},
    "language": {"type": "choice", "instructions": "Which language?", "criteria": LANGUAGES},
    "length": {"type": "score", "instructions": "How long?", "criteria": ["short", {"lines": 50}, "long"]},
    "bare": {"type": "noul"},
}
LISTED = [
    {"type": "predicate", "name": "circle", "instructions": "It is about circles."},
    {
        "type": "choice",
        "instructions": [{"type": "input_text", "text": "Which language?"}],
        "choices": [{"value": "python", "description": "with indentation"}, {"value": False}, {"value": "c"}],
    },
    {
        "type": "score",
        "instructions": "How long?",
        "levels": [{"label": "short"}, {"label": "long", "description": "9"}],
    },
]


def ask(client: httpx2.Client, path: str = "/v1/decisions", **body: Any) -> Any:
    response = client.post(path, json={"model": "default", **body})
    assert response.status_code == 200, response.text
    return response.json()


def test_a_question_becomes_the_documented_text(client: httpx2.Client, trained: Model) -> None:
    answers = ask(client, state=STATE, questions=QUESTIONS)["answers"]
    assert list(answers) == list(QUESTIONS)
    around: Any = {"before": "\n\nIt is about circles.\ntrue: a circle\nAnswer:", "after": "\n"}
    truth: Any = {"yes": " true", "no": " false", "after": "\n"}
    chosen = "\n\nWhich language?\npython: a language with indentation\nc\nc++: classes\nAnswer:"
    length = '\n\nHow long?\n0: short\n1: {"lines": 50}\n2: long\nAnswer:'
    circle, language, _, bare = trained.decide(
        STATE,
        [
            YesNo(**{**truth, **around}),
            Choice(before=chosen, labels=[" python", " c", " c++"], after="\n"),
            Choice(before=length, labels=[" 0", " 1", " 2"], after="\n"),
            YesNo(**{**truth, "before": "\n\nbare\nAnswer:"}),
        ],
    )
    assert answers["circle"] == {"type": "noul", "noul": pytest.approx(circle.expected)}
    assert answers["bare"]["noul"] == pytest.approx(bare.expected)
    assert answers["language"]["probabilities"] == {
        label.strip(): pytest.approx(p) for label, p in language.probabilities.items()
    }
    best = max(language.probabilities.values())
    assert answers["language"]["confidence"] == pytest.approx(best)
    assert answers["language"]["probabilities"][answers["language"]["choice"]] == pytest.approx(best)


def test_a_score_is_the_mean_of_its_levels_numbers(client: httpx2.Client) -> None:
    score = ask(client, state={"code": STATE}, questions=QUESTIONS)["answers"]["length"]
    assert list(score["probabilities"]) == ["0", "1", "2"]
    assert sum(score["probabilities"].values()) == pytest.approx(1)
    assert score["score"] == pytest.approx(score["probabilities"]["1"] + 2 * score["probabilities"]["2"])
    assert score["legend"] == {"0": "short", "1": {"lines": 50}, "2": "long"}


def test_a_list_of_questions_is_answered_in_order(client: httpx2.Client) -> None:
    answer = ask(client, input=STATE, questions=LISTED)
    predicate, choice, score = answer["answers"]
    assert predicate["name"] == "circle" and 0 < predicate["probability"] < 1
    assert choice["name"] is None
    assert [one["value"] for one in choice["probabilities"]] == ["python", False, "c"]
    assert sum(one["probability"] for one in choice["probabilities"]) == pytest.approx(1)
    assert {"value": choice["choice"], "probability": choice["confidence"]} in choice["probabilities"]
    assert [(one["label"], one["value"]) for one in score["probabilities"]] == [("short", 0), ("long", 1)]
    assert score["score"] == pytest.approx(score["probabilities"][1]["probability"])
    usage = answer["usage"]
    assert usage["input_tokens"] == usage["total_tokens"] > 0 == usage["output_tokens"]


def test_an_input_of_items_is_a_transcript(client: httpx2.Client) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": "input_json", "data": {"a": 1}}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "3"},
    ]
    text = 'User: x{"a": 1}\n\nCall: f({})\n\nOutput: 3'
    assert ask(client, input=items, questions=LISTED) == ask(client, input=text, questions=LISTED)


def test_both_bodies_and_both_paths_agree(client: httpx2.Client) -> None:
    plain = {"circle": {"type": "noul", "instructions": "It is about circles."}}
    by_state = ask(client, state=STATE, questions=plain)
    assert ask(client, "/v1/systemone", state=STATE, questions=plain) == by_state
    by_input = ask(client, input=STATE, questions=LISTED[:1])
    assert by_input["answers"][0]["probability"] == by_state["answers"]["circle"]["noul"]


def test_questions_that_need_several_forwards_have_the_same_answers(
    client: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = ask(client, state=STATE, questions=QUESTIONS)
    monkeypatch.setattr(decisions, "ROWS", 1)
    sizes, whole = list[int](), Model.decide
    monkeypatch.setattr(
        Model,
        "decide",
        lambda model, state, asked, **how: sizes.append(len(asked)) or whole(model, state, asked, **how),
    )
    apart = ask(client, state=STATE, questions=QUESTIONS)
    for one, other in zip(apart["answers"].values(), together["answers"].values(), strict=True):
        of_one, of_other = (answer.get("probabilities", {"": answer.get("noul")}) for answer in (one, other))
        assert of_one == pytest.approx(of_other, rel=0.05)  # of bfloat16
    assert apart["usage"] == together["usage"]
    assert sizes == [1] * len(QUESTIONS)


def test_questions_are_grouped_by_their_size(trained: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [
        decisions.LabeledQuestion(str(size), True, "x\n" * size, (" a", " b"), "\n", None) for size in (9, 9, 200, 1, 1)
    ]
    monkeypatch.setattr(decisions, "ROWS", 60)
    groups = list(decisions._groups(asked, trained.tokenizer.encode))
    assert [[one.name for one in group] for group in groups] == [["9", "9"], ["200"], ["1", "1"]]


def test_many_questions_with_many_labels(client: httpx2.Client) -> None:
    labels = {f"label {number}": None for number in range(255)}
    questions = {f"q{number}": {"type": "noul", "instructions": f"Is it {number}?"} for number in range(399)}
    own = {"before": "\n# ", "labels": list(labels), "after": "\n"}  # a line for each would not fit in 1,024 positions
    many = {"all": {"type": "choice", "criteria": labels, "daguerre": own}}
    answers = ask(client, state="x = 1", questions=many | questions)["answers"]
    assert len(answers) == 400
    assert sum(answers["all"]["probabilities"].values()) == pytest.approx(1)
    (only,) = ask(client, state="x", questions={"a": {"type": "choice", "criteria": {"one": None}}})["answers"].values()
    assert only == {"type": "choice", "choice": "one", "confidence": 1.0, "probabilities": {"one": 1.0}}


def test_a_question_may_bring_its_own_template_and_calibration(client: httpx2.Client, trained: Model) -> None:
    own: Any = {"before": "\n# A circle: ", "labels": ["yes", "no"], "after": ".\n"}
    answer = ask(client, state=STATE, questions={"q": {"type": "noul", "daguerre": own}})["answers"]["q"]
    (alone,) = trained.decide(STATE, [YesNo(before=own["before"], yes="yes", no="no", after=".\n")])
    assert answer["noul"] == pytest.approx(alone.expected)
    name = next(name for name, one in trained.calibrations.items() if set(one.bias) <= {"yes", "no"})
    calibrated = {"q": {"type": "noul", "daguerre": {**own, "calibration": name}}}
    (expected,) = trained.decide(
        STATE, [YesNo(before=own["before"], yes="yes", no="no", after=".\n", calibration=name)]
    )
    assert ask(client, state=STATE, questions=calibrated)["answers"]["q"]["noul"] == pytest.approx(expected.expected)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"questions": {}}, "give one of the two"),
    ({"state": "x", "input": "x", "questions": []}, "give one of the two"),
    ({"state": "x", "questions": {}}, "questions"),
    ({"state": "x", "questions": LISTED}, "questions"),
    ({"state": 5, "questions": QUESTIONS}, "state"),
    ({"state": "x", "questions": {"a": {"type": "guess"}}}, "questions.a"),
    ({"state": "x", "questions": {"a": {"type": "choice", "criteria": {}}}}, "questions.a.choice.criteria"),
    ({"state": "x", "questions": {str(n): {"type": "noul"} for n in range(401)}}, "questions"),
    ({"state": "x " * 9000, "questions": QUESTIONS}, "shorten the state"),
    ({"state": "x", "questions": {"a": {"type": "noul", "daguerre": {"calibration": "no"}}}}, "calibration"),
    ({"state": "x", "questions": {"a": {"type": "noul", "daguerre": {"labels": ["a", "b"]}}}}, "give `before`"),
    ({"state": "x", "questions": {"a": {"type": "noul", "daguerre": {"before": "", "labels": ["a"]}}}}, "labels"),
    ({"input": "x", "questions": [{**LISTED[1], "choices": [{"value": "a"}]}]}, "questions.0.choice.choices"),
    ({"input": "x", "questions": [{**LISTED[1], "choices": [{"value": "a"}] * 2}]}, "given twice"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}], "questions": LISTED}, "only text"),
    ({"input": [{"type": "odd"}], "questions": LISTED}, "not known"),
]
"""Bodies, and what is said of them."""


def test_what_is_no_decision_is_refused(client: httpx2.Client, subtests: pytest.Subtests) -> None:
    for body, says in REFUSED:
        with subtests.test(says, body=body):
            response = client.post("/v1/decisions", json={"model": "default", **body})
            assert response.status_code == 400, response.text
            assert says in response.json()["error"]["message"]


def test_pictures_are_refused(client: httpx2.Client) -> None:
    body = {"state": "x", "questions": {"a": {"type": "noul"}}, "images": ["..."]}
    assert client.post("/v1/systemone", json=body).status_code == 400


def test_values_that_are_no_json_are_refused(client: httpx2.Client, subtests: pytest.Subtests) -> None:
    bodies = (
        '{"state": {"a": %s}, "questions": {"q": {"type": "noul"}}}',
        '{"state": "x", "questions": {"q": {"type": "score", "criteria": [{"a": %s}, "b"]}}}',
        '{"input": [{"role": "user", "content": [{"type": "input_json", "data": {"a": %s}}]}], "questions": '
        '[{"type": "predicate", "instructions": "x"}]}',
    )
    for value in ("NaN", "1e999", "[" * 900 + "]" * 900):
        for body in bodies:
            with subtests.test(body, value=value[:20]):
                headers = {"content-type": "application/json"}
                response = client.post("/v1/decisions", content=body % value, headers=headers)
                assert response.status_code in (200, 400), response.text
                assert (response.status_code == 400) or value.startswith("[")
