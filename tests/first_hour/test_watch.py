"""`--watch`: the text is drawn in the terminal while it is refined, and standard output has the text alone."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from commands import Done, Running, daguerre

FAST = ("--watch", "--watch-rate", "0")


Process = Running | subprocess.Popen[bytes]
Begin = Callable[[tuple[str, ...], tuple[int, int, int], Path, dict[str, str]], Process]
STARTED = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from daguerre.cli import main
main()
"""


def started(arguments: tuple[str, ...], files: tuple[int, int, int], folder: Path, known: dict[str, str]) -> Process:
    """A command in a process of its own, which Ctrl-C interrupts even where this one is deaf to it: what a shell runs
    in the background is, and all that it starts.
    """
    given, out, error = files
    words = [sys.executable, "-c", STARTED, *arguments]
    return subprocess.Popen(words, cwd=folder, env=known, stdin=given, stdout=out, stderr=error)


def drawn(
    *arguments: str, folder: Path, begin: Begin = Running, stop: bytes | None = None, **environment: str
) -> tuple[int, str, str]:
    """The exit status, standard output, and what a terminal of 80 by 24 gets on standard error. stop: Ctrl-C when this
    is drawn.
    """
    screen, other = pty.openpty()
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    known = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    pipe, end = os.pipe()
    files = os.open(os.devnull, os.O_RDONLY), end, other
    process = begin(arguments, files, folder, known | {"TERM": "xterm-256color"} | environment)
    for file in files:
        os.close(file)
    shown = b""
    while select.select([screen], [], [], 240)[0]:
        try:
            part = os.read(screen, 65536)
        except OSError:  # nobody has the other side any more
            part = b""
        if not part:
            break
        shown += part
        if stop is not None and stop in shown:
            process.send_signal(signal.SIGINT)
            stop = None
    else:
        process.send_signal(signal.SIGKILL)
    with open(pipe, encoding="utf-8") as written:
        out = written.read()
    os.close(screen)
    return process.wait(240), out, shown.decode("utf-8", errors="replace")


def plain(*arguments: str, folder: Path) -> Done:
    return daguerre(*arguments, cwd=folder)


@pytest.mark.parametrize(
    "arguments",
    [
        ("generate", "import os\nimport ", "--max-tokens", "12", "--mode", "block"),
        (
            "infill",
            "def area(w, h):\n\treturn ",
            "\n\nprint(area(2, 3))  # 幅 ☃\n",
            "--max-tokens",
            "6",
            "--mode",
            "block",
        ),
        ("fill", "a = <gap>\nb = <gap>\n", "--max-tokens", "4"),
        ("edit", "file.py", "--lines", "40:40", "--max-tokens", "6", "--mode", "block"),
        ("complete", "file.py:40", "--max-tokens", "6"),
    ],
)
def test_the_text_is_drawn_and_standard_output_is_what_it_was(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text("".join(f"value_{n} = {n}  # {'x' * 90}\n" for n in range(60)))
    status, out, shown = drawn(*arguments, *FAST, folder=tmp_path)
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown))

    assert status == 0, shown
    assert out == plain(*arguments, folder=tmp_path).stdout
    assert "step 1, " in shown and "a forward" in shown
    assert max(len(line) for line in lines if not line.startswith("daguerre: ")) <= 80
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")  # the cursor is there again


def test_without_a_terminal_nothing_is_drawn_and_it_is_said(tmp_path: Path) -> None:
    ran = plain("generate", "import os\n", "--max-tokens", "4", *FAST, folder=tmp_path)

    assert ran.returncode == 0
    assert ran.stderr.startswith("daguerre: --watch draws in a terminal")
    assert "\x1b" not in ran.stdout + ran.stderr


def test_no_color_is_honored(tmp_path: Path) -> None:
    asked = ("generate", "import os\nimport ", "--max-tokens", "8", "--mode", "block", *FAST)
    _, _, colored = drawn(*asked, folder=tmp_path)
    _, _, gray = drawn(*asked, folder=tmp_path, NO_COLOR="1")

    assert re.search(r"\x1b\[[0-9;]*3[1-3]m", colored)
    assert not re.search(r"\x1b\[[0-9;]*3[1-3]m", gray)


def test_ctrl_c_leaves_a_clean_terminal(tmp_path: Path) -> None:
    """In the second of 200 steps, each of which is shown for half a second."""
    long = ("--min-tokens", "200", "--max-tokens", "200", "--no-stop-loops")
    asked = ("generate", "import os\n", *long, "--mode", "ar", "--watch", "--watch-rate", "2")
    status, out, shown = drawn(*asked, folder=tmp_path, begin=started, stop=b"step 2, ")

    assert (status, out) == (130, "")
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    after = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown[shown.rindex("\x1b[?25h") :])
    assert after.strip() == "daguerre: interrupted"
    assert "Traceback" not in shown


def test_what_cannot_be_watched_is_one_line(tmp_path: Path) -> None:
    for more, words in (
        (("--watch", "-n", "2"), "leave out --n"),
        (("--watch-rate", "2"), "--watch-rate is for --watch"),
        (("--watch", "--audit", "a", "--audit-key", "b"), "leave out --watch or --audit"),
    ):
        ran = plain("generate", "x", *more, folder=tmp_path)
        assert (ran.returncode, ran.stdout) == (2, "")
        assert words in ran.stderr
