"""Contract 8: the vocabulary projection runs on the asked positions and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from daguerre.model import Model
from daguerre.models.denoiser import Execution
from executions import EXACT


@pytest.mark.parametrize("name", ["causal", "causal_unshifted", "full", "block"])
@pytest.mark.parametrize("mode", ["block", "full"])
@pytest.mark.parametrize("execution", EXACT)
def test_only_asked_rows_are_projected(
    models: dict[str, Model], name: str, mode: str, execution: Execution, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (name, mode) == ("block", "full"):
        pytest.skip("a model with block context refuses mode full")
    model = models[name]
    projected: list[int] = []
    model = Model(model.backbone, model.tokenizer, execution)
    executor = type(model.denoiser.executor)
    project = executor.logits

    def counted(self: Any, hidden: torch.Tensor) -> torch.Tensor:
        projected.append(hidden.shape[:-1].numel())
        return project(self, hidden)

    monkeypatch.setattr(executor, "logits", counted)
    result = model.generate("def long_prompt(a, b, c):\n    " * 3, 24, mode=mode, threshold=0.5)
    before = [result.trace.canvas, *result.trace.replay()]
    spans = [step.span for step in result.trace.steps]
    asked = [len(canvas.at(span).asked()) for canvas, span in zip(before, spans, strict=False)]
    assert projected == asked
