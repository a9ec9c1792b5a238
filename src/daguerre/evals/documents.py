"""A user's files as documents to evaluate on."""

from __future__ import annotations

import hashlib
import io
import os
import tokenize
from collections.abc import Iterator
from pathlib import Path

from daguerre.errors import DataError
from daguerre.heldout import Document

FOREIGN_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages"})


def read_documents(path: str | os.PathLike[str]) -> tuple[list[Document], dict[str, str]]:
    """A text file, or the Python files of a folder; and {file that cannot be read: reason}.

    Hidden folders, virtual environments and caches are left out. DataError when nothing can be read.
    """
    root = Path(path)
    files = [root] if root.is_file() else sorted(_python_files(root))
    if not files:
        raise DataError(f"{root} is neither a file nor a folder with Python files: check the path")
    documents, skipped = [], {}
    for file in files:
        name = file.name if file == root else file.relative_to(root).as_posix()
        try:
            documents.append(_document(root.resolve().name, name, _decode(file.read_bytes())))
        except (OSError, ValueError, SyntaxError, LookupError) as error:
            skipped[name] = " ".join(str(error).split())
    if not documents:
        name, reason = next(iter(skipped.items()))
        raise DataError(f"cannot read {name} ({reason}): save it as UTF-8, or declare its encoding in its first line")
    return documents, skipped


def _python_files(root: Path) -> Iterator[Path]:
    for folder, inner, files in os.walk(root):
        inner[:] = [name for name in inner if not _is_foreign(Path(folder, name))]
        yield from (Path(folder, name) for name in files if name.endswith(".py"))


def _is_foreign(folder: Path) -> bool:
    return folder.name.startswith(".") or folder.name in FOREIGN_FOLDERS or (folder / "pyvenv.cfg").exists()


def _decode(content: bytes) -> str:
    """The text, its line breaks unchanged, in the encoding that PEP 263 gives; a byte order mark is dropped."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    return content.decode(encoding)


def _document(package: str, name: str, text: str) -> Document:
    return Document(package, "", "", name, hashlib.sha256(text.encode("utf-8")).hexdigest(), text)
