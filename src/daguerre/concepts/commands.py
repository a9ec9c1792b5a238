"""Commands about concepts: which there are, what they look like, and where they are in files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from daguerre.commands.loading import BackendName, ConceptModelOptions, DtypeName, takes_groups
from daguerre.commands.options import AsJson, read_file, read_text
from daguerre.concepts.search_commands import find, search
from daguerre.concepts.try_commands import mark, try_concept
from daguerre.errors import DataError

CONTEXT = 2
"""Lines around an example."""
LONGEST = 12
"""Lines of an example that are shown."""
LEFT = {
    "unparsed": "do not parse and have lexical labels alone",
    "skipped": "were labeled before",
    "unreadable": "are not UTF-8 and have no labels",
}
"""What `concepts label` says of counts that are not zero."""


def concepts() -> typer.Typer:
    """The commands of `concepts`."""
    group = typer.Typer(no_args_is_help=True)
    group.command()(label)
    group.command("list")(list_concepts)
    for command in (show, explain, find, search, mark):
        group.command()(command)
    group.command("try")(try_concept)
    return group


def label(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Folders of Python files, or with --taxonomy of text; or files."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Write the labels to this new JSONL file; without --taxonomy an interrupted run goes on."
        ),
    ] = None,
    own: Annotated[
        Path | None,
        typer.Option("--taxonomy", metavar="FILE", help="Concepts of your own, by their rules, in any text."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Label files: which concept is where, exactly; in Python by tokens and syntax trees, or by rules of your own."""
    from daguerre.concepts.files import label_files
    from daguerre.concepts.own_files import label_by_rules, lines_of

    if own is not None:
        found = label_by_rules(paths, own, out)
        typer.echo(json.dumps(found, ensure_ascii=False) if as_json else "\n".join(lines_of(found)))
        return
    console = Console(stderr=True)
    try:
        summary = label_files(paths, out, progress=console if console.is_terminal else None)
    except OSError as error:
        where = error.filename or out
        raise DataError(f"{where}: {error.strerror}; fix this and run again: files that are done stay done") from None
    if as_json:
        typer.echo(json.dumps(summary))
        return
    typer.echo(f"{summary['files']:,} files, {summary['tokens']:,} tokens of Python, {summary['spans']:,} labels")
    for name, what in LEFT.items():
        if summary[name]:
            typer.echo(f"files that {what}: {summary[name]:,}")
    if summary["seconds"]:
        typer.echo(f"{summary['tokens'] / summary['seconds']:,.0f} tokens a second")
    most = sorted(summary["prevalence"].items(), key=lambda one: -one[1])[:10]
    if most:
        typer.echo("most frequent, by chunks of 64 tokens: " + ", ".join(f"{name} {share:.0%}" for name, share in most))


def list_concepts(
    group: Annotated[str | None, typer.Option("--group", "-g", help="One group only.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the concepts: number, name, group, how common it is, and what it means."""
    from daguerre.concepts.taxonomy import GROUPS, taxonomy
    from daguerre.errors import unknown

    known = taxonomy()
    if group is not None and group not in GROUPS:
        raise unknown("group", group, GROUPS)
    chosen = [one for one in known.concepts if group in (None, one.group)]
    if as_json:
        records = [
            {"id": one.id, "name": one.name, "group": one.group, "rule": one.rule, "parents": one.parents}
            | {"prevalence": one.prevalence, "description": one.description}
            for one in chosen
        ]
        typer.echo(json.dumps({"version": known.version, "sha256": known.sha256, "concepts": records}))
        return
    for name, what in GROUPS.items():
        members = [one for one in chosen if one.group == name]
        if not members:
            continue
        typer.echo(f"\n{name}: {what}")
        width = max(len(one.name) for one in members)
        for one in members:
            typer.echo(f"  {one.id:3d}  {one.name:{width}}  {100 * one.prevalence:5.1f}%  {one.description}")


def show(
    name: Annotated[str, typer.Argument(help="A concept's name: see `daguerre concepts list`.")],
    num: Annotated[int, typer.Option("--num", "-n", min=0, help="Examples.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Show a concept: its definition, and examples from held-out files."""
    from daguerre.concepts.files import examples
    from daguerre.concepts.taxonomy import taxonomy

    one = taxonomy().named(name)
    found = examples(one, num)
    if as_json:
        facts = {key: value for key, value in vars(one).items() if key != "detector"}
        typer.echo(json.dumps({**facts, "examples": [vars(example) for example in found]}))
        return
    console = Console(highlight=False)
    table = Table.grid(padding=(0, 2))
    covers = {"node": "the expression or statement", "header": "the lines up to the colon"}
    covers |= {"body": "the block below", "token": "single tokens"}
    for key, value in (
        ("number", str(one.id)),
        ("group", one.group),
        ("means", one.description),
        ("covers", covers[one.rule]),
        ("is also", ", ".join(above.name for above in taxonomy().ancestors[one.name]) or "nothing else"),
        ("in", f"{100 * one.prevalence:.2f}% of chunks of 64 tokens"),
    ):
        table.add_row(key, escape(value))
    console.print(f"[bold]{one.name}[/bold]")
    console.print(table)
    for example in found:
        console.print(f"\n[dim]{example.package} {example.file}, line {example.line}[/dim]")
        before, text, after = (escape(part) for part in example.around(CONTEXT, LONGEST))
        console.print(f"{before}[reverse]{text}[/reverse]{after}", soft_wrap=True)
    if num and not found:
        console.print("\nNo example in the held-out files.")


@takes_groups
def explain(
    file: Annotated[str, typer.Argument(help="A file of text, such as Python; `-` reads standard input.")],
    *,
    chosen: ConceptModelOptions,
    backend: BackendName = None,
    dtype: DtypeName = "auto",
    concept: Annotated[
        str | None, typer.Option("--concept", help="Color by one concept: a name, `discovered 17`, or a number.")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page that stands alone to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show which concepts a model sees in a text, token by token: a heat map, or a page of HTML."""
    from daguerre.view import concepts as view

    if html is not None:
        view.check_page(html)
    text = read_text("-") if file == "-" else read_file(file)
    loaded = chosen.load(backend=backend, dtype=dtype)
    if concept is not None and loaded.concepts is not None:
        loaded.concepts.number(concept)
    found = loaded.explain(text)
    note = reading_note(found.forecast, found.num_windows, found.window)
    if html is not None:
        title = "Concepts of a text" if file == "-" else f"Concepts of {Path(file).name}"
        view.write_page(html, found.explanation, title, note, probabilities=found.probabilities)
    if as_json:
        typer.echo(json.dumps({"note": note, **found.explanation.to_dict()}, ensure_ascii=False))
        return
    console = Console(highlight=False)
    console.print(view.heat_map(found.explanation, view.heat_of(found.explanation, concept, found.probabilities)))
    console.print()
    console.print(view.top_table(found.explanation))
    console.print(f"{view.summary(found.explanation)}. {note}")


def reading_note(forecast: bool, num_windows: int, window: int) -> str:
    """What the rows of a text that was read have seen, in a sentence or two."""
    note = "The concepts of a token are those that the model expects from the text before it."
    if not forecast:
        note = "The concepts of a token are those that the model sees with the token in view."
    if num_windows == 1:
        return note
    return (
        f"{note} The text is longer than the model's context: it was read in {num_windows} windows of {window} "
        "positions that overlap by half."
    )
