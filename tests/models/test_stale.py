"""Approximate caches of full context equal a slow session without a cache that follows the same rule of staleness."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from backends import BACKENDS
from daguerre.canvas import Canvas, Decision
from daguerre.decoding.request import Decode
from daguerre.decoding.result import Result
from daguerre.decoding.revision import NOTHING
from daguerre.decoding.sample import Sample, Together
from daguerre.errors import UnsupportedError
from daguerre.model import Model
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.forward import Logits
from daguerre.models.stale import RULES
from driving import Recorded, finished, logits_of
from frozen import CALLS, PROMPT, SUFFIX, Call, SlowDenoiser, Step, difference, watch
from pairwise import covering, of
from plans import make_plan

MODELS: dict[str, dict[str, Any]] = {
    "full": {},
    "full_unshifted": {"shift": False},
    "timed": {"shift": False, "time_input": True},
    "learned": {"positions": "learned", "qk_norm": False},
}


@pytest.fixture(scope="module")
def full(make_model: Any) -> dict[str, Model]:
    return {name: make_model(context="full", **facts) for name, facts in MODELS.items()}


# ---- whole decodes ------------------------------------------------------------------------------------------------


DECODES = covering({"call": [*CALLS], "rule": [*RULES], "name": [*MODELS], "backend": ["native", "torch"]})


@pytest.mark.parametrize("backend", BACKENDS)
def test_logits_and_tokens_of_a_whole_decode_are_those_of_the_slow_session(
    full: dict[str, Model], backend: Any, subtests: pytest.Subtests
) -> None:
    """Some of the slow session's logits are far from exact ones."""
    for call, rule, name, _ in map(dict.values, of(DECODES, backend=backend)):
        with subtests.test(call, rule=rule, name=name):
            model = full[name]
            want, slow = watch(CALLS[call], SlowDenoiser(model), model, rule)
            exact = [logits_of(model.denoiser, canvas, asked, cache="none") for canvas, asked, _ in slow]
            assert max(difference(logits, other) for (_, _, logits), other in zip(slow, exact, strict=True)) > 1e-2
            got, fast = watch(CALLS[call], BackboneDenoiser(model.backbone, backend), model, rule)
            assert [t.id for t in got.tokens] == [t.id for t in want.tokens]
            assert len(fast) == len(slow) > 3
            for (canvas, asked, logits), (same, positions, reference) in zip(fast, slow, strict=True):
                assert np.array_equal(canvas.tokens[~canvas.open], same.tokens[~same.open])
                assert np.array_equal(asked, positions)
                assert difference(logits, reference) < 1e-5


@pytest.mark.parametrize("backend", BACKENDS)
def test_draws_of_the_backend_are_those_from_its_logits(
    full: dict[str, Model], backend: Any, subtests: pytest.Subtests
) -> None:
    model, call = full["full"], CALLS["sampled"]
    denoiser = BackboneDenoiser(model.backbone, backend)
    for rule in RULES:
        with subtests.test(rule):
            drawn, from_logits = call(denoiser, model.tokenizer, cache=rule), watch(call, denoiser, model, rule)[0]
            assert [t.id for t in drawn.tokens] == [t.id for t in from_logits.tokens]


def test_random_weights_are_neither_sure_nor_uniform(full: dict[str, Model]) -> None:
    for model in full.values():
        result = CALLS["blocks"](model.denoiser, model.tokenizer)
        assert 0.3 < np.mean([t.confidence for t in result.tokens]) < 0.9


# ---- requests side by side ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "dtype"), [("full", torch.float32), ("full_unshifted", torch.bfloat16)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_requests_with_unlike_caches_have_their_tokens_side_by_side(
    full: dict[str, Model], backend: Any, name: str, dtype: torch.dtype
) -> None:
    """On the native backend also every bit of their probabilities."""
    model = full[name]
    dtype = dtype if backend == "native" else torch.float32  # PyTorch's products promise no bits
    denoiser, caches = BackboneDenoiser(deepcopy(model.backbone).to(dtype), backend), [*RULES, "none", "auto"] * 2

    def samples() -> list[Sample]:
        out = []
        for seed, how in enumerate(caches):
            options: dict[str, Any] = {"threshold": 0.5, "temperature": 1.0, "cache": how, "seed": seed}
            decode = Decode(mode="block", block_size=6, **options)
            suffix = SUFFIX if seed % 3 else None
            plan = make_plan(model.config, model.tokenizer, decode, PROMPT[seed:], suffix, 12 + seed, False)
            out.append(Sample(denoiser, plan, 0, None))
        return out

    together = samples()
    Together(denoiser.backend, together).run()
    for one, other in zip(map(finished, samples()), together, strict=True):
        tokens = [[(t.id, t.logprob if backend == "native" else None) for t in s.result().tokens] for s in (one, other)]
        assert tokens[0] == tokens[1]
        assert one._run.counts == other._run.counts


