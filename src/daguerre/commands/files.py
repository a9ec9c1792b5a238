"""Places in files, and changes of files: shown as a difference that `git apply` and `patch -p0` take, or written."""

from __future__ import annotations

import os
import re
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from daguerre.commands.options import read_file, read_pairs, read_text
from daguerre.decoding.text_spans import find_spans, unified_diff
from daguerre.errors import InputError
from daguerre.files import atomic_write

At = Annotated[
    str | None,
    typer.Option("--at", help="The gap is here in the file: LINE:COLUMN, from 1; a line alone means its end."),
]
Lines = Annotated[list[str] | None, typer.Option("--lines", help="FIRST:LAST, from 1; may be repeated.")]
ContextOption = Annotated[
    str,
    typer.Option(
        "--context", help="auto: of a text longer than the model's context, lines around the gap; whole: refuse it."
    ),
]
PLACE = re.compile(r"(?P<path>.+?)(?::(?P<line>\d+))?(?::(?P<column>\d+))?", re.DOTALL)
STDIN = "-"
STDIN_NAME = "stdin"


@dataclass(frozen=True)
class InputText:
    """A file, or standard input, and its text. path: None for standard input."""

    path: Path | None
    text: str

    @classmethod
    def read(cls, name: str) -> InputText:
        """The file of that name; `-` is standard input."""
        return cls(None, read_text(STDIN)) if name == STDIN else cls(Path(name), read_file(name))

    @property
    def name(self) -> str:
        """The name for a difference: relative to the folder that the command runs in, where the file is within it."""
        if self.path is None:
            return f"./{STDIN_NAME}"
        relative = os.path.relpath(self.path)
        return str(self.path) if relative.startswith("..") else f"./{Path(relative).as_posix()}"

    def offset(self, line: int, column: int | None) -> int:
        """The character at a line and column, from 1; without a column the end of the line. InputError for a place that
        the text does not have.
        """
        ((start, end),) = find_spans(self.text, lines=[(line, line)])
        if column is None:
            return end
        if not 1 <= column <= end - start + 1:
            raise InputError(f"column {column} is not in line {line}: it has columns 1 to {end - start + 1}")
        return start + column - 1

    def diff(self, text: str) -> str:
        """The difference to a new text, with headers; empty where there is none."""
        return unified_diff(self.text, text, self.name)

    def write(self, text: str, backup: bool) -> None:
        """Put a text in the file's place, with its permissions. InputError where it cannot be written, or was changed
        since it was read.
        """
        assert self.path is not None
        path, old = self.path.resolve(), self.text.encode("utf-8")
        try:
            if path.read_bytes() != old:
                raise InputError(f"{self.path} was changed meanwhile: nothing is written; run it again")
            mode = stat.S_IMODE(path.stat().st_mode)
            for target, content in ((path.with_name(f"{path.name}.bak"), old), (path, text.encode("utf-8"))):
                if target != path and not backup:
                    continue
                with atomic_write(target) as file:
                    os.chmod(file.name, mode)
                    file.write(content)
        except OSError as error:
            raise InputError(f"cannot write {self.path}: {error.strerror or error}") from None


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """What is done with the text that a file would have: shown as a difference, written, or neither."""

    diff: Annotated[
        bool,
        typer.Option("--diff", help="Print the difference instead of the text: `git apply` and `patch -p0` take it."),
    ] = False
    write: Annotated[bool, typer.Option("--write", help="Write the result to the file: all of it or nothing.")] = False
    backup: Annotated[bool, typer.Option("--backup", help="With --write: keep the file as it was as FILE.bak.")] = False

    @property
    def wanted(self) -> bool:
        """Whether either is asked for."""
        return self.diff or self.write

    def check(self, source: str, as_json: bool, options: dict[str, Any]) -> None:
        """InputError, before any work, for what does not go together."""
        if self.diff and as_json:
            raise InputError("--json holds the difference already: leave out --diff")
        if self.backup and not self.write:
            raise InputError("--backup is for --write: give both or neither")
        if self.write and source == STDIN:
            raise InputError("standard input is no file that could be written: leave out --write, or give the file")
        if self.wanted and options.get("n", 1) != 1:
            raise InputError("--diff and --write are of one text: leave out --n")

    def apply(self, source: InputText, text: str) -> None:
        """Print the difference and write the file, as asked for; a note on standard error says what was written."""
        if self.diff:
            sys.stdout.buffer.write(source.diff(text).encode("utf-8"))
        if text == source.text:
            typer.echo(f"daguerre: {source.path or STDIN_NAME} is as it was: nothing to change", err=True)
        elif self.write:
            source.write(text, self.backup)
            typer.echo(f"daguerre: wrote {source.path}" + (f", and {source.path}.bak" * self.backup), err=True)


def read_place(argument: str) -> tuple[InputText, int, str]:
    """FILE[:LINE[:COLUMN]]: the file, the place in it in characters, and what is put there first: the break of a new
    line behind a line. The end where no line is given. A file whose name looks like a place is taken as the file.
    """
    whole = None if argument == STDIN or Path(argument).exists() else PLACE.fullmatch(argument)
    if whole is None or whole["line"] is None:
        source = InputText.read(argument)
        return source, len(source.text), ""
    source = InputText.read(whole["path"])
    if whole["column"] is not None:
        return source, source.offset(int(whole["line"]), int(whole["column"])), ""
    return source, source.offset(int(whole["line"]), None), "\n"


def read_gap(name: str, at: str | None, lines: list[str] | None) -> tuple[InputText, int, int]:
    """A file, and the characters in it that a gap replaces: none, `at` a place, or those of `lines`. InputError unless
    one of the two is given.
    """
    if (at is None) == (not lines) or len(lines or ()) > 1:
        raise InputError("say where the gap is in one way: --at LINE:COLUMN, or --lines FIRST:LAST once")
    found = None if at is None else re.fullmatch(r"(\d+)(?::(\d+))?", at)
    if at is not None and found is None:
        raise InputError(f"{at!r} is no place: give --at LINE:COLUMN, such as 12:5")
    source = InputText.read(name)
    if found is not None:
        place = source.offset(int(found[1]), None if found[2] is None else int(found[2]))
        return source, place, place
    ((start, end),) = find_spans(source.text, lines=read_pairs(lines))
    return source, start, end


def print_context(result: Any) -> None:
    """A note on standard error where the model was not shown all of the text."""
    context = result.context
    if context is not None and not context.complete:
        typer.echo(f"daguerre: the text is longer than the context: the model was shown {context}", err=True)
