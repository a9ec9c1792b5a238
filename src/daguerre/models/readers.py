"""The files of a model, a publisher's folder or a GGUF file: told apart in one place, and asked in one way.

A reader reads each file once. It needs no PyTorch but for safetensors: what the files say becomes a model elsewhere
(`daguerre.models.published`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from daguerre.errors import CheckpointError, DataError, InputError, shown
from daguerre.kinds import PathName
from daguerre.models.gguf.facts import gguf_facts, stored_kinds
from daguerre.models.gguf.file import GgufFile
from daguerre.models.gguf.header import Header, is_gguf, parts_of, read_header, size_of
from daguerre.models.gguf.tokenizer import gguf_words, tokenizer_config
from daguerre.models.gguf.values import GgufMetadata
from daguerre.models.json_files import read_json
from daguerre.models.published_facts import Published
from daguerre.models.published_tokenizer import KEPT, PublishedTokenizer, added_of
from daguerre.models.shards import WEIGHTS, Stored, find_tensors
from daguerre.models.tokenizer import Tokenizer
from daguerre.models.tokenizer_files import ENCODING, TOKENIZER, content_of, read_config, tokenizer_of_json
from daguerre.models.tokenizer_json import special_token

CONFIG, GENERATION = "config.json", "generation_config.json"
FAMILY_KEY = "daguerre_family"
"""The key of a `config.json` that names the family, where it was written here (`models.republish`)."""
HINT = f"a model folder holds {CONFIG}, {WEIGHTS} and {TOKENIZER}; check the path"
SNAPSHOT = re.compile(r"models--([^/]+)--([^/]+)/snapshots/[^/]+$")
"""A folder of the hub's cache, which is named by a revision."""


class FolderReader:
    """The files of a folder: JSON, safetensors and vocabularies. Code that it contains, or that its config names, is
    never looked at.

    config     the file that errors about the config name
    arch       llama.cpp's name of the architecture; None: names are the publisher's
    is_file    whether the model is one file
    file_bytes the size of that
    """

    arch = None
    is_file = False
    file_bytes = None

    def __init__(self, folder: Path) -> None:
        self.path, self.config = folder, folder / CONFIG

    def facts(self, _family: str | None = None) -> Published:
        """What the JSON files say. CheckpointError, in one line, for one that is damaged."""
        try:
            tokens = {token["content"]: token["id"] for token in added_of(self._words)}
        except DataError as error:
            raise CheckpointError(f"{self.path}: {error}") from None
        return Published(
            config=self.values,
            generation=read_json(self.path / GENERATION),
            tokenizer=self._words,
            tokens=tokens,
            name=name_of(self.path),
            family=self.values.get(FAMILY_KEY),
        )

    @cached_property
    def values(self) -> dict[str, Any]:
        """What config.json says; empty where there is none."""
        return read_json(self.config, hint=HINT)

    @cached_property
    def _words(self) -> dict[str, Any]:
        """What tokenizer_config.json says."""
        return read_config(self.path)

    def tokenizer(
        self,
        vocab_size: int | None = None,
        specials: Mapping[str, int] | None = None,
        names: str | os.PathLike[str] | None = None,
    ) -> PublishedTokenizer | None:
        """The tokenizer; see `read_tokenizer`."""
        try:
            named = {} if names is None else read_config(Path(names))
            config = dict(named if ENCODING in named else self._words)
            if specials:
                held = {str(index): special_token(index, content) for content, index in specials.items()}
                config["added_tokens_decoder"] = held | dict(config.get("added_tokens_decoder") or {})
            content = content_of(self.path, config)
            return None if content is None else PublishedTokenizer(content, config, vocab_size)
        except DataError as error:
            raise CheckpointError(f"{self.path}: {error}") from None

    def tokenizer_alone(self) -> Tokenizer | None:
        """The tokenizer of a `tokenizer.json`, which the path may be, or else of the folder."""
        file = self.path if self.path.is_file() else self.path / TOKENIZER
        if not file.exists():
            return self.tokenizer()
        return tokenizer_of_json(file, read_config(file.parent) if file.name == TOKENIZER else {})

    def tensors(self) -> dict[str, Stored]:
        """Every tensor, from the headers of the files; see `find_tensors`."""
        return find_tensors(self.path)

    def weight_files(self) -> list[Path]:
        """The files that hold weights."""
        return sorted(self.path.glob("*.safetensors"))

    def kinds(self) -> dict[str, int]:
        """How many tensors of a GGUF file are of each type."""
        return {}


