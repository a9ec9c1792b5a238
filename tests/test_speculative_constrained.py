"""Mode "speculative" under a constraint: the tokens of mode "ar", in no more forwards."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import daguerre
from backends import BACKENDS, needs_compiler
from daguerre.decoding.drafters import NO_DRAFT, Drafted
from daguerre.decoding.modes import ar
from daguerre.decoding.pins import Pin
from daguerre.decoding.result import Result
from daguerre.errors import UnsupportedError
from daguerre.model import Model
from daguerre.models.load_options import BackendName
from pairwise import covering

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"enum": ["red", "green"]}}},
    "required": ["name", "tags"],
    "additionalProperties": False,
}
LAWS: list[dict[str, Any]] = [
    {"schema": SCHEMA},
    {"regex": "[a-e]{3,20}(, [a-e]{2,5})*;"},
    {"choices": ["alpha", "alphabet", "beta gamma"]},
    {"keywords": "ab", "forbidden": ["e"], "ending": ";"},
    {"pins": [Pin("ab", at=(1, 8))]},
    {"regex": "[a-z ]+", "guidance": 2.0},
    {"regex": "(ab|cd)+", "logit_bias": {40: 3.0}, "min_tokens": 6},
]


def facts(result: Result) -> tuple[list[int], str, str]:
    return [token.id for token in result.tokens], result.text, result.finish_reason


DRAFTERS: list[dict[str, Any]] = [{}, {"drafter": "head", "block_size": 8}, {"drafter": "lookup"}]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_tokens_are_those_of_ar_in_no_more_forwards(
    subtests: pytest.Subtests, make_model: Any, monkeypatch: pytest.MonkeyPatch, backend: BackendName
) -> None:
    monkeypatch.setattr(ar, "row_time", lambda crowd=1: 0.05)  # how much is drafted depends on the processor
    drafting = {True: make_model(draft_head=24), False: make_model()}
    heat, how = [0.0, 0.7, 1.0], list(product(DRAFTERS, drafting))
    for case in covering({"law": LAWS, "how": how, "temperature": heat}):
        (drafter, head), temperature = case["how"], case["temperature"]
        made = drafting[head]
        model = Model(made.backbone, made.tokenizer, backend)
        options: dict[str, Any] = {"temperature": temperature, "seed": heat.index(temperature), **case["law"]}
        with subtests.test(**case):
            want = model.generate("x = ", 48, mode="ar", **options)
            got = model.generate("x = ", 48, mode="speculative", **drafter, **options)
            assert facts(got) == facts(want)
            assert got.usage.mode == "speculative"
            assert got.usage.forwards <= want.usage.forwards
            chances = [[token.logprob or 0.0 for token in result.tokens] for result in (got, want)]
            assert np.abs(np.subtract(*chances)).max(initial=0) <= 1e-4


@needs_compiler
def test_the_default_model_writes_a_schema_in_fewer_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ar, "row_time", lambda crowd=1: 0.0)
    model, forwards = daguerre.load(dtype="float32"), dict[str, int]()
    for mode in ("ar", "speculative"):
        result = model.generate("settings = ", 64, mode=mode, schema=SCHEMA)
        forwards[mode] = result.usage.forwards
    assert forwards["speculative"] < forwards["ar"] < len(result.tokens)


def test_a_late_request_still_ends_in_the_language(make_model: Any) -> None:
    result = make_model().generate("x = ", 48, mode="speculative", regex="[a-e]{30}", timeout=1e-6)
    assert len(result.text) == 30 and set(result.text) <= set("abcde")


def test_pins_at_fixed_positions_are_for_ar(make_model: Any) -> None:
    with pytest.raises(UnsupportedError, match='mode "speculative" cannot honor the option pins: use mode "ar"'):
        make_model().generate("x = ", 20, mode="speculative", pins=[Pin("ab", at=3)])


def test_what_is_left_of_a_draft() -> None:
    draft = Drafted.of(np.array([5, 6, 7]), [0.5, 0.8, 0.25])
    rest = draft.after(np.array([5]))
    assert rest.tokens.tolist() == [6, 7] and rest.reached == pytest.approx([1.0, 0.8, 0.2])
    assert draft.after(np.array([], dtype=np.int64)) is draft
    assert draft.after(np.array([6])) is NO_DRAFT is draft.after(np.array([5, 6, 7, 8]))
    assert len(draft.after(np.array([5, 6, 7]))) == 0
