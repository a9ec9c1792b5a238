"""What was aimed at, beside what a report of `daguerre bench` found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from daguerre.evals.bench.context import growth

LARGE = 15_000_000
"""Parameters from which a model counts as one of a GPU's size."""
INFILL_MS = {"random weights": 60.0}
OWN_INFILL_MS = 30.0
Bar = tuple[str, str, str, str, bool]
"""What, threads, the figure, the bar, whether it is met."""


def bars(report: dict[str, Any]) -> list[Bar]:
    """All whose parts were measured, in the order they were asked for."""
    return [bar for name, rows in BARS.items() if name in report for bar in rows(report[name])]


def _rows(part: dict[str, Any]) -> Iterator[Bar]:
    for threads, most in (("1", 1.5), ("2", 1.7)):
        if threads in part["threads"]:
            (point,) = (p for p in part["threads"][threads]["curve"] if p["rows"] == 32)
            ratio = point["forward_ms"] / point["products_ms"]
            name = "32-row forward, times its bare packed products"
            yield name, threads, f"{ratio:.2f}", f"{most} or less", ratio <= most


def best_block(sides: dict[str, Any], int8: bool = False) -> str | None:
    """The fastest of our block sizes, exact or with 8-bit matrices."""
    own = [name for name in sides if name.startswith("block ") and name.endswith("int8") == int8]
    return max(own, key=lambda name: sides[name]["tokens_per_second"]) if own else None


def _peers(part: dict[str, Any]) -> Iterator[Bar]:
    least_ar = {"1": 0.6, "2": 0.55}
    for threads, found in part["threads"].items():
        sides = found["sides"]
        pairs: list[tuple[str, str, float | None]] = [("ar", "llama.cpp BF16", least_ar.get(threads))]
        for block in (best_block(sides) or "", best_block(sides, int8=True) or ""):
            pairs += [(block, "transformers", 7.0), (block, "LLaDA loop", 15.0), (block, "llama.cpp Q8_0", 1.0)]
        for own, other, least in pairs:
            if own in sides and other in sides and least is not None:
                whole, behind = ratios(sides[own], sides[other])
                figure = f"{whole:.2f} end to end, {behind:.2f} behind the first tokens"
                yield f"{own} against {other}", threads, figure, f"{least:g}", min(whole, behind) >= least


def ratios(own: dict[str, Any], other: dict[str, Any]) -> tuple[float, float]:
    """Times as fast, end to end and behind the first tokens."""
    names = ("tokens_per_second", "decode_tokens_per_second")
    whole, behind = (float(own[name] / other[name]) for name in names)
    return whole, behind


def _modes(part: dict[str, Any]) -> Iterator[Bar]:
    for threads, found in part["threads"].items():
        sides, completion = found["sides"], found["completion"]
        least = (2.0, 2.0) if completion["parameters"] >= LARGE else (1.4, 1.5)
        if {"ar", "speculative"} <= set(sides):
            gain, same = ratios(sides["speculative"], sides["ar"])[0], sides["speculative"]["tokens_as_ar"]
            figure = f"{gain:.2f}, {same:.0%} of the text identical"
            yield (
                "self-speculation against ar, 128 new tokens",
                threads,
                figure,
                f"{least[0]:g}, all",
                (gain >= least[0] and same == 1),
            )
        ar = completion["rows"][0]
        best = [row for row in completion["rows"] if row["label"] == completion["best_no_worse"]]
        gain = best[0]["tokens_per_second"] / ar["tokens_per_second"] if best else 0.0
        figure = f"{gain:.2f} ({best[0]['label']})" if best else "no setting is no worse"
        name = "best setting against ar, next-line completion, accuracy no lower"
        yield name, threads, figure, f"{least[1]:g}", gain >= least[1]


def _context(part: dict[str, Any]) -> Iterator[Bar]:
    for threads, found in part["threads"].items():
        rows = found["rows"]
        first, last = (pick(row["context"] for row in rows) for pick in (min, max))
        for heads, most in ((2, 1.5), (8, 2.2)):
            for mode in dict.fromkeys(row["mode"] for row in rows if row["kv_heads"] == heads):
                grown = growth(rows, mode, heads)
                name = f"cost of a token, context {first} to {last:,}, {heads} KV heads, {mode}"
                yield name, threads, f"{grown:.2f}", f"{most:g} or less", grown <= most


def _infill(part: dict[str, Any]) -> Iterator[Bar]:
    for threads, found in part["threads"].items():
        for figure in found if threads == "2" else ():
            most = INFILL_MS.get(figure["model"], OWN_INFILL_MS)
            name = f"line infill, prefix and suffix cached, 16 new: {figure['model']}, {figure['policy']}"
            value = f"{figure['ms']:.0f} ms, {figure['forwards']:g} forwards"
            yield name, threads, value, f"{most:g} ms", figure["ms"] <= most


BARS = {"rows": _rows, "peers": _peers, "modes": _modes, "context": _context, "infill": _infill}