# ---- which rows ---------------------------------------------------------------------------------------------------


def forwards_of(model: Model, call: Call, rule: str) -> tuple[list[tuple[list[int], int]], Result, list[Step]]:
    """Positions and the number of stored rows of every forward, the result, and the steps."""
    recorded = Recorded(model.denoiser)
    result, steps = watch(call, recorded, model, rule)
    return [(f.layout.position.tolist(), f.layout.num_clean) for f in recorded.backend.forwards], result, steps


@pytest.mark.parametrize("name", ["full", "full_unshifted"])
def test_a_forward_has_the_rows_that_its_rule_names_and_no_others(full: dict[str, Model], name: str) -> None:
    model = full[name]
    shift = int(model.config.shift)
    for rule in ("approximate_prefix", "approximate_dual", "approximate_vicinity"):
        forwards, _, steps = forwards_of(model, CALLS["blocks"], rule)
        before, later = None, 0
        for (rows, stored), (canvas, _, _) in zip(forwards, steps, strict=True):
            assert canvas.span is not None
            (start, end), length = canvas.span, len(canvas)
            fresh = {
                "approximate_prefix": range(start - shift, length),
                "approximate_dual": range(start - shift, end),
                "approximate_vicinity": range(max(0, start - 16), min(end + 16, length)),
            }[rule]
            first = canvas.span != before
            assert rows == ([j for j in range(length) if j not in fresh] if first else []) + [*fresh]
            assert stored == (length - len(fresh) if first else 0)
            before, later = canvas.span, later + (not first)
        assert later > 3


@pytest.mark.parametrize("name", ["full", "full_unshifted"])
def test_a_delayed_row_is_stored_in_the_forward_after_its_token_is_committed(full: dict[str, Model], name: str) -> None:
    model = full[name]
    forwards, _, steps = forwards_of(model, CALLS["full"], "approximate_delayed")
    assert len(forwards) > 8
    stored_before = set[int]()
    for number, ((rows, num), (canvas, _, _)) in enumerate(zip(forwards, steps, strict=True)):
        opened = set(np.flatnonzero(canvas.open).tolist())
        needed = opened | {j - int(model.config.shift) for j in opened}
        if number % 8 == 0:
            stored_before = set()
        assert set(rows) == set(range(len(canvas))) - stored_before
        assert set(rows[:num]) == set(range(len(canvas))) - stored_before - needed
        assert set(rows[num:]) == needed
        stored_before |= set(rows[:num])


COUNTED = {"name": ["full", "full_unshifted"], "call": ["blocks", "full", "gaps in blocks", "unmasked", "changed"]}


def test_counts_are_those_of_the_rows_that_were_computed_and_read(
    full: dict[str, Model], subtests: pytest.Subtests
) -> None:
    for name, call, rule in map(dict.values, covering(COUNTED | {"rule": [*RULES]})):
        with subtests.test(call, rule=rule, name=name):
            check_counts(full[name], *forwards_of(full[name], CALLS[call], rule))


def check_counts(model: Model, forwards: list[tuple[list[int], int]], result: Result, steps: list[Step]) -> None:
    usage, length = result.usage, len(steps[0][0])
    assert usage.forwards == len(forwards)
    assert usage.reused_tokens == sum(length - len(rows) for rows, _ in forwards) > 0
    stored, asked, held = [0, 0, 0], 0, dict[int, int]()
    for number, ((rows, num), (canvas, positions, _)) in enumerate(zip(forwards, steps, strict=True)):
        wanted = set((positions - int(model.config.shift)).tolist())
        asked += len(rows) - len(set(rows[:num]) - wanted)
        for j in rows[:num]:
            token = -1 if canvas.open[j] else int(canvas.tokens[j])
            if j not in wanted:
                stored[2 if held.get(j) == token else int(number > 0)] += 1
            held[j] = token
    assert [usage.prefill_tokens, usage.finalized_tokens, usage.recomputed_tokens] == stored
    assert usage.query_tokens == asked


