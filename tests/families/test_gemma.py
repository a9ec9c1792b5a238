"""DiffusionGemma: where every published tensor belongs, and what is read of a published config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from daguerre.commands.describing import facts_of
from daguerre.decoding.request import Decode
from daguerre.errors import CheckpointError, UnsupportedError
from daguerre.model import Model, load
from daguerre.models.core.build import make_backbone
from daguerre.models.families import FAMILIES, find_family
from daguerre.models.families.base import Published
from daguerre.models.families.gemma import FAMILY
from daguerre.models.tokenizer import Tokenizer
from oracles.gemma import BOS, VISION, ours, theirs

TEXT: dict[str, Any] = {
    "attention_bias": False,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "final_logit_softcapping": 30.0,
    "global_head_dim": 512,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2816,
    "intermediate_size": 2112,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5,
    "max_position_embeddings": 262144,
    "moe_intermediate_size": 704,
    "num_attention_heads": 16,
    "num_experts": 128,
    "num_global_key_value_heads": 2,
    "num_hidden_layers": 30,
    "num_key_value_heads": 8,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {
        "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    },
    "sliding_window": 1024,
    "tie_word_embeddings": True,
    "top_k_experts": 8,
    "use_bidirectional_attention": "vision",
    "vocab_size": 262144,
}
PUBLISHED: dict[str, Any] = {
    "architectures": ["DiffusionGemmaForBlockDiffusion"],
    "model_type": "diffusion_gemma",
    "canvas_length": 256,
    "eos_token_id": [1, 106, 50],
    "text_config": TEXT,
}
"""google/diffusiongemma-26B-A4B-it."""


def published(**text: Any) -> Published:
    return Published(config={**PUBLISHED, "text_config": {**TEXT, **text}}, bos_id=2, num_tokens=262144)


@pytest.fixture(scope="module")
def on_meta() -> Any:
    """The published model in transformers, without memory."""
    library = pytest.importorskip("transformers")
    text = library.DiffusionGemmaTextConfig(**TEXT)
    config = library.DiffusionGemmaConfig(text_config=text, vision_config=VISION, canvas_length=256)
    with torch.device("meta"):
        return library.DiffusionGemmaForBlockDiffusion(config)


def test_the_published_model_has_as_many_parameters_as_in_transformers(on_meta: Any) -> None:
    config = FAMILY.read(published())
    with torch.device("meta"):
        backbone = make_backbone(config)
    of_images = sum(p.numel() for n, p in on_meta.named_parameters() if "vision" in n)
    assert backbone.num_parameters == sum(p.numel() for p in on_meta.parameters()) - of_images
    assert backbone.num_parameters == 25_250_986_752  # 25.2 billion, the model card says


def test_every_published_tensor_has_its_place(on_meta: Any) -> None:
    config = FAMILY.read(published())
    with torch.device("meta"):
        state = {name: torch.zeros_like(part) for name, part in make_backbone(config).state_dict().items()}
    stored, pieces = on_meta.state_dict(), FAMILY.pieces(config)
    needed = [piece for piece in pieces if not piece.copy]
    assert len(needed) == 657 + 30 + 4  # of the decoder, of the encoder alone, and of self-conditioning
    assert len({piece.name for piece in pieces}) == len(pieces)
    for piece in pieces:
        assert state[piece.target][piece.index].shape == stored[piece.name].shape
    filled = dict.fromkeys(state, 0)
    for piece in needed:
        filled[piece.target] += stored[piece.name].numel()
    assert filled == {name: part.numel() for name, part in state.items()}
    left = {name for name in stored if name not in {piece.name for piece in pieces}}
    assert left and all("vision" in name for name in left)


def test_the_published_config_is_read_as_it_is_meant() -> None:
    config = FAMILY.read(published())
    assert config.windows is not None and config.layers_by_kind[1] == [5, 11, 17, 23, 29]
    assert (config.windows.size, config.block_size, config.max_positions) == (1024, 256, 262144)
    assert (config.eos_id, config.end_ids, config.bos_id, config.pad_id) == (1, (106, 50), 2, 0)
    assert (config.mask_id, config.null_id, config.reserved_ids) == (None, None, ())
    assert config.noise_ids == (0, 262144)
    assert FAMILIES["gemma"] is FAMILY is find_family(PUBLISHED)


def test_it_is_described_from_its_config_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    facts = facts_of(tmp_path)
    assert (facts["family"], facts["parameters"]) == ("gemma", 25_250_986_752)
    assert facts["modes"] == ["renoise"] and facts["operations"] == ["generate", "stream"]
    assert facts["cache_bytes"]["4096"]["bfloat16"] == 4096 * 2 * 2 * (25 * 8 * 256 + 5 * 2 * 512)
    assert Decode(**FAMILY.decode).mode == "renoise"


def test_a_published_folder_is_loaded_and_writes(tmp_path: Path, tokenizer: Tokenizer) -> None:
    backbone = ours(theirs(), tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(tokenizer.to_bytes())
    model = load(tmp_path, dtype="float32")
    assert model.config.gemma == backbone.config.gemma
    ids = [BOS, *tokenizer.encode("x = 1\n")]
    result = model.generate(ids[len(model.config.first) :], 12, steps=3, mode="renoise")
    own = Model(backbone, tokenizer).generate(ids[1:], 12, steps=3, mode="renoise")
    assert [token.id for token in result.tokens] == [token.id for token in own.tokens]


def test_keys_of_several_releases_say_the_same() -> None:
    later = {key: value for key, value in TEXT.items() if key not in ("global_head_dim", "num_global_key_value_heads")}
    later["per_layer_config"] = {str(n): {"head_dim": 512, "num_key_value_heads": 2} for n in (5, 11, 17, 23, 29)}
    least = {**TEXT, "layer_types": None, "rope_parameters": None, "final_logit_softcapping": None}
    for text in (later, least):
        assert FAMILY.read(Published(config={**PUBLISHED, "text_config": text}, bos_id=2)) == FAMILY.read(published())


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"attention_bias": True}, "attention_bias=True"),
    ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention='all'"),
    ({"tie_word_embeddings": False}, "tie_word_embeddings=False"),
    ({"hidden_activation": "relu"}, "hidden_activation='relu'"),
    ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope_type='yarn'"),
    ({"rope_parameters": {"sliding_attention": {"rope_type": "linear"}}}, "rope_type='linear'"),
    ({"per_layer_config": {"3": {"head_dim": 512}}}, "per_layer_config"),
]


def test_what_is_not_as_published_is_refused(subtests: pytest.Subtests) -> None:
    for change, message in REFUSED:
        with subtests.test(message), pytest.raises(UnsupportedError, match=message):
            FAMILY.read(published(**change))


def test_a_damaged_config_is_named(subtests: pytest.Subtests) -> None:
    for change in [{"layer_types": ["sliding_attention"]}, {"num_experts": None}]:
        with subtests.test(**change):
            with pytest.raises(CheckpointError, match=r"config\.json"):
                FAMILY.read(published(**change))
            with pytest.raises(CheckpointError, match="text_config"):
                FAMILY.read(Published(config={**PUBLISHED, "text_config": None}))
