"""The tokenizer in a GGUF file, as the content of a `tokenizer.json`.

Files name a model, "gpt2" for byte-level BPE, and how a text is split before merging, by a name that llama.cpp's source
explains (`llama-vocab.cpp`). A file may also hold the publisher's `tokenizer.json` itself; then that is read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daguerre.errors import CheckpointError, UnsupportedError, shown
from daguerre.models.gguf.header import Header, read_header
from daguerre.models.tiktoken_files import CL100K, QWEN2
from daguerre.models.tokenizer_json import special_token

WHOLE = "tokenizer.huggingface.json"
"""The key of a publisher's tokenizer.json."""
TEXT, UNKNOWN, CONTROL, ADDED, UNUSED = 1, 2, 3, 4, 5
"""Types of tokens."""
NAMED = {"bos": "bos_token", "eos": "eos_token", "padding": "pad_token", "mask": "mask_token", "unknown": "unk_token"}
"""Special tokens by llama.cpp's names, and by those of a tokenizer_config.json."""
BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
"""How LLaDA splits a text."""
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Mistral splits a text."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """How a text is split, and what follows from it.

    pattern  of the parts; None: as GPT-2 does
    digits   every digit is alone
    nfc      the text is normalized first
    whole    a part that is a token is not merged
    begins   <bos> is before a text unless the file says otherwise
    """

    pattern: str | None = None
    digits: bool = False
    nfc: bool = False
    whole: bool = False
    begins: bool = False


_LLAMA3 = Split(pattern=CL100K, whole=True, begins=True)
_QWEN2, _SMOLLM, _BAILING = Split(pattern=QWEN2, nfc=True), Split(digits=True), Split(pattern=BAILING)
SPLITS: dict[str, Split] = {
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": Split(pattern=QWEN2),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "smaug-bpe": Split(pattern=CL100K),
    "llada-moe": _BAILING,
    "bailingmoe": _BAILING,
    "bailingmoe2": _BAILING,
    "gpt-2": Split(),
    "smollm": _SMOLLM,
    "tekken": Split(pattern=TEKKEN, whole=True, begins=True),
}
"""The names that are read; the first of several for one split is the one that is written."""


def read_gguf_tokenizer(path: Path) -> tuple[str, dict[str, Any]] | None:
    """The contents of a file's tokenizer.json and tokenizer_config.json; None where it has no tokenizer.
    CheckpointError for one that is damaged; UnsupportedError for a kind that is not read.
    """
    header = read_header(path)
    config, given = tokenizer_config(header), header.text(WHOLE)
    if given is not None:
        added = [token for token in _added(*_vocabulary(header)) if token["special"]]
        return given, config | {"added_tokens_decoder": {str(token["id"]): token for token in added}}
    kind = header.text("tokenizer.ggml.model")
    if kind in (None, "none", "no_vocab"):
        return None
    instead = "name the publisher's tokenizer instead (--tokenizer)"
    if kind != "gpt2":
        raise UnsupportedError(f"{path}: the tokenizer is of the kind {shown(kind)}, and gpt2 is read; {instead}")
    pre = header.text("tokenizer.ggml.pre")
    if pre not in SPLITS:
        raise UnsupportedError(
            f"{path}: the tokenizer splits texts as {shown(pre)} does, and {', '.join(SPLITS)} are read; {instead}"
        )
    tokens, types = _vocabulary(header)
    return _tokenizer_json(SPLITS[pre], tokens, types, _merges(header)), config


def tokenizer_config(header: Header) -> dict[str, Any]:
    """What a tokenizer_config.json would say: special tokens, whether texts begin with <bos>, chat templates."""
    metadata = header.metadata
    tokens = metadata.get("tokenizer.ggml.tokens")
    config: dict[str, Any] = {}
    for name, key in NAMED.items():
        index = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(tokens, list) and type(index) is int and 0 <= index < len(tokens):
            config[key] = tokens[index]
    pre = header.text("tokenizer.ggml.pre")
    begins = pre in SPLITS and SPLITS[pre].begins
    config["add_bos_token"] = metadata.get("tokenizer.ggml.add_bos_token", begins) is True
    templates = _templates(header)
    return config | ({"chat_template": templates} if templates else {})


def _templates(header: Header) -> list[dict[str, str]]:
    """Chat templates: the first, and others by name."""
    names = header.metadata.get("tokenizer.chat_templates")
    others = {name: f"tokenizer.chat_template.{name}" for name in names} if isinstance(names, list) else {}
    keys = {"default": "tokenizer.chat_template", **others}
    found = {name: header.text(key) for name, key in keys.items()}
    return [{"name": name, "template": text} for name, text in found.items() if text is not None]


def _vocabulary(header: Header) -> tuple[list[str], Sequence[int]]:
    """The tokens and their types. CheckpointError where they contradict each other or the embedding."""
    path, tokens = header.path, header.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise CheckpointError(f"{path} has no list of tokens, tokenizer.ggml.tokens: convert the model again")
    types = header.metadata.get("tokenizer.ggml.token_type")
    types = np.full(len(tokens), TEXT) if types is None else types
    if not isinstance(types, np.ndarray) or types.dtype.kind not in "iu" or len(types) != len(tokens):
        raise CheckpointError(
            f"{path} has {len(tokens)} tokens and other types of them, tokenizer.ggml.token_type: copy it again"
        )
    embedding = header.entries.get("token_embd.weight")
    if embedding is not None and len(tokens) > embedding.shape[0]:
        raise CheckpointError(
            f"{path} has {len(tokens)} tokens and an embedding of {embedding.shape[0]} rows: copy it again"
        )
    named = [token for token in tokens if token]
    if len({*named}) != len(named):
        raise CheckpointError(f"{path} has a token twice in tokenizer.ggml.tokens: copy it again")
    return tokens, types.tolist()


def _added(tokens: list[str], types: Sequence[int]) -> list[dict[str, Any]]:
    """The added tokens, as in a tokenizer.json."""
    kinds = (UNKNOWN, CONTROL, ADDED)
    each = ((index, text, kind) for index, (text, kind) in enumerate(zip(tokens, types, strict=True)) if text)
    return [{**special_token(index, text), "special": kind != ADDED} for index, text, kind in each if kind in kinds]


def _merges(header: Header) -> list[list[str]]:
    merges = header.metadata.get("tokenizer.ggml.merges")
    pairs = [merge.split(" ") for merge in merges] if isinstance(merges, list) else [[""]]
    if any(len(pair) != 2 for pair in pairs):
        raise CheckpointError(f"{header.path} has no list of pairs of tokens, tokenizer.ggml.merges: copy it again")
    return pairs


def _tokenizer_json(split: Split, tokens: list[str], types: Sequence[int], merges: list[list[str]]) -> str:
    vocabulary = {text: i for i, (text, kind) in enumerate(zip(tokens, types, strict=True)) if text and kind != UNUSED}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": _added(tokens, types),
            "normalizer": {"type": "NFC"} if split.nfc else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": splitting(split)},
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "ignore_merges": split.whole, "vocab": vocabulary, "merges": merges},
        },
        ensure_ascii=False,
    )


def splitting(split: Split) -> list[dict[str, Any]]:
    """The pre-tokenizers of a split, as in a tokenizer.json."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": split.pattern is None}
    first: list[dict[str, Any]] = [{"type": "Digits", "individual_digits": True}] if split.digits else []
    if split.pattern is not None:
        first += [{"type": "Split", "pattern": {"Regex": split.pattern}, "behavior": "Isolated", "invert": False}]
    return [*first, level]
