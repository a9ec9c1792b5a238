"""Contract 3 in the engine: requests that share steps, memory and stored prefixes are as each alone."""

from __future__ import annotations

import random
from typing import Any

import pytest

from backends import needs_compiler
from contracts.test_contract_03_alone import (  # noqa: F401
    GAP,
    LONG,
    REQUESTS,
    SAMPLED,
    Kept,
    asked,
    backbones,
    begin,
    check_same,
    finished,
)
from daguerre.engine.scheduler import Limits, Scheduler, Stats
from daguerre.engine.task import SampleWork, Task
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.tokenizer import Tokenizer

ROOMY = Limits()
TIGHT = Limits(max_running=12, max_rows=64, cache_rows=320)
"""Prompts are divided, and tasks give up their memory."""
LIMITS = {"roomy": ROOMY, "tight": TIGHT, "none stored": Limits(max_rows=96, store_prefixes=False)}


def run_all(samples: list[Kept], limits: Limits, seed: int, backend: Any = None) -> Stats:
    """All samples in one engine, each arriving at a random step, in a random order; returns what it has done."""
    rng = random.Random(seed)
    arrivals = sorted((rng.randrange(30), rng.random(), index) for index in range(len(samples)))
    scheduler, step = Scheduler(backend or samples[0].backend, limits), 0
    while arrivals or scheduler.stats().running or scheduler.stats().waiting:
        while arrivals and arrivals[0][0] <= step:
            *_, index = arrivals.pop(0)
            scheduler.add([Task(SampleWork(samples[index]), number=step, priority=index % 3, owner=f"{index % 5}")])
        scheduler.step()
        step += 1
    return scheduler.stats()


@needs_compiler
@pytest.mark.parametrize("name", [*REQUESTS])
@pytest.mark.parametrize("limits", [*LIMITS])
def test_requests_in_an_engine_are_as_each_alone(backbones: Any, tokenizer: Tokenizer, name: str, limits: str) -> None:  # noqa: F811
    """All modes and policies, guidance, constraints, infilling, drafts, lengths and caches: the same bits."""
    denoiser = BackboneDenoiser(backbones[name], "native")
    alone = [finished(sample) for sample in begin(denoiser, tokenizer, REQUESTS[name])]
    samples = begin(denoiser, tokenizer, REQUESTS[name])
    stats = run_all(samples, LIMITS[limits], 1)
    for got, want in zip(samples, alone, strict=True):
        check_same(got, want)
    if limits == "tight" and name == "drafting":
        assert stats.prefix_found


LONG_TEXTS = [
    *(asked(max_tokens=150, mode=mode, min_tokens=150, **SAMPLED) for mode in ("ar", "speculative", "block")),
    asked(max_tokens=170, mode="ar", guidance=2.0, min_tokens=170),
    asked(GAP, max_tokens=160, mode="block", threshold=0.5),
    asked(LONG, max_tokens=60, mode="block", cache="approximate_int8", policy="confidence", steps=9),
]


@needs_compiler
@pytest.mark.parametrize("name", ["drafting", "block", "block_shifted", "adaptive blocks"])
@pytest.mark.parametrize("max_rows", [64, 2048])
def test_a_request_that_gave_up_its_memory_goes_on_as_if_it_had_not(
    backbones: Any,  # noqa: F811
    tokenizer: Tokenizer,
    name: str,
    max_rows: int,
) -> None:
    """Many more tokens than there is memory for at once: its rows are computed again, to the bit."""
    if name == "drafting":
        requests = LONG_TEXTS * 2
    else:
        requests = [asked(max_tokens=100 + 10 * number, **SAMPLED) for number in range(10)]
    denoiser = BackboneDenoiser(backbones[name], "native")
    alone = [finished(sample) for sample in begin(denoiser, tokenizer, requests)]
    samples = begin(denoiser, tokenizer, requests)
    stats = run_all(samples, Limits(max_rows=max_rows, cache_rows=768, store_prefixes=max_rows == 64), 1)
    assert stats.preemptions > 2
    for got, want in zip(samples, alone, strict=True):
        check_same(got, want)
