"""What a model is, from its small files alone: shapes, tokens, what it can do, and how much memory it takes."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from daguerre.decoding.defaults import CHAT_SAMPLING
from daguerre.decoding.modes import MODES, allows
from daguerre.decoding.plan import Mode
from daguerre.errors import DaguerreError, InputError
from daguerre.models.backends.library import origin
from daguerre.models.chat_format.description import Format
from daguerre.models.core.config import ModelConfig, RopeScaling
from daguerre.models.core.parameters import num_parameters
from daguerre.models.families.reading import why_ends
from daguerre.models.loading import open_source
from daguerre.models.prebuilt import SOURCES
from daguerre.models.processor import available, instruction_set, native_numbers
from daguerre.models.published import Described, PublishedSource
from daguerre.models.readers import Reader, read_tokenizer
from daguerre.models.tokenizer import Tokenizer
from daguerre.scoring.likelihood import KINDS, check_layout

LENGTHS = (1024, 4096)
"""Lengths for which the memory of a cache is shown, beside the model's own."""
DTYPES = {"float32": 4, "bfloat16": 2}
"""Bytes of a number."""


def facts_of(folder: Path, family: str | None = None, words: Path | None = None) -> dict[str, Any]:
    """What is known of a model without its weights, as JSON. `config.json` is enough; a tokenizer adds to it, which may
    be that of another folder, `words`.
    """
    source = open_source(folder, family=family, tokenizer=words)
    tokenizer = source.tokenizer()
    if not isinstance(source, PublishedSource):
        return _facts(source.config(), None, tokenizer)
    described = source.described
    return _class(described.facts.config) | _stored(source.reader) | _facts(described.config, described, tokenizer)


def format_in(path: Path) -> Format:
    """How answers are written by the model of a folder or a GGUF file, or by one with a chat template. InputError where
    there is no template.
    """
    from daguerre.models.chat_format.chat_format import ChatFormat

    if path.suffix == ".jinja" and path.is_file():
        try:
            return ChatFormat(path.read_text("utf-8")).form
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read {path} as a chat template ({error}): name another file") from None
    if not path.exists():
        raise InputError(f"there is no {path}: name a GGUF file, a folder or a chat template (.jinja)")
    tokenizer = read_tokenizer(path)
    template = getattr(tokenizer, "chat_template", None)
    if template is None:
        raise InputError(f"{path} has no chat template: name a model that has one")
    return ChatFormat(template).form


def _chat_format(tokenizer: Tokenizer | None) -> dict[str, Any]:
    """How calls are written, as far as a chat template shows."""
    template = getattr(tokenizer, "chat_template", None)
    if template is None:
        return {}
    from daguerre.models.chat_format.chat_format import ChatFormat
    from daguerre.models.chat_format.explaining import facts_of_format

    try:
        facts = facts_of_format(ChatFormat(template).form)
    except DaguerreError as error:
        return {"chat_format": {"found": f"not found: {error}"}}
    calls = facts["calls"]
    call = "none" if calls is None else repr(calls["begin"] + calls["call"])[1:-1]
    return {"chat_format": {"found": facts["found"], "call": call}}


def facts_of_machine() -> dict[str, Any]:
    """The processor, what it multiplies natively, and where the compiled libraries come from; compiles nothing."""
    found = {
        "machine": platform.machine(),
        "instruction_set": instruction_set(),
        "lower_levels": ", ".join(name for name in available() if name != instruction_set()) or "none",
        "cores": os.cpu_count(),
        "native_dtype": native_numbers(),
    }
    return found | {source.name: origin(source) for source in SOURCES}


def _class(values: Mapping[str, Any]) -> dict[str, str]:
    """Which class of transformers a published config.json is of."""
    named = ", ".join(values.get("architectures") or ()) or "no architecture named"
    return {"class": f"{named} (model_type {values.get('model_type')!r})"}


def _stored(reader: Reader) -> dict[str, Any]:
    """How many tensors of each type a GGUF file has, and its size."""
    if reader.file_bytes is None:
        return {}
    return {"file": f"GGUF, {in_bytes(reader.file_bytes)}", "stored": reader.kinds()}


def _facts(config: ModelConfig, described: Described | None, tokenizer: Tokenizer | None) -> dict[str, Any]:
    family = None if described is None else described.family
    parameters = num_parameters(config)
    modes = [mode for mode in MODES.values() if allows(mode, config)]
    published = {} if family is None else {"title": family.title, "source": family.source}
    return {
        "family": "daguerre" if family is None else family.name,
        **published,
        "parameters": parameters,
        **_shape(config),
        "context": config.context,
        "block_size": config.block_size,
        "shift": config.shift,
        "process": config.process,
        "time_input": config.time_input,
        "mask_id": config.mask_id,
        "bos_id": config.bos_id,
        "eos_id": config.eos_id,
        "end_ids": list(config.end_ids),
        **({} if described is None else {"ends": _ends(config, described)}),
        **({} if config.fim is None else {"fim": {name[4:]: index for name, index in config.fim.named.items()}}),
        "null_id": config.null_id,
        "tokenizer": "none in this folder" if tokenizer is None else _kind(tokenizer),
        **_chat_format(tokenizer),
        "modes": [mode.name for mode in modes],
        "operations": _operations(config, modes, tokenizer),
        "decode": {} if described is None else dict(described.decode),
        **({} if described is None or config.mask_id is not None else {"chat_sampling": _chat_sampling(described)}),
        "weights_bytes": {name: parameters * size for name, size in DTYPES.items()},
        "cache_bytes": cache_bytes(config),
    }


