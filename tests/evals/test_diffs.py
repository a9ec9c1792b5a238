"""The frozen held-out diffs: what a hunk is, how they are made, and that the shipped ones keep the rules."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import pytest

from daguerre.errors import DataError
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.corpus import diffs
from daguerre.train.corpus.diffs import (
    CONTEXT_TOKENS,
    EARLIER,
    MIN_LINES,
    NUM_HUNKS,
    REGION_TOKENS,
    changed_regions,
    freeze_diffs,
    load_diffs,
)
from daguerre.train.corpus.sources import heldout_splits

LINES = [f"value_{i} = compute(first_{i}, second_{i})\n" for i in range(60)]


def changed(*places: int) -> str:
    return "".join("changed_line = compute(other)\n" if i in places else line for i, line in enumerate(LINES))


def test_a_region_has_the_change_and_three_lines_on_either_side(tokenizer: Tokenizer) -> None:
    (region,) = changed_regions("".join(LINES), changed(30), tokenizer)

    context, old, new = region
    assert old == "".join(LINES[27:34])
    assert new == old.replace(LINES[30], "changed_line = compute(other)\n")
    assert "".join(LINES[:27]).endswith(context)
    assert 0 < len(tokenizer.encode(context)) <= CONTEXT_TOKENS


def test_what_is_no_hunk(tokenizer: Tokenizer) -> None:
    text = "".join(LINES)

    assert len(list(changed_regions(text, changed(10, 40), tokenizer))) == 2
    assert not list(changed_regions(text, text, tokenizer))
    assert not list(changed_regions(text, changed(0), tokenizer)), "no text before it"
    assert not list(changed_regions(text, changed(*range(20, 45)), tokenizer)), "too long"
    assert not list(changed_regions("a\nb\nc\nd\ne\n", "a\nb\nc\nx\ne\n", tokenizer)), "too short"
    assert not list(changed_regions(text, text.replace(LINES[30], ""), tokenizer)), "only deleted"
    assert not list(changed_regions(text, text.replace(LINES[30], "    " + LINES[30]), tokenizer)), "only spaces"


def wheel(folder: Path, version: str, text: str, terms: str = "MIT") -> None:
    folder.mkdir(exist_ok=True)
    with ZipFile(folder / f"h11-{version}-py3-none-any.whl", "w") as file:
        about = f"Metadata-Version: 2.1\nName: h11\nVersion: {version}\nLicense-Expression: {terms}\n"
        file.writestr(f"h11-{version}.dist-info/METADATA", about)
        file.writestr("h11/a.py", text)
        file.writestr("h11/windows.py", text.replace("\n", "\r\n"))


def test_hunks_are_made_from_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diffs, "EARLIER", {"h11": "1"})
    wheel(tmp_path / "old", "1", "".join(LINES))
    wheel(tmp_path / "new", "2", changed(10, 25, 40, 50))

    made = freeze_diffs(tmp_path / "new", tmp_path / "old", tmp_path / "out.json", num=3)

    assert len(made) == 3
    assert {(hunk.file, hunk.version, hunk.old_version, hunk.license) for hunk in made} == {
        ("h11/a.py", "2", "1", "MIT")
    }
    assert made[0].sha256 == diffs.sha256(changed(10, 25, 40, 50))
    assert made == freeze_diffs(tmp_path / "new", tmp_path / "old", tmp_path / "again.json", num=3)
    assert (tmp_path / "out.json").read_bytes() == (tmp_path / "again.json").read_bytes()

    wheel(tmp_path / "other", "2", changed(10), "GPL-3.0-only")
    with pytest.raises(DataError, match="not known to be permissive"):
        freeze_diffs(tmp_path / "other", tmp_path / "old", tmp_path / "out.json")
    with pytest.raises(DataError, match="has 0 wheels of h11"):
        freeze_diffs(tmp_path, tmp_path / "old", tmp_path / "out.json")
    monkeypatch.setattr(diffs, "EARLIER", {"numpy": "1"})
    with pytest.raises(DataError, match="numpy is not a package of the frozen held-out sample"):
        freeze_diffs(tmp_path / "new", tmp_path / "old", tmp_path / "out.json")


def test_the_shipped_hunks_keep_the_rules(tokenizer: Tokenizer) -> None:
    hunks, splits = load_diffs(), heldout_splits()

    assert len(hunks) == NUM_HUNKS
    assert len({hunk.key for hunk in hunks}) == NUM_HUNKS
    assert {hunk.package for hunk in hunks} == set(EARLIER)
    for hunk in hunks:
        assert splits[hunk.package] == "test"
        assert hunk.old_version == EARLIER[hunk.package] != hunk.version
        assert hunk.new.count("\n") >= MIN_LINES - 1
        for region in (hunk.old, hunk.new):
            assert REGION_TOKENS[0] <= len(tokenizer.encode(region)) <= REGION_TOKENS[1]
        assert hunk.context
        assert hunk.old != hunk.new
