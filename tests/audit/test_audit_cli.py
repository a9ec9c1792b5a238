"""The commands `daguerre audit ...`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from daguerre.audit.keys import SigningKey
from daguerre.audit.ledger import LedgerEntry, lines
from daguerre.audit.recorder import Recorder
from daguerre.audit.schema import schema
from daguerre.audit.trial import copied
from daguerre.cli import app
from daguerre.errors import InputError
from daguerre.model import Model, load
from daguerre.models.loading import save_model


def run(*arguments: object, fails: bool = False) -> str:
    done = CliRunner().invoke(app, ["audit", *map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == int(fails), done.output
    return done.output


@pytest.fixture(scope="module")
def keyed(named: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with keys, made by the command, a model, and a ledger of it, which nobody writes to.

    It computes with PyTorch: the native library would have to be compiled first.
    """
    folder, made = tmp_path_factory.mktemp("keyed"), named(concepts=None)
    run("key", folder / "key")
    save_model(folder / "model", made.backbone, made.tokenizer, extra={"recipe": "small"})
    model = load(folder / "model", dtype="float32", backend="torch")  # a file may round weights
    with Recorder(str(folder / "audit.jsonl"), model, str(folder / "key"), name=str(folder / "model")) as recorder:
        recorder.generate("a = ", 4)
        recorder.generate("b = ", 4)
    return folder


@pytest.fixture
def ledger(keyed: Path, tmp_path: Path) -> Path:
    """A copy of the ledger."""
    return copied(keyed / "audit.jsonl", tmp_path)


def test_a_ledger_is_verified_with_the_model_that_it_names(ledger: Path, keyed: Path) -> None:
    out = run("verify", ledger, "--key", keyed / "key.pub")
    assert "2 records" in out and "2 replayed" in out and "sound" in out.splitlines()[-1]

    report = json.loads(run("verify", ledger, "--model", keyed / "model", "--json"))
    assert report["sound"] and [record["status"] for record in report["records"]] == ["replayed"] * 2


def test_commands_that_write_text_record_it_where_a_ledger_is_named(keyed: Path, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("a = 1\nb = 2\n")
    model = ("--model", keyed / "model", "--backend", "torch", "--dtype", "float32", "--max-tokens", "2")
    kept = ("--audit", tmp_path / "new.jsonl", "--audit-key", keyed / "key")
    for command in (
        ("generate", "a = "),
        ("infill", "a = ", "\n"),
        ("fill", "a = <gap>\n"),
        ("edit", tmp_path / "x.py", "--lines", "2:2"),
    ):
        done = CliRunner().invoke(app, [str(one) for one in (*command, *model, *kept)])
        assert done.exit_code == 0, (command, done.exception)
    assert "4 records" in run("verify", tmp_path / "new.jsonl", "--key", keyed / "key.pub")
    alone = CliRunner().invoke(app, ["generate", "a = ", "--audit", str(tmp_path / "other.jsonl")])
    assert isinstance(alone.exception, InputError) and "belong together" in str(alone.exception)


def test_an_altered_model_file_fails(ledger: Path, keyed: Path, named: Any) -> None:
    other = named(seed=3, concepts=None)
    (keyed / "model").rename(keyed / "right")
    save_model(keyed / "model", other.backbone, other.tokenizer)

    out = run("verify", ledger, fails=True)

    shutil.rmtree(keyed / "model")
    (keyed / "right").rename(keyed / "model")
    assert "weights_sha256 differs" in out and "NOT SOUND" in out


def test_another_key_fails(ledger: Path, tmp_path: Path) -> None:
    run("key", tmp_path / "other")
    assert "another key" in run("verify", ledger, "--no-replay", "--key", tmp_path / "other.pub", fails=True)


def test_a_head_that_is_shown_is_checked(ledger: Path) -> None:
    shown = run("show", ledger)
    head = shown.splitlines()[-1].split()[1].rstrip(":")

    assert head == LedgerEntry.parse(list(lines(ledger))[-1]).hash
    assert run("head", ledger) == f"{head} 2\n"
    run("verify", ledger, "--no-replay", "--head", head)
    assert "records are missing" in run("verify", ledger, "--no-replay", "--head", "0" * 63 + "1", fails=True)


def test_a_model_says_what_its_folder_knows_of_its_training(ledger: Path) -> None:
    (record, _) = json.loads(run("show", ledger, "--json"))
    none = {"run": None, "data_sha256": None, "tokens": None}
    assert record["model"]["training"] == {"recipe": "small", **none}


def test_a_record_is_shown_with_its_text_until_it_is_erased(ledger: Path, keyed: Path) -> None:
    record = json.loads(run("show", ledger, "--json"))[0]["id"]
    shown = json.loads(run("show", ledger, record[:13]))
    assert shown["sealed"]["request"]["arguments"]["prompt"] == "a = "

    run("erase", ledger, record[:13], "--key", keyed / "key", "--why", "asked for")

    assert json.loads(run("show", ledger, record))["sealed"] is None
    assert "erased" in run("show", ledger).splitlines()[0]
    out = run("verify", ledger)
    assert "1 replayed" in out and "1 generation record, erased: chain and signature only" in out
    for unknown in ("", "nothing"):
        with pytest.raises(InputError, match="records of"):
            run("erase", ledger, unknown, "--key", keyed / "key")


def test_what_became_of_a_record_is_written_down(ledger: Path, keyed: Path) -> None:
    record = json.loads(run("show", ledger, "--json"))[0]["id"]
    how = ("--event", "review", "--key", keyed / "key", "--fact", "by=reviewer 3", "--text", "a name")

    written = run("note", ledger, record[:13], *how).split()[-1]

    shown = json.loads(run("show", ledger, written))
    assert (shown["record"]["of"], shown["record"]["facts"]) == (record, {"by": "reviewer 3"})
    assert shown["sealed"] == {"note": "a name"}
    assert f"follow_up: review, of {record}" in run("show", ledger)
    assert "3 records" in run("verify", ledger, "--no-replay")
    with pytest.raises(InputError, match="NAME=TEXT"):
        run("note", ledger, record, "--event", "review", "--key", keyed / "key", "--fact", "by")


def test_a_record_that_names_no_model_asks_for_one(small: Model, tmp_path: Path) -> None:
    signing = SigningKey.make(tmp_path / "key")
    with Recorder(str(tmp_path / "audit.jsonl"), small, signing) as recorder:
        recorder.generate("a = ", 2)
    assert "give --model" in run("verify", tmp_path / "audit.jsonl", fails=True)
    run("verify", tmp_path / "audit.jsonl", "--no-replay")


def test_a_missing_ledger_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        run("verify", tmp_path / "none")


def test_the_schema_is_printed() -> None:
    assert json.loads(run("schema")) == schema()
