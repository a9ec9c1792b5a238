"""A corpus of a few files of the standard library and one of many scripts, and sources cut from it."""

from __future__ import annotations

import json.decoder
import json.scanner
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from daguerre.model import Model
from daguerre.models.loading import save_model
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.data import Cutter, TextWindows
from daguerre.train.noising import Source
from daguerre.train.shards import Shard, write_shards
from distributed_run import leave_out, preload
from training_runs import RECIPE, run

UNICODE = 'name = "naïve Δx — 漢字 🜁"\n\n\ndef größe(π):\n    """Œuvre."""\n    return π * 2\n\n\n' * 6
MakeSource = Callable[[int, str, int], Source]


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what every run does and few tests look at."""
    leave_out(monkeypatch)


@pytest.fixture
def preloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes begin as copies of one that has imported PyTorch, not as new ones, which takes seconds each."""
    preload(monkeypatch)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    train = [Path(textwrap.__file__).read_text(), UNICODE, "x = 1\n", Path(json.decoder.__file__).read_text()]
    write_shards(folder, {"train": train, "val": [Path(json.scanner.__file__).read_text()]}, tokenizer)
    return folder


@pytest.fixture(scope="session")
def windows(corpus: Path, tokenizer: Tokenizer) -> TextWindows:
    return TextWindows(Shard.open(corpus, "train", tokenizer.sha256), tokenizer.bos_id)


@pytest.fixture(scope="session")
def make_source(windows: TextWindows, tokenizer: Tokenizer) -> MakeSource:
    """make_source(seed, layout, length): a window of the corpus, cut for that layout."""

    def make(seed: int, layout: str, length: int) -> Source:
        rng = np.random.default_rng(seed)
        while len(window := windows.draw(length, rng)) < length:
            pass
        return Cutter(tokenizer).source(window, layout, rng)

    return make


@pytest.fixture(scope="session")
def start(make_model: Callable[..., Model], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a model to start from."""
    model = make_model(max_positions=64)
    return str(save_model(tmp_path_factory.mktemp("start") / "model", model.backbone, model.tokenizer))


@pytest.fixture(scope="session")
def reference(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed."""
    out = tmp_path_factory.mktemp("reference") / "run"
    with pytest.MonkeyPatch.context() as patch:
        leave_out(patch)
        run(RECIPE, out, corpus)
    return out
