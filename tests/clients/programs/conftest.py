"""Programs that people use, as they are installed, before a server with a published code model: `make programs`.

Each test is a task. It runs a program in an empty home folder, through a proxy that keeps what was said, and checks
the file or the answer that came out. With --llama-server every task is run before llama-server too.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from engines import daguerre, llama_server
from wire import Wire, recording

from daguerre.errors import CheckpointError
from real.files import bring

ROOT = Path(__file__).parents[3]
HELD = ("PATH", "OMP_NUM_THREADS", "LANG", "TERM")
"""What a program sees of the environment."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """What serves, and which model."""
    group = parser.getgroup("programs")
    group.addoption("--daguerre", default=str(ROOT / ".venv" / "bin" / "daguerre"), help="the command to serve with")
    group.addoption("--llama-server", default=None, help="llama-server, to run every task before it as well")
    group.addoption("--coder", default="coder-1.5b", help="the model, by its name in tests/real/files.py")
    group.addoption("--runs", type=int, default=1, help="how often each task is run")
    group.addoption("--at", default=None, help="the address of a server that runs already, instead of starting one")
    group.addoption("--results", default=None, help="write each run to this file, a line of JSON each")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each task before each server, as often as is wished."""
    if "engine" in metafunc.fixturenames:
        engines = ["daguerre"] + ["llama-server"] * bool(metafunc.config.getoption("--llama-server"))
        metafunc.parametrize("engine", engines, scope="session")
        metafunc.parametrize("run", range(metafunc.config.getoption("--runs")))


@pytest.fixture(scope="session")
def engine() -> str:
    """The server's name."""
    raise NotImplementedError("given by pytest_generate_tests")


@pytest.fixture(scope="session")
def server(engine: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a server with the code model."""
    option = request.config.getoption
    try:
        file = str(bring(option("--coder")))
    except CheckpointError as error:
        pytest.skip(str(error))
    at = option("--at") if engine == "daguerre" else None
    starting = nullcontext(at) if at else START[engine](option(f"--{engine}"), file)
    with starting as url:
        yield url


START = {"daguerre": daguerre, "llama-server": llama_server}


@pytest.fixture
def wire(server: str, engine: str, run: int, home: Path, request: pytest.FixtureRequest) -> Iterator[Wire]:
    """A recording proxy before the server. What went over it must be valid when the task is done, and is left in
    `wire.json` in the home folder.
    """
    begun = time.monotonic()
    described = None
    if engine == "daguerre":
        with urllib.request.urlopen(f"{server}/openapi.json") as answer:
            described = json.load(answer)
    with recording(server) as one:
        yield one
    (home / "wire.json").write_text(json.dumps([asdict(each) for each in one.exchanges], indent=1))
    faults = one.faults(described)
    keep(request, engine, run, one, faults, time.monotonic() - begun)
    assert not (faults and engine == "daguerre"), faults


def keep(request: pytest.FixtureRequest, engine: str, run: int, wire: Wire, faults: list[str], seconds: float) -> None:
    """A line of the results."""
    place = request.config.getoption("--results")
    if place is None:
        return
    task = f"{request.node.path.stem.removeprefix('test_')}: {request.node.originalname.removeprefix('test_')}"
    row = {"task": task, "engine": engine, "run": run, "passed": not request.node.stash.get(FAILED, True)}
    row |= {"requests": len(wire.exchanges), "faults": faults, "seconds": round(seconds, 1)}
    with Path(place).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row | {"model": request.config.getoption("--coder")}) + "\n")


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Whether the task itself failed, for the results."""
    report = yield
    if report.when == "call":
        item.stash[FAILED] = report.failed
    return report


@pytest.fixture
def program() -> Callable[[str], Path]:
    """program(path): a program under .clients; the test is skipped where it is not installed."""

    def found(path: str) -> Path:
        place = ROOT / ".clients" / path
        if not place.exists():
            pytest.skip(f"{path} is not installed: make programs")
        return place

    return found


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home folder, with the folder `work` in it."""
    (tmp_path / "work").mkdir()
    return tmp_path


@pytest.fixture
def start(home: Path) -> Callable[..., str]:
    """start(command, *words, env={}): runs a command in `work`, and gives what it printed. AssertionError where it
    fails.
    """

    def run(*words: Any, env: Mapping[str, str] = {}, seconds: float = 600) -> str:
        kept = {name: os.environ[name] for name in HELD if name in os.environ}
        kept |= {"HOME": str(home), "OPENAI_API_KEY": "none", **env}
        done = subprocess.run(
            [str(word) for word in words], cwd=home / "work", env=kept, timeout=seconds, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:]
        return done.stdout

    return run
