"""Line infilling: what is right, what predictors get, and what is counted."""

from __future__ import annotations

import hashlib
import pickle

import pytest

from daguerre.evals.infilling import ar_predictor, copy_nearest, infill_predictor, line_infilling
from daguerre.evals.lines import MissingLine, make_examples
from daguerre.heldout import Document
from daguerre.model import Model

SOURCE = """\
def area(width, height):
    product = width * height
    if product < 0:
        raise ValueError(product)
    return product


def border(width, height):
    return 2 * (width + height)
"""


@pytest.fixture(scope="module")
def examples() -> list[MissingLine]:
    document = Document("p", "1", "MIT", "a.py", hashlib.sha256(SOURCE.encode()).hexdigest(), SOURCE)
    return make_examples([document], 100)


def oracle(examples: list[MissingLine]):
    """Knows the lines, but not their indentation."""
    lines = {example.prefix: example.line.strip() for example in examples}
    return lambda prefix, suffix, length: lines[prefix]


def test_the_truth_is_exact_whatever_its_indentation(examples: list[MissingLine]) -> None:
    result = line_infilling(examples, {"oracle": oracle(examples), "copy": copy_nearest}, len, lengths=["unknown"])

    right, copied = result.outcomes
    assert (right.exact, right.similarity, right.num) == (1.0, 1.0, len(examples))
    assert right.exact_interval[0] < 1.0 == right.exact_interval[1]
    assert right.parses < 1.0
    assert copied.exact == 0.0
    assert 0.0 < copied.similarity < 1.0
    (pair,) = result.comparisons
    assert (pair.method, pair.against) == ("oracle", "copy")
    assert (pair.only_first, pair.only_second, pair.difference) == (len(examples), 0, 1.0)
    assert pair.p_value == pytest.approx(2 * 0.5 ** len(examples))


def test_lines_as_they_were_parse_in_place(examples: list[MissingLine]) -> None:
    truth = {example.prefix: example.line for example in examples}
    result = line_infilling(examples, {"truth": lambda prefix, suffix, length: truth[prefix]}, len)

    assert [outcome.parses for outcome in result.outcomes] == [1.0, 1.0]
    assert result.predictions["known"][0] == {"truth": examples[0].line}


def test_more_than_the_line_is_not_exact_but_its_first_line_is(examples: list[MissingLine]) -> None:
    truth = {example.prefix: example.line for example in examples}
    predictors = {"more": lambda prefix, suffix, length: "\n" + truth[prefix] + "\n    more = 1"}

    (outcome,) = line_infilling(examples, predictors, len, lengths=["unknown"]).outcomes

    assert (outcome.exact, outcome.exact_line) == (0.0, 1.0)


def test_predictors_get_the_length_only_when_it_is_known(examples: list[MissingLine]) -> None:
    lengths: list[int | None] = []

    def predict(prefix: str, suffix: str, length: int | None) -> str:
        lengths.append(length)
        return ""

    line_infilling(examples, {"any": predict}, len)

    assert lengths == [len(example.line) for example in examples] + [None] * len(examples)


def test_progress_counts_the_examples_of_each_length(examples: list[MissingLine]) -> None:
    steps: list[tuple[str, int, int]] = []

    line_infilling(examples[:2], {"copy": copy_nearest}, len, progress=lambda *step: steps.append(step))

    assert steps == [(f"{length} length", done, 2) for length in ("known", "unknown") for done in range(3)]


def test_copying_takes_the_nearest_line_above_that_is_not_blank() -> None:
    assert copy_nearest("a = 1\n    b = 2\n\n", "\nc", None) == "    b = 2"
    assert copy_nearest("", "\n\n  c = 3\nd", None) == "  c = 3"
    assert copy_nearest("\n", "\n", None) == ""


def test_a_model_fills_the_gap_and_gets_its_length(causal: Model) -> None:
    predict = infill_predictor(causal)

    assert predict("def f(", "): pass\n", 3) == causal.infill("def f(", "): pass\n", 3, min_tokens=3).text
    assert predict("def f(", "): pass\n", None) == causal.infill("def f(", "): pass\n", 24, mode="block").text


def test_a_line_break_ends_what_is_written_at_unknown_length(causal: Model) -> None:
    whole, line = infill_predictor(causal), infill_predictor(causal, stop="\n")
    prefixes = [f"value_{i} = " for i in range(8)]
    texts = [whole(prefix, "\nreturn", None) for prefix in prefixes]

    assert any("\n" in text.lstrip("\n") for text in texts)
    assert [line(prefix, "\nreturn", None) for prefix in prefixes] == [text.split("\n")[0] for text in texts]
    assert [line(p, "\nreturn", 24) for p in prefixes] == [whole(p, "\nreturn", 24) for p in prefixes]


def test_what_begins_with_a_line_break_is_an_empty_line_and_wrong(causal: Model, examples: list[MissingLine]) -> None:
    (newline,) = causal.tokenizer.encode("\n")
    predictors = {"infill": infill_predictor(causal, stop="\n", logit_bias={newline: 1000.0})}

    result = line_infilling(examples, predictors, len, lengths=["unknown"])

    assert {text["infill"] for text in result.predictions["unknown"]} == {""}
    assert result.outcomes[0].exact == result.outcomes[0].exact_line == 0.0


def test_predictors_can_go_to_another_process(causal: Model) -> None:
    for predict in (infill_predictor(causal, stop="\n", threshold=0.5), ar_predictor(causal)):
        assert pickle.loads(pickle.dumps(predict))("a = ", "\n", 5) == predict("a = ", "\n", 5)


def test_the_autoregressive_baseline_gives_one_line_and_never_sees_the_suffix(causal: Model) -> None:
    predict = ar_predictor(causal)
    continued = causal.generate("import os\n", 24, mode="ar").text

    line = predict("import os\n", "one", None)

    assert line == predict("import os\n", "another", None)
    assert "\n" not in line
    assert line in continued
