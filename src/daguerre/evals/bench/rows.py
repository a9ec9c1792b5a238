"""What rows cost on this machine: a forward by its number of rows, and by the number of requests in a batch.

curve        one request: milliseconds of a forward of 1 to 64 rows behind a cache, and of the bare products that it is
             made of, by oneDNN from packed weights
concurrency  many requests in one batch, each with a cache of its own: a forward that gives each of them one token (one
             row each), and one that denoises a block of each (BLOCK open rows, and FORCED that settle)
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from daguerre.evals.bench.job import FORCED, Shape, random_model
from daguerre.models.backbone import Backbone
from daguerre.models.cache import Cache
from daguerre.models.layout import Layout, Rows
from daguerre.models.lean import Linear
from daguerre.models.native import NativeBackbone

ROWS = (1, 2, 4, 8, 16, 32, 64)
REQUESTS = (1, 2, 4, 8, 16, 32, 64)
CONTEXT = 256
BLOCK = 16
Step = Callable[[], object]
Tell = Callable[[str, int, int], None]


@torch.inference_mode()
def measure(options: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """options: shape, rounds."""
    shape, rounds = Shape(**options["shape"]), options["rounds"]
    backbone = random_model(shape, torch.bfloat16, CONTEXT + max(ROWS)).backbone
    native, packed = NativeBackbone(backbone), [Linear(weight) for weight in matrices(backbone)]
    curve = []
    for index, rows in enumerate(ROWS):
        tell("rows", index, len(ROWS) + len(REQUESTS))
        inputs = [torch.randn(rows, weight.shape[1]).bfloat16() for weight in matrices(backbone)]
        steps: dict[str, Step] = {"forward": forward(native, 1, rows), "products": partial(products, packed, inputs)}
        curve.append({"rows": rows, **milliseconds(steps, rounds)})
    concurrency = []
    for index, requests in enumerate(REQUESTS):
        tell("requests in a batch", len(ROWS) + index, len(ROWS) + len(REQUESTS))
        steps = {"ar": forward(native, requests, 1), "block": forward(native, requests, BLOCK + FORCED)}
        concurrency.append({"requests": requests, **milliseconds(steps, rounds)})
    return {
        "context": CONTEXT,
        "block": BLOCK,
        "block_rows": BLOCK + FORCED,
        "curve": curve,
        "concurrency": concurrency,
    }


def matrices(backbone: Backbone) -> list[torch.Tensor]:
    """The matrices of one forward, in order, the head last."""
    layers: Any = backbone.layers
    modules = [module for x in layers for module in (x.attention.qkv, x.attention.out, x.mlp.gate_up, x.mlp.down)]
    return [module.weight for module in (*modules, backbone.embedding)]


def products(packed: Sequence[Linear], inputs: Sequence[torch.Tensor]) -> None:
    """The matrix products of a forward, and nothing else."""
    for linear, x in zip(packed, inputs, strict=True):
        linear(x)


def forward(native: NativeBackbone, requests: int, rows: int) -> Step:
    """A forward of so many open rows for each of so many requests, all asked, each behind CONTEXT settled ones."""
    config = native.config
    tokens = torch.randint(config.num_reserved, config.vocab_size, (requests, rows))
    position = torch.arange(CONTEXT, CONTEXT + rows).expand(requests, rows)
    layout = Layout(Rows.make(position, torch.zeros_like(position)), 0, open_sees_all=True)
    cache = Cache(config, CONTEXT + rows, batch=requests, dtype=native.embedding.weight.dtype)
    for stored in cache.stored(CONTEXT + rows):
        stored.normal_()
    cache.commit(Rows.make(torch.arange(CONTEXT).expand(requests, CONTEXT)))
    return lambda: native.logits(native(tokens, layout, cache))


def milliseconds(steps: dict[str, Step], rounds: int) -> dict[str, float]:
    """Medians over rounds in which each runs once, in turn; two rounds before them warm up."""
    took: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds + 2):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            took[name].append(1e3 * (time.perf_counter() - start))
    return {f"{name}_ms": statistics.median(times[2:]) for name, times in took.items()}


def crossing(points: Sequence[dict[str, Any]], per_forward: float) -> float | None:
    """How many requests at once make the block decoder, `per_forward` tokens a request and forward, as slow as `ar`.

    points: the `concurrency` of a measurement. With B requests `ar` writes B tokens in ar_ms(B) and the block decoder
    per_forward B in block_ms(B); between points both times are taken linear in log B. 0 where it is slower with one
    request already, None where it is faster at every point.
    """
    gains = [(point["requests"], per_forward * point["ar_ms"] / point["block_ms"]) for point in points]
    if gains[0][1] < 1:
        return 0.0
    for (few, high), (many, low) in zip(gains, gains[1:], strict=False):
        if low < 1:
            share = (high - 1) / (high - low)
            return float(math.exp(math.log(few) + share * (math.log(many) - math.log(few))))
    return None
