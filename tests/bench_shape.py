"""The shape that tests of `daguerre bench` measure."""

from __future__ import annotations

from daguerre.evals.bench.job import BenchShape

TINY = BenchShape(
    width=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    mlp_width=64,
    vocab_size=2048,
    prompt_tokens=16,
    new_tokens=16,
)
