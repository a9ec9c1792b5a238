"""Long prompts: how fast the native backend reads them beside bare products, and what 32,768 tokens of context take.

    python benchmarks/long_prompts.py [--shape qwen3-0.6b] [--rounds 5] [--threads 1] [--folder DIR]

Random weights of a published shape. "prompt" is one forward of all rows of a prompt into an empty cache, which asks for
the last row alone; "products" are the products of the same rows with all matrices but the vocabulary's, packed by
oneDNN, in bfloat16; "attention" is PyTorch's causal attention of the same heads and rows in bfloat16. Then a cache is
filled with random numbers up to a length, and a token and a block of 8 behind it are timed. One thread: processor time.
Writes benchmarks/results/long-prompts.*
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daguerre.evals.bench.families import model_of
from daguerre.evals.bench.family_files import FamilyShape, checkpoint, config_of, shape_of
from daguerre.evals.bench.rows import behind
from daguerre.evals.machine import machine_facts, measured_on, memory
from daguerre.evals.results import write_report
from daguerre.evals.tables import table
from daguerre.models.backends.native_cache import NativeCache, Page
from daguerre.models.forward import Backend, Draws, Forward, Hidden, Layout, Rules

PROMPTS = (512, 1024, 2048, 4096)
CONTEXTS = (1024, 4096, 16_384, 32_760)
BLOCK = 8
WEIGHTS = ("bfloat16", "int8")
CACHES = {"bfloat16": False, "int8": True}
HEAD = 128
RESULTS = Path(__file__).resolve().parent / "results" / "long-prompts.json"
Step = Callable[[], object]


def longer(name: str, parent: Path) -> Path:
    """The shape's folder, with room for the longest context."""
    folder = checkpoint(name, parent)
    made = parent / f"{name}-long"
    made.mkdir(exist_ok=True)
    for file in folder.iterdir():
        if not (made / file.name).exists() and file.name != "config.json":
            os.link(file, made / file.name)
    config = config_of(name) | {"max_position_embeddings": 32_768}
    (made / "config.json").write_text(json.dumps(config))
    return made


def prompt_forward(backend: Backend, num: int) -> Step:
    """A whole prompt into an empty cache."""
    tokens = np.random.default_rng(0).integers(300, 1000, num)
    layout = Layout(np.arange(num), np.arange(1, num + 1, dtype=np.int32), num)

    def step() -> None:
        last = np.array([num - 1], dtype=np.int32)
        backend.forward([Forward(tokens, layout, backend.cache(num), last, Hidden())])

    return step


def products(shape: FamilyShape, num: int) -> Step:
    """The products of one layer's matrices with so many rows, once for each layer."""
    dtype = torch.bfloat16
    sizes = [((shape.heads + 2 * shape.kv_heads) * HEAD, shape.width), (shape.width, shape.heads * HEAD)]
    sizes += [(2 * shape.mlp, shape.width), (shape.width, shape.mlp)]
    matrices = [torch.ops.mkldnn._reorder_linear_weight(torch.randn(size, dtype=dtype), num) for size in sizes]
    rows = [torch.randn(num, inner, dtype=dtype) for _, inner in sizes]

    def step() -> None:
        with torch.inference_mode():
            for _ in range(shape.layers):
                for matrix, each in zip(matrices, rows, strict=True):
                    torch.ops.mkldnn._linear_pointwise(each, matrix, None, "none", [], "")

    return step


def attention(shape: FamilyShape, num: int) -> Step:
    """Causal attention of all layers."""
    query, key = (torch.randn(1, heads, num, HEAD, dtype=torch.bfloat16) for heads in (shape.heads, shape.kv_heads))

    def step() -> None:
        with torch.inference_mode():
            for _ in range(shape.layers):
                torch.nn.functional.scaled_dot_product_attention(query, key, key, is_causal=True, enable_gqa=True)

    return step


def filled(backend: Backend, num: int, int8: bool) -> NativeCache:
    """A cache of so many rows of random numbers."""
    cache = backend.cache(num + BLOCK + 1, int8=int8)
    assert isinstance(cache, NativeCache)
    cache.address(num)
    drawn = np.random.default_rng(0)
    for number, page in enumerate(cache._pages):
        bits = drawn.integers(0, 256, page.memory.nbytes, dtype=np.uint8)
        if not int8:  # small numbers in either type: the exponents of bfloat16 are kept near one
            bits.view(np.uint16)[:] = (bits.view(np.uint16) & 0x80FF) | 0x3D00
        else:
            scales = cache._sizes[0] + cache._sizes[1]
            bits[scales:].view(np.float32)[:] = 0.01
        cache._put(number, Page(torch.from_numpy(bits)))
    cache.length = num
    return cache


def behind_it(backend: Backend, cache: NativeCache, rows: int) -> Step:
    """A forward that draws a token for each of some rows behind a cache."""
    one = behind(cache, np.random.default_rng(rows).integers(300, 1000, rows))
    one.ask = Draws(Rules(), cache.length + 1 + np.arange(rows))
    return partial(backend.forward, [one])


