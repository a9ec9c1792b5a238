"""The command that scores a file: bits by line, the surprising lines marked."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from daguerre.commands.files import InputText
from daguerre.commands.loading import Loading, takes_groups
from daguerre.commands.options import AsJson
from daguerre.errors import InputError


@takes_groups
def score(
    file: Annotated[str, typer.Argument(help="File to score; `-` reads standard input.")],
    *,
    loading: Loading,
    kind: Annotated[
        str | None, typer.Option(help="ar: exact, left to right; elbo: a bound. By default ar where the model has it.")
    ] = None,
    samples: Annotated[int, typer.Option(help="Draws of masks for a bound.")] = 32,
    surprising: Annotated[
        int | None, typer.Option("--surprising", min=1, help="Print only so many lines: the most surprising ones.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say how likely a file is under the model: bits of each line, and which lines are surprising. A file that is
    longer than the model's context is scored in windows that overlap.
    """
    from daguerre.scoring.lines import by_line

    source = InputText.read(file)
    if not source.text:
        raise InputError(f"{source.path or 'standard input'} is empty: there is nothing to score")
    loaded = loading.load()
    scores = loaded.nll(source.text, kind=kind or _exact_kind(loaded), samples=samples)
    lines = by_line(loaded.tokenizer, source.text, scores)
    if as_json:
        typer.echo(json.dumps(_body(lines, scores), ensure_ascii=False))
    else:
        _print(lines, scores, surprising)


def _exact_kind(model: Any) -> str:
    from daguerre.errors import UnsupportedError
    from daguerre.scoring.likelihood import check_layout

    try:
        check_layout(model.config, "ar", None)
    except UnsupportedError:
        return "elbo"
    return "ar"


def _body(lines: Sequence[Any], scores: Any) -> dict[str, Any]:
    """All of it as JSON."""
    total, size = scores.value / math.log(2), sum(line.num_bytes for line in lines)
    return {
        "bits": total,
        "stderr": scores.stderr / math.log(2),
        "bytes": size,
        "bits_per_byte": total / size,
        "tokens": scores.num_tokens,
        "windows": scores.num_windows,
        "lines": [
            {
                "number": line.number,
                "text": line.text,
                "bits": line.bits,
                "bytes": line.num_bytes,
                "surprising": line.surprising,
                "surprise": line.surprise,
                "tokens": [[token.text, token.bits] for token in line.tokens],
            }
            for line in lines
        ],
    }


def _print(lines: Sequence[Any], scores: Any, surprising: int | None) -> None:
    """A table on standard output, colored on a terminal; then the total."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    shown = lines if surprising is None else sorted(lines, key=lambda line: -line.surprise)[:surprising]
    digits = len(str(len(lines)))
    console.print(Text(f"{'line':>{max(digits, 4)}}    bits  a byte", style="dim"))
    for line in shown:
        head = f"{line.number:>{max(digits, 4)}} {'!' if line.surprising else ' '} {line.bits:>5.1f}  "
        head += f"{line.bits / line.num_bytes:>6.2f}  "
        note = f"   <- {line.worst.text!r}: {line.worst.bits:.1f} bits" if line.surprising else ""
        text = line.text.expandtabs(4)
        if console.is_terminal:
            room = max(10, console.width - len(head) - len(note))
            text = text if len(text) <= room else text[: room - 1] + "…"
        console.print(Text.assemble(head, (text, "bold yellow" if line.surprising else ""), (note, "red")))
    total, size = scores.value / math.log(2), sum(line.num_bytes for line in lines)
    bound = f" (a bound; standard error {scores.stderr / math.log(2):.1f})" if scores.stderr else ""
    parts = f" in {scores.num_windows} windows" if scores.num_windows > 1 else ""
    marked = sum(line.surprising for line in lines)
    console.print(
        f"{total:,.1f} bits{bound} for {size:,} bytes: {total / size:.3f} a byte; {scores.num_tokens:,} tokens{parts}; "
        f"{marked} of {len(lines):,} lines surprising"
    )
