"""Standard streams that are closed, full or left: one line and status 2, or the status of a broken pipe; never status 0
with output lost, and never a traceback.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from daguerre.cli import all_commands, app, whole_command
from daguerre.commands.streams import BROKEN_PIPE

ENV = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
REQUEST = ("--max-tokens", "2", "--backend", "torch")
PRINTING: tuple[tuple[str, ...], ...] = (
    ("--version",),
    ("generate", "--help"),
    ("models", "--json"),
    ("concepts", "list"),
    ("generate", "x", "--json", *REQUEST),
)
full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")


def run(arguments: tuple[str, ...], redirected: str, **env: str) -> tuple[int, str]:
    """Status and standard error of a command of the shell."""
    ran = subprocess.run(
        ["bash", "-c", f'"$@" {redirected}', "bash", sys.executable, "-m", "daguerre", *arguments],
        check=False,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=ENV | env,
        text=True,
        timeout=120,
    )
    return ran.returncode, ran.stderr


def assert_one_line(status: int, said: str, *words: str) -> None:
    assert status == 2, said
    assert said.startswith("daguerre: ") and len(said.splitlines()) == 1, said
    assert all(word in said for word in words), said


@full
@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_a_full_device_is_one_line(arguments: tuple[str, ...]) -> None:
    assert_one_line(*run(arguments, ">/dev/full"), "standard output cannot be written (No space left")


@full
def test_a_full_device_is_noticed_whatever_is_buffered() -> None:
    for unbuffered in ("", "1"):
        assert_one_line(*run(("models",), ">/dev/full", PYTHONUNBUFFERED=unbuffered), "cannot be written")


@pytest.mark.parametrize("arguments", [PRINTING[0], PRINTING[-1]], ids=" ".join)
def test_closed_output_is_one_line_before_any_work(arguments: tuple[str, ...]) -> None:
    assert_one_line(*run(arguments, ">&-"), "standard output is closed")


@pytest.mark.parametrize("arguments", [("decide", "-", "--yes", "a", "--no", "b"), ("chat",)])
def test_closed_input_is_one_line(arguments: tuple[str, ...]) -> None:
    assert_one_line(*run(arguments, "<&-"), "standard input is closed")


def test_closed_input_is_no_matter_where_nothing_is_read() -> None:
    assert run(("models",), "<&-") == (0, "")


@pytest.mark.parametrize("arguments", PRINTING[1:4], ids=" ".join)
def test_a_reader_that_is_gone_ends_a_command_quietly(arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing) as pipe:
        ran = subprocess.run(
            [sys.executable, "-m", "daguerre", *arguments],
            check=False,
            stdout=pipe,
            stderr=subprocess.PIPE,
            env=ENV,
            timeout=120,
        )
    assert (ran.returncode, ran.stderr) == (BROKEN_PIPE, b"")


def test_all_streams_closed_is_a_status() -> None:
    assert run(("models",), ">&- 2>&- <&-")[0] == 2


def test_what_is_printed_arrives() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "daguerre", "models", "--json"], check=True, capture_output=True, env=ENV, timeout=120
    )
    assert json.loads(ran.stdout) and not ran.stderr


def flags(made: Any) -> list[Any]:
    import typer

    params = [param for one in all_commands(made) for param in one.get_params(typer.Context(one))]
    return [param for param in params if getattr(param, "is_bool_flag", False)]


def test_flags_show_no_type_in_the_help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert {param.metavar for param in flags(get_command(app))} == {None}, "then this changes nothing"
    assert {param.metavar for param in flags(whole_command())} == {""}
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("generate", "decide", "train"):
        assert whole_command()([name, "--help"], standalone_mode=False) == 0
        said = capsys.readouterr().out
        assert "--help" in said and "bool" not in said.lower().replace("boolean", "")
