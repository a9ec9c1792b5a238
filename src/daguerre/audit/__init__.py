"""Records of generations that somebody else can check: a signed ledger, and its verification by replay.

`recorder.Recorder` generates and writes records, `ledger.Ledger` keeps them, `verify.verify` checks them, and `replay`
computes again, without sampling, what a record says of the model. docs/audit.md says what each field means.
"""

from __future__ import annotations

from daguerre.audit.keys import SigningKey as SigningKey
from daguerre.audit.ledger import Ledger as Ledger
from daguerre.audit.recorder import Recorder as Recorder
from daguerre.audit.summary import Alerts as Alerts
from daguerre.audit.verify import verify as verify
