"""Shorter evaluations, for tests of something else than their figures."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

import pytest

from daguerre.heldout import Document
from distributed_run import preload


@pytest.fixture(scope="module")
def few() -> Iterator[None]:
    """A correction has two rounds at most, and texts are written in few steps: both have tests of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("daguerre.evals.correction.ROUNDS", 2)
        patch.setattr("daguerre.evals.steps.STEPS", (2, 8))
        yield


@pytest.fixture
def preloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes begin as copies of one that has imported PyTorch, not as new ones, which takes seconds each."""
    preload(monkeypatch)


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    """Three of forty lines."""
    texts = ["".join(f"value_{i} = compute_{j}({i}, {j})\n" for i in range(40)) for j in range(3)]
    return [Document("p", "1", "MIT", f"{len(text)}", sha256(text.encode()).hexdigest(), text) for text in texts]


@pytest.fixture
def unwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are drawn and written to no file, which takes long; test_pictures.py writes them."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, *_, **__: figure.draw_without_rendering())
