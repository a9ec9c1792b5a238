"""Listings of files and snippets, and what a model's folder says that it was trained to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import daguerre
from daguerre.errors import CheckpointError, InputError
from daguerre.instructions import MARKER, changed, changes, lettered, lines_of, listing, read_listing, tasks_in

LINES = st.lists(st.text(st.characters(exclude_characters="\n", codec="utf-8"), max_size=12), min_size=1, max_size=30)


@given(LINES)
def test_a_listing_is_read_back(lines: list[str]) -> None:
    text = "\n".join(lines) + "\n"
    assert lines_of(text) == lines
    assert read_listing(listing(lines)) == text
    assert read_listing("".join(f"b {line}\n" if line else "b\n" for line in lines)) == text


@given(LINES, st.data())
def test_changes_make_the_other_lines(lines: list[str], data: st.DataObject) -> None:
    other = [data.draw(st.sampled_from((line, line + "x", ""))) for line in lines]
    first = data.draw(st.integers(1, 30))
    said = changes(lines, other, first)
    assert changed(lines, said, first) == other
    assert (said == "None\n") == (lines == other)


def test_what_has_no_label_stays_as_it_is() -> None:
    assert read_listing("") == ""
    assert read_listing("12\n13 x\nreturn 1\n1.5\n") == "\nx\nreturn 1\n1.5\n"
    assert read_listing("1 x") == "x\n"  # cut by the most tokens


@pytest.mark.parametrize(
    "line", ["# ... existing code ...", "    # ... existing code ...", "// ... rest of code ...", "# ..."]
)
def test_markers_of_models_are_known(line: str) -> None:
    assert MARKER.fullmatch(line)
    assert lettered(["x = 1", line]) == "a x = 1\n...\n"


@pytest.mark.parametrize("line", ["...", "# existing code", "x = 1  # ... existing code ...", "# ... and so on"])
def test_other_lines_are_no_markers(line: str) -> None:
    assert not MARKER.fullmatch(line)


def test_a_snippet_has_as_many_lines_as_there_are_letters() -> None:
    assert lettered([""] * 52).endswith("Y\nZ\n")
    with pytest.raises(InputError, match="52 lines"):
        lettered([""] * 53)


def test_a_folder_says_what_its_model_was_trained_to_do(tmp_path: Path) -> None:
    assert tasks_in(tmp_path) == daguerre.load().tasks == ()
    config, training = tmp_path / "config.json", tmp_path / "training.json"
    config.write_text(json.dumps({"extra": {"tasks": ["next_edit", "apply", "dance"]}}))
    training.write_text(json.dumps({"tasks": ["fix"]}))
    assert tasks_in(tmp_path) == ("apply", "next_edit")
    assert tasks_in(tmp_path, tmp_path) == ("fix",)
    config.write_text(json.dumps({"extra": {"tasks": "apply"}}))
    assert tasks_in(tmp_path) == ()
    config.write_text("{")
    with pytest.raises(CheckpointError):
        tasks_in(tmp_path)
