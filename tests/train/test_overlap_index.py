"""From a corpus to its index, and the commands: what was trained on is found, with its package and license."""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from daguerre.cli import app
from daguerre.errors import DataError, InputError
from daguerre.models.tokenizer import Tokenizer
from daguerre.overlap import MIN_LENGTH, NUM_SOURCES
from daguerre.overlap.index import Overlap
from daguerre.train.corpus.index import corpus_sha256, index_corpus
from daguerre.train.overlap_commands import data_where
from daguerre.train.shards import Shard, write_shards

FIRST = "def mean(values):\n    # größe, 漢字\n    return sum(values) / len(values)\n"
SECOND = "import numpy as np\n\n\ndef scale(values, factor):\n    return np.asarray(values) * factor\n"
HELD_OUT = "class NeverTrainedOn:\n    secret = 'of the test split'\n"


def line(package: str, text: str, split: str) -> dict[str, Any]:
    return {
        "package": package,
        "version": "1.0",
        "license": "MIT",
        "file": f"{package}/code.py",
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "bytes": len(text.encode()),
        "split": split,
    }


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.default("2k")


@pytest.fixture
def corpus(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    folder = tmp_path / "corpus"
    write_shards(folder, {"train": [FIRST, SECOND], "test": [HELD_OUT]}, tokenizer)
    lines = [line("held", HELD_OUT, "test"), line("alpha", FIRST, "train"), line("beta", SECOND, "train")]
    (folder / "manifest.jsonl").write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in lines))
    return folder


def test_training_documents_are_found_with_package_and_license(corpus: Path, tmp_path: Path) -> None:
    overlap = index_corpus(corpus, tmp_path / "index")
    matches = overlap.longest_matches(f"x = 1\n{SECOND}# {FIRST}{HELD_OUT}", min_length=30)

    assert [match.length for match in matches] == [len(SECOND), len(FIRST)]
    source = matches[0].sources[0]
    assert (source.package, source.version, source.license) == ("beta", "1.0", "MIT")
    assert (source.file, source.document, source.line) == ("beta/code.py", 1, 1)
    assert matches[1].sources[0].package == "alpha"


