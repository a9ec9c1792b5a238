"""A user's own files as documents to evaluate on."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from daguerre.errors import DataError
from daguerre.evals.frozen import Document


def read_documents(path: str | os.PathLike[str]) -> list[Document]:
    """A text file, or the Python files of a folder. DataError when there are none, or one is not UTF-8."""
    root = Path(path)
    files = [root] if root.is_file() else sorted(root.rglob("*.py"))
    if not files:
        raise DataError(f"{root} is neither a file nor a folder with Python files: check the path")
    return [_read(file, root) for file in files]


def _read(file: Path, root: Path) -> Document:
    try:
        content = file.read_bytes()
        text = content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {file} ({error}): leave it out, or save it as UTF-8") from None
    name = file.name if file == root else file.relative_to(root).as_posix()
    return Document(root.name, "", "", name, hashlib.sha256(content).hexdigest(), text)
