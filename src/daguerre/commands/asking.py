"""Commands that ask a model for text."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from typing import Annotated, Any

import typer

from daguerre.commands.files import (
    At,
    ContextOption,
    FileChange,
    InputText,
    Lines,
    print_context,
    read_gap,
    read_place,
)
from daguerre.commands.loading import Loading, ModelName
from daguerre.commands.options import (
    AsJson,
    DraftText,
    SearchLength,
    makes_request,
    print_ignored,
    print_notes,
    print_result,
    read_draft,
    read_pairs,
    read_text,
)
from daguerre.commands.streams import check_input
from daguerre.commands.viewing import Viewing, Watching, print_explained
from daguerre.commands.writing import check_statement, shown, written_statement
from daguerre.decoding.text_spans import MARK
from daguerre.editing.answers import UnreadableAnswer
from daguerre.errors import InputError

Effort = Annotated[
    str, typer.Option("--effort", help="How many forwards an answer may take: instant, low, medium or high.")
]
SystemText = Annotated[str | None, typer.Option("--system", help="What the model is told first.")]
OFFERED = "smollm2"
"""The model that a conversation without a name is offered."""


def demo(
    model: ModelName = "default",
    plain: Annotated[bool, typer.Option("--plain", help="No colors, no drawing in place.")] = False,
) -> None:
    """Show the model completing and infilling held-out code, the draft sharpening as it runs."""
    from daguerre.view.demo import run_demo

    run_demo(model, plain=plain)


@makes_request
def generate(
    prompt: Annotated[str, typer.Argument(help="Text to complete; `-` reads standard input.")],
    *,
    loading: Loading,
    draft: DraftText = None,
    context: ContextOption = "auto",
    viewing: Viewing,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Complete a prompt."""
    viewing.check(options)
    loaded = loading.load()
    text = read_text(prompt)
    how: dict[str, Any] = {"draft": read_draft(draft), "context": context, **options}
    if as_json or viewing.watch or viewing.audit is not None or options.get("n", 1) != 1:
        with viewing.asked(loaded, loading.model) as (asked, more):
            result = asked.generate(text, **more, **how)
        print_result(result, as_json)
    else:
        result = shown(loaded.stream(text, **how))
        print_notes(result)
    print_context(result)
    viewing.finish(result, loaded, text)


