"""Explanations of generated texts: sums that are the logits, whatever drew the tokens; shares; input attribution."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

from concept_models import CATALOG, SHAPE, with_heads
from daguerre.canvas import Canvas
from daguerre.decoding.explanation import Explanation, TokenExplanation
from daguerre.decoding.pins import Pin
from daguerre.decoding.result import Result
from daguerre.decoding.steering import controls
from daguerre.engine.engine import Engine
from daguerre.errors import InputError, UnsupportedError
from daguerre.model import Model
from daguerre.models.denoiser import Denoiser
from daguerre.models.forward import Hidden, Logits
from daguerre.models.guidance import Guidance
from daguerre.models.session import compute
from daguerre.models.wrappers.guidance import Guided, unconditional_prefix
from daguerre.models.wrappers.steering import Steered
from daguerre.view import concepts as view
from pairwise import covering

PROMPT, SUFFIX = "def area(width, height):\n    return ", "\n\nprint(area(2, 3))\n"
ROUNDING = 2e-4
"""Logits of the native backend's and PyTorch's sums, in float32, of some tens."""
CONTEXTS: dict[str, dict[str, Any]] = {
    "causal": {},
    "drafting": {"draft_head": 24},
    "full": {"context": "full"},
    "block": {"context": "block", "shift": False, "block_size": 8},
    "reordered": {"context": "reordered", "shift": False},
    "bias": {"tied": False, "output_bias": True},
}
PROGRAM = [
    {"kind": "add", "concepts": ["loop", "discovered 4"], "strength": 4.0},
    {"kind": "suppress", "concepts": [2, 3], "strength": 0.6},
    {"kind": "set", "concepts": ["import"], "strength": 0.3, "schedule": "until", "tokens": 5},
    {"kind": "forbid", "concepts": ["literal", "discovered 1"], "strength": 3.0},
]
STEER: dict[str, Any] = {"steer": PROGRAM}


@pytest.fixture(scope="module")
def made(make_model: Callable[..., Model]) -> Callable[[str, str], Model]:
    """made(context, backend): a model with concept heads."""
    known = dict[tuple[str, str], Model]()

    def make(context: str, backend: str) -> Model:
        if (context, backend) not in known:
            model = known[context, backend] = with_heads(make_model, backend, **CONTEXTS[context])  # type: ignore[arg-type]
            if context == "bias":
                with torch.no_grad():
                    assert model.backbone.output is not None
                    model.backbone.output.bias.normal_(0, 1, generator=torch.Generator().manual_seed(0))
        return known[context, backend]

    return make


def concepts_of(result: Result) -> Explanation:
    assert result.concepts is not None
    return result.concepts


def law(model: Model, result: Result, canvas: Canvas, how: dict[str, Any]) -> Denoiser:
    """The denoiser that a request's tokens were drawn from, put together by hand."""
    denoiser: Denoiser = model.denoiser
    if result.steering is not None:
        denoiser = Steered(denoiser, controls(result.steering, model.denoiser.heads, CATALOG))
    if "guidance" not in how:
        return denoiser
    prefix = unconditional_prefix(model.config, canvas.gaps[0][0], [])
    return Guided(denoiser, Guidance(how["guidance"]), prefix)


def used_logits(model: Model, result: Result, how: dict[str, Any]) -> list[float]:
    """The logit of each token of a result, from a forward of the canvas that its trace has before its commit."""
    states = [result.trace.canvas, *result.trace.replay()]
    out = []
    for token in concepts_of(result).tokens:
        last = max(at for at, step in enumerate(result.trace.steps) if token.position in step.decision.positions)
        canvas = states[last].at(result.trace.steps[last].span)
        if result.usage.mode in ("ar", "speculative"):
            opened = canvas.in_gap & (np.arange(len(canvas)) >= token.position)
            canvas = Canvas(states[-1].tokens, opened, canvas.gaps, (token.position, token.position + 1))
        session = law(model, result, canvas, how).session(canvas, "none")
        answer = compute(session.ask(canvas, canvas.active_positions(), Logits()), model.denoiser.backend)
        assert answer.logits is not None
        out.append(float(answer.logits[canvas.active_positions().tolist().index(token.position), token.id]))
    return out


HOW: dict[str, dict[str, Any]] = {
    "plain": {},
    "sampled": {"temperature": 1.0, "top_p": 0.8, "seed": 5},
    "guided and steered": {"guidance": 2.0, **STEER},
    "steered": {"temperature": 0.8, "seed": 2, **STEER},
    "guided": {"mode": "block", "guidance": 1.5, "policy": "entropy", "steps": 4},
}


