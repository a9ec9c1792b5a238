"""The sides of a benchmark: each makes, for a job, what runs one request and tells what it took.

Ours run the model natively in its own type, unless the name says otherwise: `int8` with 8-bit matrices, `lean` and
`compiled` as those executions do. At random weights a forward is made to commit FORCED tokens, and blocks are settled
in the forward that starts the next one, so what that costs is in the time; for a trained model the policy decides. All
sides write exactly as many tokens as are asked, greedily.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.errors import unknown
from daguerre.evals.bench import peers
from daguerre.evals.bench.job import FORCED, Job, Runner, Timing, random_model, subject
from daguerre.evals.bench.llada import llada_loop
from daguerre.model import Model
from daguerre.models.denoiser import Execution
from daguerre.models.layout import Layout, Rows
from daguerre.planning import make_plan
from daguerre.sample import Sample
from daguerre.sampling.decode import Decode

BLOCKS = (8, 16, 32, 64)
BLOCKS_INT8 = (8, 16, 32)
LLADA_BLOCK = 32


def ours(mode: str, job: Job, block_size: int | None = None, execution: Execution = "native") -> Runner:
    """Our own modes. What is compiled is compiled, or found on disk, before the first request."""
    own = subject(job)
    model = Model(own.backbone, own.tokenizer, execution)
    model.denoiser.executor  # noqa: B018
    return runner(model, decode_of(mode, job, block_size), job.shape.new_tokens)


def decode_of(mode: str, job: Job, block_size: int | None = None) -> Decode:
    """The options of a mode: at random weights FORCED tokens a forward, else the default policy."""
    least = job.shape.new_tokens
    if mode in ("ar", "speculative"):
        return Decode(mode=mode, min_tokens=least)  # type: ignore[arg-type]
    if job.model is not None:
        return Decode(mode=mode, block_size=block_size, min_tokens=least)  # type: ignore[arg-type]
    size = block_size or least
    steps = max(1, size // FORCED)
    return Decode(mode=mode, block_size=block_size, policy="confidence", steps=steps, min_tokens=least)  # type: ignore[arg-type]


def runner(model: Model, decode: Decode, new_tokens: int) -> Runner:
    """Requests of `new_tokens` under one setting."""

    def run(prompt: Sequence[int]) -> Timing:
        started = time.perf_counter()
        plan = make_plan(model.config, model.tokenizer, decode, prompt[1:], None, new_tokens, heal=False)
        request, first = Sample(model.denoiser, plan, 0, None), None
        for event in request.steps():
            first = first or (time.perf_counter() - started, len(event.decision))
        seconds = time.perf_counter() - started
        assert first is not None
        result = request.result()
        tokens = tuple(token.id for token in result.tokens)
        usage = result.usage
        return Timing(
            seconds=seconds,
            first_seconds=first[0],
            first_tokens=first[1],
            tokens=tokens,
            forwards=usage.forwards,
            rows=usage.computed_rows,
        )

    return run


def llada(job: Job) -> Runner:
    """LLaDA's loop, FORCED tokens a forward, in blocks of LLADA_BLOCK, on the plain modules in bfloat16.

    Rows are not shifted, as LLaDA's are not; at random weights that is a matter of names.
    """
    backbone = random_model(job.shape, torch.bfloat16).backbone
    config, new = backbone.config, job.shape.new_tokens
    block = min(LLADA_BLOCK, new)

    def logits_of(tokens: Tensor) -> Tensor:
        position = torch.arange(tokens.shape[1])[None]
        layout = Layout(Rows.make(position, span=0), num_settled=0, context="full")
        return F.linear(backbone(tokens, layout), backbone.embedding.weight)

    def run(prompt: Sequence[int]) -> Timing:
        started, ends = time.perf_counter(), []
        tokens = llada_loop(
            logits_of,
            torch.tensor(prompt),
            new,
            new // FORCED,
            block,
            config.mask_id,
            lambda: ends.append(time.perf_counter() - started),
        )
        written = tuple(tokens[len(prompt) :].tolist())
        rows = len(ends) * len(tokens)
        return Timing(
            seconds=ends[-1],
            first_seconds=ends[0],
            first_tokens=FORCED,
            tokens=written,
            forwards=len(ends),
            rows=rows,
        )

    return run


Side = Callable[[Job], Runner]

SIDES: dict[str, Side] = {
    "ar": partial(ours, "ar"),
    **{f"block {size}": partial(ours, "block", block_size=size) for size in BLOCKS},
    "full": partial(ours, "full"),
    "speculative": partial(ours, "speculative"),
    "ar int8": partial(ours, "ar", execution="approximate_int8"),
    **{
        f"block {size} int8": partial(ours, "block", block_size=size, execution="approximate_int8")
        for size in BLOCKS_INT8
    },
    "speculative int8": partial(ours, "speculative", execution="approximate_int8"),
    "ar lean": partial(ours, "ar", execution="lean"),
    "block 16 lean": partial(ours, "block", block_size=16, execution="lean"),
    "ar compiled": partial(ours, "ar", execution="compiled"),
    "block 16 compiled": partial(ours, "block", block_size=16, execution="compiled"),
    "LLaDA loop": llada,
    "transformers": peers.transformers,
    "diffusers": peers.diffusers,
    "llama.cpp BF16": partial(peers.llama_cpp, "BF16"),
    "llama.cpp Q8_0": partial(peers.llama_cpp, "Q8_0"),
}
OURS = tuple(name for name in SIDES if name.split()[0] in ("ar", "block", "full", "speculative"))
FOR_A_MODEL = (
    *("ar", "block 8", "block 16", "full", "speculative", "ar int8", "speculative int8", "ar lean", "ar compiled"),
    *("llama.cpp BF16", "llama.cpp Q8_0"),
)
"""Sides that are run on a trained model; other engines than llama.cpp have random weights of their own."""


def make(job: Job) -> Runner:
    """The side that a job names."""
    if job.side not in SIDES:
        raise unknown("side", job.side, SIDES)
    return SIDES[job.side](job)
