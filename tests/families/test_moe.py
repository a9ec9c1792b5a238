"""Families with a mixture of experts: from folders in the publishers' layout to the logits of transformers, which has
the same mathematics under other names; and what is read of published configs.
"""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import daguerre
from backends import BACKENDS, needs_compiler
from daguerre.decoding.request import Decode
from daguerre.errors import CheckpointError, InputError, UnsupportedError
from daguerre.model import Model
from daguerre.models.backends.native_backend import NativeBackend
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.build import make_backbone
from daguerre.models.core.config import Experts, ModelConfig
from daguerre.models.core.experts import Mixture
from daguerre.models.families import FAMILIES, find_family
from daguerre.models.families.base import Published
from daguerre.models.forward import Backend, Forward, Layout, Logits
from daguerre.models.loading import load_folder
from daguerre.models.model_weights import FileWeights
from oracles.packed import ungrouped
from oracles.rounding import grouped
from pairwise import covering
from published import END, MASK, SIZE, TURN, scatter, write_tensors, write_tokenizer

NUM = 40
SHAPE: dict[str, Any] = {
    "vocab_size": SIZE,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 3,
    "max_position_embeddings": 256,
}
QWEN: dict[str, Any] = {"head_dim": 24, "num_experts": 8, "moe_intermediate_size": 40, "intermediate_size": 72}
GLM: dict[str, Any] = {
    "head_dim": 24,
    "n_routed_experts": 12,
    "n_group": 4,
    "topk_group": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 40,
    "intermediate_size": 72,
    "first_k_dense_replace": 1,
    "use_qk_norm": True,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "rope_parameters": {"rope_theta": 600_000.0, "rope_type": "default", "partial_rotary_factor": 0.5},
}
ORACLES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_moe": ("Qwen3Moe", QWEN | {"norm_topk_prob": True, "mlp_only_layers": [0]}),
    "olmoe": ("Olmoe", {"num_experts": 8, "intermediate_size": 40}),
    "sdar_moe": ("Qwen3Moe", QWEN | {"norm_topk_prob": True}),
    "rnd1": ("Qwen3Moe", QWEN | {"norm_topk_prob": True}),
    "llada_moe": ("Qwen3Moe", QWEN | {"head_dim": 16, "norm_topk_prob": False, "mlp_only_layers": [0]}),
    "llada2": ("Glm4Moe", GLM),
}
"""The class of transformers that computes a family, and its options."""


def published_config(kind: str, saved: dict[str, Any]) -> dict[str, Any]:
    """The config in the publisher's keys, from the one that transformers saved."""
    if kind == "sdar_moe":
        return saved | {"architectures": ["SDARMoeForCausalLM"], "model_type": "sdar_moe", "num_experts": 8}
    if kind == "rnd1":
        return saved | {"architectures": ["RND1"], "model_type": "rnd1", "sliding_window": False, "rope_scaling": False}
    if kind == "llada_moe":
        given = {
            "architectures": ["LLaDAMoEModelLM"],
            "model_type": "llada",
            "dense_intermediate_size": saved.pop("intermediate_size"),
            "expert_intermediate_size": saved.pop("moe_intermediate_size"),
            "shared_expert_intermediate_size": None,
            "num_experts": saved.pop("num_local_experts"),
            "moe_layer_freq": [0, 1, 1],
            "qk_layernorm": True,
            "partial_rotary_factor": 1,
            "rope_theta": 10_000,
        }
        return {
            key: saved[key] for key in (*SHAPE, "rms_norm_eps", "hidden_act", "eos_token_id", "pad_token_id")
        } | given
    if kind == "llada2":
        given = {
            "architectures": ["LLaDA2MoeModelLM"],
            "model_type": "llada2_moe",
            "num_experts": saved.pop("n_routed_experts"),
            "num_shared_experts": saved.pop("n_shared_experts"),
            "rope_theta": 600_000,
            "partial_rotary_factor": 0.5,
            "rotary_dim": 12,
            "use_bias": False,
            "score_function": "sigmoid",
            "sliding_window": 64,
        }
        return {key: value for key, value in saved.items() if key != "rope_parameters"} | given
    return saved


