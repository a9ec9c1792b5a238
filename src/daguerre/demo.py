"""`daguerre demo`: the default model at work on held-out code, every frame an event of the run itself."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from daguerre.evals.frozen import Document, load_frozen
from daguerre.model import Model, load
from daguerre.result import OPEN, StreamEvent
from daguerre.sampling.decode import Decode

FRAME_SECONDS = 0.15
GAP_TOKENS = 24
COMPLETION_TOKENS = 40
ROUNDS = 5
MODES: tuple[tuple[str, Decode], ...] = (
    ("autoregressive", Decode(mode="ar")),
    ("block 8, threshold .9", Decode(mode="block", block_size=8)),
    ("block 16, threshold .9", Decode(mode="block", block_size=16)),
    ("block 16, threshold .6", Decode(mode="block", block_size=16, threshold=0.6)),
    ("whole canvas, threshold .6", Decode(mode="full", threshold=0.6)),
)


@dataclass(frozen=True)
class Example:
    """A place in the frozen sample: a function's lines [first, last], and in them the line that is taken out."""

    package: str
    file: str
    first: int
    missing: int
    last: int


INFILL = Example("tornado", "tornado/util.py", 1, 2, 3)
PROMPTS: tuple[str, ...] = (
    "import os\nimport sys\n\n\ndef read_file(path):\n    with open(path) as",
    "class Point:\n    def __init__(self, x, y):\n        self.x = x\n",
    'def main():\n    parser = argparse.ArgumentParser(description="',
)


def shade(probability: float) -> str:
    """Color of a committed token by the probability the model gave it."""
    return "green" if probability >= 0.9 else "yellow" if probability >= 0.5 else "red"


def run_demo(name: str = "default", *, plain: bool = False) -> None:
    """Infill a line, complete three prompts, time the modes; takes under a minute on two cores."""
    console = Console(no_color=plain or None, highlight=False)
    show(console, load(name), live=console.is_terminal and not plain)


def show(console: Console, model: Model, *, live: bool) -> None:
    """The whole demonstration on `console`; `live` draws in place."""
    console.print(f"[bold]Daguerre[/bold]  {model!r}")
    console.print("Colors: how probable the model held a token when it committed it: ", end="")
    console.print("[green]90% and more[/green], [yellow]half[/yellow], [red]less[/red].\n")
    _show_infill(console, model, live)
    _show_completions(console, model, live)
    _show_speed(console, model)


def drawn(model: Model, prefix: str, event: StreamEvent, seen: dict[int, float]) -> Text:
    """The gap of one event as colored text; `seen` collects the probability of each committed position."""
    text = Text()
    if event.step is None:
        return text
    canvas, decision = event.step.canvas, event.step.decision
    seen.update(zip(decision.positions.tolist(), decision.probabilities.tolist(), strict=True))
    start, end = canvas.gaps[0]
    if canvas.continues and canvas.span is not None:
        end = canvas.span[1]
    kept = model.tokenizer.decode_bytes(canvas.tokens[:start].tolist())
    skip = len(prefix.encode()) - len(kept)
    for position in range(start, end):
        if canvas.open[position]:
            text.append(OPEN, style="dim")
            continue
        token = int(canvas.tokens[position])
        if token in (model.config.null_id, model.config.eos_id):
            break
        piece = model.tokenizer.token_bytes(token)
        shown, skip = piece[skip:], max(0, skip - len(piece))
        fresh = " reverse" if position in decision.positions else ""
        text.append(shown.decode("utf-8", errors="replace"), style=shade(seen[position]) + fresh)
    return text


def _frames(
    model: Model, prefix: str, suffix: str | None, num: int, decode: Decode
) -> Iterator[tuple[Text, StreamEvent]]:
    seen: dict[int, float] = {}
    last = Text()
    for event in model.stream(prefix, num, decode, suffix=suffix):
        last = drawn(model, prefix, event, seen) if event.step is not None else last
        yield last, event


