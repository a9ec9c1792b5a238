"""One source file of a corpus, and how a package's files are kept on disk between runs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from daguerre.files import atomic_write
from daguerre.train.corpus.dedup import NUM_PERM, Signature


@dataclass(frozen=True)
class CorpusDocument:
    """A kept file. `file` is relative to its package's root; `sha256` and `num_bytes` are of the text's UTF-8."""

    package: str
    version: str
    license: str
    file: str
    sha256: str
    num_bytes: int
    text: str = field(repr=False)

    def manifest_line(self, split: str) -> str:
        """The document's line in manifest.jsonl."""
        keys = ("package", "version", "license", "file", "sha256")
        return json.dumps(
            {key: getattr(self, key) for key in keys} | {"bytes": self.num_bytes, "split": split}, ensure_ascii=False
        )


@dataclass(frozen=True)
class Harvest:
    """What one package gave: kept documents, their MinHash signatures (NUM_PERM each), and {reason: dropped files}.

    `bad_files` is {file: reason} of the dropped ones that are corrupt: unreadable, of no known encoding, not Python.
    """

    documents: list[CorpusDocument]
    signatures: list[Signature]
    dropped: dict[str, int]
    bad_files: dict[str, str]
    seen_bytes: int

    def save(self, path: Path) -> None:
        """Write to one .npz file, whole or not at all."""
        record = {
            "documents": [asdict(d) for d in self.documents],
            "dropped": self.dropped,
            "bad_files": self.bad_files,
            "seen_bytes": self.seen_bytes,
        }
        content = np.frombuffer(json.dumps(record).encode("utf-8"), np.uint8)
        stacked = np.array(self.signatures, np.uint32).reshape(-1, NUM_PERM)
        with atomic_write(path) as file:
            np.savez(file, record=content, signatures=stacked)

    @classmethod
    def load(cls, path: Path) -> Harvest | None:
        """What `save` wrote; None when the file is missing or damaged, so that it is made again."""
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                record = json.loads(arrays["record"].tobytes())
                signatures = list(arrays["signatures"])
            documents = [CorpusDocument(**fields) for fields in record["documents"]]
        except Exception:  # whatever is wrong with a cache file, the answer is to make it again
            return None
        return cls(documents, signatures, record["dropped"], record["bad_files"], record["seen_bytes"])
