"""Faults: what a client sees of the router while its backends die, stall, break off and send rubbish.

    pip install 'daguerre[route,bench]'
    python benchmarks/routing_faults.py

Requests, half of them streamed and some with tool calls, go through `daguerre route` to five backends in processes of
their own, each named first as often as the others. Four of them have a fault in every third request, of all kinds in
`FAULTS`; the last is also killed again and again. Each backend notes when it begins to answer a request, before the
first byte of content is sent, so that the notes do not depend on the router. What must hold:

    lost        every request ends with its own complete answer, or with an error: a status of 400 and above, or an
                error event at the end of the stream. A text that stops silently, or is another request's, is lost
    twice       no backend begins a request of which another one's bytes have reached the client, and no request has
                two whole answers
    memory      does not grow once the router is warm, nor do open files
    log         has exactly one line for each request, and `daguerre route replay` makes every decision again
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from routing_backends import (
    BackendPlan,
    Client,
    HttpAnswer,
    ServerProcess,
    answer,
    backend,
    events,
    free_port,
    router,
    serve,
    started,
)
from routing_requests import STEPS, request

from daguerre.evals.machine import machine_facts
from daguerre.evals.results import publish
from daguerre.evals.tables import table
from daguerre.view.charts import BLUE, GRAY, new_figure, titled

BACKENDS = ("steady", "faulty-1", "faulty-2", "faulty-3", "mortal")
SHARE = 1 / 3
"""Of requests that meet a fault at a backend that is not steady."""
FAULTS = (
    "status 503",
    "status 500",
    "status 429",
    "reset at once",
    "reset in the middle",
    "silent",
    "stall in the middle",
    "bad JSON",
    "bad UTF-8",
    "no end",
    "slow bytes",
)
WORDS, TIMEOUT = 12, 1.0
AT_ONCE = 32
ALIVE, DEAD = 6.0, 1.5
"""Seconds that the mortal backend lives and is dead."""
WARM = 0.3
"""Share of the requests after which memory is looked at."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--keep", type=Path, help="a folder for the log and the notes")
    parser.add_argument("--short", action="store_true", help="600 requests")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/routing-faults"))
    parser.add_argument("--backend", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.backend is not None:
        said = given.backend
        serve(lambda body: misdeed(said["name"], body), said["port"], Path(said["record"]))
        return
    num = 600 if given.short else given.requests
    with tempfile.TemporaryDirectory() as folder:
        found = run(num, given.keep or Path(folder))
    publish(given.out, {"machine": machine_facts(), **found}, page(found), draw(found))


def fault_of(name: str, number: int) -> str | None:
    """The fault that a backend has with a request; None: it answers well."""
    draw = random.Random(f"{name} {number}")
    return draw.choice(FAULTS) if name != "steady" and draw.random() < SHARE else None


def text_of(name: str, number: int) -> str:
    """What a backend answers to a request."""
    return " ".join([name, str(number), *(f"wörd{place}" for place in range(WORDS))])


def misdeed(name: str, body: dict[str, Any]) -> BackendPlan:
    """What a backend does with a request."""
    number, stream = int(body["seed"]), bool(body.get("stream"))
    kind = fault_of(name, number)
    if kind and kind.startswith("status"):
        return BackendPlan(status=int(kind.split()[1]), pieces=[b'{"error":{"message":"no","type":"server_error"}}'])
    if kind == "silent" or kind == "reset at once":
        return BackendPlan(ends="silent" if kind == "silent" else "reset")
    plan = BackendPlan(
        delay=0.005, pieces=_pieces(name, number, stream, bool(body.get("tools"))), gap=0.001, stream=stream
    )
    half = max(1, len(plan.pieces) // 2)
    if kind == "bad JSON":
        plan.pieces = [*plan.pieces[:half], b'data: {"choices": [\n\n', *plan.pieces[half:]] if stream else [b'{"id": ']
    elif kind == "bad UTF-8":
        bad = b'{"choices": [{"index": 0, "delta": {"content": "\xff\xfe"}}]}'
        plan.pieces = [*plan.pieces[:half], b"data: " + bad + b"\n\n", *plan.pieces[half:]] if stream else [bad]
    elif kind == "slow bytes":
        whole = b"".join(plan.pieces)
        plan.pieces, plan.gap = [whole[at : at + 7] for at in range(0, len(whole), 7)], 0.0005
    elif kind == "no end" and stream:
        plan.pieces = plan.pieces[:half]
    elif kind in ("reset in the middle", "stall in the middle", "no end"):
        plan.ends = "stall" if kind.startswith("stall") else "reset"
        plan.pieces = plan.pieces[:half] if stream else [plan.pieces[0][:40]]
        if not stream:
            plan.headers, plan.size = {}, 4000
    return plan


def _pieces(name: str, number: int, stream: bool, tools: bool) -> list[bytes]:
    """A good answer."""
    text = text_of(name, number)
    call = {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": "find_orders", "arguments": json.dumps(text)},
    }
    if stream:
        return events([f"{word} " for word in text.split()], 100, WORDS, [{"index": 0, **call}] if tools else None)
    return [answer(f"{text} ", 100, WORDS, **({"tool_calls": [call]} if tools else {}))]


def run(num: int, folder: Path) -> dict[str, Any]:
    """All that was seen."""
    port, config, log = free_port(), folder / "route.toml", folder / "decisions.jsonl"
    log.unlink(missing_ok=True)
    records = {name: folder / f"{name}.notes" for name in BACKENDS}
    backends = dict[str, ServerProcess]()
    for name in BACKENDS:
        records[name].unlink(missing_ok=True)
        backends[name] = backend(__file__, name, folder, record=str(records[name]))
    lines = ['overrides = ["backend"]', "[server]", f"port = {port}", f'log = "{log}"']
    lines.append(f'state = "{folder / "state.sqlite"}"')
    for name, one in backends.items():
        lines += ["[[backends]]", f'name = "{name}"', f'url = "http://127.0.0.1:{one.port}/v1"', 'model = "m"']
        lines += [f"timeout = {TIMEOUT}", "most_in_flight = 1000"]
    config.write_text("\n".join(lines) + "\n")
    front = router(config, port, folder)
    with started(*backends.values(), front):
        answers, memory = asyncio.run(drive(num, front, backends["mortal"]))
    replayed = subprocess.run(
        [sys.executable, "-m", "daguerre", "route", "replay", str(log)], capture_output=True, text=True, check=False
    )
    found = judge(answers, records)
    return {
        "requests": num,
        **found,
        **memory_facts(memory),
        "memory": memory,
        "log": log_facts(log, num),
        "replay": {"status": replayed.returncode, "said": (replayed.stdout + replayed.stderr).strip()[-300:]},
    }


async def drive(
    num: int, front: ServerProcess, mortal: ServerProcess
) -> tuple[dict[int, HttpAnswer], list[list[float]]]:
    """The answers, and a list of requests answered so far, seconds, kilobytes and open files of the router."""
    client, answers, memory = Client(front.port), dict[int, HttpAnswer](), list[list[float]]()
    numbers, began = iter(range(num)), time.perf_counter()
    assert front.running is not None
    files = Path(f"/proc/{front.running.pid}/fd")

    async def work() -> None:
        for number in numbers:
            body = request(number, STEPS[number % len(STEPS)], stream=number // 10 % 2 == 0)
            headers = {"x-request-id": f"fault-{number}", "x-route-backend": BACKENDS[number % 7 % len(BACKENDS)]}
            answers[number] = await client.ask(json.dumps(body).encode(), headers)

    async def look() -> None:
        while True:
            here = [time.perf_counter() - began, front.kilobytes(), len(os.listdir(files))]
            memory.append([len(answers), *here])
            await asyncio.sleep(0.5)

    async def kill() -> None:
        while True:
            await asyncio.sleep(ALIVE)
            mortal.kill()
            await asyncio.sleep(DEAD)
            await asyncio.to_thread(mortal.start)

    beside = [asyncio.create_task(look()), asyncio.create_task(kill())]
    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    client.close()
    await asyncio.sleep(3)
    for task in beside:
        task.cancel()
    await asyncio.gather(*beside, return_exceptions=True)
    return answers, memory


def read_answer(number: int, got: HttpAnswer) -> tuple[str, str | None]:
    """What a request came to, and the backend whose text reached the client: complete, error, or what is wrong."""
    if got.broken or not got.status:
        return "lost: the connection ended", None
    if got.status >= 400:
        return ("error", None) if _is_error(got.body) else ("lost: an error without a message", None)
    try:
        text = bytes(got.body).decode()
        parts = [json.loads(text)]
        if not got.headers.get("content-type", "").startswith("text/event-stream"):
            return _complete(number, parts[0]["choices"][0]["message"]["content"], True)
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, IndexError):
        if not got.headers.get("content-type", "").startswith("text/event-stream"):
            return "lost: the body cannot be read", None
    return _read_stream(number, bytes(got.body))


def _read_stream(number: int, body: bytes) -> tuple[str, str | None]:
    said, ended = "", False
    for block in body.split(b"\n\n"):
        data = block.strip().removeprefix(b"data:").strip()
        if not data:
            continue
        if data == b"[DONE]":
            ended = True
            continue
        try:
            event = json.loads(data)
        except ValueError:
            event = None
        if isinstance(event, dict) and "error" in event:
            return "error in the stream", said.split(" ")[0] or None
        for choice in event.get("choices", []) if isinstance(event, dict) else []:
            said += choice.get("delta", {}).get("content") or ""
    return _complete(number, said, ended)


def _complete(number: int, text: str, ended: bool) -> tuple[str, str | None]:
    name = text.split(" ")[0]
    if text.strip() != text_of(name, number):
        return "lost: the text is cut or another's", name
    return ("complete" if ended else "lost: no end"), name


def _is_error(body: bytes | bytearray) -> bool:
    try:
        return isinstance(json.loads(body)["error"]["message"], str)
    except (ValueError, KeyError, TypeError):
        return False


def judge(answers: dict[int, HttpAnswer], records: dict[str, Path]) -> dict[str, Any]:
    """Outcomes of requests, and those that were begun or done again."""
    begun, whole = defaultdict[int, list[tuple[int, str]]](list), Counter[int]()
    for name, path in records.items():
        for line in path.read_text().splitlines():
            number, what, at = line.split()
            if what == "begun":
                begun[int(number)].append((int(at), name))
            elif fault_of(name, int(number)) in (None, "slow bytes"):
                whole[int(number)] += 1
    outcomes, after, wrong = Counter[str](), list[int](), list[Any]()
    for number, got in answers.items():
        outcome, name = read_answer(number, got)
        outcomes[outcome] += 1
        if outcome.startswith("lost"):
            wrong.append([number, outcome, got.status, bytes(got.body[-200:]).decode("utf-8", "replace")])
        order = sorted(begun[number])
        if name is not None and [one for _, one in order[-1:]] != [name]:
            after.append(number)
    met = Counter(fault_of(name, number) for number, some in begun.items() for _, name in some)
    return {
        "outcomes": dict(outcomes),
        "lost": wrong[:20],
        "num_lost": len(wrong),
        "begun_after_bytes_reached_the_client": after,
        "two_whole_answers": [number for number, times in whole.items() if times > 1],
        "begun_again_before_the_first_byte": sum(len(some) > 1 for some in begun.values()),
        "faults_in_answers_begun": {str(kind): times for kind, times in met.items()},
    }


def memory_facts(memory: list[list[float]]) -> dict[str, float]:
    """Growth after the warm-up and in the last half, in kilobytes for a thousand requests; and open files."""
    warm, half = (growth(memory, share) for share in (WARM, 0.5))
    return {
        "kilobytes_for_a_thousand_requests": warm,
        "kilobytes_for_a_thousand_requests_in_the_last_half": half,
        "megabytes_warm": next(one[2] for one in memory if one[0] >= WARM * memory[-1][0]) / 1024,
        "megabytes_at_the_end": memory[-1][2] / 1024,
        "open_files_at_the_end": memory[-1][3],
        "seconds": memory[-1][1],
    }


def growth(memory: list[list[float]], share: float) -> float:
    """Kilobytes for a thousand requests after this share of them, by least squares."""
    late = [one for one in memory if one[0] >= share * memory[-1][0]]
    return 1000 * float(np.polyfit([one[0] for one in late], [one[2] for one in late], 1)[0]) if len(late) > 2 else 0.0


def log_facts(log: Path, num: int) -> dict[str, Any]:
    """How many requests have exactly one line."""
    lines = Counter[str]()
    attempts = Counter[str]()
    for text in log.read_text().splitlines():
        line = json.loads(text)
        if "decision" in line:
            lines[line["request"]] += 1
            attempts.update(one.get("error", "answered") for one in line["attempts"])
    one_each = sum(lines[f"fault-{number}"] == 1 for number in range(num))
    return {"with_one_line": one_each, "lines": sum(lines.values()), "attempts": dict(attempts)}


def page(found: dict[str, Any]) -> str:
    """Markdown."""
    num, warm = found["requests"], found["kilobytes_for_a_thousand_requests"]
    half = found["kilobytes_for_a_thousand_requests_in_the_last_half"]
    rows = {f"ended: {name}": times for name, times in sorted(found["outcomes"].items())}
    rows |= {
        "**lost without an error**": found["num_lost"],
        "**begun again after bytes had reached the client**": len(found["begun_after_bytes_reached_the_client"]),
        "**two whole answers**": len(found["two_whole_answers"]),
        "begun again before the first byte": found["begun_again_before_the_first_byte"],
        "memory, KB for a thousand requests once warm, and in the last half": f"{warm:+.0f}, {half:+.0f}",
        "memory, MB when warm and at the end": f"{found['megabytes_warm']:.1f}, {found['megabytes_at_the_end']:.1f}",
        "requests with exactly one line in the log": f"{found['log']['with_one_line']} of {num}",
        "replay": found["replay"]["said"].splitlines()[-1] if found["replay"]["said"] else "",
    }
    return f"{num} requests, {AT_ONCE} at once, {found['seconds']:.0f} s.\n\n{table(['', ''], rows.items())}\n"


def draw(found: dict[str, Any]) -> Any:
    """The router's memory over the requests."""
    figure = new_figure(7, 3)
    panel = titled(figure.subplots(), "memory of the router, MB", "requests answered", size=11)
    panel.plot([one[0] for one in found["memory"]], [one[2] / 1024 for one in found["memory"]], color=BLUE)
    panel.axvline(WARM * found["requests"], color=GRAY, linewidth=0.8, linestyle="--")
    panel.set_ylim(0, max(one[2] for one in found["memory"]) / 1024 * 1.15)
    return figure


if __name__ == "__main__":
    main()
