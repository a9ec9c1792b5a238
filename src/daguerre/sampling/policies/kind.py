"""What the option `policy` may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from daguerre.errors import unknown
from daguerre.kinds import Kind
from daguerre.sampling.policies import POLICIES, Policy


@dataclass(frozen=True, kw_only=True)
class PolicyKind(Kind):
    """A name in the table of policies, or an object that is one; None: what other options imply."""

    words: ClassVar[str] = "the name of a policy, or a Policy"
    plain: ClassVar[Any] = str

    def read(self, name: str, value: Any) -> Any:
        if isinstance(value, Policy) or (isinstance(value, str) and value in POLICIES):
            return value
        raise unknown(name, value, POLICIES)
