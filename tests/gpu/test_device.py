"""What is a device's own: batches and caches in bfloat16, contract 8, speculation, and graphs beside what they repeat.

Contract 3 promises equal bits on the CPU alone; here laws agree to the last bits of their type, and tokens in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from captures import Fixed, in_place
from conftest import CONTEXTS
from contracts.test_contract_03_alone import PROMPT, draw, layout
from contracts.test_contract_06_07_exact_cache import both
from daguerre.canvas import Canvas
from daguerre.model import Model
from daguerre.models.captured import CapturedBackbone

pytestmark = pytest.mark.gpu
DTYPES = [torch.float32, torch.bfloat16]
EXECUTED = ["reference", "compiled"]
LONG = PROMPT * 8
WIDE = {"width": 256, "mlp_width": 704}
SHARE = {torch.float32: 1e-5, torch.bfloat16: 1 / 64}
"""Of the largest logit, what two ways to compute a law may differ by."""


def close(one: Any, other: Any, dtype: torch.dtype) -> bool:
    """Whether finite logits agree to the last bits."""
    one, other = (np.asarray(x, dtype=np.float64)[..., 16:] for x in (one, other))
    return bool(np.abs(one - other).max() <= SHARE[dtype] * np.abs(other).max())


def canvases(model: Model) -> Iterator[Canvas]:
    """Every canvas of a completion that something is asked about."""
    result = model.generate(LONG, 40, threshold=0.4, temperature=1.0)
    return (c for c in (result.trace.canvas, *result.trace.replay()) if c.active_positions().size)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_open", [0, 16])
@pytest.mark.parametrize("num_rows", [17, 200])
def test_a_row_of_a_batch_has_the_law_it_has_alone(
    on_device: Any, device: str, num_rows: int, num_open: int, dtype: torch.dtype
) -> None:
    backbone, tokens = on_device(dtype, **WIDE).backbone, draw(4, num_rows).to(device)

    def logits(given: torch.Tensor) -> Any:
        now = layout(num_rows, num_open, len(given))
        with torch.inference_mode():
            rows = now.rows.to(device)
            return backbone.logits(backbone(given, type(now)(rows, now.num_clean, plain=True))).cpu()

    together, alone = logits(tokens), torch.cat([logits(row[None]) for row in tokens])
    assert close(together, alone, dtype)
    if dtype == torch.float32:
        assert torch.equal(together.argmax(-1), alone.argmax(-1))


@pytest.mark.parametrize("execution", EXECUTED)
@pytest.mark.parametrize("name", ["causal", "causal_unshifted", "block"])
def test_in_bfloat16_a_cache_changes_the_last_bits_alone(on_device: Any, name: str, execution: str) -> None:
    model = on_device(torch.bfloat16, execution, **WIDE, **CONTEXTS[name])
    seen = list(canvases(model))
    assert len(seen) > 5
    largest = max(model.denoiser.session(c, "none").logits(c, c.active_positions()).max() for c in seen)
    assert both(model, seen) < largest / 32


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("execution", EXECUTED)
@pytest.mark.parametrize("name", ["causal", "full", "block"])
def test_only_asked_rows_are_projected(
    on_device: Any, name: str, execution: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = on_device(dtype, execution, **CONTEXTS[name])
    executor, projected = type(model.denoiser.executor), []
    project = executor.logits

    def counted(self: Any, hidden: torch.Tensor) -> torch.Tensor:
        projected.append(hidden.shape[:-1].numel())
        return project(self, hidden)

    monkeypatch.setattr(executor, "logits", counted)
    result = model.generate(LONG, 24, mode="block", threshold=0.5)
    before = [result.trace.canvas, *result.trace.replay()]
    spans = [step.span for step in result.trace.steps]
    asked = [len(canvas.at(span).active_positions()) for canvas, span in zip(before, spans, strict=False)]
    assert projected == asked


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("prompt", ["", PROMPT, LONG])
def test_captured_speculation_has_the_bits_of_ar(on_device: Any, prompt: str, dtype: torch.dtype) -> None:
    """One row and a verification of up to 16 are steps of one size."""
    model = on_device(dtype, "compiled", **WIDE)
    for temperature in (0.0, 1.0):
        options = {"temperature": temperature, "min_tokens": 70, "seed": 3}
        want, got = (model.generate(prompt, 70, mode=mode, **options) for mode in ("ar", "speculative"))
        texts = [[(t.id, t.logprob, t.confidence) for t in result.tokens] for result in (want, got)]
        assert texts[0] == texts[1]


@pytest.mark.parametrize("execution", EXECUTED)
@pytest.mark.parametrize("block_size", [None, 7])
def test_in_float32_speculation_has_the_tokens_of_ar(on_device: Any, execution: str, block_size: int | None) -> None:
    model = on_device(torch.float32, execution, draft_head=16)
    for temperature in (0.0, 1.0):
        options = {"temperature": temperature, "seed": 5}
        want = model.generate(PROMPT, 40, mode="ar", **options)
        got = model.generate(PROMPT, 40, mode="speculative", block_size=block_size, **options)
        assert [t.id for t in got.tokens] == [t.id for t in want.tokens]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("execution", EXECUTED)
def test_a_verification_has_the_laws_of_ar(on_device: Any, execution: str, dtype: torch.dtype) -> None:
    model = on_device(dtype, execution, **WIDE)
    t, draft = model.tokenizer, np.array([50, 60, 70])
    canvas = Canvas.lay_out([[t.bos_id, *t.encode(LONG)]], [9], t.mask_id)
    start = canvas.gaps[0][0]
    got = model.denoiser.session(canvas).verify(canvas.at((start, len(canvas))), draft, 3).logits
    session = model.denoiser.session(canvas)
    for place, law in enumerate(got, start):
        tokens, opened = canvas.tokens.copy(), canvas.open.copy()
        tokens[start:place], opened[start:place] = draft[: place - start], False
        now = Canvas(tokens, opened, canvas.gaps, (place, place + 1))
        assert close(law, session.logits(now, np.array([place]))[0], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["causal", "causal_unshifted", "block"])
def test_a_graph_has_the_bits_of_what_it_repeats(on_device: Any, device: str, name: str, dtype: torch.dtype) -> None:
    """Sessions in turn, twice over: the first captures, the second replays in memory that the first gave back."""
    model = on_device(dtype, "compiled", **WIDE, **CONTEXTS[name])
    plain = Fixed(CapturedBackbone(model.backbone, in_place))
    seen = list(canvases(model))
    for _ in range(2):
        pairs = [[denoiser.session(seen[0]) for denoiser in (model.denoiser, plain)] for _ in range(2)]
        for canvas in seen:
            for sessions in pairs:
                one, other = (session.logits(canvas, canvas.active_positions()) for session in sessions)
                assert np.array_equal(one, other)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["causal", "causal_unshifted", "block"])
def test_captured_laws_are_those_of_the_reference(on_device: Any, name: str, dtype: torch.dtype) -> None:
    facts = WIDE | CONTEXTS[name]
    model, reference = (on_device(dtype, execution, **facts) for execution in EXECUTED)
    seen = list(canvases(model))
    one, other = (each.denoiser.session(seen[0]) for each in (model, reference))
    for canvas in seen:
        assert close(*(session.logits(canvas, canvas.active_positions()) for session in (one, other)), dtype)


@pytest.mark.parametrize("execution", EXECUTED)
def test_memory_of_a_request_does_not_grow_with_canvas_times_vocabulary(
    on_device: Any, device: str, execution: str
) -> None:
    if device != "cuda":
        pytest.skip("only a CUDA device tells how much memory it gave")
    model = on_device(torch.float32, execution)
    canvas_tokens, options = 200, {"mode": "block", "block_size": 8, "threshold": 0.5, "heal": False}
    prompt = model.tokenizer.encode(LONG * 4)[: canvas_tokens - 30]
    model.generate(prompt, 24, **options)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    model.generate(prompt, 24, **options)
    grown = torch.cuda.max_memory_allocated() - before
    assert grown < canvas_tokens * model.config.vocab_size * 4
