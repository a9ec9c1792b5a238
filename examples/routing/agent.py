"""An agent of four steps, `classify -> look up -> plan -> act`, and its bill and latency before and after routing.

    pip install 'daguerre[serve,route]' openai
    daguerre serve --port 8000 &
    daguerre route --config examples/routing/route.toml &
    python examples/routing/agent.py

Before: the strong backend does every step. It cannot fill a gap, so it acts by writing the whole function again. After:
the router decides, and the last step is the gap alone. Both take turns, so that a busy machine slows both.

The model is the default one, of 6 million parameters, trained to write Python: its answers mean nothing here. What is
shown is where each step goes, how long it takes, and what it costs at the invented prices of route.toml.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openai import OpenAI

STEPS = ("classify", "look up", "plan", "act")
STRONG = "strong"
MANUAL = """[1] mean(values) adds the values and divides the sum by their number.
[2] median(values) sorts the values and takes the middle one.
[3] read(path) reads numbers from a file, one in each line."""


@dataclass(frozen=True)
class Ticket:
    """What is wrong, and the function with the place where something is missing."""

    text: str
    before: str
    after: str


TICKETS = (
    Ticket(
        "mean([]) raises ZeroDivisionError, and should be 0.", "def mean(values):\n", "    return sum(values) / n\n"
    ),
    Ticket(
        "median([3, 1, 2]) is 1, and should be 2.", "def median(values):\n", "    return values[len(values) // 2]\n"
    ),
    Ticket(
        "read(path) fails at an empty line.", "def read(path):\n    for line in open(path):\n", "    return found\n"
    ),
)


@dataclass(frozen=True)
class Done:
    """A step: who did it, taken for which type, in how many milliseconds, for how many dollars."""

    step: str
    backend: str
    kind: str
    ms: float
    dollars: float


@dataclass
class Agent:
    """Works on tickets. backend: which does every step; None: the router decides."""

    client: OpenAI
    prices: Mapping[str, Mapping[str, float]]
    backend: str | None
    done: list[Done] = field(default_factory=list)

    def work(self, ticket: Ticket) -> dict[str, Any]:
        """The four steps."""
        label = json.loads(
            self._chat(
                "classify",
                "Classify the ticket. Answer with one label: bug, question or wish.",
                ticket.text,
                16,
                {"label": {"enum": ["bug", "question", "wish"]}},
            )
        )["label"]
        found = self._chat(
            "look up",
            f"Answer the question from the pages below, in their words.\n\n{MANUAL}",
            f"According to the pages, what does the function do? Somebody writes: {ticket.text}",
            16,
        )
        plan = json.loads(
            self._chat(
                "plan",
                "You are a planner. Make a plan of three steps, and do none of them.",
                f"Plan how to fix this {label}: {ticket.text}\nThe manual says: {found}",
                96,
                {
                    "steps": {
                        "type": "array",
                        "items": {"type": "string", "maxLength": 24},
                        "minItems": 3,
                        "maxItems": 3,
                    }
                },
            )
        )["steps"]
        return {"label": label, "found": found, "plan": plan, "code": self._act(ticket, plan)}

    def _act(self, ticket: Ticket, plan: Sequence[str]) -> str:
        if self.backend is None:
            create, body = self.client.completions, {"prompt": ticket.before, "suffix": ticket.after}
            return str(self._timed("act", create, max_tokens=16, **body).choices[0].text)
        told = f"Fix this: {ticket.text} The plan: {'; '.join(plan)}. Write the whole function again."
        return self._chat("act", told, ticket.before + ticket.after, 64)

    def _chat(self, step: str, system: str, user: str, most: int, fields: Mapping[str, Any] | None = None) -> str:
        """The text of an answer, which is a JSON object of these fields where there are some."""
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        more: dict[str, Any] = {}
        if fields is not None:
            schema = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
            named = {"name": "answer", "strict": True, "schema": schema}
            more = {"response_format": {"type": "json_schema", "json_schema": named}}
        answer = self._timed(step, self.client.chat.completions, messages=messages, max_tokens=most, **more)
        return answer.choices[0].message.content or ""

    def _timed(self, step: str, api: Any, **body: Any) -> Any:
        """An answer, noted with what it took."""
        headers = {} if self.backend is None else {"x-route-backend": self.backend}
        begun = time.perf_counter()
        raw = api.with_raw_response.create(model="auto", temperature=0, extra_headers=headers, **body)
        ms, answer = 1000 * (time.perf_counter() - begun), raw.parse()
        backend = raw.headers["x-route-backend"]
        price, usage = self.prices[backend], answer.usage
        tokens = {"input": usage.prompt_tokens, "output": usage.completion_tokens}
        dollars = price.get("request", 0) + sum(num * price.get(name, 0) for name, num in tokens.items()) / 1e6
        self.done.append(Done(step, backend, raw.headers["x-route-step"], ms, dollars))
        return answer


def table(before: Sequence[Done], after: Sequence[Done], num: int) -> str:
    """A row a step: who did it, its median time, and dollars for a thousand tickets, of `num` that were done."""
    head = f"{'step':<10}{'type':<12}" + "".join(
        f"{when:<10}{'ms':>8}{'$ / 1000':>11}   " for when in ("before", "after")
    )
    out = [head.rstrip()]
    for step in STEPS:
        sides = [[one for one in side if one.step == step] for side in (before, after)]
        out.append(
            f"{step:<10}{_all_of(sides[1], lambda one: one.kind):<12}" + "".join(_cells(side, num) for side in sides)
        )
    total = "".join(
        f"{'':<10}{_total(side):>8.0f}{1000 * sum(one.dollars for one in side) / num:>11.4f}   "
        for side in (before, after)
    )
    return "\n".join(line.rstrip() for line in [*out, f"{'all':<22}{total}"])


def _cells(side: Sequence[Done], num: int) -> str:
    dollars = 1000 * sum(one.dollars for one in side) / num
    return f"{_all_of(side, lambda one: one.backend):<10}{_median(side):>8.0f}{dollars:>11.4f}   "


def _all_of(side: Sequence[Done], word: Callable[[Done], str]) -> str:
    return "/".join(sorted({word(one) for one in side}))


def _median(side: Sequence[Done]) -> float:
    return statistics.median(one.ms for one in side)


def _total(side: Sequence[Done]) -> float:
    """The sum of the steps' medians."""
    return sum(_median([one for one in side if one.step == step]) for step in STEPS)


def main() -> None:
    """Work on all tickets both ways, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--router", default="http://127.0.0.1:8800", help="its address")
    parser.add_argument("--config", type=Path, default=Path(__file__).with_name("route.toml"), help="where prices are")
    parser.add_argument("--rounds", type=int, default=10, help="how often each ticket is worked on, both ways")
    given = parser.parse_args()
    backends = tomllib.loads(given.config.read_text(encoding="utf-8"))["backends"]
    prices = {one["name"]: one.get("price", {}) for one in backends}
    client = OpenAI(base_url=f"{given.router.rstrip('/')}/v1", api_key="none", max_retries=0)
    for backend in (STRONG, None):
        Agent(client, prices, backend).work(TICKETS[0])  # whose first requests compile constraints
    before, after = Agent(client, prices, STRONG), Agent(client, prices, None)
    for _ in range(given.rounds):
        for ticket in TICKETS:
            before.work(ticket)
            after.work(ticket)
    print(table(before.done, after.done, given.rounds * len(TICKETS)))


if __name__ == "__main__":
    main()
