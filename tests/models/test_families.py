"""Every family of published checkpoints computes what an independent implementation does, from the published files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from backends import BACKENDS
from daguerre.decoding.request import Decode
from daguerre.errors import CheckpointError, InputError, UnsupportedError
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.rotary import frequencies, own_positions
from daguerre.models.families import FAMILIES, find_family
from daguerre.models.loading import Loaded, load_folder
from daguerre.models.published import describe
from published import (
    CASES,
    END,
    GPT2,
    LLADA,
    LLAMA,
    MASK,
    NUM_TOKENS,
    QWEN2,
    ROWS,
    SIZE,
    Case,
    logits_under,
    made,
    ours,
    own_logits,
    seen_by,
)

OWN = ("llama", "qwen", "gpt2", "llada", "dream", "sdar", "fast_dllm", "gemma3", "phi3")
"""Modules whose families are tested here; those of other cores have tests of their own."""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Loaded]:
    """What is read from the folder of each case."""
    root = tmp_path_factory.mktemp("published")
    return {
        name: load_folder(case.write(root / str(number), made(name)))
        for number, (name, case) in enumerate(CASES.items())
    }


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_checkpoint_gives_the_logits_of_an_independent_implementation(
    backend: str, loaded: dict[str, Loaded], subtests: pytest.Subtests
) -> None:
    for name, case in CASES.items():
        with subtests.test(name):
            oracle, config = made(name), loaded[name].backbone.config
            assert loaded[name].family == case.family
            assert {fact: getattr(config, fact) for fact in case.facts} == dict(case.facts)
            tokens, seen = np.random.default_rng(0).integers(0, NUM_TOKENS, ROWS), seen_by(config)
            given = torch.from_numpy(tokens)
            expected = logits_under(oracle, given, seen) if config.windows is None else own_logits(oracle, given)
            assert_frequencies(oracle, config)
            got = ours(backend, loaded[name].backbone, tokens, seen)
            drawn = [index for index in range(SIZE) if index not in config.unpredictable_ids]
            assert (got[:, drawn] - expected[:, drawn]).abs().max() < 1e-4
            assert torch.isneginf(got[:, list(config.unpredictable_ids)]).all()
            assert 0.3 < expected.softmax(-1).amax(-1).mean() < 0.7
            causal = logits_under(oracle, given, torch.ones_like(seen).tril())
            plain = config.context == "causal" and config.windows is None
            assert plain == bool((causal - expected).abs().max() < 1e-4)


def assert_frequencies(oracle: torch.nn.Module, config: ModelConfig) -> None:
    """The oracle rotates by the angles of the config: transformers 5 loads some models with wrong ones, silently."""
    if config.positions == "learned":
        return
    found = oracle.model.rotary_emb
    for sliding in (False, True):
        kind = ("sliding_attention_" if sliding else "full_attention_") if own_positions(config) else ""
        turns, scale = frequencies(config, sliding=sliding)
        assert torch.allclose(getattr(found, f"{kind}inv_freq"), turns, rtol=1e-5)
        assert getattr(found, f"{kind}attention_scaling") == pytest.approx(scale)
    if config.rope_scaling is None:
        width = config.head_width
        closed = [config.rope_theta ** (-2 * pair / width) for pair in range(width // 2)]
        assert torch.allclose(found.inv_freq, torch.tensor(closed), rtol=1e-5)


def test_tokens_without_a_text_are_never_predicted(loaded: dict[str, Loaded], subtests: pytest.Subtests) -> None:
    for name, case in CASES.items():
        with subtests.test(name):
            config = loaded[name].backbone.config
            unused = {*range(NUM_TOKENS, SIZE)} | ({config.mask_id} - {None})
            assert {*config.unpredictable_ids} == unused
            assert config.eos_id == END or case.family == "coda"


def test_the_published_defaults_are_options_of_decode(subtests: pytest.Subtests) -> None:
    for name, family in FAMILIES.items():
        with subtests.test(name):
            assert Decode(**family.decode)
            assert family.title
            assert family.source
            assert family.examples


def test_every_family_is_tested() -> None:
    tested = {case.family for case in CASES.values()}
    own = {f.name for f in FAMILIES.values() if f.read.__module__.rpartition(".")[2] in OWN}
    assert own <= tested


def test_pieces_cover_every_weight_exactly_once(loaded: dict[str, Loaded], subtests: pytest.Subtests) -> None:
    for name, case in CASES.items():
        with subtests.test(name):
            config = loaded[name].backbone.config
            with torch.device("meta"):
                parts = Backbone(config).state_dict()
            covered = {target: np.zeros(tensor.shape, dtype=int) for target, tensor in parts.items()}
            for piece in FAMILIES[case.family].pieces(config):
                if not piece.copy:
                    covered[piece.target][piece.index] += 1
            assert all((count == 1).all() for count in covered.values())


def config_of(name: str, **changes: object) -> dict[str, object]:
    case = CASES[name]
    return {"architectures": [case.architecture], "model_type": case.model_type, **case.config, **changes}


def test_a_family_is_found_by_architecture_then_by_model_type() -> None:
    assert find_family({"architectures": ["SDARForCausalLM"], "model_type": "qwen3"}).name == "sdar"
    assert find_family({"architectures": ["Custom"], "model_type": "qwen3"}).name == "qwen3"
    assert find_family({"model_type": "llada"}).name == "llada"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"architectures": ["LlamaForCausalML"]}, ["LlamaForCausalML", "nearest", "LlamaForCausalLM (llama)"]),
        ({"architectures": ["MambaForCausalLM"], "model_type": "mamba"}, ["'mamba'", "supported are", "llada", "sdar"]),
        ({"architectures": ["Other"]}, ["Other"]),
    ],
)
def test_an_unknown_architecture_is_refused_with_what_is_supported(config: dict[str, object], words: list[str]) -> None:
    with pytest.raises(UnsupportedError) as caught:
        find_family(config)
    assert all(word in str(caught.value) for word in words)
    assert "\n" not in str(caught.value)


def test_models_of_one_architecture_are_told_apart_or_the_user_is_asked() -> None:
    plain, masked = config_of("qwen2"), {"mask_token": "<M>"}
    assert find_family(plain).name == "qwen2"
    assert find_family(config_of("sdlm"), tokenizer=masked).name == "sdlm"
    assert find_family(plain, tokenizer=masked, name="fredzzp/open-dcoder-0.5B").name == "open_dcoder"
    assert find_family(plain, tokenizer=masked, family="qwen2").name == "qwen2"
    with pytest.raises(InputError, match="'qwen2' and 'open_dcoder'"):
        find_family(plain, tokenizer=masked, name="mine")
    assert find_family(config_of("a2d"), name="x-BD3LM").name == "a2d_block"
    with pytest.raises(InputError, match="'a2d' and 'a2d_block'"):
        find_family(config_of("a2d"), name="mine")
    with pytest.raises(InputError, match="did you mean 'llada'"):
        find_family(plain, family="lada")
    with pytest.raises(InputError, match="not of family 'llada', but of 'qwen2'"):
        find_family(plain, family="llada")


REFUSED = [
    ("llama", {"sliding_window": 8}, "sliding_window=8"),
    ("a2d", {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 8}, "sliding_window=8"),
    (
        "sdar",
        {
            "layer_types": ["full_attention", "sliding_attention"],
            "sliding_window": 8,
            "use_sliding_window": True,
        },
        "sliding_window=8",
    ),
    ("gemma3", {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping=30.0"),
    ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
    ("phi3", {"attention_bias": True}, "attention_bias=True"),
    ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope scaling 'dynamic'"),
    ("llama", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "single layers"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
    ("llama", {"hidden_act": "relu"}, "hidden_act='relu'"),
    ("llama", {"quantization_config": {"quant_method": "fp8"}}, r"quantized \(fp8\)"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
    ("llada", {"alibi": True}, "alibi=True"),
    ("llada", {"block_type": "sequential"}, "block_type='sequential'"),
    ("llada", {"attention_layer_norm": True}, "attention_layer_norm=True"),
    ("llada", {"scale_logits": True}, "scale_logits=True"),
    ("dream", {"block_size": 32}, "block_size=32"),
    ("sdlm", {"causal_attn": True}, "causal_attn=true"),
]


def test_what_the_core_cannot_compute_is_refused_by_name(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for number, (name, changes, message) in enumerate(REFUSED):
        with subtests.test(message):
            (parent := tmp_path / str(number)).mkdir()
            case: Case = CASES[name]
            folder = case.write(parent, made(name))
            assert load_folder(folder).family == case.family
            case.write(parent, made(name), **changes)
            with pytest.raises(UnsupportedError, match=message) as caught:
                load_folder(folder)
            assert "\n" not in str(caught.value)


def test_a_window_as_long_as_the_context_changes_nothing(tmp_path: Path) -> None:
    folder = CASES["mistral"].write(tmp_path, made("mistral"), sliding_window=128)
    assert load_folder(folder).backbone.config.max_positions == 128


def test_code_that_a_checkpoint_names_or_contains_is_not_run(tmp_path: Path) -> None:
    folder = CASES["dream"].write(tmp_path, made("dream"))
    (folder / "modeling_dream.py").write_text("raise SystemExit('this was run')")
    assert load_folder(folder).family == "dream"


MOE = {"moe_intermediate_size": 16, "num_experts": 8, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2}
WRONG: list[tuple[str, dict[str, object], dict[str, object], str]] = [
    ("LLaDA2MoeModelLM", MOE, {"num_shared_experts": "x"}, "num_shared_experts must be a whole number from 0 up"),
    ("LLaDA2MoeModelLM", MOE, {"first_k_dense_replace": 2.5}, "first_k_dense_replace must be a whole number from 0 up"),
    (
        "LLaDAMoEModelLM",
        MOE | {"expert_intermediate_size": 16},
        {"moe_layer_freq": 5},
        "moe_layer_freq must be a list of",
    ),
    (
        "LLaDAMoEModelLM",
        MOE | {"expert_intermediate_size": 16},
        {"moe_layer_freq": [None]},
        "moe_layer_freq must be a list of",
    ),
    ("Qwen3MoeForCausalLM", MOE, {"mlp_only_layers": 5}, "mlp_only_layers must be a list of"),
    ("Qwen3MoeForCausalLM", MOE, {"mlp_only_layers": ["x", 1]}, "mlp_only_layers must be a list of"),
    (
        "GPT2LMHeadModel",
        GPT2 | {"mask_token_id": None},
        {"activation_function": ["gelu"]},
        "activation_function must be a name",
    ),
    ("Phi3ForCausalLM", {}, {"rope_scaling": {"type": "longrope", "factor": 2.0}}, "short_factor must be a list"),
    ("Phi3ForCausalLM", {}, {"layer_types": ["sliding_attention"]}, "layer_types must be 2 of"),
    (
        "Phi3ForCausalLM",
        {},
        {"layer_types": ["sliding_attention"] * 2, "sliding_window": 8, "use_sliding_window": False},
        "use_sliding_window is false",
    ),
    ("Phi3ForCausalLM", {}, {"layer_types": ["sliding_attention"] * 2}, "sliding_window above 0"),
    ("DreamModel", {}, {"bos_token_id": True, "mask_token_id": "259"}, "mask_token_id must be the number of a token"),
]


def test_a_value_of_a_wrong_kind_is_one_line(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for architecture, more, changes, message in WRONG:
        with subtests.test(architecture, changes=changes):
            config = {"architectures": [architecture], **LLAMA, "head_dim": 8, "mask_token_id": MASK, **more}
            (tmp_path / "config.json").write_text(json.dumps(config))
            assert describe(tmp_path)
            (tmp_path / "config.json").write_text(json.dumps(config | changes))
            with pytest.raises(CheckpointError, match=message) as caught:
                describe(tmp_path)
            assert "\n" not in str(caught.value)


def test_a_beginning_outside_the_vocabulary_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for bos in [99_999, -1, True]:
        with subtests.test(bos=bos):
            folder = CASES["diffullama"].write(tmp_path, made("diffullama"), bos_token_id=bos)
            with pytest.raises(CheckpointError, match=r"bos_token_id(=| must be the number of a token)"):
                load_folder(folder)


def test_the_configs_of_the_tests_have_the_publishers_keys() -> None:
    """Keys of config.json of Qwen/Qwen2.5-0.5B, GSAI-ML/LLaDA-8B-Base and meta-llama/Llama-3.2-1B on the hub."""
    assert {"use_sliding_window", "max_window_layers", "sliding_window"} <= QWEN2.keys()
    assert {"d_model", "n_kv_heads", "mlp_hidden_size", "embedding_size", "weight_tying"} <= LLADA.keys()
    assert {"rope_theta", "rope_scaling", "rms_norm_eps"} <= LLAMA.keys()
