"""The tokenizer in a GGUF file, as the content of a `tokenizer.json`.

Files name a kind: "gpt2" for byte-level BPE, where a second name says how a text is split before merging (`splits`);
"llama" for SentencePiece's pairs with scores; "gemma4" for pairs with ranks of tokens that are written as those are.
A file may also hold the publisher's `tokenizer.json` itself; then that is read.

What a `tokenizer.json` has no place for is kept in the configuration, under `KEPT`, so that it can be written again:
the kind, the name of the split, and the types and scores of the tokens.
"""

from __future__ import annotations

import base64
import logging
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from daguerre.errors import CheckpointError, DataError, UnsupportedError, shown
from daguerre.models.gguf.header import Header
from daguerre.models.gguf.scores import LONGEST
from daguerre.models.gguf.splits import SPLITS, UNNAMED, Split, marking, splitting, unmarking
from daguerre.models.gguf.token_types import ADDED, CONTROL, KEEPING, TEXT, UNKNOWN, UNUSED, corrected, stripping
from daguerre.models.gguf.words import GgufWords, RankedWords, ScoredWords
from daguerre.models.published_tokenizer import KEPT, special_texts
from daguerre.models.texts import Texts
from daguerre.models.tokenizer_json import MAX_IDS, special_token

LOG = logging.getLogger(__name__)
WHOLE = "tokenizer.huggingface.json"
"""The key of a publisher's tokenizer.json."""
KINDS = ("gpt2", "llama", "gemma4")
OTHERS = {
    "bert": "WordPiece",
    "t5": "Unigram",
    "rwkv": "of RWKV",
    "plamo2": "of PLaMo 2",
    "whitespace": "of whole words",
}
"""Kinds that are not read, and what they are."""
NO_KINDS = (None, "none", "no_vocab")
"""What a file without a tokenizer says."""
NAMED = {"bos": "bos_token", "eos": "eos_token", "padding": "pad_token", "mask": "mask_token", "unknown": "unk_token"}
"""Special tokens by llama.cpp's names, and by those of a tokenizer_config.json."""
DEFAULTS = {"llama": {"bos": 1, "eos": 2, "unknown": 0}}
"""Special tokens that a file of a kind does not have to name."""


def gguf_tokenizer(header: Header, config: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """The contents of a file's tokenizer.json and tokenizer_config.json, beginning with what `tokenizer_config` says;
    None where it has no tokenizer. CheckpointError for one that is damaged; UnsupportedError for a kind that is not
    read.
    """
    found = gguf_words(header, config)
    if found is None:
        return None
    words, config = found
    return (words if isinstance(words, str) else words.content().decode()), config


def gguf_words(header: Header, config: Mapping[str, Any]) -> tuple[str | GgufWords, dict[str, Any]] | None:
    """`gguf_tokenizer`, with a vocabulary in place of a tokenizer.json that the file does not have as such."""
    given, kind = header.text(WHOLE), _kind(header)
    if given is not None:
        added = [token for token in _added(header, *_vocabulary(header)) if token["special"]]
        return given, {**config, "added_tokens_decoder": {str(token["id"]): token for token in added}}
    if kind in NO_KINDS:
        return None
    if kind not in KINDS:
        what = f" ({OTHERS[kind]})" if kind in OTHERS else ""
        raise UnsupportedError(
            f"{header.path}: the tokenizer is of the kind {shown(kind)}{what}, and {', '.join(KINDS)} are read; "
            f"{INSTEAD}"
        )
    tokens, types = _vocabulary(header)
    named = (tokens.sizes > 0, types == UNUSED)
    unused = {str(index): tokens[index] for index in np.flatnonzero(named[0] & named[1]).tolist()}
    kept: dict[str, Any] = {"model": kind, "pre": header.text(PRE), "size": len(tokens), "unused": unused}
    kept["types"] = packed(np.clip(types, 0, 255).astype(np.uint8))
    used, special = named[0] & ~named[1], special_texts(config)
    if kind != "llama":
        return _ranked(header, _split(header), tokens, types, used, special), {**config, KEPT: kept}
    scores = _scores(header, len(tokens))
    words = _scored(header, tokens, types, used, special, scores)
    return words, {**config, KEPT: {**kept, "scores": packed(scores)}}


PRE = "tokenizer.ggml.pre"
INSTEAD = "name the publisher's tokenizer instead, a folder with its tokenizer.json (--tokenizer)"


def packed(values: np.ndarray) -> str:
    """Numbers as a short text."""
    return base64.b85encode(zlib.compress(values.tobytes())).decode()


def unpacked(text: str, dtype: str) -> np.ndarray:
    """The numbers of `packed`. DataError for another text."""
    try:
        raw = zlib.decompressobj().decompress(base64.b85decode(text), 4 * MAX_IDS)
        return np.frombuffer(raw, dtype)
    except (TypeError, ValueError, zlib.error) as error:
        raise DataError(f"{KEPT} of tokenizer_config.json is damaged ({error}): copy it again") from None


def _kind(header: Header) -> str | None:
    return header.text("tokenizer.ggml.model")


def _split(header: Header) -> Split:
    """How texts are split. UnsupportedError for a name that is not known."""
    pre = "gemma4" if _kind(header) == "gemma4" else header.text(PRE)
    if not pre:
        LOG.warning(
            "%s does not say how its tokenizer splits texts (tokenizer.ggml.pre), so they are split as llama.cpp does "
            "then: convert the model again if its answers are poor",
            header.path,
        )
        pre = UNNAMED
    if pre not in SPLITS:
        raise UnsupportedError(
            f"{header.path}: the tokenizer splits texts as {shown(pre)} does, which is none of the {len(SPLITS)} ways "
            f"that are read (docs/gguf.md); {INSTEAD}"
        )
    return SPLITS[pre]


def tokenizer_config(header: Header) -> dict[str, Any]:
    """What a tokenizer_config.json would say: special tokens, what is put around texts, chat templates."""
    metadata, kind = header.metadata, _kind(header)
    tokens = metadata.get("tokenizer.ggml.tokens")
    config: dict[str, Any] = {}
    for name, key in NAMED.items():
        index = metadata.get(f"tokenizer.ggml.{name}_token_id", DEFAULTS.get(str(kind), {}).get(name))
        if isinstance(tokens, Texts) and type(index) is int and 0 <= index < len(tokens):
            config[key] = tokens[index]
    config["add_bos_token"] = _begins(header)
    if metadata.get("tokenizer.ggml.add_eos_token") is True:
        config["add_eos_token"] = True
    templates = _templates(header)
    return config | ({"chat_template": templates} if templates else {})


def _begins(header: Header) -> bool:
    """Whether <bos> is before a text; of Gemma 4 always, whatever the file says."""
    kind, pre = _kind(header), header.text(PRE)
    if kind == "gemma4":
        return True
    begins = kind == "llama" or (pre in SPLITS and SPLITS[pre].begins)
    return header.metadata.get("tokenizer.ggml.add_bos_token", begins) is True


def _templates(header: Header) -> list[dict[str, str]]:
    """Chat templates: the first, and others by name."""
    names = header.metadata.get("tokenizer.chat_templates")
    others = {name: f"tokenizer.chat_template.{name}" for name in names} if isinstance(names, Texts) else {}
    keys = {"default": "tokenizer.chat_template", **others}
    found = {name: header.text(key) for name, key in keys.items()}
    return [{"name": name, "template": text} for name, text in found.items() if text is not None]


def _vocabulary(header: Header) -> tuple[Texts, np.ndarray]:
    """The tokens and their types. CheckpointError where they contradict each other or the embedding."""
    path, tokens = header.path, header.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, Texts) or not tokens:
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
    if tokens.twice:
        raise CheckpointError(f"{path} has a token twice in tokenizer.ggml.tokens: copy it again")
    return tokens, types


