"""The targets of `daguerre bench`, with the figures of a report."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

from daguerre.evals.bench.context import growth
from daguerre.evals.bench.family_report import family_bars
from daguerre.evals.bench.job import RANDOM
from daguerre.evals.bench.peers import LLAMA_TYPES
from daguerre.evals.bench.real_report import real_bars
from daguerre.evals.bench.rounds import DECODE_RATE, RATE
from daguerre.evals.bench.rows import PRODUCTS

LARGE = 15_000_000
"""Parameters from which a model counts as large."""
MAX_TIMES_PRODUCTS = {"1": 1.5, "2": 1.7}
MIN_TIMES_TORCH = 0.95
MAX_EIGHT_ROWS = {"avx2": {"native int8": 2.0}}
"""By instruction set and side: eight rows, times one."""
MIN_TIMES_LLAMA = 1.0
BATCH_GAIN = dict.fromkeys(("avx512", "avx512_vnni", "avx512_bf16", "amx"), 5.0)
OTHER_BATCH_GAIN = 3.0
BLOCK_BATCH_GAIN = 1.8
MAX_DRIVER_OVERHEAD = 0.03
MAX_PYTHON_MS = 0.12
MAX_INFILL_MS = {RANDOM: 60.0}
MAX_OTHER_INFILL_MS = 30.0
Bar = tuple[str, str, str, str, bool]
"""What was measured, threads, the figure, the target, whether it is met."""
Sides = dict[str, Any]


def bars(report: dict[str, Any]) -> list[Bar]:
    """All whose parts were measured, in the order of BARS."""
    return [bar for name, make in BARS.items() if name in report for bar in make(report[name])]


def ratios(own: dict[str, Any], other: dict[str, Any]) -> tuple[float, float]:
    """How many times as fast, end to end and after the first tokens: medians of the ratios of the rounds."""
    rounds = ((own["rounds"][name], other["rounds"][name]) for name in (RATE, DECODE_RATE))
    whole, behind = (statistics.median(a / b for a, b in zip(*pair, strict=True)) for pair in rounds)
    return whole, behind


def best_block(sides: Sides, int8: bool = False) -> str | None:
    """The fastest of Daguerre's block sizes, exact or with 8-bit matrices."""
    names = [name for name in sides if name.startswith("block ") and name.endswith("int8") == int8]
    return max(names, key=lambda name: sides[name][RATE]) if names else None


def _against(sides: Sides, own: str, other: str, threads: str, bar: float, prefix: str = "") -> Iterator[Bar]:
    """One side beside another, where both were measured."""
    if own in sides and other in sides:
        whole, behind = ratios(sides[own], sides[other])
        figure = f"{whole:.2f} end to end, {behind:.2f} after the first tokens"
        yield f"{prefix}{own} against {other}", threads, figure, f"{bar:g}", min(whole, behind) >= bar


def _against_llama(sides: Sides, native: str, threads: str, prefix: str) -> Iterator[Bar]:
    """`ar` beside llama.cpp with the same weights, in each type; `ar` alone is in the native one."""
    for dtype, name in LLAMA_TYPES.items():
        own = "ar" if dtype == native else f"ar {dtype}"
        yield from _against(sides, own, f"llama.cpp {name}", threads, MIN_TIMES_LLAMA, prefix)


def _rows(part: dict[str, Any]) -> Iterator[Bar]:
    max_eight = MAX_EIGHT_ROWS.get(part["machine"]["instruction_set"], {})
    for threads, found in part["threads"].items():
        sides = found["models"][RANDOM]["sides"]
        if PRODUCTS in sides and threads in MAX_TIMES_PRODUCTS and 32 in sides[PRODUCTS]["rows"]:
            place, bar = sides[PRODUCTS]["rows"].index(32), MAX_TIMES_PRODUCTS[threads]
            times = sides[f"native {part['machine']['dtype']}"]["ms"][place] / sides[PRODUCTS]["ms"][place]
            name = "32-row forward, times its bare packed products"
            yield name, threads, f"{times:.2f}", f"{bar} or less", times <= bar
        for model, of_model in found["models"].items():
            for name, side in of_model["sides"].items():
                if name.startswith("native "):
                    yield from _native_rows(f"{model}, {name}", threads, side, max_eight.get(name))


def _native_rows(what: str, threads: str, side: dict[str, Any], max_eight: float | None) -> Iterator[Bar]:
    """The bars of one of the native backend's types."""
    times, rows = min(zip(side["times_torch"], side["rows"], strict=True))
    title = f"{what}: times as fast as PyTorch's float32 modules, 1 to {max(side['rows'])} rows"
    yield title, threads, f"{times:.2f}, the lowest, at {rows}", f"{MIN_TIMES_TORCH:g}", times >= MIN_TIMES_TORCH
    if max_eight is not None and 8 in side["rows"]:
        times = side["times_one_row"][side["rows"].index(8)]
        yield f"{what}: 8 rows, times one row", threads, f"{times:.2f}", f"{max_eight:g} or less", times <= max_eight


