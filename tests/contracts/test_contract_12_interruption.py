"""Contract 12: interrupting anything loses no finished work and leaves no half-written file.

Training that is killed is in tests/train/test_trainer.py, a save cut short in tests/models/test_loading.py. Here a
collection of data is killed, for real, as it writes one file and another.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from daguerre.train.shards import Shard

SCRIPT = """
import os, signal, sys
from pathlib import Path
from daguerre.train.corpus.collect import collect_python

*folders, files = sys.argv[1:]
source, out = map(Path, folders)
sync, left = os.fsync, iter(range(int(files)))

def limited(handle):
    if next(left, None) is None:
        os.kill(os.getpid(), signal.SIGKILL)
    sync(handle)

os.fsync = limited
collect_python(out, [source], stdlib=False, installed=False, workers=1, progress=False)
"""
WRITTEN = 15
"""Files that the collection below writes: what it kept of the source and of duplicates, then the corpus."""
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


def collect(source: Path, out: Path, files: int = 1000) -> int:
    """Exit status of a collection that is killed as it has written the last bytes of the file behind so many."""
    command = [sys.executable, "-c", SCRIPT, str(source), str(out), str(files)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=env, timeout=120, check=False).returncode


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus that nobody interrupted."""
    out = tmp_path_factory.mktemp("corpus") / "whole"
    assert collect(source, out) == 0
    return out


@pytest.mark.parametrize("files", [0, 1, 4, 9, WRITTEN - 2, WRITTEN - 1])
def test_a_killed_collection_is_never_half_there_and_ends_the_same_when_run_again(
    files: int, source: Path, undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "corpus"
    assert collect(source, out, files) == -signal.SIGKILL
    assert (out / "meta.json").exists() == (files == WRITTEN - 1)
    if (out / "meta.json").exists():
        assert Shard.open(out, "train").num_documents == 150
    assert collect(source, out) == 0
    for name in FILES:
        assert (out / name).read_bytes() == (undisturbed / name).read_bytes(), name
    assert not [path for path in out.rglob("*.tmp*") if path.is_file()]
