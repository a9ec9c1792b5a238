"""The frozen held-out sample: files of packages that no model of ours trained on, so that scores can be compared."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, fields
from importlib import resources

from daguerre.errors import DataError

# Of sample.jsonl. With a new sample scores no longer compare with published ones: raise the version of the package.
SAMPLE_SHA256 = "8d655212141a94a2a8ca6e3e7db6326b8823bfd2d2381a90af3622ccaf442fcd"


@dataclass(frozen=True)
class Document:
    """One file. `file` is relative to its package's root, `sha256` of the UTF-8 text, `license` an SPDX expression."""

    package: str
    version: str
    license: str
    file: str
    sha256: str
    text: str = field(repr=False)


def load_frozen() -> list[Document]:
    """The sample's documents, by package. DataError when the installed copy is not the published one."""
    content = (resources.files("daguerre") / "assets" / "heldout" / "sample.jsonl").read_text(encoding="utf-8")
    return parse_sample(content, SAMPLE_SHA256)


def parse_sample(content: str, expected_sha256: str) -> list[Document]:
    """Documents of a sample.jsonl's text. DataError when the text, or one of its documents, does not have its hash."""
    if _sha256(content) != expected_sha256:
        raise DataError("the frozen held-out sample was altered: reinstall daguerre, or scores cannot be compared")
    names = [each.name for each in fields(Document)]
    lines = content.removesuffix("\n").split("\n")  # not splitlines(): the texts hold other line separators
    documents = [Document(*(record[name] for name in names)) for record in map(json.loads, lines)]
    for document in documents:
        if _sha256(document.text) != document.sha256:
            raise DataError(
                f"frozen file {document.package}/{document.file} does not have its hash: make the sample again"
            )
    return documents


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
