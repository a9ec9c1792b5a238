"""Records of generations that somebody else can check: a signed ledger, and its verification by replay.

`recorder.Recorder` generates and writes records, `ledger.Ledger` keeps them, `verification.verify` checks them, and
`replay` computes again, without sampling, what a record says of the model. docs/audit.md says what each field means.

The names are imported on first use: the command line reads `audit.commands` whenever it starts.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from daguerre.audit.keys import SigningKey
    from daguerre.audit.ledger import Ledger
    from daguerre.audit.recorder import Recorder
    from daguerre.audit.summary import Alerts
    from daguerre.audit.verification import verify

_HOMES = {
    "Alerts": "daguerre.audit.summary",
    "Ledger": "daguerre.audit.ledger",
    "Recorder": "daguerre.audit.recorder",
    "SigningKey": "daguerre.audit.keys",
    "verify": "daguerre.audit.verification",
}

__all__ = ["Alerts", "Ledger", "Recorder", "SigningKey", "verify"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'daguerre.audit' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
