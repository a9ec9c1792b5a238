"""Models on a CUDA device. DAGUERRE_TEST_DEVICE=cpu runs the same tests without one."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from conftest import CONTEXTS
from daguerre.model import Model

OnDevice = Callable[..., Model]
DEVICE = os.environ.get("DAGUERRE_TEST_DEVICE", "cuda")
collect_ignore_glob = [] if DEVICE != "cuda" or torch.cuda.is_available() else ["test_*.py"]
"""Without a device no file here is read; DAGUERRE_TEST_DEVICE=cpu reads them all."""


@pytest.fixture(scope="session")
def device() -> str:
    """The device that all models here are on."""
    return DEVICE


@pytest.fixture(scope="session")
def on_device(device: str, make_model: Any) -> OnDevice:
    """Make a model of backend "torch": on_device(dtype, **facts of the config)."""

    @cache
    def make(dtype: torch.dtype = torch.float32, **facts: Any) -> Model:
        made = make_model(**facts)
        return Model(made.backbone.to(device, dtype), made.tokenizer, "torch")

    return make


@pytest.fixture(scope="module")
def models(on_device: OnDevice) -> dict[str, Model]:
    """One model for each context, by name, in float32."""
    return {name: on_device(torch.float32, **facts) for name, facts in CONTEXTS.items()}


@pytest.fixture(scope="module")
def causal(models: dict[str, Model]) -> Model:
    return models["causal"]
