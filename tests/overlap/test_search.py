"""Search: what the index finds is what a search through all documents finds, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daguerre.errors import InputError
from daguerre.overlap import build, segment, suffixes
from daguerre.overlap.index import Overlap
from daguerre.overlap.segment import Segment

Make = Callable[..., Overlap]
ALPHABETS = ("a", "ab", "abc\0", "aab\n ", "xé漢🜁é", "aaaaaaaaab")


def longest(documents: Sequence[str], text: str, place: int) -> int:
    length = 0
    while place + length < len(text) and any(text[place : place + length + 1] in document for document in documents):
        length += 1
    return length


def maximal(documents: Sequence[str], text: str, least: int) -> list[tuple[int, int]]:
    """The definition: matches from each place on, those left out that the one before contains."""
    found, furthest = [], 0
    for place in range(len(text)):
        end = place + longest(documents, text, place)
        if end > furthest:
            furthest = end
            if end - place >= least:
                found.append((place, end))
    return found


def places(document: str, passage: str) -> list[int]:
    return [place for place in range(len(document)) if document.startswith(passage, place)]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def make(documents: Sequence[str], known: Sequence[dict[str, str]] = ()) -> Overlap:
        pairs = zip((text.encode() for text in documents), [*known, *[{}] * (len(documents) - len(known))], strict=True)
        build.write_index(tmp_path / "index", pairs, {"sha256": "of the corpus", "bytes": 1})
        return Overlap.open(tmp_path / "index")

    return make


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every limit that large texts meet is met by small ones."""
    monkeypatch.setattr("os.fsync", lambda handle: None)
    monkeypatch.setattr(suffixes, "CHUNK", 8)
    monkeypatch.setattr(segment, "GAP", 4)
    monkeypatch.setattr(build, "GAP", 4)
    monkeypatch.setattr(segment, "MANY", 3)
    monkeypatch.setattr(segment, "NEAR", 2)
    monkeypatch.setattr(segment, "WIDEST", 4)


def texts(alphabet: str, most: int) -> st.SearchStrategy[str]:
    return st.text(alphabet, max_size=most)


@st.composite
def corpora(draw: st.DrawFn) -> tuple[list[str], str]:
    """Documents, and a text that may take passages from them."""
    alphabet = draw(st.sampled_from(ALPHABETS))
    documents = draw(st.lists(texts(alphabet, 60), max_size=6))
    parts = [draw(texts(alphabet, 20))]
    for _ in range(draw(st.integers(0, 2))):
        document = draw(st.sampled_from(documents or [""]))
        begin = draw(st.integers(0, len(document)))
        parts += [document[begin : begin + draw(st.integers(0, 60))], draw(texts(alphabet, 5))]
    return documents, "".join(parts)


