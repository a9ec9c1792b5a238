"""Weights in several files: the round trip, what damages them, and what a save leaves of an earlier one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from daguerre.errors import CheckpointError
from daguerre.model import Model
from daguerre.models import own_layout
from daguerre.models.loading import load_model, save_model
from daguerre.models.weights import INDEX, WEIGHTS, sha256_of

FEW = 20_000
"""Bytes of a file: several tensors go into one, and the embedding has one to itself."""


@pytest.fixture(scope="module")
def full(models: dict[str, Model]) -> Model:
    return models["full"]


@pytest.fixture
def folder(causal: Model, tmp_path: Path) -> Path:
    return save_model(tmp_path / "model", causal.backbone, causal.tokenizer, torch.float32, shard_bytes=FEW)


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("model-*.safetensors"))


def same_weights(model: Model, folder: Path) -> bool:
    backbone, _ = load_model(folder)
    want, got = model.backbone.state_dict(), backbone.state_dict()
    return want.keys() == got.keys() and all(torch.equal(want[name], got[name]) for name in want)


def test_several_files_load_as_one(causal: Model, folder: Path) -> None:
    assert len(shards(folder)) > 3
    assert not (folder / WEIGHTS).exists()
    index = json.loads((folder / INDEX).read_text())
    assert {*index["weight_map"].values()} == {path.name for path in shards(folder)}
    assert index["metadata"]["total_size"] == 4 * sum(w.numel() for w in causal.backbone.state_dict().values())
    assert same_weights(causal, folder)


@pytest.mark.parametrize("shard_bytes", [FEW, 2 * FEW, 1 << 30])
def test_a_save_replaces_what_another_wrote(causal: Model, full: Model, folder: Path, shard_bytes: int) -> None:
    before = {path.name for path in folder.iterdir()}
    (folder / "notes.txt").write_text("left alone")
    save_model(folder, full.backbone, full.tokenizer, torch.float32, shard_bytes=shard_bytes)
    assert same_weights(full, folder)
    left = {path.name for path in folder.iterdir()} - before
    assert (folder / "notes.txt").exists()
    assert (folder / WEIGHTS).exists() == (shard_bytes == 1 << 30) == (not shards(folder))
    assert not left & before
    save_model(folder, causal.backbone, causal.tokenizer, torch.float32, shard_bytes=FEW)
    assert {path.name for path in folder.iterdir()} == before | {"notes.txt"}


@pytest.mark.parametrize("shard_bytes", [FEW, 1 << 30])
@pytest.mark.parametrize("num_renames", [0, 1, 2, 3])
def test_a_save_that_is_cut_off_leaves_one_whole_model(
    causal: Model,
    full: Model,
    folder: Path,
    shard_bytes: int,
    num_renames: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Cut(Exception):
        pass

    real, done = Path.replace, list[str]()

    def replace(self: Path, target: Path) -> Path:
        if len(done) == num_renames:
            raise Cut
        done.append(target.name)
        return real(self, target)

    monkeypatch.setattr(own_layout, "remove_other_weights", lambda *_: (_ for _ in ()).throw(Cut))
    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(Cut):
        save_model(folder, full.backbone, full.tokenizer, torch.float32, shard_bytes=shard_bytes)
    monkeypatch.undo()
    assert same_weights(full if num_renames else causal, folder)
    save_model(folder, causal.backbone, causal.tokenizer, torch.float32, shard_bytes=FEW)
    assert same_weights(causal, folder)


def change_index(folder: Path, change: Callable[[dict[str, dict[str, str]]], object]) -> None:
    """Change an index, and make config.json agree with it."""
    index = json.loads((folder / INDEX).read_text())
    change(index)
    (folder / INDEX).write_text(json.dumps(index))
    values = json.loads((folder / "config.json").read_text())
    values["weights_sha256"] = sha256_of(folder / INDEX)
    (folder / "config.json").write_text(json.dumps(values))


def flip_a_byte(folder: Path) -> None:
    content = bytearray(shards(folder)[1].read_bytes())
    content[-1] ^= 1
    shards(folder)[1].write_bytes(content)


DAMAGE: list[tuple[Callable[[Path], object], str]] = [
    (flip_a_byte, "is truncated or altered"),
    (lambda f: shards(f)[2].unlink(), "cannot read .* which model.safetensors.index.json lists"),
    (lambda f: (f / INDEX).write_text("{}"), "truncated or altered"),
    (lambda f: (f / INDEX).unlink(), "No such file"),
    (lambda f: change_index(f, lambda index: index.pop("weight_map")), "not an index of weights"),
    (lambda f: change_index(f, lambda index: index["weight_map"].update(x="../x")), "not a file in this folder"),
]


def test_damage_is_named_in_one_line(folder: Path, tmp_path: Path, subtests: pytest.Subtests) -> None:
    for number, (damage, message) in enumerate(DAMAGE):
        with subtests.test(message):
            copy = Path(shutil.copytree(folder, tmp_path / str(number)))
            damage(copy)
            with pytest.raises(CheckpointError, match=message) as error:
                load_model(copy)
            assert "\n" not in str(error.value)
