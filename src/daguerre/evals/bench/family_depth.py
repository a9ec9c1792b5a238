"""What part "families" found of a shape with full context, LLaDA's: seconds of a text with few layers, and with all of
the published model's, extrapolated; beside llama.cpp's non-causal decode.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from daguerre.evals.bench.family_files import WEIGHTS
from daguerre.evals.tables import table

EXACT = "exact"
DEEP_NOTE = (
    "LLaDA-8B's shape: {full_new} tokens behind a prompt of {context} in blocks of {full_block}, 4 tokens a forward by "
    "force. `exact` computes the whole canvas in every forward; the caches named approximate read keys and values that "
    "are out of date. llama.cpp computes the whole canvas, and the logits of all of it, in as many steps, as its "
    "diffusion example does; choosing tokens is not timed. Canvas tokens count all of the canvas in every step. "
    "Seconds of all layers are those of the fewer layers and what the two shapes differ by."
)


@dataclass(frozen=True)
class Deep:
    """A model with full context, of which two shapes with fewer layers were measured: seconds of a text, by the cache
    that wrote it and by the layers, and those of llama.cpp's steps, as many.
    """

    threads: str
    weights: str
    deep: int
    forwards: int
    new: int
    canvas: int
    seconds: dict[str, dict[int, float]]

    def whole(self, name: str) -> float:
        """Seconds with all layers: a layer takes what the two shapes differ by."""
        (few, low), (many, high) = sorted(self.seconds[name].items())
        return low + (self.deep - few) * (high - low) / (many - few)


def deep_models(part: dict[str, Any]) -> Iterator[Deep]:
    """All of which two shapes were measured."""
    for threads, found in part["threads"].items():
        shapes = [shape for shape in found["shapes"].values() if shape["deep"]]
        for deep, weights in dict.fromkeys(
            (shape["deep"], weights) for shape in shapes for weights in shape["weights"]
        ):
            pair = [s for s in shapes if s["deep"] == deep and weights in s["weights"]]
            if len(pair) == 2:
                yield _deep(threads, found, weights, pair)


def _deep(threads: str, found: dict[str, Any], weights: str, pair: list[dict[str, Any]]) -> Deep:
    seconds: dict[str, dict[int, float]] = {}
    some = pair[0]["weights"][weights]
    for shape in pair:
        for name, took in shape["weights"][weights]["seconds"].items():
            middle = statistics.median(took)
            if name.endswith("text"):
                seconds.setdefault(name.removesuffix("text").strip() or EXACT, {})[shape["layers"]] = middle
            elif name == "llama.cpp canvas":
                seconds.setdefault("llama.cpp", {})[shape["layers"]] = some["forwards"] * middle
    return Deep(threads, weights, pair[0]["deep"], some["forwards"], found["full_new"], some["canvas"], seconds)


def deep_table(part: dict[str, Any]) -> str:
    """Seconds of a text with few layers and with all; nothing where two shapes were not measured."""
    rows, some = [], next(iter(part["threads"].values()))
    for one in deep_models(part):
        for name in one.seconds:
            whole, theirs = one.whole(name), one.whole("llama.cpp") if "llama.cpp" in one.seconds else None
            rows.append([
                f"{name}, {WEIGHTS[one.weights] if name == 'llama.cpp' else one.weights}", one.threads,
                ", ".join(f"{layers}: {took:.2f}" for layers, took in sorted(one.seconds[name].items())),
                f"{whole:.1f} ({one.deep})", f"{one.canvas / whole:.1f}", f"{one.new / whole:.2f}",
                "" if theirs is None or name == "llama.cpp" else f"{theirs / whole:.2f}",
            ])  # fmt: skip
    header = ["LLaDA's shape", "threads", "s, by layers", "s, extrapolated", "canvas tokens/s", "answer tokens/s",
              "times llama.cpp"]  # fmt: skip
    return f"{DEEP_NOTE.format_map(some)}\n\n{table(header, rows)}" if rows else ""
