"""Which of llama.cpp's architectures computes a model, and what such a file says beyond a Llama's shape."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from daguerre.errors import UnsupportedError
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.shapes import Experts, Windows
from daguerre.models.export import CARRIED
from daguerre.models.gguf.cores import LOCAL_THETA, PATTERN, SCALED_BY_WIDTH
from daguerre.models.gguf.pieces import PAIRED

MIXTURES = {"causal": "qwen3moe", "block": "qwen3moe"}
"""The architecture of mixtures whose weights are normalized, by context; in full context rnd1."""
PHI3 = ("windows", "rope_share", "rope_scaling")
"""What is different in Phi-3, of the fields that others do not have."""
LLADA2 = ("experts", "rope_share")
"""What is different in LLaDA2."""
GEMMA3 = ("norm_placement", "embedding_scale", "attention_scale", "windows")
"""What is different in Gemma 3."""


def arch_of(config: ModelConfig, family: str | None = None) -> str:
    """llama.cpp's architecture that computes a model. UnsupportedError, with the reason, where none does.

    family   the model's, which tells a Mistral with windows and a Phi-3 from one another
    """
    arch, carried = _own(config, family)
    for entry in fields(config):
        value = getattr(config, entry.name)
        if entry.name not in (*CARRIED, *carried) and value != entry.default:
            raise _none_with(f"{entry.name}={value!r:.60}")
    if config.activation != ("gelu_tanh" if arch == "gemma3" else "silu"):
        raise _none_with(f"activation={config.activation!r}")
    if config.context == "reordered":
        raise _none_with(f"context={config.context!r}")
    arch = arch or _plain(config)
    scaling = config.rope_scaling
    if scaling is not None and (
        (scaling.kind == "llama3" and arch not in PAIRED) or (scaling.kind == "longrope" and arch != "phi3")
    ):
        kind = "Llama 3's rope scaling" if scaling.kind == "llama3" else "longrope"
        raise _none_with(f"{kind} in its architecture {arch}")
    if scaling is not None and scaling.query_beta:
        raise _none_with("query_beta")
    return arch


def _own(config: ModelConfig, family: str | None) -> tuple[str | None, tuple[str, ...]]:
    """The architecture of a model that is not like a Llama or a Qwen, and fields of its config that it has beyond
    theirs; None for any other.
    """
    if config.norm_placement == "both":
        _check_gemma3(config)
        return "gemma3", GEMMA3
    if config.experts is not None and config.experts.score == "sigmoid":
        _check_llada2(config, config.experts)
        return "llada2", LLADA2
    if config.experts is not None:
        return _mixture(config, config.experts), ("experts",)
    scaled = config.rope_scaling is not None and config.rope_scaling.kind == "longrope"
    if family == "phi3" or scaled or config.rope_share != 1:
        _check_phi3(config)
        return "phi3", PHI3
    if family == "mistral" and config.windows is not None and _are_all(config.windows, config.num_layers):
        return None, ("windows",)
    return None, ()


def _plain(config: ModelConfig) -> str:
    """The architecture of a Llama, a Qwen, a Dream or a LLaDA."""
    biases = config.qkv_bias, config.out_bias, config.mlp_bias
    full = config.context == "full"
    if config.qk_norm:
        arch, possible = "qwen3", not any(biases)
    elif biases == (True, False, False):
        arch, possible = ("dream" if full else "qwen2"), config.num_heads * config.head_width == config.width
    else:
        arch, possible = (
            ("llada" if full else "llama"),
            biases in ((False,) * 3, (True, True, True), (True, True, False)),
        )
        possible &= not (full and any(biases))
    if not possible:
        raise _none_with(f"biases {biases}, qk_norm={config.qk_norm} and heads of width {config.head_width}")
    return arch


def _mixture(config: ModelConfig, experts: Experts) -> str:
    """The architecture of a mixture of experts in every layer, of the kind that Qwen3's are."""
    plain = Experts(num=experts.num, per_token=experts.per_token, width=experts.width, normalized=experts.normalized)
    if experts != plain:
        raise _none_with(f"experts={experts!r:.200}")
    if not config.qk_norm or config.qkv_bias or config.out_bias:
        biases = config.qkv_bias, config.out_bias
        raise _none_with(f"biases {biases} and qk_norm={config.qk_norm} beside experts")
    if config.context == "full" and config.shift != experts.normalized:
        raise _none_with(f"shift={config.shift} beside experts, normalized={experts.normalized}")
    if config.context == "full":
        if not config.shift and config.num_heads * config.head_width != config.width:
            raise _none_with(f"experts beside heads of width {config.head_width}")
        return "rnd1" if config.shift else "llada-moe"
    if not experts.normalized:
        raise _none_with(f"experts={experts!r:.200}")
    return MIXTURES[config.context]


