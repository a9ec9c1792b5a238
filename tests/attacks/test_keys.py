"""One key against the others: none reads what another asked, waits for it longer than its share, or is locked out."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from attacks.routers import BACKEND, bearer, refused
from daguerre.http.settings import hash_of
from server.processes import Serving, wait_until

PLACES = 8
"""Samples, and requests, at once of each key."""
ASK = {"prompt": "import os\n", "max_tokens": 4}
ALONE = {"kind": "generate", "prompt": "import os\n", "max_tokens": 4, "detach": True}
LONG = ALONE | {"max_tokens": 250, "options": {"mode": "ar", "min_tokens": 250}}
LEAST = -1_000_000_000


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A server with the keys of ana, ben and eve, one without a name on the first line, and two in the environment."""
    folder = tmp_path_factory.mktemp("keys")
    hashes = {name: hash_of(f"key-{name}") for name in ("first", "ana", "ben", "eve")}
    lines = [digest if name == "first" else f"{digest} {name}" for name, digest in hashes.items()]
    (folder / "keys").write_text("\n".join(lines))
    (folder / "secret-place").mkdir()
    options = ("--keys", str(folder / "keys"), "--running-per-key", str(PLACES), "--max-running", "2")
    models = ("--model", "default", "--model", f"broken={folder / 'secret-place'}", "--body-timeout", "5")
    with Serving(*options, *models, environment={"DAGUERRE_API_KEYS": "key-zero,key-one"}) as one:
        yield one


def send(serving: Serving, method: str, path: str, owner: str, **more: Any) -> httpx2.Response:
    return httpx2.request(method, serving.url + path, headers=bearer(owner), timeout=120, **more)


def post(serving: Serving, path: str, body: Any, owner: str) -> httpx2.Response:
    return send(serving, "POST", path, owner, json=body)


def test_a_server_that_is_to_have_keys_and_finds_none_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# nobody yet\n\n")
    backend = BACKEND.format(name="a", url="http://127.0.0.1:1/v1", price=0)
    (tmp_path / "route.toml").write_text(f'{backend}[server]\nkeys_file = "{tmp_path / "keys"}"\n')
    assert "has no key" in refused("serve", "--port", "0", DAGUERRE_API_KEYS=",")
    assert "has no key" in refused("route", "--config", tmp_path / "route.toml", "--port", "0")


def test_keys_without_names_are_not_one_owner(serving: Serving, subtests: pytest.Subtests) -> None:
    key = post(serving, "/v1/daguerre/requests", ALONE, "one").json()["id"]
    kept = post(serving, "/v1/responses", {"input": "x", "max_output_tokens": 2}, "one").json()["id"]
    places = {f"/v1/daguerre/requests/{key}": ("GET", "DELETE"), f"/v1/responses/{kept}": ("GET", "DELETE")}
    for other in ("first", "zero", "ana"):
        for path, methods in places.items():
            for method in methods:
                with subtests.test(other=other, method=method, path=path):
                    assert send(serving, method, path, other).status_code == 404
        asked = {"id": key, "gap": 0, "position": 0}
        assert post(serving, "/v1/daguerre/candidates", asked, other).status_code == 404
        more = {"input": "y", "max_output_tokens": 2, "previous_response_id": kept}
        assert post(serving, "/v1/responses", more, other).status_code == 404
    for path in places:
        assert send(serving, "DELETE", path, "one").status_code == 200


def cached(found: httpx2.Response) -> int:
    return int(found.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_nobody_learns_what_another_has_asked(serving: Serving) -> None:
    body = ASK | {"prompt": "".join(f"secret_{number} = {number}\n" for number in range(60))}
    first, *others = [cached(post(serving, "/v1/completions", body, name)) for name in ("ana", "ben", "first", "ana")]
    assert first == others[0] == others[1] == 0 and others[2] > 0


def num_open(serving: Serving) -> float:
    """Samples that run or wait."""
    lines = httpx2.get(f"{serving.url}/metrics", timeout=120).text.splitlines()
    names = ("daguerre_num_requests_running{", "daguerre_num_requests_waiting{")
    return sum(float(line.split()[-1]) for line in lines if line.startswith(names))


def test_a_priority_ranks_the_requests_of_its_own_key(serving: Serving) -> None:
    hog = {"prompt": "import os\n", "max_tokens": 120, "daguerre": {"mode": "ar", "min_tokens": 120, "priority": LEAST}}
    with ThreadPoolExecutor(PLACES) as threads:
        many = [threads.submit(post, serving, "/v1/completions", hog, "eve") for _ in range(PLACES)]
        wait_until(lambda: num_open(serving) >= PLACES)
        assert post(serving, "/v1/completions", ASK, "ana").status_code == 200
        assert not all(one.done() for one in many)
        assert [one.result().status_code for one in many] == [200] * PLACES


def test_samples_count_and_so_do_those_that_nobody_waits_for(serving: Serving) -> None:
    for num in (128, PLACES + 1):
        found = post(serving, "/v1/completions", ASK | {"n": num, "temperature": 1.0}, "ben")
        assert found.status_code == 400 and found.json()["error"]["param"] == "n"
    begun = [post(serving, "/v1/daguerre/requests", LONG, "ben") for _ in range(PLACES)]
    assert [one.status_code for one in begun] == [202] * PLACES
    for body in (ASK, ASK | {"n": 2, "temperature": 1.0}):
        found = post(serving, "/v1/completions", body, "ben")
        assert (found.status_code, found.json()["error"]["code"]) == (429, "too_many_running")
    assert post(serving, "/v1/daguerre/requests", LONG, "ben").status_code == 429
    assert post(serving, "/v1/completions", ASK, "ana").status_code == 200
    for one in begun:
        path = f"/v1/daguerre/requests/{one.json()['id']}"
        assert send(serving, "DELETE", path, "ben").status_code == 200
    wait_until(lambda: post(serving, "/v1/completions", ASK | {"n": PLACES}, "ben").status_code == 200)


def test_a_model_that_cannot_be_loaded_tells_no_path(serving: Serving) -> None:
    found = post(serving, "/v1/completions", ASK | {"model": "broken"}, "ana")
    assert found.status_code == 503 and "secret-place" not in found.text and "Traceback" not in found.text
    listed = send(serving, "GET", "/v1/models", "ana")
    assert "secret-place" not in listed.text and "broken" in listed.text


def unfinished(serving: Serving, owner: str) -> socket.socket:
    """A connection with a request whose body never ends."""
    host, port = serving.url.removeprefix("http://").split(":")
    one = socket.create_connection((host, int(port)), timeout=60)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer key-{owner}\r\n"
    one.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n".encode() + b'{"prompt": "x')
    return one


def test_bodies_that_never_end_take_nobodys_place_and_are_ended(serving: Serving) -> None:
    stuck = [unfinished(serving, "ana") for _ in range(4 * PLACES)]
    try:
        for owner in ("ana", "ben"):
            assert post(serving, "/v1/completions", ASK, owner).status_code == 200
        for one in stuck:
            head, _, body = one.recv(65536).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 408") and b"connection: close" in head.lower()
            assert json.loads(body or one.recv(65536))["error"]["code"] == "body_timeout"
    finally:
        for one in stuck:
            one.close()
