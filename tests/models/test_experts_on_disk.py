"""Packed experts in a file: the same bits as in memory, in less memory than they have bytes."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from backends import needs_compiler
from daguerre import Model
from daguerre.errors import InputError, UnsupportedError
from daguerre.models.backends import disk
from daguerre.models.backends.native_backend import NUMBERS, NativeBackend
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import Experts
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.load_options import Place, Quantization
from forwards import NUM_KINDS, make, same_bits

pytestmark = needs_compiler
EXPERTS = Experts(num=20, per_token=3, width=40, shared_width=24, first_layer=1, score="softmax")


Q4_0: Quantization = "q4_0"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setattr(disk, "cache_folder", lambda: folder)
    return folder


@pytest.fixture(scope="module")
def backbone(make_model: Any) -> Backbone:
    made: Backbone = make_model(norm_eps=0.05, experts=EXPERTS).backbone
    return made


def test_bits_are_those_of_experts_in_memory(
    backbone: Backbone, cache: Path, caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests
) -> None:
    for quantize in (None, *NUMBERS, Q4_0):
        for dtype in [torch.float32, torch.bfloat16]:
            with subtests.test(quantize=quantize, dtype=dtype):
                caplog.clear()
                model = type(backbone)(backbone.config).to(dtype).eval()
                model.load_state_dict(backbone.state_dict())
                memory, paged = (NativeBackend(model, quantize, experts=place) for place in get_args(Place))
                assert memory._packing.experts is None and paged._packing.experts is not None
                assert 0 < paged._packing.experts.num_bytes < 1.3 * paged.num_bytes
                assert paged.num_bytes == memory.num_bytes
                addresses = [paged._model.layers[1].expert_up[number].weight for number in range(EXPERTS.num)]
                assert all(address % 4096 == 0 and _is_of_a_file(address) for address in addresses)
                # The file has no name, and nothing is left when the process is killed.
                assert list(cache.iterdir()) == []
                for number in range(NUM_KINDS):
                    answers = [one.forward([make(one, number)])[0] for one in (memory, paged)]
                    assert same_bits(*answers)
                line = next(one.getMessage() for one in caplog.records if one.levelno == logging.WARNING)
                assert "of experts are on the disk of" in line and "a second" in line and str(cache) in line


def _is_of_a_file(address: int) -> bool:
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        span, *_, inode = line.split()[:5]
        first, end = (int(one, 16) for one in span.split("-"))
        if first <= address < end:
            return inode != "0"
    return False


def test_they_go_there_where_the_whole_model_does_not_fit(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    for share, on_disk in [(0.89, False), (0.91, True), (None, False)]:
        with subtests.test(share=share):
            free = None if share is None else int(4 * backbone.num_parameters / share)
            monkeypatch.setattr(disk, "free_memory", lambda free=free: free)
            assert (NativeBackend(backbone)._packing.experts is not None) == on_disk
            assert NativeBackend(backbone, experts="memory")._packing.experts is None


def test_a_copy_has_its_experts_there_too(backbone: Backbone) -> None:
    denoiser = BackboneDenoiser(backbone, "native", experts="disk")
    for one in (pickle.loads(pickle.dumps(denoiser)), denoiser.fixed()):
        assert isinstance(one.backend, NativeBackend) and one.backend._packing.experts is not None


LIMITED = """
import resource, sys, torch
from daguerre.models.backends.native_backend import NativeBackend
from daguerre.models.core.build import make_backbone
from daguerre.models.core.config import Experts, ModelConfig
from daguerre.models.model_weights import give_back
from pathlib import Path

experts = Experts(num=32, per_token=2, width=512)
config = ModelConfig(vocab_size=300, width=512, num_layers=2, num_heads=4, num_kv_heads=4, mlp_width=512,
    max_positions=64, mask_id=299, eos_id=298, bos_id=297, pad_id=296, context="full", experts=experts)
