"""Mode "speculative": the tokens of mode "ar", in fewer forwards."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product, repeat
from typing import Any

import numpy as np
import pytest
import torch

import daguerre
import main_path
from backends import BACKENDS, needs_compiler
from daguerre.canvas import Canvas, Decision
from daguerre.decoding.request import Decode
from daguerre.decoding.result import Result
from daguerre.heldout import load_frozen
from daguerre.model import Model
from daguerre.models.core.batched import CLEAN, NO_HORIZON, BatchLayout, Rows, allowed, run_batch
from daguerre.models.load_options import BackendName
from daguerre.models.rows import plan_verification
from daguerre.models.session import NextLogits, Verification, compute
from daguerre.models.tokenizer import Tokenizer
from driving import Recorded, logits_of
from plans import make_plan

PROMPTS = ["", "import os\n", "def area(w, h):\n    return w", "x = impo", "class A:\n    def f(self):\n        se"]
SAMPLING: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7},
    {"temperature": 1.0},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 1.3, "top_k": 3},
    {"temperature": 1.0, "logit_bias": {20: 3.0, 21: float("-inf")}},
]
EOS = Tokenizer.eos_id


def same(one: Result, other: Result, tolerance: float = 1e-4) -> bool:
    """Equal in all that a caller sees but the usage; probabilities within a tolerance."""
    first, second = ([(t.id, t.text) for t in r.tokens] for r in (one, other))
    chances = [[(t.logprob, t.confidence) for t in r.tokens] for r in (one, other)]
    return (
        (first, one.text, one.finish_reason) == (second, other.text, other.finish_reason)
        and np.shape(chances[0]) == np.shape(chances[1])
        and bool((np.abs(np.subtract(*chances)) <= tolerance).all())
    )


def verify(model: Model, canvas: Canvas, draft: Any, ahead: int, session: Any = None) -> Verification:
    session = session or model.denoiser.session(canvas)
    return compute(session.verify(canvas, np.array(draft), ahead), model.denoiser.backend)


def logits_after(model: Model, behind: NextLogits, tokens: Iterable[int] = repeat(20)) -> np.ndarray:
    """All that come behind a place, (A, V), each given the token before it."""
    rows: list[np.ndarray] = []
    for token in tokens:
        row = compute(behind.after(token), model.denoiser.backend)
        if row is None:
            break
        rows.append(row)
    return np.stack(rows)


SIZES = ((1, 2, 16), (2, 3, 5), (2, 4, 9))


def test_the_tokens_are_those_of_ar_at_every_temperature(
    subtests: pytest.Subtests, causal: Model, drafting: Model
) -> None:
    for name, model, laws in (("causal", causal, SAMPLING), ("drafting", drafting, SAMPLING[1::2])):
        for sampling in laws:
            with subtests.test(name, sampling=sampling):
                accepted = accepted_by(model, sampling)
                assert accepted > 5 or name == "drafting" or sampling.get("temperature", 0) > 0


def accepted_by(model: Model, sampling: dict[str, Any]) -> int:
    """How many drafted tokens were accepted, of texts that are those of mode "ar"."""
    accepted = 0
    for seed, prompt in enumerate(PROMPTS):
        options = {"seed": seed, "min_tokens": 14} | sampling
        want = model.generate(prompt, 16, mode="ar", **options)
        for size in SIZES[seed % 3]:
            got = model.generate(prompt, 16, mode="speculative", block_size=size, **options)
            assert same(got, want)
            assert got.usage.forwards <= want.usage.forwards
            accepted += got.usage.accepted
    return accepted


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_draft_head_knows_what_stands_before(drafting: Model, backend: BackendName) -> None:
    """Each distribution is that of the formula, on the hidden states of the same rows without a head."""
    backbone, t = drafting.backbone, drafting.tokenizer
    model = Model(backbone, t, backend)
    canvas = Canvas.lay_out([[t.bos_id, *t.encode("def f(x):\n")]], [9], t.mask_id)
    start = canvas.gaps[0][0]
    verified = verify(model, canvas.at((start, len(canvas))), [50, 60], 3)
    given, position = [*canvas.tokens[:start], 50, t.mask_id, t.mask_id, t.mask_id], start + 4
    rows = Rows.make(torch.arange(position)[None], span=torch.tensor([[CLEAN] * (start + 1) + [0] * 3]))
    hidden = run_batch(backbone, torch.tensor([given]), BatchLayout(rows, start + 1))[0]
    state, embedding, head = hidden[start : start + 1], backbone.embedding.weight, backbone.draft_head
    assert head is not None
    tokens = [70, 33, 41]
    found = logits_after(model, verified.following(1), [*tokens, 0])
    for row, (token, logits) in enumerate(zip(tokens, found, strict=True), start + 1):
        given_to_head = torch.cat([x / (x * x).mean().sqrt() for x in (hidden[row], embedding[token], state[0])])
        gate, value = (head.up.weight @ given_to_head).chunk(2)
        state = (hidden[row] + head.down.weight @ (gate * torch.sigmoid(gate) * value))[None]
        want = backbone.logits(state)[0].numpy()
        finite = np.isfinite(want)
        assert np.abs(logits[finite] - want[finite]).max() < 1e-3
    one, other = (
        logits_after(model, verified.following(1), [token, 33, 41, 0])[0][np.isfinite(want)] for token in (70, 71)
    )
    assert np.abs(one - other).max() > 0.1


@needs_compiler
@pytest.mark.parametrize(("dtype", "mlp_width"), [(torch.float32, 704), (torch.bfloat16, 1408)])
def test_not_one_bit_differs_from_ar(make_model: Any, mlp_width: int, dtype: torch.dtype) -> None:
    """By the native backend: a clean row's numbers do not depend on what is computed beside it."""
    made = make_model(width=256, mlp_width=mlp_width)
    model = Model(made.backbone.to(dtype), made.tokenizer, "native")
    for seed, prompt in enumerate(PROMPTS[1:4]):
        for temperature in (0.0, 1.0):
            options = {"seed": seed, "temperature": temperature}
            want = model.generate(prompt, 24, mode="ar", **options)
            got = model.generate(prompt, 24, mode="speculative", block_size=4, **options)
            assert same(got, want, 0.0)


