"""Cascades: a small backend answers first, and the backend that was decided on only where that answer is not accepted.

The client gets nothing before an answer is accepted, so of a stream the first event comes with the last one of the
small backend. A rejected answer goes to the other backend as a draft, so that what is right in it is not written twice.
Whatever fails in the small backend counts as a rejection; where all others fail, its rejected answer is the last
resort. A cascade is left out where both answers would not be there within the SLO, and the small one is waited for only
as long as leaves the other one its time.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any, Literal, TypeGuard

import orjson

from daguerre.errors import DaguerreError
from daguerre.http.errors import ApiError
from daguerre.router.answers import FirstChoice, answer_of, events_of
from daguerre.router.attempts import Attempts, Opened
from daguerre.router.choose import Candidate, slo_of
from daguerre.router.config import Config, Grader
from daguerre.router.graders import grade, text_schema, tool_schemas
from daguerre.router.reading import as_list, as_object, dicts
from daguerre.router.replies import BackendError
from daguerre.router.routed_request import RoutedRequest, SmallAnswer, cost_of, counts_of
from daguerre.router.upstream import Upstreams

OPERATIONS = ("chat", "completions", "fim", "decisions")
APART = frozenset({"pins", "spans", "edit", "logprobs"})
"""Needs of requests whose answers are no text from left to right, or have log-probabilities."""
BOUND_RULES = ("conversation", "wish", "explore")
"""Rules by which a decision is for this one backend."""
WITHOUT_LOGPROBS = ("fim",)
"""Operations whose answers have no log-probabilities."""
MOST_CHECKS = 4
"""Schemas and tests that are checked at once: each is a process."""
MOST_SMALL = 1 << 20
"""Bytes of an answer of a small backend; a longer one is rejected."""
UNLIKELY = "its likelihood is too low"
WHOLE = ("stop", "tool_calls", "function_call")
"""Why an answer ends that is not cut off."""


def small_of(routed: RoutedRequest, config: Config) -> Candidate | None:
    """The small backend that answers a request first; None: it has no cascade."""
    cascade, decision, features = config.cascade, routed.decision, routed.features
    if cascade.small is None or decision.backend in (None, cascade.small) or decision.rule in BOUND_RULES:
        return None
    if routed.operation not in OPERATIONS or features.step not in cascade.steps or _is_apart(routed):
        return None
    by_name = {each.name: each for each in decision.candidates}
    small, large = by_name[cascade.small], by_name[str(decision.backend)]
    slo, most = slo_of(features, config), features.wishes.get("max_cost", math.inf)
    late = slo is not None and small.p95 + large.p95 > slo
    if small.excluded is not None or late or small.cost + large.cost > most:
        return None
    return small if checks_of_small(routed, config) else None


def _is_apart(routed: RoutedRequest) -> bool:
    """Whether a request wants several answers, drafts of them, or one that nobody else can go on with."""
    body = routed.body
    several = any(body.get(name) not in (None, 1) for name in ("n", "best_of")) or isinstance(body.get("prompt"), list)
    echoed = any(body.get(name) for name in ("echo", "diffusing", "store"))
    return several or echoed or routed.features.conversation is not None or not APART.isdisjoint(routed.features.needs)


def checks_of_small(routed: RoutedRequest, config: Config) -> tuple[str, ...]:
    """What the answer must pass: the test that the request names, or what the configuration says. Empty: nothing can
    say whether it is good.
    """
    cascade = config.cascade
    if "test" in routed.features.wishes:
        return ("test",)
    has_least = cascade.least_of(routed.features.step) is not None and routed.operation not in WITHOUT_LOGPROBS
    if "likelihood" in cascade.accept and not has_least:
        return ()
    has_schema = text_schema(routed.body) is not None or bool(tool_schemas(routed.body))
    return tuple(name for name in cascade.accept if name != "schema" or has_schema)


class Cascading:
    """Asks the small backend where there is a cascade, and then the others."""

    def __init__(self, config: Config, upstreams: Upstreams, attempts: Attempts) -> None:
        self._config, self._upstreams, self._attempts = config, upstreams, attempts
        self._checks = asyncio.Semaphore(MOST_CHECKS)

    async def answer(self, routed: RoutedRequest, small: Candidate | None) -> Opened:
        """The answer to a request, which `small` answers first. ApiError where no backend has one."""
        if small is None:
            return await self._attempts.answer(routed)
        routed.line["cascade"] = {"small": small.name}
        opened, why = await self._asked(routed, small.name)
        routed.line["cascade"] |= {"accepted": why is None} | ({} if why is None else {"why": why})
        if opened is not None and why is None:
            return _given(routed, opened)
        try:
            return await self._attempts.answer(routed)
        except ApiError:
            if opened is None:
                raise
            return _given(routed, opened)

    async def _asked(self, routed: RoutedRequest, name: str) -> tuple[Opened | None, str | None]:
        """The small backend's answer, None where there is none, and why it is not accepted; None: it is."""
        opened, began = None, time.monotonic()
        try:
            async with asyncio.timeout(self._patience(routed)):
                opened = await self._read(routed, name)
                why = await self._why_not(routed, opened, self._noted(routed, opened))
        except BackendError as error:
            if opened is not None:
                opened.attempt |= {"error": error.kind, "message": str(error)}
            return None, str(error)
        except TimeoutError:
            why = "the SLO leaves it no more time"
            if opened is None:
                late = 1000 * (time.monotonic() - began)
                self._upstreams.latencies.add(name, routed.size, None, late, time.monotonic())
        if opened is not None and routed.small is not None:
            routed.small.accepted = why is None
            routed.small.score = self._config.cascade.score if why == UNLIKELY else None
            routed.line["cascade"]["score"] = routed.small.score
            opened.attempt["rejected"] = why is not None
        return opened, why

    def _patience(self, routed: RoutedRequest) -> float | None:
        """Seconds that the small backend has: what the SLO leaves it beside the other one's 95th percentile."""
        slo = slo_of(routed.features, self._config)
        large = next(each for each in routed.decision.candidates if each.name == routed.decision.backend)
        return None if slo is None else max(0.0, slo - large.p95 - routed.passed()) / 1000

    async def _read(self, routed: RoutedRequest, name: str) -> Opened:
        """The whole answer of the small backend. BackendError where there is none, or one that is too long, or that
        refuses the request.
        """
        opened = await self._attempts.open(routed, name, self._body(routed), draft=True)
        try:
            async with opened.stack:
                if opened.status >= 400:
                    raise BackendError("status", f"{name} answered with status {opened.status}", opened.status)
                parts, size = [opened.first], len(opened.first)
                async for chunk in opened.chunks or _nothing():
                    parts.append(chunk)
                    size += len(chunk)
                    if size > MOST_SMALL:
                        break
                if size > MOST_SMALL:
                    raise BackendError("body", f"{name} answered with more than {MOST_SMALL} bytes")
                if opened.chunks is not None and not opened.check.whole:
                    raise BackendError("broken", f"{name} ended the stream before its end")
        except BackendError as error:
            opened.attempt |= {"error": error.kind, "message": str(error), "status": error.status}
            raise
        opened.first, opened.chunks = b"".join(parts), None if opened.chunks is None else _nothing()
        opened.attempt |= {"status": opened.status, "bytes": size, "ms": round(routed.passed(), 3)}
        return opened

    def _body(self, routed: RoutedRequest) -> dict[str, Any]:
        """The body for the small backend: with log-probabilities, where its likelihood is wanted."""
        cascade = self._config.cascade
        wants = "likelihood" in cascade.accept and cascade.least_of(routed.features.step) is not None
        asked = {"chat": True, "completions": 0}.get(routed.operation)
        return routed.body | ({"logprobs": asked} if wants and asked is not None else {})

    def _noted(self, routed: RoutedRequest, opened: Opened) -> FirstChoice:
        """What the answer says, once its time and its cost are noted. BackendError where it says nothing."""
        backend, attempt = self._upstreams[opened.backend].backend, opened.attempt
        begun = attempt["begun_ms"]
        first = None if opened.chunks is None or "first_ms" not in attempt else attempt["first_ms"] - begun
        self._upstreams.latencies.add(backend.name, routed.size, first, attempt["ms"] - begun, time.monotonic())
        counts = counts_of(opened.check.usage, routed.features.input_tokens, len(opened.first), backend.context)
        said = answer_of(routed.operation, opened.first, opened.chunks is not None)
        cost = cost_of(counts, backend.price)
        if said is None:
            raise BackendError("body", f"{backend.name} sent no answer")
        routed.line["cost"] = cost
        routed.line["cascade"] |= {"cost": cost, "tokens": counts, "ms": round(attempt["ms"] - begun, 3)}
        routed.small = SmallAnswer(backend.name, said, cost, int(counts["input"] + counts["output"]))
        return said

    async def _why_not(self, routed: RoutedRequest, opened: Opened, said: FirstChoice) -> str | None:
        """Why an answer is not accepted; None: it is."""
        checks, least = checks_of_small(routed, self._config), self._config.cascade.least_of(routed.features.step)
        likelihood = likelihood_of(routed.operation, opened.first, opened.chunks is not None)
        routed.line["cascade"] |= {"likelihood": likelihood, "least": least, "whole": said.finish in WHOLE}
        if said.finish not in WHOLE:
            return f"it ended by {said.finish}"
        if "likelihood" in checks and said.tool_calls:
            return "its calls have no log-probabilities"
        if "likelihood" in checks and (likelihood is None or least is None or likelihood < least):
            return "it has no log-probabilities" if likelihood is None else UNLIKELY
        if "schema" in checks and not await self._passes(routed, said, "schema"):
            return "it is not valid by the schema"
        if "test" in checks and not await self._passes(routed, said, "tests"):
            return f"it fails the test {routed.features.wishes['test']}"
        return None

    async def _passes(self, routed: RoutedRequest, said: FirstChoice, kind: Literal["schema", "tests"]) -> bool:
        cascade = self._config.cascade
        command = cascade.tests[routed.features.wishes["test"]] if kind == "tests" else ()
        grader = Grader(kind=kind, command=command, timeout=cascade.timeout)
        try:
            async with self._checks:
                return await grade(grader, routed.body, routed.operation, said) == 1.0
        except (OSError, DaguerreError):  # the check could not be made
            return False


