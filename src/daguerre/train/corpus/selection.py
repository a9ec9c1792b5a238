"""Choose among kept documents: no duplicates, nothing near a held-out file, no package too large."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from daguerre.heldout import Document
from daguerre.train.corpus import dedup
from daguerre.train.corpus.dedup import NearIndex, Signature, similarities
from daguerre.train.corpus.document import CorpusDocument, Harvest
from daguerre.train.corpus.sources import USER_PROVIDED

HELD_OUT_FIRST = ("test", "val", "train")


@dataclass
class Selection:
    """Documents by split, and how many were dropped by reason."""

    splits: dict[str, list[CorpusDocument]] = field(default_factory=lambda: {"train": [], "val": [], "test": []})
    dropped: Counter[str] = field(default_factory=Counter)


class Deduplicator:
    """Remembers documents and says why a new one is a duplicate. Held-out documents must come first.

    A training file is compared with every held-out file, those of the frozen sample among them, so that none slips
    through; with other training files only by the index, which finds most near duplicates.
    """

    def __init__(self, threshold: float | None, frozen: Iterable[Document] = ()) -> None:
        self._threshold = threshold
        self._exact: dict[str, str] = {}
        self._index = NearIndex(threshold) if threshold is not None else None
        self._frozen = {document.sha256: document.text for document in frozen}
        self._held_out = [dedup.signature(text) for text in self._frozen.values()] if threshold is not None else []

    def refuse(self, document: CorpusDocument, signature: Signature, split: str) -> str | None:
        """Why the document is dropped, or None, and then it is remembered."""
        earlier = self._exact.get(document.sha256)
        if split == "train" and (earlier not in (None, "train") or document.sha256 in self._frozen):
            return "duplicate of a held-out file"
        if earlier is not None:
            return "exact duplicate"
        if self._index is not None:
            if split == "train" and self._is_near_held_out(signature):
                return "near duplicate of a held-out file"
            if self._index.find(signature) is not None:
                return "near duplicate"
            self._index.add(signature)
        self._exact[document.sha256] = split
        if split != "train":
            self._held_out.append(signature)
        return None

    def _is_near_held_out(self, signature: Signature) -> bool:
        if self._threshold is None or not self._held_out:
            return False
        return bool(similarities(self._held_out_matrix, signature).max() >= self._threshold)

    @cached_property
    def _held_out_matrix(self) -> Signature:
        """[held-out files, NUM_PERM]; first used when the last of them was added."""
        return np.stack(self._held_out)


def select(
    harvests: Mapping[str, Harvest],
    split_of: Mapping[str, str],
    *,
    threshold: float | None,
    max_share: float,
    frozen: Iterable[Document] = (),
) -> Selection:
    """Pick from {package: harvest}. `split_of` has the split of each package.

    `threshold` is the Jaccard similarity from which files are near duplicates; None keeps them.
    `max_share`: see `cap_packages`. `frozen`: held-out files that no training file may equal or be near, wherever it
    comes from; the copies of them in a held-out package stay in its split.
    """
    selection, deduplicator = Selection(), Deduplicator(threshold, frozen)
    for name in sorted(harvests, key=lambda name: (HELD_OUT_FIRST.index(split_of[name]), name)):
        split = split_of[name]
        for document, signature in zip(harvests[name].documents, harvests[name].signatures, strict=True):
            reason = deduplicator.refuse(document, signature, split)
            if reason is None:
                selection.splits[split].append(document)
            else:
                selection.dropped[reason] += 1
    capped = cap_packages(selection.splits["train"], max_share)
    if removed := len(selection.splits["train"]) - len(capped):
        selection.dropped["over its package's share"] = removed
    selection.splits["train"] = capped
    for documents in selection.splits.values():
        documents.sort(key=lambda document: document.sha256)  # mixes the packages, the same way each time
    return selection


def cap_packages(documents: Iterable[CorpusDocument], max_share: float) -> list[CorpusDocument]:
    """Drop files of packages that hold more than `max_share` of all bytes, choosing by hash.

    The share is raised to 2 / packages when there are few of them; the user's code is never cut.
    """
    by_package: dict[str, list[CorpusDocument]] = {}
    for document in documents:
        by_package.setdefault(document.package, []).append(document)
    sizes = {name: sum(d.num_bytes for d in group) for name, group in by_package.items()}
    limit = _share_limit(list(sizes.values()), max_share)
    kept: list[CorpusDocument] = []
    for name, group in by_package.items():
        kept += group if group[0].license == USER_PROVIDED or sizes[name] <= limit else _until(group, limit)
    return kept


def _share_limit(sizes: list[int], max_share: float) -> float:
    """The largest L with L <= share * sum(min(size, L)), found by iterating downwards."""
    share = max(max_share, 2 / max(1, len(sizes)))
    limit = float(sum(sizes))
    for _ in range(100):
        limit = share * sum(min(size, limit) for size in sizes)
    return limit


def _until(group: list[CorpusDocument], limit: float) -> list[CorpusDocument]:
    kept, total = [], 0
    for document in sorted(group, key=lambda document: document.sha256):
        if total + document.num_bytes <= limit:
            kept.append(document)
            total += document.num_bytes
    return kept
