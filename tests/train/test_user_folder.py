"""A user's folder in any language: what is read, what is held out, and a vocabulary without held-out files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from daguerre.errors import DataError, InputError
from daguerre.train.corpus import languages
from daguerre.train.recipe import OWN, load_recipe
from daguerre.train.shards import Shard
from daguerre.train.user_folder import SMALL_VOCABULARY, UserFolder, files_read, own_vocabulary, sample_prompt


def write(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    for number in range(24):
        body = "\n".join(f"    let value_{word} = more(value_{word}, part);" for word in "abcdefghijkl")
        write(made, f"src/part_{number}.rs", f"fn part_{number}() {{\n{body}\n}}\n")
    write(made, "README.md", "A paragraph in one line, as editors wrap it. " * 40 + "\n")
    write(made, "tool.py", "".join(f"def tool_{j}(value):\n    return value + {j}\n\n\n" for j in range(8)))
    write(made, "broken.py", "def f(:\n" * 40)
    write(made, "short.c", "int x;\n")
    write(made, "table.csv", "1,2,3\n" * 200)
    write(made, "Cargo.lock", "[[package]]\nname = 'x'\n" * 20)
    write(made, "app.min.js", "function f(){}\n" * 20)
    write(made, "node_modules/a.js", "function f() {}\n" * 20)
    write(made, ".git/a.txt", "something\n" * 20)
    (made / "picture.txt").write_bytes(b"\x89PNG\x00\xff" * 100)
    return made


def test_text_of_any_language_is_read_and_it_is_said_which(folder: Path, tmp_path: Path) -> None:
    user = UserFolder(folder, "text")
    user.write(tmp_path / "out", user.vocabulary())

    said = files_read(tmp_path / "out")
    assert said.startswith(
        ("read 24 Rust, 1 Markdown and 1 Python file; left out", "read 24 Rust, 1 Python and 1 Markdown file; left out")
    )
    assert {"1 does not parse", "1 tiny", "1 does not decode"} == set(said.split("left out: ")[1].split(", "))
    listed = [json.loads(line) for line in (tmp_path / "out" / "manifest.jsonl").read_text().splitlines()]
    assert all(not each["file"].startswith(("node_modules", ".git")) for each in listed)


def test_python_alone_is_read_where_a_recipe_does_not_say_text(folder: Path) -> None:
    assert {document.file for document in UserFolder(folder).kept.documents} == {"tool.py"}
    with pytest.raises(InputError, match="'text'"):
        load_recipe("tiny", ["files=txt"])


def test_a_vocabulary_of_its_own_has_the_folders_words_and_none_of_the_held_out(folder: Path) -> None:
    user = UserFolder(folder, "text")
    held = user.splits["val"][0].file
    before = user.vocabulary()
    write(folder, held, (folder / held).read_text() + "// unheardword by anybody\n" * 9)
    again = UserFolder(folder, "text")
    again.__dict__["splits"] = user.splits | {"val": [d for d in again.kept.documents if d.file == held]}

    assert len(before.encode("\n    let value")) <= 3  # bytes: 14
    assert before.vocab_size <= SMALL_VOCABULARY
    assert again.splits["val"] and again.vocabulary() == before
    assert len(before.encode("unheardword")) > 4


def test_a_corpus_keeps_its_vocabulary_when_a_recipe_asks_for_its_own(folder: Path, tmp_path: Path) -> None:
    user = UserFolder(folder, "text")
    user.write(tmp_path / "out", own_vocabulary(user))

    assert load_recipe("tiny").tokenizer == OWN
    assert own_vocabulary(tmp_path / "out") == user.vocabulary()
    assert Shard.open(tmp_path / "out", "val").num_documents >= 1


def test_a_sample_begins_as_the_files_do(folder: Path, tmp_path: Path) -> None:
    user = UserFolder(folder, "text")
    user.write(tmp_path / "out", user.vocabulary())
    python = UserFolder(folder)
    python.write(tmp_path / "python", user.vocabulary())

    assert user.splits["val"][0].text.startswith(sample_prompt(tmp_path / "out"))
    assert sample_prompt(tmp_path / "python") == "def "


def test_of_a_large_folder_a_part_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every = languages.text_files(folder)
    monkeypatch.setattr(languages, "MOST_BYTES", 2_000)
    some = languages.text_files(folder)

    assert set(some) < set(every) and some
    assert sum((folder / name).stat().st_size for name in some) < 5_000


def test_a_folder_without_text_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "table.csv", "1,2\n" * 99)
    with pytest.raises(DataError, match="no file left: 0 seen; pass --data with a folder of text files"):
        UserFolder(tmp_path, "text").vocabulary()
