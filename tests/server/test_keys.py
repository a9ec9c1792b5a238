"""Files and variables with keys: who owns what, and what no server starts with."""

from __future__ import annotations

from pathlib import Path

import pytest

from daguerre.errors import InputError
from daguerre.http.settings import Keys, hash_of, sites_of

ONE, TWO = hash_of("one"), hash_of("two")
WRONG: dict[str, tuple[str | None, str | None, str]] = {
    "an empty file": ("", None, "has no key"),
    "comments alone": ("# ana\n\n   # ben\n", None, "has no key"),
    "an empty file beside a variable": ("", "one", "has no key"),
    "an empty variable": (None, "", "has no key"),
    "commas": (None, " , ,", "has no key"),
    "commas beside a file": (ONE, ",", "has no key"),
    "a key twice in a file": (f"{ONE} ana\n{ONE.upper()} ben", None, "twice"),
    "a key twice in a variable": (None, "one, one", "twice"),
    "a key in both": (f"{ONE} ana", "two,one", "twice"),
    "a name twice": (f"{ONE} ana\n{TWO}  ana", None, "'ana' is there twice"),
    "a name that another key has without one": (f"{ONE} key {TWO[:8]}", "two", "twice"),
    "a key as it is": ("sk-plain", None, "line 1 .* has no SHA-256 hash"),
    "a weight of nothing": (f"{ONE} ana weight=0", None, "line 1 .*weight"),
    "a weight that is none": (f"{ONE} ana weight=nan", None, "weight"),
}


def test_what_gives_no_key_or_two_owners_one_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for name, (file, plain, says) in WRONG.items():
        with subtests.test(name):
            path = None if file is None else tmp_path / "keys"
            if path is not None:
                path.write_text(file or "")
            with pytest.raises(InputError, match=says):
                Keys.read(path, plain)
    assert Keys.read(None, None).owner(None) == ""


def test_an_owner_is_the_hash_of_its_key(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{ONE.upper()}\n{TWO} Ana of the team weight=2.5  # since May\n")
    keys = Keys.read(path, "three, four")
    assert [keys.owner(key) for key in ("one", "two", "three", " four ", "five", None)] == [
        *(ONE, TWO, hash_of("three"), hash_of("four")),
        *(None, None),
    ]
    names = [keys.name(keys.owner(key) or "") for key in ("one", "two", "three")]
    assert names == [f"key {ONE[:8]}", "Ana of the team", f"key {hash_of('three')[:8]}"]
    assert [keys.weight(keys.owner(key) or "") for key in ("one", "two")] == [1.0, 2.5]


def test_sites_are_named_as_browsers_do() -> None:
    given = ["https://Example.com/", "http://[::1]:3000", "*", "chrome-extension://abc"]
    assert sites_of(given) == ("https://example.com", "http://[::1]:3000", "*", "chrome-extension://abc")
    for wrong in ("example.com", "https://", "https://a/b", "https://a:b", "null", ""):
        with pytest.raises(InputError, match="no site"):
            sites_of([wrong])