def _check_llada2(config: ModelConfig, experts: Experts) -> None:
    biases = config.qkv_bias, config.out_bias, config.mlp_bias
    square = config.num_heads * config.head_width == config.width
    if not (experts.bias and experts.normalized and experts.shared_width) or experts.shared_width % experts.width:
        raise _none_with(f"experts={experts!r:.200}")
    if not config.qk_norm or any(biases) or not square or config.context != "block" or config.shift:
        what = f"biases {biases}, qk_norm={config.qk_norm}, heads of {config.head_width}, {config.context} context"
        raise _none_with(f"{what} and shift={config.shift} beside experts={experts!r:.200}")


def _check_gemma3(config: ModelConfig) -> None:
    windows, wide = config.windows, config.num_layers == SCALED_BY_WIDTH
    per_query = config.width // config.num_heads if wide else config.head_width
    scale = config.head_width**-0.5 if config.attention_scale is None else config.attention_scale
    if not config.qk_norm or abs(config.embedding_scale / config.width**0.5 - 1) > 1e-6:
        raise _none_with(f"qk_norm={config.qk_norm} and embedding_scale={config.embedding_scale:g} in a Gemma 3")
    if abs(scale * per_query**0.5 - 1) > 1e-6:
        raise _none_with(f"attention_scale={scale:g} in a Gemma 3")
    if windows is None or windows.rope_theta is None or pattern_of(windows, config.num_layers) is None:
        raise _none_with(f"windows={windows!r:.200} in a Gemma 3")


def _check_phi3(config: ModelConfig) -> None:
    biases = config.qkv_bias, config.out_bias, config.mlp_bias
    square = config.num_heads * config.head_width == config.width
    if config.qk_norm or any(biases) or not square or config.context != "causal":
        raise _none_with(f"biases {biases}, qk_norm={config.qk_norm} and heads of {config.head_width} in a Phi-3")
    if config.windows is not None and not _are_all(config.windows, config.num_layers):
        raise _none_with(f"windows={config.windows!r:.200} in a Phi-3")


def _are_all(windows: Windows, num_layers: int) -> bool:
    return len(windows.layers) == num_layers and windows.rope_theta is None


def pattern_of(windows: Windows, num_layers: int) -> int | None:
    """Every which layer of all is global; None where that is not so."""
    others = [layer for layer in range(num_layers) if layer not in windows.layers]
    every = others[0] + 1 if others else num_layers + 1
    return every if others == list(range(every - 1, num_layers, every)) else None


def add_windows(writer: Any, windows: Windows, num_layers: int) -> None:
    """Add the window, and for Gemma 3 which layers it is of, and their rotary positions."""
    writer.add_sliding_window(windows.size)
    if windows.rope_theta is None:
        return
    every = pattern_of(windows, num_layers)
    assert every is not None
    if every != PATTERN:
        writer.add_sliding_window_pattern(every)
    if windows.rope_theta != LOCAL_THETA:
        writer.add_rope_freq_base_swa(windows.rope_theta)


def add_experts(writer: Any, gguf: Any, experts: Experts) -> None:
    """Add what a file says of its experts."""
    writer.add_expert_count(experts.num)
    writer.add_expert_used_count(experts.per_token)
    writer.add_expert_feed_forward_length(experts.width)
    if experts.score != "sigmoid":
        return
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_weights_norm(experts.normalized)
    writer.add_expert_weights_scale(experts.scale)
    writer.add_expert_group_count(experts.num_groups)
    writer.add_expert_group_used_count(experts.kept_groups)
    writer.add_leading_dense_block_count(experts.first_layer)
    writer.add_expert_shared_count(1)  # llama.cpp multiplies the length by it
    writer.add_expert_shared_feed_forward_length(experts.shared_width)


def _none_with(what: str) -> UnsupportedError:
    return UnsupportedError(f"llama.cpp has no architecture of ours with {what}: this model stays here")