def test_where_tokens_are_cut_does_not_matter(corpus: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    overlap = index_corpus(corpus, tmp_path / "index")
    for cut in range(len(FIRST) - 20):
        text = FIRST[cut:]
        (match,) = overlap.longest_matches(f"§{text}§", min_length=20)
        assert (match.start, match.end) == (1, 1 + len(text))


def test_the_index_names_its_corpus(corpus: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    overlap = index_corpus(corpus, tmp_path / "index")
    identity = corpus_sha256(Shard.open(corpus))
    write_shards(tmp_path / "other", {"train": [FIRST]}, tokenizer)

    assert overlap.meta["corpus"] == {
        "sha256": identity,
        "tokenizer_sha256": tokenizer.sha256,
        "split": "train",
        "documents": 2,
        "tokens": Shard.open(corpus).num_tokens,
        "bytes": len((FIRST + SECOND).encode()),
    }
    Overlap.open(tmp_path / "index", identity)
    with pytest.raises(DataError, match="another corpus"):
        Overlap.open(tmp_path / "index", corpus_sha256(Shard.open(tmp_path / "other")))


def test_the_identity_of_a_corpus_depends_on_where_documents_end(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folders = [tmp_path / "one", tmp_path / "two", tmp_path / "three"]
    for folder, texts in zip(folders, (["ab\n", "cd\n"], ["ab\n", "ce\n"], ["ab\n", "cd\n"]), strict=True):
        write_shards(folder, {"train": texts}, tokenizer)
    first, second, third = (corpus_sha256(Shard.open(folder)) for folder in folders)
    assert first == third != second


def test_without_a_manifest_documents_have_numbers_alone(corpus: Path, tmp_path: Path) -> None:
    (corpus / "manifest.jsonl").unlink()
    (match,) = index_corpus(corpus, tmp_path / "index").longest_matches(SECOND)
    assert (match.sources[0].document, match.sources[0].package) == (1, None)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda lines: lines[:-1], "it has 1 documents of split train, not 2"),
        (lambda lines: [lines[0], lines[2], lines[1]], "line 1 of split train is of another text"),
        (lambda lines: ["{", *lines], "it cannot be read"),
        (lambda lines: ["[]", *lines], "it cannot be read"),
    ],
)
def test_a_manifest_of_other_documents_is_refused(corpus: Path, tmp_path: Path, change: Any, complaint: str) -> None:
    path = corpus / "manifest.jsonl"
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")
    with pytest.raises(DataError, match=complaint):
        index_corpus(corpus, tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_another_tokenizer_beside_the_tokens_is_refused(corpus: Path, tmp_path: Path) -> None:
    Tokenizer.default("8k").save(corpus / "tokenizer.json")
    with pytest.raises(DataError, match="not what"):
        index_corpus(corpus, tmp_path / "index")


# --- the commands


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_the_commands_build_an_index_and_ask_it(corpus: Path, tmp_path: Path) -> None:
    index, file = str(tmp_path / "index"), tmp_path / "output.py"
    built = call("data", "index", "--data", str(corpus), "--out", index)
    assert built.exit_code == 0 and "of memory, and" in built.stderr and "seconds" in built.stdout

    file.write_bytes(f"y = 2\n{SECOND}".replace("\n", "\r\n").encode())
    shown = call("data", "where", str(file), "--index", index, "--data", str(corpus), "--verify")
    assert shown.exit_code == 0
    row = next(one for one in shown.stdout.splitlines() if "beta" in one)
    last = len(SECOND.splitlines()[-1]) + 1
    assert row.split() == ["2:1", f"6:{last}", str(len(SECOND)), "beta", "1.0", "beta/code.py:1", "MIT"]

    summary = json.loads(call("data", "where", str(file), "--index", index, "--json").stdout)
    assert summary["longest"]["sources"][0]["package"] == "beta"
    assert summary == Overlap.open(index).summary(f"y = 2\n{SECOND}")


def test_text_of_nobody_is_said_to_be_nobodys(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index_corpus(corpus, tmp_path / "index")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(HELD_OUT.encode())))
    shown = call("data", "where", "-", "--index", str(tmp_path / "index"), "--min-length", "20")
    assert shown.stdout == "no passage of 20 characters or more is in the corpus\n"


def test_a_match_in_many_files_shows_a_few_and_counts_all(tmp_path: Path, tokenizer: Tokenizer) -> None:
    write_shards(tmp_path / "corpus", {"train": [FIRST + f"x = {number}\n" for number in range(9)]}, tokenizer)
    index_corpus(tmp_path / "corpus", tmp_path / "index")
    (tmp_path / "text").write_text(FIRST)
    shown = call("data", "where", str(tmp_path / "text"), "--index", str(tmp_path / "index"), "--sources", "2")
    assert "document 1:1" in shown.stdout and "document 2:1" not in shown.stdout
    assert "in all 9 times in 9 files" in shown.stdout
    assert "100.0% in matches of 50 or more" in shown.stdout


def test_the_help_says_the_defaults() -> None:
    options = inspect.signature(data_where, eval_str=True).parameters
    for name, value in (("min_length", MIN_LENGTH), ("sources", NUM_SOURCES)):
        assert f"{value} by default" in options[name].annotation.__metadata__[0].help


def test_mistakes_are_errors(corpus: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    index_corpus(corpus, tmp_path / "index")
    index = str(tmp_path / "index")
    with pytest.raises(InputError, match="cannot read"):
        call("data", "where", str(tmp_path / "missing"), "--index", index)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not UTF-8"):
        call("data", "where", str(tmp_path / "bytes"), "--index", index)
    write_shards(tmp_path / "other", {"train": [SECOND]}, tokenizer)
    with pytest.raises(DataError, match="another corpus"):
        call("data", "where", "-", "--index", index, "--data", str(tmp_path / "other"))
