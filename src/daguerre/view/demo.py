"""`daguerre demo`: the default model at work on held-out code, every frame an event of the run itself."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from daguerre.decoding.request import Decode
from daguerre.decoding.result import StreamEvent
from daguerre.heldout import Document, load_frozen
from daguerre.model import Model, load
from daguerre.trace import Event
from daguerre.view.watch import canvas_parts

FRAME_SECONDS = 0.15
GAP_TOKENS = 12
COMPLETION_TOKENS = 40
ROUNDS = 5
MODES: tuple[tuple[str, Decode], ...] = (
    ("ar", Decode(mode="ar")),
    ("speculative", Decode(mode="speculative")),
    ("block 8 at .9", Decode(mode="block", block_size=8)),
    ("block 16 at .9", Decode(mode="block", block_size=16)),
    ("block 16 at .6", Decode(mode="block", block_size=16, threshold=0.6)),
    ("full at .6", Decode(mode="full", threshold=0.6)),
)


@dataclass(frozen=True)
class DemoPlace:
    """Lines first .. last of a file of the frozen sample, counted from 1."""

    package: str
    file: str
    first: int
    last: int

    def lines(self, documents: Sequence[Document]) -> list[str]:
        """The lines, each with its end."""
        document = next(d for d in documents if (d.package, d.file) == (self.package, self.file))
        return document.text.splitlines(keepends=True)[self.first - 1 : self.last]


FUNCTION, MISSING = DemoPlace("itsdangerous", "itsdangerous/exc.py", 7, 30), 16
BEGINNINGS = (
    DemoPlace("simpy", "simpy/resources/store.py", 110, 111),
    DemoPlace("cattrs", "cattrs/converters.py", 337, 338),
    DemoPlace("humanize", "humanize/time.py", 43, 44),
)


def run_demo(name: str = "default", *, plain: bool = False) -> None:
    """Infill a line, complete three prompts, time the modes; takes about half a minute on two cores."""
    console = Console(no_color=plain or None, highlight=False)
    show(console, load(name), live=console.is_terminal and not plain)


def show(console: Console, model: Model, *, live: bool) -> None:
    """The whole demonstration on `console`; `live` draws in place."""
    console.print(f"[bold]Daguerre[/bold]  {model!r}")
    console.print("Colors: the probability of a token when it was committed: ", end="")
    console.print("[green]90% and more[/green], [yellow]half[/yellow], [red]less[/red].\n")
    documents = load_frozen()
    _show_infill(console, model, documents, live)
    _show_completions(console, model, documents, live)
    _show_speed(console, model, documents, live)


def _frames(model: Model, prefix: str, suffix: str | None, num: int) -> Iterator[tuple[Text, StreamEvent]]:
    """The text after each step, what the step committed marked."""
    seen: dict[int, float] = {}
    step: Event | None = None
    for event in model.stream(prefix, num, suffix=suffix):
        step = event.step or step
        assert step is not None
        parts = canvas_parts(model, step.canvas, step.decision, seen)
        marked = " reverse" if event.result is not None else ""  # nothing is, at the end
        yield Text.assemble(*((text, style.removesuffix(marked)) for text, style, _ in parts)), event


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


def infill_parts(documents: Sequence[Document]) -> tuple[str, str, str]:
    """(text before, missing line without its indentation, text after) of the function that the demonstration shows."""
    lines = FUNCTION.lines(documents)
    index = MISSING - FUNCTION.first
    line = lines[index]
    indent = line[: len(line) - len(line.lstrip())]
    return "".join(lines[:index]) + indent, line.strip(), "\n" + "".join(lines[index + 1 :])


def _show_infill(console: Console, model: Model, documents: Sequence[Document], live: bool) -> None:
    prefix, true, suffix = infill_parts(documents)
    title = f"a missing line of {FUNCTION.file}, held out"

    def frames() -> Iterator[tuple[Group, StreamEvent]]:
        step = 0
        for body, event in _frames(model, prefix, suffix, GAP_TOKENS):
            step += event.step is not None
            body.rstrip()
            yield Group(Panel(body, title=title, subtitle=f"step {step}", title_align="left")), event

    event = _play(console, live, frames(), stills=3)
    assert event.result is not None
    written = event.result.text.strip()
    whole = model.infill(prefix, suffix, GAP_TOKENS, mode="beam", min_tokens=1, stop="\n").text.strip()
    for name, line in (("written", written), ("by beam", whole), ("true", true)):
        console.print(f"  {name:10}{line}" + "   (the same)" * (name != "true" and line == true), markup=False)
    usage, gap = event.result.usage, f"a gap of {GAP_TOKENS}"
    console.print(f"  Written: {usage.completion_tokens} tokens in {usage.forwards} forwards, of {gap}.")
    console.print("  By beam: the likeliest of many whole lines.")
    console.print("  How many are right is in MODEL_CARD.md.\n")


def _show_completions(console: Console, model: Model, documents: Sequence[Document], live: bool) -> None:
    for place in BEGINNINGS:
        prompt = "".join(place.lines(documents))

        def frames(prompt: str = prompt, title: str = place.file) -> Iterator[tuple[Group, StreamEvent]]:
            for body, event in _frames(model, prompt, None, COMPLETION_TOKENS):
                yield Group(Panel(body, title=f"completing {title}, held out", title_align="left")), event

        _play(console, live, frames())
    console.print()


def _show_speed(console: Console, model: Model, documents: Sequence[Document], live: bool) -> None:
    """Median speed of every mode over the prompts, rounds interleaved, nothing drawn."""
    prompts = ["".join(place.lines(documents)) for place in BEGINNINGS]
    rates: dict[str, list[tuple[float, float, float]]] = {name: [] for name, _ in MODES}
    with console.status("timing the modes") if live else nullcontext() as status:
        for round_number in range(ROUNDS + 1):
            for number, (name, decode) in enumerate(MODES):
                if status is not None:
                    status.update(
                        f"timing the modes: {round_number * len(MODES) + number} of {(ROUNDS + 1) * len(MODES)}"
                    )
                results = [model.generate(prompt, COMPLETION_TOKENS, decode) for prompt in prompts]
                if not round_number:
                    continue
                seconds = sum(r.usage.seconds for r in results)
                drawn_tokens = sum(r.usage.completion_tokens for r in results)
                forwards = sum(r.usage.forwards for r in results)
                characters_drawn = sum(len(r.text) for r in results)
                rates[name].append((drawn_tokens / seconds, characters_drawn / seconds, drawn_tokens / forwards))
    table = Table(title=f"speed here, median of {ROUNDS} rounds; at .9: threshold of the policy", title_justify="left")
    for column in ("mode", "tokens/s", "characters/s", "tokens a forward", "times ar"):
        table.add_column(column, justify="left" if column == "mode" else "right")
    base = statistics.median(r[0] for r in rates[MODES[0][0]])
    best = max(rates, key=lambda name: statistics.median(r[0] for r in rates[name]))
    for name, _ in MODES:
        tokens, characters, per_forward = (statistics.median(r[i] for r in rates[name]) for i in range(3))
        cells = f"{tokens:,.0f}", f"{characters:,.0f}", f"{per_forward:.2f}", f"{tokens / base:.2f}x"
        table.add_row(name, *cells, style="bold" if name == best else "")
    console.print(table)
    console.print("Figures on held-out code, and what this model cannot do, are in MODEL_CARD.md.")
