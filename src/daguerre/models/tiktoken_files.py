"""Tokenizers of byte pairs merged by rank: tiktoken files, and Mistral's Tekken.

Both become the content of a `tokenizer.json`. tiktoken merges the two neighbors whose joined bytes have the lowest
rank; the `tokenizers` library takes a list of pairs instead, so every way to split a token into two tokens is listed,
in the order of the token's rank.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from daguerre.errors import DataError
from daguerre.models.json_files import parse_json
from daguerre.models.tokenizer import byte_of_character
from daguerre.models.tokenizer_json import MAX_IDS, special_token

CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
"""How cl100k_base splits a text before merging."""
QWEN2 = CL100K.replace(r"\p{N}{1,3}", r"\p{N}")
"""How Qwen2 does: every digit is alone."""
ATOM = r"\\[pP]\{[^}]*\}|\\.|\[(?:\\.|\[:\w+:\]|[^\]\\])*\]|[^()\[\]{}|*+?\\^$]"
TEKKEN_SPECIALS = (
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] "
    "[IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]"
).split()
"""Those of files that list none; further ones have numbers."""


def read_tiktoken(content: bytes, pattern: str | None = None) -> str:
    """The `tokenizer.json` of a tiktoken file, which has a token in base64 and its rank in each line. `pattern`: how a
    text is split; None: as cl100k_base does. DataError for a line that is neither.
    """
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            try:
                token, rank = line.split()
                ranks[base64.b64decode(token, validate=True)] = int(rank)
            except (ValueError, binascii.Error):
                raise DataError(f"line {number} is not a token in base64 and its rank: copy the file again") from None
    return tokenizer_json(ranks, pattern or CL100K)


def read_tekken(content: bytes) -> str:
    """The `tokenizer.json` of a `tekken.json`: special tokens have the first ids. DataError if it is none."""
    try:
        values = parse_json(content, "tekken.json", DataError)
        config, special = values["config"], values.get("special_tokens")
        first, size = config["default_num_special_tokens"], config["default_vocab_size"]
        if not 0 <= first <= size <= MAX_IDS:
            raise ValueError(f"{first} special tokens of {size}")
        named = dict(enumerate(TEKKEN_SPECIALS)) if special is None else {t["rank"]: t["token_str"] for t in special}
        names = [named.get(index, f"<SPECIAL_{index}>") for index in range(first)]
        tokens = values["vocab"][: size - first]
        ranks = {base64.b64decode(token["token_bytes"], validate=True): first + token["rank"] for token in tokens}
        pattern = str(config["pattern"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"not a tekken.json ({error!r}): copy it again") from None
    return tokenizer_json(ranks, pattern, [special_token(index, name) for index, name in enumerate(names)])


def tokenizer_json(ranks: Mapping[bytes, int], pattern: str, added: Sequence[Mapping[str, Any]] = ()) -> str:
    """The content of a `tokenizer.json` that merges bytes by rank; a token's id is its rank."""
    alphabet = str.maketrans({chr(byte): character for character, byte in byte_of_character().items()})
    written = {token: token.decode("latin-1").translate(alphabet) for token in ranks}
    split = {"type": "Split", "pattern": {"Regex": oniguruma(pattern)}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": list(added),
            "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
            "decoder": level,
            "model": {
                "type": "BPE",
                "ignore_merges": True,
                "vocab": {text: ranks[token] for token, text in written.items()},
                "merges": [[written[a], written[b]] for a, b in merges(ranks)],
            },
        },
        ensure_ascii=False,
    )


def merges(ranks: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    """All pairs of tokens that join to a token, by its rank; those of one token by their own ranks."""
    out: list[tuple[bytes, bytes]] = []
    for token in sorted(ranks, key=ranks.__getitem__):
        pairs = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        out += sorted(pairs, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
    return out


def oniguruma(pattern: str) -> str:
    """A pattern of tiktoken in the syntax of the `tokenizers` library, for which "{1,3}+" is not possessive, and "$" is
    the end of a line. DataError where a group is repeated so.
    """
    out = re.sub(rf"({ATOM})(\{{\d+(?:,\d*)?\}})\+", r"(?>\1\2)", pattern)
    if re.search(r"(?<!\\[pP])\{\d+(?:,\d*)?\}\+", out):
        raise DataError(
            "the tokenizer's pattern repeats a group possessively, which is not supported: use another file"
        )
    return re.sub(rf"({ATOM})|\$", lambda found: found[1] or r"\z", out)
