"""A published model under load: who waits for a long prompt, and what a crowd gets.

    python benchmarks/serving_real.py MODEL.gguf [--quantize int8] [--llama PACKAGES]        make load, half an hour

One server, and clients of its own. First a long prompt by itself; then four streams, the same prompt again, and a short
request in the middle of it: the longest that a stream was silent, the newcomer's first token, and how much longer the
long prompt took. Then sixteen requests at once and one alone, in the default mode and in "ar", in turns; and a prompt
with one thread and with two. With the folder of npm's packages in which node-llama-cpp is, llama.cpp does the same with
the file as it is, but for a shorter long prompt, which this server reads too. Quote the ratios: times are those of a
machine and its neighbors.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
from servers import serving

from daguerre.evals.machine import machine_facts
from daguerre.evals.results import publish
from daguerre.evals.tables import table

ROOT = Path(__file__).resolve().parent.parent
STREAMS, CROWD, TOKENS, PIECES = 4, 16, 48, 8
PATIENCE = 120
"""Seconds that are waited for a token of llama.cpp."""
QUESTIONS = [
    f"Explain in a few sentences how {what} works, and why it matters."
    for what in (
        *("a bicycle", "the tide", "a compiler", "a violin", "yeast", "a vaccine", "the moon", "a lock", "a cheque"),
        *("a sail", "glass", "a hash table", "rust", "a mortgage", "an echo", "a queue"),
    )
]


class Stream(threading.Thread):
    """A completion that is streamed: when it was asked, and when each piece came, on one clock."""

    def __init__(self, url: str, prompt: str | Sequence[int], tokens: int, **more: Any) -> None:
        super().__init__(daemon=True)
        self.asked, self.at, self.error = time.perf_counter(), list[float](), ""
        body: dict[str, Any] = {"prompt": prompt, "max_tokens": tokens, "stream": True, "temperature": 0}
        body["daguerre"] = {"min_tokens": tokens, **more}
        self._url, self._body, self._closed = f"{url}/v1/completions", body, False
        self.start()

    def run(self) -> None:
        with httpx2.Client(timeout=3600) as client, client.stream("POST", self._url, json=self._body) as answer:
            if answer.status_code != 200:
                self.error = answer.read().decode()
                return
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    self.at.append(time.perf_counter())
                if self._closed:
                    return

    def close(self) -> None:
        """Leave at the next piece."""
        self._closed = True

    def done(self) -> float:
        """Seconds from asking to the end."""
        self.join()
        if self.error:
            raise RuntimeError(self.error)
        return self.at[-1] - self.asked

    @property
    def first(self) -> float:
        """Seconds to its first piece."""
        return self.at[0] - self.asked

    def gap(self, begin: float, end: float) -> float:
        """The longest silence between two moments."""
        at = [begin, *(one for one in self.at if begin < one < end), end]
        return max(after - before for before, after in zip(at, at[1:], strict=False))


def started(given: argparse.Namespace, threads: int) -> Any:
    """A server of the model."""
    quantize = [] if given.quantize is None else ["--quantize", given.quantize]
    return serving("--model", f"m={given.model}", *quantize, threads=threads)


def source(package: str) -> str:
    """The text of this project's own modules of a package."""
    return "\n".join(path.read_text() for path in sorted((ROOT / "src" / "daguerre" / package).glob("*.py")))


def tokens_of(url: str, text: str, num: int) -> list[int]:
    """The first tokens of a text, at most so many."""
    asked = {"prompt": text[: 6 * num]}
    ids: list[int] = httpx2.post(f"{url}/tokenize", json=asked, timeout=600).json()["tokens"]
    return ids[:num]


def wait_for(streams: Sequence[Stream], pieces: int) -> None:
    """Until each has as many pieces more."""
    wanted = [len(stream.at) + pieces for stream in streams]
    while any(len(stream.at) < num for stream, num in zip(streams, wanted, strict=True)):
        if failed := next((stream.error for stream in streams if stream.error), None):
            raise RuntimeError(failed)
        time.sleep(0.01)


def long_prompt(url: str, ids: list[int], pieces: int = PIECES) -> dict[str, float]:
    """What others wait for while a prompt is read. The newcomer comes once each stream has had pieces meanwhile."""
    num = len(ids) - 1
    alone = Stream(url, ids[:num], 1).done()
    streams = [Stream(url, question, 4000) for question in QUESTIONS[:STREAMS]]
    wait_for(streams, 4)
    asked = Stream(url, ids[1 : num + 1], 1)  # not what was stored
    wait_for(streams, pieces)
    newcomer = Stream(url, QUESTIONS[-1], 2)
    newcomer.done()
    took = asked.done()
    end = asked.at[-1]
    heard = [len([at for at in one.at if asked.asked < at < end]) for one in streams]
    gaps = [stream.gap(asked.asked, end) for stream in streams]
    for stream in streams:
        stream.close()
    return {
        "tokens": num,
        "alone_seconds": alone,
        "seconds": took,
        "longer": took / alone,
        "longest_silence": max(gaps),
        "newcomer_first": newcomer.first,
        "newcomer_before_it": float(newcomer.at[-1] < end),
        "fewest_pieces": min(heard),
    }


