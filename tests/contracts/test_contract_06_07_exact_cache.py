"""Contracts 6 and 7: an exact cache equals the slow reference without one, at every step; one of 8-bit numbers equals
a reference without a cache that rounds every key and value by the same rule.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from backends import BACKENDS, every_isa, needs_compiler
from conftest import CONTEXTS
from daguerre.canvas import Canvas
from daguerre.errors import UnsupportedError
from daguerre.model import Model
from daguerre.models.backends import torch_backend
from daguerre.models.core.attention import sdpa
from daguerre.models.core.cache import to_int8
from daguerre.models.denoiser import BackboneDenoiser
from driving import logits_of

PROMPT = "def area(w, h):\n    return w"
SUFFIX = " * h\n\nprint(area(2, 3))\n"
MODES: list[dict[str, Any]] = [
    {"mode": "ar"},
    {"mode": "speculative", "block_size": 4},
    {"mode": "block", "block_size": 5, "threshold": 0.5},
    {"mode": "block", "policy": "entropy", "steps": 4},
    {"mode": "full", "threshold": 0.5},
]
CACHED = ["causal", "causal_unshifted", "block", "block_shifted", "reordered"]


@pytest.fixture(scope="module")
def by_context(make_model: Any) -> dict[str, Model]:
    return {name: make_model(**facts) for name, facts in (CONTEXTS | {"drafting": {"draft_head": 24}}).items()}


def steps_of(model: Model, call: str = "generate", **options: Any) -> list[Canvas]:
    """Every canvas of a request that something is asked about."""
    if call == "infill":
        result = model.infill(PROMPT, SUFFIX, 20, mode="block", threshold=0.8)
    else:
        result = model.generate(PROMPT, 40, mode="block", threshold=0.4, temperature=1.0, **options)
    canvases = [c for c in (result.trace.canvas, *result.trace.replay()) if c.active_positions().size]
    assert len(canvases) > 2
    return canvases


def both(denoiser: BackboneDenoiser, canvases: list[Canvas]) -> float:
    """The largest difference of logits along `canvases`, as a share of the largest logit: of one session that caches,
    on any backend, and of the torch backend without a cache.
    """
    reference = BackboneDenoiser(denoiser.backbone, "torch")
    fast, slow = denoiser.session(canvases[0], "auto"), reference.session(canvases[0], "none")
    worst = 0.0
    for canvas in canvases:
        asked = canvas.active_positions()
        a, b = logits_of(denoiser, canvas, asked, fast), logits_of(reference, canvas, asked, slow)
        known = np.isfinite(b)
        assert np.array_equal(known, np.isfinite(a))
        worst = max(worst, float(np.abs(a[known] - b[known]).max() / np.abs(b[known]).max()))
    return worst


@pytest.mark.parametrize("backend", BACKENDS)
def test_generating_with_a_cache_equals_generating_without(
    causal: Model, backend: Any, subtests: pytest.Subtests
) -> None:
    """By the native backend to the bit. PyTorch's products may be other bits with other numbers of rows, so there the
    canvases of a run are compared (`both`), not its draws.
    """
    model = Model(causal.backbone, causal.tokenizer, backend)
    for options, temperature in product(MODES, (0.0, 1.0)):
        with subtests.test(str(options), temperature=temperature):
            shared: dict[str, Any] = {"temperature": temperature, "seed": 1, **options}
            fast = model.generate(PROMPT, 30, **shared)
            assert fast.usage.recomputed_tokens == 0
            if backend == "torch":
                spans = [step.span for step in fast.trace.steps]
                before = [c.at(s) for c, s in zip((fast.trace.canvas, *fast.trace.replay()), spans, strict=False)]
                assert both(model.denoiser, before) < 1e-5
                continue
            slow = model.generate(PROMPT, 30, cache="none", **shared)
            for one, other in zip(fast.tokens, slow.tokens, strict=True):
                assert (one.id, one.step, one.logprob) == (other.id, other.step, other.logprob)
            assert fast.usage.query_tokens == slow.usage.query_tokens
            assert fast.usage.finalized_tokens == slow.usage.finalized_tokens
            assert slow.usage.reused_tokens == 0
            assert fast.usage.reused_tokens == slow.usage.recomputed_tokens > 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_logits_agree_along_a_whole_request(
    by_context: dict[str, Model], backend: Any, subtests: pytest.Subtests
) -> None:
    """A completion, and where the context sees a suffix an infilling."""
    for name in CACHED:
        with subtests.test(name):
            model = by_context[name]
            denoiser = BackboneDenoiser(model.backbone, backend)
            assert both(denoiser, steps_of(model)) < 1e-5
            if model.config.is_ordered:
                assert both(denoiser, steps_of(model, "infill")) < 1e-5


@every_isa
def test_on_every_instruction_set_too(by_context: dict[str, Model], isa: str) -> None:
    for name in ("causal", "block_shifted"):
        model = by_context[name]
        assert both(BackboneDenoiser(model.backbone, "native"), steps_of(model)[::3]) < 1e-5


@pytest.mark.parametrize("backend", BACKENDS)
def test_in_bfloat16_logits_agree_to_the_last_bits(make_model: Any, backend: Any) -> None:
    """Measured, by torch: 0.5% of the largest logit, one last bit of bfloat16; by native the cache changes no bit."""
    model = make_model(width=256, mlp_width=704)
    canvases = steps_of(model)
    model.backbone.to(torch.bfloat16)
    denoiser = BackboneDenoiser(model.backbone, backend)
    fast, slow = denoiser.session(canvases[0]), denoiser.session(canvases[0], "none")
    for canvas in canvases:
        asked = canvas.active_positions()
        a, b = (logits_of(denoiser, canvas, asked, session) for session in (fast, slow))
        known = np.isfinite(b)
        limit = 0 if backend == "native" else np.abs(b[known]).max() / 64
        assert np.abs(a[known] - b[known]).max() <= limit


@pytest.mark.parametrize("backend", BACKENDS)
def test_several_gaps_agree_and_are_computed_once(causal: Model, backend: Any) -> None:
    t, denoiser = causal.tokenizer, BackboneDenoiser(causal.backbone, backend)
    segments = [[t.bos_id, *t.encode("def f(")], t.encode("):\n    return"), [77], t.encode("\n# end")]
    canvas = Canvas.lay_out(segments, [4, 6, 3], t.mask_id)
    canvas = canvas.at((canvas.gaps[0][0], canvas.gaps[-1][1]))
    assert both(denoiser, [canvas, canvas]) < 1e-5
    session = denoiser.session(canvas)
    for _ in range(3):
        logits_of(denoiser, canvas, canvas.active_positions(), session)
    anchors = 3
    assert session.counts.prefill_tokens == sum(map(len, segments)) - anchors
    assert session.counts.finalized_tokens == 0
    assert session.counts.query_tokens == 3 * (4 + 6 + 3)


def that_differ(model: Model) -> list[Canvas]:
    """Texts that differ early, late and in the middle of a block, come back, get shorter, and are cut into segments."""
    t, config = model.tokenizer, model.config
    texts = ["aaa = bbb + 1\n# x\ny = 2\nz", "aaa = ccc + 2\n# x\ny = 2\nz", "aaa = bbb + 1\n# x\ny = 3\nz"]
    rows = [[t.bos_id, *t.encode(text)][:16] for text in texts]
    for place in (3, 9, 12, 15):
        other = list(rows[0])
        other[place] += 1
        rows += [other, rows[0]]
    canvases = [Canvas.lay_out([row], [8], t.mask_id).at((16, 24)) for row in rows]
    canvases.append(Canvas.lay_out([rows[0][:5]], [19], t.mask_id).at((5, 8)))
    canvases.append(canvases[0])
    if config.context != "block":
        canvases.append(Canvas.lay_out([rows[0][:6], rows[1][6:8]], [16], t.mask_id).at((6, 22)))
        canvases.append(canvases[0])
    return canvases


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_session_answers_for_the_canvas_at_hand_whatever_it_saw_before(
    by_context: dict[str, Model], backend: Any, subtests: pytest.Subtests
) -> None:
    for name in (*CACHED, "full"):
        with subtests.test(name):
            model = by_context[name]
            assert both(BackboneDenoiser(model.backbone, backend), that_differ(model)) < 1e-5


def test_an_empty_prompt_leaves_no_clean_row_and_its_span_still_sees_itself(causal: Model) -> None:
    t = causal.tokenizer
    canvas = Canvas.lay_out([[t.bos_id]], [6], t.mask_id)
    tokens, opened = canvas.tokens.copy(), canvas.open.copy()
    opened[6] = False
    logits = []
    for last in (50, 60):  # the first position sees the last: rows of one span see each other
        tokens[6] = last
        late = Canvas(np.append(tokens, 0), np.append(opened, True), ((1, 8),), (1, 8))
        logits.append(logits_of(causal.denoiser, late, np.array([1]))[0])
    known = np.isfinite(logits[0])
    assert np.abs(logits[0][known] - logits[1][known]).max() > 1e-3


def test_random_weights_are_neither_sure_nor_uniform(by_context: dict[str, Model]) -> None:
    for model in by_context.values():
        result = model.generate(PROMPT, 40, temperature=1.0)
        confidence = np.mean([t.confidence for t in result.tokens])
        assert 0.3 < confidence < 0.9
        assert len({t.id for t in result.tokens}) > 3


def answers(of: BackboneDenoiser, canvases: list[Canvas], cache: Any, session: Any = None) -> np.ndarray:
    """All logits along some canvases that are not ruled out."""
    found = (logits_of(of, canvas, canvas.active_positions(), session, cache) for canvas in canvases)
    return np.concatenate([logits[np.isfinite(logits)] for logits in found])


def rounded(x: torch.Tensor) -> torch.Tensor:
    codes, scales = to_int8(x, x.dtype)
    return codes * scales


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cache_of_8_bit_numbers_equals_rounding_without_a_cache(
    by_context: dict[str, Model], backend: Any, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """Within a hundredth of what rounding changes: a key between two codes may go either way."""
    for name in CACHED:
        with subtests.test(name):
            model = by_context[name]
            canvases = steps_of(model)
            denoiser, reference = (BackboneDenoiser(model.backbone, kind) for kind in (backend, "torch"))
            session = denoiser.session(canvases[0], "approximate_int8")
            approximate = answers(denoiser, canvases, "auto", session)
            exact = answers(reference, canvases, "none")
            with monkeypatch.context() as patch:
                patch.setattr(torch_backend, "sdpa", lambda q, k, v, mask: sdpa(q, rounded(k), rounded(v), mask))
                slow = answers(reference, canvases, "none")
            error, change = (np.sqrt(np.mean((rows - slow) ** 2)) for rows in (approximate, exact))
            assert change > 1e-3
            assert 100 * error < change


@needs_compiler
def test_speculation_has_the_bits_of_ar_with_8_bit_numbers_too(make_model: Any, subtests: pytest.Subtests) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        with subtests.test(str(dtype)):
            made = make_model()
            model = Model(made.backbone.to(dtype), made.tokenizer, "native")
            texts = []
            for temperature in (0.0, 1.0):
                options: dict[str, Any] = {"cache": "approximate_int8", "temperature": temperature, "seed": 3}
                want, got = (model.generate(PROMPT, 24, mode=mode, **options) for mode in ("ar", "speculative"))
                assert [(t.id, t.logprob) for t in got.tokens] == [(t.id, t.logprob) for t in want.tokens]
                exact = model.generate(PROMPT, 24, mode="ar", temperature=temperature, seed=3)
                texts.append([t.logprob for t in exact.tokens] != [t.logprob for t in want.tokens])
            assert all(texts)


def test_8_bit_numbers_are_refused_where_no_row_is_kept(by_context: dict[str, Model]) -> None:
    for name in ("full", "full_unshifted"):
        with pytest.raises(UnsupportedError, match='"approximate_int8" has no part in full context'):
            by_context[name].generate(PROMPT, 8, cache="approximate_int8")
