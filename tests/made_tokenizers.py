"""Tokenizers of every published kind, made here: real ones of about 2,000 tokens, trained on sources of the standard
library, and a synthetic one of 262,144.
"""

from __future__ import annotations

import base64
import inspect
import itertools
import json
import textwrap
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from daguerre.models.published_tokenizer import PublishedTokenizer
from daguerre.models.tiktoken_files import CL100K, read_tekken, read_tiktoken
from daguerre.models.tokenizer import byte_of_character
from daguerre.models.tokenizer_files import QWEN2, vocabulary_and_merges

SIZE = 2048
SPECIAL = ["<|end|>", "<|pad|>", "<|mask|>", "<|begin|>"]
PLAIN = ["<tool_call>", "</tool_call>", "\t\t\t"]
"""Added tokens that are text."""
NAMES = dict(zip(("eos_token", "pad_token", "mask_token", "bos_token"), SPECIAL, strict=True))


@lru_cache(maxsize=1)
def corpus() -> list[str]:
    """Texts to train with: code, prose and other scripts."""
    others = "naïve café, Straße, Ελληνικά, Русский язык, 日本語と漢字、한국어, עברית, العربية, हिन्दी; 🙂🎉 → ∀x∈ℝ\n"
    modules = (json, json.decoder, json.encoder, textwrap, inspect, base64, itertools)
    return [inspect.getsource(module) for module in modules if module is not itertools] + [others] * 20


ALPHABET = str.maketrans({chr(byte): text for text, byte in byte_of_character().items()})


def alphabet_text(token: bytes) -> str:
    """A token in the alphabet of bytes."""
    return token.decode("latin-1").translate(ALPHABET)


def trained(pattern: str = CL100K, size: int = SIZE) -> dict[str, Any]:
    """The `tokenizer.json` of a byte-level BPE without added tokens."""
    inner = tokenizers.Tokenizer(models.BPE())
    split = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    inner.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    inner.decoder = decoders.ByteLevel()
    alphabet = sorted(byte_of_character(), key=byte_of_character().__getitem__)
    inner.train_from_iterator(
        corpus(), trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    )
    return json.loads(inner.to_str())


@lru_cache(maxsize=2)
def ranks(size: int = SIZE) -> dict[bytes, int]:
    """Of a trained byte-level BPE, as tiktoken has them: bytes first, then tokens in the order of their merges."""
    alphabet, model = byte_of_character(), trained(size=size)["model"]
    joined = [bytes([byte]) for byte in range(256)]
    joined += [bytes(alphabet[c] for c in a + b) for a, b in model["merges"]]
    return {token: rank for rank, token in enumerate(dict.fromkeys(joined))}


