"""`daguerre train` as a newcomer runs it: in a terminal of 80 columns, from a folder; and a first model."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import termios
from email import message
from pathlib import Path

import pytest

from commands import PROGRAM, daguerre

SMALL = ("--set", "steps=2", "--set", "stages.0.length=64", "--set", "stages.0.sequences=1", "--set", "loaders=0")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A package of the standard library, in a folder of its own."""
    shutil.copytree(Path(message.__file__).parent, tmp_path / "src" / "email")
    return tmp_path


def in_terminal(*arguments: str, folder: Path, columns: int = 80) -> tuple[int, str]:
    """The exit status, and what a terminal shows."""
    process, screen = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.environ.pop("COLUMNS", None)
        os.environ["TERM"] = "xterm-256color"
        os.execv(PROGRAM, [PROGRAM, *arguments])
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    out = b""
    while True:
        try:
            ready, _, _ = select.select([screen], [], [], 300)
            part = os.read(screen, 65536) if ready else b""
        except OSError:
            break
        if not part:
            break
        out += part
    os.close(screen)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), out.decode("utf-8", errors="replace")


def lines_of(shown: str) -> list[str]:
    """What stood in a line of the terminal at any time, without colors."""
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    return [line for line in re.split(r"[\r\n]+", plain) if line.strip()]


def test_adapting_says_everything_within_eighty_columns(folder: Path) -> None:
    arguments = ("train", "--from", "default", "src", "--out", "run", "--max-minutes", "20", *SMALL)
    status, shown = in_terminal(*arguments, folder=folder)
    lines = lines_of(shown)
    text = " ".join(" ".join(lines).split())

    assert status == 0, shown
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("loading PyTorch and reading src")
    for words in (
        "held out, never trained on: ",
        "before training: ",
        "tokens a second: ",
        "step 2",
        "held-out files: ",
    ):
        assert words in text
    assert "email/" in text
    assert "try it: daguerre generate -m run/model" in text


def test_a_first_model_from_a_folder(folder: Path) -> None:
    ran = subprocess.run(
        [PROGRAM, "train", "tiny", "src", "--out", "run", "--set", "steps=3", "--set", "minutes=0.0"],
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "model: run/model\n"
    assert "lzma that knows the training text" in ran.stderr
    assert "it writes, for example:\n    def " in ran.stderr
    written = daguerre("generate", "def ", "-m", "run/model", "--max-tokens", "4", cwd=folder)
    assert written.returncode == 0, written.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tiny",), "--data"),
        (("tiny", "src", "--data", "src"), "leave out one of the two"),
        (("tiny", "nowhere"), "no such folder: nowhere"),
        (("tiny", "src", "--set", "optim.moun_lr=0.1"), "optim.muon_lr"),
        (("small_", "src"), "'small'"),
    ],
)
def test_mistakes_are_one_line(folder: Path, arguments: tuple[str, ...], words: str) -> None:
    ran = daguerre("train", *arguments, cwd=folder)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert words in ran.stderr.splitlines()[-1]