class GgufReader:
    """A GGUF file, or all its parts: what `FolderReader` gives, from a header that is read once."""

    is_file = True

    def __init__(self, path: Path) -> None:
        self.path = self.config = path

    @cached_property
    def header(self) -> Header:
        return read_header(self.path)

    @cached_property
    def _words(self) -> dict[str, Any]:
        return tokenizer_config(self.header)

    @property
    def arch(self) -> str:
        return GgufMetadata(self.header).arch

    @property
    def file_bytes(self) -> int:
        return size_of(self.path)

    def facts(self, family: str | None = None) -> Published:
        return gguf_facts(self.header, self._words, family)

    def tokenizer(self, vocab_size: int | None = None, *_: object, **__: object) -> PublishedTokenizer | None:
        try:
            found = gguf_words(self.header, self._words)
            if found is None:
                return None
            words, config = found
            size = config.get(KEPT, {}).get("size") if vocab_size is None else vocab_size
            return PublishedTokenizer(words if isinstance(words, str) else words.layout, config, size)
        except DataError as error:
            raise CheckpointError(f"{self.path}: {error}") from None

    def tokenizer_alone(self) -> PublishedTokenizer | None:
        return self.tokenizer()

    def tensors(self) -> dict[str, Stored]:
        file = GgufFile(self.header)
        return {
            name: Stored(file, each.shape, each.kind, each.num_bytes, name=name) for name, each in file.entries.items()
        }

    def weight_files(self) -> list[Path]:
        return parts_of(self.path)

    def kinds(self) -> dict[str, int]:
        return stored_kinds(self.header)


Reader = FolderReader | GgufReader


def is_on_hub(folder: Path) -> bool:
    """Whether a folder is in the hub's cache."""
    return SNAPSHOT.search(folder.absolute().as_posix()) is not None


def name_of(folder: Path) -> str:
    """The name by which a folder is known: on the hub, if it is in the hub's cache, else its own."""
    found = SNAPSHOT.search(folder.absolute().as_posix())
    return f"{found[1]}/{found[2]}" if found else folder.absolute().name


def reader_of(path: str | os.PathLike[str]) -> Reader:
    """The reader of a folder or a GGUF file; nothing but the beginning of a file is read yet."""
    path = Path(path)
    return GgufReader(path) if is_gguf(path) else FolderReader(path)


def read_tokenizer(
    source: str | os.PathLike[str],
    vocab_size: int | None = None,
    specials: Mapping[str, int] | None = None,
    *,
    names: str | os.PathLike[str] | None = None,
) -> PublishedTokenizer | None:
    """The tokenizer of a checkpoint's folder or of a GGUF file; None where it has none.

    vocab_size  of the model; None: as many ids as the tokenizer has
    specials    special tokens that no file names, with their ids
    names       the folder of a checkpoint that has no vocabulary, but whose tokenizer_config.json may name its special
                tokens and their ids: it then comes before the one of `source`

    CheckpointError, in one line, for a file that cannot be read; UnsupportedError for a kind that is not supported.
    """
    return reader_of(source).tokenizer(vocab_size, specials, names)


def given_tokenizer(folder: Path, checkpoint: Path) -> PublishedTokenizer:
    """The tokenizer of a folder that the user named, for a checkpoint. CheckpointError where it has none."""
    found = read_tokenizer(folder, names=checkpoint)
    if found is None:
        raise CheckpointError(f"{folder} has no tokenizer: give a folder with tokenizer.json")
    return found


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """Open a tokenizer without its model: that of a GGUF file, which may have no weights, of a checkpoint's folder, or
    a `tokenizer.json`, beside which other files may name special tokens and a chat template.

    `encode(text)` gives ids, `decode(ids)` text, `token_bytes(id)` the bytes of a token, and `chat(messages)` the ids
    of a conversation. Special tokens that no file of the tokenizer names are not known without the model.

    InputError for a path where nothing is; CheckpointError for files that cannot be read; UnsupportedError for a kind
    of tokenizer that is not supported.
    """
    PathName()("path", path)
    source = Path(path).expanduser()
    if not source.exists():
        raise InputError(f"there is no {shown(os.fspath(path))}: give a GGUF file, a folder, or a {TOKENIZER}")
    found = reader_of(source).tokenizer_alone()
    if found is None:
        raise CheckpointError(f"{source} has no tokenizer: give a GGUF file, a folder, or a {TOKENIZER} that has")
    return found