def entries(first: int) -> list[dict[str, Any]]:
    """The added tokens, as in a `tokenizer.json`, from an id on."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    texts = [(text, True) for text in SPECIAL] + [(text, False) for text in PLAIN]
    return [{"id": first + i, "content": text, **flags, "special": special} for i, (text, special) in enumerate(texts)]


def config(**more: Any) -> dict[str, Any]:
    return {**NAMES, "tokenizer_class": "PreTrainedTokenizerFast", **more}


def putting(values: dict[str, Any], text: str) -> dict[str, Any]:
    """A post-processor that puts an added token before a text."""
    (index,) = (token["id"] for token in values["added_tokens"] if token["content"] == text)
    return {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": text, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {text: {"id": text, "ids": [index], "tokens": [text]}},
    }


def byte_level() -> PublishedTokenizer:
    """As Llama 3: <bos> from the post-processor, whole words without merges."""
    values = trained()
    values["added_tokens"] = entries(len(values["model"]["vocab"]))
    values["model"]["ignore_merges"] = True
    values["post_processor"] = putting(values, "<|begin|>")
    return PublishedTokenizer(json.dumps(values), config())


def qwen2() -> PublishedTokenizer:
    """As Qwen2: NFC, digits alone, no <bos>, and added tokens that only the configuration has."""
    values = trained(QWEN2)
    values["normalizer"] = {"type": "NFC"}
    added = {str(token["id"]): token for token in entries(len(values["model"]["vocab"]))}
    return PublishedTokenizer(json.dumps(values), config(added_tokens_decoder=added, add_bos_token=False))


def vocab_and_merges() -> PublishedTokenizer:
    """As Dream: vocab.json and merges.txt."""
    model = trained(QWEN2)["model"]
    merges = "#version: 0.2\n" + "\n".join(" ".join(pair) for pair in model["merges"]) + "\n"
    added = {str(token["id"]): token for token in entries(len(model["vocab"]))}
    facts = config(added_tokens_decoder=added, tokenizer_class="DreamTokenizer")
    return PublishedTokenizer(vocabulary_and_merges(model["vocab"], merges, facts), facts)


def tiktoken_lines(size: int = SIZE) -> bytes:
    return b"\n".join(base64.b64encode(token) + b" %d" % rank for token, rank in ranks(size).items()) + b"\n"


def of_tiktoken() -> PublishedTokenizer:
    """With a hole between the ranks and the added tokens, as cl100k_base has."""
    added = {str(token["id"]): token for token in entries(len(ranks()) + 3)}
    return PublishedTokenizer(read_tiktoken(tiktoken_lines()), config(added_tokens_decoder=added, add_bos_token=True))


def tekken(num_special: int = 40) -> dict[str, Any]:
    """The content of a tekken.json; the last twenty of its tokens are not used."""
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for token, rank in ranks().items()
    ]
    names = ["<unk>", "<s>", "</s>", "<pad>", *SPECIAL, "[INST]"]
    return {
        "config": {
            "pattern": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            "num_vocab_tokens": len(vocab),
            "default_vocab_size": num_special + len(vocab) - 20,
            "default_num_special_tokens": num_special,
            "version": "v11",
        },
        "vocab": vocab,
        "special_tokens": [{"rank": i, "token_str": name, "is_control": True} for i, name in enumerate(names)],
    }


def of_tekken() -> PublishedTokenizer:
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "mask_token": "<SPECIAL_30>"}
    return PublishedTokenizer(read_tekken(json.dumps(tekken()).encode()), {**names, "add_bos_token": True})


@lru_cache(maxsize=1)
def pieces() -> tuple[dict[str, int], list[list[str]]]:
    """(the vocabulary with bytes, the merges) of a BPE of Unicode characters, trained with "▁" for spaces."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    trainer = trainers.BpeTrainer(vocab_size=SIZE, limit_alphabet=150, show_progress=False)
    inner.train_from_iterator(corpus(), trainer)
    model = json.loads(inner.to_str())["model"]
    head = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    vocabulary = {token: index for index, token in enumerate([*head, *tokens, "▁▁", "▁▁▁▁"])}
    return vocabulary, [*model["merges"], ["▁", "▁"], ["▁▁", "▁▁"]]


def sentencepiece_json(normalizer: Any, pre_tokenizer: Any, decoder: Any) -> dict[str, Any]:
    vocabulary, merges = pieces()
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    named = [{"id": i, "content": t, **flags, "special": True} for i, t in enumerate(["<unk>", "<s>", "</s>"])]
    values = {
        "version": "1.0",
        "added_tokens": [*named, *entries(len(vocabulary))],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "decoder": decoder,
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": vocabulary,
            "merges": merges,
        },
    }
    return {**values, "post_processor": putting(values, "<s>")}


METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
DECODER = [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
]


def llama2() -> PublishedTokenizer:
    """As Llama 2: "▁" before the text and after every special token."""
    prepend = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, REPLACE]}
    values = sentencepiece_json(prepend, None, {"type": "Sequence", "decoders": DECODER})
    return PublishedTokenizer(json.dumps(values), config(bos_token="<s>"))


def mistral() -> PublishedTokenizer:
    """As newer files of Llama 2 and Mistral: "▁" before the text alone, unless it begins with a space."""
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    values = sentencepiece_json(None, metaspace, {"type": "Sequence", "decoders": DECODER})
    return PublishedTokenizer(json.dumps(values), config(bos_token="<s>"))


def gemma() -> PublishedTokenizer:
    """As Gemma: no space before a text, and runs of "▁" among the added tokens."""
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    values = sentencepiece_json(REPLACE, split, {"type": "Sequence", "decoders": DECODER[:3]})
    index = values["model"]["vocab"]["▁▁"]
    values["added_tokens"].append({**entries(index)[-1], "id": index, "content": "▁▁"})
    return PublishedTokenizer(json.dumps(values), config(bos_token="<s>"))


