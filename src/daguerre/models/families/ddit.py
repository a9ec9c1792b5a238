"""Diffusion transformers with adaptive norms (DDiT), on OpenWebText: MDLM, BD3-LM, SEDD, Duo, and their AR baseline.

They have one core (`models.core.adaptive`), rotary positions, an MLP with GELU, and a projection with a bias. What
differs is the process, who sees whom, and whether the noise level is an input:

    MDLM    masks, full context                      level zeroed in training: not an input
    BD3-LM  masks, blocks that see those before them level zeroed
    SEDD    masks, full context                      level is an input
    Duo     uniform noise, full context              level is an input
    AR      none, causal context                     plain norms

All use the tokenizer of GPT-2, whose last token, <|endoftext|>, is followed by the mask. It stands before every text
of training, and so before every canvas, except with SEDD, which was trained on windows that begin anywhere.

SEDD's score at a mask is p(x_0 = y) / (e^sigma - 1), and its logarithm is the output of the network less numbers that
are the same for all tokens (arXiv 2310.16834, section 4). So a softmax of the output without the mask is its prediction
of the clean token, and all else is as for MDLM.

Duo's noise draws every id of its vocabulary, one of which is no token of the tokenizer; it is never predicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from daguerre.errors import CheckpointError, UnsupportedError
from daguerre.models.core.config import ModelConfig, ProcessName
from daguerre.models.families.base import Family, Piece, Published
from daguerre.models.families.reading import flag, mask_of, number, token, vocabulary, whole

IGNORED = (r".*rotary_emb\.inv_freq", r"sampling_eps_(min|max)")
"""Tables of rotary positions; the range of noise levels that BD3-LM was trained on."""
CORE: dict[str, Any] = {
    "qk_norm": False,
    "mlp_bias": True,
    "tied": False,
    "output_bias": True,
    "norm": "layer",
    "norm_bias": False,
    "norm_eps": 1e-5,
    "activation": "gelu_tanh",
    "gated_mlp": False,
}


def _shape(values: Mapping[str, Any], live: bool) -> dict[str, Any]:
    """The fields of the core, and the context. `live`: the noise level is an input."""
    width, heads, length = whole(values, "hidden_dim"), whole(values, "n_heads"), whole(values, "model_length", 1024)
    causal = flag(values, "causal")
    block = whole(values, "block_size", length) if flag(values, "cross_attn") and not causal else length
    adaptive = flag(values, "adaln", default=not causal)
    if live and block < length:
        raise UnsupportedError(
            "a model of blocks whose noise level is an input (time_conditioning) cannot be computed: take one without"
        )
    return {
        "width": width,
        "num_layers": whole(values, "n_blocks"),
        "num_heads": heads,
        "num_kv_heads": heads,
        "mlp_width": 4 * width,
        "max_positions": length,
        "context": "causal" if causal else "block" if block < length else "full",
        "shift": causal,
        "block_size": block if block < length else None,
        "time_input": live and adaptive,
        "adaptive_width": whole(values, "cond_dim", 128) if adaptive else 0,
        "rope_theta": number(values, "rope_theta", 10_000.0),
        **CORE,
    }


def _read(values: Mapping[str, Any], published: Published, process: ProcessName, live: bool) -> ModelConfig:
    """`live`: the noise level is an input. A canvas begins with the end of text."""
    size, shape = whole(values, "vocab_size"), _shape(values, live)
    masks = process == "absorbing" and not shape["shift"]
    mask_id = mask_of(published, size - 1) if masks else None
    end_id = size - 2 if token(published, "eos_token") is None else None
    fields = vocabulary(published, size, mask_id=mask_id, eos_id=end_id, never=() if masks else (size - 1,))
    fields["bos_id"] = fields["eos_id"] if fields["bos_id"] is None else fields["bos_id"]
    noise_ids = (0, size) if process == "uniform" else None
    return ModelConfig(**shape, process=process, noise_ids=noise_ids, **fields)


def read_masked(published: Published) -> ModelConfig:
    """MDLM, BD3-LM, and baselines in their format: the AR model, and SEDD, whose noise level is an input."""
    live = flag(published.config, "time_conditioning") and not flag(published.config, "causal")
    return _read(published.config, published, "absorbing", live)


def read_duo(published: Published) -> ModelConfig:
    values = published.config
    if not flag(values, "time_conditioning", default=True):
        raise UnsupportedError("Duo cannot undo uniform noise without the noise level: take one with time_conditioning")
    causal = flag(values, "causal")
    return _read(values, published, "absorbing" if causal else "uniform", not causal)


def read_sedd(published: Published) -> ModelConfig:
    """From the sections of the publisher's training configuration."""
    model, graph, noise = (_section(published.config, name) for name in ("model", "graph", "noise"))
    kinds = graph.get("type"), noise.get("type")
    if kinds != ("absorb", "loglinear"):
        raise UnsupportedError(
            f"SEDD with noise {kinds[0]!r} on a schedule {kinds[1]!r} cannot be computed: take absorb and loglinear"
        )
    names = {"hidden_dim": "hidden_size", "model_length": "length"}
    flat = {name: whole(model, names.get(name, name)) for name in ("cond_dim", "n_blocks", "n_heads", *names)}
    flat["vocab_size"] = whole(published.config, "tokens") + 1
    return replace(_read(flat, published, "absorbing", True), bos_id=published.bos_id)


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    if not isinstance(section, Mapping):
        raise CheckpointError(f"config.json has no section {name!r} of SEDD's configuration: copy the folder again")
    return section


