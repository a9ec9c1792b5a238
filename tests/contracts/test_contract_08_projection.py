"""Contract 8: the vocabulary projection runs on the asked positions and nothing else."""

from __future__ import annotations

import pytest
import torch

from daguerre.model import Model


@pytest.mark.parametrize("name", ["causal", "causal_unshifted", "full", "block"])
@pytest.mark.parametrize("mode", ["block", "full"])
def test_only_asked_rows_are_projected(
    models: dict[str, Model], name: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (name, mode) == ("block", "full"):
        pytest.skip("a model with block context refuses mode full")
    model = models[name]
    projected: list[int] = []
    project = model.backbone.logits

    def counted(hidden: torch.Tensor) -> torch.Tensor:
        projected.append(hidden.shape[:-1].numel())
        return project(hidden)

    monkeypatch.setattr(model.backbone, "logits", counted)
    result = model.generate("def long_prompt(a, b, c):\n    " * 3, 24, mode=mode, threshold=0.5)
    before = [result.trace.canvas, *result.trace.replay()]
    spans = [step.span for step in result.trace.steps]
    asked = [len(canvas.at(span).asked()) for canvas, span in zip(before, spans, strict=False)]
    assert projected == asked
