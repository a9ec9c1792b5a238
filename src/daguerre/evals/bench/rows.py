"""What rows cost on this machine: milliseconds of a forward by its number of rows, and by the number of requests.

models       one request after CONTEXT cached tokens: a forward that gives the logits of 1 to 64 rows, by the native
             backend in float32, with bfloat16 weights and in int8, and by PyTorch's modules in float32; the bare matrix
             products of the forward, packed by oneDNN in the processor's native type; and llama.cpp, for one row
concurrency  many requests in one batch, each with its own cache, by the native backend in the processor's native type:
             a forward that gives each of them one token (one row each), and one that denoises a block of each (BLOCK
             open rows, and FORCED clean ones)

In each round everything is timed once, in turn; a ratio is the median of the ratios of the rounds.
"""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from daguerre.evals.bench.job import FORCED, RANDOM, BenchJob, BenchShape, random_model, random_tokens, torch_dtype
from daguerre.evals.bench.peers import LLAMA_TYPES, LlamaCpp
from daguerre.evals.workers import ItemProgress, Progress
from daguerre.model import load
from daguerre.models.backends.native_backend import NativeBackend
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.backbone import Backbone
from daguerre.models.forward import Backend, Forward, Hidden, KeyCache, Layout, Logits
from daguerre.models.load_options import Quantization

ROWS = (1, 2, 4, 8, 16, 32, 64)
REQUESTS = (1, 2, 4, 8, 16, 32, 64)
CONTEXT = 256
BLOCK = 16
WARM_UP = 2
MIN_SECONDS = 0.02
"""Seconds for which a shorter step is repeated in each round."""
TORCH = "torch float32"
PRODUCTS = "bare products"
Step = Callable[[], object]
Key = TypeVar("Key", bound=Hashable)


def measure(options: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """options: shape, model, rounds."""
    shape, rounds = BenchShape(**options["shape"]), options["rounds"]
    random = random_model(shape, "float32", CONTEXT + max(*ROWS, BLOCK + FORCED)).backbone
    models = {RANDOM: random, options["model"]: load(options["model"], dtype="float32").backbone}
    found = {}
    for name, backbone in models.items():
        job = BenchJob(side=name, threads=torch.get_num_threads(), shape=shape, model=None if name == RANDOM else name)
        found[name] = by_rows(job, backbone, rounds, partial(progress, f"{name}, rows"))
    crowd = by_requests(native(random, "auto"), rounds, partial(progress, "requests in a batch"))
    return {
        "context": CONTEXT,
        "models": found,
        "block": BLOCK,
        "block_rows": BLOCK + FORCED,
        "concurrency": crowd,
    }


def by_rows(job: BenchJob, backbone: Backbone, rounds: int, progress: ItemProgress) -> dict[str, Any]:
    """Of each side, by number of rows: milliseconds ("ms"), how many times those of one row ("times_one_row"), and how
    many times as fast as PyTorch's float32 modules ("times_torch").
    """
    steps: dict[tuple[str, int], Step] = {}
    for name, backend in backends(backbone).items():
        tokens, cache = random_tokens(backbone.config, (max(ROWS),)), cached(backend, CONTEXT)
        for rows in ROWS:
            steps[name, rows] = partial(backend.forward, [behind(cache, tokens[:rows])])
    if torch.backends.mkldnn.is_available():
        matrices = packed(backbone)
        steps |= {(PRODUCTS, rows): partial(products, matrices, rows) for rows in ROWS}
    engines, failed = llama_cpp(job)
    prompt = random_tokens(backbone.config, (CONTEXT,)).tolist()
    steps |= {(f"llama.cpp {name}", 1): engine.one_row(prompt) for name, engine in engines.items()}
    took = interleaved(steps, rounds, progress)
    sides: dict[str, dict[str, list[float]]] = {}
    for (name, rows), ms in took.items():
        side = sides.setdefault(name, {"rows": [], "ms": [], "times_one_row": [], "times_torch": []})
        side["rows"].append(rows)
        side["ms"].append(statistics.median(ms))
        side["times_one_row"].append(ratio(ms, took[name, 1]))
        side["times_torch"].append(ratio(took[TORCH, rows], ms))
    return {"parameters": backbone.num_parameters, "sides": sides, "failed": failed}


def ratio(ms: Sequence[float], others: Sequence[float]) -> float:
    """The median over rounds."""
    return statistics.median(one / other for one, other in zip(ms, others, strict=True))


def backends(backbone: Backbone) -> dict[str, Backend]:
    """What runs a backbone of float32 weights, by name."""
    return {
        "native float32": native(backbone, "float32"),
        "native bfloat16": native(backbone, "bfloat16"),
        "native int8": native(backbone, "auto", "int8"),
        TORCH: TorchBackend(backbone),
    }


def native(backbone: Backbone, dtype: str, quantize: Quantization | None = None) -> NativeBackend:
    """The native backend with weights of a type."""
    return NativeBackend(copy.deepcopy(backbone).to(torch_dtype(dtype)), quantize)


def cached(backend: Backend, num: int) -> KeyCache:
    """A cache of `num` clean rows."""
    cache, rows = backend.cache(num), np.arange(num)
    layout = Layout(rows, np.arange(1, num + 1, dtype=np.int32), num)
    last = np.array([num - 1], dtype=np.int32)
    backend.forward([Forward(random_tokens(backend.config, (num,)), layout, cache, last, Hidden())])
    return cache


def behind(cache: KeyCache, tokens: np.ndarray) -> Forward:
    """A forward that gives the logits of noisy rows after a cache: it leaves the cache as it is."""
    num = len(tokens)
    layout = Layout(cache.length + np.arange(num), np.full(num, cache.length + num, dtype=np.int32), 0)
    return Forward(tokens, layout, cache, np.arange(num, dtype=np.int32), Logits())


def packed(backbone: Backbone) -> list[tuple[torch.Tensor, int]]:
    """The matrices of one forward in the processor's native type, as oneDNN packs them, and the number of inputs."""
    layers: Any = backbone.layers
    modules = [module for x in layers for module in (x.attention.qkv, x.attention.out, x.mlp.gate_up, x.mlp.down)]
    weights = [
        weight.detach().to(torch_dtype("auto")) for weight in (*(m.weight for m in modules), backbone.projection)
    ]
    return [(torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 16), weight.shape[1]) for weight in weights]


