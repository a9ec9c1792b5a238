"""Contract 12: interrupting anything loses no finished work and leaves no half-written file.

Training that is killed is in tests/train/test_trainer.py, a save cut short in tests/models/test_loading.py. Here a
collection of data is killed, for real, at several moments.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from daguerre.train.shards import Shard

SCRIPT = """
import sys
from pathlib import Path
from daguerre.train.corpus.collect import collect_python
source, out = map(Path, sys.argv[1:])
collect_python(out, [source], stdlib=False, installed=False, workers=1, progress=False)
"""
FILES = ("train.bin", "train.starts.npy", "train.bytes.npy", "meta.json", "manifest.jsonl")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of distinct small modules."""
    folder = tmp_path_factory.mktemp("source") / "mine"
    folder.mkdir()
    rng = np.random.default_rng(0)

    def word() -> str:
        return "".join(chr(ord("a") + int(i)) for i in rng.integers(26, size=7))

    for number in range(150):
        body = "".join(f"def {word()}({word()}, {word()}):\n    return {word()}({word()})\n\n\n" for _ in range(12))
        (folder / f"module_{number}.py").write_text(f'"""{word()} {word()}."""\n\n\n{body}')
    return folder


def start(source: Path, out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", SCRIPT, str(source), str(out)]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True)


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A corpus that nobody interrupted, and the seconds it took."""
    out, began = tmp_path_factory.mktemp("corpus") / "whole", time.monotonic()
    assert start(source, out).wait(timeout=120) == 0
    return out, time.monotonic() - began


@pytest.mark.parametrize("share", [0.5, 0.7, 0.9])
def test_a_killed_collection_is_never_half_there_and_ends_the_same_when_run_again(
    share: float, source: Path, undisturbed: tuple[Path, float], tmp_path: Path
) -> None:
    whole, seconds = undisturbed
    out = tmp_path / "corpus"
    process = start(source, out)
    time.sleep(share * seconds)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=30)
    if (out / "meta.json").exists():
        assert Shard.open(out, "train").num_documents == 150
    assert start(source, out).wait(timeout=120) == 0
    for name in FILES:
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name
    assert not [path for path in out.rglob("*.tmp*") if path.is_file()]
