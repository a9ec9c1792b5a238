"""Rotary positions scaled at load: equal to transformers' formulas, the same on every backend, kept in what is written,
and refused in one line where they cannot be.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import daguerre
from backends import BACKENDS
from commands import daguerre as command
from conftest import MakeModel, tiny_config
from daguerre.errors import DaguerreError, InputError, UnsupportedError
from daguerre.models.core.config import ModelConfig, RopeScaling
from daguerre.models.core.rotary import frequencies
from daguerre.models.families.reading import rotary
from daguerre.models.loading import load_folder, save_model
from daguerre.models.published import describe
from daguerre.models.republish import keep_origin, scale_origin, write_back
from daguerre.models.scaling import published_scaling, read_scaling
from daguerre.models.tokenizer import Tokenizer
from forwards import difference
from pairwise import covering
from published import CASES, LLAMA, made

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
PUBLISHED: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 2.5},
    "linear, old name": {"type": "linear", "factor": 8.0},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192, **LLAMA3},
    "llama3, other": {
        "rope_type": "llama3",
        "factor": 32.0,
        "original_max_position_embeddings": 256,
        "low_freq_factor": 0.5,
        "high_freq_factor": 3.0,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
    "yarn, old name, no original": {"type": "yarn", "factor": 4.0},
    "yarn, all given": {
        "rope_type": "yarn",
        "factor": 16.0,
        "original_max_position_embeddings": 2048,
        "beta_fast": 24.0,
        "beta_slow": 2.0,
        "attention_factor": 1.25,
    },
    "yarn, two scales": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    },
    "yarn, one of two scales": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "mscale": 0.7,
    },
}


def theirs(
    width: int,
    theta: float,
    positions: int,
    parameters: dict[str, Any],
    *,
    config: dict[str, Any] | None = None,
    **more: Any,
) -> tuple[Any, float]:
    """Frequencies and the scale of cosines by transformers. `config`: further keys of config.json."""
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    whole = transformers.LlamaConfig(
        **(config or {}),
        hidden_size=4 * width,
        num_attention_heads=4,
        max_position_embeddings=positions,
        rope_parameters={"rope_theta": theta, **parameters},
    )
    kind = parameters.get("rope_type") or parameters["type"]
    found: tuple[Any, float] = ROPE_INIT_FUNCTIONS[kind](whole, "cpu", **more)
    return found


def shaped(tokenizer: Tokenizer, width: int = 32, **facts: Any) -> ModelConfig:
    return tiny_config(tokenizer, width=4 * width, num_kv_heads=4, **facts)


def test_published_scaling_has_the_frequencies_of_transformers(tokenizer: Tokenizer, subtests: pytest.Subtests) -> None:
    for name, theta, width in map(
        dict.values, covering({"name": [*PUBLISHED], "theta": [10_000.0, 500_000.0, 1e6], "width": [8, 64, 128]})
    ):
        with subtests.test(name, theta=theta, width=width):
            given = PUBLISHED[name]
            for style in (
                {"rope_theta": theta, "rope_scaling": given},
                {"rope_parameters": {"rope_theta": theta, **given}},
            ):
                facts = rotary({"max_position_embeddings": 4096, **style})
                ours, scale = frequencies(shaped(tokenizer, width, max_positions=4096, **facts))
                expected, attention = theirs(width, theta, 4096, given)
                assert torch.allclose(ours, expected, rtol=1e-5)
                assert scale == pytest.approx(attention)


def test_original_positions_beside_the_scaling_go_first_as_in_transformers(
    tokenizer: Tokenizer, subtests: pytest.Subtests
) -> None:
    for kind in ["yarn", "llama3"]:
        with subtests.test(kind):
            given = PUBLISHED[kind] | {"original_max_position_embeddings": 2048}
            beside = {"original_max_position_embeddings": 512}
            facts = rotary({"max_position_embeddings": 4096, "rope_scaling": given, **beside})
            ours, scale = frequencies(shaped(tokenizer, max_positions=4096, **facts))
            expected, attention = theirs(32, 10_000.0, 4096, given, config=beside)
            assert torch.allclose(ours, expected, rtol=1e-5)
            assert scale == pytest.approx(attention)
            assert not torch.allclose(ours, theirs(32, 10_000.0, 4096, given)[0], rtol=1e-5)


def test_what_is_written_for_transformers_means_the_same(tokenizer: Tokenizer, subtests: pytest.Subtests) -> None:
    for name in PUBLISHED:
        with subtests.test(name):
            facts = rotary({"max_position_embeddings": 4096, "rope_scaling": PUBLISHED[name]})
            config = shaped(tokenizer, max_positions=4096, **facts)
            assert config.rope_scaling is not None
            expected, attention = theirs(32, config.rope_theta, 4096, published_scaling(config.rope_scaling))
            ours, scale = frequencies(config)
            assert torch.allclose(ours, expected, rtol=1e-5)
            assert scale == pytest.approx(attention)


def test_scaling_at_load_is_that_of_transformers_configs(tokenizer: Tokenizer) -> None:
    """A model of 1,024 positions that is stretched four times, and a config.json that says so."""
    base = shaped(tokenizer, max_positions=1024)
    for kind, more in (("linear", {}), ("yarn", {}), ("llama3", LLAMA3)):
        scaled = read_scaling(f"{kind}:4")(base)
        assert scaled.max_positions == 4096
        original = {} if kind == "linear" else {"original_max_position_embeddings": 1024}
        expected, attention = theirs(32, 10_000.0, 4096, {"rope_type": kind, "factor": 4.0, **original, **more})
        ours, scale = frequencies(scaled)
        assert torch.allclose(ours, expected, rtol=1e-5)
        assert scale == pytest.approx(attention)
        assert (scale > 1) == (kind == "yarn")
        assert ModelConfig.from_dict(json.loads(json.dumps(scaled.to_dict()))) == scaled


def test_ntk_keeps_the_fastest_pair_and_slows_the_slowest(tokenizer: Tokenizer, subtests: pytest.Subtests) -> None:
    """Section 3.1 of YaRN; and transformers' dynamic kind once a text has become `factor` times as long."""
    for factor in [1.0, 2.0, 4.0, 7.5]:
        with subtests.test(factor=factor):
            base = shaped(tokenizer, max_positions=1024)
            scaled = read_scaling(f"ntk:{factor}")(base)
            assert scaled.rope_scaling is None
            assert scaled.max_positions == 1024 * factor
            before, after = frequencies(base)[0], frequencies(scaled)[0]
            assert after[0] == before[0] == 1
            assert float(before[-1] / after[-1]) == pytest.approx(factor, rel=1e-5)
            length = int(1024 * factor)
            expected, _ = theirs(32, 10_000.0, 1024, {"rope_type": "dynamic", "factor": 1.0}, seq_len=length)
            assert torch.allclose(after, expected, rtol=1e-5)


