"""What families share to read a published `config.json`: numbers, rotary positions, special tokens, and refusals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from daguerre.errors import CheckpointError, InputError, UnsupportedError, shown
from daguerre.kinds import Number
from daguerre.models.core.config import ModelConfig, RopeScaling, Windows
from daguerre.models.core.limits import MOST_LAYERS, MOST_POSITIONS, MOST_TOKENS
from daguerre.models.families.base import Published
from daguerre.models.families.base import token_id as token_id
from daguerre.models.families.fim import fim_tokens
from daguerre.models.scaling import LENGTH_DEPENDENT, NOT_EXACT

Values = Mapping[str, Any]
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
"""Our name for each published name of an activation."""
LONGROPE = ("longrope", "su")
"""Its name, and its first one."""
ORIGINAL = "original_max_position_embeddings"
"""How many positions a model had before they were scaled: beside `rope_scaling`, or in it."""
TEXT_ENDS = (
    *("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|end_of_text|>", "<end_of_turn>"),
    *("<end_of_utterance>", "</s>", "<EOT>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<|role_end|>"),
)
"""Added tokens that end a text or an answer, whatever the files name (llama.cpp's list, and LLaDA2's)."""
GAP_FILLER = "daguerre_gap_token_id"
"""The key of the id of the gap filler, in the config.json of an autoregressive model that fills masks, too."""
FILL_ENDS = (
    *("<|fim_pad|>", "<fim_pad>", "<|repo_name|>", "<repo_name>", "<reponame>"),
    *("<|file_sep|>", "<|file_separator|>", "<file_sep>", "<filename>"),
)
"""Added tokens with which a fill ends: the padding of fill-in-the-middle, and what begins another file."""


def whole(config: Values, key: str, default: int | None = None) -> int:
    """A size of the config, a whole number above 0. CheckpointError if it is missing or of another kind."""
    value = config.get(key)
    value = default if value is None else value
    if value is None:
        raise CheckpointError(f"config.json has no {key}: copy the whole folder again")
    most = MOST_LAYERS if "layer" in key else MOST_TOKENS if "vocab" in key or "embedding" in key else MOST_POSITIONS
    if type(value) is not int or not 1 <= value <= most:
        raise CheckpointError(
            f"config.json: {key} must be a whole number above 0, at most {most:,}, not {shown(value)}; copy the file "
            "again"
        )
    return value


def count(config: Values, key: str, default: int = 0) -> int:
    """A number of things, 0 or more. CheckpointError if it is of another kind."""
    value = config.get(key)
    value = default if value is None else value
    if type(value) is not int or not 0 <= value <= MOST_POSITIONS:
        raise CheckpointError(
            f"config.json: {key} must be a whole number from 0 up, at most {MOST_POSITIONS:,}, not {shown(value)}; "
            "copy it again"
        )
    return value


def counts(config: Values, key: str) -> list[int]:
    """A list of whole numbers from 0 up; empty where the key is missing. CheckpointError for anything else."""
    value = config.get(key) or []
    if not isinstance(value, list | tuple) or any(type(each) is not int or each < 0 for each in value):
        raise CheckpointError(f"config.json: {key} must be a list of whole numbers, not {shown(value)}; copy it again")
    return list(value)


def number(config: Values, key: str, default: float, file: str = "config.json") -> float:
    """A number of the config."""
    value = config.get(key)
    value = default if value is None else value
    try:
        return float(Number()(key, value))
    except InputError as error:
        raise CheckpointError(f"{file}: {error}; copy the file again") from None


def flag(config: Values, key: str, default: bool = False, file: str = "config.json") -> bool:
    """True or False of the config; `default` where the key is missing or null."""
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, bool):
        raise CheckpointError(f"{file}: {key} must be true or false, not {shown(value)}; copy the file again")
    return value


def refuse(config: Values, allowed: Mapping[str, tuple[Any, ...]]) -> None:
    """UnsupportedError for a key whose value is none of those allowed; a key that is missing or null is allowed."""
    for key, values in allowed.items():
        value = config.get(key)
        if value is not None and value not in values:
            raise unsupported(f"{key}={shown(value)} in config.json")


def unsupported(what: str) -> UnsupportedError:
    """What is said of a checkpoint that our core cannot compute."""
    return UnsupportedError(f"{what} is not supported: Daguerre cannot compute this model; use its publisher's code")


def activation(config: Values, key: str = "hidden_act", default: str = "silu") -> str:
    """Our name of the activation."""
    name = config.get(key) or default
    if not isinstance(name, str):
        raise CheckpointError(f"config.json: {key} must be a name, not {shown(name)}; copy the file again")
    if name not in ACTIVATIONS:
        raise unsupported(f"{key}={shown(name)} in config.json")
    return ACTIVATIONS[name]


SLIDING, GLOBAL = "sliding_attention", "full_attention"
"""Kinds of layers in `layer_types`."""


def windows_of(config: Values) -> Windows | None:
    """The sliding layers of a config, where windows are switched on and shorter than the context; None: none are."""
    kinds, used = config.get("layer_types"), config.get("use_sliding_window")
    size = None if config.get("sliding_window") in (None, False) else count(config, "sliding_window")
    layers = whole(config, "num_hidden_layers")
    if kinds:
        chosen = [number for number, kind in enumerate(layer_kinds(kinds, layers)) if kind == SLIDING]
        if chosen and used is False:  # with which transformers fails, too
            raise CheckpointError(
                "config.json: use_sliding_window is false, and layer_types has sliding layers: set it to true, or make "
                f"them {GLOBAL}"
            )
    else:  # Mistral: a window is on where there is one; Qwen: in layers from max_window_layers on, if it is on
        first = 0 if used is None else count(config, "max_window_layers", 28)
        chosen = list(range(first, layers)) if used is None or used else []
    if not chosen or (size is None and not kinds):
        return None
    if not size:
        raise CheckpointError("config.json: its sliding layers need a sliding_window above 0; copy the file again")
    return None if size >= whole(config, "max_position_embeddings", 2048) else Windows(size=size, layers=tuple(chosen))


def layer_kinds(kinds: Any, num_layers: int) -> list[str]:
    """`layer_types`, one of SLIDING and GLOBAL for each layer. CheckpointError for anything else."""
    listed = list(kinds) if isinstance(kinds, list | tuple) else []
    if len(listed) != num_layers or any(kind not in (SLIDING, GLOBAL) for kind in listed):
        raise CheckpointError(
            f"config.json: layer_types must be {num_layers} of {SLIDING} and {GLOBAL}; copy the file again"
        )
    return listed


def refuse_windows(config: Values) -> None:
    """UnsupportedError where windows are switched on, of a family that has none."""
    if windows_of(config) is not None:
        raise unsupported(f"sliding_window={config.get('sliding_window')!r} in config.json")


def rotary(config: Values, theta: float = 10_000.0) -> dict[str, Any]:
    """The fields of a `ModelConfig` about rotary positions: transformers 4 writes `rope_theta` and `rope_scaling`,
    transformers 5 writes `rope_parameters`. UnsupportedError for a kind of scaling that we do not have.
    """
    given: Values = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, Mapping) or any(isinstance(value, Mapping) for value in given.values()):
        raise unsupported("rope_parameters of single layers in config.json")
    theta = number(given, "rope_theta", number(config, "rope_theta", theta))
    share = number(given, "partial_rotary_factor", number(config, "partial_rotary_factor", 1.0))
    if share != 1:
        raise unsupported(f"partial_rotary_factor={share:g} in config.json")
    kind = given.get("rope_type") or given.get("type") or "default"
    if config.get(ORIGINAL) is not None:  # which goes first in transformers
        given = {**given, ORIGINAL: config[ORIGINAL]}
    if kind == "default":
        return {"rope_theta": theta}
    if kind in LENGTH_DEPENDENT:
        raise unsupported(f"rope scaling {shown(kind)} in config.json ({NOT_EXACT})")
    if kind not in ("linear", "llama3", "yarn", *LONGROPE):
        raise unsupported(f"rope scaling {shown(kind)} in config.json")
    return {"rope_theta": theta, "rope_scaling": _scaling(kind, given, whole(config, "max_position_embeddings", 2048))}


def _scaling(kind: Any, given: Values, max_positions: int) -> RopeScaling:
    if kind == "linear":
        return RopeScaling(kind="linear", factor=number(given, "factor", 0.0))
    original = whole(given, ORIGINAL, max_positions)
    factor = number(given, "factor", max_positions / original)
    if kind in LONGROPE:
        return RopeScaling(
            kind="longrope",
            factor=factor,
            original_positions=original,
            attention_factor=_attention_factor(given, factor),
            short=_divisors(given, "short_factor"),
            long=_divisors(given, "long_factor"),
        )
    if kind == "llama3":
        low, high = number(given, "low_freq_factor", 1.0), number(given, "high_freq_factor", 4.0)
        return RopeScaling(
            kind="llama3", factor=factor, original_positions=original, low_freq_factor=low, high_freq_factor=high
        )
    if not flag(given, "truncate", True):
        raise unsupported("rope scaling 'yarn' with truncate=False in config.json")
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_positions=original,
        beta_fast=number(given, "beta_fast", 32.0),
        beta_slow=number(given, "beta_slow", 1.0),
        attention_factor=_attention_factor(given, factor),
    )


def _divisors(given: Values, key: str) -> tuple[float, ...]:
    """What longrope divides each frequency by."""
    value = given.get(key)
    if not isinstance(value, list | tuple) or not value:
        raise CheckpointError(f"config.json: {key} must be a list of numbers, not {shown(value)}; copy the file again")
    return tuple(number({key: each}, key, 1.0) for each in value)


def _attention_factor(given: Values, factor: float) -> float | None:
    """What cosines and sines are multiplied by: as given, or the quotient of two scales (DeepSeek-V2); None: by
    `factor` alone.
    """
    if given.get("attention_factor") is not None:
        return number(given, "attention_factor", 1.0)
    one, all_ = number(given, "mscale", 0.0), number(given, "mscale_all_dim", 0.0)
    if not (one and all_):
        return None
    log = 0.1 * math.log(factor) if factor > 1 else 0.0
    return (log * one + 1) / (log * all_ + 1)


def bos_of(published: Published) -> int | None:
    """The id that config.json or generation_config.json names as the beginning of a text, for a model whose publisher
    puts it before texts by hand; None where there is none.
    """
    found = [token_id(values, "bos_token_id") for values in (published.config, published.generation)]
    return next((index for index in found if index is not None), None)


def token(published: Published, key: str) -> int | None:
    """The id of a special token that `tokenizer_config.json` names, such as "mask_token"; None where it has none."""
    text = published.tokenizer.get(key)
    text = text.get("content") if isinstance(text, Mapping) else text
    return published.tokens.get(text) if isinstance(text, str) else None


def mask_of(published: Published, *others: int | None) -> int:
    """The id of the mask: of config.json, else of the tokenizer, else of generation_config.json, else the first of
    `others`. CheckpointError where none of them has it.
    """
    config, generation = (token_id(values, "mask_token_id") for values in (published.config, published.generation))
    for found in (config, token(published, "mask_token"), generation, *others):
        if found is not None:
            return found
    raise CheckpointError(
        "neither config.json nor the tokenizer says which token is the mask: set mask_token_id in config.json"
    )


def vocabulary(
    published: Published,
    size: int,
    *,
    mask_id: int | None = None,
    eos_id: int | None = None,
    bos_id: int | None = None,
    never: Iterable[int] = (),
) -> dict[str, Any]:
    """The fields of a `ModelConfig` about tokens. A text ends at every token that a file names, and at the added tokens
    that are known to end one by their text.

    size     V, rows of the embedding
    eos_id   the end of text where no file names it
    bos_id   the token before every text where the tokenizer puts none
    never    ids that are not predicted, beside the mask and those without a token
    """
    ends = [*_ids(published.config), *_of(token(published, "eos_token")), *_ids(published.generation)] or _of(eos_id)
    if not ends:
        raise CheckpointError("no file says which token ends a text: set eos_token_id in config.json")
    never = {*_of(mask_id), *never}
    known = [published.tokens.get(text, size) for text in (*TEXT_ENDS, *FILL_ENDS)]
    ends += [index for index in known if index < size and index not in never]
    unused = range(min(size, published.num_tokens or size), size)
    pad, begins = token_id(published.config, "pad_token_id"), bos_id if published.bos_id is None else published.bos_id
    named = [("mask_token_id", mask_id), ("bos_token_id", begins), *(("eos_token_id", end) for end in ends)]
    for name, index in named:
        if index is not None and not 0 <= index < size:
            raise CheckpointError(f"{name}={shown(index)} is outside the vocabulary of {size}: correct config.json")
    return {
        "vocab_size": size,
        "mask_id": mask_id,
        "eos_id": ends[0],
        "end_ids": tuple(dict.fromkeys(end for end in ends if end != ends[0])),
        "bos_id": begins,
        "pad_id": ends[0] if pad is None or not 0 <= pad < size else pad,
        "reserved_ids": tuple({*never, *unused} - {*ends}),
        "fim": fim_tokens(published, size),
    }


def with_masks(config: ModelConfig, published: Published) -> ModelConfig:
    """An autoregressive model's config, with masks and a gap filler where the files have them."""
    null, mask = token_id(published.config, GAP_FILLER), token_id(published.config, "mask_token_id")
    if null is None or mask is None:
        return config
    reserved = tuple({*config.reserved_ids, mask, null} - {*config.ends})
    block = whole(published.config, "block_size", 4)
    return replace(config, mask_id=mask, null_id=null, block_size=block, reserved_ids=reserved)


