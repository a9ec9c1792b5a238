"""What part "families" found: one table, its bars, and one picture."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from daguerre.evals.bench.families import ROWS
from daguerre.evals.bench.family_depth import deep_models, deep_table
from daguerre.evals.bench.family_files import DEEP_WEIGHTS, WEIGHTS
from daguerre.evals.tables import counted, table
from daguerre.view.charts import BLUE, GRAY, GREEN, ORANGE, by_powers, legend_of_figure

MIN_AR, AR_BARS = 1.0, ("int8", "approximate_int4")
MIN_BLOCK = {"amx": 2.2, "avx512": 1.6, "avx512_vnni": 1.6, "avx512_bf16": 1.6}
"""By instruction set: blocks, times llama.cpp's autoregression in 8 bits. With AVX2 it is reported, in the table."""
BLOCK_BAR = "int8"
MIN_DEEP, DEEP = 3.0, 32
"""LLaDA-8B, beside llama.cpp's non-causal decode; the layers of the published model."""
NOTE = (
    "Random weights of published shapes. Answer tokens a second are end to end: {new} tokens by `Model.generate` "
    "behind a prompt of {context}, the prompt included, beside llama.cpp's greedy text of the same lengths and type of "
    "weights. Shapes of blocks commit 2.5 tokens a forward by force, and a finished block is computed again as clean "
    "rows, in the forward that starts the next one; canvas tokens are the open positions that their forwards compute. "
    "What accuracy such a pace leaves is a matter of the real weights. A ratio is the median of those of the rounds; "
    "figures are {clocks}."
)


@dataclass(frozen=True)
class Line:
    """A shape in one type of weights, medians over rounds.

    weights_gb, read    bytes of the packed weights, and the share of memory's speed at which one row reads them
    rows                milliseconds of a forward by its rows
    answer, canvas      tokens a second: of the text, and of the canvas
    peer, peer_answer   llama.cpp's type and its tokens a second; None where it was not measured
    times, times_row    how many times as fast as llama.cpp: the text, and a forward of one row
    """

    threads: str
    shape: str
    weights: str
    block: int | None
    weights_gb: float
    read: float
    rows: dict[int, float]
    answer: float
    canvas: float
    per_forward: float
    peer: str
    peer_answer: float | None
    times: float | None
    times_row: float | None
    failed: str | None

    @property
    def mode(self) -> str:
        """How the text was written."""
        return "ar" if self.block is None else f"block {self.block}"


def lines(part: dict[str, Any]) -> Iterator[Line]:
    """All that was measured but shapes with full context."""
    for threads, found in part["threads"].items():
        for shape, of_shape in found["shapes"].items():
            if of_shape["deep"]:
                continue
            for weights, one in of_shape["weights"].items():
                yield _line(threads, found, shape, of_shape["block"], weights, one)


def _line(
    threads: str, found: dict[str, Any], shape: str, block: int | None, weights: str, one: dict[str, Any]
) -> Line:
    took = {name: statistics.median(each) for name, each in one["seconds"].items()}
    memory = found["read_bytes"] / took["reading"]

    def times(theirs: str, ours: str) -> float | None:
        if theirs not in took:
            return None
        return statistics.median(a / b for a, b in zip(one["seconds"][theirs], one["seconds"][ours], strict=True))

    return Line(
        threads=threads,
        shape=shape,
        weights=weights,
        block=block,
        weights_gb=one["bytes"] / 1e9,
        read=one["bytes"] / took["rows 1"] / memory,
        rows={rows: 1e3 * took[f"rows {rows}"] for rows in ROWS},
        answer=found["new"] / took["text"],
        canvas=one["canvas"] / took["text"],
        per_forward=found["new"] / one["forwards"],
        peer=WEIGHTS[weights],
        peer_answer=found["new"] / took["llama.cpp text"] if "llama.cpp text" in took else None,
        times=times("llama.cpp text", "text"),
        times_row=times("llama.cpp rows 1", "rows 1"),
        failed=one["failed"],
    )


def families_table(part: dict[str, Any]) -> str:
    """One line for each shape, type of weights and number of threads."""
    header = [
        "shape", "threads", "weights", "GB", *(f"ms, {rows} row{'s' * (rows > 1)}" for rows in ROWS),
        "of memory's speed, 1 row", "mode", "tokens a forward", "canvas tokens/s", "answer tokens/s",
        "llama.cpp answer tokens/s", "times", "1 row, times llama.cpp",
    ]  # fmt: skip
    found = list(lines(part))
    cells = [
        [
            line.shape, line.threads, line.weights, f"{line.weights_gb:.2f}",
            *(f"{ms:.1f}" if ms >= 1 else f"{ms:.2f}" for ms in line.rows.values()),
            f"{line.read:.0%}", line.mode, f"{line.per_forward:.2f}", f"{line.canvas:.1f}", f"{line.answer:.1f}",
            "" if line.peer_answer is None else f"{line.peer_answer:.1f} ({line.peer})",
            *("" if times is None else f"{times:.2f}" for times in (line.times, line.times_row)),
        ]
        for line in found
    ]  # fmt: skip
    some = next(iter(part["threads"].values()))
    kinds = [one for shape in some["shapes"].values() for one in shape["weights"].values()]
    notes = dict.fromkeys(f"llama.cpp was not measured: {one['failed']}" for one in kinds if one["failed"])
    clocks = "; ".join(f"of {one['clock']} on {counted(num, 'thread')}" for num, one in part["threads"].items())
    tables = [NOTE.format(**some, clocks=clocks), table(header, cells)] if found else []
    versions = ", ".join(f"{name} {version}" for name, version in some["versions"].items())
    return "\n\n".join([*tables, *filter(None, [deep_table(part)]), *notes, f"With {versions}."])


