"""Whatever llama.cpp there is, beside which part "real" measures a GGUF file: node-llama-cpp in a folder of npm's
packages, or else `llama-server` and `llama-perplexity` among the programs of PATH.

Each is a process that has the file loaded and writes greedily, on as many threads as Daguerre, with batches of 512 and
its defaults otherwise: rows repacked where its build does that, keys and values in half floats.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from daguerre.errors import DataError, InputError
from daguerre.evals.bench.worker import Worker

SCRIPT = Path(__file__).with_suffix(".mjs")
PACKAGE = "node-llama-cpp"
SERVER, PERPLEXITY = "llama-server", "llama-perplexity"
WAYS = (
    f"put {SERVER} and {PERPLEXITY} on PATH (https://github.com/ggml-org/llama.cpp, its releases have both built), or "
    f"`npm install --prefix DIR {PACKAGE}` and give --llama-cpp DIR"
)
"""How to have llama.cpp's column."""
STARTING = 600.0
"""Seconds after which a server that does not answer is ended."""
ESTIMATE = re.compile(r"Final estimate: PPL = ([\d.]+)")


class LlamaCppPeer(Protocol):
    """A process that has a file loaded. DataError where it cannot do what it is asked for."""

    pid: int

    def ask(self, name: str, **values: Any) -> dict[str, Any]:
        """The answer to a question of `real_side.ASKS`."""

    def close(self) -> None:
        """End the process."""


class LineEngine:
    """An engine that speaks in lines of JSON."""

    def __init__(self, command: Sequence[str], threads: int, variables: Mapping[str, str] | None = None) -> None:
        self._worker = Worker(None, threads, command, variables)
        self.pid = self._worker.pid

    def ask(self, name: str, **values: Any) -> dict[str, Any]:
        """See `LlamaCppPeer`."""
        self._worker.send({"ask": name, **values})
        found: dict[str, Any] = self._worker.receive()["answer"]
        return found

    def finish(self) -> None:
        """Let it end by itself, and wait for what it has begun."""
        self._worker.finish()

    def close(self) -> None:
        """End the process."""
        self._worker.close()


class NodeEngine(LineEngine):
    """node-llama-cpp, by llama_cpp.mjs beside this file."""

    def __init__(self, packages: Path, threads: int) -> None:
        node = shutil.which("node")
        if node is None:
            raise DataError(f"{PACKAGE} needs the program `node`, which is not on PATH")
        super().__init__([node, str(SCRIPT)], threads)
        self._packages = packages

    def load(self, model: Path, threads: int, context: int) -> dict[str, Any]:
        """Load a file; seconds, the release and the flags."""
        given = {"packages": str(self._packages.resolve()), "model": str(model), "threads": threads, "context": context}
        return self.ask("load", **given) | {"built": _built(self.pid)}


