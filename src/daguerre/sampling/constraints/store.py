"""Compiled automata on disk: a folder of files, each found by a hash of all that its automaton depends on.

The folder is only a cache: a file that cannot be read is compiled again, one that cannot be written is left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from daguerre.errors import InputError
from daguerre.files import atomic_write
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.constraints.tokens import TokenAutomaton

MAX_BYTES = 256 << 20
"""Of all automata in a folder; beyond it the least recently used are deleted."""
NAME = "[0-9a-f]" * 64 + ".npz"


def kept(
    folder: Path | None,
    what: Sequence[object],
    tokenizer: Tokenizer,
    make: Callable[[], TokenAutomaton],
    worth: float = 0.0,
) -> TokenAutomaton:
    """The automaton of a constraint `what` over a tokenizer, from the folder; where it is absent or damaged, from
    `make`, and then kept if that took `worth` seconds of processor time or more. Without a folder nothing is kept.

    InputError when `what` is not JSON.
    """
    if folder is None:
        return make()
    path = folder / f"{_key(what, tokenizer)}.npz"
    held = _read(path)
    if held is not None:
        return held
    began = time.thread_time()
    made = make()
    if time.thread_time() - began >= worth:
        with suppress(OSError):  # a full disk, a folder that is not ours
            _write(path, made)
    return made


def _key(what: Sequence[object], tokenizer: Tokenizer) -> str:
    """A hash of all that the automaton depends on. The order of a schema's keys is part of it."""
    try:
        content = json.dumps([compiler(), what, tokenizer.sha256])
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"the constraint is not JSON, or nested too deep: {error}; correct it") from error
    return hashlib.sha256(content.encode()).hexdigest()


def _read(path: Path) -> TokenAutomaton | None:
    """The automaton in a file, which counts as a use of it; None where it is absent or damaged."""
    try:
        held = TokenAutomaton.load(path)
    except Exception:  # whatever a damaged file makes numpy or zipfile raise
        return None
    with suppress(OSError):
        os.utime(path)
    return held


def _write(path: Path, automaton: TokenAutomaton) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        automaton.save(file)
    files = [(held.stat(), held) for held in path.parent.glob(NAME)]
    total = 0
    for stat, held in sorted(files, key=lambda file: file[0].st_mtime_ns, reverse=True):
        total += stat.st_size
        if total > MAX_BYTES:
            held.unlink(missing_ok=True)


@lru_cache(maxsize=1)
def compiler() -> str:
    """A hash of the compiler's source: files of another version are not found."""
    here = Path(__file__).parent
    sources = [*sorted(here.glob("*.py")), *here.parent.glob("constrained.py")]
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