def _added(header: Header, tokens: Texts, types: np.ndarray) -> list[dict[str, Any]]:
    """The added tokens, as in a tokenizer.json."""
    kinds, strips = corrected(header, tokens, types), stripping(header)
    added = np.flatnonzero(((kinds == UNKNOWN) | (kinds == CONTROL) | (kinds == ADDED)) & (tokens.sizes > 0))
    texts = [tokens[index] for index in added.tolist()]
    return [
        {**special_token(index, text), "special": kind != ADDED, "rstrip": strips and text not in KEEPING}
        for index, kind, text in zip(added.tolist(), kinds[added].tolist(), texts, strict=True)
    ]


def _scores(header: Header, num: int) -> np.ndarray:
    """The score of each token, as float32."""
    scores = header.metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, np.ndarray) or scores.dtype.kind not in "if" or len(scores) != num:
        raise CheckpointError(
            f"{header.path} has no score for each token, tokenizer.ggml.scores: convert the model again"
        )
    scores = scores.astype(np.float32)
    if not np.isfinite(scores).all():
        raise CheckpointError(f"{header.path} has scores that are no numbers, tokenizer.ggml.scores: copy it again")
    return scores


def _ranked(
    header: Header, split: Split, tokens: Texts, types: np.ndarray, used: np.ndarray, special: set[str]
) -> GgufWords:
    """Of pairs with ranks, which the file lists."""
    level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    normalizer = marking(False) if split.marked else {"type": "NFC"} if split.nfc else None
    values = _values(
        _added(header, tokens, types),
        normalizer,
        {"type": "Sequence", "pretokenizers": splitting(split)},
        unmarking(False) if split.marked else level,
        {"ignore_merges": split.whole, "byte_fallback": split.marked},
    )
    merges = header.metadata.get("tokenizer.ggml.merges")
    try:
        if isinstance(merges, Texts):
            return RankedWords(tokens, used, values, special, merges)
    except DataError as error:
        raise CheckpointError(f"{header.path}: {error}, tokenizer.ggml.merges: copy it again") from None
    raise CheckpointError(f"{header.path} has no list of pairs of tokens, tokenizer.ggml.merges: copy it again")


def _scored(
    header: Header, tokens: Texts, types: np.ndarray, used: np.ndarray, special: set[str], scores: np.ndarray
) -> GgufWords:
    """Of pairs that are merged by the score of what they make."""
    for index in np.flatnonzero(tokens.sizes > LONGEST).tolist():
        if len(tokens[index]) > LONGEST:
            raise CheckpointError(f"{header.path} has a token of {len(tokens[index]):,} characters: copy it again")
    begins = header.metadata.get("tokenizer.ggml.add_space_prefix", True) is True
    values = _values(
        _added(header, tokens, types),
        marking(begins),
        None,
        unmarking(begins),
        {"ignore_merges": False, "byte_fallback": True},
    )
    return ScoredWords(tokens, used, values, special, corrected(header, tokens, types), scores, header.path)


def _values(
    added: list[dict[str, Any]],
    normalizer: dict[str, Any] | None,
    pre_tokenizer: dict[str, Any] | None,
    decoder: dict[str, Any],
    model: dict[str, Any],
) -> dict[str, Any]:
    """A tokenizer.json without a vocabulary."""
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "decoder": decoder,
        "model": {"type": "BPE", **model},
    }
