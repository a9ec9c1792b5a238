"""Commands that ask a model for text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from daguerre.commands.capabilities import RECORDER, capability
from daguerre.commands.explaining import ExplainPage, Why, check_explained, print_explained, write_explained
from daguerre.commands.files import (
    At,
    Backup,
    ContextOption,
    FileChange,
    InputText,
    Lines,
    ShowDiff,
    Write,
    print_context,
    read_gap,
    read_place,
)
from daguerre.commands.loading import load
from daguerre.commands.options import (
    AsJson,
    AuditKey,
    AuditLedger,
    BackendName,
    DraftText,
    DtypeName,
    ModelName,
    Picture,
    QuantizeName,
    SearchLength,
    check_picture,
    draw_picture,
    makes_request,
    print_ignored,
    print_notes,
    print_result,
    read_draft,
    read_pairs,
    read_text,
)
from daguerre.commands.watching import WatchOption, WatchRate, check_watched, watched
from daguerre.commands.writing import check_statement, shown, written_statement
from daguerre.decoding.text_spans import MARK
from daguerre.errors import InputError


@contextmanager
def recorded(model: Any, name: str, ledger: Path | None, key: Path | None) -> Iterator[Any]:
    """What to ask for text: the model itself or, with a ledger, a recorder of it. InputError for one without a key."""
    if (ledger is None) != (key is None):
        raise InputError("--audit and --audit-key belong together: give both or neither")
    if ledger is None:
        yield model
        return
    with capability(RECORDER)(ledger, model, key, name=name) as recorder:
        yield recorder


@makes_request
def generate(
    prompt: Annotated[str, typer.Argument(help="Text to complete; `-` reads standard input.")],
    model: ModelName = "default",
    backend: BackendName = None,
    quantize: QuantizeName = None,
    dtype: DtypeName = "auto",
    draft: DraftText = None,
    context: ContextOption = "auto",
    picture: Picture = None,
    audit: AuditLedger = None,
    audit_key: AuditKey = None,
    explain_html: ExplainPage = None,
    why: Why = None,
    watch: WatchOption = False,
    watch_rate: WatchRate = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Complete a prompt."""
    check_picture(picture, options)
    check_explained(explain_html, why, options)
    check_watched(watch, watch_rate, audit, options)
    loaded = load(model, backend=backend, quantize=quantize, dtype=dtype)
    text = read_text(prompt)
    how: dict[str, Any] = {"draft": read_draft(draft), "context": context, **options}
    if as_json or watch or audit is not None or options.get("n", 1) != 1:
        with recorded(loaded, model, audit, audit_key) as asked, watched(loaded, watch, watch_rate) as more:
            result = asked.generate(text, **more, **how)
        print_result(result, as_json)
    else:
        result = shown(loaded.stream(text, **how))
        print_notes(result)
    print_context(result)
    write_explained(result, loaded, explain_html, why, text)
    draw_picture(result, loaded, picture)


