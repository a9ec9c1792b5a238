"""What the small files of a published folder decide: its tokenizer, family, defaults and vocabulary."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import daguerre
from daguerre.commands.describing import facts_of
from daguerre.decoding.defaults import CHAT_SAMPLING, with_sampling
from daguerre.decoding.request import Decode
from daguerre.errors import CheckpointError, InputError
from daguerre.models.families import FAMILIES
from daguerre.models.loading import load_folder
from daguerre.models.published import describe
from daguerre.scoring.calibration import Calibration
from published import CASES, MASK, START, made, write_tokenizer

NORM = "model.norm.weight"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return replace(CASES["qwen3"], shards=1).write(tmp_path_factory.mktemp("published"), made("qwen3"))


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "model"))


def retensor(folder: Path, changes: dict[str, torch.Tensor | None]) -> None:
    """Replace tensors of a folder; None removes one."""
    held: dict[str, torch.Tensor | None] = {**load_file(folder / "model.safetensors"), **changes}
    save_file({name: tensor for name, tensor in held.items() if tensor is not None}, folder / "model.safetensors")


def test_the_tokenizer_that_is_given_comes_before_the_folders_own(
    folder: Path, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Path(shutil.copytree(written, tmp_path / "other"))
    write_tokenizer(other, bos_token="<|im_start|>", add_bos_token=True, tokenizer_class="LlamaTokenizer")
    monkeypatch.setenv("HOME", str(tmp_path))
    for given in (other, "~/other"):
        assert daguerre.load(folder, dtype="float32", backend="torch", tokenizer=given).config.bos_id == START
    assert load_folder(folder).backbone.config.bos_id is None


def test_a_place_without_a_tokenizer_is_named(folder: Path, subtests: pytest.Subtests) -> None:
    (folder / "empty").mkdir()
    for given in ["nowhere", "config.json", "empty", "default"]:
        with subtests.test(given):
            place = folder / given
            with pytest.raises(CheckpointError, match=f"{re.escape(str(place))} has no tokenizer: give a folder"):
                daguerre.load(folder, tokenizer=place)
            with pytest.raises(CheckpointError, match=f"{re.escape(str(place))} has no tokenizer: give a folder"):
                facts_of(folder, words=place)


SAMPLED = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1}


def test_answers_are_drawn_as_the_publisher_says_and_completions_are_greedy(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """Models that denoise keep to the table of their family: their publishers' scripts do not read that file."""
    for number, (name, generation, expected) in enumerate(
        [
            ("qwen2", SAMPLED, {name: value for name, value in SAMPLED.items() if name != "do_sample"}),
            ("qwen2", {"do_sample": True, "top_p": 1.0, "top_k": 0, "min_p": 0.1}, {"temperature": 1.0, "min_p": 0.1}),
            ("qwen2", SAMPLED | {"do_sample": False}, CHAT_SAMPLING),
            ("qwen2", {"temperature": 0.6}, CHAT_SAMPLING),
            ("qwen2", SAMPLED | {"temperature": 0}, CHAT_SAMPLING),
            ("sdar", SAMPLED, {}),
            ("diffullama", SAMPLED, {}),
        ]
    ):
        with subtests.test(name, **generation):
            (parent := tmp_path / str(number)).mkdir()
            path = CASES[name].write(parent, made(name))
            (path / "generation_config.json").write_text(json.dumps(generation))
            model = daguerre.load(path, dtype="float32", backend="torch")
            assert model.defaults == facts_of(path)["decode"] == FAMILIES[name].decode
            assert model.chat_sampling == expected and model.recommends_sampling == (
                bool(expected) and expected is not CHAT_SAMPLING
            )
            said = facts_of(path).get("chat_sampling", {})
            assert {key: value for key, value in said.items() if key != "by"} == expected
            assert with_sampling({"top_k": 3}, model.chat_sampling) == {**expected, "top_k": 3}
            assert with_sampling({"temperature": 0}, model.chat_sampling) == {"temperature": 0}
            asked = model.generate("ab", 8, Decode(**FAMILIES[name].decode), heal=False)
            assert [token.id for token in model.generate("ab", 8).tokens] == [token.id for token in asked.tokens]