def crowd(url: str, num: int, tokens: int, rounds: int) -> dict[str, float]:
    """Tokens a second of requests at once, in the default mode and in "ar", and of one in "ar"."""
    found: dict[str, list[float]] = {"default": [], "ar": [], "one": []}
    for _ in range(rounds):
        for name, at_once, more in (("default", num, {}), ("ar", num, {"mode": "ar"}), ("one", 1, {"mode": "ar"})):
            began = time.perf_counter()
            streams = [Stream(url, question, tokens, **more) for question in QUESTIONS[:at_once]]
            for stream in streams:
                stream.done()
            found[name].append(at_once * tokens / (time.perf_counter() - began))
    middle = {name: statistics.median(values) for name, values in found.items()}
    default = statistics.median(a / b for a, b in zip(found["default"], found["ar"], strict=True))
    return {**middle, "default_over_ar": default, "crowd_over_one": middle["ar"] / middle["one"], "at_once": num}


def reading(given: argparse.Namespace, num: int) -> dict[str, float]:
    """Seconds of a prompt with one thread and with two, in turns."""
    found: dict[int, list[float]] = {1: [], 2: []}
    with started(given, 1) as (one_thread, _), started(given, 2) as (two_threads, _):
        ids = tokens_of(one_thread, source("decoding"), num + given.rounds)
        for number in range(given.rounds):
            for threads, url in ((1, one_thread), (2, two_threads)):
                found[threads].append(Stream(url, ids[number : num + number], 1).done())
    one, two = (statistics.median(found[threads]) for threads in (1, 2))
    return {"tokens": num, "one": one, "two": two, "faster": one / two}


def llama(given: argparse.Namespace, ids: list[int], questions: list[list[int]]) -> dict[str, dict[str, float | None]]:
    """The long prompt and the crowd by llama.cpp, a process of its own whose clients live in it; None: not in time."""
    asked = {
        "packages": str(given.llama),
        "model": given.model,
        "threads": given.threads,
        "long": ids,
        "room": 1024,
        "questions": questions,
        "streams": STREAMS,
        "pieces": PIECES,
        "at_once": given.crowd,
        "tokens": given.tokens,
        "rounds": given.rounds,
        "patience": PATIENCE,
    }
    command = ["node", str(Path(__file__).with_name("serving_llama.mjs"))]
    done = subprocess.run(command, input=json.dumps(asked), stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, dict[str, float | None]] = json.loads(done.stdout.splitlines()[-1])
    return {f"{name}, llama.cpp": values for name, values in found.items()}


def page(found: dict[str, Any]) -> str:
    """What was measured, as a page."""
    rows = [
        [part, name, "none came" if value is None else f"{value:.3g}"]
        for part, values in found.items()
        if isinstance(values, dict) and part != "machine"
        for name, value in values.items()
    ]
    return f"# {found['model']} under load\n\n{table(['', '', ''], rows, left=2)}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file or a folder")
    parser.add_argument("--quantize", choices=("int8", "approximate_int4"))
    parser.add_argument("--long", type=int, default=20_000, help="tokens of the long prompt")
    parser.add_argument("--llama", type=Path, help="a folder with node_modules/node-llama-cpp, to measure beside")
    parser.add_argument("--beside", type=int, default=4_000, help="tokens of the long prompt that both read")
    parser.add_argument("--reading", type=int, default=2_000, help="tokens of the prompt that is read by itself")
    parser.add_argument("--crowd", type=int, default=CROWD)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="that each of a crowd writes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "serving-real")
    given = parser.parse_args()
    found: dict[str, Any] = {"model": Path(given.model).name, "quantize": given.quantize, "machine": machine_facts()}
    with started(given, given.threads) as (url, _):
        found["crowd"] = crowd(url, given.crowd, given.tokens, given.rounds)
        if given.llama is not None:
            ids = tokens_of(url, source("engine"), given.beside + 1)
            questions = [tokens_of(url, question, 100) for question in QUESTIONS]
            found["long_prompt, as long as llama.cpp's"] = long_prompt(url, ids)
        found["long_prompt"] = long_prompt(url, tokens_of(url, source("decoding"), given.long + 1))
    if given.llama is not None:
        found |= llama(given, ids, questions)
    found["reading"] = reading(given, given.reading)
    publish(given.out, found, page(found))


if __name__ == "__main__":
    main()
