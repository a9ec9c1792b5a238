"""What records say beside their tokens: shares, alerts, inputs, the model's history, and what became of a record."""

from __future__ import annotations

import hashlib
import importlib.metadata
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import daguerre
from daguerre.audit.evidence import EXACT, Unexplained
from daguerre.audit.facts import packages_hash, source_hash, training_facts
from daguerre.audit.keys import SigningKey
from daguerre.audit.ledger import Ledger, changed, last_of
from daguerre.audit.recorder import Recorder
from daguerre.audit.summary import Alerts, concept_summary, input_attribution
from daguerre.audit.trial import Records, forge, opened
from daguerre.audit.verification import verify
from daguerre.errors import InputError, UnsupportedError
from daguerre.model import Model
from daguerre.models.catalog import Catalog, NamedConcept
from daguerre.models.loading import save_model
from daguerre.overlap.build import write_index
from daguerre.overlap.index import Overlap

PROMPT = "def fib(n):\n    if n"
EXPLAINED: dict[str, Any] = {"mode": "block", "temperature": 0.7, "explain": True}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture(scope="module")
def risky(small: Model) -> Model:
    """A model that names two concepts, one of the group of risks."""
    concepts = NamedConcept(number=1, name="loop", group="control"), NamedConcept(number=2, name="eval", group="risk")
    return Model(small.backbone, small.tokenizer, "torch", concepts=Catalog(concepts, 12, 24))


def test_shares_are_those_of_the_explanation(small: Model, signing: SigningKey, path: Path) -> None:
    with Recorder(path, small, signing) as recorder:
        result = recorder.generate(PROMPT, 8, **EXPLAINED)

    ((clear, _),) = opened(path)
    shares, expected = clear["concepts"]["shares"], result.concepts.shares  # type: ignore[union-attr]
    assert sum(shares.values()) == pytest.approx(1, abs=1e-6)
    assert shares["known"] == pytest.approx(expected.known, rel=1e-5)
    assert shares["known"] + shares["discovered"] == pytest.approx(expected.aggregated, rel=1e-5)


def test_shares_of_a_written_example() -> None:
    rules = {"watched": {"a": 1, "b": 2}, "weight": 0.5, "coverage": 0.7}
    step = {
        "known": [2.0, None, 0.0],
        "discovered": [-1.0, None, 3.0],
        "residual": [1.0, None, -1.0],
        "concepts": [[1, 2, 9], [], [1]],
        "weights": [[0.5, 0.4999999, 0.9], [], [0.75]],
    }
    found = concept_summary(rules, [None, step, {"logit": [None]}])
    assert found["shares"] == {"known": 0.25, "discovered": 0.5, "residual": 0.25}
    assert found["alerts"] == [{"concept": "a", "tokens": 2, "most": 0.75}]
    assert found["unexplained"] is False
    assert concept_summary(rules | {"coverage": 0.76}, [step])["unexplained"] is True
    assert concept_summary(rules, [None]) == {"shares": None, "alerts": [], "unexplained": None}


def test_the_unexplained_share_is_that_of_the_residuals(small: Model) -> None:
    heads, width = small.backbone.concepts, small.config.width
    assert heads is not None
    hidden = np.random.default_rng(0).normal(size=(5, width)).astype(np.float32)
    evidence = np.concatenate([np.ones((5, 1), np.float32), hidden], axis=1)[:, None]

    found = Unexplained.of(small.denoiser.heads, evidence)

    weights = heads.weights(torch.from_numpy(hidden)).double()
    vectors = heads.vectors(torch.arange(weights.shape[1])).double()
    rest = hidden - (weights @ vectors).numpy()
    expected = (rest**2).sum() / ((hidden - hidden.mean(axis=0)) ** 2).sum()
    assert found.share == pytest.approx(expected, rel=1e-5)
    assert not found.differs(found.share, [0.0] * 5, EXACT)
    assert found.differs(expected * 1.001, [0.0] * 5, EXACT)
    assert not found.differs(expected * 1.001, [found.sizes.max()] * 5, EXACT)
    assert found.differs(None, [0.0] * 5, EXACT)
    for none in (evidence[:1], np.concatenate([evidence, evidence], axis=1)):
        assert Unexplained.of(small.denoiser.heads, none).share is None


