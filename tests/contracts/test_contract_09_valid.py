"""Contract 9: under a constraint every result is valid, for any policy, temperature, parallelism, seed and weights."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import numpy as np
import pytest

import daguerre
from conftest import CONTEXTS
from daguerre.decoding.request import Decode
from daguerre.decoding.result import Result
from daguerre.errors import InputError, UnsupportedError
from daguerre.model import Model
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.constrained import Constraint
from daguerre.sampling.constraints import compile_regex
from daguerre.sampling.logits import SamplingParams
from daguerre.sampling.policies import POLICIES
from plans import make_plan

CALL = r"[a-z_]{1,8}\([0-9]{1,3}(, [0-9]{1,3})*\)"
NUMBER = r"[0-9]+(\.[0-9]+)?"
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 9},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL = {"name": "find", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}
FEWEST = 10
"""Tokens of the shortest person, in the 2k vocabulary."""


def check(options: dict[str, Any], text: str) -> None:
    if "regex" in options:
        assert re.fullmatch(options["regex"], text, re.DOTALL), text
    elif "schema" in options:
        jsonschema.validate(json.loads(text), options["schema"])
    else:
        assert text in options["choices"]


MODES = {"causal": ["ar", "block", "full"], "block": ["block"], "block_shifted": ["block"]}
"""What models honor; those not named, "block" and "full"."""


def any_request(rng: np.random.Generator, modes: list[str], grid: bool = False) -> dict[str, Any]:
    """Options that a model honors; `grid`: it has blocks of its own."""
    constraint: dict[str, Any] = [
        {"regex": CALL},
        {"regex": NUMBER},
        {"schema": PERSON},
        {"choices": ["yes", "no", "né"]},
    ][rng.integers(4)]
    options: dict[str, Any] = {"seed": int(rng.integers(1000)), **constraint}
    options["mode"] = str(rng.choice(modes))
    if options["mode"] == "block" and not grid and rng.random() < 0.3:
        options |= {"sliding": True, "policy": "entropy_threshold", "position_penalty": 0.02, "block_size": 5}
    elif options["mode"] != "ar":
        options["policy"] = str(rng.choice(sorted(POLICIES.keys() - {"chain", "joint_threshold"})))
        if options["policy"] == "threshold":
            options["threshold"] = float(rng.choice([0.0, 0.5, 0.9]))
        if options["mode"] == "block" and not grid:
            options["block_size"] = int(rng.integers(1, 9))
    if rng.random() < 0.7:
        options |= {"temperature": float(rng.choice([0.5, 1.0, 2.0]))}
        options |= {"top_p": float(rng.choice([0.5, 1.0]))} | ({"top_k": 3} if rng.random() < 0.5 else {})
    if "schema" in options and rng.random() < 0.5:
        options["min_tokens"] = int(rng.integers(1, 14))
    return options


@pytest.mark.parametrize("name", [*CONTEXTS])
def test_a_completion_is_valid_whatever_is_asked(models: dict[str, Model], name: str) -> None:
    rng, model = np.random.default_rng(9), models[name]
    for _ in range(12):
        options = any_request(rng, MODES.get(name, ["block", "full"]), grid=name.startswith("block"))
        budget = FEWEST + int(rng.integers(4, 14))
        result = model.generate("x = ", budget, **options)
        check(options, result.text)
        assert result.usage.completion_tokens >= options.get("min_tokens", 0), options
        assert result.usage.forwards <= bound(model, options, budget), options


def bound(model: Model, options: dict[str, Any], budget: int) -> int:
    return make_plan(model.config, model.tokenizer, Decode(**options), "x = ", None, budget, None).max_forwards


@pytest.mark.parametrize("name", ["causal", "full", "reordered"])
def test_every_gap_is_valid_by_itself_and_all_else_verbatim(models: dict[str, Model], name: str) -> None:
    rng, model = np.random.default_rng(10), models[name]
    for _ in range(8):
        options = any_request(rng, ["block", "full"])
        result = model.fill("a = <gap>\nb = <gap>\n", 22, **options)
        for text in result.texts:
            check(options, text)
        assert result.text == f"a = {result.texts[0]}\nb = {result.texts[1]}\n"


def test_the_default_model_writes_valid_text() -> None:
    model = daguerre.load()
    for options in ({"mode": "ar"}, {"mode": "full", "threshold": 0.3}, {"temperature": 1.0, "block_size": 4}):
        result = model.generate("person = ", 32, schema=PERSON, **options)
        check({"schema": PERSON}, result.text)
    check({"regex": CALL}, model.infill("y = ", "\nprint(y)\n", 16, regex=CALL).text)


def test_an_edit_is_valid_with_and_without_a_draft(causal: Model) -> None:
    text = "limit = 25\nother = 250\n"
    for strength in (1.0, 0.5):
        result = causal.edit(text, [(8, 10), (19, 22)], regex="[0-9]{1,6}", strength=strength, temperature=1.0)
        assert re.fullmatch(r"limit = [0-9]{1,6}\nother = [0-9]{1,6}\n", result.text)


def test_a_draft_that_no_valid_text_agrees_with_is_refused(causal: Model) -> None:
    with pytest.raises(InputError, match=r"fixed|begins like the draft"):
        causal.edit("x = abcdef ghi", [(4, 14)], regex="[0-9]+", strength=0.3)


def test_a_gap_of_fixed_length_is_filled_exactly(make_model: Callable[..., Model]) -> None:
    model = make_model(null_id=None)
    result = model.infill("x = ", "\n", 6, regex="[a-z]{3,}", min_tokens=6, temperature=1.0)
    check({"regex": "[a-z]{3,}"}, result.text)
    assert result.usage.completion_tokens == 6


def test_calls_of_functions_or_text(causal: Model) -> None:
    result = causal.generate("x", 40, tools=[TOOL], temperature=1.0)
    if "<tool_call>" in result.text:
        call = re.fullmatch(r"(<tool_call>(.*?)</tool_call>)+", result.text)
        assert call
        assert json.loads(call[2])["name"] == "find"


def test_a_choice_of_tools_says_whether_there_is_a_call(causal: Model, subtests: pytest.Subtests) -> None:
    for seed in range(3):
        with subtests.test(str(seed)):
            how: dict[str, Any] = {"tools": [TOOL], "temperature": 1.0, "seed": seed}
            assert "<tool_call>" not in causal.generate("x", 12, tool_choice="none", **how).text
            for choice in ("required", "find"):
                text = causal.generate("x", 40, tool_choice=choice, **how).text
                call = re.fullmatch(r"(<tool_call>(.*?)</tool_call>)+", text)
                assert call and json.loads(call[2])["name"] == "find"


def test_forbidden_tokens_stay_out_of_what_is_needed_later(causal: Model, tokenizer: Tokenizer) -> None:
    """A quote that the bias forbids is not left for the next span to write."""
    ids = [t for t in range(tokenizer.vocab_size) if b"b" in tokenizer.token_bytes(t)]
    bias = dict.fromkeys(ids, float("-inf"))
    for seed in range(5):
        text = causal.generate(
            "", 12, regex="a{3}(b|c)", block_size=1, temperature=1.0, seed=seed, logit_bias=bias
        ).text
        assert text == "aaac"
    with pytest.raises(InputError, match="no text that this vocabulary can write"):
        causal.generate("", 12, regex="a{3}b", logit_bias=bias)


def test_an_end_that_is_forbidden_makes_the_text_as_long_as_the_budget(causal: Model) -> None:
    never_ends = {causal.tokenizer.eos_id: float("-inf")}
    result = causal.generate("x = ", 9, regex="[a-z]+", logit_bias=never_ends)
    assert result.usage.completion_tokens == 9
    assert result.finish_reason == "length"


def test_min_tokens_leave_enough_text_for_the_spans_to_come(causal: Model, tokenizer: Tokenizer) -> None:
    """However likely tokens of several characters are, nine of the text are written with nine tokens."""
    pieces = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    long = {token: 30.0 for token, piece in enumerate(pieces) if len(piece) > 1 and not piece.strip(b" ")}
    assert long
    for size in (1, 4, 9):
        result = causal.generate("", 9, regex=" {1,9}", min_tokens=9, block_size=size, logit_bias=long)
        assert result.usage.completion_tokens == 9
        assert result.text == " " * 9
    assert causal.generate("", 9, regex=" {1,9}", logit_bias=long).usage.completion_tokens < 9


def test_what_cannot_be_written_in_the_budget_is_refused_up_front(causal: Model) -> None:
    with pytest.raises(InputError, match=f"max_tokens=4 .* shortest text has {FEWEST} tokens"):
        causal.generate("x = ", 4, schema=PERSON)
    assert json.loads(causal.generate("x = ", FEWEST, schema=PERSON).text)
    with pytest.raises(InputError, match="lower min_tokens"):
        causal.generate("x = ", 8, regex="a{3}", min_tokens=6)


def test_what_a_schema_asks_for_is_honored_or_named(causal: Model) -> None:
    schema = {"type": "integer", "minimum": 3, "maximum": 5, "faker": "int"}
    with pytest.raises(UnsupportedError, match="keyword 'faker' at #"):
        causal.generate("x = ", 8, schema=schema, strict=True)
    result = causal.generate("x = ", 8, schema=schema)
    assert int(result.text) in (3, 4, 5)
    assert result.ignored == ("keyword 'faker' at #",)
    with pytest.raises(InputError, match="not JSON"):
        causal.generate("x = ", 8, schema={"enum": [{1, 2}]})
    with pytest.raises(InputError, match="not healed"):
        causal.generate("x = ", 8, regex="a", heal=True)


def test_the_text_ends_where_nothing_may_follow(causal: Model) -> None:
    result = causal.generate("x = ", 16, regex="abc", mode="ar")
    assert (result.text, result.finish_reason) == ("abc", "stop")
    assert result.usage.forwards <= result.usage.completion_tokens


def test_what_leaves_no_choice_takes_no_forward(models: dict[str, Model], subtests: pytest.Subtests) -> None:
    text = "\x01\x02\x03"  # no token has two of these
    for name in ("causal", "full", "block"):
        with subtests.test(name):
            result = models[name].generate("x = ", 8, choices=[text])
            assert (result.text, result.finish_reason, result.usage.forwards) == (text, "stop", 0)
            assert [token.logprob for token in result.tokens] == [0.0] * 3
            mixed = models[name].generate("x = ", 8, regex=f"{text}[ab]{text}", threshold=0.0, block_size=8)
            assert (len(mixed.text), mixed.usage.forwards) == (7, 1)
            if name != "block":
                assert models[name].fill("a<gap>b<gap>", 6, choices=[text]).usage.forwards == 0


def late(model: Model, **options: Any) -> Result:
    return model.generate("x = ", 40, timeout=1e-9, **options)


def test_what_is_late_is_valid_all_the_same(causal: Model) -> None:
    result = late(causal, schema=PERSON)
    check({"schema": PERSON}, result.text)
    assert result.finish_reason == "timeout"
    assert result.usage.completion_tokens == FEWEST
    assert result.usage.forwards == 0
    *_, canvas = result.trace.replay()
    assert not canvas.open.any()
    texts = causal.fill("a = <gap>\nb = <gap>\n", 22, regex=CALL, timeout=1e-9).texts
    assert all(re.fullmatch(CALL, text) for text in texts)


def test_a_stream_never_takes_committed_text_back(causal: Model) -> None:
    for options in ({}, {"timeout": 1e-9}, {"mode": "full", "policy": "random"}):
        before = ""
        for event in causal.stream("x = ", 24, schema=PERSON, temperature=1.0, **options):
            assert event.committed.startswith(before)
            before = event.committed
        check({"schema": PERSON}, before)


def test_a_constrained_request_is_a_function_of_its_seed(causal: Model) -> None:
    first, again, other = (causal.generate("x = ", 20, regex=CALL, temperature=1.5, seed=s).text for s in (1, 1, 2))
    assert first == again != other


def test_the_law_is_the_models_given_the_language(causal: Model, tokenizer: Tokenizer) -> None:
    """Two positions, each a or b, together not bb: frequencies, and marginals as confidence, against enumeration."""
    a, b = tokenizer.encode("a")[0], tokenizer.encode("b")[0]
    plan = make_plan(causal.config, tokenizer, Decode(regex="aa|ab|ba"), "x", None, 2, None)
    automaton = compile_regex("aa|ab|ba", tokenizer).without(
        [t for t in range(16, tokenizer.vocab_size) if len(tokenizer.token_bytes(t)) > 1]
    )
    constraint = Constraint({plan.canvas.gaps[0]: automaton}, None, {plan.canvas.gaps[0]: 0})
    logits = np.full((2, tokenizer.vocab_size), -3.0)
    logits[:, a], logits[:, b] = [0.0, 1.0], [0.7, 2.0]
    weights = {(x, y): np.exp(logits[0, x] + logits[1, y]) for x, y in ((a, a), (a, b), (b, a))}
    total, positions = sum(weights.values()), np.arange(*plan.canvas.gaps[0])
    rng, num, seen = np.random.default_rng(0), 1000, dict.fromkeys(weights, 0)
    for _ in range(num):
        got = constraint.propose(plan.canvas, positions, logits, SamplingParams(temperature=1.0), rng.random(2))
        seen[tuple(got.tokens.tolist())] += 1
        for i, token in enumerate(got.tokens.tolist()):
            marginal = sum(w for pair, w in weights.items() if pair[i] == token) / total
            assert got.confidence[i] == pytest.approx(marginal, abs=1e-9)
    for pair, weight in weights.items():
        p = weight / total
        assert abs(seen[pair] / num - p) < 4 * np.sqrt(p * (1 - p) / num)
    best = constraint.propose(plan.canvas, positions, logits, SamplingParams(), np.zeros(2))
    assert tuple(best.tokens.tolist()) == max(weights, key=lambda pair: weights[pair])


def test_a_span_too_long_for_so_large_a_constraint_is_refused_with_the_longest(
    causal: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daguerre.sampling.constrained.MAX_NODES", 1_000)

    with pytest.raises(InputError, match=r"too large for a span of 40 positions.*block_size of [0-9]+ or fewer"):
        causal.generate("x = ", 40, mode="full", schema=PERSON)
    assert causal.generate("x = ", 40, mode="ar", schema=PERSON).text


def test_positions_that_all_texts_agree_on_are_committed_without_a_forward_wherever_they_are(causal: Model) -> None:
    options: dict[str, Any] = {"regex": "x[ab]y[cd]z", "min_tokens": 5, "mode": "full"}

    result = causal.generate("a ", 5, **options)

    check(options, result.text)
    first = result.trace.steps[0]
    assert (first.decision.positions - result.trace.canvas.gaps[0][0]).tolist() == [0, 2, 4]
    assert first.step == 0 and (first.decision.probabilities == 1).all()
    assert result.usage.forwards <= 2


def test_what_is_forced_in_a_span_is_what_every_text_of_each_gap_has_there(
    tokenizer: Tokenizer, subtests: pytest.Subtests
) -> None:
    byte = {letter: tokenizer.encode(letter)[0] for letter in "abcdef"}
    automaton = compile_regex("(a[bc]|d)*[ef]", tokenizer).without(
        [token for token in range(tokenizer.vocab_size) if len(tokenizer.token_bytes(token)) > 1]
    )
    language = [row for row in itertools.product(byte.values(), repeat=5) if automaton.accepts(row)]
    fixed = {3: byte["b"], 11: byte["a"]}
    given = daguerre.Decision(list(fixed), list(fixed.values()), *np.ones((2, 2)))
    laid = daguerre.Canvas.lay_out([[1, 1], [1, 1], []], [5, 5], 0).apply(given)
    texts = {
        (start, end): [
            row for row in language if all(row[at - start] == fixed[at] for at in fixed if start <= at < end)
        ]
        for start, end in laid.gaps
    }
    for span in ((2, 5), (2, 7), (2, 11), (9, 14)):
        with subtests.test(str(span)):
            canvas = laid.at(span)
            wanted = {
                start + i: rows[0][i]
                for (start, _), rows in texts.items()
                for i in range(5)
                if canvas.open[start + i] and span[0] <= start + i < span[1] and len({row[i] for row in rows}) == 1
            }
            constraint = Constraint(dict.fromkeys(canvas.gaps, automaton), None, dict.fromkeys(canvas.gaps, 0))
            decision = constraint.forced(canvas)
            assert dict(zip(decision.positions.tolist(), decision.tokens.tolist(), strict=True)) == wanted