def _batch(part: dict[str, Any]) -> Iterator[Bar]:
    ar_gain = BATCH_GAIN.get(part["machine"]["instruction_set"], OTHER_BATCH_GAIN)
    for threads, found in part["threads"].items():
        for model, of_model in found["models"].items():
            for mode, figures in of_model["modes"].items():
                min_gain, max_python = (ar_gain, MAX_PYTHON_MS) if mode == "ar" else (BLOCK_BATCH_GAIN, None)
                for name, *rest in _together(figures, found["requests"], min_gain, max_python):
                    yield f"{model}, {mode}: {name}", threads, *rest


def _together(
    figures: dict[str, Any], requests: int, min_gain: float, max_python: float | None
) -> Iterator[tuple[str, str, str, bool]]:
    """The bars of one model and mode, without its name and threads."""
    gain, behind, overhead = (figures[name] for name in ("gain", "gain_behind_first", "driver_overhead"))
    name, figure = f"{requests} requests at once, times the tokens a second of one", f"{gain:.2f} end to end"
    yield name, f"{figure}, {behind:.2f} after the first tokens", f"{min_gain:g} end to end", gain >= min_gain
    name, bar = "one request by `Together`, longer than by `drive`", f"{MAX_DRIVER_OVERHEAD:.0%} or less"
    yield name, f"{overhead:+.1%}", bar, overhead <= MAX_DRIVER_OVERHEAD
    if max_python is not None:
        python, bar = figures["python_ms"], f"{max_python:g} ms or less"
        yield "Python for a step of one request", f"{python:.3f} ms", bar, python <= max_python


def _peers(part: dict[str, Any]) -> Iterator[Bar]:
    for threads, found in part["threads"].items():
        sides = found["sides"]
        yield from _against_llama(sides, part["machine"]["dtype"], threads, "")
        for block in filter(None, (best_block(sides), best_block(sides, int8=True))):
            for other, bar in (("transformers", 7.0), ("LLaDA loop", 15.0), ("llama.cpp Q8_0", 1.0)):
                yield from _against(sides, block, other, threads, bar)


def _modes(part: dict[str, Any]) -> Iterator[Bar]:
    for threads, found in part["threads"].items():
        sides, completion = found["sides"], found["completion"]
        large = completion["parameters"] >= LARGE
        yield from _against_llama(sides, part["machine"]["dtype"], threads, f"{part['settings']['model']}: ")
        if {"ar", "speculative"} <= set(sides):
            gain, same = ratios(sides["speculative"], sides["ar"])[0], sides["speculative"]["tokens_as_ar"]
            figure, bar = f"{gain:.2f}, {same:.0%} of the text identical", 2.0 if large else 1.4
            name = "self-speculation against ar, 128 new tokens"
            yield name, threads, figure, f"{bar:g}, all", gain >= bar and same == 1
        ar = completion["rows"][0]
        best = [row for row in completion["rows"] if row["label"] == completion["best_no_worse"]]
        gain, bar = best[0][RATE] / ar[RATE] if best else 0.0, 2.0 if large else 1.5
        figure = f"{gain:.2f} ({best[0]['label']})" if best else "no setting is no worse"
        name = "best setting against ar, next-line completion, accuracy no lower"
        yield name, threads, figure, f"{bar:g}", gain >= bar


def _context(part: dict[str, Any]) -> Iterator[Bar]:
    for threads, found in part["threads"].items():
        rows = found["rows"]
        first, last = (pick(row["context"] for row in rows) for pick in (min, max))
        for heads, bar in ((2, 1.5), (8, 2.2)):
            for mode in dict.fromkeys(row["mode"] for row in rows if row["kv_heads"] == heads):
                times = growth(rows, mode, heads)
                name = f"cost of a token, context {first} to {last:,}, {heads} KV heads, {mode}"
                yield name, threads, f"{times:.2f}", f"{bar:g} or less", times <= bar


def _infill(part: dict[str, Any]) -> Iterator[Bar]:
    for threads, found in part["threads"].items():
        for figure in found if threads == "2" else ():
            bar = MAX_INFILL_MS.get(figure["model"], MAX_OTHER_INFILL_MS)
            name = f"line infill, prefix and suffix cached, 16 new: {figure['model']}, {figure['policy']}"
            value = f"{figure['ms']:.0f} ms, {figure['forwards']:g} forwards"
            yield name, threads, value, f"{bar:g} ms", figure["ms"] <= bar


BARS: dict[str, Callable[[dict[str, Any]], Iterator[Bar]]] = {
    "rows": _rows,
    "batch": _batch,
    "peers": _peers,
    "modes": _modes,
    "context": _context,
    "infill": _infill,
    "families": family_bars,
    "real": real_bars,
}