backbone = make_backbone(config).eval().requires_grad_(False)
torch.set_num_threads(1)
NativeBackend(backbone, "int8", experts="disk")  # what is allocated once is there from now on
give_back()
facts = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
now = 1024 * int(facts["VmData"].split()[0])
resource.setrlimit(resource.RLIMIT_DATA, (now + (96 << 20), -1))
for place in ("disk", "memory"):
    try:
        NativeBackend(backbone, experts=place)
    except (MemoryError, RuntimeError) as error:
        print(place, "no memory")
        print(repr(error), file=sys.stderr)
    else:
        print(place, "packed")
"""
"""Two layers of 32 experts have 201 MB in float32, and 101 MB may be taken."""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems limit memory in other ways")
def test_less_memory_is_enough_than_experts_have_bytes() -> None:
    exact = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}  # else glibc may keep what was freed, in pieces
    command = [sys.executable, "-c", LIMITED]
    done = subprocess.run(command, env=exact, check=True, stdout=subprocess.PIPE, text=True, timeout=300)
    assert done.stdout.splitlines() == ["disk packed", "memory no memory"]


def test_what_cannot_be_is_said(backbone: Backbone, make_model: Any, cache: Path, monkeypatch: Any) -> None:
    dense: Model = make_model()
    with pytest.raises(UnsupportedError, match="has no experts: leave it out"):
        BackboneDenoiser(dense.backbone, experts="disk")
    with pytest.raises(UnsupportedError, match="PyTorch has all in memory: leave it out"):
        BackboneDenoiser(backbone, "torch", experts="disk")
    with pytest.raises(InputError, match="choose one of: disk, memory"):
        BackboneDenoiser(backbone, experts="tape")  # type: ignore[arg-type]
    full = disk.shutil._ntuple_diskusage(1000, 990, 10)  # type: ignore[attr-defined]
    with monkeypatch.context() as patched:
        patched.setattr(disk.shutil, "disk_usage", lambda _: full)
        with pytest.raises(InputError, match=r"do not fit on the disk of .*: name another folder in DAGUERRE_CACHE"):
            NativeBackend(backbone, experts="disk")
    with monkeypatch.context() as patched:  # it fills up while experts are packed
        patched.setattr(disk.os, "posix_fallocate", raises(OSError(28, "No space left on device")), raising=False)
        with pytest.raises(InputError, match=r"cannot be written to .*\(No space left on device\): name another"):
            NativeBackend(backbone, experts="disk")
    cache.rmdir() if cache.exists() else None
    cache.write_text("a file in the folder's place")
    with pytest.raises(InputError, match=r"cannot be written to .*DAGUERRE_CACHE"):
        NativeBackend(backbone, experts="disk")


def raises(error: Exception) -> Any:
    """A function that raises an error, whatever it gets."""

    def function(*_: Any) -> None:
        raise error

    return function


MEMINFO = "MemTotal: 9000 kB\nMemAvailable: 8000 kB\n"


def _machine(root: Path, groups: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, "proc/self/cgroup": groups, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
    return root


def _group(folder: str, names: tuple[str, str, str], most: str, used: int, old: int) -> dict[str, str]:
    return {
        f"{folder}/{names[0]}": most,
        f"{folder}/{names[1]}": str(used),
        f"{folder}/memory.stat": f"anon 1\n{names[2]} {old}\n",
    }


def test_free_memory_is_the_least_of_what_the_system_and_control_groups_leave(tmp_path: Path) -> None:
    second = _machine(tmp_path / "2", "0::/a/b\n", _group("sys/fs/cgroup/a/b", disk.V2, "max\n", 5, 0))
    assert disk.free_memory(second) == 8000 * 1024
    _machine(second, "0::/a/b\n", _group("sys/fs/cgroup/a", disk.V2, "1000\n", 900, 50))  # that of a group around it
    assert disk.free_memory(second) == 150
    first = _machine(tmp_path / "1", "4:cpu:/c\n3:memory,x:/c\n", _group("sys/fs/cgroup/memory", disk.V1, "70", 90, 10))
    assert disk.free_memory(first) == 0
    assert disk.free_memory(tmp_path / "none") is None


@pytest.mark.skipif(sys.platform != "linux", reason="other systems say it in other ways")
def test_this_machine_has_memory() -> None:
    assert (disk.free_memory() or 0) > 1 << 20
