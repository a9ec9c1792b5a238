"""The content of a `tokenizer.json`: what it does to a text, and the bytes of its tokens.

In two kinds of tokenizers each token stands for exact bytes:

byte-level  a token is written in an alphabet of 256 characters, one for each byte (GPT-2, Qwen, Llama 3, tiktoken)
fallback    a token is written in Unicode, with a mark such as "▁" for a space; tokens "<0x00>" to "<0xFF>" are the
            bytes of characters that have no token (SentencePiece: Llama 2, Gemma, Mistral)

A few bytes may have no token of their own, such as control characters that no training text had: a text with one cannot
be written, all others can. WordPiece, and Unigram and word-level models without fallback, lose characters: what their
tokens stand for is not known as bytes, and operations that need that are refused.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import tokenizers

from daguerre.errors import DataError
from daguerre.models.token_bytes import TokenBytes
from daguerre.models.tokenizer import byte_of_character
from daguerre.models.tokenizer_fields import panics_raised, parse_fields

Json = Mapping[str, Any]
MARK = "▁"
FALLBACK = {f"<0x{byte:02X}>": byte for byte in range(256)}
"""The bytes of tokens for single bytes."""
IN_UTF_8 = frozenset(range(256)) - {0xC0, 0xC1} - frozenset(range(0xF5, 0x100))
"""The bytes that a text may have."""
MAX_IDS = 1 << 22
"""More ids than any vocabulary has; a damaged file may name billions."""
FLAGS = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True, eq=False)
class TokenizerFile:
    """A `tokenizer.json`, read.

    packed  the file, with all added tokens, in UTF-8 and compressed: a text of that size would stay in memory
    inner   the tokenizer, without truncation, padding and dropout
    num_ids one more than the highest id of the model's vocabulary
    added   the added tokens, in the order of their ids
    unk_id  the token of what cannot be written; None: there is none
    begun   whether the file says what is put before a text
    """

    packed: bytes
    inner: tokenizers.Tokenizer
    normalizer: Json | None
    pre_tokenizer: Json | None
    decoder: Json | None
    num_ids: int
    added: Sequence[Json]
    unk_id: int | None
    begun: bool
    model_type: str
    byte_fallback: bool

    @property
    def flagged(self) -> frozenset[int]:
        """The special tokens: those flagged as special, and the unknown token."""
        named = {token["id"] for token in self.added if token["special"]}
        return frozenset(named if self.unk_id is None else named | {self.unk_id})

    @property
    def byte_level(self) -> bool:
        """Whether tokens are written in the alphabet of bytes."""
        held = [*parts(self.decoder), *parts(self.pre_tokenizer), *parts(self.normalizer)]
        return any(part["type"] == "ByteLevel" for part in held)

    @property
    def mark(self) -> str:
        """What stands for a space in tokens of the kind with fallback."""
        for part in parts(self.decoder):
            if part["type"] == "Metaspace":
                return str(part["replacement"])
            if part["type"] == "Replace" and part["content"] == " " and "String" in part["pattern"]:
                return str(part["pattern"]["String"])
        return MARK

    @property
    def prefixes(self) -> bool:
        """Whether a space is put before a text."""
        if any(part["type"] == "Prepend" for part in parts(self.normalizer)):
            return True
        return any(
            part.get("prepend_scheme", "always" if part.get("add_prefix_space", True) else "never") != "never"
            if part["type"] == "Metaspace"
            else part["type"] == "ByteLevel" and part.get("add_prefix_space", True)
            for part in parts(self.pre_tokenizer)
        )

    @property
    def prefixes_each(self) -> bool:
        """Whether a space is put before each text between special tokens, not before the first alone."""
        schemes = (p.get("prepend_scheme") for p in parts(self.pre_tokenizer) if p["type"] == "Metaspace")
        return self.prefixes and "first" not in schemes

    def variant(self, *, begins: bool, plain: bool, own: frozenset[int] | None = None) -> tokenizers.Tokenizer:
        """The tokenizer without a space before the text unless `begins`, for which special tokens are text if `plain`.

        With `own` it changes no text: what normalizes is left out, and of added tokens that are text those of `own` are
        found, exactly as they are written.
        """
        shell = {
            "version": "1.0",
            "normalizer": _rebuilt(self.normalizer, begins, own is not None),
            "pre_tokenizer": _rebuilt(self.pre_tokenizer, begins, False),
            "model": {"type": "BPE", "vocab": {}, "merges": []},
        }
        out = tokenizers.Tokenizer.from_str(json.dumps(shell))
        out.model = self.inner.model  # shared, not copied
        kept = [token for token in self.added if own is None or token["special"] or token["id"] in own]
        exact = {"special": False, "normalized": False}
        _add(out, [t if own is None or t["special"] else {"content": t["content"], **exact} for t in kept])
        out.encode_special_tokens = plain
        return out


def parts(component: Json | None) -> Iterator[Json]:
    """The parts of a normalizer, pre-tokenizer or decoder, sequences taken apart."""
    if component is None:
        return
    if component["type"] != "Sequence":
        yield component
        return
    for name in ("normalizers", "pretokenizers", "decoders"):
        for part in component.get(name) or ():
            yield from parts(part)


def special_token(index: int, content: str) -> dict[str, Any]:
    """A special token, as in "added_tokens" of a `tokenizer.json`."""
    return {"id": index, "content": content, **dict.fromkeys(FLAGS[1:-1], False), "special": True}


def read_layout(content: str, more: Sequence[Json] = (), named: Collection[str] = ()) -> TokenizerFile:
    """Read a `tokenizer.json`. `more` are added tokens that it may lack; tokens that are `named` are special ones.
    DataError if it is none, or if two tokens have one id.
    """
    try:
        values = parse_fields(content)
        with panics_raised():
            inner = tokenizers.Tokenizer.from_str(content)
            added = _added(inner, values.get("added_tokens") or (), more, named)
            placed = any(inner.token_to_id(token["content"]) != token["id"] for token in added)
            if placed or added != values.get("added_tokens"):
                content = completed(values, added, placed)
                inner = tokenizers.Tokenizer.from_str(content)
            layout = _layout(content, inner, values, added)
            _ = layout.byte_level, layout.mark, layout.prefixes  # the library takes parts without a type, too
    except Exception as error:  # the library raises bare Exception
        raise DataError(f"not a tokenizer.json ({str(error)[:200]}): copy it again") from error
    for before, token in pairwise(added):
        if before["id"] == token["id"]:
            both = f"{before['content']!r} and {token['content']!r}"
            raise DataError(f"the tokenizer is damaged: the tokens {both} have one id; copy it again")
    return layout


def completed(values: Json, added: Sequence[Json], placed: bool) -> str:
    """The content of a `tokenizer.json` with these added tokens. The library numbers those that the model's vocabulary
    lacks one after another, and reads no ids; so where these are to be `placed`, the vocabulary gets them.
    """
    model = dict(values["model"])
    if placed:
        if not isinstance(model["vocab"], dict):
            raise ValueError("its added tokens have other ids than the library gives them")
        model["vocab"] = {**model["vocab"], **{token["content"]: token["id"] for token in added}}
    return json.dumps({**values, "added_tokens": list(added), "model": model}, ensure_ascii=False)


def _added(
    inner: tokenizers.Tokenizer, given: Sequence[Json], more: Sequence[Json], named: Collection[str]
) -> list[Json]:
    """All added tokens, by id; those that `inner` lacks are added to it."""
    found: dict[str, Json] = {}
    lacking: list[Json] = []
    for number, token in enumerate([*given, *sorted(more, key=lambda token: token["id"])]):
        text = token["content"]
        if text in found:
            found[text] = {**found[text], "special": found[text]["special"] or token.get("special", False)}
            continue
        found[text] = {**dict.fromkeys(FLAGS, False), "normalized": not token.get("special", False), **token}
        if number >= len(given):
            lacking.append(found[text])
    _add(inner, lacking)
    for text in named:
        index = inner.token_to_id(text)
        if index is not None:
            found[text] = {**found.get(text, special_token(index, text)), "special": True}
    return sorted(found.values(), key=lambda token: int(token["id"]))


def _layout(content: str, inner: tokenizers.Tokenizer, values: Json, added: Sequence[Json]) -> TokenizerFile:
    inner.no_truncation()
    inner.no_padding()
    model = values["model"]
    if getattr(inner.model, "dropout", None) is not None:
        inner.model.dropout = None
    unk_id = model.get("unk_id")
    if model.get("unk_token") is not None:
        unk_id = inner.token_to_id(model["unk_token"])
    return TokenizerFile(
        zlib.compress(content.encode(), 1),
        inner,
        values.get("normalizer"),
        values.get("pre_tokenizer"),
        values.get("decoder"),
        1 + max(model["vocab"].values() if isinstance(model["vocab"], dict) else [len(model["vocab"]) - 1], default=-1),
        added,
        unk_id,
        "post_processor" in values,
        model.get("type") or type(inner.model).__name__,
        bool(model.get("byte_fallback")),
    )


def _add(inner: tokenizers.Tokenizer, added: Iterable[Json]) -> None:
    """Add tokens, in as few calls as their order allows: each makes all that finds them anew."""
    for special, each in groupby(added, key=lambda token: bool(token["special"])):
        add = inner.add_special_tokens if special else inner.add_tokens
        add([tokenizers.AddedToken(**{name: token[name] for name in FLAGS if name in token}) for token in each])


def _rebuilt(component: Json | None, begins: bool, exact: bool) -> Json | None:
    """A normalizer or pre-tokenizer that puts no space before a text unless `begins`. `exact`: of a normalizer, with
    nothing but what marks spaces.
    """
    if component is None:
        return None
    if component["type"] == "Sequence":
        (name,) = (name for name in ("normalizers", "pretokenizers") if name in component)
        held = [_rebuilt(part, begins, exact) for part in component[name]]
        return {**component, name: [part for part in held if part is not None]}
    marks = component["type"] == "Replace" and component["pattern"] == {"String": " "}
    if component["type"] == "Prepend" and not begins:
        return None
    if exact and not marks and component["type"] not in ("Prepend", "ByteLevel"):
        return None
    if begins or component["type"] not in ("Metaspace", "ByteLevel"):
        return component
    scheme = {"prepend_scheme": "never"} if component["type"] == "Metaspace" else {}
    return {**component, "add_prefix_space": False, **scheme}


def token_texts(layout: TokenizerFile) -> tuple[TokenBytes, dict[int, int], str | None]:
    """(the bytes of every token, by id; the token of each byte that has one; why tokens cannot be read as bytes, or
    None).

    Special tokens have no bytes. Where tokens cannot be read, their bytes are those of the text that a token adds
    after another.
    """
    model = layout.inner.model
    added = {token["id"]: str(token["content"]).encode() for token in layout.added}
    _check_ids([*added, layout.num_ids - 1])
    try:
        with panics_raised():
            tokens: list[str | None] = [None] * (max([*added, layout.num_ids - 1]) + 1)
            for token, index in layout.inner.get_vocab(with_added_tokens=False).items():
                tokens[index] = token
            texts = _texts(layout, tokens, added)
    except ValueError as error:
        raise DataError(f"the tokenizer's decoder cannot be used ({error}): copy its files again") from None
    alphabet = byte_of_character() if layout.byte_level else FALLBACK if layout.byte_fallback else {}
    known = ((byte, model.token_to_id(token)) for token, byte in alphabet.items())
    token_of = {byte: index for byte, index in known if index is not None and texts[index] == bytes([byte])}
    if layout.byte_level or layout.byte_fallback:
        return texts, token_of, None
    return texts, token_of, f"what tokens of its model, {layout.model_type}, stand for is not known as bytes"


def _texts(layout: TokenizerFile, tokens: Sequence[str | None], known: Mapping[int, bytes]) -> TokenBytes:
    """The bytes of tokens, of those that the model lacks what is `known`, and none of special ones; the others are read
    together where each character stands for bytes by itself.
    """
    read, alphabet, mark, flagged = _reader(layout), byte_of_character(), layout.mark, layout.flagged
    table = {ord(character): chr(byte) for character, byte in alphabet.items()}
    apart = {index: known.get(index, b"") for index, token in enumerate(tokens) if token is None}
    apart |= dict.fromkeys((index for index in flagged if index < len(tokens)), b"")
    if layout.byte_level:
        odd = {ord(character) for character in set("".join(filter(None, tokens)))} - table.keys()
        if odd:
            pattern = re.compile("[" + "".join(f"\\U{code:08x}" for code in sorted(odd)) + "]")
            held = (index for index, token in enumerate(tokens) if token and pattern.search(token))
            apart |= {index: read(str(tokens[index])) for index in held if index not in apart}
    elif layout.byte_fallback and len(mark) == 1:
        apart |= {i: read(token) for i, token in enumerate(tokens) if token in FALLBACK and i not in apart}
    else:
        return TokenBytes(apart[i] if i in apart else read(str(token)) for i, token in enumerate(tokens))

    def written(text: str) -> bytes:
        return text.translate(table).encode("latin-1") if layout.byte_level else text.replace(mark, " ").encode()

    size: Callable[[str], int] = len if layout.byte_level else lambda token: len(written(token))
    parts, sizes, place = list[bytes](), np.zeros(len(tokens), np.uint32), 0
    for index in [*sorted(apart), len(tokens)]:
        run = [str(token) for token in tokens[place:index]]
        parts.append(written("".join(run)))
        sizes[place:index] = [*map(size, run)]
        if index in apart:
            parts.append(apart[index])
            sizes[index] = len(apart[index])
        place = index + 1
    return TokenBytes.joined(b"".join(parts), sizes)


def _check_ids(ids: Iterable[int]) -> None:
    """DataError for an id that no vocabulary has: there is an entry for each id up to the highest."""
    for index in ids:
        if not 0 <= index < MAX_IDS:
            raise DataError(f"the tokenizer has a token of id {index}, which no vocabulary has: copy its files again")


def _reader(layout: TokenizerFile) -> Callable[[str], bytes]:
    """The bytes of a token, from its text in the vocabulary of the model."""
    mark, alphabet, shown = layout.mark, byte_of_character(), layout.inner.decoder

    def of_alphabet(token: str) -> bytes:
        try:
            return bytes(map(alphabet.__getitem__, token))
        except KeyError:
            return token.encode()

    def of_unicode(token: str) -> bytes:
        return bytes([FALLBACK[token]]) if token in FALLBACK else token.replace(mark, " ").encode()

    def as_shown(token: str) -> bytes:
        return (f" {token}" if shown is None else shown.decode(["x", token]).removeprefix("x")).encode()

    return of_alphabet if layout.byte_level else of_unicode if layout.byte_fallback else as_shown