@makes_request
def infill(
    prefix: Annotated[str, typer.Argument(help="Text before the gap, `-` reads standard input; or FILE, see --at.")],
    suffix: Annotated[
        str | None, typer.Argument(help="Text after the gap; when empty, the prefix is completed.")
    ] = None,
    model: ModelName = "default",
    backend: BackendName = None,
    quantize: QuantizeName = None,
    dtype: DtypeName = "auto",
    at: At = None,
    lines: Lines = None,
    draft: DraftText = None,
    context: ContextOption = "auto",
    whole: Annotated[bool, typer.Option("--whole", help="Print prefix, middle and suffix, and nothing else.")] = False,
    diff: ShowDiff = False,
    write: Write = False,
    backup: Backup = False,
    search_length: SearchLength = None,
    picture: Picture = None,
    audit: AuditLedger = None,
    audit_key: AuditKey = None,
    explain_html: ExplainPage = None,
    why: Why = None,
    watch: WatchOption = False,
    watch_rate: WatchRate = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Fill the gap between two texts, or in a file: `FILE --at LINE:COLUMN`, or `FILE --lines FIRST:LAST`."""
    change = FileChange(diff, write, backup)
    change.check(prefix, as_json, options)
    check_picture(picture, options)
    check_explained(explain_html, why, options)
    if whole and (as_json or options.get("n", 1) != 1 or change.wanted):
        raise InputError("--whole prints one text as it is: leave it out, or leave out --json, --n, --diff and --write")
    source, before, after = _around(prefix, suffix, at, lines, change)
    check_watched(watch, watch_rate, audit, options)
    loaded = load(model, backend=backend, quantize=quantize, dtype=dtype)
    how: dict[str, Any] = {"draft": read_draft(draft), "search_length": search_length, "context": context}
    with recorded(loaded, model, audit, audit_key) as asked, watched(loaded, watch, watch_rate) as more:
        result = asked.infill(before, after, **how, **more, **options)
    if whole or change.wanted:
        print_ignored(result)
        if whole:
            sys.stdout.write(before + result.text + after)
        elif source is not None:
            change.apply(source, before + result.text + after)
        print_explained(result)
    else:
        print_result(result, as_json)
    print_context(result)
    write_explained(result, loaded, explain_html, why, before, after)
    draw_picture(result, loaded, picture)


def _around(
    prefix: str, suffix: str | None, at: str | None, lines: list[str] | None, change: FileChange
) -> tuple[InputText | None, str, str]:
    """The texts around the gap: those given, or of a file, which is the first of the three."""
    if at is not None or lines:
        if suffix is not None:
            raise InputError("--at and --lines are places in one file: leave out the second text")
        source, start, end = read_gap(prefix, at, lines)
        return source, source.text[:start], source.text[end:]
    if suffix is None:
        raise InputError("infill needs the text after the gap: give a suffix, or a place in the file, --at LINE:COLUMN")
    if change.wanted:
        raise InputError("--diff and --write are for a file: give FILE --at LINE:COLUMN, or FILE --lines FIRST:LAST")
    if prefix == suffix == "-":
        raise InputError("standard input can be the prefix or the suffix, not both: give one of them as text")
    return None, read_text(prefix), read_text(suffix)


@makes_request
def complete(
    place: Annotated[
        str, typer.Argument(metavar="FILE[:LINE[:COLUMN]]", help="Where to write on; `-` reads standard input.")
    ],
    model: ModelName = "default",
    backend: BackendName = None,
    quantize: QuantizeName = None,
    dtype: DtypeName = "auto",
    draft: DraftText = None,
    context: ContextOption = "auto",
    statement: Annotated[
        bool | None,
        typer.Option(
            "--statement/--no-statement",
            help="One statement: a line, or a block that its indentation closes; by default unless another option says "
            "where the text ends.",
        ),
    ] = None,
    diff: ShowDiff = False,
    write: Write = False,
    backup: Backup = False,
    watch: WatchOption = False,
    watch_rate: WatchRate = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Write on in a file: at its end, in a new line behind line LINE, or at a column, counted from 1. What stands
    behind the place is not read. To fill in between: `daguerre infill FILE --at LINE:COLUMN`.
    """
    change = FileChange(diff, write, backup)
    change.check(place, as_json, options)
    one = check_statement(statement, {**options, "watch": watch})
    source, at, opened = read_place(place)
    before, show = source.text[:at] + opened, not (as_json or watch or change.wanted or options.get("n", 1) != 1)
    check_watched(watch, watch_rate, None, options)
    loaded = load(model, backend=backend, quantize=quantize, dtype=dtype)
    how: dict[str, Any] = {"draft": read_draft(draft), "context": context, **options}
    if one:
        result = written_statement(loaded, before, how, show)
    elif show:
        result = shown(loaded.stream(before, **how))
    else:
        with watched(loaded, watch, watch_rate) as more:
            result = loaded.generate(before, **more, **how)
    if change.wanted:
        print_ignored(result)
        change.apply(source, before + result.text + source.text[at:])
        print_explained(result)
    elif show:
        print_notes(result)
    else:
        print_result(result, as_json)
    print_context(result)


@makes_request
def fill(
    template: Annotated[str, typer.Argument(help="Text with `<gap>` where a gap goes; `-` reads standard input.")],
    model: ModelName = "default",
    backend: BackendName = None,
    quantize: QuantizeName = None,
    dtype: DtypeName = "auto",
    mark: Annotated[str, typer.Option(help="What marks a gap.")] = MARK,
    context: ContextOption = "auto",
    search_length: SearchLength = None,
    picture: Picture = None,
    audit: AuditLedger = None,
    audit_key: AuditKey = None,
    explain_html: ExplainPage = None,
    why: Why = None,
    watch: WatchOption = False,
    watch_rate: WatchRate = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Fill every gap of a template in one run, the gaps seeing each other; --max-tokens is of each."""
    check_picture(picture, options)
    check_explained(explain_html, why, options)
    check_watched(watch, watch_rate, audit, options)
    loaded = load(model, backend=backend, quantize=quantize, dtype=dtype)
    how: dict[str, Any] = {"mark": mark, "search_length": search_length, "context": context}
    with recorded(loaded, model, audit, audit_key) as asked, watched(loaded, watch, watch_rate) as more:
        result = asked.fill(read_text(template), **how, **more, **options)
    print_result(result, as_json)
    print_context(result)
    write_explained(result, loaded, explain_html, why)
    draw_picture(result, loaded, picture)


@makes_request
def edit(
    file: Annotated[
        str, typer.Argument(help="File to edit, which stays as it is without --write; `-` reads standard input.")
    ],
    model: ModelName = "default",
    backend: BackendName = None,
    quantize: QuantizeName = None,
    dtype: DtypeName = "auto",
    span: Annotated[list[str] | None, typer.Option(help="START:END in characters; may be repeated.")] = None,
    lines: Lines = None,
    pattern: Annotated[str | None, typer.Option(help="A regular expression: all its matches.")] = None,
    strength: Annotated[float, typer.Option(help="Share of the tokens to draw again; the others stay.")] = 1.0,
    context: ContextOption = "auto",
    search_length: SearchLength = None,
    picture: Picture = None,
    audit: AuditLedger = None,
    audit_key: AuditKey = None,
    explain_html: ExplainPage = None,
    why: Why = None,
    diff: ShowDiff = False,
    write: Write = False,
    backup: Backup = False,
    watch: WatchOption = False,
    watch_rate: WatchRate = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Rewrite parts of a file and keep the rest verbatim; print the whole, or the difference, or write the file."""
    change = FileChange(diff, write, backup)
    change.check(file, as_json, options)
    if options.get("n", 1) != 1 and not as_json:
        raise InputError("edit prints one text: leave out --n, or take --json for all samples")
    chosen: dict[str, Any] = {"spans": read_pairs(span), "lines": read_pairs(lines), "pattern": pattern}
    chosen |= {"strength": strength, "search_length": search_length, "context": context}
    check_picture(picture, options)
    check_explained(explain_html, why, options)
    source = InputText.read(file)
    check_watched(watch, watch_rate, audit, options)
    loaded = load(model, backend=backend, quantize=quantize, dtype=dtype)
    with recorded(loaded, model, audit, audit_key) as asked, watched(loaded, watch, watch_rate) as more:
        result = asked.edit(source.text, **chosen, **more, **options)
    if as_json:
        print_result(result, as_json)
    else:
        print_ignored(result)
    if change.wanted:
        change.apply(source, result.text)
    elif not as_json:
        sys.stdout.buffer.write(result.text.encode("utf-8"))
    if not as_json:
        print_explained(result)
    print_context(result)
    write_explained(result, loaded, explain_html, why)
    draw_picture(result, loaded, picture)
