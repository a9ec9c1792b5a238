"""Milliseconds of a forward behind a cache by execution, and of the bare products of its shapes.

    python benchmarks/forward.py [--dtype float32] [--threads 2] [--json FILE]

Sides take turns; each number is a median of rounds. With one thread it is processor time of that thread, which other
work on the machine disturbs less than wall-clock time; with more threads it is wall-clock time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.evals.machine import machine_facts
from daguerre.model import DTYPES
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.cache import Cache
from daguerre.models.core.config import ModelConfig
from daguerre.models.denoiser import BackboneDenoiser, Execution, Executor
from daguerre.models.layout import Layout, Rows
from daguerre.models.lean import Linear
from daguerre.models.loading import load_model, model_folder
from daguerre.models.backends.native_backend import NativeBackbone

ROWS = (1, 12, 32)
CONTEXTS = (256, 1024)
POSITIONS = max(CONTEXTS) + max(ROWS)
EXECUTIONS: tuple[Execution, ...] = ("reference", "lean", "native", "approximate_int8")
Side = Callable[[], object]


def model_34m(dtype: torch.dtype) -> Backbone:
    """Random weights at the shape that other engines were measured at."""
    config = ModelConfig(
        vocab_size=8192,
        width=512,
        num_layers=8,
        num_heads=8,
        num_kv_heads=8,
        mlp_width=1408,
        max_positions=POSITIONS,
        pad_id=0,
        bos_id=1,
        eos_id=2,
        mask_id=3,
        null_id=4,
    )
    return Backbone(config).initialize(0, zero_outputs=False).to(dtype).eval().requires_grad_(False)


def default_model(dtype: torch.dtype) -> Backbone:
    """The model of the package; positions past its own maximum would only change rotary angles."""
    return load_model(model_folder(), dtype)[0]


MODELS: dict[str, Callable[[torch.dtype], Backbone]] = {"34M": model_34m, "default": default_model}


def matrices(backbone: Backbone) -> list[Tensor]:
    """The matrices of one forward, in order, the head last."""
    layers = [[x.attention.qkv, x.attention.out, x.mlp.gate_up, x.mlp.down] for x in backbone.layers]  # type: ignore[union-attr]
    return [module.weight for layer in layers for module in layer] + [backbone.embedding.weight]  # type: ignore[misc]


def sides(
    backbone: Backbone, executors: dict[str, Executor], packed: list[Linear], rows: int, context: int
) -> dict[str, Side]:
    """What is timed: the bare products, and `rows` open rows that end a context of so many, all of them asked."""
    config, weights = backbone.config, matrices(backbone)
    dtype = backbone.embedding.weight.dtype
    inputs = [torch.randn(rows, weight.shape[1]).to(dtype) for weight in weights]
    tokens = torch.randint(config.num_reserved, config.vocab_size, (1, rows))
    position = torch.arange(context - rows, context)[None]
    layout = Layout(Rows.make(position, torch.zeros_like(position)), 0, open_sees_all=True)

    def forward(executor: Executor) -> Side:
        own = isinstance(executor, NativeBackbone)
        cache = executor.cache(context) if own else Cache(config, context, dtype=dtype)
        for stored in cache.stored(context):
            stored.normal_()
        cache.commit(Rows.make(torch.arange(context - rows)[None]))
        return lambda: executor.logits(executor(tokens, layout, cache))

    return {
        "packed products": lambda: [linear(x) for linear, x in zip(packed, inputs, strict=True)],
        **{name: forward(executor) for name, executor in executors.items()},
        "plain products": lambda: [F.linear(x, weight) for weight, x in zip(weights, inputs, strict=True)],
    }


def milliseconds(timed: dict[str, Side], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Medians over rounds in which each side runs once, in turn; two rounds before them warm up."""
    took: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(rounds + 2):
        for name, side in timed.items():
            start = clock()
            side()
            took[name].append(1e3 * (clock() - start))
    return {name: statistics.median(times[2:]) for name, times in took.items()}


@torch.inference_mode()
def measure(dtype: str, rounds: int, clock: Callable[[], float]) -> list[dict[str, object]]:
    """One entry for each model, context and number of rows."""
    out: list[dict[str, object]] = []
    for name, make in MODELS.items():
        backbone = make(DTYPES[dtype])
        packed = [Linear(weight) for weight in matrices(backbone)]
        executors = {kind: BackboneDenoiser(backbone, kind).executor for kind in EXECUTIONS}
        for context in CONTEXTS:
            for rows in ROWS:
                took = milliseconds(sides(backbone, executors, packed, rows, context), rounds, clock)
                ratio = took["native"] / took["packed products"]
                out.append({"model": name, "context": context, "rows": rows, **took, "native / packed": ratio})
                print(f"{name:>8} {context:>6} {rows:>4} " + "".join(f"{x:>17.2f}" for x in took.values()), end="")
                print(f"{ratio:>16.2f}", flush=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description="Milliseconds of a forward, beside the products it is made of.")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="also write the numbers, and the machine, to this file")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    clock = time.thread_time if given.threads == 1 else time.perf_counter
    names = ("packed products", *EXECUTIONS, "plain products", "native / packed")
    print(f"{'model':>8} {'context':>6} rows " + "".join(f"{name:>17}" for name in names))
    rows = measure(given.dtype, given.rounds, clock)
    if given.json is not None:
        options = {"dtype": given.dtype, "threads": given.threads, "rounds": given.rounds, "clock": clock.__name__}
        facts = {"machine": machine_facts(torch.device("cpu")), **options, "milliseconds": rows}
        given.json.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
