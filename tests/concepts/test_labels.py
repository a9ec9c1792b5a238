"""Labels of whole files, of their tokens, and how common concepts are."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from daguerre.concepts.labels import CHUNK, Labels, label, label_source, of_tokens, prevalences
from daguerre.concepts.source import SourceText
from daguerre.concepts.taxonomy import taxonomy
from daguerre.errors import InputError
from daguerre.heldout import load_frozen
from daguerre.models.tokenizer import Tokenizer

TEXTS = [
    "import numpy as np\n\n\ndef f(x):\n    return np.zeros(x)\n",
    'größe = "名前 😀"  # ünïcödé\r\nif größe:\r\n\tprint(größe)\r\n',
    "",
    "x = [\n",
    "\tif True:\n",
]


@pytest.mark.parametrize("name", ["2k", "8k"])
def test_a_token_has_the_labels_of_the_spans_that_it_overlaps(subtests: pytest.Subtests, name: Any) -> None:
    tokenizer = Tokenizer.default(name)
    for text in TEXTS:
        with subtests.test(text):
            check_tokens(text, tokenizer)


def check_tokens(text: str, tokenizer: Tokenizer) -> None:
    pieces = [tokenizer.token_bytes(token) for token in tokenizer.encode_plain(text, begins=False)]
    num, labels = taxonomy().num_ids, label(text)
    made = of_tokens(labels, text, pieces, num)
    want, end = np.zeros((len(pieces), num), dtype=bool), 0
    for place, piece in enumerate(pieces):
        start, end = end, end + len(piece)
        for number, first, last in labels.spans.tolist():
            begins, ends = len(text[:first].encode()), len(text[:last].encode())
            want[place, number] |= begins < end and start < ends
    assert made.certain == labels.certain
    assert np.array_equal(made.matrix(0, len(pieces), num), want)
    for start in range(0, len(pieces), 3):
        stop = min(len(pieces), start + 5)
        assert np.array_equal(made.matrix(start, stop, num), want[start:stop])


def test_tokens_of_another_text_are_refused() -> None:
    with pytest.raises(InputError, match="the tokens are not those of the text"):
        of_tokens(label("x = 1\n"), "x = 1\n", [b"x = 2\n"], taxonomy().num_ids)


def test_a_file_that_does_not_parse_has_lexical_labels_alone() -> None:
    whole, broken = label("x = 5  # TODO\ntry:\n    f()\nexcept:\n    pass\n"), label("x = 5  # TODO\ntry:\n    f(\n")
    known = taxonomy()
    assert whole.certain and not broken.certain
    assert whole.of(known.named("bare_except"))
    assert all(known.concepts[0] is not None and one.lexical for one in known.concepts if broken.of(one))
    assert broken.of(known.named("todo_comment")) == whole.of(known.named("todo_comment")) == [(7, 13)]


def test_an_instance_is_one_of_its_parents_too() -> None:
    known = taxonomy()
    for document in load_frozen()[:12]:
        spans = defaultdict[int, set[tuple[int, int]]](set)
        for number, start, end in label(document.text).spans.tolist():
            spans[number].add((start, end))
        assert spans
        for one in known.concepts:
            for above in known.ancestors[one.name]:
                assert spans[one.id] <= spans[above.id], (one.name, above.name)


def test_every_span_of_a_real_file_is_a_part_of_it(subtests: pytest.Subtests) -> None:
    for document in load_frozen()[::16]:
        with subtests.test(document.file):
            spans = label(document.text).spans
            assert len(spans)
            assert (spans[:, 1] >= 0).all() and (spans[:, 1] < spans[:, 2]).all()
            assert (spans[:, 2] <= len(document.text)).all()
            rows = [tuple(row) for row in spans[:, [1, 2, 0]].tolist()]
            assert rows == sorted(set(rows))


def test_a_child_is_found_where_its_parent_is() -> None:
    """Without the closure: detectors of a general concept find what those of a special one do."""
    known = taxonomy()
    for document in load_frozen()[:24]:
        source = SourceText(document.text)
        found = {one.name: sorted(set(one.detect(source))) for one in known.concepts}
        for one in known.concepts:
            for parent in one.parents:
                for start, end in found[one.name]:
                    assert any(first < end and start < last for first, last in found[parent]), (one.name, parent)


def test_prevalence_is_counted_by_chunks() -> None:
    filler = "x = 1\n" * (CHUNK // 3)  # three tokens a line
    text = filler + "eval(a)\n" + filler + filler
    shares = prevalences([text, "broken(\n"])
    num = -(-(4 + 9 * (CHUNK // 3)) // CHUNK)
    assert shares["eval_exec"] == pytest.approx(2 / num)  # its four tokens begin with the last of a chunk
    assert shares["int_literal"] == pytest.approx(1.0)
    assert shares["bare_except"] == 0.0


def test_some_concepts_alone() -> None:
    known = taxonomy()
    one = known.named("bare_except")
    text = "try:\n    f()\nexcept:\n    pass\n"
    some = label_source(SourceText(text), known, [one])
    assert isinstance(some, Labels) and some.of(one) == label(text).of(one)
    assert set(some.spans[:, 0].tolist()) == {one.id, *(above.id for above in known.ancestors[one.name])}