def test_none_leaves_the_angles(tokenizer: Tokenizer) -> None:
    base = shaped(tokenizer, max_positions=1024)
    assert read_scaling("none:3")(base) == replace(base, max_positions=3072)


def test_a_mapping_says_more(tokenizer: Tokenizer) -> None:
    base = shaped(tokenizer, max_positions=1024)
    given = {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 512, "attention_factor": 1.5}
    scaled = read_scaling(given)(base)
    assert scaled.rope_scaling == RopeScaling(kind="yarn", factor=4.0, original_positions=512, attention_factor=1.5)
    assert scaled.max_positions == 2048
    assert read_scaling(json.dumps(given))(base) == scaled


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loaded_model_is_scaled_on_each_backend(
    backend: Any, make_model: MakeModel, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """Its logits are those of a model with the same weights whose config says so, computed by PyTorch's modules; and
    behind the trained positions they depend on the kind.
    """
    for number, kind in enumerate(["none", "linear", "ntk", "yarn", "llama3"]):
        with subtests.test(kind):
            (parent := tmp_path / str(number)).mkdir()
            model = make_model(max_positions=32)
            folder = save_model(parent / "model", model.backbone, model.tokenizer, torch.float32)
            loaded = daguerre.load(folder, dtype="float32", backend=backend, rope_scaling=f"{kind}:4")
            scaled = read_scaling(f"{kind}:4")(model.config)
            assert loaded.config == scaled
            model.backbone.config = scaled
            save_model(parent / "scaled", model.backbone, model.tokenizer, torch.float32)
            written = daguerre.load(parent / "scaled", dtype="float32", backend="torch")
            assert written.config == scaled
            text = "def area(width, height):\n    return width * height\n" * 4
            assert 40 < len(loaded.tokenizer.encode(text)) < 128
            ours, expected = loaded.nll(text).by_token, written.nll(text).by_token
            assert np.allclose(ours, expected, atol=1e-4)
            if kind != "none":
                plain = (
                    daguerre.load(folder, dtype="float32", backend="torch", rope_scaling="none:4").nll(text).by_token
                )
                assert np.abs(ours - plain).max() > 1e-3


def test_a_published_model_is_scaled_and_written_back(tmp_path: Path) -> None:
    """By either name that config.json has for it; transformers, too, reads what is written with the same angles."""
    transformers = pytest.importorskip("transformers")
    for name in ("llama", "qwen3"):
        source = CASES[name].write(tmp_path / f"{name}-published", made(name))
        loaded = load_folder(source, rope_scaling=read_scaling("yarn:4"))
        keep_origin(source, tmp_path / name)
        scale_origin(tmp_path / name, loaded.backbone.config)
        folder = write_back(tmp_path / name, tmp_path / f"{name}-written", loaded.backbone)
        assert load_folder(folder).backbone.config == loaded.backbone.config
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        turns, scale = frequencies(loaded.backbone.config)
        assert torch.allclose(model.model.rotary_emb.inv_freq, turns, rtol=1e-5)
        assert model.model.rotary_emb.attention_scaling == pytest.approx(scale)


def test_a_family_without_a_place_for_it_is_not_trained_with_it(tmp_path: Path) -> None:
    source = CASES["llada"].write(tmp_path / "published", made("llada"))
    loaded = load_folder(source, rope_scaling=read_scaling("yarn:4"))
    keep_origin(source, tmp_path / "origin")
    scale_origin(tmp_path / "origin", describe(source, tokenizer=loaded.tokenizer).config)  # unscaled: nothing to say
    with pytest.raises(UnsupportedError, match="no place for scaled positions"):
        scale_origin(tmp_path / "origin", loaded.backbone.config)


WRONG: list[tuple[Any, type[DaguerreError], str]] = [
    ("yarn", InputError, "KIND:FACTOR, such as yarn:4"),
    ("yarn:x", InputError, "KIND:FACTOR"),
    ("yarm:4", InputError, "yarn"),
    ("yarn:0.5", InputError, "a number from 1 up"),
    ("yarn:inf", InputError, "a number from 1 up"),
    ("yarn:nan", InputError, "a number from 1 up"),
    ("yarn:1e9", InputError, "max_positions"),
    ("{", InputError, "not valid JSON"),
    ({"rope_type": "yarn", "factor": 2.0, "beta": 3}, InputError, "beta"),
    ({"rope_type": "ntk", "factor": 2.0, "beta_fast": 3}, InputError, "nothing else"),
    ({"rope_type": "yarn", "factor": True}, InputError, "a number from 1 up"),
    ({"rope_type": "yarn", "factor": 2.0, "beta_fast": -3.0}, InputError, "beta_fast"),
    ({"rope_type": "yarn", "factor": 2.0, "original_positions": 0}, InputError, "above 0"),
    ("dynamic:4", UnsupportedError, "take ntk or yarn"),
    ({"type": "dynamic", "factor": 4.0}, UnsupportedError, "change with the length"),
    ({"type": "longrope", "factor": 4.0}, UnsupportedError, "longrope:1 takes the short factors"),
]


def test_what_is_no_scaling_is_said_in_one_line(tokenizer: Tokenizer, subtests: pytest.Subtests) -> None:
    for given, error, words in WRONG:
        with subtests.test(str(given)):
            with pytest.raises(error, match=words) as caught:
                read_scaling(given)(shaped(tokenizer))
            assert "\n" not in str(caught.value)


def test_a_model_without_rotary_positions_or_scaled_already_is_not_scaled(tokenizer: Tokenizer) -> None:
    with pytest.raises(UnsupportedError, match="one kind of rotary positions"):
        read_scaling("yarn:4")(shaped(tokenizer, positions="learned"))
    with pytest.raises(UnsupportedError, match="scaled already"):
        read_scaling("yarn:4")(read_scaling("linear:2")(shaped(tokenizer)))
    with pytest.raises(InputError, match="rope_scaling must be"):
        daguerre.load("default", rope_scaling=4)  # type: ignore[arg-type]


def test_a_published_kind_that_follows_the_length_is_refused_with_the_reason() -> None:
    with pytest.raises(UnsupportedError, match="change with the length of the text"):
        rotary({**LLAMA, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}})


