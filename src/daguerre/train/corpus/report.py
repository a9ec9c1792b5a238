"""The two reports on a corpus: manifest.jsonl (each kept file) and report.json (what was dropped, and why)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from daguerre.files import atomic_write, write_json
from daguerre.train.corpus.document import CorpusDocument


@dataclass(frozen=True, kw_only=True)
class CorpusSummary:
    """What a run made. `documents`, `bytes` (UTF-8) and `tokens` (with `<bos>` and `<eos>`) are by split.

    `dropped` is {reason: files}, `skipped` {package that was left out: reason}. `bad_files`, {package: {file: reason}},
    names the dropped files that are corrupt: unreadable, of no known encoding, not Python.
    """

    out: Path
    packages: int
    documents: dict[str, int]
    bytes: dict[str, int]
    tokens: dict[str, int]
    dropped: dict[str, int]
    skipped: dict[str, str]
    bad_files: dict[str, dict[str, str]]
    seen_files: int
    seen_bytes: int
    seconds: float


def write_manifest(out: Path, splits: Mapping[str, Sequence[CorpusDocument]]) -> None:
    """One JSON line a kept file; the n-th line of a split is the n-th document of its shard."""
    with atomic_write(out / "manifest.jsonl") as file:
        for split, documents in splits.items():
            for document in documents:
                file.write(document.manifest_line(split).encode("utf-8") + b"\n")


def write_report(out: Path, summary: CorpusSummary) -> None:
    """report.json: the summary without the machine's paths."""
    fields = asdict(summary)
    del fields["out"]
    write_json(out / "report.json", fields)
