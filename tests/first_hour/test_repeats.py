"""Greedy text that loops is ended there and the user is told; it can be had as it is, and varied."""

from __future__ import annotations

import json

import pytest

from commands import Done, daguerre

ASKED = ("generate", "def area(width, height):\n    return width * height\n\n\ndef ", "--max-tokens", "400")


@pytest.fixture(scope="module")
def ended() -> Done:
    return daguerre(*ASKED)


def test_a_loop_ends_the_text_and_is_said(ended: Done) -> None:
    whole = daguerre(*ASKED, "--no-stop-loops")
    body = json.loads(daguerre(*ASKED, "--json").stdout)

    assert ended.returncode == whole.returncode == 0
    assert whole.stdout.startswith(ended.stdout.rstrip("\n"))
    assert len(ended.stdout) < len(whole.stdout) / 2
    assert "repeated itself" in ended.stderr and "--no-stop-loops" in ended.stderr
    assert whole.stderr == ""
    assert (body["looped"], body["finish_reason"]) == (True, "stop")


def test_repetition_can_be_made_unlikely(ended: Done) -> None:
    penalized = daguerre(*ASKED, "--repetition-penalty", "1.3")
    without = daguerre(*ASKED, "--no-repeat-ngram-size", "6")

    assert penalized.returncode == without.returncode == 0
    assert without.stderr == ""
    assert len({penalized.stdout, without.stdout, ended.stdout}) == 3