class ServerEngine:
    """`llama-server`, which is asked over HTTP. more: other options of it."""

    def __init__(self, program: str, threads: int, more: Sequence[str] = ()) -> None:
        self._program, self._threads, self._more = program, threads, more
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the process
        self._process: subprocess.Popen[str] | None = None
        self.pid = 0

    def load(self, model: Path, threads: int, context: int) -> dict[str, Any]:
        """Start the server; seconds until it answers, the release and the flags."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        options = {"-m": model, "-c": context, "-t": threads, "-tb": threads, "-b": 512, "-ub": 512, "-np": 1,
                   "-ngl": 0, "--host": "127.0.0.1", "--port": port}  # fmt: skip
        command = [
            self._program,
            *(str(part) for option in options.items() for part in option),
            "--no-warmup",
            *self._more,
        ]
        began = time.perf_counter()
        self._process = subprocess.Popen(command, stdout=self._errors, stderr=self._errors, text=True)
        self.pid = self._process.pid
        self._wait()
        seconds = self.clock() if threads == 1 else time.perf_counter() - began
        return {
            "seconds": seconds,
            "release": _version(self._program),
            "flags": self._flags(),
            "built": _built(self.pid),
        }

    def clock(self) -> float:
        """The processor's time on one thread, else the wall's."""
        return processor_time(self.pid) if self._threads == 1 else time.perf_counter()

    def ask(self, name: str, **values: Any) -> dict[str, Any]:
        """See `LlamaCppPeer`."""
        assert name == "write"
        return self._write(**values)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _wait(self) -> None:
        """Until the server says that it is well."""
        assert self._process is not None
        ends = time.monotonic() + STARTING
        while self._process.poll() is None and time.monotonic() < ends:
            with suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=5):
                return
            time.sleep(0.02)
        raise DataError(f"{SERVER} does not start: {self._said().strip()[-300:]}")

    def _write(self, prompt: list[int], num: int) -> dict[str, Any]:
        asked = {"prompt": prompt, "n_predict": num + 1, "temperature": 0, "top_k": 1, "ignore_eos": True,
                 "cache_prompt": False, "stream": True, "return_tokens": True}  # fmt: skip
        times, began = list[tuple[float, int]](), self.clock()
        tokens = list[int]()
        for event in self._events(asked):
            tokens += event.get("tokens") or []
            times.append((self.clock(), len(tokens)))
        (first, at_first), (last, _) = times[0], next(one for one in times if one[1] == len(tokens))
        return {"prompt": first - began, "token": (last - first) / max(1, len(tokens) - at_first), "tokens": tokens}

    def _events(self, asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/completion", json.dumps(asked).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=STARTING) as answer:
                for line in answer:
                    if line.startswith(b"data: {"):
                        yield json.loads(line[6:])
        except OSError as error:
            raise DataError(f"{SERVER}: {error}") from None

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    def _flags(self) -> str:
        found = re.search(r"system_info: (.*)", self._said())
        return found[1].strip() if found else ""


def llama_cpp(packages: str | None, threads: int) -> NodeEngine | ServerEngine:
    """What there is, not yet loaded. DataError, which says how to have it, where there is none; InputError for a folder
    without it.
    """
    if packages is not None:
        check_packages(packages)
        return NodeEngine(Path(packages), threads)
    program = shutil.which(SERVER)
    if program is None:
        raise DataError(f"there is no llama.cpp here: {WAYS}")
    return ServerEngine(program, threads)


def check_packages(packages: str) -> None:
    """InputError for a folder in which npm has not installed node-llama-cpp."""
    if not (Path(packages) / "node_modules" / PACKAGE).is_dir():
        raise InputError(f"{packages} has no {PACKAGE}: npm install --prefix {packages} {PACKAGE}")


def perplexity_nats(model: Path, text: str, windows: int, length: int, threads: int) -> float | None:
    """Nats of the second halves of the windows of a text by `llama-perplexity`; None where PATH has none."""
    program = shutil.which(PERPLEXITY)
    if program is None:
        return None
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        options = {"-m": model, "-f": file.name, "-c": length, "-b": length, "--chunks": windows, "-t": threads,
                   "-ngl": 0}  # fmt: skip
        command = [program, *(str(part) for option in options.items() for part in option)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = ESTIMATE.search(done.stdout + done.stderr)
    if found is None:
        raise DataError(f"{PERPLEXITY} gives no estimate: {done.stderr.strip()[-300:]}")
    return windows * (length - length // 2 - 1) * math.log(float(found[1]))


def proportional_memory(pid: int | str) -> int | None:
    """Bytes of a process, of pages that several have in memory its share (PSS); None where the system does not say."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return None


def processor_time(pid: int) -> float:
    """Seconds of the processors that another process has had, in ticks of the system's clock. DataError where the
    system does not say.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        raise DataError("this system does not say what processor time another process has had: use 2 threads") from None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _built(pid: int) -> str | None:
    """The instruction set that llama.cpp's products were compiled for, where it is a library of its own."""
    with suppress(OSError):
        found = re.search(r"libggml-cpu-(\w+)\.so", Path(f"/proc/{pid}/maps").read_text(encoding="utf-8"))
        return found[1] if found else None
    return None


def _version(program: str) -> str:
    """The release, and what it was built with."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = re.findall(r"^(?:version: )?((?:\d|built with ).*)", done.stdout + done.stderr, re.MULTILINE)
    return f"{SERVER} {', '.join(found) or 'of an unknown release'}"
