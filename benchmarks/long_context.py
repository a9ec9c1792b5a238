"""Exact caches of long texts: their memory, and the time of a token and of a block behind them.

    python benchmarks/long_context.py --out benchmarks/results/long-context.json

Random weights of the 34M shape (`evals.bench.job.YARDSTICK`). Each side runs in a process of its own: it reads 1,024
tokens; then its cache is doubled, by copies of its rows, up to 32,768, and at each length it measures

    memory   bytes of the cache, as computed from the shape and as they are allocated, and by how much the process grew
    a token  one forward of one clean row, which gives its logits and is cached (`ar`)
    a block  one forward of 16 noisy rows behind the cache, which gives their logits (`block`)
    a piece  one forward of 512 clean rows

Times are of processor time on one thread: medians of `--rounds`. `whole` is the peak memory of a process that reads all
of the text in one forward.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daguerre.evals.bench.job import YARDSTICK, random_config, random_model, random_tokens, torch_dtype
from daguerre.evals.machine import machine_facts, memory
from daguerre.evals.results import write_report
from daguerre.evals.tables import table
from daguerre.evals.workers import alone
from daguerre.models.backends.native_backend import NativeBackend
from daguerre.models.backends.native_cache import NativeCache, Page
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.forward import Backend, Forward, Hidden, KeyCache, Layout, Logits
from daguerre.view.charts import new_figure, titled

LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)
PIECE, BLOCK = 512, 16


@dataclass(frozen=True)
class BackendSide:
    """A backend with weights and cached numbers of a type; `int8`: the approximate cache."""

    backend: str
    dtype: str
    int8: bool = False


SIDES = {
    "native, bfloat16": BackendSide("native", "bfloat16"),
    "native, bfloat16, 8-bit cache": BackendSide("native", "bfloat16", True),
    "native, float32": BackendSide("native", "float32"),
    "torch, float32": BackendSide("torch", "float32"),
}


def made(side: BackendSide, positions: int) -> Backend:
    backbone = random_model(YARDSTICK, side.dtype, positions).backbone
    return NativeBackend(backbone) if side.backend == "native" else TorchBackend(backbone)


def clean(cache: KeyCache | None, tokens: np.ndarray, ask: Any) -> Forward:
    """Clean rows behind a cache, of which the last one is asked about."""
    past, num = 0 if cache is None else cache.length, len(tokens)
    layout = Layout(past + np.arange(num), np.arange(past + 1, past + num + 1, dtype=np.int32), num)
    return Forward(tokens, layout, cache, np.array([num - 1], dtype=np.int32), ask)


def block(cache: KeyCache, tokens: np.ndarray) -> Forward:
    """Noisy rows behind a cache, which see it and each other."""
    num = len(tokens)
    layout = Layout(cache.length + np.arange(num), np.full(num, cache.length + num, dtype=np.int32), 0)
    return Forward(tokens, layout, cache, np.arange(num, dtype=np.int32), Logits())


def timed(backend: Backend, forwards: Sequence[Forward], undo: KeyCache) -> float:
    """Median milliseconds of forwards, each behind the same cache."""
    length, took = undo.length, []
    for one in forwards:
        started = time.process_time()
        backend.forward([one])
        took.append(1e3 * (time.process_time() - started))
        undo.truncate(length)
    return statistics.median(took)


def doubled(cache: Any) -> None:
    """Behind the rows of a cache a copy of them: of a text that is no text, with as much memory and as much time."""
    rows = cache.copy(0, cache.length)
    cache.append([Page(page.memory.clone()) for page in rows] if isinstance(cache, NativeCache) else rows)


def grow(name: str, lengths: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """What a side costs at each length, each twice the one before."""
    torch.set_num_threads(1)
    side = SIDES[name]
    backend = made(side, max(lengths) + PIECE)
    tokens = random_tokens(backend.config, (max(lengths) + PIECE,))
    backend.forward([clean(None, tokens[:PIECE], Logits())])  # what is made once is made before it is counted
    gc.collect()
    before = memory()
    cache: Any = backend.cache(max(lengths) + PIECE, int8=side.int8)
    while cache.length < lengths[0]:
        backend.forward([clean(cache, tokens[cache.length : cache.length + PIECE], Hidden())])
    out: list[dict[str, Any]] = []
    for length in lengths:
        if cache.length < length:
            doubled(cache)
        assert cache.length == length
        gc.collect()
        allocated, grown = cache.num_bytes, memory() - before
        one = [clean(cache, tokens[length : length + 1], Logits()) for _ in range(rounds)]
        many = [block(cache, tokens[length : length + BLOCK]) for _ in range(rounds)]
        piece = [clean(cache, tokens[length : length + PIECE], Hidden())]
        each = 2 * sum(heads * width for heads, width in backend.config.key_shapes)
        row = {
            "length": length,
            "computed_bytes": each * length * (1 if side.int8 else torch_dtype(side.dtype).itemsize),
            "cache_bytes": allocated,
            "grown_bytes": grown,
            "token_ms": timed(backend, one, cache),
            "block_ms": timed(backend, many, cache),
            "piece_ms": timed(backend, piece, cache),
        }
        print(json.dumps(row), file=sys.stderr, flush=True)
        out.append(row)
    return out


def whole(name: str, lengths: Sequence[int]) -> dict[str, Any]:
    """The peak memory of a process that reads the longest text in one forward, beyond what it had before."""
    torch.set_num_threads(1)
    side, longest = SIDES[name], max(lengths)
    backend = made(side, longest)
    tokens = random_tokens(backend.config, (longest,))
    backend.forward([clean(None, tokens[:PIECE], Logits())])
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    cache = backend.cache(longest, int8=side.int8)
    backend.forward([clean(cache, tokens, Logits())])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"length": longest, "peak_bytes": 1024 * (peak - before), "seconds": time.process_time() - started}


def page(report: dict[str, Any], picture: str) -> str:
    """The tables, in Markdown."""
    facts, machine = report["shape"], report["machine"]
    lines = [
        "# Exact caches of long texts",
        f"Written by `{report['command']}`, {report['date']}, commit {machine['commit'] or 'not recorded'}. "
        f"{machine['processor']}, {machine['instruction_set']}, one thread, milliseconds of processor time; random "
        f"weights of the 34M shape ({facts['layers']} layers, {facts['kv_heads']} key heads of {facts['head_width']}). "
        "What it means: [docs/long-context.md](../../docs/long-context.md).",
    ]
    header = ("side", "tokens", "cache, computed", "allocated", "process grew by", "bytes a token")
    header += ("a token, ms", "a block of 16, ms", "a piece of 512, ms")
    rows = []
    for name, some in report["sides"].items():
        for row in some:
            sizes = [f"{row[key] / 1e6:.1f} MB" for key in ("computed_bytes", "cache_bytes", "grown_bytes")]
            times = [f"{row[key]:.1f}" for key in ("token_ms", "block_ms", "piece_ms")]
            rows.append([name, f"{row['length']:,}", *sizes, f"{row['cache_bytes'] / row['length']:,.0f}", *times])
    at_once = [
        [name, f"{row['length']:,}", f"{row['peak_bytes'] / 1e6:,.0f} MB", f"{row['seconds']:.0f}"]
        for name, row in report["whole"].items()
    ]
    whole_header = ("side", "tokens", "the process grew by, at most", "seconds")
    lines += [table(header, rows), "All of the text in one forward:", table(whole_header, at_once)]
    return "\n\n".join([*lines, f"![Memory and time by length]({picture})\n"])


def draw(report: dict[str, Any]) -> Any:
    """Memory, a token and a block against the length."""
    figure = new_figure(13.0, 4.2)
    panels = figure.subplots(1, 3)
    titles = (
        ("cache_bytes", 1e-6, "Memory of the cache, MB"),
        ("token_ms", 1.0, "One token, ms"),
        ("block_ms", 1.0, "A block of 16 rows, ms"),
    )
    for panel, (key, unit, title) in zip(panels, titles, strict=True):
        for name, rows in report["sides"].items():
            panel.plot([row["length"] for row in rows], [unit * row[key] for row in rows], marker="o", label=name)
        titled(panel, title, "cached tokens")
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.xaxis.set_major_formatter("{x:,.0f}")
    panels[0].legend(frameon=False, fontsize=8)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/long-context.json"))
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--whole", nargs="*", choices=SIDES, default=["native, bfloat16", "torch, float32"])
    parser.add_argument("--lengths", nargs="+", type=int, default=list(LENGTHS))
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    config = random_config(YARDSTICK, max(options.lengths))
    report = {
        "command": "python benchmarks/long_context.py",
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine_facts(),
        "shape": {"layers": config.num_layers, "kv_heads": config.num_kv_heads, "head_width": config.head_width},
        "sides": {name: alone(grow, name, options.lengths, options.rounds) for name in options.sides},
        "whole": {name: alone(whole, name, options.lengths) for name in options.whole},
    }
    write_report(options.out, report, page(report, options.out.with_suffix(".png").name), draw(report))


if __name__ == "__main__":
    main()