def test_parts_add_up_to_the_logit_that_was_used(subtests: pytest.Subtests, made: Callable[[str, str], Model]) -> None:
    for case in covering({"context": list(CONTEXTS), "how": list(HOW), "backend": ["torch", "native"]}):
        model, how = made(case["context"], case["backend"]), HOW[case["how"]]
        with subtests.test(**case):
            result = model.generate(PROMPT, 10, explain=True, heal=False, **how)
            told = concepts_of(result)
            assert model.generate(PROMPT, 10, heal=False, **how).text == result.text
            assert [token.text for token in told.tokens] == [token.text for token in result.tokens]
            assert len(told.explained) == len(result.tokens) == 10
            assert told.error() < ROUNDING
            logits = [token.logit for token in told.tokens]
            np.testing.assert_allclose(logits, used_logits(model, result, how), atol=ROUNDING)


def test_every_way_to_ask_for_text_explains_it(made: Callable[[str, str], Model]) -> None:
    model = made("causal", "native")
    how: dict[str, Any] = {"explain": True, "seed": 1}
    *_, last = model.stream(PROMPT, 6, **how)
    assert last.result is not None
    with Engine(model) as engine:
        served = engine.generate(PROMPT, 6, steer=PROGRAM, **how).result()
    results = {
        "generate": model.generate(PROMPT, 6, **how),
        "beam": model.infill(PROMPT, SUFFIX, 6, **how),
        "infill": model.infill(PROMPT, SUFFIX, 6, mode="block", **how),
        "fill": model.fill("x = <gap>\ny = <gap>\n", 4, **how),
        "edit": model.edit("x = 12\ny = 3\n", [(4, 6)], **how),
        "part": model.edit("x = 12 + 34\ny = 3\n", [(4, 11)], strength=0.5, **how),
        "constrained": model.generate(PROMPT, 8, regex="[a-z]+", **how),
        "stream": last.result,
        "start": model.start(PROMPT, 6, **how).result(),
        "engine": served,
    }
    for name, result in results.items():
        told = concepts_of(result)
        assert [token.text for token in told.tokens] == [token.text for token in result.tokens], name
        assert told.explained or not result.tokens, name
        assert told.error() < ROUNDING, name
    assert results["beam"].usage.mode == "beam"
    assert all(token.logit is not None for token in concepts_of(results["beam"]).tokens)
    kept = [token.step == -1 for token in results["part"].tokens]
    assert any(kept)
    assert kept == [token.logit is None for token in concepts_of(results["part"]).tokens]


def test_modes_that_take_tokens_back_explain_the_ones_that_stay(make_model: Callable[..., Model]) -> None:
    modes: dict[str, dict[str, Any]] = {"ancestral": {}, "expand": {"expand_id": 20}}
    for mode, facts in modes.items():
        model = with_heads(make_model, context="full", **facts)
        result = model.generate(PROMPT, 8, mode=mode, explain=True, steer=PROGRAM[:1], seed=3)
        told = concepts_of(result)
        assert len(told.explained) == len(result.tokens) > 0, mode
        assert told.error() < ROUNDING, mode


def test_each_sample_has_its_own_explanation(made: Callable[[str, str], Model]) -> None:
    result = made("causal", "torch").generate(PROMPT, 8, n=3, temperature=1.0, explain=True)
    assert len({concepts_of(one).to_json() for one in result.choices}) == len({one.text for one in result.choices}) > 1
    for one in result.choices:
        assert "".join(token.text for token in concepts_of(one).tokens) == one.text


def test_nothing_is_explained_unless_it_is_asked_for(made: Callable[[str, str], Model]) -> None:
    result = made("causal", "torch").generate(PROMPT, 4)
    assert result.concepts is None


def test_a_pinned_token_has_no_logit(made: Callable[[str, str], Model]) -> None:
    told = concepts_of(made("causal", "torch").generate(PROMPT, 6, pins=[Pin("x", at=2)], mode="block", explain=True))
    asked = [token.logit is not None for token in told.tokens]
    assert asked[2] is False
    assert sum(asked) == len(asked) - 1
    assert not told.tokens[2].contributions.size


