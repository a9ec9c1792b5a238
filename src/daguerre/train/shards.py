"""Token shards: a corpus as memory-mapped uint16 files.

    DIR/meta.json          {"format": 1, "tokenizer_sha256", "vocab_size",
                            "splits": {split: {"tokens", "bytes", "documents"}}}
    DIR/tokenizer.json     a copy of the tokenizer
    DIR/SPLIT.bin          uint16 (uint32 where meta.json has "token_type": "<u4"), little-endian; each document is
                           `<bos> tokens... <eos>`, or a text with answers as it is
    DIR/SPLIT.starts.npy   int64 [documents + 1]: offset in tokens of each document, then the number of tokens
    DIR/SPLIT.bytes.npy    int64 [documents]: UTF-8 bytes of each document's text
    DIR/SPLIT.given.npy    int64 [documents], where a model has written some of the text: how many tokens after <bos>
                           were its prompt; for a text that no model has written, 0
    DIR/SPLIT.answers.bin  uint8, in a corpus of prompts and answers: 1 for each token that is an answer's

meta.json is removed first and written last, so a folder with one is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daguerre.errors import DataError, InputError
from daguerre.files import atomic_write, write_json
from daguerre.models.tokenizer import Tokenizer

FORMAT = 1
META = "meta.json"
SPLITS = ("train", "val", "test")
TOKEN_TYPE = np.dtype("<u2")


@dataclass(frozen=True)
class Shard:
    """One split, read-only. `tokens` is a memory map of uint16 or uint32, `answers` one of uint8; all is as in the
    module's table.
    """

    tokens: np.memmap[Any, Any]
    starts: np.ndarray[Any, np.dtype[np.int64]]
    doc_bytes: np.ndarray[Any, np.dtype[np.int64]]
    tokenizer_sha256: str
    vocab_size: int
    folder: Path
    split: str
    given: np.ndarray[Any, np.dtype[np.int64]] | None = None
    answers: np.ndarray[Any, np.dtype[np.uint8]] | None = None

    @classmethod
    def open(
        cls, directory: str | os.PathLike[str], split: str = "train", tokenizer_sha256: str | None = None
    ) -> Shard:
        """Map a split of a corpus. DataError when it is missing, truncated, or made with another tokenizer."""
        folder = Path(directory)
        meta = read_meta(folder)
        if tokenizer_sha256 is not None and meta["tokenizer_sha256"] != tokenizer_sha256:
            raise DataError(
                f"{folder} was tokenized with another vocabulary ({meta['tokenizer_sha256'][:12]}) than the model's "
                f"({tokenizer_sha256[:12]}): make it again with `daguerre data python --out NEW --tokenizer ...`"
            )
        if split not in meta["splits"]:
            raise DataError(f"{folder} has no split {split!r}: it has {', '.join(meta['splits']) or 'none'}")
        counts = meta["splits"][split]
        starts = _load_array(folder / f"{split}.starts.npy", counts["documents"] + 1)
        doc_bytes = _load_array(folder / f"{split}.bytes.npy", counts["documents"])
        tokens = _map(folder / f"{split}.bin", counts["tokens"], np.dtype(meta.get("token_type", TOKEN_TYPE.str)))
        if starts[-1] != len(tokens):
            raise _damaged(folder / f"{split}.starts.npy", "its last offset is not the number of tokens")
        path = folder / f"{split}.given.npy"
        given = _load_array(path, counts["documents"]) if path.exists() else None
        path = folder / f"{split}.answers.bin"
        answers = _map(path, counts["tokens"], np.dtype(np.uint8)) if path.exists() else None
        facts = meta["tokenizer_sha256"], meta["vocab_size"], folder, split
        return cls(tokens, starts, doc_bytes, *facts, given, answers)

    def __reduce__(self) -> tuple[Any, ...]:
        return Shard.open, (self.folder, self.split)  # another process maps the file, no token is copied

    @property
    def num_tokens(self) -> int:
        """Tokens in all, `<bos>` and `<eos>` included."""
        return len(self.tokens)

    @property
    def num_bytes(self) -> int:
        """UTF-8 bytes of text in all."""
        return int(self.doc_bytes.sum())

    @property
    def num_documents(self) -> int:
        return len(self.doc_bytes)

    def document(self, index: int) -> np.ndarray[Any, Any]:
        """Tokens of one document, `<bos>` and `<eos>` included. IndexError outside 0 .. num_documents - 1."""
        if not 0 <= index < self.num_documents:
            raise IndexError(f"document {index} of {self.num_documents}")
        return self.tokens[self.starts[index] : self.starts[index + 1]]


def write_shards(out: str | os.PathLike[str], texts: Mapping[str, Iterable[str]], tokenizer: Tokenizer) -> None:
    """Tokenize `{split: texts}` into a folder. InputError for a split that is not train, val or test."""
    write_tokens(out, {split: _encode_all(documents, tokenizer) for split, documents in texts.items()}, tokenizer)


def write_tokens(
    out: str | os.PathLike[str],
    documents: Mapping[str, Iterable[tuple[np.ndarray[Any, Any], int]]],
    tokenizer: Tokenizer,
    given: Mapping[str, Sequence[int]] | None = None,
) -> None:
    """Write `{split: (token ids without specials, UTF-8 bytes) pairs}` into a folder, a document at a time.

    given: by split, how many tokens of each document are the prompt of a text that a model has written.
    """
    if tokenizer.vocab_size > 65536:
        raise InputError(
            f"shards hold 16-bit ids: a vocabulary of {tokenizer.vocab_size} is too large; use at most 65536"
        )
    if strange := set(documents) - set(SPLITS):
        raise InputError(f"unknown split {sorted(strange)[0]!r}: use {', '.join(SPLITS)}")
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / META).unlink(missing_ok=True)
    tokenizer.save(folder / "tokenizer.json")
    for split in SPLITS:
        (folder / f"{split}.given.npy").unlink(missing_ok=True)
    splits = {split: _write_split(folder, split, pairs, tokenizer) for split, pairs in documents.items()}
    for split, numbers in (given or {}).items():
        save_array(folder / f"{split}.given.npy", numbers)
    meta = {"format": FORMAT, "tokenizer_sha256": tokenizer.sha256, "vocab_size": tokenizer.vocab_size} | {
        "splits": splits
    }
    write_json(folder / META, meta)


def is_corpus(folder: Path) -> bool:
    """Whether a folder holds a whole corpus."""
    return (folder / META).is_file()


def read_meta(folder: Path) -> dict[str, Any]:
    """meta.json of a corpus. DataError when there is none, or its format is not ours."""
    try:
        meta: dict[str, Any] = json.loads((folder / META).read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{folder} has no meta.json: finish it with `daguerre data python --out {folder}`") from error
    except ValueError as error:
        raise _damaged(folder / META, "not JSON") from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise DataError(f"{folder} has another format than {FORMAT}: make it again with `daguerre data python`")
    return meta


def data_facts(data: Path, run: Path) -> dict[str, Any]:
    """Where a run's data is, and what distinguishes it from other data."""
    place, out = data.resolve(), run.resolve()
    return {
        "path": str(place.relative_to(out) if place.is_relative_to(out) else place),
        "splits": read_meta(data)["splits"],
    }


