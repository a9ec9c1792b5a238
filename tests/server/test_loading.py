"""A server whose model takes long to load: it answers meanwhile, and says so."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from server.processes import wait_until

SCRIPT = """
import sys, time
from pathlib import Path
import daguerre
from daguerre.errors import CheckpointError
from daguerre.server.models import ModelPool
from daguerre.server.run import run_server
from daguerre.http.settings import Settings

read = {}

def load():
    read["slow"] = 0.25
    while not (said := Path(sys.argv[1]).read_text()):
        time.sleep(0.05)
    if said == "fail":
        raise CheckpointError("the file is damaged")
    return daguerre.load()

try:
    run_server(ModelPool({"slow": load}, read=read), Settings(), "127.0.0.1", 0)
except CheckpointError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
"""


@contextmanager
def begun(path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, which is ended at the end, and where it listens."""
    path.write_text("")
    with subprocess.Popen([sys.executable, "-c", SCRIPT, str(path)], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            found = re.search(r"loading slow; .*(http://\S+)/ready", process.stderr.readline())
            assert found
            yield process, found[1]
        finally:
            process.kill()


def test_a_server_that_loads_says_so_and_requests_wait(tmp_path: Path) -> None:
    answers = list[httpx2.Response]()
    body = {"prompt": "x = ", "max_tokens": 2}
    with begun(tmp_path / "go") as (process, url), httpx2.Client(base_url=url, timeout=120) as client:
        wait_until(lambda: "read" in client.get("/ready").json())
        health, ready = client.get("/health"), client.get("/ready")
        assert (health.status_code, health.json()) == (200, {"status": "loading", "model": "slow", "read": 0.25})
        assert (ready.status_code, ready.json()["status"]) == (503, "loading")
        asking = threading.Thread(target=lambda: answers.append(client.post("/v1/completions", json=body)))
        asking.start()
        (tmp_path / "go").write_text("go")
        asking.join(120)
        assert answers[0].status_code == 200
        assert process.stderr is not None and any("serving slow at" in line for line in process.stderr)
        assert client.get("/ready").json() == {"status": "ready"}
        process.terminate()
        process.communicate(timeout=60)
        assert process.returncode == 0


def test_a_server_whose_model_cannot_be_loaded_ends_with_the_reason(tmp_path: Path) -> None:
    with begun(tmp_path / "go") as (process, _):
        (tmp_path / "go").write_text("fail")
        _, said = process.communicate(timeout=120)
    assert process.returncode == 2 and said.rstrip().endswith("the file is damaged")