def test_contributions_are_weight_times_the_vectors_logit(made: Callable[[str, str], Model]) -> None:
    """Against the definition, concept by concept, from a forward of the prompt alone."""
    model = made("causal", "torch")
    token = concepts_of(model.generate(PROMPT, 1, heal=False, explain=True)).tokens[0]
    backbone, heads = model.backbone, model.backbone.concepts
    assert heads is not None
    canvas = Canvas.lay_out([[*model.config.first, *model.tokenizer.encode(PROMPT)], []], [1], 3)
    canvas = canvas.at(canvas.gaps[0])
    answer = compute(
        model.denoiser.session(canvas).ask(canvas, canvas.active_positions(), Hidden()), model.denoiser.backend
    )
    assert answer.hidden is not None
    hidden, row = torch.from_numpy(answer.hidden)[0], backbone.projection[token.id]
    rest = hidden.double().numpy()
    expected = dict[int, float]()
    for first, logits, kept in (
        (0, heads.known_logits(hidden), SHAPE.kept_known),
        (SHAPE.known, heads.discovered_logits(hidden), SHAPE.kept_discovered),
    ):
        weights = logits.sigmoid().tolist()
        for place in sorted(range(len(weights)), key=lambda place: -weights[place])[:kept]:
            vector = heads.vectors(torch.tensor([first + place]))[0]
            expected[first + place] = weights[place] * float(vector @ row)
            rest = rest - weights[place] * vector.double().numpy()
    got = dict(zip(token.concepts.tolist(), token.contributions.tolist(), strict=True))
    assert got == pytest.approx(expected, abs=1e-5)
    assert token.residual == pytest.approx(float(rest @ row.double().numpy()), abs=1e-4)
    sizes = [abs(part) for part in token.contributions]
    assert sizes == sorted(sizes, reverse=True)


def test_a_changed_number_is_found_by_the_sum(made: Callable[[str, str], Model]) -> None:
    told = concepts_of(made("causal", "torch").generate(PROMPT, 6, explain=True, steer=PROGRAM))
    assert told.error() < ROUNDING
    token = told.tokens[3]
    for name in ("weights", "effects", "bans", "residual", "logit"):
        value = getattr(token, name)
        more = (np.arange(len(value)) == 1) * 0.5 if isinstance(value, np.ndarray) else 0.5
        changed = replace(token, **{name: value + more})
        tampered = Explanation((*told.tokens[:3], changed, *told.tokens[4:]), told.catalog)
        assert tampered.error() > 0.01, name


def test_what_steering_added_is_told_apart(made: Callable[[str, str], Model]) -> None:
    model = made("causal", "torch")
    told = concepts_of(model.generate(PROMPT, 1, heal=False, explain=True, steer=PROGRAM))
    free = concepts_of(model.generate(PROMPT, 1, heal=False, explain=True, logit_bias={told.tokens[0].id: 100.0}))
    steered, plain = told.tokens[0], free.tokens[0]
    assert steered.id == plain.id
    assert steered.logit is not None
    assert plain.logit is not None
    assert steered.logit - plain.logit == pytest.approx(steered.steering + steered.bans.sum(), abs=1e-4)
    assert steered.residual == pytest.approx(plain.residual, abs=1e-4)
    weights = dict(zip(steered.concepts.tolist(), (steered.weights - steered.added).tolist(), strict=True))
    assert {number for number, weight in weights.items() if abs(weight) > 1e-7} == set(plain.concepts.tolist())


def token_of(text: str, parts: dict[int, float], residual: float) -> TokenExplanation:
    numbers = np.array(list(parts), dtype=np.int64)
    weights = np.full(len(parts), 0.5)
    effects = np.array(list(parts.values())) / 0.5
    zero = np.zeros(len(parts))
    logit = sum(parts.values()) + residual
    return TokenExplanation(text, 30, 0, logit, numbers, weights, zero, effects, zero, residual)


HAND = Explanation(
    (
        token_of("for", {1: 3.0, 9: -1.0}, 1.0),
        token_of(" x\n", {0: 1.0, 1: -2.0, 10: 2.0}, -3.0),
        TokenExplanation("?", 31, 2),
        token_of("\n\ny", {9: 4.0}, 0.0),
    ),
    CATALOG,
)