def why_ends(published: Published, index: int) -> str:
    """Why a text ends at a token: what names it, or what its text says. The first reason of several."""
    named = {
        published.file: _ids(published.config),
        "generation_config.json": _ids(published.generation),
        "the tokenizer": _of(token(published, "eos_token")),
    }
    files = [name for name, ids in named.items() if index in ids]
    if files:
        return f"named by {files[0]}"
    text = next((text for text, number in published.tokens.items() if number == index), None)
    if text in TEXT_ENDS:
        return "by its text, which ends a text or an answer"
    return "by its text, which ends a fill" if text in FILL_ENDS else "of its family"


def _of(index: int | None) -> list[int]:
    return [] if index is None else [index]


def _ids(values: Values) -> list[int]:
    """The ids of the end of text: one, several, or none."""
    found = values.get("eos_token_id")
    each = found if isinstance(found, list) else [found]
    return [index for one in each for index in _of(token_id({"eos_token_id": one}, "eos_token_id"))]


def sampling_of(generation: Values) -> dict[str, Any]:
    """What generation_config.json says of sampling, as options of `daguerre.Decode`. As in transformers, nothing is
    drawn without `do_sample`; a `top_k` of 0 or less is off. CheckpointError for a value out of range.
    """
    file = "generation_config.json"
    if not flag(generation, "do_sample", file=file):
        return {}
    names = ("temperature", "top_p", "min_p", "repetition_penalty")
    temperature, top_p, min_p, penalty = (number(generation, name, float(name != "min_p"), file) for name in names)
    top_k = generation.get("top_k") or 0
    for name, value, valid in (
        ("temperature", temperature, 0 <= temperature < math.inf),
        ("top_p", top_p, 0 < top_p <= 1),
        ("top_k", top_k, type(top_k) is int),
        ("min_p", min_p, 0 <= min_p <= 1),
        ("repetition_penalty", penalty, 0 < penalty < math.inf),
    ):
        if not valid:
            raise CheckpointError(f"{file}: {name}={value!r:.40} is out of range; copy the file again")
    cuts = ({"top_p": top_p} if top_p < 1 else {}) | ({"top_k": top_k} if top_k > 0 else {})
    cuts |= ({"min_p": min_p} if min_p else {}) | ({"repetition_penalty": penalty} if penalty != 1 else {})
    return {"temperature": temperature, **cuts} if temperature else {}
