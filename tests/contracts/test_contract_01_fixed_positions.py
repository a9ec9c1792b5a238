"""Contract 1: a fixed position never changes; the caller's text comes back byte for byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from daguerre.model import Model

TEXTS = [
    ("", ""),
    ("def f(x):\r\n\treturn ", "\r\n# end\r\n"),
    ("\ufeffx = 'é🙂", "日本'\n"),
    ("e\u0301 \x00 <mask>", "<eos>\t\t"),
    ("impo", "rt os"),
    ("class A:\n", "\n    pass"),
]
NAMES = ("causal", "causal_unshifted", "full", "full_unshifted", "block", "block_shifted")


def test_infilling_leaves_prefix_and_suffix_verbatim(models: dict[str, Model], subtests: pytest.Subtests) -> None:
    for name in ("causal", "causal_unshifted", "full"):
        with subtests.test(name):
            model = models[name]
            for prefix, suffix in TEXTS:
                result = model.infill(prefix, suffix, max_tokens=6, threshold=0.5, temperature=1.0)
                *_, canvas = result.trace.replay()
                drawn = model.tokenizer.decode_bytes(canvas.tokens[1:].tolist())  # a gap filler has no bytes
                assert drawn.startswith(prefix.encode())
                assert drawn.endswith(suffix.encode())
                middle = drawn[len(prefix.encode()) : len(drawn) - len(suffix.encode())]
                assert middle.decode("utf-8", errors="replace") == result.text


def test_a_completion_follows_the_prompt_byte_for_byte(models: dict[str, Model], subtests: pytest.Subtests) -> None:
    for name in NAMES:
        with subtests.test(name):
            model = models[name]
            for number, (prefix, _) in enumerate(TEXTS):
                options: dict[str, Any] = {"threshold": 0.5} if number % 2 else {}
                result = model.generate(prefix, max_tokens=6, **options)
                *_, canvas = result.trace.replay()
                end = canvas.gaps[0][0] + len(canvas.filled(canvas.gaps[0]))
                drawn = model.tokenizer.decode_bytes(canvas.tokens[1:end].tolist())
                assert drawn.startswith(prefix.encode())
                assert drawn[len(prefix.encode()) :].decode("utf-8", errors="replace") == result.text


def test_no_step_changes_a_given_position(causal: Model) -> None:
    result = causal.infill("def f(a, b):\n", "\n    return a", max_tokens=12, threshold=0.5)
    start = result.trace.canvas
    given = ~start.in_gap
    steps = list(result.trace.replay())
    assert len(steps) > 2
    for canvas in steps:
        assert np.array_equal(canvas.tokens[given], start.tokens[given])
        assert not canvas.open[given].any()
