"""Each detector finds the marked spans and no others, in the snippet as it is and in other dress."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

from concepts import cases
from concepts.cases import Case
from daguerre.concepts.detectors import DETECTORS
from daguerre.concepts.source import SourceText, Span
from daguerre.concepts.taxonomy import load_detectors, taxonomy

load_detectors()
CASES: dict[str, Case] = {}
for _module in pkgutil.iter_modules(cases.__path__):
    CASES |= importlib.import_module(f"{cases.__name__}.{_module.name}").CASES


def unmarked(snippet: str) -> tuple[str, list[Span]]:
    text, starts, spans = "", list[int](), list[Span]()
    for letter in snippet:
        if letter == "«":
            starts.append(len(text))
        elif letter == "»":
            spans.append((starts.pop(), len(text)))
        else:
            text += letter
    assert not starts
    return text, sorted(set(spans))


def found(name: str, text: str) -> list[Span]:
    return sorted(set(DETECTORS[name](SourceText(text))))


def shown(text: str, spans: list[Span]) -> list[str]:
    return [text[start:end] for start, end in spans]


def test_a_detector_finds_the_marked_spans(subtests: pytest.Subtests) -> None:
    for name in sorted(DETECTORS):
        with subtests.test(name):
            check_marked(name, CASES[name])


def check_marked(name: str, case: Case) -> None:
    assert case.yes and case.no and case.tricky
    for kind in ("yes", "no", "tricky"):
        for snippet in getattr(case, kind):
            text, want = unmarked(snippet)
            assert kind == "tricky" or bool(want) == (kind == "yes"), snippet
            source = SourceText(text)
            assert source.tree is not None or taxonomy().named(name).lexical, f"does not parse: {snippet}"
            got = sorted(set(DETECTORS[name](source)))
            assert shown(text, got) == shown(text, want), snippet
            assert got == want


def test_spans_stay_where_they_are_in_other_dress(subtests: pytest.Subtests) -> None:
    """Behind a line of wide characters, and with other line ends."""
    for name in sorted(DETECTORS):
        with subtests.test(name):
            check_dressed(name, CASES[name])


def check_dressed(name: str, case: Case) -> None:
    for snippet in case.yes:
        text, want = unmarked(snippet)
        if text.startswith("#!") or name in ("module_docstring", "encoding_comment"):
            continue
        before = 'ünïcode_名 = "😀 «»"\n'
        assert [(a - len(before), b - len(before)) for a, b in found(name, before + text) if a >= len(before)] == want
        windows = text.replace("\n", "\r\n")
        pieces = [piece.replace("\r\n", "\n") for piece in shown(windows, found(name, windows))]
        assert pieces == shown(text, want), "with CRLF"


def test_every_concept_has_a_case_and_every_case_a_concept() -> None:
    assert CASES.keys() == DETECTORS.keys()
