"""Which lines are taken out, and what is shown around them."""

from __future__ import annotations

import hashlib
import textwrap

import pytest

from daguerre.errors import DataError
from daguerre.evals.lines import PREFIX_TOKENS, SUFFIX_TOKENS, candidate_lines, make_examples
from daguerre.heldout import Document, load_frozen
from daguerre.models.tokenizer import Tokenizer

SOURCE = textwrap.dedent(
    '''\
    """A module that is documented."""
    import collections
    from collections import (
        OrderedDict,
    )

    # a comment that is long enough
    value = collections.Counter()  # counts


    def total(numbers):
        """One line of documentation."""
        text = """
        prose of several lines
        """
        try:
            return sum(numbers)
        finally:
            x = 1
        message = (
            "several lines "
            "of one string"
        )
        for number in numbers:
            continue
        return f"{number} {text}"
    '''
)


def document(text: str, name: str = "a.py") -> Document:
    return Document("package", "1.0", "MIT", name, hashlib.sha256(text.encode()).hexdigest(), text)


def test_only_lines_that_count_are_candidates() -> None:
    lines = SOURCE.split("\n")

    assert [lines[number].strip() for number in candidate_lines(SOURCE)] == [
        "value = collections.Counter()  # counts",
        "def total(numbers):",
        "return sum(numbers)",
        "message = (",
        "for number in numbers:",
        'return f"{number} {text}"',
    ]


def test_texts_that_are_not_python_or_have_carriage_returns_give_no_candidate() -> None:
    for text in ("def broken(:\n    return total\n", "value = total()\r\nother = total()\r\n", ""):
        assert candidate_lines(text) == []


def test_a_line_that_is_shown_elsewhere_is_no_example() -> None:
    twice = "first = compute(1)\nsecond = first\nif second:\n    first = compute(1)\nthird = compute(1) + 2\n"

    lines = {example.line for example in make_examples([document(twice)], 10)}

    assert lines == {"second = first", "if second:", "third = compute(1) + 2"}


@pytest.fixture(scope="module")
def frozen() -> list[Document]:
    return load_frozen()


def test_examples_are_real_text_within_the_budgets(frozen: list[Document], tokenizer: Tokenizer) -> None:
    for example in make_examples(frozen, 60):
        line = example.line.strip()
        assert example.before + example.line + example.after == example.document.text
        assert example.before.endswith(example.prefix)
        assert example.after.startswith(example.suffix)
        assert line not in example.prefix
        assert line not in example.suffix
        assert len(tokenizer.encode(example.prefix)) <= PREFIX_TOKENS
        assert len(tokenizer.encode(example.suffix)) <= SUFFIX_TOKENS
        assert example.parses_with(example.line)
        assert not example.parses_with("    )broken(")


def test_examples_are_the_same_each_time_and_others_with_another_seed(frozen: list[Document]) -> None:
    one, same, other = (make_examples(frozen, 30, seed=seed) for seed in (1, 1, 2))

    assert one == same
    assert one != other
    assert make_examples(frozen, 10, seed=1) == one[:10]
    assert make_examples(frozen[::-1], 30, seed=1) == one


def test_examples_are_spread_over_the_documents(frozen: list[Document]) -> None:
    examples = make_examples(frozen[:20], 40)

    places = [(example.document.file, example.number) for example in examples]
    files = [file for file, _ in places]
    assert len(set(places)) == len(examples) == 40
    assert max(files.count(file) for file in files) <= 4


def test_no_line_that_counts_is_an_error() -> None:
    with pytest.raises(DataError, match="no line to infill"):
        make_examples([document("x = 1\n")], 5)