@torch.inference_mode()
def products(matrices: Sequence[tuple[torch.Tensor, int]], rows: int) -> None:
    """The matrix products of a forward, and nothing else."""
    for weight, width in matrices:
        x = torch.ones(rows, width, dtype=weight.dtype)
        torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")


def llama_cpp(job: BenchJob) -> tuple[dict[str, LlamaCpp], dict[str, str]]:
    """llama.cpp with the job's weights, by type; and the reasons why a type cannot be measured."""
    job = replace(job, shape=replace(job.shape, prompt_tokens=CONTEXT, new_tokens=max(ROWS)))
    found, failed = dict[str, LlamaCpp](), dict[str, str]()
    for name in LLAMA_TYPES.values():
        try:
            found[name] = LlamaCpp.of(job, name)
        except Exception as error:  # another program may fail in any way
            failed[f"llama.cpp {name}"] = str(error)
    return found, failed


def by_requests(backend: Backend, rounds: int, progress: ItemProgress) -> list[dict[str, Any]]:
    """Milliseconds of a forward of many requests, one row of each ("ar_ms") and a block of each ("block_ms")."""
    filled, still = cached(backend, CONTEXT), np.zeros(CONTEXT, dtype=np.int64)
    caches = [filled.moved(still) for _ in range(max(REQUESTS))]
    tokens = random_tokens(backend.config, (BLOCK + FORCED,))
    steps: dict[tuple[int, str], Step] = {}
    for requests in REQUESTS:
        for name, rows in (("ar_ms", 1), ("block_ms", BLOCK + FORCED)):
            steps[requests, name] = partial(backend.forward, [behind(one, tokens[:rows]) for one in caches[:requests]])
    took = interleaved(steps, rounds, progress)
    names = ("ar_ms", "block_ms")
    return [{"requests": num, **{name: statistics.median(took[num, name]) for name in names}} for num in REQUESTS]


def interleaved(steps: Mapping[Key, Step], rounds: int, progress: ItemProgress) -> dict[Key, list[float]]:
    """Milliseconds of each step in each round; rounds before them warm up."""
    took: dict[Key, list[float]] = {name: [] for name in steps}
    for number in range(rounds + WARM_UP):
        progress(number, rounds + WARM_UP)
        for name, step in steps.items():
            took[name].append(milliseconds(step))
    return {name: ms[WARM_UP:] for name, ms in took.items()}


def milliseconds(step: Step) -> float:
    """The mean of as many runs as fit in MIN_SECONDS, at least one."""
    num, started = 0, time.perf_counter()
    while True:
        step()
        num, seconds = num + 1, time.perf_counter() - started
        if seconds >= MIN_SECONDS:
            return 1e3 * seconds / num


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
