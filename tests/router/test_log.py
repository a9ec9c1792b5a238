"""Lines of the log: hashes of texts, and logs of an earlier version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from daguerre.router.log import replay, text_hash
from daguerre.router.store import Store
from router.test_openapi import BODIES
from router.test_proxy import SAY, ask, routed
from scripted_backends import Scripted

SALT = b"s" * 32


def test_equal_texts_have_equal_hashes_in_one_store_and_others_in_another(tmp_path: Path) -> None:
    def hashes(store: Store) -> list[str]:
        other = SAY | {"messages": [{"role": "user", "content": "Say hallo."}]}
        with routed(Scripted(), store=store) as (url, log):
            for number, body in enumerate(
                (SAY, dict(reversed(SAY.items())) | {"temperature": 0.5, "seed": 3}, other), 1
            ):
                ask(url, body)
                log.of_requests(number)
            return [line["text_hash"] for line in log.of_requests(3)]

    first, second, third = hashes(Store(tmp_path / "state.db"))
    assert first == second != third and len(first) == 32
    assert hashes(Store(tmp_path / "state.db")) == [first, second, third], "the salt is in the state"
    assert first not in hashes(Store(None)), "another state has another salt"


def changes(body: Any) -> Any:
    """A body with other texts: each string that is no name of a role, a type or a model ends with something else."""
    if isinstance(body, dict):
        same = ("role", "type", "model", "daguerre", "metadata", "tools", "response_format", "unheard_of")
        return {name: one if name in same else changes(one) for name, one in body.items()}
    if isinstance(body, list):
        return [changes(one) for one in body]
    return f"{body}!" if isinstance(body, str) else body + 1 if isinstance(body, int) else body


def test_another_text_has_another_hash_on_every_route() -> None:
    for body in (body for bodies in BODIES.values() for body in bodies):
        assert text_hash(body, SALT) == text_hash(body | {"max_tokens": 99, "text": {"format": 1}}, SALT)
        for name in set(body) - {
            "model",
            "tools",
            "response_format",
            "metadata",
            "daguerre",
            "unheard_of",
            "max_tokens",
        }:
            if name != "text":
                assert text_hash(body, SALT) != text_hash(body | {name: changes(body[name])}, SALT), (name, body)


def test_the_state_can_be_read_by_its_owner_alone(tmp_path: Path) -> None:
    Store(tmp_path / "state.db").close()
    assert (tmp_path / "state.db").stat().st_mode & 0o077 == 0


def test_a_log_of_the_first_version_decides_again_as_it_did(tmp_path: Path) -> None:
    with routed(Scripted(), Scripted()) as (url, log):
        for number in range(1, 4):
            ask(url)
            lines = log.of_requests(number)
    path = log.write(tmp_path / "log.jsonl")
    assert replay(path).differing == ()
    for line in lines:
        for each in line["decision"]["candidates"]:
            assert each.pop("first_p50") == 500.0
        line.pop("text_hash")
    assert replay(log.write(path)).differing == (2, 3, 4), "a number is missing"
    log[0]["version"] = 1
    assert replay(log.write(path)).differing == ()
    lines[1]["decision"]["candidates"][0]["first_p95"] += 1e-9
    assert replay(log.write(path)).differing == (3,)
    assert json.loads(path.read_text().splitlines()[0])["version"] == 1