def manifest_hash(data: Path) -> str:
    """SHA-256 of the list of a corpus's documents, or of its meta.json where it has none."""
    listed = data / "manifest.jsonl"
    with (listed if listed.exists() else data / META).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def data_line(train: Shard, val: Shard) -> str:
    """What is trained on, and what is held out of it."""
    line = f"training text: {_size(train)}; "
    if val is train:
        return line + "the data has no validation split: held-out figures are of the training text itself"
    return line + f"held out: {_size(val)}"


def _size(shard: Shard) -> str:
    return f"{shard.num_documents:,} file{'s' if shard.num_documents != 1 else ''}, {shard.num_tokens:,} tokens"


def _encode_all(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[tuple[np.ndarray[Any, Any], int]]:
    for text in texts:
        yield np.array(tokenizer.encode(text), TOKEN_TYPE), len(text.encode("utf-8"))


def _write_split(
    folder: Path, split: str, documents: Iterable[tuple[np.ndarray[Any, Any], int]], tokenizer: Tokenizer
) -> dict[str, int]:
    bos, eos = np.array([tokenizer.bos_id], TOKEN_TYPE), np.array([tokenizer.eos_id], TOKEN_TYPE)
    starts, doc_bytes = [0], []
    with atomic_write(folder / f"{split}.bin") as file:
        for ids, num_bytes in documents:
            file.write(np.concatenate([bos, ids.astype(TOKEN_TYPE), eos]).tobytes())
            starts.append(starts[-1] + len(ids) + 2)
            doc_bytes.append(num_bytes)
    save_array(folder / f"{split}.starts.npy", starts)
    save_array(folder / f"{split}.bytes.npy", doc_bytes)
    return {"tokens": starts[-1], "bytes": sum(doc_bytes), "documents": len(doc_bytes)}


def save_array(path: Path, values: Sequence[int]) -> None:
    with atomic_write(path) as file:
        np.save(file, np.array(values, np.int64))


def _load_array(path: Path, length: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    try:
        with path.open("rb") as file:
            array: np.ndarray[Any, np.dtype[np.int64]] = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _damaged(path, str(error)) from error
    if array.shape != (length,) or array.dtype != np.int64:
        raise _damaged(path, f"expected {length} 64-bit integers, found shape {array.shape} of {array.dtype}")
    return array


def _map(path: Path, length: int, kind: np.dtype[Any]) -> np.memmap[Any, Any]:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise _damaged(path, str(error)) from error
    if size != length * kind.itemsize:
        raise _damaged(path, f"{size} bytes where {length * kind.itemsize} are expected")
    if length == 0:  # an empty file cannot be mapped
        return np.empty(0, kind)  # type: ignore[return-value]
    return np.memmap(path, kind, mode="r")


def _damaged(path: Path, why: str) -> DataError:
    return DataError(f"{path} is damaged ({why}): delete the folder and make it again with `daguerre data python`")
