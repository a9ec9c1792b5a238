"""Evaluations that are shorter where a test is not about what they measure."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def few() -> Iterator[None]:
    """A correction has two rounds at most, and texts are written in few steps: both have tests of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("daguerre.evals.correction.ROUNDS", 2)
        patch.setattr("daguerre.evals.steps.STEPS", (2, 8))
        yield


@pytest.fixture
def preloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes begin as copies of one that has imported PyTorch, not as new ones, which takes seconds each."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["torch", "torch.distributed.tensor", "daguerre.train.trainer"])
    monkeypatch.setattr(multiprocessing, "get_context", lambda method=None: made)
