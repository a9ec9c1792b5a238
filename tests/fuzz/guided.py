"""Inputs that reach new lines of the readers, found by Atheris; it is optional, and only `make fuzz` installs it.

Atheris runs in a process of its own, which stops at the first case that breaks it. It only collects: all inputs that it
finds are run again by `engine`, with its limits.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from fuzz.engine import ROOT, cases
from fuzz.mutate import MOST

MEGABYTES = 8_000


def available() -> bool:
    """Whether Atheris is installed."""
    found = importlib.util.find_spec("atheris")
    return found is not None and found.origin is not None  # a folder of that name is none


def guided(name: str, seed: int, seconds: float) -> tuple[int, list[bytes]]:
    """(how many cases were run, inputs that are worth running again: the last is what ended the search, if any)."""
    with tempfile.TemporaryDirectory(prefix="daguerre-fuzz-") as folder:
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        paths = [str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "fuzz.guided",
                name,
                str(seed),
                str(max(1, int(seconds))),
                str(corpus),
                f"{folder}/",
            ],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
            check=False,
            capture_output=True,
            timeout=seconds + 300,
        )
        runs = [line.rpartition(b": ")[2] for line in done.stderr.splitlines() if b"number_of_executed_units" in line]
        kept = sorted(corpus.iterdir())
        ended = [path for path in Path(folder).iterdir() if path.is_file()]
        return int(runs[0]) if runs else len(kept), [path.read_bytes() for path in [*kept, *ended]]


def main(name: str, seed: str, seconds: str, corpus: str, ended: str) -> None:
    """Search; what is thrown is kept in the corpus as well, since it takes a way of its own."""
    import atheris

    with atheris.instrument_imports(include=["daguerre"]):
        from fuzz.targets import TARGETS
    from fuzz.child import outcome

    target = TARGETS[name]
    seeds, run = list(target.seeds()), target.make()
    for number, data in enumerate(cases(target, int(seed), 20)):
        (Path(corpus) / f"seed-{number}").write_bytes(data)

    def changed(data: bytes, most: int, given: int) -> bytes:
        random = Random(given)
        return target.change(data, seeds, random)[:most] if random.random() < 0.8 else atheris.Mutate(data, most)

    def one(data: bytes) -> None:
        outcome(run, data)

    limits: Sequence[Any] = (f"-max_total_time={seconds}", f"-timeout={int(10 * target.seconds)}", f"-max_len={MOST}")
    given = [
        *limits,
        f"-rss_limit_mb={MEGABYTES}",
        f"-seed={int(seed) % 2**31}",
        f"-artifact_prefix={ended}",
        "-print_final_stats=1",
    ]
    atheris.Setup([name, *given, corpus], one, custom_mutator=changed)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