def _play(console: Console, live: bool, frames: Iterator[tuple[Group, StreamEvent]], stills: int = 1) -> StreamEvent:
    """Draw frames in place on a terminal; elsewhere print `stills` of them, the last too. Returns the last event."""
    if not live:
        *shown, last = frames
        for index in range(stills - 1):
            console.print(shown[index * len(shown) // (stills - 1)][0])
        console.print(last[0])
        return last[1]
    frame = next(frames)
    with Live(frame[0], console=console, refresh_per_second=30) as screen:
        for frame in frames:
            screen.update(frame[0])
            time.sleep(FRAME_SECONDS)
    return frame[1]


def infill_parts(example: Example, documents: list[Document]) -> tuple[str, str, str]:
    """(text before, missing line without its indentation, text behind) of the example."""
    document = next(d for d in documents if (d.package, d.file) == (example.package, example.file))
    lines = document.text.splitlines(keepends=True)
    line = lines[example.missing - 1]
    indent = line[: len(line) - len(line.lstrip())]
    prefix = "".join(lines[example.first - 1 : example.missing - 1]) + indent
    return prefix, line.strip(), "\n" + "".join(lines[example.missing : example.last])


def _show_infill(console: Console, model: Model, live: bool) -> None:
    prefix, true, suffix = infill_parts(INFILL, load_frozen())
    title = f"a missing line of {INFILL.file} ({INFILL.package}, held out)"

    def frames() -> Iterator[tuple[Group, StreamEvent]]:
        for step, (gap, event) in enumerate(_frames(model, prefix, suffix, GAP_TOKENS, Decode()), 1):
            body = Text.assemble((prefix, "dim"), gap, (suffix.rstrip("\n"), "dim"))
            yield Group(Panel(body, title=title, subtitle=f"step {step}", title_align="left")), event

    event = _play(console, live, frames(), stills=3)
    assert event.result is not None
    right = event.result.text.strip() == true
    console.print(f"  written   {event.result.text.strip()}", markup=False)
    console.print(f"  true      {true}" + ("   (the same)" if right else ""), markup=False)
    usage = event.result.usage
    console.print(f"  {usage.completion_tokens} tokens in {usage.forwards} forwards; the gap's length was not given\n")


def _show_completions(console: Console, model: Model, live: bool) -> None:
    for prompt in PROMPTS:

        def frames(prompt: str = prompt) -> Iterator[tuple[Group, StreamEvent]]:
            for gap, event in _frames(model, prompt, None, COMPLETION_TOKENS, Decode()):
                yield Group(Panel(Text.assemble((prompt, "dim"), gap), title="completion", title_align="left")), event

        _play(console, live, frames())
    console.print()


def _show_speed(console: Console, model: Model) -> None:
    """Median speed of every mode over the prompts, rounds interleaved, nothing drawn."""
    rates: dict[str, list[tuple[float, float, float]]] = {name: [] for name, _ in MODES}
    with console.status("timing the modes"):
        for round_number in range(ROUNDS + 1):
            for name, decode in MODES:
                results = [model.generate(prompt, COMPLETION_TOKENS, decode) for prompt in PROMPTS]
                if not round_number:
                    continue
                seconds = sum(r.usage.seconds for r in results)
                drawn_tokens = sum(r.usage.completion_tokens for r in results)
                forwards = sum(r.usage.forwards for r in results)
                characters_drawn = sum(len(r.text) for r in results)
                rates[name].append((drawn_tokens / seconds, characters_drawn / seconds, drawn_tokens / forwards))
    table = Table(title=f"speed of this model here, median of {ROUNDS} rounds (not quality)", title_justify="left")
    for column in ("mode", "tokens/s", "characters/s", "tokens a forward", "beside ar"):
        table.add_column(column, justify="left" if column == "mode" else "right")
    base = statistics.median(r[0] for r in rates[MODES[0][0]])
    for name, _ in MODES:
        tokens, characters, per_forward = (statistics.median(r[i] for r in rates[name]) for i in range(3))
        table.add_row(name, f"{tokens:,.0f}", f"{characters:,.0f}", f"{per_forward:.2f}", f"{tokens / base:.2f}x")
    console.print(table)
    console.print("Figures on held-out code, and what this model cannot do, are in MODEL_CARD.md.")
