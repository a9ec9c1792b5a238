"""A newcomer's tasks with real processes, on code that is not this project's.

What servers and clients say is kept here, what commands print in conftest.py.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

import daguerre
from commands import PROGRAM
from commands import daguerre as command_line

FOREIGN = inspect.getsource(json.JSONDecoder)
"""Code of the standard library."""


def does(task: str, *arguments: str, folder: Path, stdin: str | None = None) -> str:
    """What a command prints; it must succeed. The first of ours is started, and so are all where they are timed."""
    if arguments[0] == PROGRAM and task != "known length" and "DAGUERRE_FIRST_HOUR" not in os.environ:
        ran = command_line(*arguments[1:], cwd=folder, stdin=stdin)
    else:
        how: dict[str, Any] = {"cwd": folder, "capture_output": True, "text": True, "timeout": 240, "input": stdin}
        ran = subprocess.run(arguments, check=False, **how)
    assert ran.returncode == 0, f"{task}: {ran.stderr}"
    return ran.stdout


def note(task: str, seconds: float, seen: str) -> None:
    """Keep what the user saw, and how long it took."""
    if named := os.environ.get("DAGUERRE_FIRST_HOUR"):
        lines = "".join(f"    {line}\n" for line in seen.splitlines()[:12])
        with Path(named).open("a", encoding="utf-8") as file:
            file.write(f"{task}: {seconds:.1f} s\n\n{lines}\n")


def test_a_gap_of_known_length(tmp_path: Path) -> None:
    body = json.loads(
        does(
            "known length",
            *(PROGRAM, "infill", "def area(w, h):\n    return ", "\n\nprint(area(2, 3))\n", "--json"),
            *("--min-tokens", "5", "--max-tokens", "5"),
            folder=tmp_path,
        )
    )
    assert body["usage"]["completion_tokens"] == 5


def test_json_and_a_tool_call(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"]}
    (tmp_path / "schema.json").write_text(json.dumps(schema | {"additionalProperties": False}))
    (tmp_path / "tools.json").write_text(json.dumps([{"name": "open_file", "parameters": schema}]))
    out = does("JSON", PROGRAM, "generate", "settings = ", "--schema", "schema.json", folder=tmp_path)
    assert set(json.loads(out)) == {"name"}
    call = does(
        "a tool call",
        *(PROGRAM, "generate", "", "--tools", "tools.json", "--tool-choice", "open_file", "--one-call"),
        folder=tmp_path,
    )
    inside = re.fullmatch(r"<tool_call>(.*)</tool_call>\s*", call, flags=re.DOTALL)
    assert inside is not None
    assert json.loads(inside[1])["name"] == "open_file"


def test_regex_and_choices(tmp_path: Path) -> None:
    number = does("regex", PROGRAM, "generate", "port = ", "--regex", "[1-9][0-9]{3}", folder=tmp_path)
    assert re.fullmatch(r"[1-9][0-9]{3}\n", number)
    word = does(
        "choices", PROGRAM, "infill", "if x ", " None:\n", "--choices", "is", "--choices", "is not", folder=tmp_path
    )
    assert word in ("is\n", "is not\n")


def test_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    asked = (PROGRAM, "infill", "a = [1, ", "]\n", "--max-tokens", "4", "--mode", "block", "--picture", "canvas.png")
    does("a picture", *asked, folder=tmp_path)
    assert (tmp_path / "canvas.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_stream_in_python() -> None:
    began, shown, pieces = time.monotonic(), "", list[str]()
    for event in daguerre.load().stream("import os\nimport ", 12):
        pieces.append(event.committed[len(shown) :])
        shown = event.committed
    note("a stream", time.monotonic() - began, shown)
    assert event.result is not None and event.result.text == shown == "".join(pieces)
    assert shown


def test_choosing_a_mode(tmp_path: Path) -> None:
    for mode in ("ar", "speculative", "block", "full"):
        asked = (PROGRAM, "generate", "def mean(values):\n", "--max-tokens", "12", "--mode", mode, "--json")
        body = json.loads(does(f"mode {mode}", *asked, folder=tmp_path))
        assert body["usage"]["mode"] == mode


def test_a_decision(tmp_path: Path) -> None:
    asked = (PROGRAM, "decide", "-", "--label", "True", "--label", "None", "--before", "\n\ndebug = ")
    out = does("decide", *asked, folder=tmp_path, stdin=FOREIGN * 3)  # longer than the context
    assert out.startswith("answer: ")


def test_explaining_and_steering(tmp_path: Path) -> None:
    asked = (PROGRAM, "generate", "def total(values):\n", "--model", "concepts", "--max-tokens", "24")
    plain = does("explain", *asked, "--explain", folder=tmp_path)
    steered = does("steer", *asked, "--forbid", "lambda_expression", "--forbid-exactly", folder=tmp_path)
    assert plain.strip() and steered.strip()
    assert "lambda" not in steered


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[str]:
    """The address of `daguerre serve`."""
    yield from running("serve", folder, "serve")


def running(task: str, folder: Path, *arguments: str) -> Iterator[str]:
    """A command that listens, until it is not needed any more; yields its address."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    began = time.monotonic()
    with (folder / f"{task}.log").open("w") as log:
        process = subprocess.Popen([PROGRAM, *arguments, "--port", str(port)], cwd=folder, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        while True:
            assert process.poll() is None, (folder / f"{task}.log").read_text()
            assert time.monotonic() - began < 600
            try:
                httpx2.get(f"{address}/v1/models", timeout=5)
                break
            except httpx2.TransportError:
                time.sleep(0.1)
        note(task, time.monotonic() - began, address)
        yield address
    finally:
        process.terminate()
        process.wait(60)


def test_curl(server: str, folder: Path) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    body = json.dumps({"prompt": "def fib(n):\n    if n", "max_tokens": 7})
    asked = (curl, "-s", f"{server}/v1/completions", "-H", "content-type: application/json", "-d", body)
    assert json.loads(does("curl", *asked, folder=folder))["choices"][0]["text"]


def test_a_client_of_openai(server: str) -> None:
    began = time.monotonic()
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": "import os\n"}],
        "max_tokens": 8,
        "stream": True,
    }
    with httpx2.stream("POST", f"{server}/v1/chat/completions", json=body, timeout=60) as response:
        lines = [line for line in response.iter_lines() if line]
    note("a client", time.monotonic() - began, "\n".join(lines))
    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[0].removeprefix("data: "))["object"] == "chat.completion.chunk"


