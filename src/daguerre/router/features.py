"""What a decision knows of a request: numbers and words, never its text."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Features:
    """A request, as `choose` sees it.

    operation      of `config.OPERATIONS`
    needs          what only some backends can do, of `config.NEEDS`, sorted
    step           its step type, of `config.STEPS`, and `steps`, the probability of each
    input_tokens   an estimate
    output_tokens  the limit that the request names; None: it names none
    quality        by backend, the probability that its answer is right, where that was predicted for this request
    conversation   which backend has an open tool call of this conversation; None: none has
    wishes         what the request may choose: slo_ms, backend, tags, max_cost
    draw           a uniform number of the request, 0 to 1, for exploration
    """

    operation: str
    step: str
    needs: tuple[str, ...] = ()
    steps: dict[str, float] = field(default_factory=dict)
    input_tokens: int = 0
    output_tokens: int | None = None
    stream: bool = False
    quality: dict[str, float] = field(default_factory=dict)
    conversation: str | None = None
    wishes: dict[str, Any] = field(default_factory=dict)
    draw: float = 1.0

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return vars(self) | {"needs": list(self.needs)}

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Features:
        """From JSON values."""
        known = {one.name for one in fields(cls)}
        return cls(**{name: given for name, given in value.items() if name in known} | {"needs": tuple(value["needs"])})


@dataclass(frozen=True, kw_only=True)
class BackendState:
    """A backend at the time of a decision. Times are milliseconds.

    open        requests may go there: its circuit is closed, or a probe is due
    cold        it has to start first
    in_flight   requests that it is computing for this router
    waiting     how long the second oldest of these has waited for its first text: two are no accident. 0: there is none
    first, first_p95, whole, whole_p95   until the first text and until the end, as measured in the request's size
                bucket; None: not measured yet
    """

    open: bool = True
    cold: bool = False
    in_flight: int = 0
    waiting: float = 0.0
    first: float | None = None
    first_p95: float | None = None
    whole: float | None = None
    whole_p95: float | None = None


State = dict[str, BackendState]
"""By backend; one that is not there is as `BackendState()`."""
