"""Tiny random models, and a denoiser that says what a test tells it to."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from daguerre.canvas import Canvas, Decision
from daguerre.files import CACHE
from daguerre.model import Model
from daguerre.models.backbone import Backbone
from daguerre.models.config import ModelConfig
from daguerre.models.denoiser import Counts, Verification
from daguerre.models.rows import Tree, first_run
from daguerre.models.tokenizer import Tokenizer

MakeModel = Callable[..., Model]
CONTEXTS: dict[str, dict[str, Any]] = {
    "causal": {"context": "causal"},
    "causal_unshifted": {"context": "causal", "shift": False},
    "full": {"context": "full"},
    "full_unshifted": {"context": "full", "shift": False},
    "block": {"context": "block", "shift": False, "block_size": 8},
}


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nobody's cache is read or written, by this process or those it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE, str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.default("2k")


def tiny_config(tokenizer: Tokenizer, **facts: Any) -> ModelConfig:
    values: dict[str, Any] = {
        "vocab_size": tokenizer.vocab_size,
        "width": 32,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "mlp_width": 64,
        "max_positions": 256,
        "pad_id": tokenizer.pad_id,
        "bos_id": tokenizer.bos_id,
        "eos_id": tokenizer.eos_id,
        "mask_id": tokenizer.mask_id,
        "null_id": tokenizer.null_id,
    }
    return ModelConfig(**(values | facts))


@pytest.fixture(scope="session")
def make_model(tokenizer: Tokenizer) -> MakeModel:
    """A random model whose mean top probability is about one half; branches outweigh the tied input, so tokens vary."""

    def make(seed: int = 0, **facts: Any) -> Model:
        backbone = Backbone(tiny_config(tokenizer, **facts)).initialize(seed, zero_outputs=False, scale=6.0)
        with torch.no_grad():
            for name, weight in backbone.named_parameters():
                if name.endswith(("out.weight", "down.weight")):
                    weight.mul_(10.0)
        return Model(backbone.eval().requires_grad_(False), tokenizer)

    return make


@pytest.fixture(scope="session")
def models(make_model: MakeModel) -> dict[str, Model]:
    """One model for each context, by name."""
    return {name: make_model(**facts) for name, facts in CONTEXTS.items()}


@pytest.fixture(scope="session")
def causal(models: dict[str, Model]) -> Model:
    return models["causal"]


@dataclass
class Scripted:
    """A denoiser whose logits are a test's: `says(canvas, position)` maps token to logit; all others are -20."""

    config: ModelConfig
    says: Callable[[Canvas, int], dict[int, float]]
    counts: Counts = field(default_factory=Counts)
    asked: list[list[int]] = field(default_factory=list)

    def session(self, canvas: Canvas, cache: str = "auto") -> Scripted:
        self.counts = Counts()
        return self

    def logits(self, canvas: Canvas, asked: np.ndarray) -> np.ndarray:
        self.counts.forwards += 1
        self.asked.append(asked.tolist())
        out = np.full((len(asked), self.config.vocab_size), -20.0, dtype=np.float32)
        for row, position in zip(out, asked.tolist(), strict=True):
            for token, logit in self.says(canvas, position).items():
                row[token] = logit
        return out

    def in_turn(self, canvas: Canvas) -> Any:
        laws = iter(self.logits(canvas, first_run(canvas.asked())))
        return lambda token: next(laws, None)

    def verify(self, canvas: Canvas, draft: np.ndarray, ahead: int) -> Verification:
        """The law speaks with the draft's beginning committed, and what is behind with one position more left open."""
        assert canvas.span is not None
        start, end = canvas.span
        canvases = [canvas]
        for position, token in enumerate(draft.tolist(), start):
            one = Decision([position], [token], [1.0], [1.0])
            canvases.append(canvases[-1].apply(one))
        laws = [self.logits(now, np.array([place]))[0] for place, now in enumerate(canvases, start)]
        self.counts.forwards -= len(laws) - 1

        def behind(row: int) -> Any:
            first = start + row + 1
            out = self.logits(canvases[row], np.arange(first, max(first, min(first + ahead, end - 1))))
            self.counts.forwards -= 1
            laws = iter(out)
            return lambda token: next(laws, None)

        return Verification(np.stack(laws), behind)

    def branches(self, given: np.ndarray, tree: Tree, asked: np.ndarray) -> np.ndarray:
        """Each as the law of the next position of a text that ends there."""
        laws = []
        for node in asked.tolist():
            way = [] if node < 0 else tree.tokens[tree.ancestors[node]].tolist()
            canvas = Canvas.lay_out([[*given.tolist(), *way]], [1], self.config.mask_id)
            laws.append(self.logits(canvas.at(canvas.gaps[0]), np.array([canvas.gaps[0][0]]))[0])
        self.counts.forwards -= len(laws) - 1
        return np.stack(laws)


@pytest.fixture
def scripted(tokenizer: Tokenizer) -> Callable[..., Scripted]:
    """Make a scripted denoiser: scripted(says, **facts of the config)."""
    return lambda says, **facts: Scripted(tiny_config(tokenizer, **facts), says)


@pytest.fixture
def slow(scripted: Any, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """A denoiser that writes "a" for ever, and takes a second for each position that it is asked about."""
    now = 0.0
    monkeypatch.setattr("daguerre.sampling.deadline.time.perf_counter", lambda: now)
    (word,) = tokenizer.encode("a")

    def says(canvas: Canvas, position: int) -> dict[int, float]:
        nonlocal now
        now += 1.0
        return {word: 10.0}

    return scripted(says)


@pytest.fixture
def hide_matplotlib(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Once it is called, matplotlib is not installed."""

    def hide() -> None:
        for name in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
            monkeypatch.setitem(sys.modules, name, None)

    return hide
