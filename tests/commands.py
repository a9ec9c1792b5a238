"""`daguerre ARGUMENTS` in a process of its own, without the seconds that importing PyTorch takes.

A process imports once and forks for each command. The command has its own directory, environment, files and exit
status, as a started one has; how the program starts is tested by those tests that start it.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from torchless import HAS_TORCH, skip_if_absent

PROGRAM = str(Path(sys.executable).with_name("daguerre"))
LENGTH = struct.Struct("@q")
Done = subprocess.CompletedProcess[str]


def daguerre(
    *arguments: str | Path,
    cwd: Path | None = None,
    stdin: str | bytes | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 240,
) -> Done:
    """Run a command to its end. stdin: what it reads; env: in place of this process's."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        given.write(stdin.encode() if isinstance(stdin, str) else stdin or b"")
        given.seek(0)
        running = Running(arguments, (given.fileno(), out.fileno(), error.fileno()), cwd, env)
        status = running.wait(timeout)
        out.seek(0)
        error.seek(0)
        done = subprocess.CompletedProcess(running.words, status, out.read().decode(), error.read().decode())
    skip_if_absent(done.stderr)
    return done


class Running:
    """A command that was begun, with these files as its standard input, output and error. One runs at a time."""

    def __init__(
        self,
        arguments: tuple[str | Path, ...],
        files: tuple[int, int, int],
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.words = [PROGRAM, *map(str, arguments)]
        self._channel = _parent().channel
        self._status: int | None = None
        asked = {"words": self.words, "cwd": str(cwd or Path.cwd()), "env": dict(os.environ if env is None else env)}
        content = json.dumps(asked).encode()
        socket.send_fds(self._channel, [LENGTH.pack(len(content))], files)
        self._channel.sendall(content)
        self.pid = self._number(120)

    def poll(self) -> int | None:
        """The exit status; None while it runs."""
        if self._status is None and select.select([self._channel], [], [], 0)[0]:
            self._status = self._number(None)
        return self._status

    def wait(self, timeout: float = 240) -> int:
        """The exit status. TimeoutExpired after so many seconds, and the command is killed."""
        if self._status is None:
            try:
                self._status = self._number(timeout)
            except TimeoutError:
                os.kill(self.pid, signal.SIGKILL)
                self._status = self._number(None)
                raise subprocess.TimeoutExpired(self.words, timeout) from None
        return self._status

    def send_signal(self, number: int) -> None:
        """Send a signal to the command."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _number(self, timeout: float | None) -> int:
        self._channel.settimeout(timeout)
        return int(LENGTH.unpack(_read(self._channel, LENGTH.size))[0])


class Parent:
    """The process that has imported everything."""

    def __init__(self) -> None:
        self.channel, other = socket.socketpair()
        paths = [str(Path(__file__).parent), *filter(None, sys.path)]
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from commands import serve; serve({other.fileno()})"],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                pass_fds=[other.fileno()],
            )

    def close(self) -> None:
        """End the process."""
        self.channel.close()
        self._process.wait(30)


@cache
def _parent() -> Parent:
    parent = Parent()
    atexit.register(parent.close)
    return parent


def _read(channel: socket.socket, size: int) -> bytes:
    out = b""
    while len(out) < size:
        part = channel.recv(size - len(out))
        if not part:
            raise EOFError("the other side is gone")
        out += part
    return out


def serve(number: int) -> None:
    """Run the commands that a socket asks for, until it is closed."""
    for name in ("cli", "model", "server.app", "view.picture", *(("evals.report",) if HAS_TORCH else ())):
        import_module(f"daguerre.{name}")

    with socket.socket(fileno=number) as channel:
        while True:
            begin, files, _, _ = socket.recv_fds(channel, LENGTH.size, 3)
            if not begin:
                return
            asked = json.loads(_read(channel, LENGTH.unpack(begin)[0]))
            pid = os.fork()
            if pid == 0:
                channel.close()
                command(asked, files)
            for file in files:
                os.close(file)
            channel.sendall(LENGTH.pack(pid))
            channel.sendall(LENGTH.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))


def command(asked: Mapping[str, Any], files: list[int]) -> None:
    """Become the command, and end as it does."""
    from daguerre.cli import main

    for place, file in enumerate(files):
        os.dup2(file, place)
        os.close(file)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv = asked["words"]
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    status: Any = 0
    try:
        main()
    except SystemExit as stopped:
        status = stopped.code
    except BaseException:
        traceback.print_exc()
        status = 1
    if not isinstance(status, int | None):
        print(status, file=sys.stderr)  # noqa: T201
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)
