"""Nemotron-Labs-Diffusion: published configs, their numbers of parameters, and folders with a bundled adapter."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from daguerre.errors import CheckpointError, InputError, UnsupportedError
from daguerre.models.bundled import read_bundled, with_adapter
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import RopeScaling
from daguerre.models.core.rotary import frequencies, query_scale
from daguerre.models.families import FAMILIES, find_family
from daguerre.models.families.base import Published
from daguerre.models.families.nemotron import ACCEPTANCE
from daguerre.models.model_weights import FileWeights
from daguerre.models.published import describe
from daguerre.models.published_weights import fit
from daguerre.models.shards import find_tensors
from daguerre.models.tokenizer import Tokenizer

FAMILY, T = FAMILIES["nemotron"], Tokenizer.default("2k")


@pytest.fixture(scope="module")
def nemotron() -> Any:
    """What writes tiny models as published; its module needs transformers."""
    pytest.importorskip("transformers.models.ministral3")
    from oracles import nemotron

    return nemotron


@pytest.fixture(scope="module")
def backbone(nemotron: Any) -> Backbone:
    return nemotron.backbone_of(0)


def shape(**changes: Any) -> Published:
    """The published 8B (34 layers of width 4096, 131,072 tokens), or one of another shape."""
    rope = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384}
    rope |= {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
    config: dict[str, Any] = {
        "model_type": "nemotron_labs_diffusion",
        "vocab_size": 131072,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 34,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-5,
        "rope_parameters": rope,
        "tie_word_embeddings": False,
        "mask_token_id": 100,
        "eos_token_id": 11,
        "bos_token_id": 1,
    }
    adapter = changes.pop("adapter", {})
    return Published(config=config | changes, adapter=adapter, bos_id=1, num_tokens=131072)


SMALL = {"hidden_size": 3072, "intermediate_size": 9216, "num_hidden_layers": 26, "tie_word_embeddings": True}
LARGE = {"hidden_size": 5120, "intermediate_size": 16384, "num_hidden_layers": 40}


def test_the_published_sizes_have_their_numbers_of_parameters(subtests: pytest.Subtests) -> None:
    for changes, num, billions in [(SMALL, 3429006336, 3.4), ({}, 8489553920, 8.5), (LARGE, 13506073600, 13.5)]:
        with subtests.test(num=num):
            config = FAMILY.read(shape(**changes))
            width, inner = config.width, config.mlp_width
            layer = width * 6144 + 4096 * width + 3 * width * inner + 2 * width
            assert num == config.num_layers * layer + width + 131072 * width * (1 if config.tied else 2)
            with torch.device("meta"):
                backbone = Backbone(config)
            assert backbone.num_parameters == num and round(num / 1e9, 1) == billions
            named = [piece for piece in FAMILY.pieces(config) if not piece.copy]
            assert len(named) == config.num_layers * 9 + (2 if config.tied else 3)
            assert named[0].name == "encoder.embed_tokens.weight"


def test_the_published_config_says_what_the_model_is(nemotron: Any) -> None:
    config = FAMILY.read(shape(adapter=nemotron.ADAPTER | {"r": 128, "lora_alpha": 512}))
    assert find_family(shape().config) is FAMILY
    assert (config.context, config.shift, config.masks_in_place, config.block_size) == ("causal", True, True, 32)
    assert (config.mask_id, config.eos_id, config.bos_id, config.reserved_ids) == (100, 11, 1, (100,))
    assert (config.draft_rank, config.draft_matrices) == (128, ("out",))
    scaling = config.rope_scaling
    assert scaling is not None and (scaling.query_beta, scaling.attention_factor) == (0.1, 1.0)
    with torch.device("meta"):
        added = Backbone(config).num_parameters - Backbone(replace(config, draft_rank=0)).num_parameters
    assert added == 34 * 2 * 128 * 4096
    for accepted, tokens in ((True, 6.8), (False, 5.5)):
        assert sum(ACCEPTANCE[accepted] ** place for place in range(32)) == pytest.approx(tokens, abs=0.05)
    assert FAMILY.read(shape()).draft_rank == 0
    plain = shape(
        rope_parameters={"rope_theta": 1e6, "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 64}
    )
    found = FAMILY.read(plain)
    assert torch.equal(frequencies(found)[0], frequencies(replace(found, rope_scaling=None))[0])
    scale = query_scale(found, torch.tensor([63, 64]), torch.float32)
    assert scale is not None and scale.flatten().tolist() == pytest.approx([1.0, 1 + 0.1 * np.log(2)])


def write(nemotron: Any, folder: Path, backbone: Backbone, scale: float) -> None:
    """A folder as published, with a bundled adapter."""
    (folder / "linear_spec_lora").mkdir()
    (folder / "config.json").write_text(json.dumps(nemotron.CONFIG))
    (folder / "linear_spec_lora/adapter_config.json").write_text(json.dumps(nemotron.ADAPTER))
    save_file(nemotron.exported(backbone), folder / "model.safetensors")
    factors = {}
    for number, layer in enumerate(backbone.layers):
        low_rank, name = layer.attention.out_draft, f"base_model.model.encoder.layers.{number}.self_attn.o_proj.lora_"  # type: ignore[union-attr]
        factors[f"{name}A.weight"] = low_rank.a.weight  # type: ignore[union-attr]
        factors[f"{name}B.weight"] = low_rank.b.weight / scale  # type: ignore[union-attr, operator]
    save_file(factors, folder / "linear_spec_lora/adapter_model.safetensors")


def loaded(nemotron: Any, folder: Path) -> Backbone:
    adapter, stored = read_bundled(FAMILY.bundled, folder), find_tensors(folder)
    family = with_adapter(FAMILY, adapter)
    config = family.read(
        Published(config=nemotron.CONFIG, bos_id=T.bos_id, num_tokens=T.vocab_size, adapter=adapter.config)
    )
    stored |= adapter.stored
    return FileWeights(config, "float32", fit(family, config, stored, folder), stored).module()


def test_a_folder_brings_its_adapter_along(nemotron: Any, backbone: Backbone, tmp_path: Path) -> None:
    """Its scale, alpha / r = 4, is multiplied into B; without the adapter's folder there are no low-rank weights."""
    write(nemotron, tmp_path, backbone, 4.0)
    ours = loaded(nemotron, tmp_path)
    assert ours.state_dict().keys() == backbone.state_dict().keys()
    assert all(torch.equal(weight, backbone.state_dict()[name]) for name, weight in ours.state_dict().items())
    rs = nemotron.ADAPTER | {"use_rslora": True, "lora_alpha": 8}
    (tmp_path / "linear_spec_lora/adapter_config.json").write_text(json.dumps(rs))
    again, name = loaded(nemotron, tmp_path).state_dict(), "layers.1.attention.out_draft.b.weight"
    assert torch.equal(again[name], ours.state_dict()[name])
    assert describe(tmp_path).config.draft_rank == 4
    (tmp_path / "linear_spec_lora/adapter_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no adapter_config\.json"):
        loaded(nemotron, tmp_path)
    (tmp_path / "linear_spec_lora/adapter_model.safetensors").unlink()
    assert loaded(nemotron, tmp_path).config.draft_rank == 0


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"peft_type": "IA3"}, "peft_type='IA3' in linear_spec_lora"),
    ({"use_dora": True}, "use_dora=True"),
    ({"bias": "all"}, "bias='all'"),
    ({"target_modules": ["q_proj", "o_proj"]}, "target_modules="),
    ({"r": None}, "has no rank r"),
]


def test_an_adapter_of_another_kind_is_refused(nemotron: Any, subtests: pytest.Subtests) -> None:
    for changes, message in WRONG:
        with subtests.test(message), pytest.raises((UnsupportedError, CheckpointError), match=message):
            FAMILY.read(shape(adapter=nemotron.ADAPTER | changes))


def test_what_the_core_does_not_have_is_refused(backbone: Backbone) -> None:
    for changes in ({"attention_bias": True}, {"dlm_paradigm": "other"}, {"sliding_window": 4096}):
        with pytest.raises(UnsupportedError, match=next(iter(changes))):
            FAMILY.read(shape(**changes))
    for wrong in ({"shift": False}, {"context": "full"}, {"draft_head": 8}):
        with pytest.raises(CheckpointError, match="masks_in_place"):
            replace(backbone.config, **wrong)
    with pytest.raises(InputError, match="did you mean 'out'"):
        replace(backbone.config, draft_matrices=("oot",))
    with pytest.raises(CheckpointError, match="original_positions"):
        RopeScaling(kind="linear", factor=2.0, query_beta=0.1)
