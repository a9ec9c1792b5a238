"""Decisions in a ledger: asked again by `verify`, sealed, and found where they were changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daguerre.audit.canonical import salted
from daguerre.audit.keys import SigningKey
from daguerre.audit.recorder import Recorder
from daguerre.audit.trial import copied, forge, opened
from daguerre.audit.verification import verify
from daguerre.errors import InputError
from daguerre.model import Model
from daguerre.scoring.calibration import Calibration
from daguerre.scoring.decisions import Choice, Score, YesNo

STATE = "secretword = 1\n"
QUESTIONS = [
    YesNo(before="x =", calibration="even"),
    Choice(before="y = ", labels=["hush", "loud"], after="\n", calibration=Calibration(temperature=2.0)),
    Score(before="z = ", low=1, high=3),
]


@pytest.fixture(scope="module")
def decided(small: Model, signing: SigningKey, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ledger") / "audit.jsonl"
    small.calibrations["even"] = Calibration(bias={"yes": 0.5})
    with Recorder(str(path), small, signing) as recorder:
        assert recorder.decide(STATE, QUESTIONS) == small.decide(STATE, QUESTIONS)
        with pytest.raises(InputError, match="questions must be"):
            recorder.decide(STATE, ["hush"])  # type: ignore[list-item]
    del small.calibrations["even"]  # the record has it
    return path


def test_a_decision_is_recorded_sealed_and_asked_again(decided: Path, small: Model) -> None:
    (record, content), (refused, _) = opened(decided)
    report = verify(decided, small)

    assert report.sound and report.records[0].status == "replayed"
    assert (record["kind"], refused["kind"], record["output"]["questions"]) == ("decision", "refusal", 3)
    assert "secretword" not in decided.read_text() and "hush" not in decided.read_text()
    assert content is not None and content["request"]["arguments"]["state"] == STATE


FORGERIES: dict[str, Callable[[dict[str, Any], dict[str, Any]], Any]] = {
    "hash of its input": lambda record, content: content["request"]["arguments"].update(state="harmless = 1\n"),
    "hash of its output": lambda record, content: content["output"][0].update(answer="harmless"),
    "another model": lambda record, content: record["model"].update(weights_sha256="0" * 64),
}
RESEALED: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    "score of a label": lambda output: output[2]["scores"].update({"1": -0.5}),
    "probabilities differ": lambda output: output[0]["probabilities"].update(yes=0.25, no=0.75),
    "not the likeliest": lambda output: output[0].update(answer=not output[0]["answer"]),
    "other labels": lambda output: output[1]["scores"].pop("hush"),
}


@pytest.mark.parametrize("what", [*FORGERIES, *RESEALED])
def test_the_owner_of_the_key_cannot_change_a_decision(
    what: str, decided: Path, small: Model, signing: SigningKey, tmp_path: Path
) -> None:
    def edit(records: Any) -> None:
        record, content = records[0]
        if what in FORGERIES:
            FORGERIES[what](record, content)
        else:
            RESEALED[what](content["output"])
            record["output"]["sha256"] = salted(content["salt"], content["output"])

    path = copied(decided, tmp_path)
    forge(path, signing, edit)

    assert any(what in problem for problem in verify(path, small).records[0].problems)