def test_an_editors_plugin(server: str) -> None:
    began = time.monotonic()
    body = {"input_prefix": FOREIGN * 3 + "\ndef mean(values):\n    return ", "input_suffix": "\n\n", "n_predict": 12}
    answer = httpx2.post(f"{server}/infill", json=body, timeout=60)
    note("an editor", time.monotonic() - began, answer.text[:500])
    assert answer.status_code == 200
    assert isinstance(answer.json()["content"], str)


def test_routing(server: str, folder: Path) -> None:
    (folder / "route.toml").write_text(
        f'[[backends]]\nname = "cheap"\nurl = "{server}/v1"\nmodel = "default"\n'
        "price = { input = 0.1, output = 0.2 }\nquality = { default = 0.9 }\n"
        f'[[backends]]\nname = "dear"\nurl = "{server}/v1"\nmodel = "default"\n'
        "price = { input = 1.0, output = 2.0 }\nquality = { default = 0.95 }\n"
    )
    for router in running("route", folder, "route", "--config", "route.toml"):
        began = time.monotonic()
        answer = httpx2.post(f"{router}/v1/completions", json={"prompt": "import os\n", "max_tokens": 4}, timeout=60)
        note("route", time.monotonic() - began, "\n".join(f"{k}: {v}" for k, v in answer.headers.items()))
        assert answer.status_code == 200, answer.text
        assert "cheap" in " ".join(f"{k}={v}" for k, v in answer.headers.items() if k.startswith("x-"))
