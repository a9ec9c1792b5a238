"""A router process with the keys of several owners, in front of two backends that do what a test says."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from daguerre.http.settings import hash_of
from scripted_backends import Scripted, scripted
from server.processes import COMMAND, Routing, wait_until

SAY = {"messages": [{"role": "user", "content": "Say hello."}]}
PATH = "/v1/chat/completions"
BACKEND = """
[[backends]]
name = "{name}"
url = "{url}"
model = "m"
operations = ["chat", "responses"]
price = {{ request = {price}, output = 4.0 }}
"""


def refused(*words: str | Path, **environment: str) -> str:
    """What a command says that does not start."""
    env = {**os.environ, **environment}
    asked = [*COMMAND, *map(str, words)]
    done = subprocess.run(asked, check=False, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    return done.stderr


def keys_file(folder: Path, *owners: str) -> Path:
    """A file of keys: that of an owner is "key-" and its name."""
    path = folder / "keys"
    path.write_text("".join(f"{hash_of(f'key-{owner}')} {owner}\n" for owner in owners))
    return path


def bearer(owner: str) -> dict[str, str]:
    """The header with the key of an owner."""
    return {"authorization": f"Bearer key-{owner}"}


@dataclass
class Routed:
    """The router, its backends "a", which costs less, and "b", and the log of its decisions."""

    process: Routing
    a: Scripted
    b: Scripted
    log: Path

    def ask(self, body: Any = SAY, owner: str = "ana", **headers: str) -> httpx2.Response:
        sent = {"content": body} if isinstance(body, bytes) else {"json": body}
        return self.process.client.post(PATH, headers=bearer(owner) | headers, **sent)

    def line(self, found: httpx2.Response) -> dict[str, Any]:
        """The line of an answer in the log, once it is there."""
        lines = list[dict[str, Any]]()

        def is_there() -> bool:
            given = self.log.read_bytes().splitlines(keepends=True) if self.log.exists() else []
            all_ = [json.loads(one) for one in given if one.endswith(b"\n")]
            lines[:] = [one for one in all_ if one.get("id") == found.headers["x-route-id"]]
            return bool(lines)

        wait_until(is_there)
        return lines[0]


@contextmanager
def routed(folder: Path, *owners: str, more: str = "", server: str = "") -> Iterator[Routed]:
    """A router, whose configuration has `more`, and `server` in the table of that name; without owners without keys."""
    one, two = Scripted(), Scripted()
    with scripted(one, two):
        text = "".join(BACKEND.format(name=name, url=each.url, price=price)
                       for name, each, price in (("a", one, 0.001), ("b", two, 0.01)))  # fmt: skip
        keys = f'keys_file = "{keys_file(folder, *owners)}"\n' if owners else ""
        text += f'{more}\n[server]\nlog = "{folder / "log"}"\nstate = "{folder / "state"}"\n{keys}{server}'
        (folder / "route.toml").write_text(text)
        with Routing("--config", str(folder / "route.toml")) as process:
            yield Routed(process, one, two, folder / "log")
