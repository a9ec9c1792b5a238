"""A process for each thing that is timed: `python -m daguerre.evals.bench.worker`, which speaks in lines of JSON.

The first line it reads is a task: {"task": a name of TASKS, ...}. A side answers {"ready": facts}, and each {"go":
number} with {"timing": ...}. Any other task answers {"progress": [what, done, total]} on the way and {"result": ...} at
the end. An error is {"error": one line}. What libraries print goes to standard error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from threading import Timer
from typing import IO, Any

from daguerre.errors import DaguerreError, DataError, InputError
from daguerre.evals.bench.job import remarks
from daguerre.evals.workers import Progress
from daguerre.models import processor

LIMIT = 900.0
"""Seconds after which a process that does not answer is ended."""
PACKAGES = ("torch", "transformers", "diffusers", "llama-cpp-python", "gguf")
TORCH_LIMITS = {
    "avx2": ("avx2", "AVX2", "AVX2"),
    "avx512": ("avx512", "AVX512_CORE", "AVX512"),
    "avx512_vnni": ("avx512", "AVX512_CORE_VNNI", "AVX512"),
    "avx512_bf16": ("avx512", "AVX512_CORE_BF16", "AVX512"),
    "amx": ("avx512", "AVX512_CORE_AMX", "AVX512"),
}
"""What keeps PyTorch, oneDNN and MKL to an instruction set of `models.processor`."""


def environment(threads: int) -> dict[str, str]:
    """A worker's variables. Where DAGUERRE_ISA names an instruction set, PyTorch is kept to the same one."""
    values = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    level = processor.chosen()
    if level is not None:
        names = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
        values |= dict(zip(names, TORCH_LIMITS[level], strict=True))
    return values


class Worker:
    """The leading process's end of a worker, which has that many threads.

    command: another program that speaks in lines of JSON, here by a module of Python; `task` is its first line.
    variables: of its environment, beside those of every worker.
    """

    def __init__(
        self,
        task: dict[str, Any] | None,
        threads: int,
        command: Sequence[str] = (sys.executable, "-m", "daguerre.evals.bench.worker"),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the process
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=os.environ | environment(threads) | dict(variables or {}),
        )
        self.pid = self._process.pid
        if task is not None:
            self.send(task | {"threads": threads})

    def send(self, message: dict[str, Any]) -> None:
        """One line; DataError when the process is gone."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise DataError(f"the process ended: {self._last_words()}") from None

    def receive(self) -> dict[str, Any]:
        """The next answer. DataError with its one line for an error, and for a process that ends or hangs."""
        assert self._process.stdout is not None
        timer = Timer(LIMIT, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise DataError(f"the process ended: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise DataError(answer["error"])
        return answer

    def result(self, progress: Progress) -> Any:
        """The result of a task that is not a side."""
        while "result" not in (answer := self.receive()):
            progress(*answer["progress"])
        return answer["result"]

    def finish(self) -> None:
        """Let the process end by itself."""
        self._process.communicate()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _last_words(self) -> str:
        self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return lines[-1] if lines else f"status {self._process.returncode}"


def in_worker(task: dict[str, Any], threads: int, progress: Progress) -> Any:
    """The result of a task in a separate process."""
    worker = Worker(task, threads)
    try:
        return worker.result(progress)
    finally:
        worker.close()


Send = Callable[[dict[str, Any]], None]


def _side(task: dict[str, Any], send: Send, received: IO[str]) -> None:
    from daguerre.evals.bench.job import BenchJob, prompts
    from daguerre.evals.bench.sides import make

    job = BenchJob.of(task["job"])
    run, texts = make(job), prompts(job)
    send({"ready": {"versions": versions()}})
    for line in received:
        number = json.loads(line)["go"]
        send({"timing": asdict(run(texts[number % len(texts)]))})


def _measured(module: str) -> Callable[..., None]:
    """A task that is the function `measure(options, progress)` of a module beside this one."""

    def task(values: dict[str, Any], send: Send, received: IO[str]) -> None:
        import importlib

        measure = importlib.import_module(f"daguerre.evals.bench.{module}").measure
        send({"result": measure(values["options"], lambda *progress: send({"progress": progress}))})

    return task


TASKS: dict[str, Callable[..., None]] = {
    "side": _side,
    **{name: _measured(name) for name in ("rows", "batch", "infill", "context", "modes", "families")},
}


def versions() -> dict[str, str]:
    """Versions of what this process may compute with, and remarks on them."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name) + remarks.get(name, "")
        except metadata.PackageNotFoundError:
            continue
    return found


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # prints of libraries are not answers

    def send(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    import torch

    task = json.loads(sys.stdin.readline())
    torch.set_num_threads(task["threads"])
    try:
        if task["task"] not in TASKS:
            raise InputError(f"no task is called {task['task']!r}")
        TASKS[task["task"]](task, send, sys.stdin)
    except DaguerreError as error:
        send({"error": str(error)})
    except Exception as error:  # a peer may fail in any way; the others go on
        send({"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"})
        raise


if __name__ == "__main__":
    main()