def published_tensors(kind: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under the publisher's names, from those that transformers saved, one for each matrix of each expert."""
    if kind != "llada2":
        return tensors
    out, parts = dict[str, Tensor](), {"q_proj": 0, "k_proj": 1, "v_proj": 2}
    joined = dict[str, list[Tensor]]()
    for name, tensor in tensors.items():
        *front, part, _ = name.split(".")
        if part in parts:
            joined.setdefault(".".join(front[:-1]), [tensor] * 3)[parts[part]] = tensor
            continue
        for theirs, llada in {
            "embed_tokens": "word_embeddings",
            "self_attn.o_proj": "attention.dense",
            "self_attn.q_norm": "attention.query_layernorm",
            "self_attn.k_norm": "attention.key_layernorm",
            "e_score_correction_bias": "expert_bias",
        }.items():
            name = name.replace(theirs, llada)
        out[name] = tensor
    return out | {f"{name}.attention.query_key_value.weight": torch.cat(qkv) for name, qkv in joined.items()}


@cache
def oracle(kind: str) -> Any:
    """A random model of transformers."""
    library = pytest.importorskip("transformers")
    name, options = ORACLES[kind]
    tokens = {"eos_token_id": END, "pad_token_id": END, "bos_token_id": None}
    config = getattr(library, f"{name}Config")(**SHAPE, **options, **tokens, attn_implementation="eager")
    made = scatter(getattr(library, f"{name}ForCausalLM")(config), seed=1)
    random = torch.Generator().manual_seed(2)
    for key, buffer in made.named_buffers():
        if key.endswith("e_score_correction_bias"):
            buffer.normal_(0, 0.2, generator=random)
    for key, weight in made.named_parameters():
        if key.endswith(("lm_head.weight", "o_proj.weight", "down_proj", "down_proj.weight")):
            weight.data.mul_(0.7)
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("moe")

    def write(kind: str) -> Path:
        if not (root / kind).exists():
            oracle(kind).save_pretrained(root / "saved" / kind)
            saved = json.loads((root / "saved" / kind / "config.json").read_text())
            tensors = published_tensors(kind, load_file(root / "saved" / kind / "model.safetensors"))
            masked = kind in ("sdar_moe", "rnd1", "llada_moe", "llada2")
            config = published_config(kind, saved) | ({"mask_token_id": MASK} if masked else {})
            (root / kind).mkdir()
            (root / kind / "config.json").write_text(json.dumps(config))
            write_tokenizer(root / kind)
            write_tensors(root / kind, tensors, shards=2)
        return root / kind

    return write


@pytest.fixture(scope="module")
def loaded(folder: Any) -> Any:
    models: dict[str, Model] = {}

    def load(kind: str) -> Model:
        if kind not in models:
            models[kind] = daguerre.load(folder(kind), dtype="float32")
        return models[kind]

    return load


def seen(context: str) -> np.ndarray:
    """How many rows each row sees."""
    rows = np.arange(NUM)
    blocks = np.minimum((rows // 8 + 1) * 8, NUM)
    return {"causal": rows + 1, "block": blocks, "full": np.full(NUM, NUM)}[context]


def some_tokens() -> np.ndarray:
    """Random text in which a third of the tokens are the mask."""
    random = np.random.default_rng(5)
    return np.where(random.random(NUM) < 1 / 3, MASK, random.integers(0, 256, NUM))


def wanted_logits(kind: str, context: str) -> Tensor:
    mask = torch.arange(NUM) < torch.from_numpy(seen(context))[:, None]
    added = torch.zeros(1, 1, NUM, NUM).masked_fill_(~mask, torch.finfo(torch.float32).min)
    with torch.inference_mode():
        out: Tensor = oracle(kind)(torch.from_numpy(some_tokens())[None], attention_mask=added).logits[0]
    return out


def our_logits(backend: Backend, context: str) -> Tensor:
    layout = Layout(np.arange(NUM), seen(context).astype(np.int32), 0 if context == "full" else NUM)
    (answer,) = backend.forward([Forward(some_tokens(), layout, None, np.arange(NUM, dtype=np.int32), Logits())])
    assert answer.logits is not None
    return torch.from_numpy(answer.logits)


@pytest.mark.parametrize("backend", BACKENDS)
def test_logits_are_those_of_transformers(loaded: Any, backend: str, subtests: pytest.Subtests) -> None:
    cases = {"kind": [*ORACLES], "context": ["causal", "block", "full"], "backend": ["native", "torch"]}
    some = [(kind, context) for kind, context, own in map(dict.values, covering(cases)) if own == backend]
    for kind, context in sorted({*some, *((kind, facts[0]) for kind, facts in FACTS.items())}):
        with subtests.test(kind, context=context):
            backbone = loaded(kind).backbone
            got = our_logits((NativeBackend if backend == "native" else TorchBackend)(backbone), context)
            want, known = wanted_logits(kind, context), got.isfinite()
            assert known.all(0).sum() > 250
            assert (got[known] - want[known]).abs().max() < 1e-4
            assert 0.4 < want.softmax(-1).amax(-1).mean() < 0.6
            if kind == "llada2":
                assert max(one.inv_freq.numel() for one in oracle(kind).modules() if hasattr(one, "inv_freq")) == 6


def rounded_experts(backbone: Any) -> Any:
    """A backbone with the numbers of 4-bit matrices."""
    out = copy.deepcopy(backbone)
    with torch.no_grad():
        for layer in out.layers:
            attention, mlp = layer.attention, layer.mlp
            matrices = [attention.qkv.weight, attention.out.weight]
            if isinstance(mlp, Mixture):
                matrices += [*mlp.gate_up.weight, *mlp.down.weight]
            else:
                matrices += [mlp.gate_up.weight, mlp.down.weight]
            for weight in matrices:
                weight.copy_(ungrouped(*grouped(weight), weight.shape[1]))
    return out


@needs_compiler
def test_experts_of_four_bits_compute_with_their_rounded_matrices(loaded: Any, subtests: pytest.Subtests) -> None:
    """What is left is the rounding of rows and of the vocabulary's projection."""
    for kind in ["qwen3_moe", "rnd1"]:
        with subtests.test(kind):
            backbone, context = loaded(kind).backbone, FACTS[kind][0]
            exact, rounded = (our_logits(TorchBackend(one), context) for one in (backbone, rounded_experts(backbone)))
            got = our_logits(NativeBackend(backbone, "approximate_int4"), context)
            known = exact.isfinite()

            far, near = (float(one[known].square().mean().sqrt()) for one in (rounded - exact, got - rounded))
            assert near < far / 4


@needs_compiler
def test_experts_are_packed_a_layer_at_a_time(folder: Any, subtests: pytest.Subtests) -> None:
    for place in ["memory", "disk"]:
        for quantize in [None, "int8", "approximate_int4"]:
            with subtests.test(place, quantize=quantize):
                model = daguerre.load(folder("qwen3_moe"), dtype="bfloat16", quantize=quantize, experts=place)
                assert isinstance(model.denoiser.weights, FileWeights)
                whole = load_folder(folder("qwen3_moe"), torch.bfloat16).backbone
                assert torch.equal(
                    our_logits(model.denoiser.backend, "causal"), our_logits(NativeBackend(whole, quantize), "causal")
                )


FACTS: dict[str, tuple[Any, ...]] = {
    "qwen3_moe": ("causal", True, None, None, Experts(num=8, per_token=3, width=40, first_layer=1, normalized=True)),
    "olmoe": ("causal", True, None, None, Experts(num=8, per_token=3, width=40)),
    "sdar_moe": ("block", False, 4, MASK, Experts(num=8, per_token=3, width=40, normalized=True)),
    "rnd1": ("full", True, None, MASK, Experts(num=8, per_token=3, width=40, normalized=True)),
    "llada_moe": ("full", False, None, MASK, Experts(num=8, per_token=3, width=40, first_layer=1)),
}


def test_a_folder_says_context_shift_block_mask_and_experts(loaded: Any, subtests: pytest.Subtests) -> None:
    for kind in ORACLES:
        with subtests.test(kind):
            config = loaded(kind).config
            if kind == "llada2":
                grouped = {
                    "score": "sigmoid",
                    "bias": True,
                    "num_groups": 4,
                    "kept_groups": 2,
                    "normalized": True,
                    "scale": 2.5,
                }
                experts = Experts(num=12, per_token=3, width=40, shared_width=40, first_layer=1, **grouped)
                want: tuple[Any, ...] = ("block", False, 32, MASK, experts)
                assert (config.rope_share, config.rotary_width, config.rope_theta) == (0.5, 12, 600_000)
            else:
                want = FACTS[kind]
            assert (config.context, config.shift, config.block_size, config.mask_id, config.experts) == want
            assert (config.eos_id, config.pad_id, config.bos_id) == (END, END, None)
            assert set(config.end_ids) == {TURN}
            assert (config.qk_norm, config.qk_norm_scope) == (True, "all" if kind == "olmoe" else "head")


def test_a_family_decodes_as_published(loaded: Any, subtests: pytest.Subtests) -> None:
    for kind in ORACLES:
        with subtests.test(kind):
            model, decode = loaded(kind), FAMILIES[kind].decode
            Decode(**decode)
            result = model.generate("def f(x):", 12, **{**decode, "temperature": 0.0})
            assert len(result.tokens) > 4
            assert MASK not in [token.id for token in result.tokens]


def test_expert_bias_changes_who_is_chosen_and_not_the_weights(loaded: Any) -> None:
    """As published: weights are the scores themselves."""
    mixture = loaded("llada2").backbone.layers[1].mlp
    rows = torch.randn(50, 64, generator=torch.Generator().manual_seed(3))
    chosen, weights = mixture.choose(rows)
    scores = (rows @ mixture.router.weight.T).sigmoid()
    plain = scores.topk(3).indices.sort().values
    assert 0.1 < (chosen != plain).any(1).float().mean() < 0.95
    share = scores.gather(1, chosen)
    assert torch.allclose(weights, 2.5 * share / share.sum(1, keepdim=True), atol=1e-6)


# ---- published configs ----------------------------------------------------------------------------------------------

LLADA_MOE: dict[str, Any] = {
    "architectures": ["LLaDAMoEModel"],
    "model_type": "llada",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "expert_intermediate_size": 1024,
    "dense_intermediate_size": 8192,
    "shared_expert_intermediate_size": None,
    "moe_layer_freq": [1] * 16,
    "qk_layernorm": True,
    "rope_theta": 50_000,
    "max_position_embeddings": 8192,
    "vocab_size": 157_184,
    "pad_token_id": 156_892,
}
LLADA2: dict[str, Any] = {
    "architectures": ["LLaDA2MoeModelLM"],
    "model_type": "llada2_moe",
    "first_k_dense_replace": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "max_position_embeddings": 32_768,
    "max_window_layers": 28,
    "moe_intermediate_size": 512,
    "moe_router_enable_expert_bias": True,
    "n_group": 8,
    "norm_head": False,
    "norm_softmax": False,
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 20,
    "num_key_value_heads": 4,
    "num_shared_experts": 1,
    "pad_token_id": 156_892,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 600_000,
    "rotary_dim": 64,
    "routed_scaling_factor": 2.5,
    "router_dtype": "fp32",
    "score_function": "sigmoid",
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "topk_group": 4,
    "use_bias": False,
    "vocab_size": 157_184,
}
FLASH: dict[str, Any] = LLADA2 | {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "moe_intermediate_size": 1024,
    "intermediate_size": 9216,
}
QWEN_30B: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "eos_token_id": 151_645,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40_960,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151_936,
}
OLMOE: dict[str, Any] = {
    "architectures": ["OlmoeForCausalLM"],
    "model_type": "olmoe",
    "clip_qkv": None,
    "eos_token_id": 50_279,
    "hidden_size": 2048,
    "intermediate_size": 1024,
    "max_position_embeddings": 4096,
    "norm_topk_prob": False,
    "num_attention_heads": 16,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 16,
    "num_key_value_heads": 16,
    "vocab_size": 50_304,
}
RND1 = QWEN_30B | {"architectures": ["RND1"], "model_type": "rnd1", "mask_token_id": 151_669}
TOTALS: list[tuple[str, dict[str, Any], float, float, float]] = [
    # Files of 5, 5 and 4.72 GB in bfloat16; "only 1.4 billion are activated" (model card): without the embedding.
    ("llada_moe", LLADA_MOE, 14.72e9 / 2, 1e-3, 1.4e9 + 157_184 * 2048),
    # 30.28 GiB in bfloat16, of an edition of the same shape; "1.4B" (arXiv 2512.15745).
    ("llada2", LLADA2, 30.28 * 2**30 / 2, 2e-4, 1.4e9),
    # A file of 205,852,119,520 bytes in float16, where routers and norms have four bytes; "6.1B" (arXiv 2512.15745).
    ("llada2", FLASH, 205_852_119_520 / 2, 5e-4, 6.1e9),
    # As the hub counts them; "3.3B activated" (model card of Qwen3-30B-A3B), "1B active" (arXiv 2409.02060).
    ("qwen3_moe", QWEN_30B, 30_532_122_624, 0, 3.3e9),
    ("rnd1", RND1, 30_532_122_624, 0, 3.3e9),
    ("olmoe", OLMOE, 6_919_161_856, 0, 1.3e9),
]
"""A config, the number of all parameters and how nearly it is known, and that of those that a token goes through."""


def num_active(config: ModelConfig) -> int:
    """Parameters that a token goes through."""
    with torch.device("meta"):
        backbone = make_backbone(config)
    total = 0
    for name, weight in backbone.named_parameters():
        routed = weight.dim() == 3
        assert not routed or (config.experts is not None and name.endswith((".gate_up.weight", ".down.weight")))
        total += weight.numel() // weight.shape[0] * config.experts.per_token if routed else weight.numel()  # type: ignore
    return total


def test_published_models_have_as_many_parameters_as_published(subtests: pytest.Subtests) -> None:
    for name, values, total, tolerance, active in TOTALS:
        with subtests.test(name, total=total):
            family = find_family(values)
            assert family.name == name
            config = family.read(Published(config=values))
            with torch.device("meta"):
                assert abs(make_backbone(config).num_parameters / total - 1) <= tolerance
            assert abs(num_active(config) / active - 1) < 0.04


def test_a_published_config_gives_the_published_model() -> None:
    config = FAMILIES["llada2"].read(Published(config=LLADA2))
    assert (config.context, config.block_size, config.shift, config.mask_id) == ("block", 32, False, 156_895)
    assert (config.eos_id, config.pad_id, config.mlp_width, config.rotary_width) == (156_892, 156_892, 5120, 64)
    assert not config.qkv_bias and not config.out_bias and not config.tied and config.qk_norm
    config = FAMILIES["llada_moe"].read(Published(config=LLADA_MOE))
    assert (config.context, config.shift, config.mask_id, config.eos_id) == ("full", False, 156_895, 156_892)
    assert (config.norm_eps, config.rope_theta, config.head_width, config.rope_share) == (1e-5, 50_000, 128, 1.0)
    config = FAMILIES["rnd1"].read(Published(config=RND1))
    assert (config.context, config.shift, config.mask_id, config.eos_id) == ("full", True, 151_669, 151_645)
    name = "JetLM/SDAR-30B-A3B-Chat-b8"
    values = QWEN_30B | {"architectures": ["SDARMoeForCausalLM"], "model_type": "sdar_moe"}
    config = find_family(values).read(Published(config=values, name=name))
    assert (config.context, config.shift, config.block_size, config.mask_id) == ("block", False, 8, 151_669)


def test_what_transformers_4_and_5_write_is_read_alike() -> None:
    """Names of the number of experts, and places of the share of a head that is rotated."""
    values = {key: value for key, value in QWEN_30B.items() if key != "num_experts"} | {"num_local_experts": 128}
    read = FAMILIES["qwen3_moe"].read
    assert read(Published(config=values)) == read(Published(config=QWEN_30B))
    nested = {key: value for key, value in LLADA2.items() if key not in ("partial_rotary_factor", "rope_theta")}
    nested["rope_parameters"] = {"rope_type": "default", "rope_theta": 600_000, "partial_rotary_factor": 0.5}
    read = FAMILIES["llada2"].read
    assert read(Published(config=nested)) == read(Published(config=LLADA2))


def test_llada2_editions_are_told_apart_by_name() -> None:
    assert find_family(LLADA2, name="inclusionAI/LLaDA2.1-mini").name == "llada21"
    assert find_family(LLADA2, name="inclusionAI/LLaDA2.0-mini").name == "llada2"
    assert find_family(LLADA2, family="llada21").name == "llada21"
    assert find_family(LLADA_MOE, name="inclusionAI/LLaDA-MoE-7B-A1B-Base").name == "llada_moe"
    Decode(**FAMILIES["llada21"].decode)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("olmoe", OLMOE | {"clip_qkv": 8.0}, "clip_qkv=8.0"),
    ("qwen3_moe", QWEN_30B | {"decoder_sparse_step": 2}, "decoder_sparse_step=2"),
    ("qwen3_moe", QWEN_30B | {"mlp_only_layers": [3]}, r"mlp_only_layers=\[3\]"),
    ("qwen3_moe", {**QWEN_30B, "num_experts": None}, "no num_experts"),
    ("llada_moe", LLADA_MOE | {"moe_router_enable_expert_bias": True}, "moe_router_enable_expert_bias=True"),
    ("llada_moe", LLADA_MOE | {"moe_layer_freq": [1, 0] * 8}, "moe_layer_freq"),
    ("llada_moe", LLADA_MOE | {"moe_layer_freq": [1] * 3}, "moe_layer_freq"),
    ("llada2", LLADA2 | {"score_function": "softmax"}, "score_function='softmax'"),
    ("llada2", LLADA2 | {"norm_topk_prob": False}, "norm_topk_prob=False"),
    ("llada2", LLADA2 | {"image_token_offset": 157_184}, "image_token_offset=157184"),
    ("llada2", LLADA2 | {"expert_capacity": 48}, "for a block at once"),
    ("llada2", LLADA2 | {"n_group": 7}, "cannot be 7 equal groups"),
    ("llada2", {**LLADA2, "intermediate_size": None}, "no intermediate_size"),
]


def test_what_cannot_be_honored_is_refused(subtests: pytest.Subtests) -> None:
    for name, values, message in REFUSED:
        with subtests.test(message), pytest.raises((UnsupportedError, CheckpointError, InputError), match=message):
            FAMILIES[name].read(Published(config=values))


def test_llada22_is_refused_by_its_name() -> None:
    """Its tokens do not choose their experts by themselves."""
    with pytest.raises(UnsupportedError, match="for a block at once"):
        FAMILIES["llada2"].read(Published(config=LLADA2, name="inclusionAI/LLaDA2.2-mini"))
