"""Make the frozen held-out sample shipped in daguerre/assets/heldout: files of the test packages, chosen by hash.

`freeze_sample(site, out)` with `site` a folder that `pip install --target site --no-deps -r recipes/corpus.txt` filled
makes it again, byte for byte.
"""

from __future__ import annotations

import json
import re
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

from daguerre.errors import DataError
from daguerre.files import atomic_write
from daguerre.train.corpus.dedup import THRESHOLD
from daguerre.train.corpus.document import Document
from daguerre.train.corpus.gather import gather
from daguerre.train.corpus.parallel import Pool
from daguerre.train.corpus.sources import Package, from_folder, heldout_splits, normalize

PACKAGE_BYTES = 75_000
_LICENSE_FILE = re.compile(r"(^|/)(licen[cs]e|copying|notice|copyright|authors)[^/]*$", re.I)


def freeze_sample(site: Path, out: Path, *, package_bytes: int = PACKAGE_BYTES) -> int:
    """Write sample.jsonl and LICENSES.txt into `out`; return the sample's UTF-8 bytes of text.

    From each test package come files in the order of their hashes while they fit in `package_bytes`.
    DataError when `site` has none of the test packages, or one of them has no license text.
    """
    splits = heldout_splits()
    found = [p for p in from_folder(site) if isinstance(p, Package) and splits.get(p.name) == "test"]
    with TemporaryDirectory() as work:
        pool = Pool(1, progress=False)
        gathered = gather(found, Path(work), pool=pool, near_duplicates=THRESHOLD, max_share=1.0)
    chosen = [
        document for package in found for document in _choose(gathered.splits["test"], package.name, package_bytes)
    ]
    with atomic_write(out / "sample.jsonl") as file:
        for document in chosen:
            file.write(_line(document).encode("utf-8") + b"\n")
    names = {document.package for document in chosen}
    with atomic_write(out / "LICENSES.txt") as file:
        file.write(_licenses(site, names).encode("utf-8"))
    return sum(document.num_bytes for document in chosen)


def _choose(documents: list[Document], package: str, package_bytes: int) -> list[Document]:
    chosen, total = [], 0
    for document in sorted(documents, key=lambda document: document.sha256):
        if document.package == package and total + document.num_bytes <= package_bytes:
            chosen.append(document)
            total += document.num_bytes
    return chosen


def _line(document: Document) -> str:
    keys = ("package", "version", "license", "file", "sha256", "text")
    return json.dumps({key: getattr(document, key) for key in keys}, ensure_ascii=False)


def _licenses(site: Path, names: set[str]) -> str:
    sections = {}
    for distribution in metadata.distributions(path=[str(site)]):
        name = normalize(distribution.metadata["Name"])
        if name in names:
            texts = [
                file
                for file in distribution.files or []
                if ".dist-info/" in str(file) and _LICENSE_FILE.search(str(file))
            ]
            if not texts:
                raise DataError(
                    f"{name} {distribution.version} has no license text in its dist-info: leave it out of the sample"
                )
            body = "\n\n".join(file.read_text(encoding="utf-8").strip() for file in sorted(texts))
            sections[name] = f"{'=' * 80}\n{name} {distribution.version}\n{'=' * 80}\n\n{body}\n"
    head = (
        "The files in sample.jsonl come from the packages below, unchanged but for line ends, under these licenses.\n\n"
    )
    return head + "\n".join(sections[name] for name in sorted(sections))
