"""Any server that speaks OpenAI's completions or chat completions, measured from outside, by the stream that it sends.

first     seconds from sending a request to its first text
gap       seconds between a chunk with text and the next; the server chooses how many tokens a chunk has
tokens    as the server counts them: `usage` in the last chunk of the stream, which the request includes
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any, Literal

from daguerre.errors import DataError, InputError, MissingExtra
from daguerre.evals.workers import Progress, no_progress
from daguerre.heldout import load_frozen

Route = Literal["completions", "chat"]
PATHS: dict[str, str] = {"completions": "completions", "chat": "chat/completions"}
PROMPT_CHARACTERS = 400
TIMEOUT = 300.0


@dataclass(frozen=True, kw_only=True)
class Target:
    """Which server is measured, and with which requests.

    url          of the server, its version included, such as http://127.0.0.1:8000/v1
    model        a name that it knows; None: the first that it lists
    route        "completions" or "chat"
    max_tokens   of each request
    key          sent as a bearer token, where the server needs one; not part of a report
    """

    url: str
    model: str | None = None
    route: Route = "completions"
    max_tokens: int = 128
    key: str | None = None

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise InputError(f"the endpoint {self.url!r} is not an address: give one such as http://HOST:PORT/v1")
        if self.route not in PATHS:
            raise InputError(f"a route is 'completions' or 'chat', not {self.route!r}")
        if self.max_tokens < 1:
            raise InputError(f"max_tokens must be 1 or more, not {self.max_tokens}")


@dataclass(frozen=True)
class RequestOutcome:
    """One request: seconds in all, and when text came. `tokens` is None where the server did not count."""

    seconds: float
    at: tuple[float, ...]
    tokens: int | None


def measure_endpoint(
    target: Target, levels: Sequence[int] = (1, 4, 16), requests: int = 16, progress: Progress = no_progress
) -> dict[str, Any]:
    """`requests` requests at each level, which is how many of them run at once; one request before them warms up.

    InputError for levels below 1; DataError when the server cannot be reached at all. A request that fails is counted
    under its reason, and the others go on.
    """
    try:
        import httpx2
    except ImportError:
        raise MissingExtra("httpx2", "bench") from None
    if min(levels, default=0) < 1 or requests < 1:
        raise InputError("requests, and how many of them at once, must be 1 or more")
    headers = {} if target.key is None else {"Authorization": f"Bearer {target.key}"}
    limits = httpx2.Limits(max_connections=max(levels))
    with httpx2.Client(
        base_url=target.url.rstrip("/") + "/", headers=headers, timeout=TIMEOUT, limits=limits
    ) as client:
        model = target.model or _first_model(client)
        texts = prompts(requests * len(levels) + 1)
        _outcome(client, target, model, next(texts))
        found = [_level(client, target, model, texts, level, requests, progress) for level in levels]
    return {
        "url": target.url,
        "model": model,
        "route": target.route,
        "max_tokens": target.max_tokens,
        "levels": found,
    }


def prompts(number: int) -> Iterator[str]:
    """Beginnings of held-out documents, no two alike, so that no prefix cache of the server can hold them."""
    documents = load_frozen()
    for index in range(number):
        document = documents[index % len(documents)]
        yield f"# {index}\n{document.text[:PROMPT_CHARACTERS]}"


def _first_model(client: Any) -> str:
    try:
        listed = client.get("models").json()["data"]
        return str(listed[0]["id"])
    except Exception as error:
        raise DataError(f"{client.base_url} does not list its models ({type(error).__name__}): name one") from None


def _level(
    client: Any, target: Target, model: str, texts: Iterator[str], level: int, requests: int, progress: Progress
) -> dict[str, Any]:
    """The figures of `requests` requests, `level` of them at once."""
    errors: Counter[str] = Counter()
    done: list[RequestOutcome] = []
    started = time.perf_counter()
    with ThreadPoolExecutor(level) as pool:
        futures = [pool.submit(_outcome, client, target, model, next(texts)) for _ in range(requests)]
        for number, future in enumerate(as_completed(futures), 1):
            outcome = future.result()
            if isinstance(outcome, RequestOutcome):
                done.append(outcome)
            else:
                errors[outcome] += 1
            progress(f"{level} at once", number, requests)
    return summary(done, dict(errors), level, requests, time.perf_counter() - started)


def summary(
    done: Sequence[RequestOutcome], errors: dict[str, int], level: int, requests: int, seconds: float
) -> dict[str, Any]:
    """Medians and 95th percentiles over the requests that were completed; None where there are no values."""
    first = [outcome.at[0] for outcome in done]
    gaps = [after - before for outcome in done for before, after in zip(outcome.at, outcome.at[1:], strict=False)]
    each = [outcome.tokens / outcome.seconds for outcome in done if outcome.tokens is not None]
    counted = [outcome.tokens for outcome in done if outcome.tokens is not None]
    return {
        "concurrency": level,
        "requests": requests,
        "completed": len(done),
        "errors": errors,
        "without_usage": len(done) - len(counted),
        "seconds": seconds,
        "first_seconds": percentile(first, 0.5),
        "first_seconds_p95": percentile(first, 0.95),
        "gap_seconds": percentile(gaps, 0.5),
        "gap_seconds_p95": percentile(gaps, 0.95),
        "request_seconds": percentile([outcome.seconds for outcome in done], 0.5),
        "request_seconds_p95": percentile([outcome.seconds for outcome in done], 0.95),
        "tokens": sum(counted),
        "tokens_per_second": sum(counted) / seconds if counted else None,
        "tokens_per_second_each": statistics.median(each) if each else None,
    }


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest of the values that `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(1, math.ceil(share * len(ordered))) - 1] if ordered else None


def _outcome(client: Any, target: Target, model: str, prompt: str) -> RequestOutcome | str:
    """One request, or why it failed."""
    given: dict[str, Any] = {"prompt": prompt}
    if target.route == "chat":
        given = {"messages": [{"role": "user", "content": f"Continue this Python file:\n\n{prompt}"}]}
    body = {"model": model, **given, "max_tokens": target.max_tokens, "temperature": 0, "stream": True}
    body |= {"stream_options": {"include_usage": True}}
    started = time.perf_counter()
    at: list[float] = []
    tokens, ended = None, False
    try:
        with client.stream("POST", PATHS[target.route], json=body) as response:
            if response.status_code != 200:
                return f"status {response.status_code}"
            for line in response.iter_lines():
                if not line.startswith("data:"):
                    continue
                data = line.removeprefix("data:").strip()
                if data == "[DONE]":
                    ended = True
                    break
                event = json.loads(data)
                if "error" in event:
                    return "an error in the stream"
                if any(_text(choice) for choice in event.get("choices") or ()):
                    at.append(time.perf_counter() - started)
                tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    except Exception as error:  # a server may fail in any way
        return type(error).__name__
    if not ended:
        return "the stream ended without [DONE]"
    return RequestOutcome(time.perf_counter() - started, tuple(at), tokens) if at else "no text"


def _text(choice: dict[str, Any]) -> str:
    """What a chunk adds, of a completion or a chat."""
    return str(choice.get("text") or (choice.get("delta") or {}).get("content") or "")
