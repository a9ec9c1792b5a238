"""A model folder survives the round trip, and whatever is wrong with one is said in one line."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import daguerre
from daguerre.errors import CheckpointError, InputError
from daguerre.model import Model
from daguerre.models import loading
from daguerre.models.denoiser import auto_numbers
from daguerre.models.loading import load_model, model_folder, read_extra, save_model
from daguerre.models.processor import native_dtype
from daguerre.models.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def saved(causal: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "model"
    return save_model(folder, causal.backbone, causal.tokenizer, torch.float32, extra={"steps": 7})


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


def rehash(folder: Path, **changes: object) -> None:
    """Make config.json agree with the weights again, so that later checks are reached."""
    values = json.loads((folder / "config.json").read_text())
    values["weights_sha256"] = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    (folder / "config.json").write_text(json.dumps(values | changes))


def test_a_saved_model_loads_bit_for_bit_and_generates_the_same(causal: Model, saved: Path) -> None:
    model = daguerre.load(saved, dtype="float32")
    assert model.config == causal.config
    assert model.tokenizer == causal.tokenizer
    for (name, want), (other, got) in zip(
        causal.backbone.state_dict().items(), model.backbone.state_dict().items(), strict=True
    ):
        assert name == other
        assert torch.equal(want, got)
    assert model.generate("def f", 12).text == causal.generate("def f", 12).text
    assert read_extra(saved) == {"steps": 7}
    assert not list(saved.glob("*.tmp"))


def test_weights_are_stored_and_loaded_in_the_asked_precision(causal: Model, tmp_path: Path) -> None:
    save_model(tmp_path, causal.backbone, causal.tokenizer)
    assert {t.dtype for t in load_file(tmp_path / "model.safetensors").values()} == {torch.bfloat16}
    assert daguerre.load(tmp_path).numbers == auto_numbers()
    assert daguerre.load(tmp_path, backend="torch").dtype == native_dtype()
    backbone, _ = load_model(tmp_path, torch.bfloat16)
    assert backbone.embedding.weight.dtype == torch.bfloat16
    assert not backbone.embedding.weight.requires_grad
    assert daguerre.load(tmp_path).generate("x", 4).usage.completion_tokens > 0


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def truncate_and_rehash(folder: Path) -> None:
    truncate(folder)
    rehash(folder)


def flip_a_byte(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def drop_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["layers.1.mlp.down.weight"]
    save_file(tensors, folder / "model.safetensors")
    rehash(folder)


def add_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"surprise": torch.zeros(1)}, folder / "model.safetensors")
    rehash(folder)


def reshape_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"final_norm.weight": torch.ones(31)}, folder / "model.safetensors")
    rehash(folder)


def whole_numbers(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"final_norm.weight": torch.ones(32, dtype=torch.int8)}, folder / "model.safetensors")
    rehash(folder)


def other_vocabulary(folder: Path) -> None:
    Tokenizer.default("8k").save(folder / "tokenizer.json")


def config_of_another_vocabulary(folder: Path) -> None:
    rehash(folder, vocab_size=100)


def other_tokenizer_hash(folder: Path) -> None:
    rehash(folder, tokenizer_sha256="0" * 64)


def no_hash(folder: Path) -> None:
    values = json.loads((folder / "config.json").read_text())
    del values["weights_sha256"]
    (folder / "config.json").write_text(json.dumps(values))


DAMAGE: list[tuple[Callable[[Path], object], str]] = [
    (truncate, "truncated or altered"),
    (flip_a_byte, "truncated or altered"),
    (truncate_and_rehash, "cannot be read"),
    (drop_a_tensor, "lacks 1 tensors, first 'layers.1.mlp.down.weight'"),
    (add_a_tensor, "unexpected tensor 'surprise'"),
    (reshape_a_tensor, r"'final_norm.weight' has shape \(31,\)"),
    (whole_numbers, "not floating point"),
    (other_vocabulary, "8192 tokens and the model 2048"),
    (config_of_another_vocabulary, "2048 tokens and the model 100"),
    (other_tokenizer_hash, "not the vocabulary this model was trained with"),
    (no_hash, "no weights_sha256"),
    (lambda f: (f / "config.json").write_text("{"), "is not JSON"),
    (lambda f: (f / "config.json").write_text("[]"), "is not a JSON object"),
    (lambda f: rehash(f, widht=3), "did you mean 'width'"),
    (lambda f: rehash(f, num_heads=0), "an invalid value"),
    (lambda f: rehash(f, width="32"), "config.json"),
    (lambda f: (f / "config.json").unlink(), "No such file"),
    (lambda f: (f / "model.safetensors").unlink(), "No such file"),
    (lambda f: (f / "tokenizer.json").unlink(), "cannot read the tokenizer"),
    (lambda f: (f / "tokenizer.json").write_text("{}"), "not a tokenizer.json"),
]


def test_a_damaged_folder_is_refused_in_one_line(saved: Path, tmp_path: Path, subtests: pytest.Subtests) -> None:
    for number, (damage, message) in enumerate(DAMAGE):
        with subtests.test(message):
            folder = Path(shutil.copytree(saved, tmp_path / str(number)))
            damage(folder)
            with pytest.raises(CheckpointError, match=message) as caught:
                load_model(folder)
            assert "\n" not in str(caught.value)


@pytest.fixture
def newer(make_model: Callable[..., Model]) -> Model:
    """Other weights, and a vocabulary of the same size with two tokens exchanged."""
    model = make_model(seed=1)
    values = json.loads(model.tokenizer.to_bytes())
    words = values["model"]["vocab"]
    one, other = (next(word for word, index in words.items() if index == place) for place in (2000, 2001))
    words[one], words[other] = words[other], words[one]
    return Model(model.backbone, Tokenizer(json.dumps(values)))


def interrupt_rename(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Path.replace raises KeyboardInterrupt at its call number `at`, instead of renaming."""
    rename, left = Path.replace, iter(range(at))

    def replace(path: Path, target: Path) -> Path:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", replace)


