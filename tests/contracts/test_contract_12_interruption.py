"""Contract 12: interrupting anything loses no finished work and leaves no half-written file.

Training that is killed is in tests/train/test_trainer.py, a save cut short in tests/models/test_loading.py. Here a
collection of data is killed, for real, as it writes one file and another.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from daguerre.train.shards import Shard

SCRIPT = """
import os, signal, sys, traceback
from pathlib import Path
from daguerre.train.corpus.collect import collect_python

def collect(source, out, files):
    sync, left = os.fsync, iter(range(int(files)))

    def limited(handle):
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        sync(handle)

    os.dup2(2, 1)
    signal.alarm(120)
    os.fsync = limited
    collect_python(Path(out), [Path(source)], stdlib=False, installed=False, workers=1, progress=False)

for line in sys.stdin:
    child = os.fork()
    if not child:
        try:
            collect(*line.rstrip("\\n").split("\\t"))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Collects in a process of its own for each line of its input, without importing everything again."""
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


@pytest.fixture
def collect(source: Path) -> Iterator[Callable[..., int]]:
    """collect(out, files): exit status of a collection that is killed as it has written the last bytes of the file
    behind so many.
    """
    command, env = [sys.executable, "-c", SCRIPT], {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        given, said = process.stdin, process.stdout
        assert given is not None and said is not None

        def run(out: Path, files: int = 1000) -> int:
            given.write(f"{source}\t{out}\t{files}\n")
            given.flush()
            return int(said.readline())

        yield run


def test_a_killed_collection_is_never_half_there_and_ends_the_same_when_run_again(
    collect: Callable[..., int], tmp_path: Path, subtests: pytest.Subtests
) -> None:
    undisturbed = tmp_path / "whole"
    assert collect(undisturbed) == 0
    for files in (0, 1, 4, 9, WRITTEN - 2, WRITTEN - 1):
        with subtests.test(f"{files} files"):
            out = tmp_path / str(files)
            assert collect(out, files) == -signal.SIGKILL
            assert (out / "meta.json").exists() == (files == WRITTEN - 1)
            if (out / "meta.json").exists():
                assert Shard.open(out, "train").num_documents == 150
            assert collect(out) == 0
            for name in FILES:
                assert (out / name).read_bytes() == (undisturbed / name).read_bytes(), name
            assert not [path for path in out.rglob("*.tmp*") if path.is_file()]