def wordpiece() -> PublishedTokenizer:
    """As BERT: lower case, no bytes."""
    inner = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer()
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=SIZE, special_tokens=["[UNK]", *SPECIAL], limit_alphabet=120, show_progress=False
    )
    inner.train_from_iterator(corpus(), trainer)
    return PublishedTokenizer(inner.to_str(), config())


def unigram(byte_fallback: bool) -> PublishedTokenizer:
    """As T5, or with bytes to fall back to."""
    inner = tokenizers.Tokenizer(models.Unigram())
    inner.normalizer = normalizers.NFKC()
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=600, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    inner.train_from_iterator([text[:3000] for text in corpus()], trainer)
    values = json.loads(inner.to_str())
    values["decoder"] = {"type": "Sequence", "decoders": DECODER} if byte_fallback else METASPACE
    if byte_fallback:
        values["model"]["vocab"] += [[f"<0x{byte:02X}>", -30.0] for byte in range(256)]
        values["model"]["byte_fallback"] = True
    values["added_tokens"] += entries(len(values["model"]["vocab"]))
    return PublishedTokenizer(json.dumps(values), config())


def candidates() -> Iterator[tuple[bytes, bytes]]:
    """Pairs of texts to merge: white space and signs, characters of other scripts, then ever longer words."""
    for sign, length in itertools.product([b" ", b"\n", b"=", b"1", b"_"], (1, 2, 4, 8, 16, 32)):
        yield sign * length, sign * length
    for code in (*range(0xA1, 0x250), *range(0x400, 0x480), *range(0x4E00, 0x5600)):
        text = chr(code).encode()
        yield from ((text[: end - 1], text[end - 1 : end]) for end in range(2, len(text) + 1))
    letters = [bytes([byte]) for byte in b"etaoinshrdlcumwfgypbvkjxqz"]
    pairs = [a + b for a, b in itertools.product(letters, repeat=2)]
    words = [a + b for a, b in itertools.product(pairs, repeat=2)]
    yield from itertools.product(letters, repeat=2)
    yield from itertools.product(pairs, letters)
    yield from itertools.product(pairs[:200], pairs)
    yield from itertools.product([b" ", b"_", b'"'], [*letters, *pairs, *words[: 200 * len(pairs)]])


def synthetic(size: int = 262_144) -> PublishedTokenizer:
    """A byte-level BPE with so many tokens, of up to 64 bytes, and a few ids that only the model has."""
    merges: dict[bytes, tuple[bytes, bytes]] = {}
    known = {bytes([byte]) for byte in range(256)}
    for left, right in candidates():
        if len(known) == size - len(SPECIAL) - len(PLAIN) - 5:
            break
        if left in known and right in known and left + right not in known:
            known.add(left + right)
            merges[left + right] = (left, right)
    assert len(known) == size - len(SPECIAL) - len(PLAIN) - 5
    vocabulary = [alphabet_text(token) for token in [*(bytes([byte]) for byte in range(256)), *merges]]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    values = {
        "version": "1.0",
        "added_tokens": entries(len(vocabulary)),
        "pre_tokenizer": level,
        "decoder": level,
        "model": {
            "type": "BPE",
            "vocab": {token: index for index, token in enumerate(vocabulary)},
            "merges": [[alphabet_text(left), alphabet_text(right)] for left, right in merges.values()],
        },
    }
    return PublishedTokenizer(json.dumps(values, ensure_ascii=False), config(), size)


KINDS: dict[str, Callable[[], PublishedTokenizer]] = {
    "byte_level": byte_level,
    "qwen2": qwen2,
    "vocab_and_merges": vocab_and_merges,
    "tiktoken": of_tiktoken,
    "tekken": of_tekken,
    "llama2": llama2,
    "mistral": mistral,
    "gemma": gemma,
    "unigram": lambda: unigram(byte_fallback=True),
}
"""Those whose tokens are bytes, by name."""


@cache
def made(name: str) -> PublishedTokenizer:
    """The tokenizer of a kind; "synthetic" is the one of 262,144 tokens."""
    return synthetic() if name == "synthetic" else KINDS[name]()
