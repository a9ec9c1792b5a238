"""Contract 3 in the engine: requests that share steps, memory and stored prefixes are as each alone."""

from __future__ import annotations

import random
from typing import Any

import pytest

from backends import needs_compiler
from contracts.test_contract_03_alone import (  # noqa: F401
    CAUSAL,
    GAP,
    LONG,
    REQUESTS,
    SAMPLED,
    Kept,
    all_alone,
    asked,
    backbones,
    begin,
    check_same,
    finished_together,
)
from daguerre.engine.scheduler import EngineLimits, Scheduler, Stats
from daguerre.engine.task import SampleWork, Task
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.tokenizer import Tokenizer

ROOMY = EngineLimits()
TIGHT = EngineLimits(max_running=12, max_rows=64, cache_rows=320)
"""Prompts are divided, and tasks give up their memory."""
LIMITS = {"roomy": ROOMY, "tight": TIGHT, "none stored": EngineLimits(max_rows=96, store_prefixes=False)}


class Unaware(SampleWork):
    """A sample that is not told of the others: how much it drafts depends on them, and so which forwards it has."""

    def beside(self, crowd: int) -> None:
        super().beside(1)


def run_all(samples: list[Kept], limits: EngineLimits, seed: int, backend: Any = None) -> Stats:
    """All samples in one engine, each arriving at a random step, in a random order; returns what it has done."""
    rng = random.Random(seed)
    arrivals = sorted((rng.randrange(30), rng.random(), index) for index in range(len(samples)))
    scheduler, step = Scheduler(backend or samples[0].backend, limits), 0
    while arrivals or scheduler.stats().running or scheduler.stats().waiting:
        while arrivals and arrivals[0][0] <= step:
            *_, index = arrivals.pop(0)
            scheduler.add([Task(Unaware(samples[index]), number=step, priority=index % 3, owner=f"{index % 5}")])
        scheduler.step()
        step += 1
    return scheduler.stats()


@needs_compiler
@pytest.mark.parametrize("name", [*REQUESTS])
def test_requests_in_an_engine_are_as_each_alone(
    backbones: Any,  # noqa: F811
    tokenizer: Tokenizer,
    name: str,
    subtests: pytest.Subtests,
) -> None:
    """All modes and policies, guidance, constraints, infilling, drafts, lengths and caches: the same bits, and side by
    side without an engine, too.
    """
    denoiser, requests = BackboneDenoiser(backbones[name], "native"), REQUESTS[name]
    alone = all_alone(denoiser, tokenizer, requests)
    if name != "drafting":  # which is in test_contract_03_alone
        with subtests.test("together"):
            for got, want in zip(finished_together(begin(denoiser, tokenizer, requests), 1), alone, strict=True):
                check_same(got, want)
    for limits in LIMITS:
        with subtests.test(limits):
            samples = begin(denoiser, tokenizer, requests if limits == "tight" else requests[: len(CAUSAL)])
            stats = run_all(samples, LIMITS[limits], 1)
            for got, want in zip(samples, alone[: len(samples)], strict=True):
                check_same(got, want)
            if limits == "tight" and name == "drafting":
                assert stats.prefix_found


LONG_TEXTS = [
    *(asked(max_tokens=75, mode=mode, min_tokens=75, **SAMPLED) for mode in ("ar", "speculative", "block")),
    asked(max_tokens=85, mode="ar", guidance=2.0, min_tokens=85),
    asked(GAP, max_tokens=80, mode="block", threshold=0.5),
    asked(LONG, max_tokens=60, mode="block", cache="approximate_int8", policy="confidence", steps=9),
]


@needs_compiler
@pytest.mark.parametrize("name", ["drafting", "block", "block_shifted", "adaptive blocks"])
def test_a_request_that_gave_up_its_memory_goes_on_as_if_it_had_not(
    backbones: Any,  # noqa: F811
    tokenizer: Tokenizer,
    name: str,
    subtests: pytest.Subtests,
) -> None:
    """Many more tokens than there is memory for at once: its rows are computed again, to the bit."""
    if name == "drafting":
        requests = LONG_TEXTS * 2
    else:
        requests = [asked(max_tokens=70 + 7 * number, **SAMPLED) for number in range(10)]
    denoiser = BackboneDenoiser(backbones[name], "native")
    alone = all_alone(denoiser, tokenizer, requests)
    for max_rows in (64, 2048):
        with subtests.test(f"{max_rows} rows"):
            samples = begin(denoiser, tokenizer, requests)
            stats = run_all(
                samples,
                EngineLimits(max_rows=max_rows, cache_rows=384, step_seconds=None, store_prefixes=max_rows == 64),
                1,
            )
            assert stats.preemptions > 2
            for got, want in zip(samples, alone, strict=True):
                check_same(got, want)
