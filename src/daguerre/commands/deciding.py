"""The command that asks a model for a decision."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

import typer

from daguerre.commands.files import print_context
from daguerre.commands.loading import ModelChoice, takes_groups
from daguerre.commands.options import AsJson, read_pairs, read_text
from daguerre.errors import InputError


@takes_groups
def decide(
    state: Annotated[str, typer.Argument(help="Text that the question is about; `-` reads standard input.")],
    *,
    label: Annotated[list[str] | None, typer.Option(help="A text for the blank; two or more: a choice.")] = None,
    yes: Annotated[str | None, typer.Option(help="The text that means yes.")] = None,
    no: Annotated[str | None, typer.Option(help="The text that means no.")] = None,
    score: Annotated[str | None, typer.Option(help="LOW:HIGH: a whole number.")] = None,
    before: Annotated[str, typer.Option(help="Text between the state and the blank.")] = "",
    after: Annotated[str, typer.Option(help="Text after the blank.")] = "",
    calibration: Annotated[str | None, typer.Option(help="One of the model's calibrations, by name.")] = None,
    chosen: ModelChoice,
    as_json: AsJson = False,
) -> None:
    """Fill a blank with the likeliest of several texts (--label), of --yes and --no, or with a number (--score)."""
    question = _question(label, yes, no, score)(before=before, after=after, calibration=calibration)
    (answer,) = chosen.load().decide(read_text(state), [question])
    if as_json:
        typer.echo(json.dumps(asdict(answer), ensure_ascii=False))
        return
    print_context(answer)
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