@makes_request
def infill(
    prefix: Annotated[str, typer.Argument(help="Text before the gap, `-` reads standard input; or FILE, see --at.")],
    suffix: Annotated[
        str | None, typer.Argument(help="Text after the gap; when empty, the prefix is completed.")
    ] = None,
    *,
    loading: Loading,
    at: At = None,
    lines: Lines = None,
    draft: DraftText = None,
    context: ContextOption = "auto",
    whole: Annotated[bool, typer.Option("--whole", help="Print prefix, middle and suffix, and nothing else.")] = False,
    change: FileChange,
    search_length: SearchLength = None,
    viewing: Viewing,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Fill the gap between two texts, or in a file: `FILE --at LINE:COLUMN`, or `FILE --lines FIRST:LAST`."""
    change.check(prefix, as_json, options)
    viewing.check(options)
    if whole and (as_json or options.get("n", 1) != 1 or change.wanted):
        raise InputError("--whole prints one text as it is: leave it out, or leave out --json, --n, --diff and --write")
    source, before, after = _around(prefix, suffix, at, lines, change)
    loaded = loading.load()
    how: dict[str, Any] = {"draft": read_draft(draft), "search_length": search_length, "context": context}
    with viewing.asked(loaded, loading.model) as (asked, more):
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
    viewing.finish(result, loaded, before, after)


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
    *,
    loading: Loading,
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
    change: FileChange,
    watching: Watching,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Write on in a file: at its end, in a new line behind line LINE, or at a column, counted from 1. What stands
    behind the place is not read. To fill in between: `daguerre infill FILE --at LINE:COLUMN`.
    """
    change.check(place, as_json, options)
    one = check_statement(statement, {**options, "watch": watching.watch})
    source, at, opened = read_place(place)
    show = not (as_json or watching.watch or change.wanted or options.get("n", 1) != 1)
    watching.check(options)
    loaded, before = loading.load(), source.text[:at] + opened
    how: dict[str, Any] = {"draft": read_draft(draft), "context": context, **options}
    if one:
        result = written_statement(loaded, before, how, show)
    elif show:
        result = shown(loaded.stream(before, **how))
    else:
        with watching.watched(loaded) as more:
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
    *,
    loading: Loading,
    mark: Annotated[str, typer.Option(help="What marks a gap.")] = MARK,
    context: ContextOption = "auto",
    search_length: SearchLength = None,
    viewing: Viewing,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Fill every gap of a template in one run, the gaps seeing each other; --max-tokens is of each."""
    viewing.check(options)
    loaded = loading.load()
    how: dict[str, Any] = {"mark": mark, "search_length": search_length, "context": context}
    with viewing.asked(loaded, loading.model) as (asked, more):
        result = asked.fill(read_text(template), **how, **more, **options)
    print_result(result, as_json)
    print_context(result)
    viewing.finish(result, loaded)


@makes_request
def edit(
    file: Annotated[
        str, typer.Argument(help="File to edit, which stays as it is without --write; `-` reads standard input.")
    ],
    instruction: Annotated[
        str | None,
        typer.Argument(
            help='What to do, as "make it a dataclass", for a model that takes instructions: in all or --lines.'
        ),
    ] = None,
    *,
    loading: Loading,
    span: Annotated[list[str] | None, typer.Option(help="START:END in characters; may be repeated.")] = None,
    lines: Lines = None,
    pattern: Annotated[str | None, typer.Option(help="A regular expression: all its matches.")] = None,
    strength: Annotated[float, typer.Option(help="Share of the tokens to draw again; the others stay.")] = 1.0,
    context: ContextOption = "auto",
    search_length: SearchLength = None,
    change: FileChange,
    viewing: Viewing,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Rewrite parts of a file and keep the rest verbatim; print the whole, or the difference, or write the file."""
    change.check(file, as_json, options)
    if options.get("n", 1) != 1 and not as_json:
        raise InputError("edit prints one text: leave out --n, or take --json for all samples")
    chosen: dict[str, Any] = {"spans": read_pairs(span), "lines": read_pairs(lines), "pattern": pattern}
    chosen |= {"strength": strength, "search_length": search_length, "context": context}
    viewing.check(options)
    source = InputText.read(file)
    if instruction is not None:
        if viewing.watch or viewing.audit is not None:
            raise InputError("an instruction may be asked twice: leave out --watch and --audit")
        result = _instructed(source, instruction, chosen, loading.load(), options)
    else:
        loaded = loading.load()
        with viewing.asked(loaded, loading.model) as (asked, more):
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
    if instruction is None:
        viewing.finish(result, loaded)


def _instructed(
    source: InputText, instruction: str, chosen: dict[str, Any], loaded: Any, options: dict[str, Any]
) -> Any:
    """The result of an instruction. InputError for what it cannot be combined with."""
    if chosen["spans"] or chosen["pattern"] or chosen["strength"] != 1 or chosen["search_length"] is not None:
        raise InputError("an instruction is for the file or for --lines of it: leave out what else says what to edit")
    name = "" if source.path is None else source.path.name
    try:
        return loaded.edit(source.text, instruction=instruction, lines=chosen["lines"], name=name, **options)
    except UnreadableAnswer as error:
        typer.echo(error.answer, err=True)
        raise


@makes_request
def chat(
    *,
    loading: Loading,
    effort: Effort = "medium",
    system: SystemText = None,
    **options: Any,
) -> None:
    """Converse with a model in the terminal, by its own chat template; /help says what can be typed. Without --model,
    with a small one that is offered.
    """
    if loading.model == "default":
        loading = replace(loading, model=offered_model())
    converse(loading, effort, system, options)


def converse(
    loading: Loading, effort: str, system: str | None, options: dict[str, Any], question: str | None = None
) -> None:
    """A conversation in the terminal, or the answer to a question alone."""
    from rich.console import Console

    from daguerre.view.conversation import ChatSession, Terminal

    if options.get("n", 1) != 1:
        raise InputError("a conversation has one answer to each question: leave out --n")
    if options.get("explain"):
        raise InputError("a conversation explains no answer: leave out --explain")
    if question is None:
        check_input()
        with contextlib.suppress(ImportError):  # arrow keys and a history where Python has them
            import readline  # noqa: F401
    talk = ChatSession(loading.load(), effort, system, **options)
    if question is not None:
        result = shown(talk.answer(question))
        print_notes(result)
        return
    Terminal(talk, Console(), input).run()


def offered_model() -> str:
    """The model of a conversation for which none is named: OFFERED, if it is here, or if the user wants it pulled.
    InputError where nobody can be asked, or does not want it.
    """
    from daguerre.models.pulling.bring import held
    from daguerre.models.pulling.catalogue import entry_of

    entry = entry_of(OFFERED)
    assert entry is not None
    if held(OFFERED) is None:
        what = f"{OFFERED} ({entry.size / 1e6:.0f} MB, {entry.licence}: {entry.purpose})"
        asked = sys.stdin is not None and sys.stdin.isatty() and sys.stderr is not None and sys.stderr.isatty()
        if not asked or not typer.confirm(f"No model is named. Pull {what}?", default=True, err=True):
            raise InputError(
                f"the default model writes code and cannot converse: name one with --model, as in `daguerre chat "
                f"--model {OFFERED}`, which pulls {what}; `daguerre models` lists others"
            )
    return OFFERED
