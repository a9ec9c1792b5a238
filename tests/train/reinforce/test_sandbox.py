"""Real processes that sleep, allocate, and open sockets."""

import os
import select
import sys

import pytest

from daguerre.errors import InputError, UnsupportedError
from daguerre.train.reinforce.sandbox import Sandbox


@pytest.fixture(autouse=True, scope="module")
def allowed() -> None:
    """Not every container lets a process limit itself."""
    try:
        Sandbox()
    except UnsupportedError as error:
        pytest.skip(str(error))


def score(program: str, seconds: float = 60.0) -> float:
    return Sandbox(seconds, 256).reward([sys.executable, "-I", "-S", "-c", program], "2 + 2 =", "4")


def test_a_command_reads_the_answer_and_prints_its_reward():
    assert score("import json, sys; print('a word'); print(json.load(sys.stdin)['answer'] == '4' and .5)") == 0.5
    assert score("pass") == 1


@pytest.mark.parametrize("program", ["raise SystemExit(3)", "print('much')", "print('nan')"])
def test_failures_score_nothing(program):
    assert score(program) == 0


def test_a_command_that_sleeps_is_stopped():
    assert score("import time; print(1, flush=True); time.sleep(600)", seconds=0.5) == 0


def test_what_a_command_started_ends_with_it(tmp_path):
    """It holds a pipe open, whose end is read once it is gone."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as pipe:
        child = f"import time; pipe = open({str(path)!r}, 'wb', 0); pipe.write(b'begun'); print(flush=True)"
        child += "; time.sleep(600)"
        started = f"subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE)"
        assert score(f"import subprocess, sys; {started}.stdout.readline()") == 1
        assert pipe.read(5) == b"begun"
        assert select.select([pipe], [], [], 30)[0] and pipe.read(1) == b""


def test_a_command_by_a_relative_path(tmp_path, monkeypatch):
    script = tmp_path / "check"
    script.write_text("#!/bin/sh\necho 0.25\n")
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert Sandbox(20, 256).reward(["./check"], "", "") == 0.25


def test_a_command_that_allocates_is_stopped():
    assert score("b = bytearray(100 << 20)") == 1
    assert score("b = bytearray(400 << 20)") == 0


def test_a_command_that_opens_a_socket_is_refused():
    assert score("import _socket") == 1
    assert score("import _socket; _socket.socket()") == 0


def test_a_command_that_does_not_exist():
    with pytest.raises(InputError, match="not found"):
        Sandbox().reward(["no-such-command"], "", "")
