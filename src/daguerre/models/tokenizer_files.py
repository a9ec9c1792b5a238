"""The tokenizer of a published checkpoint, from the files of its folder.

Read, in this order: `tokenizer.json`; `vocab.json` with `merges.txt`; `tekken.json`; a tiktoken file. Beside them
`tokenizer_config.json`, or where that is missing or silent `special_tokens_map.json` and `added_tokens.json`, names
special tokens; chat templates are in it or in files of their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from daguerre.errors import CheckpointError, DataError, UnsupportedError, unknown
from daguerre.models.json_files import parse_json
from daguerre.models.published_tokenizer import NAMES, PublishedTokenizer, special_texts
from daguerre.models.tiktoken_files import QWEN2 as QWEN2
from daguerre.models.tiktoken_files import read_tekken, read_tiktoken
from daguerre.models.tokenizer import SPECIALS, Tokenizer
from daguerre.models.tokenizer_json import special_token

TOKENIZER, CONFIG, TEKKEN = "tokenizer.json", "tokenizer_config.json", "tekken.json"
TIKTOKEN = ("*.tiktoken", "tiktoken.model", "tokenizer.model")
ENCODING = "encoding_name"
"""The key of a configuration whose vocabulary is an encoding of tiktoken's, and not in its folder."""
TEKKEN_NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def tokenizer_of_json(file: Path, config: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a `tokenizer.json`, Daguerre's own or a publisher's."""
    try:
        content = _text(file)
        return Tokenizer(content) if f'"{SPECIALS[-1]}"' in content else PublishedTokenizer(content, config)
    except DataError as error:
        raise CheckpointError(f"{file}: {error}") from None


def read_config(source: Path) -> dict[str, Any]:
    """`tokenizer_config.json`, with what older checkpoints have in other files."""
    config = _json(source / CONFIG)
    if (source / TEKKEN).exists() and not (source / TOKENIZER).exists():
        config = {**TEKKEN_NAMES, "add_bos_token": True, **config}
    config = {**_json(source / "special_tokens_map.json"), **config}
    older = _json(source / "added_tokens.json")
    if older and not config.get("added_tokens_decoder"):
        special = special_texts(config)
        tokens = {text: {**special_token(index, text), "special": text in special} for text, index in older.items()}
        config["added_tokens_decoder"] = {str(token["id"]): token for token in tokens.values()}
    if ENCODING in config and not config.get("added_tokens_decoder"):
        config = _with_ids(config)
    template = _templates(source)
    return config | ({"chat_template": template} if template else {})


def _with_ids(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration that names an encoding of tiktoken (Steerling), with the ids that it has beside its special
    tokens: that of "pad_token" is "pad_token_id", and those of "<|mask|>" and "<|eot_id|>" among the additional ones
    are "mask_token_id" and "eot_id". DataError for ids that are none, and for one id of two tokens.
    """
    named = {f"{name}_id": config[name] for name in NAMES if isinstance(config.get(name), str)}
    for text in special_texts(config) - {*named.values()}:
        bare = text.strip("<|>")
        named |= {key: text for key in (bare, f"{bare}_token_id") if key in config}
    ids = {text: config[key] for key, text in named.items() if config.get(key) is not None}
    if len({*map(str, ids.values())}) < len(ids) or any(type(index) is not int for index in ids.values()):
        raise DataError(f"{CONFIG} has two special tokens of one id, or an id that is no number: copy it again")
    decoder = {str(index): special_token(index, text) for text, index in ids.items()}
    names = {key.removesuffix("_id"): text for key, text in named.items() if key.removesuffix("_id") in NAMES}
    return {**config, **names, "added_tokens_decoder": decoder}


def _templates(source: Path) -> list[dict[str, str]] | None:
    """Chat templates that have files of their own, which come before those of the configuration."""
    single, older = source / "chat_template.jinja", source / "chat_template.json"
    found = {"default": _text(single)} if single.exists() else {}
    if not found and isinstance(given := _json(older).get("chat_template"), str):
        found = {"default": given}
    found |= {path.stem: _text(path) for path in sorted((source / "additional_chat_templates").glob("*.jinja"))}
    return [{"name": name, "template": text} for name, text in found.items()] or None


def content_of(source: Path, config: Mapping[str, Any]) -> str | None:
    """The content of a `tokenizer.json`, made from other files where there is none."""
    if (source / TOKENIZER).exists():
        return _text(source / TOKENIZER)
    if (source / "vocab.json").exists() and (source / "merges.txt").exists():
        return vocabulary_and_merges(_json(source / "vocab.json"), _text(source / "merges.txt"), config)
    if (source / TEKKEN).exists():
        return read_tekken(_bytes(source / TEKKEN))
    for path in (path for pattern in TIKTOKEN for path in sorted(source.glob(pattern))):
        raw = _bytes(path)
        if path.name == "tokenizer.model" and b"\x00" in raw[:1000]:
            raise UnsupportedError(
                f"{path} is a SentencePiece model, which is not read: let transformers save it as {TOKENIZER}"
            )
        return read_tiktoken(raw, config.get("pat_str") or config.get("pattern"))
    return None


def vocabulary_and_merges(vocabulary: Mapping[str, int], merges: str, config: Mapping[str, Any]) -> str:
    """The `tokenizer.json` of a `vocab.json` and a `merges.txt`, which is the layout of GPT-2, Qwen2 and Dream.
    UnsupportedError for a class of tokenizers with other rules.
    """
    kind = str(config.get("tokenizer_class") or "GPT2Tokenizer").removesuffix("Fast")
    level = {"type": "ByteLevel", "add_prefix_space": bool(config.get("add_prefix_space")), "trim_offsets": False}
    split = {"type": "Split", "pattern": {"Regex": QWEN2}, "behavior": "Isolated", "invert": False}
    pretokenizers: dict[str, list[dict[str, Any]]] = {
        "GPT2Tokenizer": [{**level, "use_regex": True}],
        "Qwen2Tokenizer": [split, {**level, "add_prefix_space": False, "use_regex": False}],
    }
    pretokenizers["DreamTokenizer"] = pretokenizers["Qwen2Tokenizer"]
    if kind not in pretokenizers:
        raise unknown("class of tokenizers with vocab.json", kind, pretokenizers)
    begun = {} if kind == "GPT2Tokenizer" else {"post_processor": None}  # the others put nothing before a text
    lines = [line.strip() for line in merges.split("\n")]
    pairs = [line.split(" ") for line in lines[int(lines[0].startswith("#version")) :] if line]
    return json.dumps(
        {
            "version": "1.0",
            **begun,
            "added_tokens": [],
            "normalizer": None if kind == "GPT2Tokenizer" else {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": pretokenizers[kind]},
            "decoder": {**level, "use_regex": True},
            "model": {"type": "BPE", "vocab": dict(vocabulary), "merges": pairs},
        },
        ensure_ascii=False,
    )


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path.name} ({error.strerror}): copy it again") from None


def _text(path: Path) -> str:
    try:
        return _bytes(path).decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{path.name} is not UTF-8: copy it again") from None


def _json(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no file."""
    if not path.exists():
        return {}
    return parse_json(_text(path), path.name, DataError)
