"""The examples for Ray, run on a cluster of this machine. `make ray` installs what they need."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import daguerre

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own
    ray = pytest.importorskip("ray", reason="Ray is not installed: run make ray")
    import httpx2
    from ray import serve

ROOT = Path(__file__).parents[2]
PORT = 18417
URL = f"http://127.0.0.1:{PORT}"
ASK = {"max_tokens": 16, "temperature": 0}
pytestmark = pytest.mark.filterwarnings("default")


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    ray.cloudpickle.register_pickle_by_value(module)
    return module


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A cluster that believes to have more processors than this machine, so that replicas find room."""
    os.environ["RAY_AUTH_MODE"] = "disabled"  # or Ray writes a token into the home of who runs this
    environment = {"env_vars": {"OMP_NUM_THREADS": "1"}}
    ray.init(num_cpus=8, include_dashboard=False, object_store_memory=100 << 20, runtime_env=environment)
    yield
    serve.shutdown()
    ray.shutdown()


@pytest.fixture
def deploy(cluster: None) -> Iterator[Callable[..., None]]:
    """deploy(**options): run the application until the end of the test."""
    module = example("ray_serve")

    def run(**options: Any) -> None:
        serve.start(http_options={"host": "127.0.0.1", "port": PORT, "request_timeout_s": 120})
        serve.run(module.application(options))

    yield run
    serve.delete("default")


def replicas() -> list[int]:
    """The processes of the replicas that run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().startswith(b"ray::ServeReplica"):
                found.append(int(folder.name))
        except OSError:
            continue
    return sorted(found)


def wait_until(holds: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.2)


def ask(number: int) -> tuple[int, str]:
    """Status and text of the answer to a request. Every request has one: 0 and a reason, where the connection broke."""
    try:
        response = httpx2.post(f"{URL}/v1/completions", json=ASK | {"prompt": f"def f{number}("}, timeout=120)
    except httpx2.TransportError as error:
        return 0, repr(error)
    body = response.text
    return response.status_code, json.loads(body)["choices"][0]["text"] if response.status_code == 200 else body


def test_a_replica_is_killed_under_load_and_no_request_is_lost_without_an_error(
    deploy: Callable[..., None], record_property: Callable[[str, object], None]
) -> None:
    deploy(min_replicas=2, max_replicas=2)
    before = replicas()
    assert len(before) == 2
    alone = daguerre.load()
    stop, answers = threading.Event(), dict[int, tuple[int, str]]()

    def load(first: int) -> None:
        number = first
        while not stop.is_set():
            answers[number] = (-1, "no answer")
            answers[number] = ask(number)
            number += 8

    with ThreadPoolExecutor(8) as pool:
        loads = [pool.submit(load, first) for first in range(8)]
        wait_until(lambda: sum(status == 200 for status, _ in answers.values()) >= 40, 120)
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: len(replicas()) == 2 and set(replicas()) != set(before), 120)
        so_far = len(answers)
        wait_until(lambda: len(answers) >= so_far + 16, 120)
        stop.set()
    for one in loads:
        one.result()
    statuses = [status for status, _ in answers.values()]
    record_property("answers by status", {status: statuses.count(status) for status in set(statuses)})
    assert -1 not in statuses
    assert all(status == 200 or status >= 500 or status == 0 for status in statuses)
    assert statuses.count(200) > 40
    assert all(text for _, text in answers.values())
    for number in sorted(answers)[::10]:
        if answers[number][0] == 200:
            assert answers[number][1] == alone.generate(f"def f{number}(", 16, temperature=0).text
    assert [ask(number)[0] for number in range(20)] == [200] * 20


def test_more_replicas_come_with_a_longer_queue(deploy: Callable[..., None]) -> None:
    deploy(min_replicas=1, max_replicas=2, queue=2)
    assert len(replicas()) == 1
    stop = threading.Event()

    def load(first: int) -> None:
        number = first
        while not stop.is_set():
            ask(number)
            number += 1

    with ThreadPoolExecutor(12) as pool:
        loads = [pool.submit(load, 1000 * first) for first in range(12)]
        try:
            wait_until(lambda: len(replicas()) == 2, 120)
        finally:
            stop.set()
    for one in loads:
        one.result()


def test_every_route_is_there_and_streams(deploy: Callable[..., None]) -> None:
    deploy()
    assert httpx2.get(f"{URL}/ready", timeout=30).json() == {"status": "ready"}
    assert "vllm:num_requests_waiting" in httpx2.get(f"{URL}/metrics", timeout=30).text
    with httpx2.stream(
        "POST", f"{URL}/v1/completions", json=ASK | {"prompt": "def f(", "stream": True}, timeout=60
    ) as r:
        lines = [line for line in r.iter_lines() if line]
    assert len(lines) > 2 and lines[-1] == "data: [DONE]"


def test_an_option_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown option 'models'"):
        example("ray_serve").Options.read({"models": "default"})


def test_files_are_answered_once_though_the_run_is_killed(cluster: None, tmp_path: Path) -> None:
    folder, out = tmp_path / "requests", tmp_path / "answers"
    folder.mkdir()
    for name in ("a", "b", "c"):
        lines = [
            {
                "custom_id": f"{name}{n}",
                "method": "POST",
                "url": "/v1/completions",
                "body": ASK | {"prompt": f"def {name}{n}("},
            }
            for n in range(200)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [sys.executable, ROOT / "examples" / "ray_data.py", folder, out, "--together", "2"]
    environment = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}

    def answered() -> int:
        return sum(path.read_bytes().count(b"\n") for path in out.glob("*.jsonl"))

    process = subprocess.Popen(command, env=environment, start_new_session=True)
    wait_until(lambda: process.poll() is not None or answered() >= 30, 120)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -9
    time.sleep(5)  # Ray ends the actors of a driver that is gone
    first = {path.name: path.read_bytes()[: path.read_bytes().rfind(b"\n") + 1] for path in out.glob("*.jsonl")}
    assert 30 <= answered() < 600
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for name in ("a", "b", "c"):
        data = (out / f"{name}.jsonl").read_bytes()
        assert data.startswith(first.get(f"{name}.jsonl", b""))
        rows = [json.loads(line) for line in data.splitlines()]
        assert sorted(row["custom_id"] for row in rows) == sorted(f"{name}{n}" for n in range(200))
        assert {row["response"]["status_code"] for row in rows} == {200}
