"""What only a device shows: answers beside those of the CPU, batches, caches in bfloat16, speculation, memory.

Bits are promised by the native backend alone; here logits agree to the last bits of their type, and tokens in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from conftest import CONTEXTS
from contracts.test_contract_03_alone import CAUSAL, PROMPT, REQUESTS, check_tokens
from contracts.test_contract_06_07_exact_cache import both, steps_of
from contracts.test_contract_08_projection import wanted_of
from daguerre.model import Model
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.backbone import Backbone
from forwards import NUM_KINDS, Expected, make

pytestmark = pytest.mark.gpu
WIDE = {"width": 256, "mlp_width": 704}
TIMED = {"context": "full", "shift": False, "time_input": True}
SHARE = {torch.float32: 1e-5, torch.bfloat16: 1 / 64}
"""Of the largest logit, what two ways to compute it may differ by."""


@pytest.mark.parametrize("facts", [{"draft_head": 24}, {"head_width": 24, "qkv_bias": True, "norm": "layer"}, TIMED])
def test_every_forward_equals_that_of_the_cpu(on_device: Any, make_model: Any, facts: dict[str, Any]) -> None:
    """And its draws those of NumPy; alone, and all in one batch."""
    backend, reference = (
        on_device(torch.float32, **facts).denoiser.backend,
        TorchBackend(make_model(**facts).backbone),
    )
    expected = [Expected(reference, number) for number in range(NUM_KINDS)]
    for number, want in enumerate(expected):
        want.check(backend.forward([make(backend, number)])[0], 1e-5)
    together = backend.forward([make(backend, number) for number in range(NUM_KINDS)])
    for want, answer in zip(expected, together, strict=True):
        want.check(answer, 1e-5)


def test_requests_computed_together_have_the_tokens_of_each_alone(on_device: Any) -> None:
    model = on_device(draft_head=24)
    check_tokens(model.backbone, model.tokenizer, REQUESTS["drafting"][: len(CAUSAL)])


@pytest.mark.parametrize("name", ["causal", "causal_unshifted", "block"])
def test_in_bfloat16_a_cache_changes_the_last_bits_alone(on_device: Any, name: str) -> None:
    model = on_device(torch.bfloat16, **WIDE, **CONTEXTS[name])
    assert both(model.denoiser, steps_of(model)) < 1 / 32


@pytest.mark.parametrize("name", ["causal", "block"])
def test_open_positions_alone_are_projected(on_device: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = on_device(torch.float32, **CONTEXTS[name])
    projected: list[int] = []
    project = Backbone.logits

    def counted(self: Backbone, hidden: Any) -> Any:
        projected.append(hidden.shape[:-1].numel())
        return project(self, hidden)

    monkeypatch.setattr(Backbone, "logits", counted)
    assert wanted_of(model.denoiser, model, {"mode": "block", "threshold": 0.5}) == projected


@pytest.mark.parametrize("block_size", [None, 7])
def test_in_float32_speculation_has_the_tokens_of_ar(on_device: Any, block_size: int | None) -> None:
    model = on_device(torch.float32, draft_head=24)
    for temperature in (0.0, 1.0):
        options = {"temperature": temperature, "seed": 5}
        want = model.generate(PROMPT, 40, mode="ar", **options)
        got = model.generate(PROMPT, 40, mode="speculative", block_size=block_size, **options)
        assert [t.id for t in got.tokens] == [t.id for t in want.tokens]


def test_memory_of_a_request_does_not_grow_with_canvas_times_vocabulary(on_device: Any, device: str) -> None:
    if device != "cuda":
        pytest.skip("only a CUDA device tells how much memory it gave")
    model: Model = on_device(torch.float32)
    num, options = 200, {"mode": "block", "block_size": 8, "threshold": 0.5, "heal": False}
    prompt = np.resize(model.tokenizer.encode(PROMPT), num - 30).tolist()
    model.generate(prompt, 24, **options)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    model.generate(prompt, 24, **options)
    assert torch.cuda.max_memory_allocated() - before < num * model.config.vocab_size * 4
