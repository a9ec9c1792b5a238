"""Tiny random models, and denoisers whose logits are written by a test."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from backends import HIGHEST, flags_of
from daguerre.canvas import Canvas
from daguerre.errors import UnsupportedError
from daguerre.files import CACHE, cache_folder
from daguerre.model import Model
from daguerre.models.backends import library
from daguerre.models.core.config import Experts, ModelConfig, Windows
from daguerre.models.core.gemma_shape import GemmaShape
from daguerre.models.processor import LEVELS, VARIABLE
from daguerre.models.tokenizer import Tokenizer
from durations import Durations
from parts import PROPERTY, ROOT, Proofs, part_of, parts, parts_of_test
from scripted import Scripted
from torchless import HAS_TORCH, WithoutTorch, draw_weights

# Each client of HTTP reads all certificates of the system, which takes 50 ms; the tests talk to this machine alone.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = os.devnull

MakeModel = Callable[..., Model]
KEPT_DAYS = 30
"""For which a compiled file is kept."""
CONTEXTS: dict[str, dict[str, Any]] = {
    "causal": {"context": "causal"},
    "causal_unshifted": {"context": "causal", "shift": False},
    "full": {"context": "full"},
    "full_unshifted": {"context": "full", "shift": False},
    "block": {"context": "block", "shift": False, "block_size": 8},
    "block_shifted": {"context": "block", "block_size": 8},
    "reordered": {"context": "reordered", "shift": False},
}
GEMMA: dict[str, Any] = {
    "shift": False,
    "process": "uniform",
    "mask_id": None,
    "null_id": None,
    "block_size": 6,
    "activation": "gelu_tanh",
    "experts": Experts(num=6, per_token=2, width=20, normalized=True),
    "gemma": GemmaShape(global_head_width=16, global_kv_heads=1),
    "windows": Windows(size=7, layers=(0,)),
}
"""A model of DiffusionGemma's core."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part",
        action="append",
        default=[],
        choices=[*parts(), "all"],
        help="run a part of tests/parts.toml, and it alone; all: every part, and what make test runs",
    )


def pytest_configure(config: pytest.Config) -> None:
    if not HAS_TORCH:
        config.pluginmanager.register(WithoutTorch())
    if hasattr(config, "workerinput") or config.option.collectonly:  # a worker's reports come to the process above
        return
    config.pluginmanager.register(Durations(config.rootpath))
    option, whole = config.option, config.args_source is not pytest.Config.ArgsSource.ARGS
    if option.part and whole and not (option.keyword or option.markexpr or option.deselect):
        config.pluginmanager.register(Proofs(parts() if "all" in option.part else option.part))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files without a test that is asked for are not read, unless they are named."""
    if collection_path.suffix != ".py":
        return None
    name, asked = collection_path.relative_to(ROOT).as_posix(), config.getoption("part")
    if "all" in asked:
        return None
    read = any(parts()[part].is_in(name) for part in asked) if asked else part_of(name) is None
    return None if read else True


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of parts run only where their part is asked for, or their file is named. Files with a long test come first,
    so that at the end of a run no process waits for another.
    """
    asked, kept, left_out = set(config.getoption("part")), list[pytest.Item](), list[pytest.Item]()
    for item in items:
        own = {mark.args[0] for mark in item.iter_markers("part")} | parts_of_test(item.nodeid)
        item.user_properties += [(PROPERTY, part) for part in sorted(own)]
        wanted = bool(own & asked) if asked else not own or session.isinitpath(item.path)
        (kept if wanted or "all" in asked else left_out).append(item)
    items[:] = kept
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    long = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in long)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    if HAS_TORCH:
        import torch

        torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, kept: Path | None) -> Iterator[None]:
    """Nobody's cache is read or written, by this process or those it starts.

    What is compiled stays for the next run.
    """
    folder = tmp_path_factory.mktemp("cache")
    if kept is not None:
        (folder / "compiled").symlink_to(kept)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE, str(folder))
        yield


@pytest.fixture(scope="session")
def kept(pytestconfig: pytest.Config) -> Path | None:
    """A folder that stays from run to run, of every checkout, beside the user's cache: what is compiled is found there
    by its sources, flags and processor. None where pytest's cache is switched off, or there is no place.
    """
    above = cache_folder()
    if above is None or getattr(pytestconfig, "cache", None) is None:
        return None
    folder = above / "tests"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    for path in folder.iterdir():
        with suppress(OSError):  # another process removes it, too
            if time.time() - path.stat().st_mtime > KEPT_DAYS * 86_400:
                path.unlink()
    return folder


@pytest.fixture(scope="session")
def compiled() -> Callable[[str], None]:
    """compiled(isa) waits until the native library for that instruction set is there."""

    @cache
    def wait(isa: str) -> None:
        try:
            library._load(library.NATIVE, flags_of(isa))
        except UnsupportedError as error:
            if "unrecognized" not in str(error):
                raise
            pytest.skip(f"the compiler knows no {isa}")

    return wait


@pytest.fixture
def isa(request: pytest.FixtureRequest, compiled: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> str:
    """The instruction set of `ISAS` for which the native library is made in this test; a parameter."""
    compiled(request.param)
    if request.param == HIGHEST:
        monkeypatch.delenv(VARIABLE, raising=False)
    elif request.param in LEVELS:
        monkeypatch.setenv(VARIABLE, request.param)
    else:
        monkeypatch.setattr(library, "compiler_flags", lambda: flags_of(request.param))
    return str(request.param)


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


def random_backbone(config: ModelConfig, seed: int = 0) -> Any:
    """A backbone whose mean top probability is about one half; branches outweigh the tied input, so tokens vary."""
    import torch

    from daguerre.models.core.build import make_backbone

    backbone = make_backbone(config).initialize(seed, zero_outputs=False, scale=6.0)
    with torch.no_grad():
        for name, weight in backbone.named_parameters():
            if name.startswith("self_conditioning"):  # or rounding grows from step to step
                weight.mul_(0.3)
            elif name.endswith(("out.weight", "down.weight")):
                weight.mul_(10.0)
    return backbone.eval().requires_grad_(False)


@pytest.fixture(scope="session")
def make_model(tokenizer: Tokenizer) -> MakeModel:
    """A random model whose mean top probability is about one half; branches outweigh the tied input, so tokens vary."""

    def make(seed: int = 0, **facts: Any) -> Model:
        config = tiny_config(tokenizer, **facts)
        if HAS_TORCH:
            return Model(random_backbone(config, seed), tokenizer)
        return Model(draw_weights(config, seed, scale=6.0, branches=10.0), tokenizer)

    return make


@pytest.fixture(scope="session")
def models(make_model: MakeModel) -> dict[str, Model]:
    """One model for each context, by name."""
    return {name: make_model(**facts) for name, facts in CONTEXTS.items()}


@pytest.fixture(scope="session")
def causal(models: dict[str, Model]) -> Model:
    return models["causal"]


@pytest.fixture(scope="session")
def drafting(make_model: MakeModel) -> Model:
    """A model with a draft head whose steps change what is likely."""
    return make_model(draft_head=24)


@pytest.fixture
def scripted(tokenizer: Tokenizer) -> Callable[..., Scripted]:
    """Make a scripted denoiser: scripted(says, **facts of the config)."""
    return lambda says, *, draws=True, **facts: Scripted(tiny_config(tokenizer, **facts), says, draws)


@pytest.fixture
def slow(scripted: Any, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """A denoiser that writes "a" for ever, and takes a second for each position that it is asked about."""
    now = 0.0
    monkeypatch.setattr("daguerre.decoding.denoise.time.perf_counter", lambda: now)
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
