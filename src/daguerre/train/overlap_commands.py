"""The command that says where a text's passages come from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from daguerre.commands.options import AsJson, read_file, read_text


def data_where(
    file: Annotated[str, typer.Argument(help="A file of text, or - for the standard input.")],
    index: Annotated[Path, typer.Option(help="An index of `daguerre data index`.")],
    min_length: Annotated[
        int | None, typer.Option(help="Characters of the shortest match that counts; 50 by default.")
    ] = None,
    sources: Annotated[int | None, typer.Option(help="Most documents shown for a match; 3 by default.")] = None,
    data: Annotated[Path | None, typer.Option(help="Refuse the index unless it is of this corpus.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Compare the index with its hashes first.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show which passages of a text stand in a corpus too: how often, and in which package, under which license.

    Line ends of the file are read as a corpus has them, as \\n.
    """
    from daguerre.overlap.index import Overlap

    overlap = Overlap.open(index, _corpus_sha256(data) if data else None)
    if verify:
        overlap.verify()
    text = _read(file)
    given = {"min_length": min_length, "num_sources": sources}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    summary = overlap.summary(text, **options)
    if as_json:
        typer.echo(json.dumps(summary))
        return
    if summary["matches"]:
        Console().print(_table(text, summary["matches"]))
    typer.echo(_covered(summary))


def _corpus_sha256(data: Path) -> str:
    from daguerre.train.corpus.index import SPLIT, corpus_sha256
    from daguerre.train.shards import Shard

    return corpus_sha256(Shard.open(data, SPLIT))


def _read(file: str) -> str:
    text = read_text("-") if file == "-" else read_file(file)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _table(text: str, matches: Sequence[Mapping[str, Any]]) -> Table:
    where = Column("where", overflow="fold")
    table = Table("from", "to", "characters", where, "license", box=None, header_style="bold", pad_edge=False)
    for match in matches:
        rows = [(_source(source), source["license"] or "?") for source in match["sources"]]
        if match["documents"] > len(rows):
            times, files, packages = (match[name] for name in ("occurrences", "documents", "packages"))
            count = f"{times:,} times in {files:,} files of {packages:,} packages"
            rows.append((f"in all {count}", ""))
        span = (_place(text, match["start"]), _place(text, match["end"] - 1), f"{match['length']:,}")
        for number, (place, license_name) in enumerate(rows):
            table.add_row(*(span if number == 0 else ("", "", "")), Text(place), Text(license_name))
    return table


def _source(source: Mapping[str, Any]) -> str:
    named = (source["package"], source["version"], source["file"] or f"document {source['document']}")
    return f"{' '.join(filter(None, named))}:{source['line']}"


def _place(text: str, position: int) -> str:
    """Line and column of a character, from 1."""
    return f"{text.count(chr(10), 0, position) + 1}:{position - text.rfind(chr(10), 0, position)}"


def _covered(summary: Mapping[str, Any]) -> str:
    if not summary["matches"]:
        return f"no passage of {summary['min_length']} characters or more is in the corpus"
    shares = [(length, share) for length, share in summary["covered"].items() if share]
    of_length = ", ".join(f"{share:.1%} in matches of {length} or more" for length, share in shares)
    return f"{summary['characters']:,} characters: {of_length}"
