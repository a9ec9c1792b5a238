"""What happens after a client was answered: a share of requests goes to a second backend too, and answers are graded.

A shadow never delays a request: it begins after the client has its answer, at most `most_in_flight` at a time, is not
counted among the requests that a backend takes, and what fails in it is told in its own line of the log alone. The
first backend's answer is what the client got; a shadow's is read, graded and thrown away, so a tool that it calls is
never run. Of a cascade, the second answer is that of the backend whose answer the client did not get.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

from daguerre.router.answers import FirstChoice, answer_of
from daguerre.router.choose import tags_of
from daguerre.router.config import Config
from daguerre.router.graders import grade
from daguerre.router.replies import BackendError, EventCheck, whole_body
from daguerre.router.requests import draw_of
from daguerre.router.routed_request import RoutedRequest, Write, cost_of, counts_of
from daguerre.router.upstream import Upstreams

LOG = logging.getLogger("daguerre.router")
MOST_KEPT = 4 << 20
"""Bytes of an answer that is graded."""


class Shadows:
    """Asks again, and grades."""

    def __init__(self, config: Config, upstreams: Upstreams, write: Write) -> None:
        self._config, self._upstreams, self._write = config, upstreams, write
        self._tasks = set[asyncio.Task[None]]()

    def wants(self, routed: RoutedRequest) -> bool:
        """Whether the answer to a request is needed after its end."""
        return self._second(routed) is not None or self._graded_alone(routed)

    def begin(self, routed: RoutedRequest, backend: str, answer: bytes, streamed: bool) -> None:
        """Go on with a request that a backend has answered."""
        second = self._second(routed)
        if second == backend:
            second = None
        if second is None and not self._graded_alone(routed):
            return
        if len(self._tasks) >= self._config.shadow.most_in_flight or len(answer) > MOST_KEPT:
            return
        task = asyncio.create_task(self._follow(routed, second, answer, streamed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Give up what runs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _second(self, routed: RoutedRequest) -> str | None:
        """The backend that a request's shadow goes to; None: it has none."""
        shadow, body = self._config.shadow, routed.body
        bound = routed.features.conversation is not None or any(
            body.get(name) for name in ("previous_response_id", "conversation", "background")
        )
        if bound or routed.operation == "embeddings" or routed.features.step not in shadow.steps:
            return None
        draw = draw_of(routed.id, "shadow:")
        if draw >= shadow.share:
            return None
        if (small := routed.small) is not None:
            other = str(routed.decision.backend) if small.given else small.name
            return other if shadow.backend in (None, other) else None
        able = [
            each.name
            for each in routed.decision.candidates
            if each.excluded is None and each.name != routed.decision.backend and shadow.backend in (None, each.name)
        ]
        return able[min(int(draw / shadow.share * len(able)), len(able) - 1)] if able else None

    def _graded_alone(self, routed: RoutedRequest) -> bool:
        grader = self._config.grader
        return (
            grader.kind != "exact" and draw_of(routed.id, "grade:") < grader.share and routed.operation != "embeddings"
        )

    async def _follow(self, routed: RoutedRequest, second: str | None, answer: bytes, streamed: bool) -> None:
        """Ask the second backend, grade both answers, and write the line."""
        line: dict[str, Any] = {"shadow_of": routed.id, "backend": second, "grader": self._config.grader.kind}
        try:
            main = answer_of(routed.operation, answer, streamed)
            other = None if second is None else await self._other(routed, second, line)
            line["grade"] = None if second is None else await self._graded(routed, other, main)
            alone = self._config.grader.kind != "exact"
            line["main_grade"] = await self._graded(routed, main, None) if alone else None
        except BackendError as error:
            line |= {"error": error.kind, "message": str(error), "status": error.status}
        except Exception:
            LOG.exception("a shadow failed")
            line["error"] = "router"
        self._write(line)

    async def _other(self, routed: RoutedRequest, second: str, line: dict[str, Any]) -> FirstChoice | None:
        """The answer of the second backend: one that was rejected is there already."""
        small = routed.small
        if small is not None and small.name == second and not small.given:
            return small.said
        return await self._asked(routed, second, line)

    async def _asked(self, routed: RoutedRequest, name: str, line: dict[str, Any]) -> FirstChoice | None:
        """The answer of the second backend, whose facts go into the line."""
        body = {
            key: value for key, value in routed.body.items() if key not in ("stream", "stream_options", "diffusing")
        }
        body |= {"store": False} if routed.operation == "responses" else {}
        began, check = time.monotonic(), EventCheck(name)
        async with self._upstreams.ask_beside(name, routed.path, body, routed.headers) as reply:
            given, value = await whole_body(name, reply.chunks)
        ended = time.monotonic()
        took = 1000 * (ended - began)
        line |= {"status": reply.status, "ms": round(took, 3)}
        if reply.status >= 400:
            return None
        self._upstreams.latencies.add(name, routed.size, None, took, ended)
        check.answer(value)
        backend = self._upstreams[name].backend
        counts = counts_of(check.usage, routed.features.input_tokens, len(given), backend.context)
        line |= {"tokens": counts, "cost": cost_of(counts, backend.price), "finish": check.finish}
        return answer_of(routed.operation, given, streamed=False)

    async def _graded(
        self, routed: RoutedRequest, answer: FirstChoice | None, other: FirstChoice | None
    ) -> float | None:
        """The grade of an answer; None if it cannot be read, or if the judge may not see it."""
        judge, tags = self._config.grader.judge, tags_of(routed.features, self._config)
        if answer is None or (judge is not None and not tags <= set(self._config.backend(judge).tags)):
            return None
        return await grade(self._config.grader, routed.body, routed.operation, answer, other, self._judge)

    async def _judge(self, body: Mapping[str, Any]) -> str:
        """What the backend that judges says to a chat."""
        name = self._config.grader.judge
        assert name is not None
        async with self._upstreams.ask_beside(name, "/chat/completions", body, {}) as reply:
            said = answer_of("chat", (await whole_body(name, reply.chunks))[0], streamed=False)
        return "" if said is None else said.text
