"""Contract 8: the vocabulary projection runs on the wanted positions and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import main_path
from backends import needs_compiler
from daguerre.model import Model
from daguerre.models.core.backbone import Backbone
from daguerre.models.forward import Forward, Layout, Logits
from driving import Recorded

PROMPT = "def long_prompt(a, b, c):\n    " * 3
CASES = [
    ("causal", {"mode": "block", "threshold": 0.5}),
    ("causal", {"mode": "ar"}),
    ("causal", {"mode": "full", "threshold": 0.5}),
    ("causal_unshifted", {"mode": "block", "threshold": 0.5}),
    ("full", {"mode": "full", "threshold": 0.5}),
    ("block", {"mode": "block", "threshold": 0.5}),
]


def wanted_of(denoiser: Any, model: Model, options: dict[str, Any]) -> list[int]:
    """How many rows each forward wants, which are the positions that are open in its span."""
    recorded = Recorded(denoiser)
    result = main_path.generate(recorded, model.tokenizer, PROMPT, 24, **options)
    before = [result.trace.canvas, *result.trace.replay()]
    spans = [step.span for step in result.trace.steps]
    opened = [len(canvas.at(span).active_positions()) for canvas, span in zip(before, spans, strict=False)]
    wanted = [len(one.wanted) for one in recorded.backend.forwards]
    assert wanted == opened
    assert sum(wanted) < sum(len(one.tokens) for one in recorded.backend.forwards)
    return wanted


def test_open_positions_alone_are_projected(
    models: dict[str, Model], monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """Counted in the torch backend."""
    projected: list[int] = []
    project = Backbone.logits

    def counted(self: Backbone, hidden: Any) -> Any:
        projected.append(hidden.shape[:-1].numel())
        return project(self, hidden)

    monkeypatch.setattr(Backbone, "logits", counted)
    for name, options in CASES:
        with subtests.test(name, options=options):
            projected.clear()
            model = Model(models[name].backbone, models[name].tokenizer, "torch")
            assert wanted_of(model.denoiser, model, options) == projected


@needs_compiler
def test_the_native_backend_has_memory_for_the_wanted_rows_alone(causal: Model) -> None:
    """Logits of a batch are one array, with a row for each that is wanted."""
    backend = Model(causal.backbone, causal.tokenizer, "native").denoiser.backend
    wanted = [np.array([39], dtype=np.int32), np.array([3, 7], dtype=np.int32)]
    layout = Layout(np.arange(40), np.arange(1, 41, dtype=np.int32), 40)
    answers = backend.forward([Forward(np.arange(40) + 20, layout, None, rows, Logits()) for rows in wanted])
    for rows, answer in zip(wanted, answers, strict=True):
        assert answer.logits is not None
        assert answer.logits.shape == (len(rows), causal.config.vocab_size)
        assert answer.logits.base is not None
        assert answer.logits.base.shape == (3, causal.config.vocab_size)
