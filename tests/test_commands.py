"""A forked command is like a started one: output, errors, status, input, directory and environment."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from commands import PROGRAM, daguerre


def test_a_forked_command_does_what_a_started_one_does(subtests: pytest.Subtests, tmp_path: Path) -> None:
    """Commands that succeed, that are refused, and that read bytes which are not UTF-8."""
    (tmp_path / "a.txt").write_text("a = 1\n")
    env = os.environ | {"COLUMNS": "90"}
    for words, given in (
        (("--version",), b""),
        (("generate", "-", "--max-tokens", "2", "--mode", "ar"), b"import o"),
        (("generate", "-"), b"caf\xe9"),
        (("inspect", "nothing"), b""),
        (("generate", "x", "--max-tokens", "2", "--json", "--backend", "torch", "--mode", "ar", "--nonsense"), b""),
        (("edit", "a.txt", "--lines", "9:9"), b""),
    ):
        with subtests.test(" ".join(words)):
            forked = daguerre(*words, cwd=tmp_path, stdin=given, env=env)
            started = subprocess.run(
                [PROGRAM, *words], cwd=tmp_path, input=given, capture_output=True, env=env, check=False
            )
            assert (forked.returncode, forked.stdout, forked.stderr) == (
                started.returncode,
                started.stdout.decode(),
                started.stderr.decode(),
            )


def test_a_command_that_takes_too_long_is_killed_and_the_next_one_runs() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        daguerre("generate", "def f", "--max-tokens", "900", "--mode", "ar", "--backend", "torch", timeout=0.01)
    assert daguerre("--version").returncode == 0
