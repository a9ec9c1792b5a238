"""Tokenize documents in chunks, each kept on disk, so that a rerun does not tokenize it again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daguerre.files import atomic_write
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.corpus.document import CorpusDocument
from daguerre.train.corpus.parallel import WorkerPool
from daguerre.train.shards import TOKEN_TYPE

CHUNK_BYTES = 4_000_000

Ids = np.ndarray[Any, np.dtype[np.uint16]]


@dataclass(frozen=True)
class Chunk:
    """Texts to tokenize, and the file that their ids are kept in."""

    path: Path
    texts: list[str]
    tokenizer: Tokenizer


def encode_documents(
    splits: Mapping[str, Sequence[CorpusDocument]], tokenizer: Tokenizer, work: Path, pool: WorkerPool
) -> dict[str, Iterator[tuple[Ids, int]]]:
    """{split: (ids without specials, UTF-8 bytes) of each document, in order}. All are on disk when this returns."""
    folder = work / "tokens"
    folder.mkdir(parents=True, exist_ok=True)
    groups = {split: _group(documents) for split, documents in splits.items()}
    paths = {split: [folder / _name(group, tokenizer) for group in groups[split]] for split in splits}
    chunks = [
        Chunk(path, [document.text for document in group], tokenizer)
        for split in splits
        for path, group in zip(paths[split], groups[split], strict=True)
        if load_chunk(path) is None
    ]
    pool.map(encode_chunk, chunks, "tokenize")
    return {split: _pairs(paths[split], groups[split]) for split in splits}


def encode_chunk(chunk: Chunk) -> None:
    """Tokenize a chunk and write its file, whole or not at all."""
    encoded = [np.array(chunk.tokenizer.encode(text), TOKEN_TYPE) for text in chunk.texts]
    with atomic_write(chunk.path) as file:
        np.savez(file, ids=np.concatenate(encoded), lengths=np.array([len(ids) for ids in encoded], np.int64))


def load_chunk(path: Path) -> list[Ids] | None:
    """The ids of each document of a chunk; None when its file is missing or damaged."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            ids, lengths = arrays["ids"], arrays["lengths"]
    except Exception:  # whatever is wrong with a cache file, the answer is to make it again
        return None
    return np.split(ids, np.cumsum(lengths)[:-1]) if len(ids) == lengths.sum() else None


def _group(documents: Sequence[CorpusDocument]) -> list[list[CorpusDocument]]:
    """Runs of documents of about CHUNK_BYTES."""
    groups: list[list[CorpusDocument]] = []
    room = 0
    for document in documents:
        if room <= 0:
            groups.append([])
            room = CHUNK_BYTES
        groups[-1].append(document)
        room -= document.num_bytes
    return groups


def _name(group: Sequence[CorpusDocument], tokenizer: Tokenizer) -> str:
    digest = hashlib.sha256(tokenizer.sha256.encode())
    for document in group:
        digest.update(document.sha256.encode())
    return f"{digest.hexdigest()[:24]}.npz"


def _pairs(paths: Sequence[Path], groups: Sequence[Sequence[CorpusDocument]]) -> Iterator[tuple[Ids, int]]:
    for path, group in zip(paths, groups, strict=True):
        for ids, document in zip(load_chunk(path) or [], group, strict=True):
            yield ids, document.num_bytes
