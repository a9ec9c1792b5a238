"""A model hub on 127.0.0.1, with what huggingface_hub asks for: revisions, lists of files, and files in parts."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".safetensors", ".gguf")
"""Endings of files that have a SHA-256; others have git's hash."""


@dataclass
class Hub:
    """Folders by the name of their repository, and what was asked.

    gated   repositories that nobody may read
    closed  repositories whose files nobody may read, though their names are told
    cut     names of files whose first download ends in the middle
    held    names of files whose downloads stop in the middle, and wait for `go_on`
    altered names of files of which another byte arrives
    whole   names of files that are sent from their beginning, whatever is asked
    asked   (method, path, range) of every request
    """

    folders: dict[str, Path]
    gated: set[str] = field(default_factory=set)
    closed: set[str] = field(default_factory=set)
    cut: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    go_on: threading.Event = field(default_factory=threading.Event)
    altered: set[str] = field(default_factory=set)
    whole: set[str] = field(default_factory=set)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    url: str = ""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append((self.command, path, self.headers.get("Range", "")))
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+)(?:/.*)?)?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        name = api[1] if api else file[1] if file else ""
        if name in self.hub.gated:
            return self._error(403, "GatedRepo")
        if name not in self.hub.folders:
            return self._error(404, "RepoNotFound")
        revision = (api[3] or "main") if api else file[2] if file else ""
        if revision not in ("main", "v1", COMMIT):
            return self._error(404, "RevisionNotFound")
        if api:
            return self._json(self._tree(name) if api[2] == "tree" else self._info(name), body)
        assert file is not None
        if name in self.hub.closed:
            return self._error(401, "GatedRepo")
        return self._file(self.hub.folders[name] / file[3], body)

    def _info(self, name: str) -> dict[str, object]:
        files = [
            {"rfilename": entry["path"], "size": entry["size"], "blobId": entry["oid"], "lfs": entry.get("lfs")}
            for entry in self._tree(name)
        ]
        return {"id": name, "modelId": name, "sha": COMMIT, "siblings": files, "tags": [], "private": False}

    def _tree(self, name: str) -> list[dict[str, object]]:
        folder = self.hub.folders[name]
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        out: list[dict[str, object]] = []
        for path in paths:
            content = path.read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            entry = {
                "type": "file",
                "path": path.relative_to(folder).as_posix(),
                "size": len(content),
                "oid": hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest(),
            }
            large = {"lfs": {"oid": digest, "sha256": digest, "size": len(content), "pointerSize": 130}}
            out.append(entry | (large if path.suffix in LARGE else {}))
        return out

    def _json(self, values: object, body: bool) -> None:
        content = json.dumps(values).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def _error(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _file(self, path: Path, body: bool) -> None:
        if not path.is_file():
            return self._error(404, "EntryNotFound")
        content, start = path.read_bytes(), 0
        digest = hashlib.sha256(content).hexdigest()
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start = 0 if path.name in self.hub.whole else int(found[1])
        if path.name in self.hub.altered:
            content = content[:-1] + bytes([content[-1] ^ 1])
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{digest if path.suffix in LARGE else digest[:40]}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if not body:
            return None
        if path.name in self.hub.cut and not start:
            self.hub.cut.discard(path.name)
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
            return None
        if path.name in self.hub.held:
            self.wfile.write(content[start : len(content) // 2])
            self.wfile.flush()
            self.hub.go_on.wait(60)
            self.close_connection = True
            return None
        self.wfile.write(content[start:])
        return None


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """The hub, under its `url`, until the block ends."""
    handler = type("Bound", (Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
