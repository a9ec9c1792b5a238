"""What part "families" found: one table, its bars, and one picture."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from daguerre.evals.bench.families import ROWS, WEIGHTS
from daguerre.evals.cells import table
from daguerre.evals.pictures import BLUE, GRAY, GREEN

MIN_AR = 1.0
MIN_BLOCK = {"amx": 2.2, "avx512": 1.6, "avx512_bf16": 1.6}
"""By instruction set: blocks, times llama.cpp's autoregression in 8 bits."""
BLOCK_BAR = "int8"
NOTE = (
    "Random weights of published shapes. Answer tokens a second are end to end: {new} tokens by `Model.generate` "
    "behind a prompt of {context}, the prompt included, beside llama.cpp's greedy text of the same lengths and type of "
    "weights. Shapes of blocks commit 2.5 tokens a forward by force, and a finished block is computed again as clean "
    "rows, in the forward that starts the next one; canvas tokens are the open positions that their forwards compute. "
    "What accuracy such a pace leaves is a matter of the real weights. A ratio is the median of those of the rounds; "
    "figures are of {clock}."
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
    """All that was measured."""
    for threads, found in part["threads"].items():
        for shape, of_shape in found["shapes"].items():
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
    notes = dict.fromkeys(f"llama.cpp was not measured: {line.failed}" for line in found if line.failed)
    versions = ", ".join(f"{name} {version}" for name, version in some["versions"].items())
    return "\n\n".join([NOTE.format_map(some), table(header, cells), *notes, f"With {versions}."])


def family_bars(part: dict[str, Any]) -> Iterator[tuple[str, str, str, str, bool]]:
    """The targets of what was measured beside llama.cpp."""
    level = part["machine"]["instruction_set"]
    for line in lines(part):
        if line.times is None or line.weights == "bfloat16" or line.shape.endswith("-tiny"):
            continue
        bar = MIN_AR
        if line.block is not None:
            if line.weights != BLOCK_BAR:
                continue
            bar = MIN_BLOCK.get(level, 0.0)
        name = f"{line.shape}, {line.mode} {line.weights}, answer tokens/s against llama.cpp's ar {line.peer}"
        yield name, line.threads, f"{line.times:.2f}", f"{bar:g}" if bar else "reported", line.times >= bar


def paint(figure: Any, part: dict[str, Any]) -> None:
    """Left: answer tokens a second beside llama.cpp. Right: what more rows cost."""
    found = list(lines(part))
    figure.set_size_inches(11, max(3.6, 1.6 + 0.42 * len(found)))
    left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
    for place, line in enumerate(found):
        color = BLUE if line.block is None else GREEN
        bars = [(0.2, line.answer, color, "" if line.times is None else f"  {line.times:.2f}x")]
        if line.peer_answer is not None:
            bars.append((-0.2, line.peer_answer, GRAY, ""))
        for offset, value, shade, note in bars:
            left.barh(place - offset, value, 0.38, color=shade)
            left.annotate(f" {value:.1f}{note}", (value, place - offset), va="center", fontsize=8)
        rows = list(line.rows)
        label = f"{line.shape} {line.weights}, {_threads(line.threads)}"
        right.plot(rows, [ms / line.rows[1] for ms in line.rows.values()], "o-", label=label, markersize=4)
    names = [f"{line.shape}  {line.mode}\n{line.weights}, {_threads(line.threads)}" for line in found]
    left.set_yticks(range(len(found)), names, fontsize=8)
    left.invert_yaxis()
    left.margins(x=0.2)
    left.set_xlabel("answer tokens a second, end to end")
    left.set_title("Daguerre (blue: ar, green: blocks) beside llama.cpp (gray)", loc="left", fontsize=10)
    right.set_xscale("log", base=2)
    right.set_xticks(ROWS, [str(rows) for rows in ROWS])
    right.set_ylim(bottom=0)
    right.set_xlabel("rows of a forward")
    right.set_title("Time of a forward, times that of one row", loc="left", fontsize=10)
    right.grid(alpha=0.25)
    right.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.17))
    for panel in (left, right):
        panel.spines[["top", "right"]].set_visible(False)


def _threads(threads: str) -> str:
    return "1 thread" if threads == "1" else f"{threads} threads"
