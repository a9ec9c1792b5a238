"""Audit: how fast records of generations are checked, and how much tampering with them is found.

A ledger of RECORDS generations (`daguerre.audit`) is checked without the model, and with a replay of every record. A
ledger of shorter generations is then changed at random, one change at a time (`audit.trial`): a stranger changes its
file, which needs no model to be found; the owner of the key changes a number and signs again, which a replay finds.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from daguerre.audit.chain import LedgerReport
from daguerre.audit.keys import SigningKey
from daguerre.audit.recorder import Recorder
from daguerre.audit.trial import num_caught, num_forgeries_caught
from daguerre.audit.verification import verify
from daguerre.evals.workers import Progress
from daguerre.model import Model

RECORDS, TOKENS, FEW_TOKENS = 20, 64, 8
"""Records of a ledger; tokens of each record in the ledger that is timed, and in the one that is tampered with."""
PROMPT_CHARACTERS = 240
NEEDED = ("rfc8785", "cryptography", "fastjsonschema")
"""Modules of the extra "audit"."""


def measure_audit(
    model: Model, texts: Sequence[str], changes: int, progress: Progress, seed: int = 0
) -> dict[str, Any]:
    """The part "audit" of the report: so many changes of a ledger's file, and a tenth as many forgeries."""
    forgeries = max(1, changes // 10)
    with tempfile.TemporaryDirectory() as name:
        key, folder = SigningKey.make(Path(name) / "key"), Path(name)
        progress("audit: recording", 0, 3)
        long, short = (recorded(model, texts, key, folder, tokens, seed) for tokens in (TOKENS, FEW_TOKENS))
        progress("audit: checking", 1, 3)
        verify(short)  # the first check compiles the schema
        (_, chain), (report, replay) = _checked(long, None), _checked(long, model)
        progress("audit: tampering", 2, 3)
        return {
            "records": len(report.records),
            "tokens": TOKENS,
            "replayed": report.num_replayed,
            "problems": list(report.complaints()),
            "bytes": long.stat().st_size / len(report.records),
            "records_a_second": {"chain": chain, "replay": replay},
            "worst": max(record.worst for record in report.records),
            "changes": changes,
            "changes_found": num_caught(short, changes, seed),
            "forgeries": forgeries,
            "forgeries_found": num_forgeries_caught(short, key, model, forgeries, seed),
        }


def recorded(model: Model, texts: Sequence[str], key: SigningKey, folder: Path, tokens: int, seed: int) -> Path:
    """A ledger of RECORDS generations from the beginnings of texts."""
    path = folder / f"{tokens}.jsonl"
    with Recorder(path, model, key) as recorder:
        for number in range(RECORDS):
            prompt = texts[number % len(texts)][:PROMPT_CHARACTERS]
            recorder.generate(prompt, tokens, temperature=1.0, seed=seed + number)
    return path


def _checked(path: Path, model: Model | None) -> tuple[LedgerReport, float]:
    """What is found of a ledger, and how many of its records are checked in a second of processor time."""
    started = time.process_time()
    report = verify(path, model)
    return report, len(report.records) / max(time.process_time() - started, 1e-9)
