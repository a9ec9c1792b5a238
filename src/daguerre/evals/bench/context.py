"""Milliseconds of a new token against the number of tokens before it, with few and many key-value heads.

The prompt is in the cache before the clock starts. `ar`, and blocks of BLOCK of which a forward commits FORCED tokens,
in the type that the processor multiplies natively.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

from daguerre.decoding.generate import Request, plan_of
from daguerre.decoding.plan import Plan
from daguerre.decoding.request import Decode
from daguerre.evals.bench.job import FORCED, BenchShape, random_model, random_tokens
from daguerre.evals.shared import SharedSession
from daguerre.evals.workers import Progress

CONTEXTS = (512, 1024, 2048, 4096)
KV_HEADS = (2, 8)
BLOCK, NEW = 16, 32
WARM_UP = 1


def measure(options: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """options: shape, rounds, contexts, kv_heads."""
    shape, rounds = BenchShape(**options["shape"]), options["rounds"]
    cases: list[tuple[dict[str, Any], SharedSession, Plan]] = []
    for heads in options["kv_heads"]:
        model = random_model(replace(shape, num_kv_heads=heads), "auto", max(options["contexts"]) + NEW)
        for context in options["contexts"]:
            prompt = random_tokens(model.config, (context - 1,)).tolist()
            for mode, decode in decodes().items():
                request = Request.of("generate", prompt, NEW, decode, heal=False)
                plan = plan_of(model.denoiser, model.tokenizer, request)
                shared = SharedSession(model.denoiser, plan.canvas)
                cases.append(({"kv_heads": heads, "context": context, "mode": mode}, shared, plan))
    took: list[list[float]] = [[] for _ in cases]
    for number in range(rounds + WARM_UP):
        for index, (case, shared, plan) in enumerate(cases):
            progress(f"context {case['context']}, {case['kv_heads']} KV heads", number, rounds + WARM_UP)
            shared.prefill(plan)
            took[index].append(1e3 * shared.timed(plan)[0] / NEW)
    rows = [case | {"ms": statistics.median(ms[WARM_UP:])} for (case, _, _), ms in zip(cases, took, strict=True)]
    return {"new_tokens": NEW, "block": BLOCK, "per_forward": FORCED, "rows": rows}


def decodes() -> dict[str, Decode]:
    """The settings, by name."""
    steps = BLOCK // FORCED
    return {
        "ar": Decode(mode="ar", min_tokens=NEW),
        f"block {BLOCK}": Decode(mode="block", block_size=BLOCK, policy="confidence", steps=steps, min_tokens=NEW),
    }


def growth(rows: list[dict[str, Any]], mode: str, kv_heads: int) -> float:
    """Cost of a token at the longest context over that at the shortest."""
    found = sorted((r for r in rows if r["mode"] == mode and r["kv_heads"] == kv_heads), key=lambda r: r["context"])
    return float(found[-1]["ms"] / found[0]["ms"])
