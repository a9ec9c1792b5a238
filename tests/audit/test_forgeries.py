"""Every kind of tampering is found: by a stranger, by the owner of the key, and with another model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from daguerre.audit.facts import weights_hashes
from daguerre.audit.keys import SigningKey
from daguerre.audit.ledger import lines, record_keys
from daguerre.audit.recorder import Recorder
from daguerre.audit.summary import Alerts
from daguerre.audit.trial import CHANGES, Records, copied, forge, forged_number, num_caught, tampered
from daguerre.audit.verification import verify
from daguerre.model import Model

PROMPT = "def fib(n):\n    if n"
WATCHFUL = Alerts(concepts=tuple(range(8)), weight=0.01)
"""Alerts that most texts raise."""
STEER = [
    {"kind": "add", "concepts": [1], "strength": 3.0},
    {"kind": "suppress", "concepts": [2, 14]},
    {"kind": "forbid", "concepts": [5], "schedule": "fade"},
]


def edited(where: str, change: Callable[[dict[str, Any]], None]) -> Callable[[Records], None]:
    """An edit of the last record: of what is in the "clear", or what is "sealed"."""

    def edit(records: Records) -> None:
        clear, content = records[-1]
        assert content is not None
        change(clear if where == "clear" else content)

    return edit


def first_step(content: dict[str, Any], name: str) -> list[Any]:
    """A column of the first step that has evidence, of its trace or of the evidence itself."""
    number = next(number for number, step in enumerate(content["evidence"]) if step is not None)
    of_trace: dict[str, list[Any]] = content["trace"]["steps"][number]
    return of_trace[name] if name in of_trace else content["evidence"][number][name]


def add(name: str, by: float) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        column = first_step(content, name)
        column = column[0] if isinstance(column[0], list) else column
        column[0] += by

    return change


def moved_to_residual(content: dict[str, Any]) -> None:
    """A contribution that is hidden in the residual, so that the sum is right."""
    first_step(content, "known")[0] -= 1.0
    first_step(content, "residual")[0] += 1.0


def unlisted(content: dict[str, Any]) -> None:
    for name in ("concepts", "weights", "contributions"):
        del first_step(content, name)[0][0]


def silent(content: dict[str, Any]) -> None:
    number = next(number for number, step in enumerate(content["evidence"]) if step is not None)
    content["evidence"][number] = None


def other_text(content: dict[str, Any]) -> None:
    content["output"] = {"text": "harmless", "texts": ["harmless"]}


FORGERIES = {
    "a token": edited("sealed", add("tokens", 1)),
    "a probability": edited("sealed", lambda content: first_step(content, "probabilities").__setitem__(0, 0.123)),
    "a logit": edited("sealed", add("logit", 0.5)),
    "a weight": edited("sealed", add("weights", 0.1)),
    "a contribution": edited("sealed", add("contributions", 0.5)),
    "a concept's number": edited("sealed", add("concepts", 1)),
    "a sum of contributions": edited("sealed", add("known", 0.5)),
    "the residual": edited("sealed", add("residual", 0.5)),
    "a contribution moved to the residual": edited("sealed", moved_to_residual),
    "a concept left out": edited("sealed", unlisted),
    "evidence left out": edited("sealed", silent),
    "the prompt": edited(
        "sealed", lambda content: content["request"]["arguments"].update(prompt="def f(n):\n    if n")
    ),
    "the output": edited("sealed", other_text),
    "the weights' hash": edited("clear", lambda record: record["model"].update(weights_sha256="0" * 64)),
    "the concepts' hash": edited("clear", lambda record: record["model"].update(concepts_sha256="0" * 64)),
    "what passed between forwards": edited("clear", lambda record: record["between_forwards"].update(hidden=True)),
    "what the validators say": edited("clear", lambda record: record["validators"].update(parses_as_python=True)),
    "how much is explained": edited("clear", lambda record: record["evidence"].update(explained=0)),
    "a steering program": edited("clear", lambda record: record["controls"].update(steer=STEER)),
    "the unexplained share": edited("clear", lambda record: record["concepts"].update(fvu=0.5)),
    "that there is an unexplained share": edited("clear", lambda record: record["concepts"].update(fvu=None)),
    "the name of a watched concept": edited("clear", lambda record: record["concepts"].update(watched={"harmless": 1})),
    "that its model has concepts": edited("clear", lambda record: record.update(concepts=None)),
}
WITHOUT_A_MODEL = {
    "the shares": edited("clear", lambda record: record["concepts"]["shares"].update(known=0.5, residual=0.25)),
    "an alert": edited("clear", lambda record: record["concepts"]["alerts"].pop()),
    "that a text is explained": edited("clear", lambda record: record["concepts"].update(unexplained=None)),
    "the length of the output": edited("clear", lambda record: record["output"].update(characters=0)),
    "the hash of the input": edited("clear", lambda record: record["input"].update(sha256="0" * 64)),
    "the hash of the output": edited("clear", lambda record: record["output"].update(sha256="0" * 64)),
}


@pytest.fixture(scope="module")
def few(small: Model, signing: SigningKey, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger of five generations, which nobody writes to."""
    path = tmp_path_factory.mktemp("few") / "audit.jsonl"
    with Recorder(str(path), small, signing, name="small", alerts=WATCHFUL) as recorder:
        for seed in range(15, 20):
            recorder.generate(PROMPT, 4, temperature=1.0, seed=seed)
    return path