async def _nothing() -> AsyncGenerator[bytes]:
    """No chunks."""
    return
    yield b""


def _given(routed: RoutedRequest, opened: Opened) -> Opened:
    """The small backend's answer for the client, who did not ask for log-probabilities."""
    assert routed.small is not None
    routed.small.given = True
    opened.first = without_logprobs(opened.first, opened.chunks is not None)
    opened.attempt["rejected"] = False
    if opened.chunks is not None:
        opened.attempt["first_ms"] = round(routed.passed(), 3)
    return opened


def of_draft(usage: Mapping[str, Any]) -> dict[str, int]:
    """How many tokens of a draft an answer has, and how many not, as far as its usage says."""
    told = as_object(usage.get("completion_tokens_details"))
    found = {name: told.get(f"{name}_prediction_tokens") for name in ("accepted", "rejected")}
    return {f"draft_{name}": num for name, num in found.items() if isinstance(num, int)}


# ---- likelihood -----------------------------------------------------------------------------------------------------


def likelihood_of(operation: str, body: bytes, streamed: bool) -> float | None:
    """How likely an answer is by its own model, 0 to 1: the geometric mean of the probabilities of the first choice's
    tokens, or of a decision's labels. None: the answer does not say.
    """
    values = [as_object(one) for one in (events_of(body) if streamed else [orjson.loads(body)])]
    found = _of_labels(values[0]) if operation == "decisions" else [nats for value in values for nats in _nats(value)]
    return round(math.exp(min(0.0, sum(found) / len(found))), 6) if found else None