@pytest.mark.parametrize("moment", range(4))
def test_an_interrupted_save_leaves_one_whole_model(
    folder: Path, causal: Model, newer: Model, moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped while writing, between its renames, or after: the old model or the new loads, never a mixture."""
    with monkeypatch.context() as patch:
        interrupt_rename(patch, moment)
        with pytest.raises(KeyboardInterrupt) if moment < 3 else nullcontext():
            save_model(folder, newer.backbone, newer.tokenizer, torch.float32)
    assert_is(folder, causal if moment == 0 else newer)


@pytest.mark.parametrize("moment", [1, 2])
def test_a_save_after_an_interrupted_one_does_not_lose_its_model(
    folder: Path, causal: Model, newer: Model, moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        interrupt_rename(patch, moment)
        with pytest.raises(KeyboardInterrupt):
            save_model(folder, newer.backbone, newer.tokenizer, torch.float32)
    with monkeypatch.context() as patch:
        interrupt_rename(patch, 3 - moment)  # after the first save's last renames, before the second's first
        with pytest.raises(KeyboardInterrupt):
            save_model(folder, causal.backbone, causal.tokenizer, torch.float32)
    assert_is(folder, newer)
    save_model(folder, causal.backbone, causal.tokenizer, torch.float32)
    assert_is(folder, causal)
    assert not list(folder.glob("*.tmp"))


def assert_is(folder: Path, model: Model) -> None:
    backbone, tokenizer = load_model(folder)
    assert torch.equal(backbone.embedding.weight, model.backbone.embedding.weight)
    assert tokenizer == model.tokenizer


def test_saving_refuses_a_tokenizer_of_another_vocabulary(causal: Model, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="8192 tokens and the model 2048"):
        save_model(tmp_path / "m", causal.backbone, Tokenizer.default("8k"))
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("given", "folder"), [([], "default"), (["default"], "default"), (["concepts"], "concepts-model")]
)
def test_a_model_of_the_package_is_loaded_by_its_name_or_said_to_be_missing(
    given: list[str], folder: str, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of that name in the working directory does not hide it."""
    monkeypatch.setattr(loading.resources, "files", lambda package: tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in given:
        (tmp_path / name).mkdir()
    with pytest.raises(CheckpointError, match=r"is not in this installation.*train a model and load its folder"):
        daguerre.load(*given)
    with pytest.raises(InputError, match="is for names on a hub"):
        daguerre.load(*given, revision="main")
    shutil.copytree(saved, tmp_path / "assets" / folder)
    assert model_folder(*given) == tmp_path / "assets" / folder
    assert daguerre.load(*given).generate("x", 4).usage.completion_tokens > 0


def test_load_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="check the path"):
        daguerre.load(tmp_path / "nowhere")
    with pytest.raises(InputError, match="names on a hub"):
        daguerre.load(tmp_path / "nowhere", revision="main")
    with pytest.raises(InputError, match="unknown dtype"):
        daguerre.load(tmp_path, dtype="float8")
    with pytest.raises(InputError, match="device 'abacus' cannot be used"):
        daguerre.load(tmp_path, device="abacus")
