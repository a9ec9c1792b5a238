"""Milliseconds of a denoising step over its floor at published shapes, beside transformers at the same shape.

    python benchmarks/gpu.py [--out FOLDER] [--tiny --device cpu]

`--tiny --device cpu` shows that it runs. Weights are random, in bfloat16, and made on the device. A step draws the
likeliest token for BLOCK rows of each request: at the shape of LLaDA all rows of the canvas are computed, at that of
SDAR those of the block, behind cached keys of the context. Transformers computes the same rows over the same keys by
its Llama and Qwen3, without masks, and takes the likeliest tokens of the block, too.

The floor is the larger of two times: bytes of weights and cached keys over the measured bandwidth of a copy, and
operations over the measured rate of a product. Times are medians by events of the device, those of the processor's
work between its kernels included; "kernels" is the sum of the kernels of one step. None: too little memory or time.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daguerre.evals.machine import machine_facts
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.build import make_backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.families import FAMILIES
from daguerre.models.families.base import Published
from daguerre.models.forward import Draws, Forward, Layout, Rules

BLOCK, DTYPE, A_FORWARD = 32, torch.bfloat16, 2.5
LEAST, MOST, SECONDS = 3, 15, 2.0
"""How often a step is measured, at least and at most, and how many seconds of it are enough."""
BATCHES, CONTEXTS = (1, 8, 32), (512, 4096)
LLADA: dict[str, Any] = {
    "d_model": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 32, "mlp_hidden_size": 12_288,
    "max_sequence_length": 8192, "vocab_size": 126_464, "embedding_size": 126_464, "rope": True, "rope_theta": 5e5,
    "rms_norm_eps": 1e-5, "weight_tying": False, "activation_type": "silu", "block_type": "llama",
    "layer_norm_type": "rms", "eos_token_id": 126_081, "pad_token_id": 126_081, "mask_token_id": 126_336,
}  # fmt: skip
SDAR: dict[str, Any] = {
    "hidden_size": 2048, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 6144, "vocab_size": 151_936, "max_position_embeddings": 32_768, "rms_norm_eps": 1e-6,
    "hidden_act": "silu", "rope_theta": 1e6, "rope_scaling": None, "tie_word_embeddings": True,
    "attention_bias": False, "use_sliding_window": False, "sliding_window": None, "eos_token_id": 151_643,
    "bos_token_id": 151_643, "mask_token_id": 151_669, "block_size": BLOCK,
}  # fmt: skip
SHAPES = {"LLaDA-8B": ("llada", LLADA), "SDAR-1.7B": ("sdar", SDAR)}
"""Families and what the published config.json says of the shape."""
TINY = {"width": 64, "num_layers": 2, "num_heads": 4, "head_width": 16, "mlp_width": 96}
Call = Callable[[], object]


@dataclass(frozen=True)
class Limits:
    """What the device was measured to do: bytes a second of a copy, read and written, and operations a second."""

    bandwidth: float
    rate: float


@dataclass(frozen=True)
class Shape:
    """A step: a model's, of so many requests with so many tokens before the block."""

    config: ModelConfig
    batch: int
    context: int

    @property
    def past(self) -> int:
        """Tokens whose keys are cached."""
        return 0 if self.config.context == "full" else self.context

    @property
    def rows(self) -> int:
        """Rows of a request."""
        return self.context + BLOCK - self.past

    def floor(self, limits: Limits) -> float:
        """Milliseconds that the step cannot do without. Products with the vocabulary are of the block's rows alone."""
        config, batch, keys = self.config, self.batch, self.past + self.rows
        heads, of_keys = config.num_heads * config.head_width, config.num_kv_heads * config.head_width
        layer = config.width * (2 * heads + 2 * of_keys + 3 * config.mlp_width)
        inner, head = config.num_layers * layer, config.vocab_size * config.width
        attention = 4 * config.num_layers * heads * self.rows * keys * batch
        operations = 2 * batch * (inner * self.rows + head * BLOCK) + attention
        moved = DTYPE.itemsize * (inner + head + 2 * config.num_layers * of_keys * self.past * batch)
        return 1e3 * max(moved / limits.bandwidth, operations / limits.rate)


class Clock:
    """Measures calls on a device, until a time at which no further one is begun."""

    def __init__(self, device: str, seconds: float) -> None:
        self.on_gpu, self._end = device == "cuda", time.monotonic() + seconds

    def is_over(self) -> bool:
        return time.monotonic() > self._end

    def once(self, call: Call) -> float:
        """Milliseconds of a call."""
        if not self.on_gpu:
            start = time.perf_counter()
            call()
            return 1e3 * (time.perf_counter() - start)
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        call()
        last.record()
        torch.cuda.synchronize()
        return float(first.elapsed_time(last))

    def milliseconds(self, call: Call) -> dict[str, Any]:
        """The median, the least and the number of calls, after two to warm up; one where they take a second."""
        if self.once(call) < 1e3:
            call()
        took, start = list[float](), time.monotonic()
        while len(took) < LEAST or (len(took) < MOST and time.monotonic() - start < SECONDS):
            took.append(self.once(call))
        return {"ms": statistics.median(took), "least": min(took), "calls": len(took)}

    def kernels(self, call: Call) -> float | None:
        """Milliseconds of all kernels of a call together; None without a device, or time."""
        if not self.on_gpu or self.is_over():
            return None
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            call()
            torch.cuda.synchronize()
        return sum(event.self_device_time_total for event in seen.key_averages()) / 1e3

    def peak(self, call: Call) -> float | None:
        """The most GiB that the device has held in a call, weights included."""
        if not self.on_gpu:
            return None
        torch.cuda.reset_peak_memory_stats()
        call()
        return torch.cuda.max_memory_allocated() / 2**30