@needs_compiler
def test_fifty_held_out_prompts_continue_as_by_ar() -> None:
    loaded = [daguerre.load(dtype=dtype, backend="native") for dtype in ("float32", "bfloat16")]
    forwards = 0
    for number, document in enumerate(load_frozen()[:50]):
        model, prompt = loaded[number // 2 % 2], document.text[:120]
        options: dict[str, Any] = {"temperature": float(number % 2), "seed": number}
        want = model.generate(prompt, 8, mode="ar", **options)
        got = model.generate(prompt, 8, mode="speculative", block_size=3, **options)
        assert same(got, want, 0.0)
        forwards += want.usage.forwards - got.usage.forwards
    assert forwards > 50


def test_a_stop_string_ends_the_text_where_it_ends_that_of_ar(causal: Model) -> None:
    stops: tuple[Any, ...] = ("\n", "e", ("in", "r("))
    for stop, seed in product(stops, range(6)):
        options: dict[str, Any] = {"stop": stop, "seed": seed, "temperature": 1.0}
        want, got = (causal.generate("x = ", 40, mode=mode, **options) for mode in ("ar", "speculative"))
        assert same(got, want)
        assert [c.open.tolist() for c in got.trace.replay()][-1] == [c.open.tolist() for c in want.trace.replay()][-1]


def test_nothing_is_drafted_or_verified_behind_the_end_of_the_text(scripted: Any, tokenizer: Tokenizer) -> None:
    want = [*tokenizer.encode("a = b"), EOS, *tokenizer.encode("never")]
    denoiser = scripted(lambda canvas, position: {want[min(position, len(want)) - 1]: 10.0})
    result = main_path.generate(denoiser, tokenizer, "", 32, mode="speculative", block_size=16, drafter="head")
    assert (result.text, result.finish_reason) == ("a = b", "stop")
    assert result.usage.forwards == 2
    first, second = denoiser.asked
    assert first == [1, *range(2, 17)], "the first token, and a draft of 15 behind it"
    assert second[:16] == list(range(2, 18)), "the draft's tokens and the one behind them"
    *_, canvas = result.trace.replay()
    assert int((~canvas.open).sum()) == 1 + want.index(EOS) + 1


def test_a_slow_cycle_asks_the_same(scripted: Any, tokenizer: Tokenizer) -> None:
    """The reference that works on logits does not draft behind the end of the text either."""
    want = [*tokenizer.encode("a = b"), EOS, *tokenizer.encode("never")]

    def says(canvas: Canvas, position: int) -> dict[int, float]:
        return {want[min(position, len(want)) - 1]: 10.0}

    fast, slow = scripted(says), scripted(says, draws=False)
    options: dict[str, Any] = {"mode": "speculative", "block_size": 4, "drafter": "head"}
    results = [main_path.generate(denoiser, tokenizer, "", 32, **options) for denoiser in (fast, slow)]
    assert same(*results)
    assert fast.asked == slow.asked


def test_a_denoiser_that_drafts_what_it_says_takes_one_forward_for_each_span(
    scripted: Any, tokenizer: Tokenizer
) -> None:
    word = tokenizer.encode("a")[0]
    for size, num in ((1, 12), (4, 12), (5, 23), (16, 8)):
        result = main_path.generate(
            scripted(lambda canvas, position: {word: 20.0}),
            tokenizer,
            "",
            num,
            mode="speculative",
            block_size=size,
            drafter="head",
        )
        assert result.text == "a" * num
        assert result.usage.forwards == 1 + -(-(num - 1) // size)
        assert result.usage.accepted == result.usage.drafted == num - result.usage.forwards


def test_a_draft_that_doubts_itself_is_not_put_to_the_test(scripted: Any, tokenizer: Tokenizer) -> None:
    doubt = dict.fromkeys(range(100, 300), 0.0)
    result = main_path.generate(
        scripted(lambda canvas, position: doubt), tokenizer, "", 8, mode="speculative", block_size=4, drafter="head"
    )
    assert (result.usage.forwards, result.usage.drafted) == (8, 0)


def test_a_timeout_keeps_only_what_is_verified(slow: Any, tokenizer: Tokenizer) -> None:
    options: dict[str, Any] = {"mode": "speculative", "block_size": 4, "drafter": "head", "timeout": 9.5}
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


def test_forwards_stay_within_the_bound_and_rows_are_counted(causal: Model, drafting: Model) -> None:
    for model in (causal, drafting):
        for size in (1, 2, 7):
            decode = Decode(mode="speculative", block_size=size, temperature=1.0)
            plan = make_plan(model.config, model.tokenizer, decode, "for i in ran", None, 21, None)
            recorded = Recorded(model.denoiser)
            usage = main_path.generate(recorded, model.tokenizer, "for i in ran", 21, decode).usage
            forwards = recorded.backend.forwards
            assert usage.forwards == len(forwards) <= plan.max_forwards
            assert usage.computed_tokens == sum(len(one.tokens) for one in forwards)
            assert usage.finalized_tokens == 0


def test_rejected_rows_are_never_left_in_the_cache(causal: Model) -> None:
    """A session that verified a wrong draft answers like a fresh one."""
    t = causal.tokenizer
    canvas = Canvas.lay_out([[t.bos_id, *t.encode("a = b + c\n")]], [12], t.mask_id)
    start = canvas.gaps[0][0]
    canvas = canvas.at((start, len(canvas)))
    used, fresh = causal.denoiser.session(canvas), causal.denoiser.session(canvas)
    verify(causal, canvas, [50, 60, 70], 3, used)
    answers = [verify(causal, canvas, [50, 61], 3, session) for session in (used, fresh)]
    behind = [tuple(logits_after(causal, answer.following(j)) for answer in answers) for j in range(3)]
    for a, b in [(answers[0].logits, answers[1].logits), *behind]:
        finite = np.isfinite(a)
        assert np.abs(a[finite] - b[finite]).max() < 1e-4
    assert used.counts.reused_tokens == start - 1  # what stands before the anchor, which is read


def test_verification_is_the_distribution_of_ar_and_the_draft_is_that_of_a_span(causal: Model) -> None:
    t = causal.tokenizer
    draft = np.array([50, 60, 70])
    canvas = Canvas.lay_out([[t.bos_id, *t.encode("def f(x):\n")]], [9], t.mask_id)
    start, end = canvas.gaps[0][0], len(canvas)
    verified, longer = (verify(causal, canvas.at((start, end)), draft, ahead) for ahead in (4, 9))
    assert verified.logits.shape[0] == 4
    assert [len(logits_after(causal, verified.following(j))) for j in range(4)] == [4, 4, 4, 4]
    assert [len(logits_after(causal, longer.following(j))) for j in range(4)] == [7, 6, 5, 4]
    tokens = canvas.tokens.copy()
    tokens[start : start + 3] = draft
    for row in range(4):
        place = start + row
        now = Canvas(tokens, np.arange(end) >= place, canvas.gaps)
        alone = logits_of(causal.denoiser, now.at((place, place + 1)), np.array([place]))
        finite = np.isfinite(alone)
        assert np.abs(alone[finite] - verified.logits[row : row + 1][finite]).max() < 1e-4


def test_rows_of_a_verification_are_the_anchor_the_draft_and_what_is_behind_each(causal: Model) -> None:
    canvas = Canvas.lay_out([[1, *range(20, 29)]], [8], 3).at((10, 18))
    plan, groups = plan_verification(canvas, 2, 3)
    assert (plan.num_clean, plan.num_read, plan.clean) == (12, 3, None)
    assert plan.noisy.tolist() == [10, 11, 12, 11, 12, 13, 12, 13, 14]
    assert groups.tolist() == [0, 3, 6, 9]
    assert len(plan_verification(canvas.at((16, 18)), 1, 3)[0].noisy) == 0


def test_the_rows_of_a_verification_see_what_the_rule_of_labels_says(causal: Model) -> None:
    """The anchor and the draft are clean; the masked rows behind each place are a span that sees up to it."""
    start = 10
    for num_draft, ahead, room in ((0, 3, 9), (2, 3, 20), (3, 1, 8), (2, 4, 4), (1, 0, 5)):
        canvas = Canvas.lay_out([[1, *range(20, 29)]], [room], 3).at((start, start + room))
        plan, groups = plan_verification(canvas, num_draft, ahead)
        place = np.repeat(np.arange(num_draft + 1), np.diff(groups))
        position = torch.from_numpy(np.concatenate([np.arange(plan.num_clean), plan.noisy]))[None]
        span = torch.from_numpy(np.concatenate([np.full(plan.num_clean, CLEAN), place]))[None]
        horizon = torch.from_numpy(np.concatenate([np.full(plan.num_clean, NO_HORIZON), start + place]))[None]
        rows = Rows.make(position, span, horizon=horizon)
        want = allowed(rows, rows, "causal")[0].numpy()
        assert np.array_equal(plan.layout(causal.config, 0).dense(0), want), (num_draft, ahead, room)
        past = start - 1
        assert np.array_equal(plan.layout(causal.config, past).dense(past), want[past:]), (num_draft, ahead, room)


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_tested_token_has_the_bits_of_a_step_of_its_own_wherever_it_stands(dtype: str) -> None:
    """Also where the rows of a forward lie on both sides of a multiple of the cache's rounding."""
    model = daguerre.load(dtype=dtype, backend="native")
    tokens = model.tokenizer.encode(load_frozen()[0].text)[:140]
    for start in (3, *range(59, 68), 126):
        canvas = Canvas.lay_out([[model.config.bos_id, *tokens[: start - 1]]], [12], 3).at((start, start + 12))
        draft = np.array(tokens[start - 1 : start + 2])
        verifying, alone = model.denoiser.session(canvas), model.denoiser.session(canvas)
        for session in (verifying, alone):
            logits_of(model.denoiser, canvas.at((start - 1, start)), np.array([start - 1]), session)
        logits = verify(model, canvas, draft, 3, verifying).logits
        for row in range(4):
            token = [int(draft[row - 1])] if row else []
            canvas = canvas if not row else canvas.apply(Decision([start + row - 1], token, [1.0], [1.0]))
            place = start + row
            want = logits_of(model.denoiser, canvas.at((place, place + 1)), np.array([place]), alone)
            assert np.array_equal(want[0], logits[row])
