"""The two accounts of a corpus: manifest.jsonl (each kept file) and report.json (what was dropped, and why)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from daguerre.files import atomic_write
from daguerre.train.corpus.document import Document

if TYPE_CHECKING:
    from daguerre.train.corpus.collect import Summary


def write_manifest(out: Path, splits: Mapping[str, Sequence[Document]]) -> None:
    """One JSON line a kept file; the n-th line of a split is the n-th document of its shard."""
    with atomic_write(out / "manifest.jsonl") as file:
        for split, documents in splits.items():
            for document in documents:
                file.write(document.manifest_line(split).encode("utf-8") + b"\n")


def write_report(out: Path, summary: Summary) -> None:
    """report.json: the summary without the machine's paths."""
    fields = asdict(summary)
    del fields["out"]
    with atomic_write(out / "report.json") as file:
        file.write((json.dumps(fields, indent=1, ensure_ascii=False) + "\n").encode("utf-8"))
