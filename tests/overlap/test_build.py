"""Files of an index: whole or absent, and damage is noticed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daguerre.errors import DataError, InputError
from daguerre.overlap import build
from daguerre.overlap.index import Overlap

CORPUS = {"sha256": "one", "bytes": 30}


def write(out: Path, *texts: bytes, **options: Any) -> None:
    build.write_index(out, ((text, {"package": "p"}) for text in texts), CORPUS, **options)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    write(tmp_path / "index", b"a passage of text", b"another one")
    return tmp_path / "index"


def test_an_index_says_what_it_is_of(index: Path) -> None:
    meta = json.loads((index / "meta.json").read_text())
    assert meta["corpus"] == CORPUS
    assert meta["segments"] == [{"documents": 2, "bytes": 30}]
    assert {path.name for path in index.iterdir()} == {"meta.json", *meta["files"]}
    assert all((index / name).stat().st_size == file["bytes"] for name, file in meta["files"].items())
    Overlap.open(index).verify()


def test_the_same_corpus_gives_the_same_index(index: Path, tmp_path: Path) -> None:
    write(tmp_path / "again", b"a passage of text", b"another one")
    write(tmp_path / "other", b"a passage of text", b"another two")

    identities = [Overlap.open(tmp_path / name).sha256 for name in ("index", "again", "other")]
    assert identities[0] == identities[1] != identities[2]


def test_the_index_of_another_corpus_is_refused(index: Path) -> None:
    Overlap.open(index, "one")
    with pytest.raises(DataError, match="index of another corpus"):
        Overlap.open(index, "two")


def test_a_folder_without_an_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is no index: make one with"):
        Overlap.open(tmp_path)


def test_every_file_that_is_cut_or_gone_is_noticed(index: Path) -> None:
    for name in json.loads((index / "meta.json").read_text())["files"]:
        content = (index / name).read_bytes()
        (index / name).write_bytes(content[:-1])
        with pytest.raises(DataError, match=f"{name} is damaged"):
            Overlap.open(index)
        (index / name).unlink()
        with pytest.raises(DataError, match=f"{name} is damaged"):
            Overlap.open(index)
        (index / name).write_bytes(content)
    Overlap.open(index)


def test_every_file_whose_content_changed_is_noticed_when_verified(index: Path) -> None:
    for name in json.loads((index / "meta.json").read_text())["files"]:
        content = (index / name).read_bytes()
        (index / name).write_bytes(bytes([content[0] ^ 1]) + content[1:])
        with pytest.raises(DataError, match=f"{name} is damaged"):
            Overlap.open(index).verify()
        (index / name).write_bytes(content)
    Overlap.open(index).verify()


def test_a_damaged_order_never_invents_a_match(subtests: pytest.Subtests, index: Path) -> None:
    order, text = index / "order-0.bin", "a passage of texts, another ones"
    size = order.stat().st_size
    for seed in range(20):
        order.write_bytes(np.random.default_rng(seed).integers(0, 14, size // 4, np.uint32).tobytes())
        with subtests.test(seed=seed), contextlib.suppress(DataError):
            for match in Overlap.open(index).longest_matches(text, min_length=3):
                assert text[match.start : match.end] in "a passage of text\nanother one"


@pytest.mark.parametrize(
    ("content", "complaint"), [("{", "not JSON"), ('{"format": 99}', "another format"), ("[]", "another format")]
)
def test_a_strange_meta_is_refused(index: Path, content: str, complaint: str) -> None:
    (index / "meta.json").write_text(content)
    with pytest.raises(DataError, match=complaint):
        Overlap.open(index)


def interrupted() -> Iterator[tuple[bytes, dict[str, Any]]]:
    yield b"a new text", {}
    raise KeyboardInterrupt


def test_an_interrupted_build_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        build.write_index(tmp_path / "index", interrupted(), CORPUS)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_build_leaves_an_older_index_as_it_was(index: Path) -> None:
    before = Overlap.open(index).sha256
    with pytest.raises(KeyboardInterrupt):
        build.write_index(index, interrupted(), CORPUS)
    assert [path.name for path in index.parent.iterdir()] == ["index"]
    assert Overlap.open(index).sha256 == before
    Overlap.open(index).verify()


def test_an_interrupted_sort_leaves_nothing_behind(tmp_path: Path) -> None:
    def stop(phase: str, share: float) -> None:
        if phase.startswith("sort"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "index", b"a passage", progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_a_new_index_replaces_an_older_one_and_what_a_killed_build_left(index: Path) -> None:
    (index.parent / "index.123.tmp").mkdir()
    write(index, b"something else")
    assert [path.name for path in index.parent.iterdir()] == ["index"]
    assert len(Overlap.open(index).longest_matches("something else", min_length=5)) == 1
    assert Overlap.open(index).longest_matches("a passage of text", min_length=5) == []


def test_a_folder_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(DataError, match="exists and is no index"):
        write(tmp_path / "mine", b"text")
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"


def test_a_corpus_folder_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "meta.json").write_text('{"format": 1, "splits": {}}')
    with pytest.raises(DataError, match="exists and is no index"):
        write(tmp_path / "corpus", b"text")


def test_the_plan_is_what_is_written(tmp_path: Path) -> None:
    texts = [bytes([97 + number % 26]) * 5000 for number in range(50)]
    planned = build.plan(sum(map(len, texts)), len(texts))
    write(tmp_path / "index", *texts)
    assert planned.segments == 1
    size = sum(path.stat().st_size for path in (tmp_path / "index").iterdir())
    assert size == pytest.approx(planned.disk, rel=0.05)


def test_less_memory_means_more_segments() -> None:
    assert build.plan(10**9, 1000, 2 * 10**9).segments == 5
    assert build.plan(10**9, 1000, 2 * 10**9).memory == 2 * 10**9
    with pytest.raises(InputError, match="256 MiB of memory or more"):
        build.plan(10**9, 1000, 10**6)


def test_an_unwritable_place_is_an_error_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write"):
        write(tmp_path / "file" / "index", b"text")
