"""Rows of JSON Lines, JSON and Parquet files, a few at a time, whatever the size of a file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from daguerre.errors import DataError, InputError, MissingExtra

KINDS = (".jsonl", ".json", ".parquet")
CHUNK = 1 << 16
"""Characters of a JSON file that are read at a time."""
ROWS = 256
"""Rows of a Parquet file that are read at a time."""
LONGEST = 1 << 26
"""Characters of a row of a JSON file; a file whose row has more is no list of rows."""
Numbered = tuple[int, object]
"""The number of a row in its file, from 1 on (of JSON Lines: of its line), and the row; an InputError for what is none.
"""


def data_files(paths: Sequence[Path]) -> list[Path]:
    """All files that are named, or stand in a folder that is named, in order. DataError where there is none."""
    found = list[Path]()
    for path in paths:
        if path.is_dir():
            inside = sorted(each for each in path.rglob("*") if each.suffix in KINDS and each.is_file())
            if not inside:
                raise DataError(f"{path} has no file of prompts and answers: they end in {', '.join(KINDS)}")
            found += inside
        elif not path.is_file():
            raise DataError(f"there is no file {path}: check the path")
        elif path.suffix not in KINDS:
            raise DataError(f"{path} is no file of prompts and answers by its name: those end in {', '.join(KINDS)}")
        else:
            found.append(path)
    return found


def rows_of(path: Path) -> Iterator[Numbered]:
    """The rows of a file. DataError, in one line, for a file that cannot be read."""
    try:
        if path.suffix == ".parquet":
            yield from _parquet(path)
        else:
            yield from _lines(path) if path.suffix == ".jsonl" else _json(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8: write it again in UTF-8") from None


def _lines(path: Path) -> Iterator[Numbered]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, _parsed(line)


def _parsed(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return InputError("it is no JSON")


def _json(path: Path) -> Iterator[Numbered]:
    """The items of a list, each as soon as it has been read; JSON Lines under this name are read, too."""
    decoder, text, number, done = json.JSONDecoder(), "", 0, False
    with path.open(encoding="utf-8-sig") as file:
        if not (text := file.read(CHUNK)).lstrip().startswith("["):
            yield from _lines(path)
            return
        text = text.lstrip()[1:]
        while True:
            text = text.lstrip(" \t\r\n,")
            if text.startswith("]"):
                return
            try:
                row, end = decoder.raw_decode(text)
                if end == len(text) and not done:  # a number may go on
                    raise ValueError
            except (ValueError, RecursionError):
                more = file.read(max(CHUNK, len(text)))
                if (done and not more) or len(text) > LONGEST:
                    raise DataError(f"{path} ends within item {number + 1} of its list, or is no JSON there") from None
                done, text = not more, text + more
                continue
            number += 1
            yield number, row
            text = text[end:]


def _parquet(path: Path) -> Iterator[Numbered]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("pyarrow", "data") from None
    try:
        number = 0
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield number, _without_nulls(row)
    except pyarrow.ArrowException as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path} cannot be read as Parquet ({reason[:150]}): write it again") from None


def _without_nulls(value: Any) -> Any:
    """A value without the keys that are null: Parquet gives every object of a list the keys of all."""
    if isinstance(value, dict):
        return {key: _without_nulls(held) for key, held in value.items() if held is not None}
    return [_without_nulls(held) for held in value] if isinstance(value, list) else value
