"""The ledger as a file: appends, crashes, two writers, erasure."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daguerre.audit.keys import SigningKey, read_public, seal, unseal
from daguerre.audit.ledger import Ledger, LedgerEntry, head_path, lines, record_keys
from daguerre.audit.verification import verify
from daguerre.errors import DataError, InputError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def repairs(ledger: Ledger, num: int) -> list[str]:
    """Append records of the simplest kind."""
    torn = {"bytes": 1, "sha256": "0" * 64, "file": "elsewhere"}
    return [ledger.append("repair", {"torn": torn}) for _ in range(num)]


def kinds(path: Path) -> list[str]:
    return [LedgerEntry.parse(line).record["kind"] for line in lines(path)]


def test_records_are_numbered_chained_and_signed(path: Path, signing: SigningKey) -> None:
    with Ledger(path, signing) as ledger:
        ids = repairs(ledger, 3)
    with Ledger(path, signing) as ledger:
        ids += repairs(ledger, 2)

    entries = [LedgerEntry.parse(line) for line in lines(path)]
    assert [entry.record["id"] for entry in entries] == ids
    assert [entry.record["number"] for entry in entries] == [0, 1, 2, 3, 4]
    assert [entry.record["previous"] for entry in entries[1:]] == [entry.hash for entry in entries[:-1]]
    assert all(entry.is_signed_by(signing.public) for entry in entries)
    assert verify(path, public=signing.public).sound


def test_two_writers_exclude_each_other(path: Path, signing: SigningKey) -> None:
    with Ledger(path, signing) as ledger:
        with pytest.raises(DataError, match="another process"):
            Ledger(path, signing)
        repairs(ledger, 1)
    with Ledger(path, signing) as ledger:
        repairs(ledger, 1)
    assert verify(path).sound


KILLED = """
    import os, signal, sys
    from daguerre.audit.ledger import Ledger

    def write(function, share):
        ledger = Ledger(os.path.join(sys.argv[1], function), os.path.join(sys.argv[1], "key"))
        content = {"torn": {"bytes": 1, "sha256": "0" * 64, "file": "x"}}
        ledger.append("repair", content)
        real = getattr(os, function)
        def dies(*given):
            share(real, *given)
            os.kill(os.getpid(), signal.SIGKILL)
        setattr(os, function, dies)
        ledger.append("repair", content)

    for function, share in (
        ("write", lambda real, file, content: real(file, content[:100])),
        ("fsync", lambda real, *given: real(*given)),
    ):
        if not (pid := os.fork()):
            write(function, share)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL, function
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a key, and with ledgers of two processes that append two records: each is killed in its second
    call of the function of `os` that the ledger is named after, part of it done.
    """
    folder = tmp_path_factory.mktemp("killed")
    SigningKey.make(folder / "key")
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(folder)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_line_torn_by_a_crash_is_moved_aside_and_said(killed: Path) -> None:
    path, signing = killed / "write", SigningKey.load(killed / "key")
    torn = path.read_bytes().splitlines()[-1]
    assert len(torn) == 100
    assert any("torn" in problem for problem in verify(path).problems)

    Ledger(path, signing).close()

    assert kinds(path) == ["repair", "repair"]
    assert Path(f"{path}.torn-1").read_bytes() == torn
    assert LedgerEntry.parse(list(lines(path))[-1]).record["torn"]["bytes"] == 100
    assert verify(path).sound


def test_a_crash_between_a_record_and_its_head_loses_neither(killed: Path) -> None:
    path, signing = killed / "fsync", SigningKey.load(killed / "key")

    assert verify(path).sound
    with Ledger(path, signing) as ledger:
        assert ledger.records == 2
        repairs(ledger, 1)
    assert verify(path).sound


def test_a_full_disk_leaves_the_ledger_as_it_was(
    path: Path, signing: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger(path, signing) as ledger:
        repairs(ledger, 2)
        before, real = path.read_bytes(), os.write

        def full(file: int, content: bytes) -> int:
            monkeypatch.setattr(os, "write", fails)
            return real(file, content[:10])

        def fails(file: int, content: bytes) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(DataError, match="No space left"):
            repairs(ledger, 1)
        monkeypatch.undo()
        assert path.read_bytes() == before
        repairs(ledger, 1)
    assert verify(path).sound


@pytest.mark.parametrize("function", ["pwrite", "write", "fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_wherever_an_append_stops_the_next_one_fits(
    path: Path, signing: SigningKey, monkeypatch: pytest.MonkeyPatch, function: str, error: BaseException
) -> None:
    """The n-th call fails, for every n that there is: of the file of keys, of the ledger and of its head."""
    real, num = getattr(os, function), 0
    with Ledger(path, signing) as ledger:
        repairs(ledger, 1)
        for fatal in range(4):
            calls = iter(range(10))

            def stops(*given: Any, calls: Iterator[int] = calls, fatal: int = fatal) -> Any:
                if next(calls) == fatal:
                    raise error
                return real(*given)

            monkeypatch.setattr(os, function, stops)
            try:
                ledger.append("failure", {"error": "E"}, {"text": "x"})
            except (DataError, KeyboardInterrupt):
                num += 1
            monkeypatch.undo()
            before = ledger.records
            repairs(ledger, 1)
            assert ledger.records == before + 1
            assert not [one for one in verify(path).complaints() if "schema" not in one]
    assert num


def test_a_ledger_without_its_last_record_is_not_written_to(path: Path, signing: SigningKey) -> None:
    with Ledger(path, signing) as ledger:
        repairs(ledger, 3)
    path.write_bytes(b"".join(line + b"\n" for line in list(lines(path))[:-1]))

    with pytest.raises(DataError, match="changed"):
        Ledger(path, signing)
    assert not verify(path).sound


def test_a_ledger_is_checked_while_it_is_written(path: Path, signing: SigningKey) -> None:
    with Ledger(path, signing) as ledger:
        repairs(ledger, 1)
        head = head_path(path).read_bytes()
        repairs(ledger, 3)
        head_path(path).write_bytes(head)  # as it was when a reader read it

        assert verify(path).sound
    assert not verify(path).sound


def test_a_ledger_is_written_with_one_key(path: Path, signing: SigningKey, tmp_path: Path) -> None:
    with Ledger(path, signing) as ledger:
        repairs(ledger, 1)
    other = SigningKey.make(tmp_path / "other")

    with pytest.raises(DataError, match="not signed with this key"):
        Ledger(path, other)
    assert not verify(path, public=other.public).sound
    assert verify(path, public=signing.public).sound


def test_a_head_that_was_kept_elsewhere_shows_that_records_are_gone(path: Path, signing: SigningKey) -> None:
    with Ledger(path, signing) as ledger:
        repairs(ledger, 2)
        old = path.read_bytes(), head_path(path).read_bytes()
        repairs(ledger, 1)
        kept = ledger.last
    assert verify(path, head=kept).sound

    path.write_bytes(old[0])
    head_path(path).write_bytes(old[1])

    assert verify(path).sound
    assert not verify(path, head=kept).sound


def test_keys_are_files_that_only_their_owner_reads(path: Path, tmp_path: Path) -> None:
    made = SigningKey.make(tmp_path / "key")

    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert SigningKey.load(tmp_path / "key").public == made.public == read_public(tmp_path / "key.pub")
    with pytest.raises(InputError, match="another name"):
        SigningKey.make(tmp_path / "key")
    for wrong in (tmp_path / "key.pub", tmp_path / "none"):
        with pytest.raises(InputError, match="is not a private key"):
            SigningKey.load(wrong)
    keys = record_keys(path)
    keys.make("0" * 36)
    assert stat.S_IMODE(keys.path.stat().st_mode) == 0o600


def test_a_key_is_destroyed_in_its_place_and_a_torn_one_is_overwritten(path: Path) -> None:
    keys, names = record_keys(path), [f"{number:036d}" for number in range(4)]
    made = [keys.make(name) for name in names[:3]]
    keys.path.write_bytes(keys.path.read_bytes() + b"torn")

    made.append(keys.make(names[3]))
    keys.destroy(names[1])

    assert keys.read() == {names[0]: made[0], names[1]: None, names[2]: made[2], names[3]: made[3]}
    assert made[1].hex() not in keys.path.read_text()
    for name in (names[1], "unknown"):
        with pytest.raises(InputError):
            keys.destroy(name)


def test_what_is_sealed_opens_with_its_key_and_record_alone() -> None:
    key, record = b"k" * 32, "0" * 36
    sealed = seal(b"text", key, record)

    assert b"text" not in sealed and sealed != seal(b"text", key, record)
    assert unseal(sealed, key, record) == b"text"
    changed = bytes([*sealed[:-1], sealed[-1] ^ 1])
    for given in ((sealed, b"x" * 32, record), (sealed, key, "1" * 36), (changed, key, record)):
        with pytest.raises(DataError):
            unseal(*given)
