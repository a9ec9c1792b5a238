"""Commands that search: for concepts by words, and for code by concepts that a model reads in it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from daguerre.commands.loading import ConceptModelOptions, takes_groups
from daguerre.commands.options import AsJson
from daguerre.errors import InputError, no_concept_heads

LONGEST = 80
"""Characters of a line that are shown."""
LEAST = {"peak": math.log(0.01), "mean": -math.inf}
"""Results below this score are not shown."""
Most = Annotated[int, typer.Option("--num", "-n", min=1, help="Most results.")]


def find(
    words: Annotated[list[str], typer.Argument(help="Words of names and descriptions, such as: loop dictionary.")],
    model: Annotated[
        str | None, typer.Option("--model", help="Search the concepts of this model in place of the taxonomy's.")
    ] = None,
    num: Most = 20,
    as_json: AsJson = False,
) -> None:
    """Find concepts by words of their names and descriptions."""
    from daguerre.concepts.taxonomy import taxonomy
    from daguerre.scoring.concept_search import find_concepts

    concepts: Any = taxonomy().concepts if model is None else _concepts_in(model)
    found = find_concepts(" ".join(words), concepts)[:num]
    if as_json:
        keys = ("name", "group", "description")
        records = [{"score": score, **{key: getattr(one, key) for key in keys}} for score, one in found]
        typer.echo(json.dumps({"concepts": records}, ensure_ascii=False))
        return
    width = max((len(one.name) for _, one in found), default=0)
    for _, one in found:
        typer.echo(f"{one.name:{width}}  {one.group}  {one.description}")
    if not found:
        typer.echo("no concept has these words: try others, or see `daguerre concepts list`")


@takes_groups
def search(
    query: Annotated[str, typer.Argument(help='Concepts, with + and -: "for_loop + try_block - bare_except".')],
    folders: Annotated[
        list[Path], typer.Option("--in", metavar="DIR", help="A folder of Python files, or any file; may be repeated.")
    ],
    *,
    chosen: ConceptModelOptions,
    by: Annotated[
        str, typer.Option(help="peak: the most likely place counts; mean: the mean weight of all tokens.")
    ] = "peak",
    unit: Annotated[
        str, typer.Option(help="What is ranked: function (in text that is no Python, a paragraph), or file.")
    ] = "function",
    prose: Annotated[bool, typer.Option("--prose", help="Also files of text in folders, such as Markdown.")] = False,
    num: Most = 10,
    as_json: AsJson = False,
) -> None:
    """Rank functions or files by how strongly a model with concept heads reads concepts in them."""
    from daguerre.concepts.labels import TEXT_ENDINGS, python_files
    from daguerre.concepts.searching import search_folder

    paths, skipped = list(python_files(folders, TEXT_ENDINGS if prose else (".py",))), list[Path]()
    if not paths:
        what = "file of text" if prose else "Python file"
        raise InputError(f"there is no {what} in {', '.join(map(str, folders))}: name a folder that has some")
    found = search_folder(chosen, query, documents(paths, skipped), len(paths), by, unit)
    best = sorted(found, key=lambda one: -one.score)[:num]
    if skipped:
        more = f" and {len(skipped) - 1} more" if len(skipped) > 1 else ""
        typer.echo(f"left out, since not UTF-8: {skipped[0]}{more}", err=True)
    if as_json:
        typer.echo(json.dumps({"found": [asdict(one) for one in best]}, ensure_ascii=False))
        return
    best = [one for one in best if one.score >= LEAST[by]]
    if not best:
        typer.echo(f"no {unit} reaches {math.exp(LEAST['peak']):g}: try other concepts, or see them all with --json")
    for one in best:
        score = math.exp(one.score) if by == "peak" else one.score
        typer.echo(f"{score:.3f}  {one.document}:{one.first}-{one.last}  {one.unit}".rstrip())
        for place in one.places:
            typer.echo(f"       {place.line}: {place.text[:LONGEST]}  [{place.concept} {place.strength:.3f}]")


def documents(paths: Iterable[Path], skipped: list[Path]) -> Iterator[Any]:
    """Files as documents; those that are not UTF-8 are added to `skipped`."""
    from daguerre.scoring.concept_search import SearchedText

    for path in paths:
        try:
            yield SearchedText(str(path), path.read_bytes().decode("utf-8-sig"))
        except UnicodeDecodeError:
            skipped.append(path)


def _concepts_in(name: str) -> Any:
    """The concepts of a model that have names, without its weights."""
    from daguerre.models.head_files import names_of
    from daguerre.models.loading import model_folder, open_source

    catalog = names_of(open_source(model_folder(name, weights=False)))
    if catalog is None:
        raise no_concept_heads()
    return catalog.concepts
