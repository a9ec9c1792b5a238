"""GGUF files in several parts: NAME-00001-of-00003.gguf and the others, as `llama-gguf-split` writes them."""

from __future__ import annotations

import re
from pathlib import Path

from daguerre.errors import CheckpointError

PART = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
MOST_PARTS = 1 << 10


def parts_of(path: Path) -> list[Path]:
    """All parts of the file that a part is of, the first of them first; the path alone where its name is that of no
    part. CheckpointError that names a part that is missing.
    """
    match = PART.fullmatch(path.name)
    count = int(match["count"]) if match else 1
    if match is None or not 1 <= int(match["number"]) <= count <= MOST_PARTS:
        return [path]
    found = [path.with_name(f"{match['name']}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    missing = next((part for part in found if not part.is_file()), None)
    if missing is not None:
        raise CheckpointError(f"{missing} is missing: all {count} parts must be in one folder")
    return found


def size_of(path: Path) -> int:
    """The bytes of all parts of a file."""
    return sum(part.stat().st_size for part in parts_of(path))


def stem_of(path: Path) -> str:
    """The name of a file without its end, and without which part it is."""
    match = PART.fullmatch(path.name)
    return match["name"] if match else path.stem
