"""The model with concept heads that comes with the package."""

from __future__ import annotations

import pytest

import daguerre
from daguerre.concepts.taxonomy import taxonomy
from daguerre.concepts.texts import catalog_of
from daguerre.model import Model

PROMPT = "def total(numbers):\n    result = 0\n"


@pytest.fixture(scope="module")
def shipped() -> Model:
    return daguerre.load("concepts")


def test_it_has_heads_of_this_taxonomy_and_the_tokens_of_the_default_model(shipped: Model) -> None:
    shape = shipped.config.concepts
    assert shape is not None and shape.taxonomy == taxonomy().sha256 and shape.known == taxonomy().num_ids
    assert shipped.concepts == catalog_of(shape)
    assert shipped.tokenizer.sha256 == daguerre.load().tokenizer.sha256


def test_the_default_model_has_none(shipped: Model) -> None:
    assert daguerre.load().config.concepts is None


def test_explaining_changes_no_token_and_its_parts_sum_to_the_logits(shipped: Model) -> None:
    plain = shipped.generate(PROMPT, max_tokens=24)
    explained = shipped.generate(PROMPT, max_tokens=24, explain=True)
    assert explained.text == plain.text and explained.concepts is not None
    assert explained.concepts.error() < 1e-3


def test_its_concepts_carry_most_of_each_prediction(shipped: Model) -> None:
    """A figure far below the measured one, which a model without training would miss."""
    found = shipped.generate(PROMPT, max_tokens=24, explain=True).concepts
    assert found is not None and found.shares.aggregated > 0.7


def test_it_reads_the_concepts_of_a_text(shipped: Model) -> None:
    found = shipped.explain("for name in sorted(names):\n    print(name)\n").probabilities.max(axis=0)
    known = taxonomy()
    assert min(found[known.named(name).id] for name in ("for_loop", "print_call")) > 0.25
    assert max(found[known.named(name).id] for name in ("class_def", "while_loop", "import_statement")) < 0.1


def test_a_concept_that_is_asked_for_is_written_and_one_that_is_forbidden_is_not(shipped: Model) -> None:
    asked = [{"kind": "add", "concepts": ["for_loop"], "strength": 10, "schedule": "until", "tokens": 4}]
    assert "for " in shipped.generate(PROMPT + "    ", max_tokens=12, steer=asked).text
    used = "import sys\n\n\ndef show(values):\n    "
    free = shipped.generate(used, 16, n=20, temperature=0.8, seed=0).choices
    forbidden = shipped.generate(used, 16, n=20, temperature=0.8, seed=0, forbid=["print_call"]).choices
    assert sum("print(" in one.text for one in forbidden) <= sum("print(" in one.text for one in free)
    assert not any("print(" in one.text for one in forbidden)
