"""Quality against deadline: what is counted, under a clock of forwards."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from daguerre.decoding.request import Decode
from daguerre.errors import DataError
from daguerre.evals.deadline import METHODS, Ticking, quality_by_deadline
from daguerre.evals.harness import evaluate
from daguerre.evals.options import EvalLimits
from daguerre.evals.report import markdown
from daguerre.evals.spans import make_spans
from daguerre.heldout import Document
from daguerre.model import Model
from daguerre.models.forward import DraftStep, Forward, Layout, Logits

DEADLINES = (1, 2, 4, 8, 20)
SLOW = Decode(mode="block", threshold=1.0)


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    texts = ["".join(f"value_{i} = compute_{j}({i}, {j})\n" for i in range(30)) for j in range(2)]
    return [Document("p", "1", "MIT", f"{len(t)}", hashlib.sha256(t.encode()).hexdigest(), t) for t in texts]


def test_a_timeout_fills_what_cutting_off_leaves_open(causal: Model, documents: list[Document]) -> None:
    spans = make_spans(documents, causal.tokenizer, 16, 3, shown=(64, 32))
    tasks = {"infill": (SLOW, True), "completion": (SLOW, False)}
    result = quality_by_deadline(causal, spans, tasks, forwards=DEADLINES)
    assert len(result.rows) == 2 * 2 * len(DEADLINES)
    assert result.unhurried == {"infill": 16, "completion": 16}
    for task in tasks:
        filled = {
            method: [row.filled for row in result.rows if (row.task, row.way) == (task, method)] for method in METHODS
        }
        assert filled["cut"] == [n / 16 for n in (1, 2, 4, 8, 16)]
        assert filled["hurried"] == [1 / 16, 1, 1, 1, 1]  # nothing is known before the first forward
        right = {
            method: [row.token_accuracy for row in result.rows if (row.task, row.way) == (task, method)]
            for method in METHODS
        }
        assert right["hurried"][-1] == right["cut"][-1]
        assert all(r <= f for name in right for r, f in zip(right[name], filled[name], strict=True))
    again = quality_by_deadline(causal, spans, tasks, forwards=DEADLINES)
    assert again.rows == result.rows


def test_a_batch_of_draft_steps_is_no_forward(causal: Model) -> None:
    backend, width = Ticking(causal.denoiser.backend), causal.config.width
    step, tokens = DraftStep(np.zeros((1, width), dtype=np.float32)), np.array([causal.config.bos_id])
    forward = Forward(tokens, Layout(np.zeros(1), np.ones(1, dtype=np.int32), 1), None, np.zeros(1, np.int32), Logits())

    ticks = []
    for batch in ([step], [forward, step], [forward, forward]):
        backend.forward(batch)
        ticks.append(backend.ticks)

    assert ticks == [0, 1, 2]


def test_a_block_model_completes_and_a_table_says_so(models: dict[str, Model], documents: list[Document]) -> None:
    report = evaluate(models["block"], documents, what=["deadline"], limits=EvalLimits(spans=1))
    assert set(report["deadline"]["unhurried"]) == {"completion"}
    text = markdown(report)
    assert "## Deadline\n" in text
    assert "| completion, with a timeout |" in text
    assert "infill, cut off" not in text


def test_no_span_is_refused(causal: Model, documents: list[Document]) -> None:
    with pytest.raises(DataError, match="leave 'deadline' out"):
        evaluate(causal, documents, what=["deadline"], limits=EvalLimits(spans=0))
