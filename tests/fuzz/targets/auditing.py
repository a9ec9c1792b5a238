"""Ledgers: whatever a file holds, verification reports it."""

from __future__ import annotations

from daguerre.audit.keys import SigningKey
from daguerre.audit.ledger import LedgerHead, head_path
from daguerre.audit.recorder import Recorder
from daguerre.audit.trial import copied
from daguerre.audit.verification import verify
from fuzz.models import model
from fuzz.target import Run, Target
from fuzz.targets.checkpoints import scratch


def recorded() -> bytes:
    folder = scratch()
    key = SigningKey.make(folder / "key")
    with Recorder(str(folder / "audit.jsonl"), model(), key, name="tiny") as recorder:
        for options in ({"mode": "ar"}, {"mode": "block", "temperature": 0.5}):
            recorder.generate("a = ", 4, **options)
    _folders.append(folder)
    return (folder / "audit.jsonl").read_bytes()


_folders: list = []


def ledger() -> Run:
    content = recorded()
    path = copied(_folders[-1] / "audit.jsonl", scratch())

    def run(data: bytes) -> None:
        path.write_bytes(data)
        report = verify(path)
        assert str(report) and (data == content or data == b"" or not report.sound or len(data) < len(content))

    return run


def head() -> Run:
    recorded()
    path = copied(_folders[-1] / "audit.jsonl", scratch())

    def run(data: bytes) -> None:
        head_path(path).write_bytes(data)
        verify(path)
        LedgerHead.read(head_path(path))

    return run


def heads() -> list[bytes]:
    recorded()
    return [head_path(_folders[-1] / "audit.jsonl").read_bytes()]


TARGETS = (
    Target(name="ledger", make=ledger, seeds=lambda: [recorded()], cases=80),
    Target(name="ledger_head", make=head, seeds=heads, cases=80),
)
