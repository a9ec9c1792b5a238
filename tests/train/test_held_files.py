"""What a run says of a user's held-out files, its forecast, its live line, the recipe `tiny`, and the page of keys."""

from __future__ import annotations

import importlib.util
import json
import lzma
import math
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import daguerre
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.batch import batch_loss
from daguerre.train.held_files import (
    FileBits,
    HeldFiles,
    change_line,
    held_files,
    load_before,
    save_before,
    score_files,
)
from daguerre.train.recipe import load_recipe
from daguerre.train.run import run_training
from daguerre.train.shards import Shard, write_shards
from daguerre.train.user_folder import UserFolder

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(30):
        lines = [f"def value_{number}_{j}(value):\n    return value + {j * number}\n" for j in range(12)]
        (folder / f"m{number}.py").write_text("\n\n".join(lines))
    return folder


def test_held_out_files_are_named_and_are_none_that_is_trained_on(
    source: Path, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    UserFolder(source).write(tmp_path / "data", tokenizer)
    train, val = (Shard.open(tmp_path / "data", split) for split in ("train", "val"))
    listed = [json.loads(line) for line in (tmp_path / "data" / "manifest.jsonl").read_text().splitlines()]
    names = {split: [each["file"] for each in listed if each["split"] == split] for split in ("train", "val")}
    found = held_files(val)

    assert names["train"] and names["val"] and not set(names["train"]) & set(names["val"])
    assert len(names["train"]) + len(names["val"]) == 30
    assert [Path(file.name).name for file in found] == [Path(name).name for name in names["val"]]
    for file in found:
        text = (source / Path(file.name).name).read_text()
        assert tokenizer.decode(file.tokens) == text
        assert file.num_bytes == len(text.encode())
    trained = {tuple(train.document(index).tolist()) for index in range(train.num_documents)}
    assert not trained & {file.tokens for file in found}
    assert len(held_files(val, most_tokens=1)) == 1


def test_the_figure_is_that_of_the_score(source: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    model = daguerre.load(backend="torch")
    text = (source / "m3.py").read_text() * 6  # longer than the context
    write_shards(tmp_path / "data", {"train": ["x = 1\n"], "val": [text, "y = 2\n"]}, tokenizer)
    files = held_files(Shard.open(tmp_path / "data", "val"))
    bits = score_files(model.backbone, files)

    expected = [model.nll(each).value / math.log(2) for each in (text, "y = 2\n")]
    assert bits.bits == pytest.approx(expected, rel=1e-4)
    assert bits.value == pytest.approx(sum(expected) / len((text + "y = 2\n").encode()), rel=1e-4)


def test_the_change_has_its_error_and_says_when_it_is_worse(tmp_path: Path) -> None:
    before, after = FileBits((100.0, 300.0, 50.0), (100, 200, 50)), FileBits((80.0, 280.0, 52.0), (100, 200, 50))
    difference = np.array(after.bits) - np.array(before.bits)
    change = after.value - before.value
    rest = difference - change * np.array(after.num_bytes)
    error = math.sqrt(3 / 2 * float((rest**2).sum())) / 350

    assert f"1.286 bits a byte before, 1.177 after ({change:+.3f} ± {error:.3f}), 2 of 3 files better: better" in (
        change_line(before, after)
    )
    assert "WORSE" in change_line(after, before)
    assert "±" not in change_line(FileBits((1.0,), (1,)), FileBits((0.5,), (1,)))
    save_before(tmp_path, before)
    assert load_before(tmp_path) == before
    (tmp_path / "held_files.json").write_text("{")
    assert load_before(tmp_path) is None


def test_a_compressor_that_knows_the_training_text(tmp_path: Path, tokenizer: Tokenizer) -> None:
    known, text = "def f(a):\n    return a + 1\n" * 40, "def g(b):\n    return b * 2\n"
    write_shards(tmp_path / "data", {"train": [known], "val": [text]}, tokenizer)
    train, val = (Shard.open(tmp_path / "data", split) for split in ("train", "val"))
    held = HeldFiles(train, val, tokenizer, daguerre.load().config, tmp_path)
    alone = len(lzma.compress(known.encode(), preset=6))

    expected = 8 * (len(lzma.compress((known + text).encode(), preset=6)) - alone) / len(text)
    assert held._compressed() == pytest.approx(expected)


def test_a_run_says_what_its_budget_buys_and_what_it_brought(
    source: Path, start: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["precision=float32", "stages.0.length=64", "stages.0.sequences=2", "steps=4"]
    how: dict[str, Any] = {"data": source, "overrides": small, "device": "cpu", "max_minutes": 5.0}
    run_training(None, start_from=start, out=tmp_path / "run", **how)
    printed = capsys.readouterr().err
    order = ("held out, never trained on: ", "before training: ", " tokens a second: ", "held-out files: ")
    places = [printed.index(words) for words in order]

    assert places == sorted(places)
    assert "minutes buy about" in printed and "passes" in printed
    assert "bits a byte before" in printed


def test_the_forecast_changes_no_weights(
    source: Path, start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from daguerre.train import figures, pretraining, trainer

    small = ["precision=float32", "stages.0.length=32", "stages.0.sequences=1", "steps=2"]
    how: dict[str, Any] = {"data": source, "overrides": small, "device": "cpu", "quiet": True, "clock": lambda: 0.0}
    calls: list[int] = []
    monkeypatch.setattr(pretraining, "batch_loss", lambda *args: calls.append(1) or batch_loss(*args))
    for other in ("measure", "score_files"):  # which take long, and have tests of their own
        monkeypatch.setattr(figures.HeldFigures, other, lambda *args: None)
    first = run_training(None, start_from=start, out=tmp_path / "a", max_minutes=60.0, **how)
    monkeypatch.setattr(trainer.Trainer, "_forecast", lambda self: None)
    measured = len(calls)
    second = run_training(None, start_from=start, out=tmp_path / "b", max_minutes=60.0, **how)

    assert measured > len(calls) - measured
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()


def test_the_tiny_recipe_makes_a_model_that_writes(source: Path, tmp_path: Path) -> None:
    assert load_recipe("tiny").minutes == 2.0
    short = ["steps=3", "minutes=0.0", "precision=float32", "stages.0.sequences=2"]
    folder = run_training("tiny", data=source, out=tmp_path / "run", overrides=short, quiet=True, device="cpu")
    model = daguerre.load(folder)

    assert model.backbone.num_parameters < 1_100_000
    assert len(model.generate("def ", 5, stop_loops=False).tokens) == 5
    assert model.infill("def f(a):\n", "\n", 4, mode="block").usage.mode == "block"


def test_every_key_of_a_recipe_has_a_meaning_and_the_page_is_made_of_them() -> None:
    spec = importlib.util.spec_from_file_location("write_recipes", DOCS / "write_recipes.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    text = (DOCS / "recipes.md").read_text(encoding="utf-8")

    assert script.written(text) == text
    lists = re.split(r"^## .*$", text, flags=re.MULTILINE)[1:]
    assert len(lists) == len(script.SECTIONS)
    for (*_, section), keys_of in zip(script.SECTIONS, lists, strict=True):
        keys, said = section.keys(), " ".join(keys_of.split())
        assert (
            list(keys) == [each.name for each in fields(section)] == re.findall(r"^\* `(\w+)`", keys_of, re.MULTILINE)
        )
        assert all(key.meaning in said for key in keys.values())
