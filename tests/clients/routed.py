"""`daguerre route` as a process, in front of backends."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from served import Served

LOG = "decisions.jsonl"
ROUTE = """
overrides = ["slo_ms", "backend", "step", "max_cost", "cache", "explore"]

[server]
log = "{log}"

[[backends]]
name = "blocks"
url = "{url}/v1"
model = "default"
body = {{ daguerre = {{ mode = "block" }} }}
operations = ["chat", "completions", "responses", "embeddings", "fim", "edit", "decisions"]
needs = ["suffix", "pins", "spans", "edit", "schema", "strict_schema", "tools", "logprobs", "daguerre"]
context = 100000
price = {{ output = 0.1 }}
quality = {{ default = 0.5, plan = 0.2, reason = 0.2 }}

[[backends]]
name = "one-by-one"
url = "{url}/v1"
model = "default"
body = {{ daguerre = {{ mode = "ar" }} }}
operations = ["chat", "completions", "responses", "embeddings", "fim", "edit", "decisions"]
needs = ["suffix", "schema", "strict_schema", "tools", "logprobs", "daguerre"]
context = 100000
price = {{ output = 1.0 }}
quality = {{ default = 0.9 }}

[steps.plan]
quality = 0.8
[steps.reason]
quality = 0.8
"""
"""Two ways to decode the same model. Its context is given as larger than it is, so that its own error is seen."""


@contextmanager
def routing(command: str, folder: Path, config: str) -> Iterator[Served]:
    """A router of a configuration, whose file is in a folder, on a free port, until the block ends. AssertionError
    where it does not start.
    """
    path = folder / "route.toml"
    path.write_text(config, encoding="utf-8")
    words = [command, "route", "--config", str(path), "--port", "0"]
    one = Served(subprocess.Popen(words, stderr=subprocess.PIPE, text=True))
    reader: threading.Thread | None = None
    try:
        assert one.process.stderr is not None
        for line in one.process.stderr:
            one.lines.append(line)
            if found := re.match(r"daguerre: routing to .* at (http://\S+)", line):
                one.url = found[1]
                break
        assert one.url, f"the router did not start: {one.lines}"
        reader = threading.Thread(target=lambda: one.lines.extend(one.process.stderr or ()), daemon=True)
        reader.start()
        yield one
    finally:
        one.process.terminate()
        one.process.wait(60)
        if reader is not None:
            reader.join(10)
        assert one.process.stderr is not None
        one.process.stderr.close()


def requests_in(log: Path) -> list[dict[str, Any]]:
    """The lines of requests in a log of decisions, which may still be written."""
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True) if log.exists() else []
    values = [json.loads(line) for line in lines if line.endswith("\n")]
    return [one for one in values if "decision" in one]


def scripts() -> ModuleType:
    """tests/scripted_backends.py, whose folder is not on the path of the clients."""
    name = "scripted_backends"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / f"{name}.py")
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


class Backends:
    """A backend that answers each path with the same JSON, and chat where it has none; streams are chat's.

    breaks  streams break off after two words
    """

    def __init__(self, answers: Mapping[str, Any], *, breaks: bool = False) -> None:
        self._scripts, self._answers, self._breaks = scripts(), answers, breaks
        self.one = self._scripts.Scripted(reply=self._reply)
        self._running = self._scripts.scripted(self.one)

    def __enter__(self) -> Self:
        self._running.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._running.__exit__(None, None, None)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.one.port}"

    def _reply(self, body: dict[str, Any]) -> Any:
        if body.get("stream") is True:
            chunks = self._scripts.events("one", "two")
            return (
                self._scripts.Reply(stream=chunks[:2], ends="reset")
                if self._breaks
                else self._scripts.Reply(stream=chunks)
            )
        found = self._answers.get(self.one.paths[-1])
        return self._scripts.Reply() if found is None else self._scripts.Reply(body=json.dumps(found).encode())
