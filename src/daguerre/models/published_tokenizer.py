"""Tokenizers of published checkpoints: the publisher's ids, and the exact bytes of every token.

**Beginnings.** Tokenizers like SentencePiece put a space before a text. That belongs to the first text of a canvas, and
is among the bytes of its first token; in the middle of a text it would be wrong. So callers say where a text stands:
`encode(text)` gives the publisher's ids of a text that begins a canvas, and `encode(text, begins=False)` those of one
after a gap, of a pin or of a draft.

**Bytes survive.** `decode_bytes(encode_plain(text, begins=False)) == text.encode()` for every text that the vocabulary
can write; a byte without a token is an error that names it. Where the publisher's tokenizer changes a text (NFC, lower
case, "▁" for a space), the text between two special tokens is encoded without the change; what then has no token of its
own is written in tokens of single bytes. Ids differ from the publisher's for such texts alone.

**Special tokens** have no bytes. `encode` reads them in a text as the publisher's tokenizer does, without adding any;
for `encode_plain` they are ordinary text.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import tokenizers

from daguerre.errors import DataError, InputError
from daguerre.kinds import check_unicode
from daguerre.models.hidden_text import hidden
from daguerre.models.tokenizer import Tokenizer, encoding_of
from daguerre.models.tokenizer_fields import panics_raised
from daguerre.models.tokenizer_json import IN_UTF_8, Json, TokenizerFile, read_layout, token_texts

if TYPE_CHECKING:  # which would bring Jinja to models that have no template
    from daguerre.models.chat_template import ChatTemplate

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
DECIDING = ("LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer", "CohereTokenizer", "GPTNeoXTokenizer")
"""Classes of `transformers` 4 that build the post-processor anew, from `add_bos_token`."""
KEPT = "gguf"
"""The key of a configuration that comes from a GGUF file."""
ASCII_SPACES = " \t\n\v\f\r"


class PublishedTokenizer(Tokenizer):
    """A `tokenizer.json` as published; immutable, and safe to share between threads.

    config      the content of `tokenizer_config.json`
    vocab_size  how many ids the model has; ids that the tokenizer lacks have no bytes. None: as many as the tokenizer

    `bos_id` is what the tokenizer puts before a text, None where that is nothing. The other named ids are those of
    `config`, None where it names none. DataError for a file that cannot be read, or a model with too few ids.
    """

    pad_id: int | None  # type: ignore[assignment]
    bos_id: int | None  # type: ignore[assignment]
    eos_id: int | None  # type: ignore[assignment]
    mask_id: int | None  # type: ignore[assignment]
    null_id: int | None = None  # type: ignore[assignment]

    def __init__(self, content: str | TokenizerFile, config: Json | None = None, vocab_size: int | None = None) -> None:
        self.config = dict(config or {})
        if isinstance(content, str):
            content = read_layout(content, added_of(self.config), special_texts(self.config))
        self._layout = content
        self._words = self._layout.words
        self.added: dict[str, int] = {token["content"]: token["id"] for token in self._layout.added}
        self._texts, self._token_of, self.unreadable = token_texts(self._layout)
        self.unwritable = IN_UTF_8 - self._token_of.keys() if self.unreadable is None else frozenset()
        self.num_tokens = len(self._texts)
        self.spare_byte_ids = frozenset() if self._layout.byte_level else frozenset(self._token_of.values())
        self._flagged = self._layout.flagged
        self._content = {index: text for text, index in self.added.items()}
        self._own = frozenset(token for token, text in self._content.items() if self._texts[token] == text.encode())
        self._variants: dict[tuple[bool, bool, bool], tokenizers.Tokenizer] = {}
        self.pad_id, self.eos_id, self.mask_id = map(self._named, ("pad_token", "eos_token", "mask_token"))
        self.bos_id = self._before()
        self._resize(vocab_size)

    def __copy__(self) -> PublishedTokenizer:
        """A copy that shares all that was read."""
        other = object.__new__(PublishedTokenizer)
        other.__dict__.update(self.__dict__)
        return other

    def sized(self, vocab_size: int) -> PublishedTokenizer:
        """A copy for a model with so many ids. DataError if those are too few."""
        other = copy.copy(self)
        other.__dict__.pop("sha256", None)
        other._resize(vocab_size)
        return other

    def _resize(self, vocab_size: int | None) -> None:
        self._size = self.num_tokens if vocab_size is None else vocab_size
        if self._size < self.num_tokens:
            raise DataError(
                f"the tokenizer has ids up to {self.num_tokens - 1} and the model {self._size}: they are not of one "
                "checkpoint; copy both again"
            )
        self._bytes = sized = self._texts.sized(self._size)
        self.special_ids = sized.empty()

    @property
    def vocab_size(self) -> int:
        """Number of ids of the model; the tokenizer may have fewer."""
        return self._size

    def encode(self, text: str, *, begins: bool = True) -> list[int]:
        """The publisher's ids of `text`, without <bos>; special tokens that are written in it are read as such.

        begins: the text begins a canvas, so that a space may be put before it. InputError for a lone surrogate, and for
        a byte that no token has.
        """
        return self._encoded(text, begins, plain=False)

    def encode_plain(self, text: str, *, begins: bool = True) -> list[int]:
        """`encode`, but special tokens in `text`, too, are ordinary text."""
        return self._encoded(text, begins, plain=True)

    def find_special(self, text: str) -> list[tuple[int, int]]:
        """`Tokenizer.find_special`; in linear time, whatever the text."""
        return self._finder.encode(text).offsets if self._finder is not None else []

    @cached_property
    def _finder(self) -> tokenizers.Tokenizer | None:
        """A tokenizer that has special tokens and no others; None where there are none."""
        texts = [text for text, index in self.added.items() if index in self._flagged and text]
        finder = tokenizers.Tokenizer(tokenizers.models.BPE())
        finder.add_special_tokens([tokenizers.AddedToken(text, normalized=False) for text in texts])
        return finder if texts else None

    def encode_around(self, text: str, plain: Sequence[tuple[int, int]]) -> list[int]:
        """`Tokenizer.encode_around`. InputError for a lone surrogate, and for a byte that no token has."""
        check_unicode(text)
        self.check_size(text)
        encoding = self._read(hidden(text, plain), self._layout.prefixes, plain=False)
        out: list[int] = []
        place, each = 0, self._layout.prefixes_each
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token in self._flagged and self._is_added(token, text[start:end], plain=False):
                out += [*self._encoded(text[place:start], begins=not place or each, plain=True), token]
                place = self._end(token, text, start, end)
        return out + self._encoded(text[place:], begins=not place or each, plain=True)

    def _encoded(self, text: str, begins: bool, plain: bool) -> list[int]:
        check_unicode(text)
        self.check_size(text)
        begins = begins and self._layout.prefixes
        encoding = self._read(text, begins, plain)
        ids: list[int] = encoding.ids
        if self.unreadable is not None:
            return ids
        out: list[int] = []
        after, place = 0, 0
        if not self._content.keys().isdisjoint(ids):
            for index, (token, (start, end)) in enumerate(zip(ids, encoding.offsets, strict=True)):
                if self._is_added(token, text[start:end], plain):
                    out += [*self._kept(ids[after:index], text[place:start], begins), token]
                    after, place = index + 1, self._end(token, text, start, end)
        return out + self._kept(ids[after:], text[place:], begins)

    def _is_added(self, token: int, text: str, plain: bool) -> bool:
        """Whether a token is an added one that is written as `text`; special ones may take the white space around."""
        content = self._content.get(token)
        if content is None:
            return False
        return token in self._own and text == content if token not in self._flagged else not plain and content in text

    def _end(self, token: int, text: str, start: int, end: int) -> int:
        """Where the next text begins, behind an added token from `start` to `end`. In GGUF files such a token takes no
        other white space than ASCII's.
        """
        if KEPT not in self.config:
            return end
        behind = text[text.index(self._content[token], start) + len(self._content[token]) : end]
        return end - len(behind.lstrip(ASCII_SPACES))

    def _kept(self, ids: list[int], text: str, begins: bool) -> list[int]:
        """`ids` of a text between added tokens, or others where these do not keep its bytes."""
        written, wanted = b"".join(map(self._bytes.__getitem__, ids)), text.encode()
        if written == wanted or (begins and written == b" " + wanted):
            return ids
        return self._exact(f" {text}" if begins and text[:1] not in ("", " ") else text)

    def _exact(self, text: str) -> list[int]:
        """Ids of exactly the bytes of a text. Only what the tokenizer would change has other ids than otherwise.
        InputError for a byte that has no token.
        """
        ids: list[int] = self._read(text, False, plain=True, exact=True).ids
        if b"".join(map(self._bytes.__getitem__, ids)) == text.encode():
            return ids
        if len(text) == 1:
            missing = [byte for byte in text.encode() if byte not in self._token_of]
            if missing:
                raise InputError(
                    f"this model cannot read the character {text!r}: its vocabulary has no token for the byte "
                    f"{missing[0]:#04x}; leave it out"
                )
            return [self._token_of[byte] for byte in text.encode()]
        pieces = [piece for piece in re.split(f"({re.escape(self._layout.mark)})", text) if piece]
        if len(pieces) == 1:
            pieces = [text[: len(text) // 2], text[len(text) // 2 :]]
        return [token for piece in pieces for token in self._exact(piece)]

    def _read(self, text: str, begins: bool, plain: bool, exact: bool = False) -> tokenizers.Encoding:
        inner = self._variant(text, begins, plain, exact)
        try:
            with panics_raised():
                return encoding_of(inner, text)
        except ValueError as error:
            raise InputError(f"this text cannot be encoded ({error}): change the white space around its tags") from None

    def _variant(self, text: str, begins: bool, plain: bool, exact: bool) -> tokenizers.Tokenizer:
        key = begins, plain, exact
        if key not in self._variants:
            own = self._own if exact else None
            made, is_whole = self._layout.variant(begins=begins, plain=plain, own=own, text=text)
            if not is_whole:
                return made
            self._variants[key] = made
        return self._variants[key]

    @property
    def _inner(self) -> tokenizers.Tokenizer:  # type: ignore[override]
        return self._words.inner

    def token_name(self, token: int) -> str:
        """`Tokenizer.token_name`."""
        return super().token_name(token) if self.token_bytes(token) else self._content.get(token, "")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PublishedTokenizer) and self._layout is other._layout:
            return (self._size, self.config) == (other._size, other.config)
        return super().__eq__(other)

    def __hash__(self) -> int:
        return hash((self.num_tokens, self._size))  # for which no vocabulary is written as JSON

    @cached_property
    def sha256(self) -> str:
        """Hash of the file, of the configuration and of the number of ids."""
        return hashlib.sha256(json.dumps(self._state()).encode()).hexdigest()

    def to_bytes(self) -> bytes:
        """The content of a `tokenizer.json`: as it was given, with the added tokens that only `config` has."""
        return self._words.content()

    @cached_property
    def named(self) -> dict[str, str]:
        """The texts of the named special tokens, such as "bos_token", which chat templates use."""
        return {name: text for name in NAMES if (text := _text(self.config.get(name))) is not None}

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """How messages are written for the model; None: there is no template."""
        from daguerre.models.chat_template import ChatTemplate

        given = self.config.get("chat_template")
        return ChatTemplate.of(given, self.named) if given else None

    def _named(self, name: str) -> int | None:
        text = self.named.get(name)
        return None if text is None else self._words.ids_of([text]).get(text)

    def _before(self) -> int | None:
        """The token before every text, as the post-processor puts it. In some classes of tokenizers, and where the file
        has none, `config` decides.
        """
        decides = str(self.config.get("tokenizer_class")).removesuffix("Fast") in DECIDING or not self._layout.begun
        if decides and self.config.get("add_bos_token") is not None:
            return self._named("bos_token") if self.config["add_bos_token"] else None
        try:
            with panics_raised():
                plain, whole = (self._inner.encode("a", add_special_tokens=added).ids for added in (False, True))
        except ValueError as error:
            raise DataError(f"the tokenizer cannot be used: {error}") from None
        places = (i for i in range(len(whole)) if whole[i : i + len(plain)] == plain)
        before = whole[: next(places, 0)]
        if len(before) > 1:
            raise DataError(f"the tokenizer puts the tokens {before} before a text: more than one is not supported")
        return before[0] if before else None

    def _state(self) -> tuple[str, dict[str, Any], int]:
        return self.to_bytes().decode(), self.config, self._size

    def __reduce__(self) -> tuple[type[PublishedTokenizer], tuple[str, dict[str, Any], int]]:  # type: ignore[override]
        return PublishedTokenizer, self._state()


def added_of(config: Json) -> list[dict[str, Any]]:
    """The added tokens of a `tokenizer_config.json`, as in a `tokenizer.json`. DataError for what is none."""
    try:
        given: Mapping[str, Json] = config.get("added_tokens_decoder") or {}
        return [{**token, "id": int(index), "content": str(token["content"])} for index, token in given.items()]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"added_tokens_decoder of tokenizer_config.json is damaged ({error!r}): copy it again"
        ) from None


def special_texts(config: Json) -> set[str]:
    """The texts of the tokens that a `tokenizer_config.json` names as special. DataError for a list that is none."""
    further = config.get("additional_special_tokens") or []
    if not isinstance(further, list):
        raise DataError("additional_special_tokens of tokenizer_config.json is not a list: copy it again")
    texts = [_text(token) for token in (*map(config.get, NAMES), *further)]
    return {text for text in texts if text}


def _text(token: object) -> str | None:
    """The text of a named token, which is a string, or an object with its content."""
    content = token.get("content") if isinstance(token, Mapping) else token
    return content if isinstance(content, str) else None