@settings(max_examples=100, deadline=None)
@given(corpora(), st.sampled_from((3, 4, 7, 15)), st.sampled_from((25, 70, 10_000)))
def test_matches_are_those_of_a_search_through_all_documents(
    case: tuple[list[str], str], least: int, room: int
) -> None:
    documents, text = case
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setattr(build, "SORT_BYTES", build.MEMORY // room)
        build.write_index(Path(folder, "index"), ((one.encode(), {}) for one in documents), {"sha256": ""})
        overlap = Overlap.open(Path(folder, "index"))
        matches = overlap.longest_matches(text, min_length=least, num_sources=100)
        if room == 25 and sum(len(one) > 25 for one in documents) > 1:
            assert len(overlap.meta["segments"]) > 1

    assert [(match.start, match.end) for match in matches] == maximal(documents, text, least)
    for match in matches:
        found = {n: places(one, text[match.start : match.end]) for n, one in enumerate(documents)}
        holders = [number for number, where in found.items() if where]
        assert match.occurrences == sum(map(len, found.values()))
        assert match.documents == len(holders)
        assert [source.document for source in match.sources] == holders
        lines = [documents[number][: found[number][0]].count("\n") + 1 for number in holders]
        assert [source.line for source in match.sources] == lines


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(ALPHABETS).flatmap(lambda alphabet: texts(alphabet, 200)))
def test_suffixes_are_sorted_by_their_bytes(text: str) -> None:
    content = text.encode() + b"\xff"
    order = suffixes.sort_suffixes(np.frombuffer(content + bytes(suffixes.WORD), np.uint8))

    assert order.tolist() == sorted(range(-(-len(content) // 3)), key=lambda number: content[3 * number :])


def test_a_long_repetition_is_sorted() -> None:
    content = b"spam " * 2000 + b"\xff"
    shares: list[float] = []
    order = suffixes.sort_suffixes(np.frombuffer(content + bytes(suffixes.WORD), np.uint8), shares.append)

    assert order.tolist() == sorted(range(-(-len(content) // 3)), key=lambda number: content[3 * number :])
    assert shares[-1] == 1 and shares == sorted(shares)


@settings(max_examples=60, deadline=None)
@given(corpora())
def test_the_longest_match_of_every_place_is_found(case: tuple[list[str], str]) -> None:
    documents, text = [one.encode() for one in case[0]], case[1].encode()
    content = b"".join(one + build.END for one in documents)
    padded = np.frombuffer(content + bytes(suffixes.WORD), np.uint8)
    order = suffixes.sort_suffixes(padded)
    tops = suffixes.words_of(padded)[order[:: segment.GAP].astype(np.int64) * 3].astype(np.uint64)
    searched = Segment(padded, order, tops, np.zeros(1, np.int64))

    for place in range(len(text)):
        lengths = [n for n in range(len(text) - place + 1) if text[place : place + n] in content]
        assert searched.longest(text, place) == (lengths[-1] if lengths[-1] >= 3 else 0)


def test_no_match_crosses_the_end_of_a_document(make: Make) -> None:
    overlap = make(["one two three", "four five six"])
    text = "one two threefour five six"

    assert [text[m.start : m.end] for m in overlap.longest_matches(text, min_length=3)] == [
        "one two three",
        "four five six",
    ]


def test_a_match_says_where_it_stands(make: Make) -> None:
    known = [
        {"package": "alpha", "version": "1.0", "license": "MIT", "file": "alpha/one.py"},
        {"package": "beta", "version": "2.0", "license": "BSD-3-Clause", "file": "größe.py"},
        {"package": "alpha", "version": "1.0", "license": "MIT", "file": "alpha/two.py"},
    ]
    overlap = make(["x = 1\n\n\nshared = 'text'\n", "shared = 'text'\nshared = 'text'\n", "shared = 'text'"], known)
    (match,) = overlap.longest_matches("no, shared = 'text'", min_length=10, num_sources=2)

    assert (match.start, match.end, match.length) == (4, 19, 15)
    assert (match.occurrences, match.documents, match.packages) == (4, 3, 2)
    first, second = match.sources
    assert (first.package, first.version, first.license, first.file) == ("alpha", "1.0", "MIT", "alpha/one.py")
    assert (first.document, first.line) == (0, 4)
    assert (second.package, second.file, second.line) == ("beta", "größe.py", 1)


def test_a_document_of_which_nothing_is_known_has_its_number_alone(make: Make) -> None:
    (match,) = make(["", "a passage"]).longest_matches("a passage", min_length=5)

    assert (match.sources[0].document, match.sources[0].package, match.sources[0].license) == (1, None, None)


def test_line_ends_count_as_they_are(make: Make) -> None:
    overlap = make(["first line\r\nsecond line\r\n"])

    assert len(overlap.longest_matches("first line\r\nsecond line", min_length=3)) == 1
    assert len(overlap.longest_matches("first line\nsecond line", min_length=3)) == 2


def test_half_a_character_is_no_match(make: Make) -> None:
    overlap = make(["xyzé", "zzzã"])  # two letters with the same first byte

    (match,) = overlap.longest_matches("xyzã", min_length=3)
    assert (match.start, match.end) == (0, 3)
    assert overlap.longest_matches("xyã", min_length=3) == []


def test_of_two_spans_that_become_one_when_whole_characters_count_the_longer_stays(make: Make) -> None:
    text = "漢abcdef"
    overlap = make(["\u7f22abcd", "\u6e22abcdef"])  # which end with the last two bytes of 漢, and with its last one

    assert [(m.start, m.end) for m in overlap.longest_matches(text, min_length=3)] == [(1, 7)]


@pytest.mark.parametrize("text", ["", "a", "ab", "never seen in there"])
def test_texts_without_a_match_have_none(make: Make, text: str) -> None:
    overlap = make(["abcabc", "x = 1\n"])

    assert overlap.longest_matches(text, min_length=3) == []
    summary = overlap.summary(text, min_length=3)
    assert summary["longest"] is None and summary["matches"] == [] and set(summary["covered"].values()) == {0.0}


def test_an_empty_corpus_matches_nothing(make: Make) -> None:
    assert make([]).longest_matches("anything at all", min_length=3) == []
    assert make(["", ""]).longest_matches("anything at all", min_length=3) == []


def test_the_summary_counts_a_character_once_and_holds_no_text(make: Make) -> None:
    overlap = make(["abcdefgh", "efghijkl", "xyz"])
    summary = overlap.summary("abcdefghijkl, xyz?", min_length=3, levels=(2, 4, 8, 9))

    assert [(one["start"], one["end"]) for one in summary["matches"]] == [(0, 8), (4, 12), (14, 17)]
    assert summary["covered"] == {"3": 15 / 18, "4": 12 / 18, "8": 12 / 18, "9": 0.0}
    assert summary["longest"] == summary["matches"][0]
    assert summary["characters"] == 18 and summary["corpus_sha256"] == "of the corpus"
    assert "abcd" not in str(summary)


def test_wrong_values_are_refused(make: Make) -> None:
    overlap = make(["abc"])
    with pytest.raises(InputError, match="3 characters or more"):
        overlap.longest_matches("abc", min_length=2)
    with pytest.raises(InputError, match="0 or more"):
        overlap.longest_matches("abc", num_sources=-1)
    with pytest.raises(InputError, match="character 1 is a lone surrogate"):
        overlap.longest_matches("a\ud800")