def _chat_sampling(described: Described) -> dict[str, Any]:
    """How answers of a conversation are drawn, and who says so."""
    if described.sampling:
        return {**described.sampling, "by": "the publisher"}
    return {**CHAT_SAMPLING, "by": "default"}


def _ends(config: ModelConfig, described: Described) -> dict[str, str]:
    """Why a text ends at each token that ends it, by its text."""
    texts = {index: text for text, index in described.facts.tokens.items()}
    ids = (config.eos_id, *config.end_ids)
    return {texts.get(index, str(index)): why_ends(described.facts, index) for index in ids}


def cache_bytes(config: ModelConfig) -> dict[str, dict[str, int]]:
    """Bytes of the keys and values of a text, by its length and the type of numbers; none in full context, where every
    row is computed in every forward.
    """
    if config.context == "full":
        return {}
    each = 2 * sum(heads * width for heads, width in config.key_shapes)
    lengths = [*(length for length in LENGTHS if length < config.max_positions), config.max_positions]
    return {str(length): {name: each * length * size for name, size in DTYPES.items()} for length in lengths}


def _shape(config: ModelConfig) -> dict[str, Any]:
    experts = config.experts
    return {
        "layers": config.num_layers,
        "width": config.width,
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head_width": config.head_width,
        "mlp_width": config.mlp_width,
        **({} if experts is None else {"experts": experts.num, "experts_per_token": experts.per_token}),
        "vocabulary": config.vocab_size,
        "positions": config.max_positions,
        "tied": config.tied,
        **({} if config.rope_scaling is None else {"rope_scaling": _scaling(config.rope_scaling)}),
        **({name: num for name in ("draft_head", "draft_rank") if (num := getattr(config, name))}),
    }


def _scaling(scaling: RopeScaling) -> str:
    of = f" of {scaling.original_positions:,} positions" if scaling.original_positions else ""
    return f"{scaling.kind}, {scaling.factor:g} times{of}"


def _kind(tokenizer: Tokenizer) -> str:
    """What a tokenizer is like."""
    size = f"{getattr(tokenizer, 'num_tokens', tokenizer.vocab_size):,} tokens"
    if tokenizer.unreadable is not None:
        return f"{size}, not readable as bytes: {tokenizer.unreadable}"
    kind = "SentencePiece with tokens of bytes" if tokenizer.spare_byte_ids else "byte-level"
    lacking = f"; {len(tokenizer.unwritable)} bytes have no token" if tokenizer.unwritable else ""
    return f"{size}, {kind}{lacking}"


def _operations(config: ModelConfig, modes: list[Mode], tokenizer: Tokenizer | None) -> list[str]:
    """What can be asked of a model, by the names of `Model`'s methods."""
    sees_after = config.context != "block"
    one, several = (sees_after and any(allows(mode, config, num) for mode in modes) for num in (1, 2))
    likelihoods = [f"nll ({kind})" for kind in KINDS if _has_likelihood(config, kind)]
    template = getattr(tokenizer, "chat_template", None)
    return [
        *(["generate", "stream"] if modes else []),
        *(["infill"] if one else []),
        *(["fill", "edit"] if several else ["fill (one gap)", "edit (one part)"] if one else []),
        *(["chat"] if template is not None else []),
        *likelihoods,
        *(["decide"] if config.process == "absorbing" else []),
    ]


def _has_likelihood(config: ModelConfig, kind: str) -> bool:
    try:
        check_layout(config, kind, None)
    except DaguerreError:
        return False
    return True


def as_lines(facts: dict[str, Any]) -> str:
    """The facts as text, one to a line."""
    return "\n".join(f"{name:18}{_text(name, value)}" for name, value in facts.items())


def _text(name: str, value: Any) -> str:
    if name == "weights_bytes":
        sizes = ", ".join(f"{kind} {in_bytes(num)}" for kind, num in value.items())
        return f"{sizes}; q8_0 about a quarter of float32, q4_k a seventh (--quantize)"
    if name == "cache_bytes":
        each = (f"{int(n):,} tokens {', '.join(map(in_bytes, sizes.values()))}" for n, sizes in value.items())
        return "; ".join(each) + f" ({', '.join(DTYPES)})" if value else "none: every row is computed in every forward"
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if value is None:
        return "none"
    return f"{value:,}" if type(value) is int and name == "parameters" else str(value)


def in_bytes(num: int) -> str:
    """A number of bytes for people: 16.03 GB."""
    size, unit = float(num), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:.4g} {unit}"
