"""The suite where PyTorch is not installed: tests that need it are skipped, for one reason, and the others run.

What needs it is not listed: a file that imports it, itself or through others, cannot be read without it, and a test
that computes with it meets an error that says so.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from importlib.util import find_spec
from typing import Any, NoReturn

import numpy as np
import pytest

from daguerre.errors import MissingExtra
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.parameters import parameter_shapes
from daguerre.models.model_weights import ModelWeights, Part, layer_of

HAS_TORCH = find_spec("torch") is not None
REASON = "needs PyTorch, which is not installed"
NOT_FOUND = "No module named 'torch'"
SAID = str(MissingExtra("torch", "torch"))
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason=REASON)


class WithoutTorch:
    """A plugin of pytest to which the absence of PyTorch is a reason to skip."""

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, Any, Any]:
        report = yield
        if report.failed and NOT_FOUND in report.longreprtext:
            report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: {REASON}")
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, Any, Any]:
        return (yield from skipped())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        return (yield from skipped())


def skipped() -> Generator[None, Any, Any]:
    """A step of a test, which is skipped where it meets the absence of PyTorch."""
    try:
        return (yield)
    except Exception as error:
        if is_absence(error):
            pytest.skip(REASON)
        raise


def is_absence(error: BaseException) -> bool:
    """Whether an error says that PyTorch is not there."""
    return str(error) == SAID or (isinstance(error, ImportError) and NOT_FOUND in str(error))


def skip_if_absent(printed: str) -> None:
    """Skip a test where a command has printed that PyTorch is not installed, and it is not."""
    if not HAS_TORCH and SAID in printed:
        pytest.skip(REASON)


class DrawnWeights(ModelWeights):
    """Random weights of float32 without PyTorch, distributed as those of `Backbone.initialize`."""

    def __init__(self, config: ModelConfig, arrays: Mapping[str, np.ndarray]) -> None:
        self.config, self.numbers, self._arrays = config, "float32", arrays

    def part(self, layer: int | None) -> Part:
        named = ((layer_of(name), array) for name, array in self._arrays.items())
        return {name: array for (number, name), array in named if number == layer}

    def module(self) -> NoReturn:
        raise MissingExtra("torch", "torch")


def draw_weights(config: ModelConfig, seed: int, scale: float, branches: float) -> DrawnWeights:
    """Weights of variance 1/fan-in, those of the embedding times `scale`, of outputs of branches times `branches`."""
    generator = np.random.default_rng(seed)

    def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if len(shape) < 2:
            return np.full(shape, 0.0 if name.endswith("bias") else 1.0, np.float32)
        factor = shape[-1] ** -0.5
        if name.endswith("embedding.weight"):
            factor = scale * config.width**-0.5
        elif name.startswith("self_conditioning"):
            factor *= 0.3
        elif name.endswith(("out.weight", "down.weight")):
            factor *= branches
        return factor * generator.standard_normal(shape, np.float32)

    return DrawnWeights(config, {name: draw(name, shape) for name, shape in parameter_shapes(config).items()})
