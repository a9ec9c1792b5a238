"""Standard input, output and error of the command line: output that is lost is an error, in one line, and never
status 0; a reader that goes away, as `head` does, ends a command quietly.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress
from typing import Any, NoReturn

from daguerre.errors import InputError, printable

BROKEN_PIPE = 128 + 13
"""The status of a command that SIGPIPE would have ended."""


class LostOutput(OSError):
    """Standard output cannot be written; OSErrors of other files are not this one."""


class _Output(io.FileIO):
    """Standard output, whose errors are told from those of other files."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise LostOutput(error.errno, error.strerror) from None


def watch_output() -> None:
    """Have errors of standard output be `LostOutput`. InputError where it is closed: all that a command prints would be
    lost.
    """
    stream = sys.stdout
    if stream is None:
        raise InputError("standard output is closed: redirect it to a file, or to /dev/null")
    if stream is sys.__stdout__ and isinstance(stream, io.TextIOWrapper):
        raw = io.BufferedWriter(_Output(stream.fileno(), "w", closefd=False))
        sys.stdout = io.TextIOWrapper(
            raw,
            stream.encoding,
            stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )


def check_input() -> None:
    """InputError where standard input is closed."""
    if sys.stdin is None:
        raise InputError("standard input is closed: redirect a file to it, or give the text as an argument")


def read_input() -> bytes:
    """All of standard input. InputError where it is closed or cannot be read."""
    check_input()
    try:
        return sys.stdin.buffer.read()
    except OSError as error:
        raise InputError(f"standard input cannot be read ({error.strerror or error}): give another one") from None


def complain(message: str) -> None:
    """One line on standard error, where there is one."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(f"daguerre: {printable(' '.join(message.split()))}", file=sys.stderr, flush=True)


def fail(message: str, status: int = 2) -> NoReturn:
    """One line on standard error, and the end."""
    complain(message)
    sys.exit(status)


def end_without_output(error: OSError) -> NoReturn:
    """The end of a command whose output is lost: quietly where its reader has gone, else with one line."""
    discard_output()
    if error.errno == errno.EPIPE:
        sys.exit(BROKEN_PIPE)
    fail(f"standard output cannot be written ({error.strerror or error}): what was printed is lost")


def discard_output() -> None:
    """Leave what is buffered to no one, so that Python does not try to write it again when it ends."""
    with suppress(OSError, ValueError, AttributeError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.__stdout__.fileno())  # type: ignore[union-attr]
        os.close(nothing)
