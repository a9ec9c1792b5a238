"""How long published shapes take to load, and what memory they are then in, by the numbers of the weights.

    python benchmarks/family_load.py [--shapes qwen3-0.6b qwen3-1.7b] [--threads 2] [--out FILE]

Random weights of the shape, in the publisher's layout, in bfloat16, are written to a folder unless they are there, and
read once, so that the disk is warm; and so are files of llama.cpp's quantizer, where it is installed. Each load is a
process of its own. Memory is what a load and eight tokens of text
add to a process that has imported Daguerre and PyTorch. Linux only.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from daguerre.errors import MissingExtra
from daguerre.evals.bench.family_files import SHAPES, checkpoint, gguf_files
from daguerre.evals.machine import machine_facts, memory
from daguerre.evals.results import publish
from daguerre.evals.tables import table
from daguerre.evals.workers import alone

KINDS = ("bfloat16", "int8", "approximate_int4")
FILES = {"Q8_0": "int8", "Q4_0": "approximate_int4"}
"""Types of GGUF files, and the matrices that they become."""
MIB = 1 << 20


def resident() -> float:
    """MiB of this process."""
    return memory() / MIB


def once(folder: Path, kind: str, threads: int) -> dict[str, float]:
    """One load in this process."""
    torch.set_num_threads(threads)
    import daguerre
    from daguerre.models.backends.native_backend import can_compile

    can_compile()
    before, started, worked = resident(), time.perf_counter(), time.process_time()
    words = folder.parent / folder.stem.rpartition("-")[0] if folder.is_file() else None  # such a file has none
    quantize: Any = None if kind == "bfloat16" else kind
    model = daguerre.load(folder, dtype="bfloat16", quantize=quantize, tokenizer=words)
    took, worked = time.perf_counter() - started, time.process_time() - worked
    loaded, peak = resident() - before, memory("VmHWM") / MIB - before
    model.generate("hello world", 8, mode="ar")
    return {
        "seconds": took,
        "processor_seconds": worked,
        "weights": model.denoiser.num_bytes / MIB,
        "before": before,
        "loaded": loaded,
        "peak": peak,
        "running": resident() - before,
    }


def page(found: dict[str, Any]) -> str:
    """The figures in Markdown."""
    header = ("shape", "from", "matrices", "seconds", "processor's", "packed weights", "after loading")
    header += ("times the weights", "at most", "after eight tokens")
    rows = [
        [
            *(one[name] for name in ("shape", "from", "kind")),
            *(f"{one[name]:.1f}" for name in ("seconds", "processor_seconds")),
            *(f"{one['weights']:.0f}", f"{one['loaded']:.0f}", f"{one['loaded'] / one['weights']:.2f}"),
            *(f"{one[name]:.0f}" for name in ("peak", "running")),
        ]
        for one in found["loads"]
    ]
    return (
        f"# Loading published shapes\n\n{found['machine']['processor']}, {found['threads']} thread(s), "
        f"{found['cores']} cores, a warm disk. Memory in MiB, beyond that before; the pages of a GGUF file, which is "
        f"mapped, count as long as they are in memory.\n\n{table(header, rows, left=3)}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["qwen3-0.6b", "qwen3-1.7b"])
    parser.add_argument(
        "--parent", type=Path, default=Path(tempfile.gettempdir()) / "daguerre-families", help="where they are"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    loads = []
    for shape in options.shapes:
        folder, tried = checkpoint(shape, options.parent), list[tuple[str, Path, str]]()
        with suppress(MissingExtra):
            files = gguf_files(shape, list(FILES), options.parent)
            tried = [(kind, path, FILES[kind]) for kind, path in files.items()]
        for source, path, kind in [*(("a folder", folder, kind) for kind in KINDS), *tried]:
            for file in path.glob("*.safetensors") if path.is_dir() else [path]:
                with file.open("rb") as content:
                    while content.read(64 * MIB):
                        pass
            loads.append({"shape": shape, "from": source, "kind": kind, **alone(once, path, kind, options.threads)})
    found = {"machine": machine_facts(), "threads": options.threads, "cores": os.cpu_count(), "loads": loads}
    publish(options.out and options.out.with_name(f"{options.out.name}.json"), found, page(found))


if __name__ == "__main__":
    main()