def test_shares_follow_their_definitions() -> None:
    """By hand: of the first token 3, 1 and 1 through known, discovered and residual; of the second 1, 2 and 3."""
    shares = HAND.shares
    assert shares.aggregated == pytest.approx(((3 + 1) / 5 + (1 + 2) / 6 + 1) / 3)
    assert shares.known == pytest.approx((3 / 5 + 1 / 6 + 0) / 3)
    assert shares.absolute == pytest.approx((4 / 5 + 5 / 8 + 1) / 3)
    assert HAND.error() == 0


def test_the_largest_concepts_are_the_means_of_shares_over_tokens() -> None:
    top = HAND.top(2)
    assert [one.name for one in top] == ["discovered 1", "for_loop"]
    assert top[0].share == pytest.approx((1 / 5 + 1) / 3)
    assert top[1].share == pytest.approx((3 / 5 + 2 / 8) / 3)
    assert (top[1].contribution, top[1].num_tokens) == (pytest.approx(1.0), 2)
    assert sum(one.share for one in HAND.top(99)) == pytest.approx(HAND.shares.absolute)
    np.testing.assert_allclose(HAND.of("for_loop"), [3.0, -2.0, 0.0, 0.0])
    np.testing.assert_allclose(HAND.of(9), [-1.0, 0.0, 0.0, 4.0])
    with pytest.raises(InputError, match="did you mean 'for_loop'"):
        HAND.of("for_lop")


def test_a_printed_explanation_is_five_lines_of_named_concepts_and_the_rest() -> None:
    parts = {number: 6.0 - number for number in range(6)}
    lines = str(Explanation((*HAND.tokens, token_of("z", parts, 0.0)), CATALOG)).splitlines()

    known = [one.name for one in Explanation((*HAND.tokens, token_of("z", parts, 0.0)), CATALOG).top(4, named=True)]
    assert [line.split("  ")[0].strip() for line in lines[:4]] == known and len(lines) == 5
    assert lines[4].startswith("4 others, of which 2 have no name")
    shares = [float(line.split("%")[0].split()[-1]) for line in lines]
    whole = Explanation((*HAND.tokens, token_of("z", parts, 0.0)), CATALOG).shares.absolute
    assert sum(shares) == pytest.approx(100 * whole, abs=0.3)
    assert str(Explanation((), CATALOG)) == "0 others, of which 0 have no name    0.0%"


def test_a_discovered_concept_is_told_by_tokens_that_it_raised() -> None:
    assert HAND.raised(9) == ("\n\ny",) and HAND.raised("discovered 2") == (" x\n",)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(view.top_table(HAND))
    shown = console.export_text()
    assert "discovered 1 (raised '\\n\\ny')" in shown and "have no names" in shown


def test_lines_have_the_tokens_that_begin_in_them() -> None:
    first, second = HAND.lines(1)
    assert (first.number, first.text, first.top[0].name) == (1, "for x", "for_loop")
    assert (second.number, second.text, second.top[0].name) == (2, "?", "discovered 1")
    assert first.shares.known == pytest.approx((3 / 5 + 1 / 6) / 2)
    assert second.shares.aggregated == 1


def test_json_has_all_that_the_sum_needs(made: Callable[[str, str], Model]) -> None:
    value = json.loads(concepts_of(made("causal", "torch").generate(PROMPT, 4, explain=True, steer=PROGRAM)).to_json())
    for token in value["tokens"]:
        parts = np.dot(token["weights"], token["effects"]) + np.sum(token["bans"]) + token["residual"] + token["bias"]
        assert parts == pytest.approx(token["logit"], abs=1e-4)
        assert {str(number) for number in token["concepts"]} <= value["names"].keys()
    assert value["names"]["1"] == "for_loop"
    assert json.loads(HAND.to_json())["tokens"][2] == {"text": "?", "id": 31, "position": 2, "logit": None}


def test_attributions_add_up_better_with_more_steps(
    subtests: pytest.Subtests, made: Callable[[str, str], Model]
) -> None:
    for context in CONTEXTS:
        model = made(context, "torch")
        result = model.generate(PROMPT, 8, explain=True, heal=False, mode=None if context != "drafting" else "block")
        told = concepts_of(result)
        with subtests.test(context):
            few, many = (model.attribute(result, 3, num) for num in (2, 200))
            assert many.logit == pytest.approx(told.tokens[3].logit, abs=ROUNDING)
            assert many.error < 2e-3
            assert many.error < few.error
            assert (many.text, many.position) == (told.tokens[3].text, told.tokens[3].position)
            assert f"completeness error {many.error:.4f} logits" in str(many)
            if context in ("causal", "bias"):
                assert not many.scores[many.position :].any()