def test_the_owner_of_the_key_cannot_change(
    subtests: pytest.Subtests, few: Path, small: Model, signing: SigningKey, tmp_path: Path
) -> None:
    path = copied(few, tmp_path)
    forge(path, signing, lambda records: None)
    assert verify(path, small).sound

    for what, edit in FORGERIES.items():
        with subtests.test(what):
            forge(copied(few, tmp_path), signing, edit)

            report = verify(path, small)
            assert [bool(record.problems) for record in report.records] == [False] * 4 + [True]
            assert not report.problems  # the chain, the signatures and the head are as good as before


def test_whoever_can_open_a_record_finds_a_change_of(
    subtests: pytest.Subtests, few: Path, signing: SigningKey, tmp_path: Path
) -> None:
    for what, edit in WITHOUT_A_MODEL.items():
        with subtests.test(what):
            path = copied(few, tmp_path)
            forge(path, signing, edit)

            assert [bool(record.problems) for record in verify(path).records] == [False] * 4 + [True]
            record_keys(path).path.unlink()
            assert verify(path).sound


def test_drawn_tokens_are_not_taken_for_the_likeliest_ones(
    few: Path, small: Model, signing: SigningKey, tmp_path: Path
) -> None:
    path = copied(few, tmp_path)
    forge(path, signing, lambda records: [clear["decoding"].update(temperature=0) for clear, _ in records] and None)

    problems = [problem for record in verify(path, small).records for problem in record.problems]
    assert problems
    assert all("another token is likelier" in problem for problem in problems)


def test_steered_runs_are_replayed_with_their_program(small: Model, signing: SigningKey, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with Recorder(path, small, signing) as recorder:
        recorder.generate("def fib(n):\n    if n", 12, steer=STEER, temperature=0.5)
    assert verify(path, small).sound

    forge(path, signing, edited("clear", lambda record: record["controls"]["steer"][0].update(strength=4.0)))

    assert not verify(path, small).sound


def test_a_number_forged_at_random_is_found(
    subtests: pytest.Subtests, few: Path, small: Model, signing: SigningKey, tmp_path: Path
) -> None:
    for seed in range(5):
        with subtests.test(seed=seed):
            path, random = copied(few, tmp_path), np.random.default_rng(seed)

            forge(path, signing, lambda records, random=random: forged_number(records, random))  # type: ignore[misc]

            assert not verify(path, small).sound


def test_random_tampering_is_found_without_a_model(few: Path) -> None:
    assert num_caught(few, 100, seed=1) == 100


def test_each_kind_of_tampering_changes_the_content() -> None:
    random, content = np.random.default_rng(0), b'{"a":1}\n{"b":2}\n{"c":3}\n'
    for change in CHANGES:
        assert any(change(content, random) != content for _ in range(20)), change
    assert tampered(content, random) != content


def test_reordered_dropped_and_doubled_records_are_found(few: Path, tmp_path: Path) -> None:
    rows = [line + b"\n" for line in lines(few)]
    changed = {
        "swapped": [rows[0], rows[2], rows[1], *rows[3:]],
        "the first dropped": rows[1:],
        "one dropped": [*rows[:2], *rows[3:]],
        "the last dropped": rows[:-1],
        "one doubled": [*rows[:3], rows[2], *rows[3:]],
    }
    for what, kept in changed.items():
        path = copied(few, tmp_path)
        path.write_bytes(b"".join(kept))
        assert not verify(path).sound, what


def test_another_model_and_altered_weights_are_found(few: Path, small: Model, named: Any) -> None:
    assert verify(few, small).sound
    altered = named()
    with torch.no_grad():
        altered.backbone.embedding.weight[300, 0] += 0.01

    for model, said in (
        (named(seed=1), "weights_sha256"),
        (altered, "weights_sha256"),
        (named(dtype="bfloat16"), "float32"),
    ):
        report = verify(few, model)
        assert all(any(said in problem for problem in record.problems) for record in report.records)
        assert report.num_replayed == 0


def test_altered_heads_are_told_from_altered_weights(small: Model, named: Any) -> None:
    altered = named()
    with torch.no_grad():
        altered.backbone.concepts.known_embedding.weight[0, 0] += 0.01
    (weights, heads), (same, other) = weights_hashes(small.denoiser.weights), weights_hashes(altered.denoiser.weights)
    assert weights == same and heads != other