def test_a_default_of_generation_that_is_out_of_range_is_named(folder: Path, subtests: pytest.Subtests) -> None:
    for changes in [{"temperature": -1}, {"top_p": 0}, {"top_k": 2.5}, {"top_p": "x"}, {"top_p": 1.5}]:
        with subtests.test(**changes):
            (folder / "generation_config.json").write_text(json.dumps(SAMPLED | changes))
            with pytest.raises(CheckpointError, match=f"generation_config.json: {next(iter(changes))}"):
                load_folder(folder)


@pytest.mark.parametrize("rows", [300, 3])
def test_an_embedding_may_have_grown_but_not_shrunk(folder: Path, rows: int) -> None:
    names = ("model.embed_tokens.weight", "lm_head.weight")
    retensor(folder, {**{name: torch.ones(rows, 32) for name in names}, NORM: None, "extra": torch.ones(1)})
    with pytest.raises(CheckpointError) as caught:
        load_folder(folder)
    for words in (f"model.embed_tokens.weight ({rows}, 32), not (320, 32)", f"1 missing: {NORM}", "1 not expected"):
        assert words in str(caught.value)
    retensor(folder, {**{name: torch.ones(330, 32) for name in names}, NORM: torch.ones(32), "extra": None})
    assert load_folder(folder).backbone.config.vocab_size == 330


def test_a_config_that_names_no_architecture_is_of_the_family_that_is_given(folder: Path) -> None:
    values = json.loads((folder / "config.json").read_text())
    nameless = {key: value for key, value in values.items() if key not in ("architectures", "model_type")}
    (folder / "config.json").write_text(json.dumps(nameless))
    assert load_folder(folder, family="qwen3").family == "qwen3"
    with pytest.raises(InputError, match="names neither architectures nor a model_type: give the family"):
        load_folder(folder)


def test_what_is_no_model_is_said_of_its_folder(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no folder gpt3: check the path; names on a hub are owner/"):
        daguerre.load("gpt3")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "owner/base"}')
    with pytest.raises(CheckpointError, match="is a LoRA adapter: load owner/base with this folder as its adapter"):
        daguerre.load(adapter)
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json is not JSON"):
        daguerre.load(folder)


def test_a_name_that_can_be_no_path_is_refused(folder: Path, subtests: pytest.Subtests) -> None:
    for option in ["name", "adapter", "tokenizer"]:
        for name in [5, b"x", "a\0b", "a" * 5000, "~nobody-here/x"]:
            with subtests.test(option, value=name), pytest.raises(InputError):
                daguerre.load(**{"name": folder, option: name})


def test_a_folder_whose_name_could_tell_more_is_loaded_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = CASES["dream"].write(tmp_path, made("dream"))
    assert describe(path).family.name == "dream"
    assert "'dream' and 'dreamon', which only the name tells apart: 'model' is taken for 'dream'" in caplog.text
    caplog.clear()
    describe(path, family="dream")
    describe(path.rename(tmp_path / "Dream-v0-Base-7B"))
    name = "sdar, named blocks"
    blocks = CASES[name].write(tmp_path, made(name), mask_token_id=MASK)
    describe(blocks)
    assert not caplog.text
    assert describe(blocks.rename(tmp_path / "mine")).config.block_size == 4
    assert "set block_size to N in config.json" in caplog.text


def test_calibrations_are_of_the_weights_without_an_adapter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daguerre.model.load_calibrations", lambda *_: {"yes_no": Calibration()})
    monkeypatch.setattr("daguerre.models.published.merged", lambda weights, *_: weights)
    assert daguerre.load(folder, backend="torch").calibrations
    assert not daguerre.load(folder, backend="torch", adapter=folder).calibrations
