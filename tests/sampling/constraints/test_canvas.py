"""Whatever is committed, in whatever order, the row ends as a valid text: random weights, pins, parts of paths."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import numpy as np
import pytest

from daguerre.errors import InputError
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.constraints import Programme, TokenAutomaton, compile_regex, compile_schema
from daguerre.sampling.constraints.budget import MAX_NODES

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
OPEN: dict[str, Any] = {"type": "object", "properties": {"id": {"type": "number", "exclusiveMinimum": 1.5}}}


def fill(automaton: TokenAutomaton, tokens: np.ndarray, is_open: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Commit random parts of paths until nothing is open; now and then take something back."""
    tokens, is_open, given = tokens.copy(), is_open.copy(), ~is_open
    logp = rng.normal(size=(len(tokens), automaton.vocab_size)).astype(np.float32) * rng.choice([1, 4])
    for step in range(4 * len(tokens)):
        if not is_open.any():
            break
        asked = np.flatnonzero(is_open)[: int(rng.integers(1, is_open.sum() + 1))]
        programme = Programme(automaton, tokens, is_open)
        if step % 2:
            path = programme.best(logp[asked])
        else:
            path = programme.sample(logp[asked], rng.random(len(asked)), top_p=float(rng.choice([1.0, 0.9])))
        chosen = rng.random(len(asked)) < 0.5
        chosen[rng.integers(len(asked))] = True
        tokens[asked[chosen]], is_open[asked[chosen]] = path[chosen], False
        if step % 5 == 4:
            is_open[rng.integers(len(tokens))] = True
            is_open &= ~given
    path = Programme(automaton, tokens, is_open).best(logp[is_open])
    tokens[is_open] = path
    return tokens


@pytest.mark.parametrize("schema", [PERSON, OPEN], ids=["closed", "open"])
def test_every_row_ends_as_a_valid_document(schema: dict[str, Any], tokenizer: Tokenizer) -> None:
    rng = np.random.default_rng(0)
    automaton = compile_schema(schema, tokenizer).with_filler(tokenizer.eos_id)
    for _ in range(12):
        length = automaton.fewest_tokens() + int(rng.integers(0, 30))
        tokens = fill(automaton, np.zeros(length, dtype=np.int64), np.ones(length, dtype=bool), rng)
        text = tokenizer.decode(tokens[tokens != tokenizer.eos_id])
        jsonschema.validate(json.loads(text), schema)
        ends = np.flatnonzero(tokens == tokenizer.eos_id)
        assert ends.tolist() == list(range(length - len(ends), length))


def test_pins_stay_and_the_text_around_them_is_valid(tokenizer: Tokenizer) -> None:
    rng = np.random.default_rng(1)
    automaton = compile_regex("[a-z_]+\\(([a-z_]+(, [a-z_]+)*)?\\):\n", tokenizer)
    suffix = tokenizer.encode("):\n")
    for _ in range(10):
        length = int(rng.integers(12, 20))
        tokens, is_open = np.zeros(length, dtype=np.int64), np.ones(length, dtype=bool)
        place = int(rng.integers(3, length - len(suffix) - 2))
        for at, pinned in ((place, tokenizer.encode("x")), (length - len(suffix), suffix)):
            tokens[at : at + len(pinned)], is_open[at : at + len(pinned)] = pinned, False
        filled = fill(automaton, tokens, is_open, rng)
        assert (filled[~is_open] == tokens[~is_open]).all()
        assert automaton.accepts(filled)


def test_a_span_of_512_positions_takes_an_automaton_of_4096_states(make_model: Any) -> None:
    model, rng = make_model(context="full", num_layers=1, max_positions=640), np.random.default_rng(2)
    words = ["".join(rng.choice(list("abcdefghij"), 30)) for _ in range(165)]
    pattern = f"(({'|'.join(words)}) )+"
    num_states = compile_regex(pattern, model.tokenizer).num_states

    result = model.generate("x", 512, mode="full", regex=pattern, policy="confidence", steps=2, temperature=1.0, seed=1)

    assert 4_096 <= num_states <= MAX_NODES // 512
    assert re.fullmatch(pattern, result.text) and len(result.text) > 512


def test_a_pin_that_no_text_of_the_language_has_there_is_refused(tokenizer: Tokenizer) -> None:
    automaton = compile_regex("[a-z]+[0-9]", tokenizer)
    tokens, is_open = np.zeros(4, dtype=np.int64), np.ones(4, dtype=bool)
    tokens[1], is_open[1] = tokenizer.encode("7")[0], False

    with pytest.raises(InputError, match="no text of the constraint fits"):
        Programme(automaton, tokens, is_open).check()
