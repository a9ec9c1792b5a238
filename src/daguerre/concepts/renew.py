"""Renew the taxonomy's file after a change of detectors: `python -m daguerre.concepts.renew FOLDER`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from daguerre.concepts import taxonomy
from daguerre.concepts.labels import prevalences, python_files
from daguerre.files import atomic_write


def main(folders: Sequence[str]) -> None:
    """Write the file of the detectors as they are now, with prevalences in the Python files of these folders."""
    if not folders:
        sys.exit("name a folder of Python files, on which prevalences are measured")
    target = Path(taxonomy.__file__).with_name(taxonomy.FILE)
    content = taxonomy.renewed(json.loads(target.read_text(encoding="utf-8")), {})
    files = python_files([Path(folder) for folder in folders])
    _write(target, taxonomy.text_of(content))  # new concepts need their numbers to be counted
    found = prevalences(file.read_text(encoding="utf-8", errors="replace") for file in files)
    _write(target, taxonomy.text_of(taxonomy.renewed(content, found)))


def _write(target: Path, text: str) -> None:
    with atomic_write(target) as file:
        file.write(text.encode())


if __name__ == "__main__":
    main(sys.argv[1:])
