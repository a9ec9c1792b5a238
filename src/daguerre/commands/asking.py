"""Commands that ask a model for text, or for a decision."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from daguerre.commands.explaining import ExplainPage, Why, check_explained, print_explained, write_explained
from daguerre.commands.loading import chooses_model, load
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
    print_result,
    read_draft,
    read_file,
    read_pairs,
    read_text,
)
from daguerre.errors import InputError


@makes_request
def generate(
    prompt: Annotated[str, typer.Argument(help="Text to complete; `-` reads standard input.")],
    model: ModelName = "default",
    backend: BackendName = None,
    quantize: QuantizeName = None,
    dtype: DtypeName = "auto",
    draft: DraftText = None,
    picture: Picture = None,
    audit: AuditLedger = None,
    audit_key: AuditKey = None,
    explain_html: ExplainPage = None,
    why: Why = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Complete a prompt."""
    check_picture(picture, options)
    check_explained(explain_html, why, options)
    loaded = load(model, backend=backend, quantize=quantize, dtype=dtype)
    text = read_text(prompt)
    with recorded(loaded, model, audit, audit_key) as asked:
        result = asked.generate(text, draft=read_draft(draft), **options)
    print_result(result, as_json)
    write_explained(result, loaded, explain_html, why, text)
    draw_picture(result, loaded, picture)


