"""The sides of a benchmark: each makes, for a job, a function that runs one request and returns its timing.

Daguerre's sides run the native backend in the job's type, unless the name says otherwise: `float32` and `bfloat16` are
types of the weights, `int8` is quantize="int8", and `torch` is the torch backend. With random weights a forward is made
to commit FORCED tokens; a finished block is computed again, as clean rows, in the forward that starts the next one, and
the time includes that. For a trained model the policy decides. All sides write exactly as many tokens as are requested,
greedily.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.decoding.generate import Request, plan_of
from daguerre.decoding.options import ModeName
from daguerre.decoding.request import Decode
from daguerre.decoding.sample import Sample, drive
from daguerre.errors import unknown
from daguerre.evals.bench import peers
from daguerre.evals.bench.job import FORCED, BenchJob, Runner, Timing, model_of, random_model, torch_dtype
from daguerre.evals.bench.llada import llada_loop
from daguerre.model import DTYPES, Model
from daguerre.models.load_options import BackendName, Quantization
from daguerre.models.model_weights import torch_type

BLOCKS = (8, 16, 32, 64)
BLOCKS_INT8 = (8, 16, 32)
LLADA_BLOCK = 32


def mode_side(
    mode: ModeName,
    job: BenchJob,
    block_size: int | None = None,
    *,
    dtype: str | None = None,
    backend: BackendName = "native",
    quantize: Quantization | None = None,
) -> Runner:
    """A mode of Daguerre. What has to be compiled or packed is so before the first request."""
    found = model_of(job, dtype)
    model = Model(found.backbone, found.tokenizer, backend, quantize=quantize)
    model.denoiser.backend  # noqa: B018
    return runner(model, decode_of(mode, job, block_size), job.shape.new_tokens)


def decode_of(mode: ModeName, job: BenchJob, block_size: int | None = None) -> Decode:
    """The options of a mode: with random weights FORCED tokens a forward, else the default policy."""
    new = job.shape.new_tokens
    plain = Decode(mode=mode, min_tokens=new)
    if plain.autoregressive:
        return plain
    if job.model is not None:
        return Decode(mode=mode, block_size=block_size, min_tokens=new)
    steps = max(1, (block_size or new) // FORCED)
    return Decode(mode=mode, block_size=block_size, policy="confidence", steps=steps, min_tokens=new)


def runner(model: Model, decode: Decode, new_tokens: int) -> Runner:
    """Requests of `new_tokens` under one setting."""

    def run(prompt: Sequence[int]) -> Timing:
        started = time.perf_counter()
        request = Request.of("generate", prompt[1:], new_tokens, decode, heal=False)
        sample, first = Sample(model.denoiser, plan_of(model.denoiser, model.tokenizer, request), 0, None), None
        for event in drive(sample):
            first = first or (time.perf_counter() - started, len(event.decision))
        seconds = time.perf_counter() - started
        assert first is not None
        result = sample.result()
        return Timing(
            seconds=seconds,
            first_seconds=first[0],
            first_tokens=first[1],
            tokens=tuple(token.id for token in result.tokens),
            forwards=result.usage.forwards,
            rows=result.usage.computed_tokens,
        )

    return run


def llada(job: BenchJob) -> Runner:
    """LLaDA's loop, FORCED tokens a forward, in blocks of LLADA_BLOCK, on the plain modules in the job's type.

    The row at i is read for position i, as in LLaDA; with random weights that makes no difference in time.
    """
    backbone = random_model(job.shape, job.dtype).backbone
    config, new = backbone.config, job.shape.new_tokens
    block = min(LLADA_BLOCK, new)

    def logits_of(tokens: Tensor) -> Tensor:
        return F.linear(backbone(tokens, torch.arange(tokens.shape[1])[None], see_all), backbone.projection)

    def run(prompt: Sequence[int]) -> Timing:
        started, ends = time.perf_counter(), list[float]()
        tokens = llada_loop(
            logits_of,
            torch.tensor(prompt),
            new,
            new // FORCED,
            block,
            config.placeholder,
            lambda: ends.append(time.perf_counter() - started),
        )
        return Timing(
            seconds=ends[-1],
            first_seconds=ends[0],
            first_tokens=FORCED,
            tokens=tuple(tokens[len(prompt) :].tolist()),
            forwards=len(ends),
            rows=len(ends) * len(tokens),
        )

    return run


def see_all(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention in which every row sees all rows; see `models.core.attention.Attention`."""
    gqa = q.shape[-2] != k.shape[-2]
    q, k, v = (x.transpose(-3, -2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=gqa).transpose(-3, -2)


Side = Callable[[BenchJob], Runner]

SIDES: dict[str, Side] = {
    "ar": partial(mode_side, "ar"),
    **{f"block {size}": partial(mode_side, "block", block_size=size) for size in BLOCKS},
    "full": partial(mode_side, "full"),
    "speculative": partial(mode_side, "speculative"),
    **{f"ar {dtype}": partial(mode_side, "ar", dtype=dtype) for dtype in DTYPES},
    "ar int8": partial(mode_side, "ar", quantize="int8"),
    **{f"block {size} int8": partial(mode_side, "block", block_size=size, quantize="int8") for size in BLOCKS_INT8},
    "speculative int8": partial(mode_side, "speculative", quantize="int8"),
    "ar torch": partial(mode_side, "ar", backend="torch"),
    "block 16 torch": partial(mode_side, "block", block_size=16, backend="torch"),
    "LLaDA loop": llada,
    "transformers": peers.transformers,
    "diffusers": peers.diffusers,
    **{f"llama.cpp {dtype}": partial(peers.llama_cpp, dtype) for dtype in peers.LLAMA_TYPES.values()},
}
OURS: tuple[str, ...] = tuple(name for name in SIDES if name.split()[0] in ("ar", "block", "full", "speculative"))
FOR_A_MODEL = tuple(
    name
    for name in SIDES
    if name.startswith(("ar", "speculative", "llama.cpp")) or name in ("block 8", "block 16", "full")
)
"""Sides that are run on a trained model; other engines than llama.cpp have random weights only."""


def sides_for(job: BenchJob) -> list[str]:
    """The sides of a job. With random weights those whose blocks divide its tokens. What a name with a type and one
    without would both measure is there once, under the name without.
    """
    native, new = torch_dtype(job.dtype), job.shape.new_tokens
    left_out = {f"ar {name}" for name in DTYPES if torch_type(name) == native}
    left_out |= {name for name in SIDES if name.startswith("block ") and new % int(name.split()[1])}
    return [name for name in (SIDES if job.model is None else FOR_A_MODEL) if name not in left_out]


def make(job: BenchJob) -> Runner:
    """The side that a job names."""
    if job.side not in SIDES:
        raise unknown("side", job.side, SIDES)
    return SIDES[job.side](job)
