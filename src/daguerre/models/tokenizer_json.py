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
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import tokenizers

from daguerre.errors import DataError
from daguerre.models.texts import Texts
from daguerre.models.token_bytes import TokenBytes
from daguerre.models.tokenizer import byte_of_character
from daguerre.models.tokenizer_fields import panics_raised, parse_fields

Json = Mapping[str, Any]
MARK = "▁"
FALLBACK = {f"<0x{byte:02X}>": byte for byte in range(256)}
"""The bytes of tokens for single bytes."""
IN_UTF_8 = frozenset(range(256)) - {0xC0, 0xC1} - frozenset(range(0xF5, 0x100))
"""The bytes that a text may have."""
NO_BYTE = 0x200
"""Higher than the characters of the alphabet of bytes."""
MAX_IDS = 1 << 22
"""More ids than any vocabulary has; a damaged file may name billions."""
FLAGS = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")


class Words(ABC):
    """The vocabulary of a tokenizer's model.

    num_ids  one more than the highest id
    inner    the whole tokenizer, without truncation, padding and dropout
    """

    num_ids: int

    @property
    @abstractmethod
    def inner(self) -> tokenizers.Tokenizer: ...

    @abstractmethod
    def content(self) -> bytes:
        """The `tokenizer.json`, with all added tokens, in UTF-8."""

    @abstractmethod
    def texts(self) -> Texts:
        """The tokens by id, as they are written in the vocabulary; "" for an id without one."""

    @abstractmethod
    def ids_of(self, texts: Iterable[str]) -> dict[str, int]:
        """The ids of those of these tokens that there are."""

    def part(self, _text: str, _normalized: str) -> tokenizers.models.Model | None:
        """A model with every token that a text can have, and perhaps not many others: what it makes of that text, or of
        a part of it, is what the whole model does. None: take the whole one.
        """
        return None


class WordsOfFile(Words):
    """Those of a `tokenizer.json`, which the library has read."""

    def __init__(self, content: str, inner: tokenizers.Tokenizer, vocabulary: Any) -> None:
        self._packed = zlib.compress(content.encode(), 1)  # a text of that size would stay in memory
        self._inner = inner
        ids = vocabulary.values() if isinstance(vocabulary, dict) else [len(vocabulary) - 1]
        self.num_ids = 1 + max(ids, default=-1)

    @property
    def inner(self) -> tokenizers.Tokenizer:
        return self._inner

    def content(self) -> bytes:
        return zlib.decompress(self._packed)

    def texts(self) -> Texts:
        vocabulary = self._inner.get_vocab(with_added_tokens=False)  # where added tokens may be, too
        tokens = [""] * max(self.num_ids, 1 + max(vocabulary.values(), default=-1))
        for token, index in vocabulary.items():
            tokens[index] = token
        return Texts.of(tokens)

    def ids_of(self, texts: Iterable[str]) -> dict[str, int]:
        found = ((text, self._inner.token_to_id(text)) for text in texts)
        return {text: index for text, index in found if index is not None}