def family_bars(part: dict[str, Any]) -> Iterator[tuple[str, str, str, str, bool]]:
    """The targets of what was measured beside llama.cpp."""
    level = part["machine"]["instruction_set"]
    for line in lines(part):
        if line.times is None or line.times_row is None or line.shape.endswith("-tiny"):
            continue
        name = f"{line.shape}, {line.mode} {line.weights}, answer tokens/s against llama.cpp's ar {line.peer}"
        if line.block is None and line.weights in AR_BARS:
            figure = f"{line.times:.2f} end to end, {line.times_row:.2f} a token alone"
            yield name, line.threads, figure, f"{MIN_AR:g}", min(line.times, line.times_row) >= MIN_AR
        if line.block is not None and line.weights == BLOCK_BAR and level in MIN_BLOCK:
            yield name, line.threads, f"{line.times:.2f}", f"{MIN_BLOCK[level]:g}", line.times >= MIN_BLOCK[level]
    for model in deep_models(part):
        names = [name for name in model.seconds if name != "llama.cpp" and "llama.cpp" in model.seconds]
        for name in names if model.deep == DEEP and model.weights == DEEP_WEIGHTS else ():
            times = model.whole("llama.cpp") / model.whole(name)
            what = f"llada-8b, {name} {model.weights}, all layers extrapolated, against llama.cpp's whole canvas"
            yield what, model.threads, f"{times:.2f}", f"{MIN_DEEP:g}", times >= MIN_DEEP


def bars_of(part: dict[str, Any]) -> Iterator[tuple[str, float, float | None, float | None, str]]:
    """What the picture's bars are: name, answer tokens a second, llama.cpp's, times, color."""
    for line in lines(part):
        name = f"{line.shape}  {line.mode}\n{line.weights}, {counted(line.threads, 'thread')}"
        yield name, line.answer, line.peer_answer, line.times, BLUE if line.block is None else GREEN
    for model in deep_models(part):
        theirs = model.new / model.whole("llama.cpp") if "llama.cpp" in model.seconds else None
        for cache in model.seconds:
            if cache == "llama.cpp":
                continue
            name = f"llada, {model.deep} layers  {cache}\n{model.weights}, {counted(model.threads, 'thread')}"
            ours = model.new / model.whole(cache)
            yield name, ours, theirs, None if theirs is None else ours / theirs, ORANGE


def paint(figure: Any, part: dict[str, Any]) -> None:
    """Left: answer tokens a second beside llama.cpp. Right: what more rows cost."""
    found = list(bars_of(part))
    figure.set_size_inches(11, max(3.6, 1.6 + 0.42 * len(found)))
    left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
    for place, (_, ours, theirs, times, color) in enumerate(found):
        bars = [(0.2, ours, color, "" if times is None else f"  {times:.2f}x")]
        if theirs is not None:
            bars.append((-0.2, theirs, GRAY, ""))
        for offset, value, shade, note in bars:
            left.barh(place - offset, value, 0.38, color=shade)
            left.annotate(f" {_short(value)}{note}", (value, place - offset), va="center", fontsize=8)
    several = list(lines(part))
    kinds = list(dict.fromkeys((line.shape, line.weights) for line in several))
    for line in several:
        rows, color = list(line.rows), f"C{kinds.index((line.shape, line.weights))}"
        label = f"{line.shape} {line.weights}, {counted(line.threads, 'thread')}"
        style = "o-" if line.threads == "1" else "o:"
        shares = [ms / line.rows[1] for ms in line.rows.values()]
        right.plot(rows, shares, style, color=color, label=label, markersize=4)
    left.set_yticks(range(len(found)), [name for name, *_ in found], fontsize=8)
    left.invert_yaxis()
    left.margins(x=0.2)
    left.set_xlabel("answer tokens a second, end to end")
    left.set_title(
        "Daguerre (blue: ar, green: blocks, orange: full context), llama.cpp (gray)", loc="left", fontsize=10
    )
    by_powers(right, ROWS)
    right.set_ylim(bottom=0)
    right.set_xlabel("rows of a forward")
    right.set_title("Time of a forward, times that of one row", loc="left", fontsize=10)
    right.grid(alpha=0.25)
    if several:
        legend_of_figure(figure, right, 3, 8)
    else:
        right.remove()
    for panel in (left, right):
        panel.spines[["top", "right"]].set_visible(False)


def _short(value: float) -> str:
    """Three digits or more."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
