"""The type that a run multiplies in."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from daguerre.models.processor import native_dtype

PRECISIONS = ("auto", "bf16", "float32")
Mixed = Callable[[], AbstractContextManager[Any]]
"""Makes a context in which a run multiplies in its precision."""


def choose_precision(name: str, device: torch.device) -> tuple[torch.dtype, str]:
    """What a recipe's precision stands for on a device, and a line that says so.

    "auto" is bfloat16 where the device multiplies it natively, else float32, which is then many times faster.
    """
    if name != "auto":
        dtype = torch.bfloat16 if name == "bf16" else torch.float32
        slow = dtype is torch.bfloat16 and native_dtype(device) is not dtype
        return dtype, f"{name}: as the recipe says" + (
            f"; this {_kind(device)} emulates bfloat16, which is slow: set precision=auto" if slow else ""
        )
    dtype = native_dtype(device)
    if dtype is torch.bfloat16:
        return dtype, f"bf16: this {_kind(device)} multiplies bfloat16 natively"
    return dtype, f"float32: this {_kind(device)} does not multiply bfloat16 natively"


def _kind(device: torch.device) -> str:
    return "processor" if device.type == "cpu" else f"{device.type} device"
