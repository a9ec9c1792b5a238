"""A request on its way: what was decided, what was tried, and what its line in the log will say."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from daguerre.router.answers import FirstChoice
from daguerre.router.choose import Features, RoutingDecision
from daguerre.router.config import Backend, Price
from daguerre.router.limits import Reservation
from daguerre.router.reading import as_object
from daguerre.router.replies import tokens_of
from daguerre.router.requests import ObservedFeatures
from daguerre.router.upstream import merged

MOST_CONTEXTS = 128
"""How many contexts of its backend an answer of several choices may have tokens for."""
DRAFTING = (None, "ar", "speculative", "fim")
"""Modes of Daguerre's server that verify drafts; None: it chooses."""
Write = Callable[[dict[str, Any]], None]


@dataclass
class SmallAnswer:
    """What the small backend of a cascade answered, its dollars and its tokens, read and written.

    score     how likely another backend must find it to take it as it is; None: it does not
    accepted  it is the answer; given: the client gets it, accepted or as a last resort
    """

    name: str
    said: FirstChoice
    cost: float
    tokens: int
    score: float | None = None
    accepted: bool = False
    given: bool = False


@dataclass
class RoutedRequest:
    """A request. tokens: expected ones of its answer, by whose number latencies are kept."""

    id: str
    owner: str
    operation: str
    path: str
    body: dict[str, Any]
    headers: Mapping[str, str]
    asked: ObservedFeatures
    features: Features
    decision: RoutingDecision
    tokens: int
    ended: Callable[[RoutedRequest, dict[str, Any]], None]
    line: dict[str, Any]
    """What is known so far; empty once it is written."""
    reservation: Reservation | None = None
    small: SmallAnswer | None = None
    """Where there is a cascade and it has answered."""
    started: float = field(default_factory=time.perf_counter)
    attempts: list[dict[str, Any]] = field(default_factory=list)

    @property
    def size(self) -> tuple[int, int]:
        """Tokens of the request, and expected ones of its answer."""
        return self.features.input_tokens, self.tokens

    @property
    def small_cost(self) -> float:
        """Dollars for an answer of a small backend that the client does not get, and so is charged beside its own."""
        return 0.0 if self.small is None or self.small.given else self.small.cost

    @property
    def small_tokens(self) -> int:
        """Tokens of the same."""
        return 0 if self.small is None or self.small.given else self.small.tokens

    def passed(self) -> float:
        """Milliseconds since it came."""
        return 1000 * (time.perf_counter() - self.started)

    def try_at(self, backend: str, **more: Any) -> dict[str, Any]:
        """Note another attempt."""
        self.attempts.append({"backend": backend, "begun_ms": round(self.passed(), 3), **more})
        return self.attempts[-1]

    def body_for(self, backend: Backend) -> dict[str, Any]:
        """The body that a backend gets: with the rejected answer of a small one as a draft, where it takes drafts and
        the request has neither one nor tools, beside which OpenAI's API refuses them, nor a mode that takes none.
        """
        text, own = "" if self.small is None else self.small.said.text, as_object(self.body.get("daguerre"))
        has_own = "draft" in own or any(self.body.get(name) for name in ("prediction", "tools", "functions"))
        mode = as_object(merged(self.body, backend.body).get("daguerre")).get("mode")
        if not text or has_own or mode not in DRAFTING or self.operation not in backend.drafts:
            return self.body
        draft: dict[str, Any] = {} if self.operation == "chat" else {"draft": text}
        draft |= {} if self.small is None or self.small.score is None else {"accept_draft": self.small.score}
        body = self.body | ({"daguerre": own | draft} if draft else {})
        return body | ({"prediction": {"type": "content", "content": text}} if self.operation == "chat" else {})

    def reply_headers(self, backend: str | None) -> dict[str, str]:
        """What the client is told of the decision, and of the backend that answered."""
        said = {"x-route-id": self.id, "x-route-step": self.features.step}
        said |= {} if backend is None else {"x-route-backend": backend}
        if (cascade := self.line.get("cascade")) is not None:
            said["x-route-cascade"] = "accepted" if cascade.get("accepted") else "rejected"
        return said | {"x-route-reason": self.decision.reason.encode("ascii", "replace").decode()[:200]}

    def end(self, status: int, took: float | None = None) -> None:
        """Write the line of the request, once. took: its milliseconds; None: until now."""
        line, self.line = self.line, {}
        if line:
            passed = round(self.passed() if took is None else took, 3)
            self.ended(self, line | {"attempts": self.attempts, "status": status, "ms": passed})


def call_ids(operation: str, body: Mapping[str, Any]) -> list[str]:
    """The ids by which a request goes on with a conversation whose tool calls are open: of results that follow the
    model's last turn, and of an earlier response.
    """
    out = list[str]()
    if operation == "responses" and isinstance(body.get("previous_response_id"), str):
        out.append(body["previous_response_id"])
    given = body.get("input") if operation == "responses" else body.get("messages")
    for item in reversed(given if isinstance(given, list) else []):
        if not isinstance(item, dict):
            break
        key = item.get("call_id") if item.get("type") == "function_call_output" else item.get("tool_call_id")
        if not isinstance(key, str):
            break
        out.append(key)
    return out


def cost_of(counts: Mapping[str, float | bool], price: Price) -> float:
    """Dollars for so many tokens."""
    return price.request + (counts["input"] * price.input + counts["output"] * price.output) / 1e6


def counts_of(usage: Mapping[str, Any], input_tokens: int, size: int, context: int) -> dict[str, float | bool]:
    """Tokens of a request and its answer of `size` bytes: the backend's own count, if its context is large enough for
    it, or else an estimate.
    """
    counted = tokens_of(usage, MOST_CONTEXTS * context)
    into, out = counted or (input_tokens, size // 4)
    return {"input": into, "output": out, "counted": counted is not None}
