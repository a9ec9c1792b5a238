"""Byte-level BPE: text to token ids and back, without loss.

The sixteen special tokens have the ids 0 to 15 in every vocabulary of Daguerre. They are in the BPE vocabulary only,
not among the library's "added tokens", so text such as "<mask>" is ordinary characters: no text can produce a special
id.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from importlib import resources
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

import tokenizers

from daguerre.errors import ContextError, DataError, InputError, UnsupportedError, shown
from daguerre.files import atomic_write
from daguerre.kinds import OneOf, PathName, check_unicode
from daguerre.models.tokenizer_fields import panics_raised, parse_fields

NAMED_SPECIALS = ("<pad>", "<bos>", "<eos>", "<mask>", "<null>")
NUM_SPECIALS = 16
SPECIALS = NAMED_SPECIALS + tuple(f"<spare_{i}>" for i in range(NUM_SPECIALS - len(NAMED_SPECIALS)))
DEFAULTS = {"2k": "tokenizer-2k.json", "8k": "tokenizer-8k.json", "bytes": "tokenizer-bytes.json"}
LONG = 1 << 15
"""Characters of a text that takes tens of milliseconds to encode."""
ENCODING = BoundedSemaphore(2)
"""Of long texts: so many are encoded at once, since each takes some hundred times its own memory meanwhile."""
LONGEST = 128
"""Bytes that a token is taken to have at most, where none of the vocabulary has more."""


@lru_cache(maxsize=1)
def byte_of_character() -> dict[str, int]:
    """The byte that each of the 256 characters of the byte-level alphabet (GPT-2's) represents."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def bytes_name(own: bytes) -> str:
    """What a token of these bytes is called, as in OpenAI's API."""
    try:
        return own.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in own)


