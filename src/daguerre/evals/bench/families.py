"""Published shapes with random weights on this processor's native backend, beside llama.cpp with equal weight types.

For each shape and type of weights two engines are in memory: Daguerre and llama.cpp. Timed are, once in every round, in
turn:

rows    a forward that draws a token for each of ROWS rows behind CONTEXT cached ones, and llama.cpp's of one row
text    `Model.generate` of NEW tokens after a prompt of CONTEXT, prompt included, and llama.cpp's greedy text of the
        same lengths. A shape with blocks commits by force, 2.5 tokens a forward (`ForcedCommits`); the others write one
        token after the other
canvas  of LLaDA's shape, in place of these: FULL_NEW tokens behind the prompt in blocks of FULL_BLOCK, 4 tokens a
        forward by force, exactly, where each forward computes the whole canvas, and with approximate caches; and one
        step of llama.cpp's diffusion example, which computes the logits of the whole canvas
reading memory, of which a forward reads its weights

Forced tokens are no good text: these are speeds of a model that is as sure as that, whatever its accuracy.
"""

from __future__ import annotations

import gc
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
from daguerre.errors import DaguerreError
from daguerre.evals.bench.family_files import WEIGHTS, checkpoint, gguf_files, num_parameters, shape_of, weights_of
from daguerre.evals.bench.job import FORCED
from daguerre.evals.bench.peers import LlamaCpp
from daguerre.evals.bench.rows import behind, cached
from daguerre.evals.bench.worker import versions
from daguerre.evals.workers import Progress
from daguerre.model import Model, load
from daguerre.models.denoiser import CacheMode
from daguerre.models.forward import Backend, Draws, Rules
from daguerre.sampling.logits import Proposals
from daguerre.sampling.policies.base import Policy, commit, top
from daguerre.sampling.policies.base import Progress as Steps
from daguerre.sampling.random import Counter

CONTEXT, NEW = 64, 80
FULL_NEW, FULL_BLOCK = 64, 32
APPROXIMATE: tuple[CacheMode, ...] = ("approximate_prefix", "approximate_dual")
ROWS = (1, 4, 8, 16)
MIN_SECONDS = 0.3
"""Seconds for which a shorter forward is repeated in each round."""
PAUSE = 0.3
"""Seconds before each timing on several threads: those of the other engine spin for a moment after they are done."""
DEFAULT_WEIGHTS = ("int8", "approximate_int4")
READ = 1 << 29
"""Bytes that memory's speed is measured on."""
Step = Callable[[], object]


@dataclass(frozen=True)
class ForcedCommits(Policy):
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
        kinds, parameters, chosen = {}, num_parameters(name), weights_of(name, options["weights"])
        progress(f"{name}: files", 0, options["rounds"])
        files, failed = dict[str, Path](), None
        try:
            files = gguf_files(name, [WEIGHTS[weights] for weights in chosen], parent)
        except DaguerreError as error:
            failed = str(error)
        for weights in chosen:
            said = partial(progress, f"{name} {weights}")
            found_here = measure_one(name, weights, parent, files.get(WEIGHTS[weights]), options["rounds"], said, clock)
            kinds[weights] = found_here | {"failed": found_here["failed"] or failed}
        shape = shape_of(name)
        found[name] = {
            "parameters": parameters, "block": shape.block, "layers": shape.layers, "deep": shape.deep, "weights": kinds
        }  # fmt: skip
    return {
        "context": CONTEXT,
        "new": NEW,
        "full_new": FULL_NEW,
        "full_block": FULL_BLOCK,
        "read_bytes": READ,
        "shapes": found,
        "versions": versions(),
        "clock": "the processor's time" if threads == 1 else "wall time",
    }


def measure_one(
    name: str,
    weights: str,
    parent: Path,
    file: Path | None,
    rounds: int,
    progress: Callable[[int, int], None],
    clock: Callable[[], float],
) -> dict[str, Any]:
    """A shape in one type of weights, beside llama.cpp with a file; "failed" says why there is no llama.cpp."""
    progress(0, rounds)
    gc.collect()  # the models before
    failed, peer = None, None
    try:
        positions = CONTEXT + max(NEW, FULL_NEW) + 1
        peer = None if file is None else LlamaCpp(file, torch.get_num_threads(), positions)
    except DaguerreError as error:
        failed = str(error)
    model, block = model_of(checkpoint(name, parent), weights), shape_of(name).block
    steps, usage = canvas_steps(model, peer) if shape_of(name).deep else steps_of(model, block, peer)
    took: dict[str, list[float]] = {step: [] for step in steps}
    for called, step in steps.items():
        progress(0, rounds)
        if called != "text":  # which has run once
            step()
    for number in range(rounds):
        for called, run in steps.items():
            progress(number, rounds)
            if torch.get_num_threads() > 1:
                time.sleep(PAUSE)
            took[called].append(seconds(run, clock, once=called.endswith("text")))
    if peer is not None:
        peer.close()
    return {"bytes": model.denoiser.num_bytes, "seconds": took, "failed": failed, **usage}


def model_of(folder: Path, weights: str) -> Model:
    """The native backend with these weights."""
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


def canvas_steps(model: Model, peer: LlamaCpp | None) -> tuple[dict[str, Step], dict[str, int]]:
    """As `steps_of`, for a model with full context, of which every row counts as open."""
    prompt = np.random.default_rng(0).integers(300, 1000, CONTEXT).tolist()
    options: dict[str, Any] = {
        "mode": "block", "block_size": FULL_BLOCK, "policy": "confidence", "steps": FULL_BLOCK // FORCED,
        "min_tokens": FULL_NEW, "heal": False,
    }  # fmt: skip
    writers = {
        f"{cache} text": partial(model.generate, prompt, FULL_NEW, cache=cache, **options) for cache in APPROXIMATE
    }
    write = partial(model.generate, prompt, FULL_NEW, **options)
    usage = write().usage
    steps: dict[str, Step] = {"reading": reading(), "text": write, **writers}
    if peer is not None:
        open_ones = [model.config.placeholder] * FULL_NEW
        steps["llama.cpp canvas"] = peer.whole_canvas([*model.config.first, *prompt, *open_ones])
    return steps, {"forwards": usage.forwards, "canvas": usage.query_tokens, "rows": usage.computed_tokens}


def writer(model: Model, block: int | None, prompt: Sequence[int]) -> Callable[[], dict[str, int]]:
    """A function that writes NEW tokens and counts forwards, open positions computed ("canvas"), and rows."""
    options: dict[str, Any] = {"mode": "ar"}
    if block is not None:
        options = {"mode": "block", "block_size": block, "policy": ForcedCommits()}

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
