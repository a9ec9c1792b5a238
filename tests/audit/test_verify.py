"""Verification by replay: what is sound, what is erased, and what cannot be computed again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import GEMMA
from daguerre.audit.evidence import EXACT, HALF, SINGLE
from daguerre.audit.facts import software_facts
from daguerre.audit.keys import SigningKey
from daguerre.audit.ledger import Ledger, LedgerEntry, lines, record_keys
from daguerre.audit.recorder import Recorder
from daguerre.audit.trial import copied, opened
from daguerre.audit.verification import REPLAYED, tolerance_of, verify
from daguerre.errors import InputError, UnsupportedError
from daguerre.model import Model
from daguerre.models.core.shapes import FimTokens

PROMPT = "def fib(n):\n    if n"
STEER = [
    {"kind": "add", "concepts": [1], "strength": 3.0},
    {"kind": "suppress", "concepts": [2, 14]},
    {"kind": "forbid", "concepts": [5], "schedule": "fade"},
]
REQUESTS: dict[str, dict[str, Any]] = {
    "ar": {"mode": "ar"},
    "speculative": {"mode": "speculative", "temperature": 0.8, "seed": 2**64 - 1},
    "block": {"mode": "block", "temperature": 0.5},
    "a chain": {"mode": "block", "policy": "chain"},
    "edits": {"mode": "full", "policy": "joint_threshold", "edit_threshold": 0.1},
    "revision": {"mode": "block", "revise": 1, "revise_threshold": 0.0},
    "revision of masks": {
        "mode": "block",
        "revise": 1,
        "revise_threshold": 0.0,
        "revise_reading": "leave_one_out",
    },
    "a constraint": {"mode": "ar", "choices": ["yes", "no, it is not"]},
    "a constraint on a block": {"mode": "block", "regex": "[a-z]{3,8} = [0-9]+"},
    "a bias": {"mode": "ar", "logit_bias": {50: 2.0, 51: -float("inf")}},
    "samples": {"n": 2, "temperature": 1.0, "stop": "\n\n"},
    "guidance": {"guidance": 2.0, "heal": False, "mode": "speculative"},
    "steering": {"steer": STEER, "temperature": 0.5},
    "steering a block": {"steer": STEER, "mode": "block"},
    "guidance and steering": {
        "guidance": 2.0,
        "guidance_schedule": "linear",
        "heal": False,
        "steer": STEER,
        "mode": "block",
    },
    "an end that fills its span": {"mode": "block", "logit_bias": {2: 30.0}, "block_size": 6},
    "8-bit keys": {"mode": "ar", "cache": "approximate_int8"},
}
GAPS: dict[str, dict[str, Any]] = {
    "a suffix": {"mode": "block"},
    "a suffix and a constraint": {"mode": "block", "regex": "[0-9]{1,3}(, [0-9]{1,3})?"},
    "a filler": {"mode": "block", "logit_bias": {4: 30.0}},
    "a search": {"mode": "beam", "num_beams": 4},
}


def ran(path: Path, key: SigningKey, model: Model, requests: dict[str, Any], gaps: dict[str, Any]) -> Path:
    with Recorder(str(path), model, key) as recorder:
        for options in requests.values():
            recorder.generate(PROMPT, 12, **options)
        for options in gaps.values():
            recorder.infill("a = [", "]\n", 8, **options)
    return path


def test_words_of_a_published_model_are_healed_as_they_were(named: Any, signing: SigningKey, tmp_path: Path) -> None:
    """In a gap that is written behind the texts around it, and in no completion: no record says which."""
    made = named(mask_id=None, null_id=None, fim=FimTokens(prefix=5, suffix=6, middle=7))
    model = Model(made.backbone, made.tokenizer, "native", family="qwen2")
    with Recorder(str(tmp_path / "audit.jsonl"), model, signing) as recorder:
        recorder.generate(PROMPT, 6)
        recorder.infill(PROMPT, "\n", 6)
    report = verify(tmp_path / "audit.jsonl", model, public=signing.public)
    assert list(report.complaints()) == [] and len(report.records) == 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("backend", ["torch", "native"])
def test_what_a_model_wrote_is_sound(backend: str, dtype: str, named: Any, signing: SigningKey, tmp_path: Path) -> None:
    model = named(backend, dtype)
    path = ran(tmp_path / "audit.jsonl", signing, model, REQUESTS, GAPS)

    report = verify(path, model, public=signing.public)

    assert list(report.complaints()) == []
    assert [record.status for record in report.records] == [REPLAYED] * (len(REQUESTS) + 1 + len(GAPS))
    assert all(record.tokens for record in report.records)
    if backend == "native":  # to the seven digits that are written
        assert max(record.worst for record in report.records) < 1e-4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_another_backend_gives_the_same_within_its_tolerance(
    dtype: str, named: Any, signing: SigningKey, tmp_path: Path
) -> None:
    requests = {name: REQUESTS[name] for name in ("ar", "speculative", "block")}
    path = ran(tmp_path / "audit.jsonl", signing, named("native", dtype), requests, {"a suffix": GAPS["a suffix"]})

    report = verify(path, named("torch", dtype))

    assert list(report.complaints()) == []
    assert report.num_replayed == 4


@pytest.mark.parametrize(
    "facts",
    [
        {"context": "full"},
        {"context": "full", "shift": False},
        {"context": "block", "shift": False, "block_size": 8},
        {"context": "block", "block_size": 8},
        {"context": "reordered", "shift": False},
        {"context": "causal", "shift": False},
        {"context": "causal", "draft_head": 8},
    ],
)
def test_every_context_can_be_replayed(facts: dict[str, Any], named: Any, signing: SigningKey, tmp_path: Path) -> None:
    model = named(**facts)
    path = tmp_path / "audit.jsonl"
    with Recorder(str(path), model, signing) as recorder:
        for options in ({"mode": "block"}, {"mode": "block", "policy": "chain"}, {"steer": STEER, "temperature": 0.5}):
            recorder.generate(PROMPT, 12, **options)

    report = verify(path, model)

    assert list(report.complaints()) == []
    assert report.num_replayed == 3


def test_a_model_without_concepts_has_logits_alone(causal: Model, signing: SigningKey, tmp_path: Path) -> None:
    path = ran(tmp_path / "audit.jsonl", signing, causal, {"ar": REQUESTS["ar"]}, {"a suffix": GAPS["a suffix"]})

    assert verify(path, causal).num_replayed == 2
    columns = [step for _, content in opened(path) for step in content["evidence"] if step is not None]  # type: ignore[index]
    assert {name for step in columns for name in step} == {"logit"}


def test_a_search_of_the_default_kind_and_filled_and_edited_texts_are_sound(
    small: Model, signing: SigningKey, tmp_path: Path
) -> None:
    path = tmp_path / "audit.jsonl"
    with Recorder(str(path), small, signing) as recorder:
        recorder.infill("a = [", "]\n", 6)
        recorder.fill("x = <gap>\ny = <gap>\n", [4, 5])
        recorder.edit("x = 1\ny = 2\n", [(4, 5)], mode="block")
        recorder.edit("x = 1\ny = 2\n", pattern="[0-9]", strength=0.5, mode="block")
        recorder.generate([30, 31, 32], 4)

    report = verify(path, small)

    assert list(report.complaints()) == []
    assert report.num_replayed == 5


def test_an_erased_text_is_gone_and_the_chain_stays_valid(
    recorded: Path, small: Model, signing: SigningKey, tmp_path: Path
) -> None:
    path = copied(recorded, tmp_path)
    record = LedgerEntry.parse(next(iter(lines(path)))).record["id"]
    with Ledger(path, signing) as ledger:
        ledger.erase(record, "asked for")

    report = verify(path, small)

    assert report.sound
    assert report.records[0].status == "erased: chain and signature only"
    assert report.num_replayed == 19
    assert opened(path)[0][1] is None
    assert record_keys(path).read()[record] is None
    last = LedgerEntry.parse(list(lines(path))[-1]).record
    assert (last["kind"], last["erased"], last["why"]) == ("erasure", record, "asked for")


def test_without_the_keys_chain_and_signatures_are_checked(recorded: Path, small: Model, tmp_path: Path) -> None:
    path = copied(recorded, tmp_path)
    record_keys(path).path.unlink()

    report = verify(path, small)

    assert report.sound
    assert {record.status for record in report.records} == {"sealed: chain and signature only"}


def test_no_text_is_in_the_clear(small: Model, signing: SigningKey, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with Recorder(str(path), small, signing) as recorder:
        recorder.generate("secretword = ", 6, stop="hush", negative="other", guidance=2.0, heal=False)
        with pytest.raises(InputError):
            recorder.generate("secretword", 6, regex="(hush")
    assert verify(path, small).sound
    content = path.read_text()
    assert "secretword" not in content and "hush" not in content and "other" not in content
    _, sealed = opened(path)[0]
    assert sealed is not None and sealed["request"]["arguments"]["prompt"] == "secretword = "
    assert json.loads(sealed["options"])["stop"] == ["hush"]


def test_refusals_and_failures_are_recorded_and_raised(
    small: Model, signing: SigningKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.jsonl"
    with Recorder(str(path), small, signing) as recorder:
        with pytest.raises(InputError):
            recorder.generate(PROMPT, 4, temperature=-1.0)
        with pytest.raises(UnsupportedError, match="scorer"):
            recorder.generate(PROMPT, 4, scorer=lambda canvas, positions, logits: logits)
        monkeypatch.setattr("daguerre.audit.recorder.driven", lambda *plan: [1 / 0])
        with pytest.raises(ZeroDivisionError):
            recorder.generate(PROMPT, 4)

    assert [clear["kind"] for clear, _ in opened(path)] == ["refusal", "refusal", "failure"]
    assert [clear["error"] for clear, _ in opened(path)] == ["InputError", "UnsupportedError", "ZeroDivisionError"]
    assert verify(path, small).sound


def test_a_result_that_cannot_be_recorded_is_not_released(
    small: Model, signing: SigningKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Recorder(str(tmp_path / "audit.jsonl"), small, signing) as recorder:
        monkeypatch.setattr(Ledger, "append", lambda *given: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            recorder.generate(PROMPT, 4)


def test_modes_whose_law_a_trace_does_not_give_are_recorded_and_said(
    named: Any, signing: SigningKey, tmp_path: Path
) -> None:
    path, model = tmp_path / "audit.jsonl", named(context="full", shift=False)
    with Recorder(str(path), model, signing) as recorder:
        recorder.generate(PROMPT, 8, mode="ancestral", steps=4)
        recorder.generate(PROMPT, 8, mode="block", cache="approximate_dual")
        recorder.generate(PROMPT, 8, mode="block", draft=" == 1")

    report = verify(path, model)

    assert report.sound and report.num_replayed == 0
    assert ["ancestral" in report.records[0].status, "out of date" in report.records[1].status] == [True, True]
    assert "draft" in report.records[2].status


def test_a_hidden_channel_between_forwards_is_said(named: Any, signing: SigningKey, tmp_path: Path) -> None:
    path, model = tmp_path / "audit.jsonl", named(**GEMMA, concepts=None)
    with Recorder(path, model, signing) as recorder:
        recorder.generate(PROMPT, 6, mode="renoise", steps=4)

    report, ((clear, _),) = verify(path, model), opened(path)

    assert report.sound and "renoise" in report.records[0].status
    assert clear["between_forwards"]["hidden"] is True
    assert clear["between_forwards"]["channel"] == "tokens and self-conditioning"


def test_what_the_deployment_says_and_what_overlaps_are_in_the_record(
    small: Model, signing: SigningKey, tmp_path: Path
) -> None:
    path, asked = tmp_path / "audit.jsonl", list[str]()

    def overlap(text: str) -> dict[str, Any]:
        asked.append(text)
        return {"longest": 3}

    with Recorder(str(path), small, signing, subject={"system": "ide"}, overlap=overlap) as recorder:
        result = recorder.generate(PROMPT, 4, subject={"request": "17"})
        with pytest.raises(InputError, match="subject"):
            recorder.generate(PROMPT, 4, subject={"request": 17})

    ((clear, sealed),) = opened(path)
    assert sealed is not None
    assert clear["subject"] == {"system": "ide", "request": "17"}
    assert (sealed["overlap"], asked) == ({"longest": 3}, [result.text])


def test_the_tolerance_is_that_of_the_coarser_computation(small: Model) -> None:
    here = software_facts(small) | {"backend": "native", "dtype": "float32"}
    assert tolerance_of(here, here) is EXACT
    assert tolerance_of(here, here | {"instruction_set": "another"}) is SINGLE
    assert tolerance_of(here | {"backend": "torch"}, here) is SINGLE
    assert tolerance_of(here | {"dtype": "bfloat16"}, here | {"dtype": "bfloat16", "backend": "torch"}) is HALF
    assert tolerance_of(here | {"quantize": "int8"}, here | {"quantize": "int8", "machine": "other"}) is HALF