def test_concepts_of_risk_are_watched_unless_others_are_named(risky: Model, signing: SigningKey, path: Path) -> None:
    with Recorder(path, risky, signing) as recorder:
        recorder.generate(PROMPT, 2)
    with Recorder(path, risky, signing, alerts=Alerts(concepts=("loop", "known 3"), weight=1e-6)) as recorder:
        recorder.generate(PROMPT, 12, mode="block")

    (first, _), (second, sealed) = opened(path)
    assert first["concepts"]["watched"] == {"eval": 2}
    assert second["concepts"]["watched"] == {"loop": 1, "known 3": 3}
    assert sealed is not None
    listed = [
        (concept, weight)
        for step in sealed["evidence"]
        for concepts, weights in zip(step["concepts"], step["weights"], strict=True)
        for concept, weight in zip(concepts, weights, strict=True)
    ]
    told = {one["concept"]: (one["tokens"], one["most"]) for one in second["concepts"]["alerts"]}
    assert told
    for name, number in second["concepts"]["watched"].items():
        weights = [weight for concept, weight in listed if concept == number]
        assert told.get(name) == ((len(weights), max(weights)) if weights else None)
    assert verify(path, risky).sound


def test_alerts_that_cannot_be_raised_are_refused(small: Model, named: Any, signing: SigningKey, path: Path) -> None:
    wrong: tuple[dict[str, Any], ...] = ({"weight": 0.0}, {"weight": math.inf}, {"coverage": 1.5}, {"coverage": "all"})
    for values in wrong:
        with pytest.raises(InputError, match="alerts need"):
            Alerts(**values)
    with pytest.raises(InputError, match="unknown concept"):
        Recorder(path, small, signing, alerts=Alerts(concepts=("no such",)))
    with pytest.raises(UnsupportedError, match="no concept heads"):
        Recorder(path, named(concepts=None), signing, alerts=Alerts())
    assert not path.exists()


def test_inputs_that_mattered_are_in_the_record(small: Model, signing: SigningKey, path: Path) -> None:
    with Recorder(path, small, signing, inputs=input_attribution(small, token=1, num_steps=2)) as recorder:
        result = recorder.generate(PROMPT, 3, **EXPLAINED)
        recorder.generate(PROMPT, 1, **EXPLAINED)
        with pytest.raises(InputError, match="explain=True"):
            recorder.generate(PROMPT, 3)

    (_, first), (_, second), (failed, _) = opened(path)
    assert first is not None and second is not None
    expected = small.attribute(result, 1, 2)
    said = first["inputs"]
    assert (said["steps"], said["token"], said["position"]) == (2, 1, expected.position)
    assert said["completeness_error"] == pytest.approx(expected.error, rel=1e-5)
    assert [tuple(one[:2]) for one in said["top"]] == [(at, word) for at, word, _ in expected.top()]
    assert "there is no token 1" in second["inputs"]["why_not"]
    assert failed["kind"] == "failure"
    assert verify(path, small).sound


def test_documents_that_an_output_stands_in_are_in_the_record(
    small: Model, signing: SigningKey, path: Path, tmp_path: Path
) -> None:
    text = small.generate(PROMPT, 8).text
    about = {"package": "p", "version": "1", "license": "MIT", "file": "a.py"}
    corpus = {"sha256": "one", "bytes": 1}
    write_index(tmp_path / "index", [(f"x = 1\n{text}".encode(), about), (b"another text", about)], corpus)
    overlap = Overlap.open(tmp_path / "index")

    with Recorder(path, small, signing, overlap=partial(overlap.summary, min_length=5)) as recorder:
        recorder.generate(PROMPT, 8)

    ((_, sealed),) = opened(path)
    assert sealed is not None
    (match,) = sealed["overlap"]["matches"]
    assert (match["start"], match["end"]) == (0, len(text))
    assert match["sources"] == [{"document": 0, **about, "line": 2}]
    assert sealed["overlap"]["index_sha256"] == overlap.sha256
    assert verify(path, small).sound


def test_a_change_of_the_model_is_a_record(named: Any, signing: SigningKey, path: Path) -> None:
    one, other = named(), named(seed=1)
    for model, name in ((one, "a"), (one, "b"), (other, "b"), (other, "b")):
        with Recorder(path, model, signing, name=name) as recorder:
            recorder.generate(PROMPT, 2)

    records = [clear for clear, _ in opened(path)]
    assert [record["kind"] for record in records] == ["generation"] * 2 + ["change"] + ["generation"] * 2
    assert records[2]["changed"] == ["concepts_sha256", "weights_sha256"]
    assert (records[2]["before"], records[2]["model"]) == (records[1]["model"], records[3]["model"])
    by_hash = {records[number]["model"]["weights_sha256"]: model for number, model in ((0, one), (4, other))}
    assert verify(path, lambda record: by_hash[record["model"]["weights_sha256"]]).num_replayed == 4
    assert verify(path).sound

    kept = path.read_bytes()

    def silent(records: Records) -> None:
        del records[2]

    def other_change(records: Records) -> None:
        records[2][0]["changed"] = ["weights_sha256"]

    for edit in (silent, other_change):
        path.write_bytes(kept)
        forge(path, signing, edit)
        assert any("change" in problem for problem in verify(path).complaints())