def measured_limits(device: str, tiny: bool) -> Limits:
    """Of a large copy and a large product, on random numbers."""
    clock, size, num = Clock(device, 60), 1 << (22 if tiny else 31), 256 if tiny else 8192
    given = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    taken, (one, other) = torch.empty_like(given), torch.randn(2, num, num, dtype=DTYPE, device=device)
    copied = clock.milliseconds(lambda: taken.copy_(given))["ms"]
    multiplied = clock.milliseconds(lambda: one @ other)["ms"]
    return Limits(2e3 * size / copied, 2e3 * num**3 / multiplied)


@torch.no_grad()
def random_weights(module: Any, device: str) -> Any:
    """A module of the meta device, on a device: norms are ones, all else is drawn."""
    made = module.to(DTYPE).to_empty(device=device).eval().requires_grad_(False)
    for weight in made.parameters():
        weight.fill_(1.0) if weight.dim() < 2 else weight.normal_(0, weight.shape[-1] ** -0.5)
    return made


def backbone_of(config: ModelConfig, device: str) -> Backbone:
    with torch.device("meta"):
        made = make_backbone(config)
    made = random_weights(made, device)
    made.never = torch.tensor(config.unpredictable_ids, dtype=torch.int64, device=device)
    return made


def config_of(name: str, tiny: bool) -> ModelConfig:
    family, values = SHAPES[name]
    config = FAMILIES[family].read(Published(config=values, name=f"{name}-b{BLOCK}"))
    if not tiny:
        return config
    kv = 4 if config.num_kv_heads == config.num_heads else 2
    ids = {"vocab_size": 512, "mask_id": 500, "eos_id": 501, "pad_id": 501, "bos_id": None, "end_ids": ()}
    return replace(config, **TINY, **ids, num_kv_heads=kv, reserved_ids=(500, 501))


def our_step(backend: TorchBackend, shape: Shape) -> Call:
    """A forward of all requests, each with a cache of its own."""
    config, forwards, rng = shape.config, list[Forward](), np.random.default_rng(0)
    for _ in range(shape.batch):
        cache: Any = None
        if shape.past:
            cache = backend.cache(shape.past + BLOCK)
            cache.reserve(shape.past + BLOCK, shape.past)
            for stored in (cache.keys, cache.values):
                stored.normal_()
            cache.commit(shape.past)
        keys = shape.past + shape.rows
        layout = Layout(np.arange(shape.past, keys), np.full(shape.rows, keys, dtype=np.int32), 0)
        wanted = np.arange(shape.rows - BLOCK, shape.rows, dtype=np.int32)
        draws = Draws(Rules(), layout.position[wanted])
        forwards.append(Forward(rng.choice(config.ordinary_ids, shape.rows), layout, cache, wanted, draws))
    return lambda: backend.forward(forwards)


@contextmanager
def without_masks(module: Any) -> Iterator[None]:
    """Inside, a module of transformers makes no causal masks."""
    made = module.create_causal_mask
    module.create_causal_mask = lambda *_, **__: None
    try:
        yield
    finally:
        module.create_causal_mask = made


def peer_of(config: ModelConfig, device: str) -> tuple[Any, Any]:
    """Transformers' model of the same shape, and the module that it is of."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
    from transformers.models.llama import modeling_llama
    from transformers.models.qwen3 import modeling_qwen3

    sizes: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "intermediate_size": config.mlp_width,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_width,
        "max_position_embeddings": config.max_positions,
        "tie_word_embeddings": config.tied,
        "bos_token_id": None,
        "eos_token_id": None,
        "attn_implementation": "sdpa",
    }
    full = config.context == "full"
    module = modeling_llama if full else modeling_qwen3
    with torch.device("meta"):
        made: Any = LlamaForCausalLM(LlamaConfig(**sizes)) if full else Qwen3ForCausalLM(Qwen3Config(**sizes))
    made = random_weights(made, device)
    if config.tied:
        made.tie_weights()
    made.model.rotary_emb = type(made.model.rotary_emb)(made.config).to(device)
    for layer in made.model.layers:
        layer.self_attn.is_causal = False
    return made, module


def peer_step(model: Any, module: Any, shape: Shape, device: str) -> Call:
    """The same rows in one forward of a batch, behind one cache."""
    from transformers import DynamicCache

    config, cache = shape.config, None
    tokens = torch.randint(0, config.vocab_size, (shape.batch, shape.rows), device=device)
    positions = torch.arange(shape.past, shape.past + shape.rows, device=device)[None]
    if shape.past:
        cache = DynamicCache(config=model.config)
        size = (shape.batch, config.num_kv_heads, shape.past, config.head_width)
        for layer in range(config.num_layers):
            cache.update(*torch.randn(2, *size, dtype=DTYPE, device=device), layer)

    def step() -> object:
        with without_masks(module):
            out = model(
                input_ids=tokens,
                position_ids=positions,
                past_key_values=cache,
                use_cache=cache is not None,
                logits_to_keep=BLOCK,
            )
        if cache is not None:
            cache.crop(-shape.rows)
        return out.logits.float().softmax(-1).max(-1).values.cpu()

    return step


def or_none(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a call says; what it lacks where the device has too little memory."""
    try:
        return call()
    except torch.OutOfMemoryError:
        return {"ms": None, "why": "too little memory"}
    finally:
        release()


