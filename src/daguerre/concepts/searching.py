"""A search in files by concept, which reads what it has not read before, and then answers from what it keeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import fields
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from daguerre.errors import no_concept_heads, unknown
from daguerre.files import cache_folder
from daguerre.models.catalog import Catalog
from daguerre.models.head_files import heads_of, names_of
from daguerre.models.loading import model_folder, open_source
from daguerre.scoring.concept_index import FOLDER, ConceptIndex
from daguerre.scoring.concept_search import (
    STRENGTHS,
    UNITS,
    ConceptReader,
    FoundUnit,
    SearchedText,
    UnitTable,
    found_in,
    parse_query,
    read_tables,
)


def search_folder(
    chosen: Any, query: str, documents: Iterable[SearchedText], num: int, by: str, unit: str
) -> list[FoundUnit]:
    """The units of documents, `num` at most, as `concept_search.search` finds them. InputError as there.

    chosen: `ConceptModelOptions`, whose model is loaded only where a document was not read before; a bar shows how many
    are.
    """
    for what, value, known in (("strength", by, STRENGTHS), ("unit", unit, UNITS)):
        if value not in known:
            raise unknown(what, value, known)
    loaded = None if _is_indexed(chosen) else chosen.load()
    catalog, index = (loaded.concepts, None) if loaded is not None else _described(chosen, by)
    if catalog is None:
        raise no_concept_heads()
    terms = parse_query(query, catalog)
    out, columns = list[FoundUnit](), [one.number for one in terms]
    with ExitStack() as stack:
        for document, table in _tables(chosen, loaded, index, documents, num, by, stack):
            out += found_in(document, table, terms, columns, by, unit)  # type: ignore[arg-type]
    if index is not None:
        index.trim()
    return out


def _is_indexed(chosen: Any) -> bool:
    """Whether what a model reads is kept: not with an adapter, whose weights no hash names, nor without a cache."""
    others = [one.name for one in fields(chosen) if one.name not in ("model", "revision")]
    return cache_folder() is not None and all(getattr(chosen, name) is None for name in others)


def _described(chosen: Any, by: str) -> tuple[Catalog | None, ConceptIndex | None]:
    """The catalog and the index of a model, without its weights."""
    source, kept = open_source(model_folder(chosen.model, chosen.revision)), cache_folder()
    catalog, tokenizer, beside = names_of(source), source.tokenizer(), heads_of(source, None)
    if catalog is None or tokenizer is None or kept is None:
        return None, None
    name = " ".join([source.weights_hash(), tokenizer.sha256, *([] if beside is None else [beside.sha256()])])
    return catalog, ConceptIndex(kept / FOLDER, name, by)  # type: ignore[arg-type]


def _tables(
    chosen: Any,
    loaded: Any,
    index: ConceptIndex | None,
    documents: Iterable[SearchedText],
    num: int,
    by: str,
    stack: ExitStack,
) -> Iterator[tuple[SearchedText, UnitTable]]:
    """Each document with its table of all concepts: those that are kept first."""
    new = list[SearchedText]()
    for document in documents:
        found = None if index is None else index.get(document)
        if found is None:
            new.append(document)
        else:
            yield document, found
    if not new:
        return
    loaded = loaded or chosen.load()
    loaded.tokenizer.require_bytes("search by concept")
    reader = ConceptReader(loaded.denoiser, loaded.denoiser.heads, None, by)  # type: ignore[arg-type]
    bar = stack.enter_context(_bar())
    task = bar.add_task("reading", total=num, completed=num - len(new))
    for document, table in read_tables(reader, loaded.tokenizer, new):
        if index is not None:
            index.put(document, table)
        bar.advance(task)
        yield document, table


def _bar() -> Progress:
    """A bar on standard error, where that is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("reading"), BarColumn(), MofNCompleteColumn(), TextColumn("files"), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
