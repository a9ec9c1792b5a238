"""Milliseconds of a denoising step at 8B shapes over its floor, beside a token of transformers' `generate`.

    python benchmarks/gpu.py [--tiny --device cpu] [--out FILE]

It has never run on a CUDA device; `--tiny --device cpu` shows that it runs.

Weights are random, in bfloat16. A step of the torch backend draws the likeliest token for BLOCK rows of a request: at
the shape of LLaDA all rows of the canvas are computed, at that of block diffusion those of the block, behind a cache.
The floor is the larger of two times: bytes of weights and cache over the measured bandwidth of a copy, and operations
over the measured rate of a product. Only our embeddings are tied. None: no memory.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daguerre.evals.machine import machine_facts
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import Draws, Forward, Layout, Rules

BLOCK, ROUNDS, DTYPE = 32, 5, torch.bfloat16
BATCHES, CONTEXTS = (1, 8, 32), (512, 4096)
SHAPES: dict[str, dict[str, Any]] = {
    "LLaDA 8B": {"num_layers": 32, "num_kv_heads": 32, "vocab_size": 126_464, "context": "full"},
    "block diffusion 8B": {"num_layers": 36, "num_kv_heads": 8, "vocab_size": 151_936, "context": "block"},
}
FACTS = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "mask_id": 3, "shift": False, "block_size": BLOCK}
LARGE = {"width": 4096, "num_heads": 32, "mlp_width": 12_288}
TINY = {"width": 64, "num_heads": 4, "mlp_width": 128, "num_layers": 2, "num_kv_heads": 4, "vocab_size": 512}


def random(build: Callable[[], Any], device: str) -> Any:
    """A module with weights drawn on the device."""
    torch.set_default_dtype(DTYPE)
    with torch.device(device):
        built = build().eval().requires_grad_(False)
    torch.set_default_dtype(torch.float32)
    return built


def milliseconds(call: Callable[[], object], device: str) -> float:
    """Median over ROUNDS, after two to warm up; a call has ended when the device has."""
    took = []
    for _ in range(ROUNDS + 2):
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        took.append(1e3 * (time.perf_counter() - start))
    return statistics.median(took[2:])


def limits(device: str, tiny: bool) -> dict[str, float]:
    """Bytes a second of a copy, read and written, and operations a second of a large product."""
    size, num = (1 << 22, 256) if tiny else (1 << 30, 8192)
    given, taken = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
    one = torch.randn(num, num, dtype=DTYPE, device=device)
    copied, multiplied = milliseconds(lambda: taken.copy_(given), device), milliseconds(lambda: one @ one, device)
    return {"bytes a second": 2e3 * size / copied, "operations a second": 2e3 * num**3 / multiplied}


def floor(backbone: Backbone, batch: int, context: int, limit: dict[str, float]) -> float:
    """Milliseconds that a step cannot do without. Products with the embedding are of the wanted rows alone."""
    config, full = backbone.config, backbone.config.context == "full"
    head = backbone.embedding.weight.numel()
    inner = backbone.num_parameters - head
    rows, keys = (context if full else BLOCK), context + (0 if full else BLOCK)
    cached = 0 if full else 2 * config.num_layers * config.num_kv_heads * config.head_width * context * batch
    attention = 4 * config.num_layers * config.width * rows * keys * batch
    operations = 2 * batch * (inner * rows + head * BLOCK) + attention
    moved = (inner + head + cached) * DTYPE.itemsize
    return 1e3 * max(moved / limit["bytes a second"], operations / limit["operations a second"])


def step(backend: TorchBackend, batch: int, context: int) -> Callable[[], object]:
    """A step of so many requests. Cached keys are zeros, which take as long as any."""
    config, forwards, rng = backend.config, list[Forward](), np.random.default_rng(0)
    past, rows = (0, context) if config.context == "full" else (context, BLOCK)
    for _ in range(batch):
        cache: Any = None
        if past:
            cache = backend.cache(past)
            cache.reserve(past, past)
            cache.commit(past)
        layout = Layout(np.arange(past, past + rows), np.full(rows, past + rows, dtype=np.int32), 0)
        wanted = np.arange(rows - BLOCK, rows, dtype=np.int32)
        draws = Draws(Rules(), layout.position[wanted])
        forwards.append(Forward(rng.choice(config.ordinary_ids, rows), layout, cache, wanted, draws))
    return lambda: backend.forward(forwards)


def transformers_token(backbone: Backbone, batch: int, context: int, device: str) -> float:
    """Milliseconds of one more token by `generate` of transformers, its Llama at the same shape."""
    from transformers import LlamaConfig, LlamaForCausalLM

    c = backbone.config
    sizes = {"vocab_size": c.vocab_size, "hidden_size": c.width, "intermediate_size": c.mlp_width}
    heads = {"num_attention_heads": c.num_heads, "num_key_value_heads": c.num_kv_heads}
    ends = {"max_position_embeddings": c.max_positions, "bos_token_id": None, "eos_token_id": None}
    config = LlamaConfig(**sizes, **heads, **ends, num_hidden_layers=c.num_layers)
    model = random(lambda: LlamaForCausalLM(config), device)
    prompt = torch.randint(16, c.vocab_size, (batch, context), device=device)

    def run(num: int) -> object:
        seen = torch.ones_like(prompt)
        return model.generate(prompt, attention_mask=seen, max_new_tokens=num, min_new_tokens=num, do_sample=False)

    return (milliseconds(lambda: run(BLOCK + 1), device) - milliseconds(lambda: run(1), device)) / BLOCK


def or_none(call: Callable[[], float]) -> float | None:
    """What a call says; None where the device has too little memory for it."""
    try:
        return call()
    except torch.OutOfMemoryError:
        return None
    finally:
        gc.collect()
        torch.cuda.empty_cache()


@torch.inference_mode()
def measure(device: str, tiny: bool) -> dict[str, Any]:
    limit, found = limits(device, tiny), []
    for name, facts in SHAPES.items():
        config = ModelConfig(max_positions=8192, **facts | FACTS | (TINY if tiny else LARGE))
        backbone = random(lambda config=config: Backbone(config), device)
        for context, batch in itertools.product((64, 128) if tiny else CONTEXTS, (1, 2) if tiny else BATCHES):
            shape = backbone, batch, context, device
            run = step(TorchBackend(backbone), batch, context)
            took, least = or_none(lambda run=run: milliseconds(run, device)), floor(backbone, batch, context, limit)
            over = None if took is None else took / least
            found.append({"shape": name, "context": context, "batch": batch, "floor": least})
            found[-1] |= {"torch": took, "torch / floor": over}
            found[-1]["transformers token"] = or_none(lambda shape=shape: transformers_token(*shape))
            print(json.dumps(found[-1]), flush=True)
    return {"limits": limit, "milliseconds": found}


def main() -> None:
    parser = argparse.ArgumentParser(description="A denoising step at 8B shapes over its floor, beside transformers.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small shapes, to see that it runs")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gpu.json"))
    given = parser.parse_args()
    facts = {"machine": machine_facts(given.device), "date": time.strftime("%Y-%m-%d"), "command": sys.argv}
    given.out.write_text(json.dumps({**facts, **measure(given.device, given.tiny)}, indent=2) + "\n")


if __name__ == "__main__":
    main()
