"""What PEFT's `adapter_config.json` says of an adapter that stays beside the matrices of its model."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from daguerre.errors import CheckpointError
from daguerre.models.families.reading import Values, number, unsupported


def rank_of(adapter: Values, where: str, targets: Collection[str]) -> int:
    """The rank of an adapter. UnsupportedError for one that is more than two matrices beside each of these modules, by
    the ends of their names, or some of them; `where`: its config, for errors.
    """
    plain: dict[str, tuple[Any, ...]] = dict.fromkeys(
        ("use_dora", "fan_in_fan_out", "lora_bias", "rank_pattern", "alpha_pattern", "modules_to_save"), (False, {}, [])
    )
    for key, values in ({"peft_type": ("LORA",), "bias": ("none",)} | plain).items():
        if adapter.get(key) is not None and adapter[key] not in values:
            raise unsupported(f"{key}={adapter[key]!r} in {where}")
    modules = adapter.get("target_modules") or list(targets)
    named = modules if isinstance(modules, list) else [str(modules)]
    if not all(str(name).endswith(tuple(targets)) for name in named):
        raise unsupported(f"target_modules={modules!r} in {where}")
    if type(adapter.get("r")) is not int or adapter["r"] < 1:
        raise CheckpointError(f"{where} has no rank r: copy the file again")
    return int(adapter["r"])


def scale_of(adapter: Values, rank: int) -> float:
    """What an adapter's product is multiplied by: alpha / r, or alpha / sqrt(r) (rsLoRA, arXiv 2312.03732)."""
    return number(adapter, "lora_alpha", 8.0) / (math.sqrt(rank) if adapter.get("use_rslora") else rank)
