"""A small report of `daguerre bench` with made-up figures, for tests of its tables, bars and pictures."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from bench_shape import TINY

MACHINE = {
    "processor": "P", "cores": 2, "python": "3", "torch": "2", "daguerre": "0", "commit": "c",
    "instruction_set": "avx2", "best_instruction_set": "avx2", "dtype": "float32",
}  # fmt: skip


def part(found: Any, **settings: Any) -> dict[str, Any]:
    """One part, with the same figures on one thread and on two."""
    return {
        "machine": MACHINE, "busy": 0.01, "seconds": 1.0,
        "settings": {"rounds": 3, "shape": asdict(TINY), "model": "default", **settings},
        "threads": {"1": found, "2": found},
    }  # fmt: skip


def side(speed: float, decode: float, same: float = 0.0) -> dict[str, Any]:
    """One side of parts "peers" and "modes", slower in the first round than in the others."""
    rates = {"tokens_per_second": speed, "decode_tokens_per_second": decode}
    rounds = {name: [0.5 * rate, rate, rate] for name, rate in rates.items()}
    return {
        **rates, "rounds": rounds, "first_seconds": 0.05, "new_tokens": 128, "forwards": 128, "rows": None,
        "tokens_as_ar": same,
    }  # fmt: skip


def row(label: str, mode: str, speed: float) -> dict[str, Any]:
    """One setting of next-line completion."""
    return {
        "label": label, "mode": mode, "num": 10, "accuracy": 0.1, "similarity": 0.4, "tokens_per_forward": 1.5,
        "tokens_per_second": speed,
    }  # fmt: skip


def forwards(ms: list[float], times_torch: list[float]) -> dict[str, list[float]]:
    """One side of part "rows", at 1, 8 and 32 rows."""
    return {
        "rows": [1, 8, 32][: len(ms)], "ms": ms, "times_one_row": [x / ms[0] for x in ms], "times_torch": times_torch,
    }  # fmt: skip


def batch(gain: float, overhead: float, python: float) -> dict[str, Any]:
    """One mode of part "batch"."""
    return {
        "new_tokens": 128, "batches": 128, "alone_tokens_per_second": 100.0, "together_tokens_per_second": 100 * gain,
        "gain": gain, "gain_behind_first": gain + 0.5, "driver_overhead": overhead, "decoding_overhead": 0.1,
        "step_ms": 2.0, "python_ms": python, "python_ms_together": 0.02, "same_text": True,
    }  # fmt: skip


CROWD = [
    {"requests": requests, "ar_ms": 2.0 + 0.1 * requests, "block_ms": 2.0 + 2.0 * requests}
    for requests in (1, 2, 4, 8, 16)
]
SIDES = {
    "ar": side(300, 350, 1), "block 16": side(900, 1000), "block 32": side(700, 2000), "speculative": side(450, 500, 1),
    "ar bfloat16": side(200, 220), "block 8 int8": side(800, 850), "transformers": side(70, 75),
    "LLaDA loop": side(30, 31), "llama.cpp F32": side(250, 400), "llama.cpp BF16": side(100, 150),
}  # fmt: skip
FORWARDS = {
    "native float32": forwards([4.0, 8.0, 20.0], [1.5, 1.25, 0.9]),
    "native int8": forwards([2.0, 5.0, 9.0], [3.0, 2.0, 2.0]),
    "torch float32": forwards([6.0, 10.0, 18.0], [1.0, 1.0, 1.0]),
    "bare products": forwards([3.0, 7.0, 16.0], [2.0, 1.4, 1.1]),
    "llama.cpp F32": forwards([5.0], [1.2]),
}
MODES = {"ar": batch(4.0, 0.02, 0.1), "block 8": batch(1.7, 0.04, 0.5)}
SECONDS = {
    "reading": [0.025, 0.05], "text": [2.0, 1.0], "rows 1": [0.02, 0.01], "rows 4": [0.02, 0.01],
    "rows 8": [0.03, 0.015], "rows 16": [0.04, 0.02],
}  # fmt: skip
PEER_SECONDS = {"llama.cpp text": [4.0, 1.6], "llama.cpp rows 1": [0.03, 0.0125]}
FAMILY: dict[str, Any] = {"bytes": 10**8, "forwards": 80, "canvas": 80, "rows": 143, "failed": None}
BLOCKS = FAMILY | {"forwards": 32, "canvas": 256, "rows": 392}


def deep(layers: int, exact: list[float], dual: list[float], peer: list[float]) -> dict[str, Any]:
    """A shape with full context and few layers."""
    seconds = {"reading": [1.0, 1.0], "text": exact, "approximate_dual text": dual, "llama.cpp canvas": peer}
    one = {"bytes": 10**8, "forwards": 16, "canvas": 2048, "rows": 2048, "failed": None, "seconds": seconds}
    return {"parameters": 1, "block": None, "layers": layers, "deep": 32, "weights": {"approximate_int4": one}}


def real_round(token: float, **own: Any) -> dict[str, Any]:
    """A round of one engine of part "real", in seconds."""
    return {"prompt": 50 * token, "token": token, "tokens": [1], **own}


ROWS = {
    "rows": {"1": 10.0, "8": 16.0, "16": 20.0}, "byte": 8e-8,
    "one": {"all": 1.0, "behind": 1.0}, "many": {"all": 6.0, "behind": 4.0},
}  # fmt: skip
REAL = {
    "file": {"name": "a.gguf", "bytes": 100_000_000, "read": 100_000_000, "kinds": {"Q4_K": 3}},
    "sides": {
        "Daguerre": {
            "load": {"first_seconds": 2.0, "seconds": 0.5, "numbers": "bfloat16"}, "pss": 120_000_000,
            "pss_before": 30_000_000, "keys": 10_000_000, "rounds": [real_round(t, **ROWS) for t in (10.0, 12.0, 11.0)],
        },
        "llama.cpp": {
            "load": {"seconds": 0.4, "release": "b1", "flags": "AVX2 = 1 | ", "built": "haswell"}, "pss": 150_000_000,
            "rounds": [real_round(token) for token in (20.0, 20.0, 90.0)],
        },
    },
    "missing": None,
    "bits": {"bytes": 400, "nats": {"Daguerre": 100.1, "float32": 100.0, "llama.cpp": 100.2}},
    "sizes": {
        "prompt": 512, "new": 64, "context": 256, "window": 512, "windows": 8, "clock": "wall time", "crowd_prompt": 64,
        "crowd_new": 32,
    },
}  # fmt: skip
REPORT: dict[str, Any] = {
    "rows": part(
        {
            "context": 256, "block": 16, "block_rows": 20, "concurrency": CROWD,
            "models": {"random weights": {"parameters": 1000, "sides": FORWARDS, "failed": {"llama.cpp Q8_0": "no"}}},
        }
    ),
    "batch": part(
        {
            "requests": 16,
            "models": {"default": {"parameters": 1000, "modes": MODES}},
        }
    ),
    "infill": part([{"model": "random weights", "policy": "4 a forward", "places": 5, "ms": 55.0, "forwards": 4},
                    {"model": "default", "policy": "default policy", "places": 5, "ms": 31.0, "forwards": 9}]),
    "context": part(
        {"rows": [{"kv_heads": 2, "context": c, "mode": "ar", "ms": ms} for c, ms in ((512, 3.0), (4096, 6.0))]}
    ),
    "families": part(
        {
            "context": 64, "new": 80, "full_new": 64, "full_block": 32,
            "read_bytes": 10**9, "clock": "wall time", "versions": {"torch": "2"},
            "shapes": {
                "qwen3-1.7b": {"parameters": 10**8, "block": None, "deep": None, "weights": {
                    "int8": FAMILY | {"seconds": SECONDS | PEER_SECONDS},
                    "bfloat16": FAMILY | {"seconds": SECONDS, "failed": "install it"}}},
                "sdar-1.7b": {"parameters": 10**8, "block": 8, "deep": None, "weights": {
                    "int8": BLOCKS | {"seconds": SECONDS | PEER_SECONDS}}},
                "llada-8b-2-layers": deep(2, [1.0, 2.0], [0.5, 0.6], [0.25, 0.25]),
                "llada-8b-6-layers": deep(6, [3.0, 3.0], [1.0, 1.1], [0.75, 0.75]),
            },
        }
    ),
    "real": part(REAL),
    "peers": part({"sides": SIDES, "failed": {"diffusers": "gone"}, "versions": {"torch": "2"}}),
    "modes": part(
        {
            "sides": SIDES, "failed": {}, "versions": {"torch": "2"},
            "completion": {"parameters": 5_000_000, "best_no_worse": "block 8, threshold 0.5",
                           "rows": [row("ar", "ar", 100), row("block 8, threshold 0.5", "block", 160)]},
        }
    ),
}  # fmt: skip
