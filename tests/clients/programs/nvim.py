"""Neovim without a screen, whose keys a test types."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Nvim:
    """A running editor."""

    command: str
    socket: str

    def type(self, keys: str) -> None:
        """Keys as mappings write them, `<Esc>`."""
        self._ask("--remote-send", keys)

    def value(self, expression: str) -> str:
        """What an expression of Vim's gives."""
        return self._ask("--remote-expr", expression)

    def wait_for(self, expression: str, seconds: float = 60) -> None:
        """Until an expression is 1."""
        until = time.monotonic() + seconds
        while self.value(expression) not in ("1", "true"):
            assert time.monotonic() < until, self.value("execute('messages')")
            time.sleep(0.1)

    def _ask(self, *words: str) -> str:
        done = subprocess.run(
            [self.command, "--server", self.socket, *words], capture_output=True, text=True, timeout=60, check=False
        )
        return (done.stdout or done.stderr).strip()


@contextmanager
def editing(command: Path, home: Path, settings: str, file: Path, name: str = "init.vim") -> Iterator[Nvim]:
    """An editor of a file, with these settings, until the block ends."""
    (home / name).write_text(settings)
    one = Nvim(str(command), str(home / "nvim.sock"))
    words = [one.command, "--headless", "--listen", one.socket, "-u", str(home / name), "-i", "NONE", str(file)]
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin", "TERM": "xterm", "XDG_STATE_HOME": str(home)}
    process = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not Path(one.socket).exists():
            assert process.poll() is None, "the editor did not start"
            time.sleep(0.05)
        yield one
    finally:
        process.terminate()
        process.wait(30)


def filled(editor: Nvim, file: Path, line: int, is_shown: str, accept: str, ask: str = "") -> str:
    """The text of the file after a suggestion at the end of a line was shown, taken and written."""
    editor.type(f"{line}GA{ask}")
    editor.wait_for(is_shown)
    editor.type(accept)
    time.sleep(0.5)
    editor.type("<Esc>:write<CR>")
    editor.wait_for("&modified == 0")
    return file.read_text()
