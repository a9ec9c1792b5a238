"""A model beside its teacher: distances, a curve of answers, and fills."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import daguerre
from daguerre.errors import DataError, InputError
from daguerre.evals.harness import evaluate
from daguerre.evals.options import EvalLimits
from daguerre.evals.report import markdown
from daguerre.evals.tasks.following import decoding_of
from daguerre.evals.teaching.filling import missing_sentences
from daguerre.evals.teaching.likelihoods import ToldAnswer, nats_of
from daguerre.evals.teaching.writing import write
from daguerre.model import Model
from daguerre.models.loading import save_model

TEXT = "The sun is up. The sky is blue, and clear. We go out now."


@pytest.fixture
def told(causal: Model, tmp_path: Path) -> Path:
    folder, encode = tmp_path / "answers", causal.tokenizer.encode
    folder.mkdir()
    prompts = [f"def area_{i}(w):" for i in range(6)]
    rows: list[dict[str, Any]] = [
        {"number": i, "prompt": encode(prompt), "new": encode(TEXT), "temperature": 0.0}
        for i, prompt in enumerate(prompts)
    ]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_model_that_is_its_teacher_is_at_no_distance(causal: Model, told: Path, tmp_path: Path) -> None:
    teacher = save_model(tmp_path / "teacher", causal.backbone, causal.tokenizer, dtype="float32")
    report = evaluate(causal, what=["teacher"], teacher=str(teacher), answers=told, limits=EvalLimits(prompts=4))
    found = report["teacher"]
    assert found["kl_next"] == pytest.approx(0.0, abs=1e-5) and found["kl"] > 0.01
    bits = found["bits_per_byte"]
    assert bits["left to right"] == pytest.approx(bits["teacher"], rel=1e-4) and bits["blocks of 4"] > 0
    rows = {row["name"]: row for row in found["curve"]["rows"]}
    assert rows["left to right"] | {"name": ""} == rows["teacher"] | {"name": ""}
    assert rows["teacher"]["first_choice"] == 1.0 and rows["teacher"]["tokens_per_forward"] == pytest.approx(1, abs=0.2)
    blocks = [row["tokens_per_forward"] for name, row in rows.items() if name.startswith("blocks")]
    assert blocks[0] <= blocks[-1] and len(blocks) == 6
    assert found["fills"]["num"] == 4 and 0 <= found["fills"]["likelier"] <= 1
    said = markdown(report)
    assert "Beside its teacher" in said and "4 sentences taken out of the middle" in said


def test_nats_are_those_of_the_score_and_text_is_that_of_the_model(causal: Model) -> None:
    ids = causal.tokenizer.encode(TEXT)
    nats, chosen = nats_of(causal.backbone, ids, 4)
    prefix, rest = causal.tokenizer.decode(ids[:4]), causal.tokenizer.decode(ids[4:])
    whole, before = (causal.nll(text, kind="ar").value for text in (prefix + rest, prefix))
    assert nats.sum() == pytest.approx(whole - before, rel=1e-3) and chosen.dtype == np.bool_
    (one,) = write(causal, [ids[:4]], {"mode": "ar"}, 6)
    assert causal.tokenizer.decode(one.new) == causal.generate(prefix, 6, heal=False, mode="ar").text


def test_a_sentence_is_taken_from_the_middle(causal: Model) -> None:
    encode = causal.tokenizer.encode
    (one,) = missing_sentences([ToldAnswer([1], encode(TEXT)), ToldAnswer([1], encode("One. Two."))], causal, 0)
    assert one.middle == " The sky is blue, and clear."
    assert causal.tokenizer.decode([*one.before[1:], *encode(one.middle), *one.after]) == TEXT


def test_what_is_missing_is_said(causal: Model, told: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--teacher"):
        evaluate(causal, what=["teacher"], answers=told)
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "texts.jsonl").write_text("")
    with pytest.raises(DataError, match="no answers"):
        evaluate(causal, what=["teacher"], teacher="default", answers=tmp_path / "none")
    assert decoding_of(["mode=block", "threshold=0.9", "block_size=4"]) == {
        "mode": "block", "threshold": 0.9, "block_size": 4,
    }  # fmt: skip
    for wrong in ("mode", "tempo=1"):
        with pytest.raises(InputError):
            decoding_of([wrong])
    assert daguerre.Decode(**decoding_of(["policy=margin"])).policy == "margin"
