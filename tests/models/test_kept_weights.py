"""Packed weights in the cache's folder: mapped by the next load, made again where anything differs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from backends import needs_compiler
from commands import daguerre as command
from daguerre import Model, load
from daguerre.files import cache_folder
from daguerre.models.backends import kept_weights, native_backend
from daguerre.models.backends.kept_weights import KeptPacking
from daguerre.models.backends.library import library
from daguerre.models.backends.native_backend import NUMBERS, NativeBackend
from daguerre.models.backends.panels import Packing
from forwards import logits_of
from published import CASES, made

pytestmark = needs_compiler
KINDS, LONGER = ("qwen3", "gemma3", "llada"), {"max_position_embeddings": 256}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, in which the smallest model is kept as soon as it is packed."""
    library()  # which is in the user's cache
    monkeypatch.setenv("DAGUERRE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kept_weights, "LEAST", 0)
    monkeypatch.setattr(kept_weights, "FREE", 0)
    keep = kept_weights.keep

    def at_once(*values: object) -> None:
        if (thread := keep(*values)) is not None:  # type: ignore[arg-type]
            thread.join()

    monkeypatch.setattr(native_backend, "keep", at_once)
    return tmp_path / "cache" / "packed"


def packing_of(model: Model) -> Packing:
    backend = model.denoiser.backend
    assert isinstance(backend, NativeBackend)
    return backend._packing


def test_the_second_load_maps_what_the_first_packed(tmp_path: Path, cache: Path, subtests: pytest.Subtests) -> None:
    for name in KINDS:
        folder = CASES[name].write(tmp_path / name, made(name), **LONGER)
        for quantize in [None, *NUMBERS]:
            with subtests.test(name, quantize=quantize):
                first, second = (load(folder, quantize=quantize) for _ in range(2))
                assert not isinstance(packing_of(first), KeptPacking) and isinstance(packing_of(second), KeptPacking)
                assert np.array_equal(logits_of(second.denoiser.backend), logits_of(first.denoiser.backend))
                assert packing_of(second).num_bytes == packing_of(first).num_bytes
                for name, weight in first.backbone.state_dict().items():
                    assert torch.equal(second.backbone.state_dict()[name], weight)


def test_two_files_that_differ_in_one_weight_are_two_entries(tmp_path: Path, cache: Path) -> None:
    folder = CASES["qwen3"].write(tmp_path / "a", made("qwen3"), **LONGER)
    load(folder)
    weights = max(folder.glob("*.safetensors"))
    about, content = weights.stat(), bytearray(weights.read_bytes())
    content[-2] ^= 1
    weights.write_bytes(content)
    os.utime(weights, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert not isinstance(packing_of(load(folder)), KeptPacking)
    assert isinstance(packing_of(load(folder)), KeptPacking) and len(kept_weights.entries()) == 2


def test_what_is_damaged_or_of_somebody_else_is_made_again(
    tmp_path: Path, cache: Path, subtests: pytest.Subtests
) -> None:
    folder = CASES["qwen3"].write(tmp_path / "a", made("qwen3"), **LONGER)
    wanted = logits_of(load(folder).denoiser.backend)
    (path,) = cache.glob("*.packed")
    whole = path.read_bytes()
    for content in (b"", whole[:-1], whole + b"x", whole[:40], b"x" * len(whole), whole[:32] + b"?" + whole[33:]):
        with subtests.test(len(content)):
            path.write_bytes(content)
            again = load(folder)
            assert not isinstance(packing_of(again), KeptPacking)
            assert np.array_equal(logits_of(again.denoiser.backend), wanted)
    cache.chmod(0o777)
    assert kept_weights.folder() is None and not isinstance(packing_of(load(folder)), KeptPacking)


def test_the_entry_that_was_used_the_longest_ago_goes(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = CASES["qwen3"].write(tmp_path / "a", made("qwen3"), **LONGER)
    for number, quantize in enumerate([None, *NUMBERS]):
        load(folder, quantize=quantize)
        os.utime(kept_weights.entries()[0].path, (number, number))
    sizes = [entry.num_bytes for entry in kept_weights.entries()]
    monkeypatch.setattr(kept_weights, "MOST", sum(sizes))
    load(folder, dtype="float32", quantize="int8")
    assert len(kept_weights.entries()) < 4 and kept_weights.entries()[-1].used >= 1


def test_the_command_shows_and_clears(tmp_path: Path, cache: Path) -> None:
    load(CASES["qwen3"].write(tmp_path / "a", made("qwen3"), **LONGER))
    assert "1 entry, 0.0 GB" in command("cache").stdout
    assert "deleted" in command("cache", "--clear").stdout and not kept_weights.entries()


def test_a_process_ends_when_what_it_packed_is_kept(tmp_path: Path) -> None:
    folder = CASES["qwen3"].write(tmp_path / "a", made("qwen3"), **LONGER)
    script = f"""
from daguerre.models.backends import kept_weights
kept_weights.LEAST = kept_weights.FREE = 0
import daguerre
daguerre.load({str(folder)!r})
"""
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("DAGUERRE_CACHE", None)
    if (home := cache_folder()) is not None and (home / "compiled").is_dir():  # kernels are not compiled again
        (tmp_path / "daguerre").mkdir()
        (tmp_path / "daguerre" / "compiled").symlink_to(home / "compiled")
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)
    assert len(list((tmp_path / "daguerre" / "packed").glob("*.packed"))) == 1