def timed(steps: Mapping[str, Step], rounds: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Seconds of each, in turn."""
    took: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 1):
        for name, step in steps.items():
            began = clock()
            step()
            if number:  # the first one warms up
                took[name].append(clock() - began)
    return took


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    return statistics.median(one / other for one, other in zip(above, below, strict=True))


def command(given: argparse.Namespace) -> str:
    """What was called, without the folder's name."""
    return " ".join("DIR" if one == str(given.folder) else one for one in sys.argv)


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Everything, as JSON."""
    torch.set_num_threads(given.threads)
    clock = time.process_time if given.threads == 1 else time.perf_counter
    shape, folder = shape_of(given.shape), longer(given.shape, given.folder)
    found: dict[str, Any] = {
        "machine": machine_facts(),
        "command": command(given),
        "shape": given.shape,
    }
    found |= {"parameters": None, "clock": clock.__name__, "rounds": given.rounds, "prompts": {}, "contexts": {}}
    models = {weights: model_of(folder, weights) for weights in WEIGHTS}
    found["weights_mb"] = {weights: model.denoiser.num_bytes / 1e6 for weights, model in models.items()}
    for num in given.prompts:
        steps = {f"prompt {kind}": prompt_forward(one.denoiser.backend, num) for kind, one in models.items()}
        steps |= {"products": products(shape, num), "attention": attention(shape, num)}
        took = timed(steps, given.rounds, clock)
        both = [one + other for one, other in zip(took["products"], took["attention"], strict=True)]
        found["prompts"][num] = {
            "seconds": {name: statistics.median(times) for name, times in took.items()},
            "rate_of_products": {kind: ratio(took["products"], took[f"prompt {kind}"]) for kind in WEIGHTS},
            "rate_of_both": {kind: ratio(both, took[f"prompt {kind}"]) for kind in WEIGHTS},
        }
        print(num, found["prompts"][num], flush=True)
    for cache_type, int8 in CACHES.items():
        for num in given.contexts:
            backend = models["int8"].denoiser.backend
            before = memory() / 1e6
            cache = filled(backend, num, int8)
            grown = memory() / 1e6 - before
            steps = {"token": behind_it(backend, cache, 1), "block": behind_it(backend, cache, BLOCK)}
            took = timed(steps, given.rounds, clock)
            found["contexts"].setdefault(cache_type, {})[num] = {
                "cache_mb": cache.num_bytes / 1e6,
                "resident_mb": grown,
                "process_mb": memory() / 1e6,
                "seconds": {name: statistics.median(times) for name, times in took.items()},
            }
            print(cache_type, num, found["contexts"][cache_type][num], flush=True)
            del cache, steps
    return found


def table_of_prompts(found: dict[str, Any]) -> str:
    header = ("tokens", "weights", "seconds", "tokens a second", "of the products' speed", "of products and attention")
    rows = []
    for num, one in found["prompts"].items():
        for kind in WEIGHTS:
            took = one["seconds"][f"prompt {kind}"]
            rates = [f"{one[name][kind]:.2f}" for name in ("rate_of_products", "rate_of_both")]
            rows.append([num, kind, f"{took:.2f}", f"{int(num) / took:.0f}", *rates])
    return table(header, rows, left=2)


def table_of_contexts(found: dict[str, Any]) -> str:
    header, rows = ("cache", "tokens", "cache, MB", "process, MB", "ms a token", "ms a block of 8"), []
    for kind, contexts in found["contexts"].items():
        for num, one in contexts.items():
            took = [f"{1000 * one['seconds'][name]:.0f}" for name in ("token", "block")]
            rows.append([kind, f"{int(num):,}", f"{one['cache_mb']:.0f}", f"{one['process_mb']:.0f}", *took])
    return table(header, rows)


def page(found: dict[str, Any]) -> str:
    """The report in Markdown."""
    return "\n\n".join(
        [
            "# Long prompts",
            f"Random weights of {found['shape']}'s shape, native backend; median of {found['rounds']} rounds, by "
            f"`python {found['command']}`. {measured_on(found['machine'])}",
            "The share of the speed of bare products that a whole prompt has: products in bfloat16 by oneDNN, of all "
            "matrices but the vocabulary's; and the same with PyTorch's causal attention in bfloat16 added.",
            table_of_prompts(found),
            "Behind a cache of so many tokens (int8 weights), a token and a block of 8:",
            table_of_contexts(found) + "\n",
        ]
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--shape", default="qwen3-0.6b")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--prompts", type=int, nargs="*", default=PROMPTS)
    options.add_argument("--contexts", type=int, nargs="*", default=CONTEXTS)
    options.add_argument("--folder", type=Path, required=True)
    options.add_argument("--out", type=Path, default=RESULTS)
    given = options.parse_args()
    found = measure(given)
    write_report(given.out, found, page(found))


if __name__ == "__main__":
    main()
