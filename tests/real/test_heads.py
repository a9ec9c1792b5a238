"""Concept heads for SmolLM2, trained for a moment: its text stays, and each token's logit is a sum of concepts."""

from __future__ import annotations

from pathlib import Path

import pytest

import daguerre
from daguerre.train.heads.options import HeadOptions
from daguerre.train.heads.run import train_heads
from real.files import bring

OPTIONS = HeadOptions(tokens=4096, labeled=12_000, held=512, rows=512, words=128, vocabulary=512, passes=1)
PROMPT = "def read(path):\n    with open(path) as file:\n"


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, out = Path(daguerre.__file__).parent / "concepts", tmp_path_factory.mktemp("run")
    return train_heads(str(bring("smollm2")), [source], out, OPTIONS, say=lambda line: None)


def test_the_text_stays_and_is_explained(heads: Path) -> None:
    plain, model = daguerre.load(bring("smollm2"), concepts="none"), daguerre.load(bring("smollm2"), concepts=heads)

    result = model.generate(PROMPT, 16, mode="speculative", explain=True)
    answer = model.chat([{"role": "user", "content": "Write a loop in Python."}], 12, explain=True)
    steered = model.generate(PROMPT, 16, forbid=["comment"], regex="[ a-z_=.()\\n]+")

    assert result.text == plain.generate(PROMPT, 16, mode="ar").text
    assert plain.nll(PROMPT).value == model.nll(PROMPT).value
    for one in (result, answer):
        assert one.concepts is not None and one.concepts.error() < 0.05
    assert "#" not in steered.text
