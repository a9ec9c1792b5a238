"""Labels of a corpus of token shards, kept beside them: spans of concepts in bytes of each document.

    DIR/concepts-HASH/SPLIT.spans.npy   int32 (S, 3): number of a concept, first byte, byte after the last; by document
    DIR/concepts-HASH/SPLIT.ends.npy    int64 (documents): spans[ends[d - 1] : ends[d]] are those of document d
    DIR/concepts-HASH/SPLIT.known.npy   bool (documents): labeled, and everything else certified to be no instance
    DIR/concepts-HASH/SPLIT.json        how much was asked for; written last, so a split with one is whole

HASH is the beginning of the taxonomy's SHA-256. Documents are labeled whole, in a random order, until enough of them
are: windows and masks come later, and a window's tokens may be cut where the documents' tokens are not.

Letters: S spans, T tokens, N concepts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daguerre.concepts.labels import in_bytes, label, token_concepts
from daguerre.concepts.taxonomy import taxonomy
from daguerre.errors import DataError
from daguerre.files import atomic_write, write_json
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.shards import Shard

PROGRESS_DOCUMENTS = 50
Progress = Callable[[int, int], None]
"""progress(labeled tokens, tokens to label)."""


@dataclass(frozen=True, eq=False)
class CorpusLabels:
    """The labels of one split; see the module's table. `num_concepts` is N, `folder` and `split` are where they are."""

    spans: np.ndarray
    ends: np.ndarray
    known: np.ndarray
    num_concepts: int
    folder: Path
    split: str

    @classmethod
    def read(cls, folder: Path, split: str) -> CorpusLabels:
        """The labels that are kept in a folder. DataError where they are damaged."""
        try:
            spans = np.load(folder / f"{split}.spans.npy", mmap_mode="r")
            ends, known = np.load(folder / f"{split}.ends.npy"), np.load(folder / f"{split}.known.npy")
        except (OSError, ValueError) as error:
            raise _unusable(folder, f"is damaged ({error})") from None
        return cls(spans, ends, known, taxonomy().num_ids, folder, split)

    def __reduce__(self) -> tuple[Any, ...]:
        return CorpusLabels.read, (self.folder, self.split)  # another process maps the file, no span is copied

    @property
    def documents(self) -> np.ndarray:
        """The numbers of the documents that have labels, int64."""
        return np.flatnonzero(self.known)

    def of_tokens(self, document: int, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """The concepts of tokens of a document, bool (T, N); see `token_concepts`."""
        first = int(self.ends[document - 1]) if document else 0
        spans = self.spans[first : int(self.ends[document])]
        return token_concepts(spans, starts, ends, self.num_concepts)


def corpus_labels(
    shard: Shard, tokenizer: Tokenizer, num_tokens: int, progress: Progress | None = None
) -> CorpusLabels:
    """The labels of so many tokens of a split or more, made and kept if they are not there. Documents that do not
    parse have none.
    """
    folder = shard.folder / f"concepts-{taxonomy().sha256[:12]}"
    asked, summary = min(num_tokens, shard.num_tokens), folder / f"{shard.split}.json"
    if not summary.exists() or json.loads(summary.read_text())["asked"] < asked:
        folder.mkdir(exist_ok=True)
        made = _label(shard, tokenizer, asked, progress)
        summary.unlink(missing_ok=True)
        for name, rows in made.items():
            with atomic_write(folder / f"{shard.split}.{name}.npy") as file:
                np.save(file, rows)
        write_json(summary, {"asked": asked, "documents": int(made["known"].sum())})
    found = CorpusLabels.read(folder, shard.split)
    if len(found.ends) != shard.num_documents:
        raise _unusable(folder, "has labels of another corpus")
    return found


def _unusable(folder: Path, reason: str) -> DataError:
    return DataError(f"{folder} {reason}: remove it, and it is made again")


def _label(shard: Shard, tokenizer: Tokenizer, asked: int, progress: Progress | None) -> dict[str, np.ndarray]:
    spans: dict[int, np.ndarray] = {}
    done = 0
    for number, document in enumerate(np.random.default_rng(0).permutation(shard.num_documents).tolist()):
        if done >= asked:
            break
        tokens = shard.document(document)
        found = _labels_of(tokens, tokenizer)
        if found is not None:
            spans[document] = found
            done += len(tokens)
        if progress is not None and number % PROGRESS_DOCUMENTS == 0:
            progress(done, asked)
    sizes, known = np.zeros(shard.num_documents, dtype=np.int64), np.zeros(shard.num_documents, dtype=bool)
    for document, rows in spans.items():
        sizes[document], known[document] = len(rows), True
    joined = [spans[document] for document in sorted(spans)]
    all_spans = np.concatenate(joined) if joined else np.zeros((0, 3), dtype=np.int32)
    return {"spans": all_spans, "ends": np.cumsum(sizes), "known": known}


def _labels_of(tokens: np.ndarray, tokenizer: Tokenizer) -> np.ndarray | None:
    """Spans of a document in bytes, int32 (S, 3); None where it does not parse."""
    try:
        text = tokenizer.decode_bytes(tokens.tolist()).decode("utf-8")
    except UnicodeDecodeError:
        return None
    labels = label(text)
    if not labels.certain:
        return None
    return in_bytes(labels.spans, text).astype(np.int32)
