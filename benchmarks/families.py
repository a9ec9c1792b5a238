"""Forwards of published shapes on this processor's native backend, by the numbers of the weights, and llama.cpp's.

    python benchmarks/families.py [--shape qwen3-0.6b] [--threads 1] [--out benchmarks/results/families-qwen3-0.6b]

Random weights of the shape, in the publisher's layout (`family_files.py`), are written to --folder unless they are
there. A forward draws a token, greedily, for each of 1, 4 or 8 rows behind CONTEXT cached ones: one row is what mode
"ar" computes for a token, several are what a block computes. Everything is timed once in every round, in turn; a figure
is the median over rounds. Weights that a forward reads are compared with how fast this machine reads memory. llama.cpp
is measured where llama-cpp-python is installed, with files by its own quantizer, and one row alone.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from family_files import SHAPES, report, write_checkpoint

from daguerre.evals.bench.gguf_file import write_gguf
from daguerre.evals.bench.peers import LlamaCpp
from daguerre.evals.bench.rows import behind, cached
from daguerre.evals.machine import machine_facts
from daguerre.model import load
from daguerre.models.forward import Backend, Draws, Rules
from daguerre.models.loading import load_folder
from daguerre.models.processor import instruction_set

CONTEXT, ROWS = 64, (1, 4, 8)
MIN_SECONDS = 0.3
KINDS: dict[str, tuple[str, Any]] = {
    "float32": ("float32", None),
    "bfloat16": ("bfloat16", None),
    "int8": ("bfloat16", "int8"),
    "approximate_int4": ("bfloat16", "approximate_int4"),
}
LLAMA = {"Q8_0": 7, "Q4_0": 2}
"""llama.cpp's types of files, and its numbers of them."""
PEER = {"int8": "Q8_0", "approximate_int4": "Q4_0"}
Step = Callable[[], object]


def seconds(step: Step, threads: int) -> float:
    """The mean of as many runs as fit in MIN_SECONDS, at least two: on one thread the processor's time, without what
    other programs take of it.
    """
    clock = time.process_time if threads == 1 else time.perf_counter
    num, started = 0, clock()
    while True:
        step()
        num, took = num + 1, clock() - started
        if took >= MIN_SECONDS and num > 1:
            return took / num


def forward_of(backend: Backend, rows: int) -> Step:
    """A forward that draws a token for each row, and leaves its cache as it is."""
    tokens = np.random.default_rng(rows).integers(300, backend.config.vocab_size, rows)
    one = behind(cached(backend, CONTEXT), tokens)
    one.ask = Draws(Rules(), CONTEXT + 1 + np.arange(rows))
    return partial(backend.forward, [one])


