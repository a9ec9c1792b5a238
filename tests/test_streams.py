"""Standard streams that are closed, full or left: one line and status 2, or the status of a broken pipe; never status 0
with output lost, and never a traceback.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

import commands
from daguerre import __version__
from daguerre.cli import main, whole_command
from daguerre.commands.asking import generate
from daguerre.commands.group import all_commands
from daguerre.commands.streams import BROKEN_PIPE
from torchless import skip_if_absent

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
        timeout=600,
    )
    return ran.returncode, ran.stderr


def forked(arguments: tuple[str, ...], output: int) -> tuple[int, str]:
    """The same of a command that is forked, with a file as its standard output."""
    with open(os.devnull, "rb") as given, tempfile.TemporaryFile() as said:
        status = commands.Running(arguments, (given.fileno(), output, said.fileno()), env=ENV).wait()
        said.seek(0)
        text = said.read().decode()
    skip_if_absent(text)
    return status, text


def assert_one_line(status: int, said: str, *words: str) -> None:
    assert status == 2, said
    assert said.startswith("daguerre: ") and len(said.splitlines()) == 1, said
    assert all(word in said for word in words), said


@full
def test_a_full_device_is_one_line(subtests: pytest.Subtests) -> None:
    with open("/dev/full", "wb") as device:
        for arguments in PRINTING:
            with subtests.test(" ".join(arguments)):
                assert_one_line(*forked(arguments, device.fileno()), "standard output cannot be written (No space left")


@full
def test_a_full_device_is_noticed_whatever_is_buffered() -> None:
    for unbuffered in ("", "1"):
        assert_one_line(*run(PRINTING[3], ">/dev/full", PYTHONUNBUFFERED=unbuffered), "cannot be written")


def test_closed_output_is_one_line_before_any_work() -> None:
    for arguments in (PRINTING[0], PRINTING[-1]):
        assert_one_line(*run(arguments, ">&-"), "standard output is closed")


def test_closed_input_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert_one_line(*run(("decide", "-", "--yes", "a", "--no", "b"), "<&-"), "standard input is closed")
    monkeypatch.setattr(sys, "stdin", None)  # what a process has whose input is closed
    monkeypatch.setattr(sys, "argv", ["daguerre", "generate", "-"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert_one_line(int(stopped.value.code or 0), capsys.readouterr().err, "standard input is closed")


def test_closed_input_is_no_matter_where_nothing_is_read() -> None:
    assert run(PRINTING[3], "<&-") == (0, "")


def test_a_reader_that_is_gone_ends_a_command_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing) as pipe:
        for arguments in PRINTING[1:4]:
            assert forked(arguments, pipe.fileno()) == (BROKEN_PIPE, ""), arguments
        started = [sys.executable, "-m", "daguerre", *PRINTING[3]]
        ran = subprocess.run(started, check=False, stdout=pipe, stderr=subprocess.PIPE, env=ENV, timeout=600)
    assert (ran.returncode, ran.stderr) == (BROKEN_PIPE, b"")


def test_all_streams_closed_is_a_status() -> None:
    assert run(("models",), ">&- 2>&- <&-")[0] == 2


def test_what_is_printed_arrives() -> None:
    done = commands.daguerre("models", "--json", env=ENV)
    assert json.loads(done.stdout) and not done.stderr
    started = [sys.executable, "-m", "daguerre", "--version"]
    ran = subprocess.run(started, check=True, capture_output=True, env=ENV, text=True, timeout=600)
    assert __version__ in ran.stdout and not ran.stderr


def flags(made: Any) -> list[Any]:
    params = [param for one in all_commands(made) for param in one.get_params(typer.Context(one))]
    return [param for param in params if getattr(param, "is_bool_flag", False)]


def test_flags_show_no_type_in_the_help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer(add_completion=False)
    app.command()(generate)
    assert {param.metavar for param in flags(get_command(app))} == {None}, "then this changes nothing"
    assert {param.metavar for param in flags(whole_command())} == {""}
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("generate", "decide", "train"):
        assert whole_command()([name, "--help"], standalone_mode=False) == 0
        said = capsys.readouterr().out
        assert "--help" in said and "bool" not in said.lower().replace("boolean", "")
