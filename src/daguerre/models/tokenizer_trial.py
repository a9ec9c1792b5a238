"""A stranger's tokenizer is read in another process first, where it may end none but that.

A library in Rust reads tokenizers. `tokenizer_fields` refuses what is known to end the process; for what is not, a
server lets a process of its own read the files of a model once, before it reads them itself. It takes as long as
starting Python and reading the tokenizer: half a second to two. That it went well is noted in the cache's folder, under
the files' names, sizes and times, so it happens once a version of the files.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import tokenizers

from daguerre.errors import CheckpointError, DaguerreError
from daguerre.files import cache_folder
from daguerre.models.readers import read_tokenizer

SECONDS = 120
"""That reading a tokenizer may take."""
SCRIPTS = "naïve Straße 日本語 한국어 עברית हिन्दी 🙂\u200d\u0301"
TEXTS = ("", "a", " a  b\n\n\tc 1234.5", SCRIPTS, "aaaa" * 64, "<unk>[MASK]</s>")


def try_tokenizer(source: Path) -> None:
    """Let a process read the tokenizer of a model's folder, or GGUF file, unless one has. CheckpointError where it did
    not come to its end; what it found wrong is not told here, but when the tokenizer is read.
    """
    note = _note(source)
    if note is not None and note.exists():
        return
    command = [sys.executable, "-m", "daguerre.models.tokenizer_trial", os.fspath(source)]
    try:
        status = subprocess.run(command, check=False, capture_output=True, timeout=SECONDS).returncode
    except subprocess.TimeoutExpired:
        raise CheckpointError(f"{source}: reading its tokenizer takes more than {SECONDS} seconds: leave it") from None
    if status:
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        raise CheckpointError(
            f"{source}: reading its tokenizer ended the process that tried it ({how}): copy its files again"
        )
    if note is not None:
        with suppress(OSError):  # then it is tried again
            note.parent.mkdir(parents=True, exist_ok=True)
            note.touch()


def _note(source: Path) -> Path | None:
    """Where it is noted that these files were read by this version of the library; None where nothing is kept."""
    folder = cache_folder()
    if folder is None:
        return None
    paths = [source] if source.is_file() else sorted(path for path in source.iterdir() if path.is_file())
    facts = [(os.fspath(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    key = json.dumps([tokenizers.__version__, facts])
    return folder / "tokenizers-read" / hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


def main() -> None:
    """Read the tokenizer of the folder that is named, and use it."""
    with suppress(DaguerreError):
        found = read_tokenizer(sys.argv[1])
        if found is None:
            return
        for text in TEXTS:
            for encode in (found.encode, found.encode_plain):
                with suppress(DaguerreError):
                    found.decode_bytes(encode(text))


if __name__ == "__main__":
    main()