def test_what_was_masked_has_no_part(made: Callable[[str, str], Model]) -> None:
    model = made("full", "torch")
    result = model.generate(PROMPT, 8, explain=True, heal=False, mode="full", policy="confidence", steps=8)
    states = [result.trace.canvas, *result.trace.replay()]
    for index in (0, 5):
        found = model.attribute(result, index, 8)
        at = next(n for n, step in enumerate(result.trace.steps) if found.position in step.decision.positions)
        opened = states[at].open
        assert opened.sum() == 8 - at
        assert (found.scores[opened] == 0).all()
        assert (found.scores[~opened] != 0).all()


def test_attribution_of_a_linear_model_is_exact(
    made: Callable[[str, str], Model], make_model: Callable[..., Model]
) -> None:
    """Without branches and norms a logit is W_y . x of one row: x is all of the reason, at any number of steps."""
    model = with_heads(make_model)
    backbone = model.backbone
    with torch.no_grad():
        for name, weight in backbone.named_parameters():
            if name.endswith(("out.weight", "down.weight")):
                weight.zero_()
    backbone.final_norm = nn.Identity()
    result = model.generate(PROMPT, 5, explain=True, heal=False, mode="ar")
    found = model.attribute(result, 4, 1)
    last = found.position - 1
    states = [*result.trace.replay()]
    embedding = backbone.embedding.weight
    token, mask = int(states[-1].tokens[last]), model.config.mask_id
    exact = float((embedding[token] - embedding[mask]) @ backbone.projection[found.id])
    assert found.scores[last] == pytest.approx(exact, abs=1e-4)
    assert not np.delete(found.scores, last).any()
    assert found.error < 1e-4


def test_attribution_sees_steering(made: Callable[[str, str], Model]) -> None:
    model = made("causal", "torch")
    steer = [{"kind": "add", "concepts": ["loop"], "strength": 4.0, "schedule": "fade"}, PROGRAM[3]]
    result = model.generate(PROMPT, 6, explain=True, heal=False, steer=steer)
    assert model.attribute(result, 4, 4).logit == pytest.approx(concepts_of(result).tokens[4].logit, abs=ROUNDING)


def test_attribution_takes_gradients_where_the_caller_takes_none(made: Callable[[str, str], Model]) -> None:
    model = made("causal", "torch")
    result = model.generate(PROMPT, 3, explain=True, heal=False)
    with torch.no_grad():
        found = model.attribute(result, 1, 4)
    assert np.array_equal(found.scores, model.attribute(result, 1, 4).scores) and found.scores.any()


def test_attribution_is_that_of_a_text_filled_from_the_left_by_a_search(made: Callable[[str, str], Model]) -> None:
    model = made("causal", "torch")
    result = model.infill(PROMPT, SUFFIX, 5, explain=True)
    assert result.usage.mode == "beam"
    assert result.tokens
    found = model.attribute(result, 0, 100)
    assert found.logit == pytest.approx(concepts_of(result).tokens[0].logit, abs=ROUNDING)
    assert found.error < 2e-3


def test_what_cannot_be_attributed_is_refused(
    made: Callable[[str, str], Model], make_model: Callable[..., Model]
) -> None:
    model = made("causal", "torch")
    with pytest.raises(InputError, match="explain=True"):
        model.attribute(model.generate(PROMPT, 3), 0)
    result = model.generate(PROMPT, 4, explain=True, pins=[Pin("x", at=1)], mode="block")
    with pytest.raises(InputError, match="was not asked for token 1"):
        model.attribute(result, 1)
    with pytest.raises(InputError, match="there is no token 9"):
        model.attribute(result, 9)
    with pytest.raises(InputError, match="num_steps must be"):
        model.attribute(result, 0, 0)
    full = with_heads(make_model, context="full")
    with pytest.raises(UnsupportedError, match='mode "ancestral"'):
        full.attribute(full.generate(PROMPT, 4, mode="ancestral", explain=True), 0)


def test_gradients_take_lower_precision_as_float32(
    made: Callable[[str, str], Model], make_model: Callable[..., Model]
) -> None:
    model = with_heads(make_model)
    half = Model(model.backbone.to(torch.bfloat16), model.tokenizer, "torch", concepts=CATALOG)
    result = half.generate(PROMPT, 4, explain=True, heal=False)
    assert half.attribute(result, 2, 200).error < 5e-3
    assert half.dtype == torch.bfloat16
