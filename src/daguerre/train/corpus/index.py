"""Index the training split of a corpus, for asking which of its documents a text repeats (daguerre.overlap)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from daguerre.errors import DataError
from daguerre.models.tokenizer import Tokenizer
from daguerre.overlap.build import MEMORY, Progress, write_index
from daguerre.overlap.index import Overlap
from daguerre.train.shards import Shard

SPLIT = "train"


def index_corpus(
    data: Path, out: Path, *, memory: int = MEMORY, progress: Progress = lambda phase, share: None
) -> Overlap:
    """Index the training documents of a corpus in the folder `out`, in about `memory` bytes; the opened index.

    manifest.jsonl says where each comes from; without one, its package, license and file are None. DataError when the
    corpus is damaged, or its manifest is of other documents.
    """
    shard = Shard.open(data, SPLIT)
    tokenizer = Tokenizer.load(data / "tokenizer.json")
    if tokenizer.sha256 != shard.tokenizer_sha256:
        raise DataError(f"{data}/tokenizer.json is not what {data} was tokenized with: put the right one back")
    corpus = {
        "sha256": corpus_sha256(shard),
        "tokenizer_sha256": shard.tokenizer_sha256,
        "split": SPLIT,
        "documents": shard.num_documents,
        "tokens": shard.num_tokens,
        "bytes": shard.num_bytes,
    }
    write_index(out, _documents(shard, tokenizer), corpus, memory=memory, progress=progress)
    return Overlap.open(out)


def corpus_sha256(shard: Shard) -> str:
    """The identity of a split: its tokens, where its documents begin, and the vocabulary."""
    digest = hashlib.sha256(shard.tokenizer_sha256.encode())
    digest.update(shard.starts.tobytes())
    digest.update(shard.tokens.data)
    return digest.hexdigest()


def _documents(shard: Shard, tokenizer: Tokenizer) -> Iterator[tuple[bytes, Mapping[str, Any]]]:
    table = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    known = _manifest(shard)
    for number in range(shard.num_documents):
        text = b"".join(map(table.__getitem__, shard.document(number).tolist()))
        if known and hashlib.sha256(text).hexdigest() != known[number].get("sha256"):
            raise _foreign(shard.folder, f"line {number + 1} of split {shard.split} is of another text")
        yield text, known[number] if known else {}


def _manifest(shard: Shard) -> list[dict[str, Any]]:
    """What is known of each document, in order; empty without a manifest."""
    path = shard.folder / "manifest.jsonl"
    if not path.exists():
        return []
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        known = [line for line in lines if line["split"] == shard.split]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _foreign(shard.folder, f"it cannot be read: {error}") from error
    if len(known) != shard.num_documents:
        raise _foreign(shard.folder, f"it has {len(known)} documents of split {shard.split}, not {shard.num_documents}")
    return known


def _foreign(folder: Path, why: str) -> DataError:
    return DataError(
        f"{folder}/manifest.jsonl does not describe this corpus ({why}): remove it, or make the corpus again"
    )
