"""The process that runs cases: `python -m fuzz.child` reads them from its input and says how each ended.

It has a limit on its memory; the parent has the clock. A target is made when it is named first.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import pickle
import resource
import signal
import struct
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any, BinaryIO

from daguerre.errors import DaguerreError
from fuzz.target import Run, Target

LENGTH = struct.Struct("<I")
SOURCE = str(Path(__file__).parents[2] / "src")


def main(asked: BinaryIO, told: BinaryIO) -> None:
    """Answer cases, (target, bytes), each with None, or with what was found."""
    ready = dict[str, Run]()
    limits = dict[str, int]()
    while True:
        try:
            where, data = pickle.load(asked)
        except EOFError:
            return
        target = found_target(where)
        if where not in ready:
            allow(resource.RLIM_INFINITY)
            ready[where] = target.make()
            tell(told, "ready")
            limits[where] = in_use() + (target.megabytes << 20)
        allow(limits[where])
        answer = outcome(ready[where], data)
        allow(resource.RLIM_INFINITY)
        tell(told, answer)


def tell(told: BinaryIO, what: object) -> None:
    """Send an answer, with its length before it."""
    content = pickle.dumps(what)
    told.write(LENGTH.pack(len(content)) + content)
    told.flush()


def found_target(where: str) -> Target:
    """The target of "module:name"; a name alone is one of `TARGETS`."""
    module, _, name = where.rpartition(":")
    if not module:
        return importlib.import_module("fuzz.targets").TARGETS[name]
    return getattr(importlib.import_module(module), name)


def in_use() -> int:
    """The bytes of this process's address space."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def allow(most: int) -> None:
    """Limit the address space to so many bytes."""
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def outcome(run: Run, data: bytes) -> tuple[str, str] | None:
    """None for a right answer; else (where it broke, the traceback)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", ResourceWarning)
            run(data)
    except DaguerreError as error:
        return ("an error of several lines", str(error)) if "\n" in str(error) else None
    except BaseException as error:
        return signature(error), "".join(traceback.format_exception(error))[-4_000:]
    return None


def signature(error: BaseException) -> str:
    """The kind of an error and the place of ours where it was raised: one for all cases of one fault."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(SOURCE)] or frames
    place = f"{Path(own[-1].filename).name}:{own[-1].name}" if own else "?"
    return f"{type(error).__name__} in {place}"


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=False)
    out: Any = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a target prints is no answer
    main(sys.stdin.buffer, out)
