"""A tokenizer as the metadata of a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from daguerre.models.core.config import ModelConfig
from daguerre.models.gguf.facts import FIM_KEYS
from daguerre.models.gguf.splits import SPLITS, splitting
from daguerre.models.gguf.token_types import ADDED, CONTROL, TEXT, UNUSED
from daguerre.models.gguf.tokenizer import NAMED, WHOLE, unpacked
from daguerre.models.published_tokenizer import KEPT, PublishedTokenizer
from daguerre.models.tokenizer import Tokenizer
from daguerre.models.tokenizer_json import parts

FIM_WRITTEN = {name: keys[0] for name, keys in FIM_KEYS.items()}
"""What GGUF files call the tokens of fill-in-the-middle."""
OTHER_SPLIT = "gpt-2"
"""How llama.cpp is told to split texts where it has no name for the tokenizer's own way."""


def add_tokenizer(writer: Any, tokenizer: Tokenizer | None, config: ModelConfig) -> list[str]:
    """Add a tokenizer and the special tokens of a config. Returns what to know about it."""
    _add_special(writer, config)
    if tokenizer is None:
        writer.add_tokenizer_model("none")
        return []
    values = json.loads(tokenizer.to_bytes())
    kept = getattr(tokenizer, "config", {}).get(KEPT)
    _add_tokens(writer, tokenizer, values, config)
    _add_template(writer, tokenizer)
    if kept is not None:
        _add_kept(writer, tokenizer, kept, values, config.vocab_size)
        return []
    model = values["model"]
    merges = model.get("merges") if model.get("type", "BPE") == "BPE" else None
    if not merges or tokenizer.spare_byte_ids or tokenizer.unreadable:
        writer.add_tokenizer_model("none")
        writer.add_string(WHOLE, _content(tokenizer, values))
        return ["llama.cpp cannot read the tokenizer, which is no byte-level BPE with merges: it takes and gives ids"]
    pre = split_name(values)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre or OTHER_SPLIT)
    writer.add_token_merges(_joined(merges))
    if pre is not None:
        return []
    writer.add_string(WHOLE, _content(tokenizer, values))
    return ["llama.cpp splits texts in another way than this tokenizer: give it token ids where they must be the same"]


def _joined(merges: Iterable[Any]) -> list[str]:
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]


def _add_kept(writer: Any, tokenizer: Any, kept: Mapping[str, Any], values: Mapping[str, Any], size: int) -> None:
    """Add what a tokenizer of a GGUF file was: its kind, its split or scores, and names that a model does not use."""
    writer.add_tokenizer_model(kept["model"])
    if kept.get("pre"):
        writer.add_tokenizer_pre(kept["pre"])
    if "scores" in kept:
        scores = unpacked(kept["scores"], "<f4").tolist()
        more = [min(scores, default=0.0)] * (size - len(scores))
        writer.add_token_scores([*scores, *more][:size])
        writer.add_add_space_prefix("Prepend" in {part["type"] for part in parts(values.get("normalizer"))})
    else:
        writer.add_token_merges(_joined(values["model"]["merges"]))
    if tokenizer.config.get("add_eos_token"):
        writer.add_add_eos_token(True)
    named = ("unknown",) if tokenizer.bos_id is not None else ("unknown", "bos")
    for name in named:
        index = tokenizer.added.get(tokenizer.named.get(NAMED[name]))
        if index is not None:
            writer.add_uint32(f"tokenizer.ggml.{name}_token_id", index)


def _add_template(writer: Any, tokenizer: Tokenizer) -> None:
    """Add the chat template, or all of them by name."""
    template = getattr(tokenizer, "chat_template", None)
    if template is None:
        return
    sources = template.sources
    one = sources["default"] if list(sources) == ["default"] else None
    writer.add_chat_template(one or [{"name": name, "template": text} for name, text in sources.items()])


def _content(tokenizer: Tokenizer, values: dict[str, Any]) -> str:
    """The tokenizer.json. Ours says nothing of what is before a text, which is for the metadata to say."""
    kept = (
        values
        if isinstance(tokenizer, PublishedTokenizer)
        else {k: v for k, v in values.items() if k != "post_processor"}
    )
    return json.dumps(kept, ensure_ascii=False)


def _add_tokens(writer: Any, tokenizer: Tokenizer, values: Mapping[str, Any], config: ModelConfig) -> None:
    """The list of tokens and their types; ids without a token are unused."""
    added = {token["id"]: token for token in values.get("added_tokens") or ()}
    vocabulary = values["model"]["vocab"]
    pairs = (
        vocabulary.items() if isinstance(vocabulary, dict) else ((text, i) for i, (text, _) in enumerate(vocabulary))
    )
    texts = {index: text for text, index in pairs} | {index: token["content"] for index, token in added.items()}
    special = tokenizer.special_ids & texts.keys()
    kept = getattr(tokenizer, "config", {}).get(KEPT)
    unused = {} if kept is None else {int(index): text for index, text in kept["unused"].items()}
    tokens = [texts.get(index) or unused.get(index, f"[PAD{index}]") for index in range(config.vocab_size)]
    kinds = [
        UNUSED if index not in texts else CONTROL if index in special else ADDED if index in added else TEXT
        for index in range(config.vocab_size)
    ]
    if kept is not None:
        types = unpacked(kept["types"], "u1").tolist()[: len(kinds)]
        kinds[: len(types)] = types
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)


def _add_special(writer: Any, config: ModelConfig) -> None:
    if config.bos_id is not None:
        writer.add_bos_token_id(config.bos_id)
    writer.add_eos_token_id(config.eos_id)
    writer.add_pad_token_id(config.pad_id)
    if config.end_ids:
        writer.add_eot_token_id(config.end_ids[0])
    for name, index in ({} if config.fim is None else config.fim.named).items():
        if index is not None:
            writer.add_uint32(f"tokenizer.ggml.{FIM_WRITTEN[name[4:]]}_token_id", index)
    writer.add_add_bos_token(config.bos_id is not None)
    never = [index for index in config.unpredictable_ids if index != config.mask_id]
    if never:
        writer.add_array("tokenizer.ggml.suppress_tokens", never)


def split_name(values: Mapping[str, Any]) -> str | None:
    """llama.cpp's name of how a tokenizer.json splits texts; None where it has none."""
    pre, model = values.get("pre_tokenizer"), values["model"]
    parts = pre.get("pretokenizers") if isinstance(pre, Mapping) and pre.get("type") == "Sequence" else [pre]
    found = [_plain(part) for part in parts or ()]
    for name, split in SPLITS.items():
        alike = (
            not split.marked
            and split.nfc == _is_nfc(values.get("normalizer"))
            and split.whole == bool(model.get("ignore_merges"))
        )
        if alike and [_plain(part) for part in splitting(split)] == found:
            return name
    return None


def _plain(part: Any) -> tuple[Any, ...]:
    """What a pre-tokenizer does, without what does not matter to ids."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "Split":
        return kind, (part.get("pattern") or {}).get("Regex"), part.get("behavior"), part.get("invert")
    if kind == "ByteLevel":
        return kind, part.get("add_prefix_space"), part.get("use_regex", True)
    return kind, part.get("individual_digits") if isinstance(part, Mapping) else None


def _is_nfc(normalizer: Any) -> bool:
    return isinstance(normalizer, Mapping) and normalizer.get("type") == "NFC"