def test_fewer_rows_are_computed_than_without_a_cache(full: dict[str, Model]) -> None:
    model = full["full_unshifted"]
    num = {rule: sum(len(rows) for rows, _ in forwards_of(model, CALLS["full"], rule)[0]) for rule in ("none", *RULES)}
    assert num["approximate_dual"] <= num["approximate_prefix"] < 0.6 * num["none"]
    assert num["approximate_vicinity"] < 0.9 * num["none"]
    assert num["approximate_delayed"] < 0.6 * num["none"]


# ---- sessions -----------------------------------------------------------------------------------------------------


def canvases(model: Model, texts: Sequence[str]) -> list[Canvas]:
    rows = [[model.tokenizer.bos_id, *model.tokenizer.encode(text)][:12] for text in texts]
    return [Canvas.lay_out([row], [8], model.tokenizer.mask_id).at((12, 16)) for row in rows]


@pytest.mark.parametrize("rule", RULES)
def test_a_session_that_is_restarted_or_was_never_answered_begins_anew(full: dict[str, Model], rule: Any) -> None:
    model = full["full"]
    (canvas,) = canvases(model, ["import os\nimport sys\n\nx = os.path\n"])
    later = canvas.at((13, 16))
    asked, exact = later.active_positions(), logits_of(model.denoiser, later, later.active_positions(), cache="none")
    session = model.denoiser.session(later, rule)
    next(session.ask(later, asked, Logits()))
    assert difference(logits_of(model.denoiser, later, asked, session), exact) < 1e-6
    session.restart()
    assert difference(logits_of(model.denoiser, later, asked, session), exact) < 1e-6
    assert (session.counts.forwards, session.counts.reused_tokens) == (1, 0)
    assert session.counts.query_tokens + session.counts.prefill_tokens == len(canvas)


@pytest.mark.parametrize("rule", RULES)
def test_given_text_that_differs_is_computed_anew(full: dict[str, Model], rule: Any) -> None:
    model = full["full_unshifted"]
    one, other = canvases(model, ["import os\nimport sys\n\nx = os.path\n", "import re\nimport sys\n\nx = os.path\n"])
    asked, session = one.active_positions(), model.denoiser.session(one, rule)
    logits_of(model.denoiser, one, asked, session)
    exact = logits_of(model.denoiser, other, asked, cache="none")
    assert difference(logits_of(model.denoiser, other, asked, session), exact) < 1e-6
    assert difference(logits_of(model.denoiser, one, asked, cache="none"), exact) > 1e-2


def test_a_frozen_row_before_a_position_that_opens_again_is_computed(full: dict[str, Model]) -> None:
    """Also where that position is not the one that is asked about, and its own row was never stored."""
    rule: Any = "approximate_delayed"
    model = full["full"]
    (canvas,) = canvases(model, ["import os\nimport sys\n\nx = os.path\n"])
    sure = np.ones(2)
    committed = canvas.apply(Decision(np.array([12, 13]), np.array([50, 60]), sure, sure))
    reopened = committed.apply(replace(NOTHING, reopen=np.array([13]))).at((16, 20))
    fast, slow = model.denoiser.session(canvas, rule), SlowDenoiser(model).session(canvas, rule)
    for now in (canvas, committed, reopened):
        asked = now.active_positions()
        answers = [logits_of(model.denoiser, now, asked, one) for one in (fast, slow)]
        assert difference(*answers) < 1e-5
    assert fast.counts.reused_tokens == 11


@pytest.mark.parametrize("rule", RULES)
def test_approximate_caches_are_refused_where_an_exact_one_or_none_is_possible(
    models: dict[str, Model], make_model: Any, rule: str
) -> None:
    for name in ("causal", "causal_unshifted", "block", "block_shifted"):
        with pytest.raises(UnsupportedError, match=f'"{rule}" is for full context, and this model has'):
            models[name].generate(PROMPT, 8, mode="block", cache=rule)
    noise = make_model(context="full", shift=False, time_input=True, process="uniform", null_id=None)
    with pytest.raises(UnsupportedError, match="has no part in the uniform process"):
        noise.generate(PROMPT, 8, mode="ancestral", cache=rule)
    with pytest.raises(UnsupportedError, match="has no part in the uniform process"):
        noise.denoiser.session(canvases(noise, [PROMPT])[0], rule)
