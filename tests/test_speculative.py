"""Mode "speculative": the tokens of mode "ar", in fewer forwards."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat, takewhile
from typing import Any

import numpy as np
import pytest
import torch

import daguerre
from daguerre import generate as main_path
from daguerre.canvas import Canvas, Decision
from daguerre.heldout import load_frozen
from daguerre.model import Model
from daguerre.models.denoiser import BackboneDenoiser, Behind, Execution
from daguerre.models.layout import NO_HORIZON, SETTLED, Layout, Rows, allowed
from daguerre.models.rows import plan_verification
from daguerre.models.tokenizer import Tokenizer
from daguerre.planning import make_plan
from daguerre.result import Result
from daguerre.sampling.decode import Decode
from executions import ALIKE, EXACT

PROMPTS = ["", "import os\n", "def area(w, h):\n    return w", "x = impo", "class A:\n    def f(self):\n        se"]
LAWS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7},
    {"temperature": 1.0},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 1.3, "top_k": 3},
    {"temperature": 1.0, "logit_bias": {20: 3.0, 21: float("-inf")}},
]
EOS = Tokenizer.eos_id


def same(one: Result, other: Result) -> bool:
    """Equal in all that a caller sees but what it took, to the last bit of a probability."""
    first, second = ([(t.id, t.text, t.logprob, t.confidence) for t in r.tokens] for r in (one, other))
    return first == second and (one.text, one.finish_reason) == (other.text, other.finish_reason)


def laws(behind: Behind, tokens: Iterable[int] = repeat(20)) -> np.ndarray:
    """All of what is behind (A, V), the given tokens standing before."""
    rows = (behind(token) for token in tokens)
    return np.stack(list(takewhile(lambda row: row is not None, rows)))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def drafting(make_model: Any) -> Model:
    """A model with a draft head whose steps change what is likely."""
    return make_model(draft_head=24)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", ["causal", "drafting"])
def test_the_tokens_are_those_of_ar_at_every_temperature(
    name: str, law: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    causal, accepted = request.getfixturevalue(name), 0
    for seed, prompt in enumerate(PROMPTS):
        options = {"seed": seed, "min_tokens": 14} | law
        want = causal.generate(prompt, 16, mode="ar", **options)
        for size in ((1, 2, 16), (2, 3, 5), (2, 4, 9))[seed % 3]:
            got = causal.generate(prompt, 16, mode="speculative", block_size=size, **options)
            assert same(got, want)
            assert got.usage.forwards <= want.usage.forwards
            accepted += got.usage.accepted
    assert accepted > 5 or name == "drafting" or law.get("temperature", 0) > 0


@pytest.mark.parametrize("execution", EXACT)
def test_a_draft_head_is_told_what_stands_before(drafting: Model, execution: Execution) -> None:
    """Each law is that of the formula, on the hidden states of the same rows without a head."""
    backbone, t = drafting.denoiser.backbone, drafting.tokenizer
    canvas = Canvas.lay_out([[t.bos_id, *t.encode("def f(x):\n")]], [9], t.mask_id)
    start, draft = canvas.gaps[0][0], np.array([50, 60])
    verified = BackboneDenoiser(backbone, execution).session(canvas).verify(canvas.at((start, len(canvas))), draft, 3)
    given, position = [*canvas.tokens[:start], 50, t.mask_id, t.mask_id, t.mask_id], start + 4
    rows = Rows.make(torch.arange(position)[None], span=torch.tensor([[SETTLED] * (start + 1) + [0] * 3]))
    hidden = backbone(torch.tensor([given]), Layout(rows, start + 1))[0]
    state, embedding, head = hidden[start : start + 1], backbone.embedding.weight, backbone.draft_head
    tokens = [70, 33, 41]
    for row, (token, law) in enumerate(zip(tokens, laws(verified.behind(1), [*tokens, 0]), strict=True), start + 1):
        told = torch.cat([x / (x * x).mean().sqrt() for x in (hidden[row], embedding[token], state[0])])
        gate, value = (head.up.weight @ told).chunk(2)
        state = (hidden[row] + head.down.weight @ (gate * torch.sigmoid(gate) * value))[None]
        want = backbone.logits(state)[0].numpy()
        finite = np.isfinite(want)
        assert np.abs(law[finite] - want[finite]).max() < 1e-3
    one, other = (laws(verified.behind(1), [token, 33, 41, 0])[0][finite] for token in (70, 71))
    assert np.abs(one - other).max() > 0.1


@pytest.mark.parametrize("execution", ALIKE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mlp_width", [704, 1408])
def test_not_one_bit_differs_from_ar(make_model: Any, mlp_width: int, dtype: torch.dtype, execution: Execution) -> None:
    """A settled row attends alone, and its products do not depend on the number of rows."""
    made = make_model(width=256, mlp_width=mlp_width)
    model = Model(made.backbone.to(dtype), made.tokenizer, execution)
    for seed, prompt in enumerate(PROMPTS[1:4]):
        for temperature in (0.0, 1.0):
            options = {"seed": seed, "temperature": temperature}
            want = model.generate(prompt, 24, mode="ar", **options)
            got = model.generate(prompt, 24, mode="speculative", block_size=4, **options)
            assert same(got, want)


def test_fifty_held_out_prompts_continue_as_by_ar() -> None:
    loaded = [daguerre.load(dtype=dtype) for dtype in ("float32", "bfloat16")]
    forwards = 0
    for number, document in enumerate(load_frozen()[:50]):
        model, prompt = loaded[number // 2 % 2], document.text[:120]
        options: dict[str, Any] = {"temperature": float(number % 2), "seed": number}
        want = model.generate(prompt, 8, mode="ar", **options)
        got = model.generate(prompt, 8, mode="speculative", block_size=3, **options)
        assert same(got, want)
        forwards += want.usage.forwards - got.usage.forwards
    assert forwards > 50


@pytest.mark.parametrize("stop", ["\n", "e", ("in", "r(")])
def test_a_stop_string_ends_the_text_where_it_ends_that_of_ar(causal: Model, stop: Any) -> None:
    for seed in range(6):
        options: dict[str, Any] = {"stop": stop, "seed": seed, "temperature": 1.0}
        want, got = (causal.generate("x = ", 40, mode=mode, **options) for mode in ("ar", "speculative"))
        assert same(got, want)
        assert [c.open.tolist() for c in got.trace.replay()][-1] == [c.open.tolist() for c in want.trace.replay()][-1]


def test_nothing_is_drafted_or_verified_behind_the_end_of_the_text(scripted: Any, tokenizer: Tokenizer) -> None:
    want = [*tokenizer.encode("a = b"), EOS, *tokenizer.encode("never")]
    denoiser = scripted(lambda canvas, position: {want[min(position, len(want)) - 1]: 10.0})
    result = main_path.generate(denoiser, tokenizer, "", 32, mode="speculative", block_size=16)
    assert (result.text, result.finish_reason) == ("a = b", "stop")
    assert result.usage.forwards == 2
    assert len(denoiser.asked) == 2 + 16  # two laws, one draft; then the draft's 15 tokens and the one behind them
    *_, canvas = result.trace.replay()
    assert int((~canvas.open).sum()) == 1 + want.index(EOS) + 1


def test_a_denoiser_that_drafts_what_it_says_takes_one_forward_for_each_span(
    scripted: Any, tokenizer: Tokenizer
) -> None:
    word = tokenizer.encode("a")[0]
    for size, num in ((1, 12), (4, 12), (5, 23), (16, 8)):
        result = main_path.generate(
            scripted(lambda canvas, position: {word: 20.0}), tokenizer, "", num, mode="speculative", block_size=size
        )
        assert result.text == "a" * num
        assert result.usage.forwards == 1 + -(-(num - 1) // size)
        assert result.usage.accepted == result.usage.drafted == num - result.usage.forwards


def test_a_draft_that_doubts_itself_is_not_put_to_the_test(scripted: Any, tokenizer: Tokenizer) -> None:
    doubt = dict.fromkeys(range(100, 300), 0.0)
    result = main_path.generate(
        scripted(lambda canvas, position: doubt), tokenizer, "", 8, mode="speculative", block_size=4
    )
    assert (result.usage.forwards, result.usage.drafted) == (8, 0)


def test_a_timeout_keeps_only_what_is_verified(slow: Any, tokenizer: Tokenizer) -> None:
    options: dict[str, Any] = {"mode": "speculative", "block_size": 4, "timeout": 9.5}
    result = main_path.generate(slow, tokenizer, "", 50, **options)
    assert result.finish_reason == "timeout"
    assert 0 < len(result.text) < 50
    assert result.text == "a" * len(result.text)


def test_samples_streams_and_the_least_number_of_tokens_are_as_by_ar(causal: Model) -> None:
    shared: dict[str, Any] = {"temperature": 1.0, "seed": 3, "min_tokens": 15, "logit_bias": {EOS: 8.0}}
    both = [causal.generate("x = impo", 20, mode=mode, n=3, **shared) for mode in ("ar", "speculative")]
    for one, other in zip(*(result.choices for result in both), strict=True):
        assert same(one, other)
        assert len(one.tokens) >= 15
    *_, last = causal.stream("x = impo", 20, mode="speculative", **shared)
    assert last.text == both[0].text


def test_forwards_stay_within_the_bound_and_rows_are_counted(causal: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, rows = 0, 0
    kind = type(causal.denoiser.executor)
    forward = kind.__call__

    def counted(executor: Any, tokens: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls, rows
        calls, rows = calls + 1, rows + tokens.shape[1]
        return forward(executor, tokens, *args, **kwargs)

    monkeypatch.setattr(kind, "__call__", counted)
    for size in (1, 2, 7):
        calls = rows = 0
        decode = Decode(mode="speculative", block_size=size, temperature=1.0)
        plan = make_plan(causal.config, causal.tokenizer, decode, "for i in ran", None, 21, None)
        usage = causal.generate("for i in ran", 21, decode).usage
        assert usage.forwards == calls <= plan.bound
        assert usage.computed_rows == rows
        assert usage.settle_rows == 0


def test_rejected_rows_are_never_left_in_the_cache(causal: Model) -> None:
    """A session that verified a wrong draft answers like a fresh one."""
    t = causal.tokenizer
    canvas = Canvas.lay_out([[t.bos_id, *t.encode("a = b + c\n")]], [12], t.mask_id)
    start = canvas.gaps[0][0]
    canvas = canvas.at((start, len(canvas)))
    used, fresh = causal.denoiser.session(canvas), causal.denoiser.session(canvas)
    used.verify(canvas, np.array([50, 60, 70]), 3)
    draft = np.array([50, 61])
    answers = [session.verify(canvas, draft, 3) for session in (used, fresh)]
    for a, b in [(v.logits for v in answers), *((laws(v.behind(j)) for v in answers) for j in range(3))]:
        finite = np.isfinite(a)
        assert np.abs(a[finite] - b[finite]).max() < 1e-4
    assert used.counts.reused_rows == start - 1  # what stands before the seed, which answers


def test_verification_is_the_law_of_ar_and_the_draft_is_that_of_a_span(causal: Model) -> None:
    t = causal.tokenizer
    draft, ahead = np.array([50, 60, 70]), 4
    canvas = Canvas.lay_out([[t.bos_id, *t.encode("def f(x):\n")]], [9], t.mask_id)
    start, end = canvas.gaps[0][0], len(canvas)
    verified = causal.denoiser.session(canvas).verify(canvas.at((start, end)), draft, ahead)
    assert verified.logits.shape[0] == 4
    assert [len(laws(verified.behind(j))) for j in range(4)] == [4, 4, 4, 4]
    longer = causal.denoiser.session(canvas).verify(canvas.at((start, end)), draft, 9)
    assert [len(laws(longer.behind(j))) for j in range(4)] == [7, 6, 5, 4]
    tokens = canvas.tokens.copy()
    tokens[start : start + 3] = draft
    for row in range(4):
        place = start + row
        now = Canvas(tokens, np.arange(end) >= place, canvas.gaps)
        law = causal.denoiser.session(now).logits(now.at((place, place + 1)), np.array([place]))
        finite = np.isfinite(law)
        assert np.abs(law[finite] - verified.logits[row : row + 1][finite]).max() < 1e-4


def test_rows_of_a_verification_are_the_seed_the_draft_and_what_is_behind_each(causal: Model) -> None:
    canvas = Canvas.lay_out([[1, *range(20, 29)]], [8], 3).at((10, 18))
    plan = plan_verification(canvas, 2, 3)
    assert plan.settled.tolist() == list(range(12))
    assert plan.answering == 3
    assert plan.opened.tolist() == [10, 11, 12, 11, 12, 13, 12, 13, 14]
    assert plan.horizon is not None
    assert plan.horizon.tolist() == [10] * 3 + [11] * 3 + [12] * 3
    assert len(plan_verification(canvas.at((16, 18)), 1, 3).opened) == 0


@pytest.mark.parametrize(("num_draft", "ahead", "room"), [(0, 3, 9), (2, 3, 20), (3, 1, 8), (2, 4, 4), (1, 0, 5)])
def test_what_the_last_rows_see_of_one_another_is_what_the_rule_says(num_draft: int, ahead: int, room: int) -> None:
    start = 10
    canvas = Canvas.lay_out([[1, *range(20, 29)]], [room], 3).at((start, start + room))
    plan = plan_verification(canvas, num_draft, ahead)
    assert plan.horizon is not None
    assert plan.among is not None
    settled = len(plan.settled)
    position = np.concatenate([plan.settled, plan.opened])
    span = np.concatenate([np.full(settled, SETTLED), plan.horizon])
    until = np.concatenate([np.full(settled, NO_HORIZON), plan.horizon])
    rows = Rows.of_numpy(position, span, np.zeros_like(position), until)
    last = slice(settled - plan.answering, None)
    seen = allowed(rows[last], rows, "causal")[0]
    assert torch.equal(plan.among, seen[:, last])
    assert seen[:, : settled - plan.answering].all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_tested_token_has_the_bits_of_a_step_of_its_own_wherever_it_stands(dtype: str) -> None:
    """Also where the rows of a forward lie on both sides of a multiple of the cache's rounding."""
    model = daguerre.load(dtype=dtype)
    tokens = model.tokenizer.encode(load_frozen()[0].text)[:140]
    for start in (3, *range(59, 68), 126):
        canvas = Canvas.lay_out([[model.config.bos_id, *tokens[: start - 1]]], [12], 3).at((start, start + 12))
        draft = np.array(tokens[start - 1 : start + 2])
        verified = model.denoiser.session(canvas)
        alone = model.denoiser.session(canvas)
        for session in (verified, alone):
            session.logits(canvas.at((start - 1, start)), np.array([start - 1]))
        laws = verified.verify(canvas, draft, 3).logits
        for row in range(4):
            token = [int(draft[row - 1])] if row else []
            canvas = canvas if not row else canvas.apply(Decision([start + row - 1], token, [1.0], [1.0]))
            place = start + row
            law = alone.logits(canvas.at((place, place + 1)), np.array([place]))
            assert np.array_equal(law[0], laws[row])