class Tokenizer:
    """An immutable byte-level BPE vocabulary; safe to share between threads.

    `content` is the text of a `tokenizer.json` of the `tokenizers` library. DataError if it is not in Daguerre's
    format.
    """

    pad_id, bos_id, eos_id, mask_id, null_id = range(len(NAMED_SPECIALS))
    special_ids = frozenset(range(NUM_SPECIALS))
    spare_byte_ids: frozenset[int] = frozenset()
    """Tokens of single bytes that the tokenizer writes only where no other token fits; other ones may have the same
    bytes."""
    unreadable: str | None = None
    """Why tokens cannot be read as bytes; None: they can, and all below is exact."""
    num_positions: int | None = None
    """Of the model whose texts it encodes; None: texts may have any length. See `limited`."""
    unwritable: frozenset[int] = frozenset()
    """Bytes of UTF-8 that no token of their own stands for: a text in which another token does not hold them has no
    ids."""

    def __init__(self, content: str) -> None:
        try:
            self._json: dict[str, Any] = parse_fields(content)
            with panics_raised():
                self._inner = tokenizers.Tokenizer.from_str(content)
        except Exception as error:  # the library raises bare Exception
            raise DataError(f"not a tokenizer.json: {str(error)[:200]}; give one that daguerre wrote") from error
        self._check()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Read a `tokenizer.json`. DataError if it is missing or not in Daguerre's format."""
        PathName()("path", path)
        try:
            return cls(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)[:100]
            raise DataError(f"cannot read the tokenizer {shown(os.fspath(path))}: {reason}; check the path") from error

    @classmethod
    def default(cls, name: str = "2k") -> Tokenizer:
        """A vocabulary shipped with the package: "2k" (2048 tokens), "8k" (8192), or "bytes" (272), without merges."""
        OneOf(known=tuple(DEFAULTS), what="tokenizer")("name", name)
        return cls((resources.files("daguerre") / "assets" / DEFAULTS[name]).read_text(encoding="utf-8"))

    def encode(self, text: str, *, begins: bool = True) -> list[int]:
        """Ids of `text`, never a special one. InputError for a lone surrogate.

        `begins` is for tokenizers of other kinds (`published_tokenizer`): whether the text begins a canvas.
        """
        check_unicode(text)
        if self.num_positions is not None and len(text) > self.num_positions:
            self.check_size(text)
        return encoding_of(self._inner, text).ids

    def limited(self, num_positions: int) -> Tokenizer:
        """A copy for a model with so many positions: its `encode` raises a ContextError for a text that has more
        bytes than these can hold, before it is encoded.
        """
        out = object.__new__(type(self))
        out.__dict__.update(self.__dict__, num_positions=num_positions)
        return out

    def check_size(self, *texts: str, longest: int = LONGEST) -> None:
        """ContextError where texts have more bytes than as many tokens as the model has positions. longest: bytes of a
        token, where no token has more.
        """
        if self.num_positions is None or sum(map(len, texts)) <= self.num_positions:
            return
        each = max(longest, self.longest)
        least = -(-sum(len(text.encode("utf-8", "replace")) for text in texts) // each)
        if least > self.num_positions:
            raise ContextError(
                f"the text has {least:,} tokens or more and the model has {self.num_positions:,} positions: shorten it"
            )

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return max(map(len, self._bytes)) if self.unreadable is None else LONGEST

    def encode_plain(self, text: str, *, begins: bool = True) -> list[int]:
        """Ids of `text` in which special tokens, too, are ordinary text. InputError for a lone surrogate."""
        return self.encode(text, begins=begins)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The exact bytes of `ids`; special tokens have none. InputError for an id outside the vocabulary."""
        try:
            each = iter(ids)
        except TypeError:
            raise InputError(f"ids must be token ids, several, not {shown(ids)}") from None
        return b"".join(map(self.token_bytes, each))

    @property
    def bytes_of_tokens(self) -> Sequence[bytes]:
        """The bytes of every token by id, b"" of a special one."""
        return self._bytes

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`. Bytes that are not valid UTF-8, such as half a character, become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """Bytes of one token, b"" for a special one. InputError for an id outside the vocabulary."""
        try:
            if 0 <= token < self.vocab_size:
                return self._bytes[token]
        except (TypeError, ValueError):
            raise InputError(f"a token id is a whole number, not {shown(token)}") from None
        raise InputError(f"token id {shown(token)} is outside the vocabulary: ids are 0 to {self.vocab_size - 1}")

    def token_name(self, token: int) -> str:
        """What one token is called: its text; "bytes:\\xf0\\x9f" where its bytes are no whole characters; and where it
        has none the name in its file. InputError for an id outside the vocabulary.
        """
        own = self.token_bytes(token)
        return bytes_name(own) if own else self._inner.id_to_token(token) or ""

    def find_special(self, text: str) -> list[tuple[int, int]]:
        """Where the texts of special tokens stand that `encode` would read in a text, [begin, end) in characters."""
        return []

    def encode_around(self, text: str, plain: Sequence[tuple[int, int]]) -> list[int]:
        """`encode`, in which special tokens are ordinary text where they stand in one of the spans `plain`."""
        return self.encode(text)

    def chat(self, messages: Sequence[Mapping[str, Any]], **template: Any) -> list[int]:
        """The ids of a conversation that an answer follows, without <bos>, as `Model.chat_prompt` gives them; template:
        what the chat template takes, such as tools. UnsupportedError for a tokenizer without a chat template;
        InputError for what is no list of messages, each with a "role".
        """
        from daguerre.models.chat_prompt import chat_ids  # which imports this module

        return chat_ids(self, messages, [] if self.bos_id is None else [self.bos_id], **template)

    @property
    def start_id(self) -> int:
        """What stands before a text that is scored from its first token on: <bos>, or without one <eos>."""
        return self.eos_id if self.bos_id is None else self.bos_id

    def require_bytes(self, what: str) -> None:
        """UnsupportedError if tokens cannot be read as bytes, which `what` needs."""
        if self.unreadable is not None:
            raise UnsupportedError(
                f"{what} needs the bytes of every token, and this tokenizer does not tell them: {self.unreadable}; "
                "leave it out"
            )

    @cached_property
    def vocab_size(self) -> int:
        """Number of ids, special ones included."""
        return self._inner.get_vocab_size(with_added_tokens=True)

    @cached_property
    def sha256(self) -> str:
        """Hash of the canonical JSON: independent of white space and of the order of keys in the file."""
        canonical = json.dumps(self._json, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(canonical.encode("utf-8")).hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a `tokenizer.json` atomically."""
        PathName()("path", path)
        with atomic_write(Path(path)) as file:
            file.write(self.to_bytes())

    def to_bytes(self) -> bytes:
        """The content of a `tokenizer.json`."""
        return (json.dumps(self._json, ensure_ascii=False, indent=0) + "\n").encode("utf-8")

    @cached_property
    def _bytes(self) -> Sequence[bytes]:
        alphabet = byte_of_character()
        table = [b""] * self.vocab_size
        for token, index in self._inner.get_vocab(with_added_tokens=True).items():
            if index not in self.special_ids:
                table[index] = bytes(alphabet[character] for character in token)
        return table

    def _check(self) -> None:
        vocabulary = self._inner.get_vocab(with_added_tokens=True)
        specials = [vocabulary.get(token) for token in SPECIALS]
        if specials != list(range(NUM_SPECIALS)) or self._json.get("added_tokens"):
            raise DataError(
                "this tokenizer.json is not Daguerre's: ids 0 to 15 must be its special tokens, none of them 'added'"
            )
        if not byte_of_character().keys() <= vocabulary.keys():
            raise DataError("this tokenizer.json is not byte-level: some of the 256 bytes have no token")
        if sorted(vocabulary.values()) != list(range(len(vocabulary))):
            raise DataError("this tokenizer.json is damaged: its ids are not 0, 1, 2, ...; copy it again")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.sha256 == other.sha256

    def __hash__(self) -> int:
        return hash(self.sha256)

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[str]]:
        return Tokenizer, (json.dumps(self._json, ensure_ascii=False),)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(vocab_size={self.vocab_size}, sha256={self.sha256[:12]!r})"


def encoding_of(inner: tokenizers.Tokenizer, text: str) -> tokenizers.Encoding:
    """What an object of the library `tokenizers` makes of a text; other threads run beside it where that takes long."""
    if len(text) < LONG:
        return inner.encode(text, add_special_tokens=False)
    with ENCODING:
        return inner.encode_batch([text], add_special_tokens=False)[0]  # of the two the one that frees the interpreter