def test_scales_of_attention_are_in_the_logits(make_model: MakeModel) -> None:
    """YaRN's factor multiplies cosines and sines, so scores grow by its square."""
    base = make_model(max_positions=32)
    plain = read_scaling({"kind": "yarn", "factor": 4.0, "attention_factor": 1.0})(base.config)
    sharp = read_scaling({"kind": "yarn", "factor": 4.0})(base.config)
    assert frequencies(sharp)[1] == pytest.approx(0.1 * math.log(4) + 1)
    found = []
    for config in (plain, sharp):
        base.backbone.config = config
        fresh = daguerre.Model(base.backbone, base.tokenizer, backend="torch")
        found.append(fresh.nll("for key in values:\n    print(key)\n").by_token)
    assert difference(*found) > 1e-4


def test_the_command_line_scales_and_what_is_exported_carries_it(make_model: MakeModel, tmp_path: Path) -> None:
    made = make_model(max_positions=64, qk_norm=True)
    save_model(tmp_path / "model", made.backbone, made.tokenizer, torch.float32)
    prompt = "def area(width, height):\n    return width * height\n" * 6
    asked = ("generate", prompt, "--model", tmp_path / "model", "--max-tokens", "4", "--context", "whole")
    refused = command(*asked)
    assert refused.returncode == 2
    assert "positions" in refused.stderr
    assert command(*asked, "--rope-scaling", "yarn:4").returncode == 0
    wrong = command(*asked, "--rope-scaling", "yarn")
    assert wrong.returncode == 2
    assert "KIND:FACTOR, such as yarn:4" in wrong.stderr
    out = tmp_path / "exported"
    done = command("export", tmp_path / "model", "--out", out, "--rope-scaling", "yarn:4")
    assert done.returncode == 0, done.stderr
    values = json.loads((out / "config.json").read_text())
    assert values["max_position_embeddings"] == 256
    assert values["rope_scaling"]["original_max_position_embeddings"] == 64
    again = load_folder(out).backbone.config
    assert frequencies(again)[0].tolist() == frequencies(read_scaling("yarn:4")(made.config))[0].tolist()