@makes_request
def infill(
    prefix: Annotated[str, typer.Argument(help="Text before the gap; `-` reads standard input.")],
    suffix: Annotated[str, typer.Argument(help="Text after the gap; when empty, the prefix is completed.")],
    model: ModelName = "default",
    backend: BackendName = None,
    quantize: QuantizeName = None,
    dtype: DtypeName = "auto",
    draft: DraftText = None,
    whole: Annotated[bool, typer.Option("--whole", help="Print prefix, middle and suffix, and nothing else.")] = False,
    search_length: SearchLength = None,
    picture: Picture = None,
    audit: AuditLedger = None,
    audit_key: AuditKey = None,
    explain_html: ExplainPage = None,
    why: Why = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Fill the gap between a prefix and a suffix."""
    check_picture(picture, options)
    check_explained(explain_html, why, options)
    if whole and (as_json or options.get("n", 1) != 1):
        raise InputError("--whole prints one text as it is: leave it out, or leave out --json and --n")
    if prefix == suffix == "-":
        raise InputError("standard input can be the prefix or the suffix, not both: give one of them as text")
    before, after = read_text(prefix), read_text(suffix)
    loaded = load(model, backend=backend, quantize=quantize, dtype=dtype)
    with recorded(loaded, model, audit, audit_key) as asked:
        result = asked.infill(before, after, draft=read_draft(draft), search_length=search_length, **options)
    if whole:
        print_ignored(result)
        sys.stdout.write(before + result.text + after)
        print_explained(result)
    else:
        print_result(result, as_json)
    write_explained(result, loaded, explain_html, why, before, after)
    draw_picture(result, loaded, picture)


@makes_request
def fill(
    template: Annotated[str, typer.Argument(help="Text with `{}` where a gap goes; `-` reads standard input.")],
    model: ModelName = "default",
    backend: BackendName = None,
    quantize: QuantizeName = None,
    dtype: DtypeName = "auto",
    mark: Annotated[str, typer.Option(help="What marks a gap.")] = "{}",
    search_length: SearchLength = None,
    picture: Picture = None,
    audit: AuditLedger = None,
    audit_key: AuditKey = None,
    explain_html: ExplainPage = None,
    why: Why = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Fill every gap of a template in one run, the gaps seeing each other; --max-tokens is of each."""
    check_picture(picture, options)
    check_explained(explain_html, why, options)
    loaded = load(model, backend=backend, quantize=quantize, dtype=dtype)
    with recorded(loaded, model, audit, audit_key) as asked:
        result = asked.fill(read_text(template), mark=mark, search_length=search_length, **options)
    print_result(result, as_json)
    write_explained(result, loaded, explain_html, why)
    draw_picture(result, loaded, picture)


@makes_request
def edit(
    file: Annotated[str, typer.Argument(help="File to edit, which stays as it is; `-` reads standard input.")],
    model: ModelName = "default",
    backend: BackendName = None,
    quantize: QuantizeName = None,
    dtype: DtypeName = "auto",
    span: Annotated[list[str] | None, typer.Option(help="START:END in characters; may be repeated.")] = None,
    lines: Annotated[list[str] | None, typer.Option(help="FIRST:LAST, from 1; may be repeated.")] = None,
    pattern: Annotated[str | None, typer.Option(help="A regular expression: all its matches.")] = None,
    strength: Annotated[float, typer.Option(help="Share of the tokens to draw again; the others stay.")] = 1.0,
    search_length: SearchLength = None,
    picture: Picture = None,
    audit: AuditLedger = None,
    audit_key: AuditKey = None,
    explain_html: ExplainPage = None,
    why: Why = None,
    diff: Annotated[bool, typer.Option("--diff", help="Print the difference instead of the text.")] = False,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Rewrite parts of a file, keep the rest verbatim, and print the whole."""
    if diff and as_json:
        raise InputError("--json holds the difference already: leave out --diff")
    if options.get("n", 1) != 1 and not as_json:
        raise InputError("edit prints one text: leave out --n, or take --json for all samples")
    chosen: dict[str, Any] = {
        "spans": read_pairs(span),
        "lines": read_pairs(lines),
        "pattern": pattern,
        "strength": strength,
    }
    chosen["search_length"] = search_length
    check_picture(picture, options)
    check_explained(explain_html, why, options)
    loaded = load(model, backend=backend, quantize=quantize, dtype=dtype)
    with recorded(loaded, model, audit, audit_key) as asked:
        result = asked.edit(read_text("-") if file == "-" else read_file(file), **chosen, **options)
    if as_json:
        print_result(result, as_json)
    else:
        print_ignored(result)
        sys.stdout.buffer.write((result.diff if diff else result.text).encode("utf-8"))
        print_explained(result)
    write_explained(result, loaded, explain_html, why)
    draw_picture(result, loaded, picture)


@contextmanager
def recorded(model: Any, name: str, ledger: Path | None, key: Path | None) -> Iterator[Any]:
    """What to ask for text: the model itself or, with a ledger, a recorder of it. InputError for one without a key."""
    if (ledger is None) != (key is None):
        raise InputError("--audit and --audit-key belong together: give both or neither")
    if ledger is None:
        yield model
        return
    from daguerre.audit import Recorder

    with Recorder(ledger, model, key, name=name) as recorder:
        yield recorder


@chooses_model
def decide(
    state: Annotated[str, typer.Argument(help="Text that the question is about; `-` reads standard input.")],
    label: Annotated[list[str] | None, typer.Option(help="A text for the blank; two or more: a choice.")] = None,
    yes: Annotated[str | None, typer.Option(help="The text that means yes.")] = None,
    no: Annotated[str | None, typer.Option(help="The text that means no.")] = None,
    score: Annotated[str | None, typer.Option(help="LOW:HIGH: a whole number.")] = None,
    before: Annotated[str, typer.Option(help="Text between the state and the blank.")] = "",
    after: Annotated[str, typer.Option(help="Text after the blank.")] = "",
    calibration: Annotated[str | None, typer.Option(help="One of the model's calibrations, by name.")] = None,
    model: ModelName = "default",
    as_json: AsJson = False,
) -> None:
    """Fill a blank with the likeliest of several texts (--label), of --yes and --no, or with a number (--score)."""
    question = _question(label, yes, no, score)(before=before, after=after, calibration=calibration)
    (answer,) = load(model).decide(read_text(state), [question])
    if as_json:
        typer.echo(json.dumps(asdict(answer), ensure_ascii=False))
        return
    typer.echo(f"answer: {answer.answer}" + ("" if answer.expected is None else f"  expected: {answer.expected:.3f}"))
    for name, probability in sorted(answer.probabilities.items(), key=lambda item: -item[1]):
        typer.echo(f"{probability:.4f}  {name}")


def _question(label: list[str] | None, yes: str | None, no: str | None, score: str | None) -> Callable[..., Any]:
    """The question that the options describe, without its template."""
    from daguerre.scoring.decisions import Choice, Score, YesNo

    kinds = [name for name, given in (("label", label), ("yes", yes or no), ("score", score)) if given]
    if len(kinds) != 1:
        raise InputError("ask one kind of question: --label twice or more, --yes with --no, or --score LOW:HIGH")
    if label:
        return functools.partial(Choice, labels=label)
    if score:
        ((low, high),) = read_pairs([score]) or []
        return functools.partial(Score, low=low, high=high)
    if not (yes and no):
        raise InputError("a yes-no question needs two texts: give --yes and --no")
    return functools.partial(YesNo, yes=yes, no=no)