def release() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def measured(clock: Clock, make: Callable[[], Call]) -> dict[str, Any]:
    """The times of a step, its kernels' and its memory."""
    if clock.is_over():
        return {"ms": None, "why": "too little time"}
    call = make()
    peak = clock.peak(call)
    return {**clock.milliseconds(call), "kernels": clock.kernels(call), "GiB": peak}


def shapes_of(config: ModelConfig, tiny: bool) -> list[Shape]:
    """The quick ones first."""
    every = itertools.product((1, 2) if tiny else BATCHES, (64, 128) if tiny else CONTEXTS)
    return sorted((Shape(config, *each) for each in every), key=lambda shape: shape.batch * shape.context)


@torch.inference_mode()
def measure(device: str, tiny: bool, seconds: float, limits: Limits) -> Iterator[dict[str, Any]]:
    """A row for each model, batch and context, those of ours first."""
    clock, rows = Clock(device, seconds), dict[tuple[str, int, int], dict[str, Any]]()
    for name in reversed(SHAPES):
        config = config_of(name, tiny)
        shapes = shapes_of(config, tiny)
        backend = TorchBackend(backbone_of(config, device))
        for shape in shapes:
            own = or_none(lambda shape=shape, backend=backend: measured(clock, lambda: our_step(backend, shape)))
            place = {"model": name, "batch": shape.batch, "context": shape.context}
            rows[name, shape.batch, shape.context] = {**place, "floor": shape.floor(limits), "ours": own}
            print(name, shape.batch, shape.context, json.dumps(own), flush=True)
        backend = None  # type: ignore[assignment]
        release()
        model, module = peer_of(config, device)
        for shape in shapes:
            beside = lambda shape=shape, model=model, module=module: peer_step(model, module, shape, device)  # noqa: E731
            row = rows[name, shape.batch, shape.context]
            row["transformers"] = or_none(lambda beside=beside: measured(clock, beside))
            print("transformers", json.dumps(row["transformers"]), flush=True)
            yield row
        model = None
        release()


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def table(found: dict[str, Any]) -> str:
    """The page of these figures."""
    lines = [
        "# A denoising step on a GPU",
        "",
        f"{found['device']}, {found['date'][:10]}, commit {found['commit']}: `{found['command']}`, torch "
        f"{found['torch']}, transformers {found['transformers']}. Measured: a copy moves "
        f"{found['bandwidth'] / 1e12:.2f} TB/s, a product does {found['rate'] / 1e12:.0f} TFLOP/s. Times in "
        f"milliseconds; tokens a second at {A_FORWARD} a forward.",
        "",
        "| model | batch | context | floor | ours | / floor | kernels | transformers | / floor | ours / transformers | "
        "tokens/s | GiB |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        own, other, floor = row["ours"]["ms"], row["transformers"]["ms"], row["floor"]
        cells = [
            row["model"], str(row["batch"]), str(row["context"]), number(floor), number(own),
            number(own and own / floor), number(row["ours"].get("kernels")), number(other),
            number(other and other / floor), number(own and other and own / other),
            number(own and 1e3 * A_FORWARD * row["batch"] / own, 0), number(row["ours"].get("GiB"), 1),
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small shapes, to see that it runs")
    parser.add_argument("--seconds", type=float, default=180, help="after which no measurement is begun")
    parser.add_argument("--commit", help="where there is no repository")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    asked = parser.parse_args()
    import transformers

    limits = measured_limits(asked.device, asked.tiny)
    print(limits, flush=True)
    facts = machine_facts(asked.device)
    found: dict[str, Any] = {
        **facts,
        "commit": asked.commit or facts["commit"],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "python " + " ".join(sys.argv),
        "transformers": transformers.__version__,
        "bandwidth": limits.bandwidth,
        "rate": limits.rate,
        "block": BLOCK,
        "rows": [],
    }
    asked.out.mkdir(parents=True, exist_ok=True)
    for row in measure(asked.device, asked.tiny, asked.seconds, limits):
        found["rows"].append(row)
        (asked.out / "gpu.json").write_text(json.dumps(found, indent=1) + "\n")
        (asked.out / "gpu.md").write_text(table(found))
    print(table(found))


if __name__ == "__main__":
    main()
