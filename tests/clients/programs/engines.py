"""Servers of one published model as processes: `daguerre serve`, and llama-server beside it."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from served import serving

NAME = "coder"
"""What the model is called."""


@contextmanager
def daguerre(command: str, file: str) -> Iterator[str]:
    """The address of `daguerre serve` with a model's file."""
    with serving(command, models=("--model", f"{NAME}={file}")) as one:
        yield one.url
        assert one.alive(), "the server ended while a program used it"


@contextmanager
def llama_server(command: str, file: str) -> Iterator[str]:
    """The address of llama-server with the same file: its chat template, 8,192 tokens, one request at a time."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = [command, "-m", file, "--alias", NAME, "--port", port, "--jinja", "-c", "16384", "-np", "1"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_healthy(process, url)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def _wait_until_healthy(process: subprocess.Popen[bytes], url: str) -> None:
    for _ in range(600):
        assert process.poll() is None, f"llama-server ended with {process.returncode}"
        try:
            urllib.request.urlopen(f"{url}/health").close()
            return
        except urllib.error.URLError:
            time.sleep(0.2)
    raise AssertionError("llama-server did not start")
