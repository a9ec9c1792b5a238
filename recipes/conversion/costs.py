"""What converting a model with a teacher takes on H100s, by arithmetic alone: hours of so many positions, and memory.

    python recipes/conversion/costs.py --positions 100

A position of text is one clean row of the student and one of the teacher, and an answer's is one masked row besides. A
row of the student costs 2 operations a weight forward, 2 once more, as layers are computed again, and 4 back; one of
the teacher 2. Rows that are scored cost the projection, too, of both models. Writing the answers is not counted.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import torch

from daguerre.models.core.build import make_shapes
from daguerre.models.core.config import ModelConfig
from daguerre.train.memory import BatchRows, memory_of
from daguerre.train.recipe import load_recipe

PEAK, USED = 989e12, 0.4
"""Operations a second of an H100 in bfloat16, without sparsity, and the share of them that training gets."""
ANSWERS, MASKED = 0.6, 0.75
"""The share of positions that are an answer's, and of these the share that is masked."""
ROOM = 80e9
SEQUENCES, LENGTH = 8, 512
TOKENS: dict[str, Any] = {"vocab_size": 151_938, "mask_id": 151_936, "null_id": 151_937, "eos_id": 0, "bos_id": None}
TOKENS |= {"pad_id": 0, "head_width": 128, "block_size": 4, "max_positions": 32_768}
SHAPES = {
    "1.7B": {"width": 2048, "num_layers": 28, "num_heads": 16, "num_kv_heads": 8, "mlp_width": 6144},
    "8B": {"width": 4096, "num_layers": 36, "num_heads": 32, "num_kv_heads": 8, "mlp_width": 12_288, "tied": False},
}
"""Qwen3's."""


def operations(config: ModelConfig) -> float:
    """Operations of a position of text."""
    model = make_shapes(config)
    head = config.vocab_size * config.width
    body = sum(weight.numel() for weight in model.parameters()) - head * (1 if config.tied else 2)
    scored = ANSWERS * (1 + MASKED)
    return body * (8 * (1 + ANSWERS) + 2) + scored * head * (6 + 2)


def gigabytes(config: ModelConfig, devices: int, rank: int = 0) -> float:
    """Memory of each device: of all weights, or with `rank` of factors. Layers are computed again."""
    more = ["checkpoint_layers=true", "attn_impl=sdpa"]
    recipe = replace(load_recipe("convert-chat", more), steps=1, minutes=0.0)
    model = make_shapes(config).requires_grad_(rank == 0)
    rows = int(SEQUENCES * LENGTH * (1 + ANSWERS))
    scored = int(SEQUENCES * LENGTH * ANSWERS * (1 + MASKED))
    memory = memory_of(model, recipe, BatchRows(rows, 0, scored), torch.bfloat16, devices)
    if not rank:
        return memory.total / 1e9
    factors = rank * sum(sum(w.shape) for name, w in model.named_parameters() if w.ndim == 2 and "layers" in name)
    frozen = 2 * 2 * sum(weight.numel() for weight in model.parameters())  # of both models
    return ((frozen + 5 * 4 * factors) / devices + memory.activations) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--positions", type=float, default=100.0, help="millions of positions of text")
    positions = parser.parse_args().positions
    print("| model | H100s | hours | GB each, all weights | GB each, factors of rank 16 |")
    print("|---|---:|---:|---:|---:|")
    for name, shape in SHAPES.items():
        config = ModelConfig(**shape, **TOKENS)
        for devices in (1, 8):
            hours = positions * 1e6 * operations(config) / (PEAK * USED * devices) / 3600
            sizes = [gigabytes(config, devices, rank) for rank in (0, 16)]
            cells = [f"{size:.0f}" + (" (too much)" if 1e9 * size > ROOM else "") for size in sizes]
            print(f"| {name} | {devices} | {hours:.1f} | {cells[0]} | {cells[1]} |")


if __name__ == "__main__":
    main()