def test_facts_of_a_model_differ_by_all_but_its_name() -> None:
    assert changed({"name": "a", "training": 1, "x": 1}, {"name": "b", "training": 2, "x": 1}) == []
    assert changed({"name": "a", "x": 1}, {"name": "a", "x": 2, "y": 1}) == ["x", "y"]


def test_what_became_of_a_record_refers_to_it(small: Model, signing: SigningKey, path: Path) -> None:
    with Recorder(path, small, signing) as recorder:
        recorder.generate(PROMPT, 2, n=2, temperature=1.0)
        first, second = recorder.records
        ledger = recorder.ledger
        ledger.follow_up(second, "decision", {"decision": "d-1", "adverse": "no"})
        note = ledger.follow_up(first, "review", note="by a person")
        with pytest.raises(InputError, match="did you mean 'review'"):
            ledger.follow_up(first, "reviw")
        with pytest.raises(InputError, match="has no record"):
            ledger.follow_up("0" * 36, "review")
        with pytest.raises(InputError, match="facts must map"):
            ledger.follow_up(first, "review", {"by": 3})  # type: ignore[dict-item]

    records = opened(path)
    assert [clear["id"] for clear, _ in records[:2]] == [first, second]
    assert records[2][0]["facts"] == {"decision": "d-1", "adverse": "no"}
    assert [clear.get("of") for clear, _ in records] == [None, None, second, first]
    assert (records[2][1], records[3][1]) == (None, {"note": "by a person"})
    with Ledger(path, signing) as again:
        again.erase(note, "asked for")
    assert verify(path, small).sound
    assert opened(path)[3][1] is None


def test_what_refers_to_no_earlier_record_is_found(signing: SigningKey, path: Path) -> None:
    torn = {"bytes": 1, "sha256": "0" * 64, "file": "elsewhere"}
    with Ledger(path, signing) as ledger:
        record = ledger.append("repair", {"torn": torn})
        ledger.follow_up(record, "incident")
        ledger.append("repair", {"torn": torn})
    assert verify(path).sound

    for of in ("0" * 36, opened(path)[2][0]["id"]):
        forge(path, signing, lambda records, of=of: records[1][0].update(of=of))
        assert [bool(record.problems) for record in verify(path).records] == [False, True, False]


def test_the_head_is_the_last_record(recorded: Path, tmp_path: Path, signing: SigningKey) -> None:
    assert last_of(recorded) == (verify(recorded).head, 20)
    with Ledger(tmp_path / "empty", signing):
        assert last_of(tmp_path / "empty") == ("0" * 64, 0)


def test_what_a_folder_says_of_the_training_is_in_the_record(named: Any, tmp_path: Path) -> None:
    model, none = named(), dict.fromkeys(("run", "data_sha256", "recipe", "tokens"))
    said = {"run": "r-1", "data_sha256": "0" * 64, "recipe": "small", "trained": {"tokens": 17}}
    for extra, expected in ((said, {**said, "tokens": 17}), ({"recipe": 3, "trained": "x"}, none), (None, none)):
        save_model(tmp_path, model.backbone, model.tokenizer, extra=extra)
        assert training_facts(str(tmp_path)) == {name: expected[name] for name in none}
    for name in (None, str(tmp_path / "nowhere"), "owner/repository"):
        assert training_facts(name) == none


def test_software_is_told_by_the_hashes_of_its_files_and_packages() -> None:
    root, lines = Path(daguerre.__file__).parent, list[str]()
    names = sorted(one.relative_to(root).as_posix() for one in root.rglob("*") if one.suffix in (".py", ".cpp", ".h"))
    for name in names:
        lines.append(f"{hashlib.sha256((root / name).read_bytes()).hexdigest()}  {name}\n")
    assert source_hash() == hashlib.sha256("".join(lines).encode()).hexdigest()
    found = {f"{one.metadata['Name']}=={one.version}".lower() for one in importlib.metadata.distributions()}
    assert packages_hash() == hashlib.sha256("".join(f"{one}\n" for one in sorted(found)).encode()).hexdigest()