def _nats(value: Mapping[str, Any]) -> Iterator[float]:
    """The log-probabilities of tokens in an answer, or in an event, as chat or as the older completions have them."""
    for choice in dicts(value.get("choices")):
        told = as_object(choice.get("logprobs"))
        nats = [one.get("logprob") for one in dicts(told.get("content"))] + as_list(told.get("token_logprobs"))
        if choice.get("index", 0) == 0:
            yield from (float(one) for one in nats if _is_number(one))


def _of_labels(value: Mapping[str, Any]) -> list[float]:
    """The log-probabilities of the labels that decisions are for."""
    answers = value.get("answers")
    out = list[float]()
    for one in dicts(list(answers.values()) if isinstance(answers, dict) else answers):
        chance = one.get("confidence", one.get("noul", one.get("probability")))
        if not _is_number(chance):
            return []
        sure = chance if "confidence" in one else max(chance, 1 - chance)
        out.append(math.log(min(1.0, max(sure, 1e-9))))
    return out


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def without_logprobs(body: bytes, streamed: bool) -> bytes:
    """An answer, or the events of one, without the log-probabilities of its choices."""
    if not streamed:
        return orjson.dumps(_bare(orjson.loads(body)))
    lines = body.split(b"\n")
    return b"\n".join(_bare_line(line) if line.startswith(b"data:") else line for line in lines)


def _bare_line(line: bytes) -> bytes:
    try:
        return b"data: " + orjson.dumps(_bare(orjson.loads(line[5:]))) + (b"\r" if line.endswith(b"\r") else b"")
    except orjson.JSONDecodeError:
        return line


def _bare(value: Any) -> Any:
    for choice in dicts(as_object(value).get("choices")):
        if choice.get("logprobs") is not None:
            choice["logprobs"] = None
    return value