@dataclass(frozen=True, eq=False)
class TokenizerFile:
    """What a `tokenizer.json` says.

    added   the added tokens, in the order of their ids
    unk_id  the token of what cannot be written; None: there is none
    begun   whether the file says what is put before a text
    """

    words: Words
    normalizer: Json | None
    pre_tokenizer: Json | None
    decoder: Json | None
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

    def variant(
        self, *, begins: bool, plain: bool, own: frozenset[int] | None = None, text: str | None = None
    ) -> tuple[tokenizers.Tokenizer, bool]:
        """The tokenizer without a space before the text unless `begins`, for which special tokens are text if `plain`;
        and whether it is whole: else it is for `text` and parts of that.

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
        part = None
        if text is not None:
            part = self.words.part(text, text if out.normalizer is None else out.normalizer.normalize_str(text))
        out.model = self.words.inner.model if part is None else part  # shared, not copied
        kept = [token for token in self.added if own is None or token["special"] or token["id"] in own]
        exact = {"special": False, "normalized": False}
        _add(out, [t if own is None or t["special"] else {"content": t["content"], **exact} for t in kept])
        out.encode_special_tokens = plain
        return out, part is None


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
            found, lacking = listed(values.get("added_tokens") or (), more)
            _add(inner, lacking)
            added = flagged(found, named, {text: inner.token_to_id(text) for text in named})
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


def listed(given: Sequence[Json], more: Sequence[Json] = ()) -> tuple[dict[str, Json], list[Json]]:
    """All added tokens by their texts, and those that are not among `given`."""
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
    return found, lacking


def flagged(found: Mapping[str, Json], named: Iterable[str], ids: Mapping[str, int | None]) -> list[Json]:
    """Added tokens, by id; those that are `named` are special, if they have an id."""
    special = {text: index for text in named if (index := ids.get(text)) is not None}
    more = {text: {**found.get(text, special_token(index, text)), "special": True} for text, index in special.items()}
    return sorted({**found, **more}.values(), key=lambda token: int(token["id"]))


def _layout(content: str, inner: tokenizers.Tokenizer, values: Json, added: Sequence[Json]) -> TokenizerFile:
    inner.no_truncation()
    inner.no_padding()
    model = values["model"]
    if getattr(inner.model, "dropout", None) is not None:
        inner.model.dropout = None
    unk_id = model.get("unk_id")
    if model.get("unk_token") is not None:
        unk_id = inner.token_to_id(model["unk_token"])
    kind = model.get("type") or type(inner.model).__name__
    return layout_of(WordsOfFile(content, inner, model["vocab"]), values, added, unk_id, kind)


def layout_of(
    words: Words, values: Json, added: Sequence[Json], unk_id: int | None = None, kind: str = "BPE"
) -> TokenizerFile:
    """The layout of a `tokenizer.json` with these values, whose model's vocabulary is `words`."""
    return TokenizerFile(
        words,
        values.get("normalizer"),
        values.get("pre_tokenizer"),
        values.get("decoder"),
        added,
        unk_id,
        "post_processor" in values,
        kind,
        bool(values["model"].get("byte_fallback")),
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
    added = {token["id"]: str(token["content"]).encode() for token in layout.added}
    _check_ids([*added, layout.words.num_ids - 1])
    try:
        with panics_raised():
            texts = _texts(layout, layout.words.texts(), added)
    except ValueError as error:
        raise DataError(f"the tokenizer's decoder cannot be used ({error}): copy its files again") from None
    alphabet = byte_of_character() if layout.byte_level else FALLBACK if layout.byte_fallback else {}
    known = {alphabet[token]: index for token, index in layout.words.ids_of(alphabet).items()}
    token_of = {byte: index for byte, index in known.items() if texts[index] == bytes([byte])}
    if layout.byte_level or layout.byte_fallback:
        return texts, token_of, None
    return texts, token_of, f"what tokens of its model, {layout.model_type}, stand for is not known as bytes"


def _texts(layout: TokenizerFile, tokens: Texts, added: Mapping[int, bytes]) -> TokenBytes:
    """The bytes of tokens: of those that the model lacks those of `added`, and none of special ones. The others are
    read together where each character stands for bytes by itself.
    """
    read, mark, num = _reader(layout), layout.mark, max([len(tokens), *(index + 1 for index in added)])
    apart = {index: added.get(index, b"") for index in np.flatnonzero(tokens.sizes == 0).tolist()}
    apart |= {index: added.get(index, b"") for index in range(len(tokens), num)}
    apart |= {index: b"" for index in layout.flagged if index < num}
    if layout.byte_level:
        joined, ends, odd = of_alphabet(tokens)
    elif layout.byte_fallback and len(mark) == 1:
        joined, ends = unmarked(tokens, mark)
        odd = [*tokens.find(*FALLBACK).values()]
    else:
        return TokenBytes(apart[i] if i in apart else read(tokens[i]) for i in range(num))
    apart |= {index: read(tokens[index]) for index in odd if index not in apart}
    return replaced(joined, np.pad(ends, (0, num - len(tokens)), "edge"), apart)


def of_alphabet(tokens: Texts) -> tuple[bytes, np.ndarray, list[int]]:
    """The bytes of tokens that are written in the alphabet of bytes: joined, and the ends of each (N + 1,); and the
    tokens with characters that the alphabet does not have, whose bytes have no meaning.
    """
    raw = tokens.bytes
    begins = (raw & 0xC0) != 0x80
    starts = np.flatnonzero(begins)
    first, second = raw[starts].astype(np.int64), raw[np.minimum(starts + 1, len(raw) - 1)]
    codes = np.where(first < 0x80, first, np.where(first < 0xC8, (first & 0x1F) << 6 | second & 0x3F, NO_BYTE))
    table = np.full(NO_BYTE + 1, -1)
    for character, byte in byte_of_character().items():
        table[ord(character)] = byte
    values = table[codes]
    ends = np.append(0, np.cumsum(begins))[tokens.ends]
    odd = np.flatnonzero(np.diff(np.append(0, np.cumsum(values < 0))[ends]))
    return values.astype(np.uint8).tobytes(), ends, odd.tolist()


def unmarked(tokens: Texts, mark: str) -> tuple[bytes, np.ndarray]:
    """Tokens in which a character stands for a space, with spaces: joined, and the ends of each (N + 1,)."""
    raw, form = tokens.bytes, mark.encode()
    places = np.flatnonzero(raw == form[0])
    for offset, byte in enumerate(form):
        places = places[raw[places + offset] == byte]  # a character is whole, so this is not beyond the end
    return tokens.joined.replace(form, b" "), tokens.ends - (len(form) - 1) * np.searchsorted(places, tokens.ends)


def replaced(joined: bytes, ends: np.ndarray, apart: Mapping[int, bytes]) -> TokenBytes:
    """Texts that are joined, some of them in place of others."""
    sizes, parts, place = np.diff(ends), list[bytes](), 0
    for index in sorted(apart):
        parts += [joined[ends[place] : ends[index]], apart[index]]
        sizes[index] = len(apart[index])
        place = index + 1
    return TokenBytes.joined(b"".join([*parts, joined[ends[place] :]]), sizes)


def _check_ids(ids: Iterable[int]) -> None:
    """DataError for an id that no vocabulary has: there is an entry for each id up to the highest."""
    for index in ids:
        if not 0 <= index < MAX_IDS:
            raise DataError(f"the tokenizer has a token of id {index}, which no vocabulary has: copy its files again")


def _reader(layout: TokenizerFile) -> Callable[[str], bytes]:
    """The bytes of a token, from its text in the vocabulary of the model."""
    mark, alphabet = layout.mark, byte_of_character()

    def of_alphabet(token: str) -> bytes:
        try:
            return bytes(map(alphabet.__getitem__, token))
        except KeyError:
            return token.encode()

    def of_unicode(token: str) -> bytes:
        return bytes([FALLBACK[token]]) if token in FALLBACK else token.replace(mark, " ").encode()

    def as_shown(token: str) -> bytes:
        shown = layout.words.inner.decoder
        return (f" {token}" if shown is None else shown.decode(["x", token]).removeprefix("x")).encode()

    return of_alphabet if layout.byte_level else of_unicode if layout.byte_fallback else as_shown
