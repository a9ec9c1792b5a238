"""Models on a CUDA device. DAGUERRE_TEST_DEVICE=cpu runs the same tests without one: what repeats a step is plain."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from captures import Fixed, in_place
from conftest import CONTEXTS
from daguerre.model import Model
from daguerre.models.captured import CapturedBackbone

OnDevice = Callable[..., Model]


@pytest.fixture(scope="session")
def device() -> str:
    """The device that all models here are on."""
    name = os.environ.get("DAGUERRE_TEST_DEVICE", "cuda")
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return name


@pytest.fixture(scope="session")
def on_device(device: str, make_model: Any) -> OnDevice:
    """Make a model: on_device(dtype, execution, **facts of the config); of full context always by the reference."""

    @cache
    def make(dtype: torch.dtype = torch.float32, execution: str = "reference", **facts: Any) -> Model:
        made = make_model(**facts)
        if execution == "reference" or made.config.context == "full":
            return Model(made.backbone.to(device, dtype), made.tokenizer, "reference")
        model = Model(made.backbone.to(device, dtype), made.tokenizer, "compiled")
        if device == "cpu":
            model.denoiser = Fixed(CapturedBackbone(model.backbone, in_place))  # type: ignore[assignment]
        return model

    return make


@pytest.fixture(scope="module", params=["reference", "compiled"])
def models(request: pytest.FixtureRequest, on_device: OnDevice) -> dict[str, Model]:
    """One model for each context, by name."""
    return {name: on_device(torch.float32, request.param, **facts) for name, facts in CONTEXTS.items()}


@pytest.fixture(scope="module")
def causal(models: dict[str, Model]) -> Model:
    return models["causal"]
