"""What each value of a `config.json` may be: kinds, and limits far beyond any model, so that a file that lies is
refused before anything is made by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from daguerre.errors import CheckpointError, InputError, shown
from daguerre.kinds import (
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    SWITCH,
    Instance,
    Kind,
    Number,
    OneOf,
    Several,
    Whole,
    Words,
    check_fields,
)

MOST_LAYERS = 4096
MOST_TOKENS = 1 << 22
MOST_POSITIONS = 1 << 30
MOST_WIDTH = 1 << 22

LAYERS = Whole(low=1, high=MOST_LAYERS)
SIZE = Whole(low=1, high=MOST_WIDTH)
ABSENT = Whole(high=MOST_WIDTH)
"""A size of a part that a model may lack: 0."""
TOKEN = Whole(high=MOST_TOKENS - 1)
MAYBE_TOKEN = Whole(high=MOST_TOKENS - 1, none=True)
FINITE = Number()

NAMES: dict[str, tuple[str, ...]] = {
    "context": ("causal", "block", "full", "reordered"),
    "anchor": ("noisy", "clean"),
    "process": ("absorbing", "uniform", "hybrid"),
    "norm": ("rms", "layer"),
    "norm_placement": ("pre", "post", "both"),
    "activation": ("silu", "gelu", "gelu_tanh"),
    "positions": ("rotary", "learned"),
    "qk_norm_scope": ("head", "all"),
    "draft_rows": ("none", "learned", "random"),
}
"""The allowed values of each of these fields."""

CONFIG: dict[str, Kind] = {
    **{name: OneOf(known=known) for name, known in NAMES.items()},
    **dict.fromkeys(
        (
            *("shift", "time_input", "qk_norm", "qkv_bias", "out_bias", "mlp_bias", "tied", "output_bias", "norm_bias"),
            *("gated_mlp", "masks_in_place", "draft_split"),
        ),
        SWITCH,
    ),
    **dict.fromkeys(("width", "num_heads", "num_kv_heads", "mlp_width"), SIZE),
    **dict.fromkeys(("head_width", "adaptive_width", "draft_head", "draft_rank"), ABSENT),
    **dict.fromkeys(("mask_id", "bos_id", "null_id", "expand_id"), MAYBE_TOKEN),
    "num_layers": LAYERS,
    "vocab_size": Whole(low=1, high=MOST_TOKENS),
    "max_positions": Whole(low=1, high=MOST_POSITIONS),
    "block_size": Whole(low=1, high=MOST_POSITIONS, none=True),
    "norm_eps": NOT_NEGATIVE,
    "rope_theta": POSITIVE,
    "rope_share": SHARE,
    "clip_qkv": Number(low=0, above=True, none=True),
    "embedding_scale": POSITIVE,
    "attention_scale": Number(low=0, above=True, none=True),
    "eos_id": TOKEN,
    "pad_id": TOKEN,
    "end_ids": Several(one=TOKEN, what="a list of token ids"),
    "noise_ids": Several(one=Whole(high=MOST_TOKENS), what="two numbers, [first, end),", none=True),
    "draft_matrices": Several(one=Words(), what="a list of names of matrices"),
    "draft_tokens": Several(one=TOKEN, what="a list of token ids"),
    "draft_acceptance": Several(
        one=Several(one=Number(low=0, high=1), what="a list of chances"), what="two lists of chances, or none"
    ),
}
"""The kinds of the fields of a `ModelConfig`, but for its parts."""

SCALING: dict[str, Kind] = {
    "kind": OneOf(known=("linear", "llama3", "yarn", "longrope"), what="rope scaling"),
    "factor": POSITIVE,
    "original_positions": Whole(high=MOST_POSITIONS),
    "low_freq_factor": POSITIVE,
    "high_freq_factor": POSITIVE,
    "beta_fast": POSITIVE,
    "beta_slow": POSITIVE,
    "attention_factor": Number(low=0, above=True, none=True),
    "query_beta": FINITE,
    **dict.fromkeys(("short", "long"), Several(one=POSITIVE, what="a list of numbers above 0")),
}
WINDOWS: dict[str, Kind] = {
    "size": Whole(low=1, high=MOST_POSITIONS),
    "layers": Several(one=Whole(high=MOST_LAYERS), what="a list of numbers of layers"),
    "rope_theta": Number(low=0, above=True, none=True),
}
EXPERTS: dict[str, Kind] = {
    **{name: Whole(low=1, high=MOST_WIDTH) for name in ("num", "per_token", "width", "num_groups", "kept_groups")},
    **dict.fromkeys(("bias", "normalized"), SWITCH),
    "shared_width": ABSENT,
    "first_layer": Whole(high=MOST_LAYERS),
    "score": OneOf(known=("softmax", "sigmoid"), what="score of experts"),
    "scale": FINITE,
}
CONCEPTS: dict[str, Kind] = {
    **dict.fromkeys(("known", "discovered", "rank", "kept_known", "kept_discovered"), SIZE),
    **dict.fromkeys(("spare_known", "spare_discovered"), ABSENT),
    "bias": SWITCH,
    "reads": SWITCH,
    "taxonomy": Words(),
}
FIM: dict[str, Kind] = {
    **dict.fromkeys(("prefix", "suffix"), TOKEN),
    **dict.fromkeys(("middle", "repository", "file"), MAYBE_TOKEN),
    "suffix_first": SWITCH,
}
GEMMA: dict[str, Kind] = {
    "global_head_width": SIZE,
    "global_kv_heads": SIZE,
    "global_rope_theta": POSITIVE,
    "global_rope_share": Number(low=0, high=1),
    "softcap": POSITIVE,
}


def check(record: Any, kinds: Mapping[str, Kind], of: str = "") -> None:
    """Read the fields of a part of a configuration by their kinds. CheckpointError for a value that is none; `of`: the
    part's name.
    """
    try:
        check_fields(record, kinds)
    except InputError as error:
        raise CheckpointError(f"{of}{error}") from None


def check_part(name: str, part: object, kind: type) -> None:
    """CheckpointError for a part of a configuration that is none of its kind."""
    try:
        Instance(of=(kind,), what="an object with the fields of one", none=True)(name, part)
    except InputError as error:
        raise CheckpointError(str(error)) from None


def check_tokens(vocab_size: int, named: Mapping[str, int | None], ends: tuple[int, ...]) -> None:
    """CheckpointError for the id of a token that is outside the vocabulary, and for a mask that is another token, too.

    named   ids by the names of their fields; `ends` the other ends of a text
    """
    for name, index in (*named.items(), *(("end_ids", end) for end in ends)):
        if index is not None and index >= vocab_size:
            raise CheckpointError(f"{name}={index} is outside the vocabulary of {vocab_size}")
    others = {name: index for name, index in named.items() if name not in ("mask_id", "pad_id")}
    for name, index in (*others.items(), *(("end_ids", end) for end in ends)):
        if index is not None and index == named["mask_id"]:
            raise CheckpointError(f"mask_id={index} is {name}, too: a mask is no other token")
    if named["expand_id"] is not None and named["expand_id"] in (named["null_id"], named["eos_id"]):
        raise CheckpointError(f"expand_id={named['expand_id']} ends a text or a gap, too: it does neither")


def check_draft_tokens(vocab_size: int, tokens: tuple[int, ...]) -> None:
    """CheckpointError for tokens of drafts that are not ascending, or not of the vocabulary."""
    if tokens and (tokens[-1] >= vocab_size or any(a >= b for a, b in pairwise(tokens))):
        raise CheckpointError(f"draft_tokens are token ids below {vocab_size}, each once, in ascending order")


def check_reserved(vocab_size: int, reserved: Any) -> tuple[int, ...]:
    """The ids of reserved tokens, ascending. CheckpointError for what is none."""
    if isinstance(reserved, str | bytes | Mapping) or not hasattr(reserved, "__iter__"):
        raise CheckpointError(f"reserved_ids must be a list of token ids, not {shown(reserved)}")
    each = reserved if isinstance(reserved, range) else list(reserved)
    if len(each) > MOST_TOKENS or not all(type(index) is int for index in each):
        raise CheckpointError(f"reserved_ids must be a list of token ids, not {shown(reserved)}")
    ids = tuple(sorted({*each}))
    if ids and not 0 <= ids[0] <= ids[-1] < vocab_size:
        wrong = ids[0] if ids[0] < 0 else ids[-1]
        raise CheckpointError(f"reserved_ids: {shown(wrong)} is outside the vocabulary of {vocab_size}")
    return ids
