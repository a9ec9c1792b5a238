"""Tiny models with concept heads, and ledgers of their generations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import tiny_config
from daguerre.audit.keys import SigningKey
from daguerre.audit.recorder import Recorder
from daguerre.audit.summary import Alerts
from daguerre.model import Model
from daguerre.models.core.build import make_backbone
from daguerre.models.core.config import ConceptShape
from daguerre.models.tokenizer import Tokenizer

SHAPE = ConceptShape(known=12, discovered=24, rank=8, kept_known=4, kept_discovered=6)
PROMPT = "def fib(n):\n    if n"
WATCHFUL = Alerts(concepts=tuple(range(8)), weight=0.01)
"""Alerts that most texts raise."""
MakeNamed = Callable[..., Model]


@pytest.fixture(scope="session")
def named(tokenizer: Tokenizer) -> MakeNamed:
    """A random model with concept heads: named(backend, dtype, seed, **facts of the config)."""

    def make(backend: Any = "torch", dtype: str = "float32", seed: int = 0, **facts: Any) -> Model:
        config = tiny_config(tokenizer, **{"concepts": SHAPE, **facts})
        backbone = make_backbone(config).initialize(seed, zero_outputs=False, scale=6.0)
        return Model(backbone.to(getattr(torch, dtype)).eval().requires_grad_(False), tokenizer, backend)

    return make


@pytest.fixture(scope="session")
def signing(tmp_path_factory: pytest.TempPathFactory) -> SigningKey:
    return SigningKey.make(tmp_path_factory.mktemp("keys") / "audit.key")


@pytest.fixture(scope="session")
def small(named: MakeNamed) -> Model:
    return named()


@pytest.fixture(scope="session")
def recorded(small: Model, signing: SigningKey, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger of 20 generations, which nobody writes to."""
    path = tmp_path_factory.mktemp("ledger") / "audit.jsonl"
    with Recorder(str(path), small, signing, name="small", alerts=WATCHFUL) as recorder:
        for seed in range(20):
            recorder.generate(PROMPT, 4, temperature=1.0, seed=seed)
    return path