PREFIX = "backbone."
LAYER = {
    "norm1.weight": "attention_norm.weight",
    "attn_qkv.weight": "attention.qkv.weight",
    "attn_out.weight": "attention.out.weight",
    "norm2.weight": "mlp_norm.weight",
    "mlp.0.weight": "mlp.up.weight",
    "mlp.0.bias": "mlp.up.bias",
    "mlp.2.weight": "mlp.down.weight",
    "mlp.2.bias": "mlp.down.bias",
}
OUTSIDE = {
    "vocab_embed.embedding": "embedding.weight",
    "output_layer.norm_final.weight": "final_norm.weight",
    "output_layer.linear.weight": "output.weight",
    "output_layer.linear.bias": "output.bias",
}
ADAPTIVE = {
    "sigma_map.mlp.0": "level_embedding.first",
    "sigma_map.mlp.2": "level_embedding.second",
    "output_layer.adaLN_modulation": "final_modulation",
}


def pieces(config: ModelConfig, prefix: str = PREFIX) -> list[Piece]:
    """Every tensor, whose published names begin with `prefix`."""
    names, adaptive = dict(OUTSIDE), dict(ADAPTIVE)
    for layer in range(config.num_layers):
        names |= {f"blocks.{layer}.{name}": f"layers.{layer}.{target}" for name, target in LAYER.items()}
        adaptive[f"blocks.{layer}.adaLN_modulation"] = f"layers.{layer}.modulation"
    if config.adaptive_width:
        names |= {f"{name}.{end}": f"{to}.{end}" for name, to in adaptive.items() for end in ("weight", "bias")}
    return [Piece(prefix + name, target) for name, target in names.items()]


ANCESTRAL = {"mode": "ancestral", "temperature": 1.0}
MDLM = Family(
    name="mdlm",
    title="MDLM",
    model_types=("mdlm",),
    architectures=("MDLM",),
    read=read_masked,
    pieces=pieces,
    prefix=PREFIX,
    ignored=IGNORED,
    decode=ANCESTRAL,
    tokenizer="openai-community/gpt2",
    examples=("kuleshov-group/mdlm-owt", "kuleshov-group/mdlm-noeos-owt"),
    source="arXiv 2406.07524; github.com/kuleshov-group/mdlm",
)
BD3LM = replace(
    MDLM,
    name="bd3lm",
    title="BD3-LM with blocks of 4, 8 and 16",
    model_types=("bd3lm",),
    architectures=("BD3LM",),
    decode={"mode": "block", "policy": "first_hitting", "temperature": 1.0},
    examples=tuple(f"kuleshov-group/bd3lm-owt-block_size{size}" for size in (4, 8, 16)),
    source="arXiv 2503.09573; github.com/kuleshov-group/bd3lms",
)
AR = replace(
    BD3LM,
    name="ddit_ar",
    title="the autoregressive baseline of MDLM and BD3-LM",
    names=(r"(^|/)ar-",),
    decode={"mode": "ar", "temperature": 1.0},
    examples=("kuleshov-group/ar-noeos-owt",),
)
SEDD = replace(
    MDLM,
    name="sedd",
    title="SEDD absorbing S and M",
    model_types=("sedd",),
    architectures=("SEDD",),
    read=read_sedd,
    pieces=partial(pieces, prefix=""),
    marks=("model", "graph", "noise", "tokens"),
    prefix="",
    examples=("louaaron/sedd-small", "louaaron/sedd-medium"),
    source="arXiv 2310.16834; github.com/louaaron/Score-Entropy-Discrete-Diffusion",
)
DUO = replace(
    MDLM,
    name="duo",
    title="Duo, base and distilled",
    model_types=("DUO", "duo"),
    architectures=("DUO",),
    read=read_duo,
    examples=("s-sahoo/duo", "s-sahoo/duo-distilled"),
    source="arXiv 2506.10892; github.com/s-sahoo/duo",
)
FAMILIES = (MDLM, BD3LM, AR, SEDD, DUO)