def reading(num_bytes: int = 1 << 30) -> tuple[Step, int]:
    """What reads memory and does next to nothing else."""
    block = torch.ones(num_bytes // 8, dtype=torch.int64)
    return partial(torch.sum, block), num_bytes


def quantized(folder: Path, at: Path) -> dict[str, Path]:
    """The checkpoint as files of llama.cpp's own quantizer, in a folder."""
    import llama_cpp

    whole = at / "whole.gguf"
    write_gguf(load_folder(folder, torch.bfloat16).backbone, whole, "BF16")
    found = {}
    for name, number in LLAMA.items():
        options = llama_cpp.llama_model_quantize_default_params()
        options.ftype = number
        found[name] = at / f"{name}.gguf"
        code = llama_cpp.llama_model_quantize(str(whole).encode(), str(found[name]).encode(), ctypes.byref(options))
        if code:
            raise SystemExit(f"llama.cpp could not write {name} (code {code})")
    whole.unlink()
    return found


def llama_cpp(folder: Path, threads: int) -> tuple[dict[str, LlamaCpp], dict[str, int]]:
    """llama.cpp with the same weights, and the bytes of its files; nothing where it is not installed."""
    try:
        import llama_cpp  # noqa: F401
    except ImportError:
        print("llama.cpp is left out: install llama-cpp-python", flush=True)
        return {}, {}
    with tempfile.TemporaryDirectory(dir=folder) as at:
        files = quantized(folder, Path(at))
        sizes = {name: path.stat().st_size for name, path in files.items()}
        return {name: LlamaCpp(path, threads, CONTEXT + 16) for name, path in files.items()}, sizes


def measure(shape: str, folder: Path, threads: int, rounds: int, kinds: Sequence[str]) -> dict[str, Any]:
    """Seconds of every step in every round, and the bytes of weights of each kind."""
    if not (folder / "config.json").exists():
        write_checkpoint(shape, folder)
    peers, sizes = llama_cpp(folder, threads)
    torch.set_num_threads(threads)
    backends: dict[str, Any] = {}
    for name in kinds:
        dtype, quantize = KINDS[name]
        model = load(folder, dtype=dtype, quantize=quantize, backend="native")
        backends[name] = model.denoiser.backend
    torch.set_num_threads(threads)
    read, num_read = reading()
    steps: dict[str, Step] = {"reading": read}
    for name, backend in backends.items():
        steps |= {f"{name} {rows}": forward_of(backend, rows) for rows in ROWS}
    prompt = np.random.default_rng(0).integers(300, 1000, CONTEXT).tolist()
    steps |= {f"llama.cpp {name}": engine.one_row(prompt) for name, engine in peers.items()}
    took: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", flush=True)
        for name, step in steps.items():
            took[name].append(seconds(step, threads))
    return {
        "shape": shape,
        "parameters": backends[kinds[0]].backbone.num_parameters,
        "threads": threads,
        "context": CONTEXT,
        "instruction_set": instruction_set(),
        "read_bytes": num_read,
        "bytes": {name: backend.num_bytes for name, backend in backends.items()},
        "llama_cpp_bytes": sizes,
        "seconds": took,
        "machine": machine_facts(torch.device("cpu")),
    }


def table(found: dict[str, Any]) -> str:
    """The figures in Markdown."""
    median = {name: statistics.median(each) for name, each in found["seconds"].items()}
    speed = found["read_bytes"] / median["reading"] / 1e9
    clock = "the processor's time" if found["threads"] == 1 else "wall time"
    lines = [
        f"# {found['shape']}: forwards by the numbers of the weights",
        "",
        f"{found['parameters'] / 1e6:.0f}M random weights of the published shape, {found['threads']} thread(s), "
        f"{found['instruction_set']} on {found['machine']['processor']}, {found['context']} cached tokens, medians of "
        f"{len(found['seconds']['reading'])} interleaved rounds of {clock}. Memory is read at {speed:.1f} GB/s.",
        "",
        "| matrices | weights, GB | ms, 1 row | tokens/s, `ar` | GB/s | of reading | ms, 4 rows | ms, 8 rows | "
        "8 rows, times 1 | times llama.cpp |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, size in found["bytes"].items():
        one, four, eight = (median[f"{name} {rows}"] for rows in ROWS)
        rate, peer = size / one / 1e9, PEER.get(name)
        against = ""
        if peer and f"llama.cpp {peer}" in median:
            both = zip(found["seconds"][f"llama.cpp {peer}"], found["seconds"][f"{name} 1"], strict=True)
            against = f"{statistics.median(theirs / ours for theirs, ours in both):.2f} ({peer})"
        lines.append(
            f"| {name} | {size / 1e9:.2f} | {1e3 * one:.1f} | {1 / one:.1f} | {rate:.1f} | {rate / speed:.0%} | "
            f"{1e3 * four:.1f} | {1e3 * eight:.1f} | {eight / one:.2f} | {against} |"
        )
    for name, size in found["llama_cpp_bytes"].items():
        one = median[f"llama.cpp {name}"]
        rate = size / one / 1e9
        lines.append(
            f"| llama.cpp {name} | {size / 1e9:.2f} | {1e3 * one:.1f} | {1 / one:.1f} | {rate:.1f} | "
            f"{rate / speed:.0%} | | | | |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.gettempdir()) / f"daguerre-{options.shape}"
    found = measure(options.shape, folder, options.threads, options.rounds, options.kinds)
    report(options.out, found, table(found))


if __name__ == "__main__":
    main()
