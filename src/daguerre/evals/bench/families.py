"""Published shapes with random weights on this processor's native backend, beside llama.cpp with equal weight types.

For each shape and type of weights two engines are in memory: Daguerre and llama.cpp. Timed are, once in every round, in
turn:

rows    a forward that draws a token for each of ROWS rows behind CONTEXT cached ones, and llama.cpp's of one row
text    `Model.generate` of NEW tokens after a prompt of CONTEXT, prompt included, and llama.cpp's greedy text of the
        same lengths. A shape with blocks commits by force, 2.5 tokens a forward (`Forced`); the others write one token
        after the other
reading memory, of which a forward reads its weights

Forced tokens are no good text: these are speeds of a model that is as sure as that, whatever its accuracy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from daguerre.canvas import Decision
from daguerre.errors import DaguerreError, unknown
from daguerre.evals.bench.family_files import checkpoint, gguf_file, num_parameters, shape_of
from daguerre.evals.bench.job import Progress
from daguerre.evals.bench.peers import LlamaCpp
from daguerre.evals.bench.rows import behind, cached
from daguerre.evals.bench.worker import versions
from daguerre.model import Model, load
from daguerre.models.forward import Backend, Draws, Rules
from daguerre.sampling.logits import Proposals
from daguerre.sampling.policies.base import Policy, commit, top
from daguerre.sampling.policies.base import Progress as Steps
from daguerre.sampling.random import Counter

CONTEXT, NEW = 64, 80
ROWS = (1, 4, 8, 16)
MIN_SECONDS = 0.3
"""Seconds for which a shorter forward is repeated in each round."""
WEIGHTS = {"bfloat16": "BF16", "int8": "Q8_0", "approximate_int4": "Q4_0"}
"""Types of weights, and what llama.cpp calls the equal ones."""
DEFAULT_WEIGHTS = ("int8", "approximate_int4")
READ = 1 << 29
"""Bytes that memory's speed is measured on."""
Step = Callable[[], object]


@dataclass(frozen=True)
class Forced(Policy):
    """Commits as many tokens in the request's forwards as COUNTS says, over and over: five blocks of 8 in 16 forwards,
    which are 2.5 tokens a forward.
    """

    options: ClassVar[tuple[str, ...]] = ()
    fixed_counts: ClassVar[bool] = True
    COUNTS: ClassVar[tuple[int, ...]] = (*(3, 3, 2) * 4, 2, 2, 2, 2)

    def decide(self, proposals: Proposals, progress: Steps, rng: Counter) -> Decision:
        """The likeliest."""
        count = self.COUNTS[progress.request_step % len(self.COUNTS)]
        return commit(proposals, top(proposals.confidence, count, proposals.waits))


def measure(options: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """options: shapes, weights, folder, rounds."""
    parent, threads = Path(options["folder"]), torch.get_num_threads()
    parent.mkdir(parents=True, exist_ok=True)
    clock = time.process_time if threads == 1 else time.perf_counter
    found: dict[str, Any] = {}
    for name in options["shapes"]:
        kinds, parameters = {}, num_parameters(name)
        for weights in options["weights"]:
            said = partial(progress, f"{name} {weights}")
            kinds[weights] = measure_one(name, weights, parent, options["rounds"], said, clock)
        found[name] = {"parameters": parameters, "block": shape_of(name).block, "weights": kinds}
    return {
        "context": CONTEXT, "new": NEW, "read_bytes": READ, "shapes": found, "versions": versions(),
        "clock": "the processor's time" if threads == 1 else "wall time",
    }  # fmt: skip


def measure_one(
    name: str,
    weights: str,
    parent: Path,
    rounds: int,
    progress: Callable[[int, int], None],
    clock: Callable[[], float],
) -> dict[str, Any]:
    """A shape in one type of weights; "failed" says why there is no llama.cpp beside it."""
    progress(0, rounds)
    failed, peer = None, None
    try:
        peer = LlamaCpp(gguf_file(name, WEIGHTS[weights], parent), torch.get_num_threads(), CONTEXT + NEW + 1)
    except DaguerreError as error:
        failed = str(error)
    model, block = model_of(checkpoint(name, parent), weights), shape_of(name).block
    steps, usage = steps_of(model, block, peer)
    took: dict[str, list[float]] = {step: [] for step in steps}
    for step in steps.values():
        step()
    for number in range(rounds):
        progress(number, rounds)
        for called, run in steps.items():
            took[called].append(seconds(run, clock, once=called.endswith("text")))
    if peer is not None:
        peer.close()
    return {"bytes": model.denoiser.num_bytes, "seconds": took, "failed": failed, **usage}


def model_of(folder: Path, weights: str) -> Model:
    """The native backend with these weights."""
    if weights not in WEIGHTS:
        raise unknown("type of weights", weights, WEIGHTS)
    quantize: Any = None if weights == "bfloat16" else weights
    return load(folder, dtype="bfloat16", quantize=quantize, backend="native")


def steps_of(model: Model, block: int | None, peer: LlamaCpp | None) -> tuple[dict[str, Step], dict[str, int]]:
    """What is timed, by name, and the forwards, open positions and rows of the text."""
    prompt = np.random.default_rng(0).integers(300, 1000, CONTEXT).tolist()
    write = writer(model, block, prompt)
    usage = write()
    steps: dict[str, Step] = {"reading": reading(), "text": write}
    steps |= {f"rows {rows}": forward_of(model.denoiser.backend, rows) for rows in ROWS}
    if peer is not None:
        tokens = (model.config.first + prompt)[-CONTEXT:]
        steps["llama.cpp text"] = lambda: list(islice(peer.generate(tokens), NEW))
        steps["llama.cpp rows 1"] = peer.one_row(tokens)
    return steps, usage


def writer(model: Model, block: int | None, prompt: Sequence[int]) -> Callable[[], dict[str, int]]:
    """What writes NEW tokens, and says what that took: forwards, open positions computed ("canvas"), and rows."""
    options: dict[str, Any] = {"mode": "ar"}
    if block is not None:
        options = {"mode": "block", "block_size": block, "policy": Forced()}

    def run() -> dict[str, int]:
        result = model.generate(prompt, NEW, min_tokens=NEW, heal=False, temperature=0.0, **options)
        assert result.usage.completion_tokens == NEW
        usage = result.usage
        return {"forwards": usage.forwards, "canvas": usage.query_tokens, "rows": usage.computed_tokens}

    return run


def forward_of(backend: Backend, rows: int) -> Step:
    """A forward that draws a token for each row, and leaves its cache as it is."""
    tokens = np.random.default_rng(rows).integers(300, 1000, rows)
    one = behind(cached(backend, CONTEXT), tokens)
    one.ask = Draws(Rules(), CONTEXT + 1 + np.arange(rows))
    return partial(backend.forward, [one])


def reading() -> Step:
    """What reads memory and does next to nothing else."""
    return partial(torch.sum, torch.ones(READ // 8, dtype=torch.int64))


def seconds(step: Step, clock: Callable[[], float], once: bool) -> float:
    """The mean of as many runs as fit in MIN_SECONDS, at least two; or of one run."""
    num, started = 0, clock()
    while True:
        step()
        num, took = num + 1, clock() - started
        if once or (took >= MIN_SECONDS and num > 1):
            return took / num
