"""Daguerre's side of part "real": a process that has one model of a GGUF file, and answers lines of JSON by lines of
JSON: `python -m daguerre.evals.bench.real_side`.

A line is {"ask": a name of ASKS, ...}, and the answer {"answer": ...}, or {"error": one line}. It imports what the
runtime imports and no more, so that its memory is that of a program which uses the model. On one thread its clock is
the processor's time, on several it is the wall's.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

import daguerre
from daguerre.decoding.generate import Request, plan_of
from daguerre.decoding.request import Decode
from daguerre.decoding.sample import Sample, Together
from daguerre.heldout import load_frozen
from daguerre.models.backends.library import library
from daguerre.models.forward import Backend, Draws, Forward, Hidden, KeyCache, Layout, LogProbs, Rules

REQUESTS = 16
BLOCK, FORCED = 8, 4
"""Positions of a block, and how many of them a forward is made to commit."""
MIN_SECONDS = 0.3
"""Seconds for which a shorter forward is repeated in each round."""
READ = 1 << 28
"""Bytes that memory's speed is measured on."""
TEXT = 4000
"""Characters of each held-out file that are scored: their beginning."""
PLAIN: dict[str, Any] = {"mode": "ar", "heal": False, "stop_loops": False}
Clock = Callable[[], float]


@dataclass
class RealSide:
    """The model, once it is loaded, and how many threads compute."""

    threads: int = 1
    model: daguerre.Model | None = None
    _forwards: dict[str, Callable[[], object]] = field(default_factory=dict)

    @property
    def loaded(self) -> daguerre.Model:
        """The model."""
        assert self.model is not None
        return self.model

    @property
    def clock(self) -> Clock:
        """What measures seconds."""
        return time.process_time if self.threads == 1 else time.perf_counter

    def ready(self) -> dict[str, Any]:
        """Nothing: all is imported, and the native library is compiled."""
        library()
        return {}

    def load(self, model: str, threads: int, **how: Any) -> dict[str, Any]:
        """Load a file; seconds, and what is known of it then."""
        self.threads = threads
        began = self.clock()
        found = self.model = daguerre.load(model, threads=threads, **how)
        seconds = self.clock() - began
        about = {"numbers": found.numbers, "parameters": found.num_parameters, "bytes": found.denoiser.num_bytes}
        return {"seconds": seconds, "positions": found.config.max_positions, **about}

    def texts(self, windows: int, length: int) -> dict[str, Any]:
        """Held-out Python: `text`, of which `windows` runs of `length` tokens are scored, as llama.cpp's own tool does,
        each with <bos> in the place of its first token; and the bytes of the second half of each, which counts.
        """
        model, ids, text = self.loaded, list[int](), ""
        for document in load_frozen():
            if len(ids) >= (windows + 1) * length:
                break
            text += document.text[:TEXT]
            ids = [*model.config.first, *model.tokenizer.encode(text)]
        first = model.config.first
        runs = [[*first, *ids[start + len(first) : start + length]] for start in range(0, windows * length, length)]
        sizes = [len(model.tokenizer.token_bytes(token)) for run in runs for token in run[length // 2 + 1 :]]
        return {"text": text, "windows": runs, "bytes": sum(sizes), "prompt": ids[:length]}

    def nats(self, window: list[int]) -> dict[str, Any]:
        """The sum of the negative log-probabilities of a run's second half."""
        num, tokens = len(window), np.array(window)
        wanted = np.arange(num // 2, num - 1, dtype=np.int32)
        layout = Layout(np.arange(num), np.arange(1, num + 1, dtype=np.int32), num)
        ask = LogProbs(tokens[num // 2 + 1 :])
        (answer,) = self.loaded.denoiser.backend.forward([Forward(tokens, layout, None, wanted, ask)])
        assert answer.log_probs is not None
        return {"nats": -float(answer.log_probs.sum())}

    def write(self, prompt: list[int], num: int) -> dict[str, Any]:
        """Seconds until the first token behind a prompt, and of each of the `num` after it."""
        model, times, began = self.loaded, list[float](), self.clock()
        given = prompt[len(model.config.first) :]
        *_, last = self._timed(model.stream(given, num + 1, min_tokens=num + 1, **PLAIN), times)
        tokens = [token.id for token in last.result.tokens]
        assert len(tokens) == len(times) - 1 == num + 1
        return {"prompt": times[0] - began, "token": (times[-2] - times[0]) / num, "tokens": tokens}

    def _timed(self, events: Iterator[Any], times: list[float]) -> Iterator[Any]:
        """Events; when each came is added to `times`."""
        clock = self.clock
        for event in events:
            times.append(clock())
            yield event

    def rows(self, context: int) -> dict[str, Any]:
        """Seconds of forwards behind `context` cached keys, by name: of one row, of BLOCK rows, and of as many open
        ones behind the BLOCK rows of the block before. Each draws a token for every open row. And of reading a byte.
        """
        if not self._forwards:
            cache = _cached(self.loaded.denoiser.backend, context)
            kinds = {"1": (1, 1), "8": (BLOCK, BLOCK), "16": (2 * BLOCK, BLOCK)}
            backend = self.loaded.denoiser.backend
            self._forwards = {
                name: partial(backend.forward, [_rows(cache, _tokens(backend, rows[0]), rows[1])])
                for name, rows in kinds.items()
            }
        took = {name: seconds_of(step, self.clock) for name, step in self._forwards.items()}
        return {"rows": took, "byte": self._reading() / READ}

    def _reading(self) -> float:
        """Seconds of reading READ bytes of memory."""
        parts = np.array_split(np.ones(READ // 8, np.int64), self.threads)
        with ThreadPoolExecutor(self.threads) as pool:
            return seconds_of(lambda: list(pool.map(np.sum, parts)), self.clock)

    def crowd(self, prompt: list[int], each: int, new: int) -> dict[str, Any]:
        """Seconds of requests that write `new` tokens behind prompts of `each`, none like another, driven together: of
        one, and of REQUESTS. "behind": without the step that reads the prompts.
        """
        return {name: self._together(prompt, num, each, new) for name, num in (("one", 1), ("many", REQUESTS))}

    def _together(self, prompt: Sequence[int], num: int, each: int, new: int) -> dict[str, float]:
        model, plans, decode = self.loaded, [], Decode(mode="ar", min_tokens=new, stop_loops=False)
        for start in range(num):
            asked = Request.of("generate", list(prompt[start : start + each]), new, decode, heal=False)
            plans.append(plan_of(model.denoiser, model.tokenizer, asked))
        began = self.clock()
        group = Together(model.denoiser.backend, [Sample(model.denoiser, plan, 0, None) for plan in plans])
        group.step()
        first = self.clock()
        group.run()
        return {"all": self.clock() - began, "behind": self.clock() - first}

    def keys(self, positions: int) -> dict[str, Any]:
        """Bytes of the keys and values of so many positions."""
        cache: Any = _cached(self.loaded.denoiser.backend, positions)
        return {"bytes": cache.num_bytes}


def _cached(backend: Backend, num: int) -> KeyCache:
    """A cache of `num` clean rows."""
    cache, rows = backend.cache(num), np.arange(num)
    layout, last = Layout(rows, np.arange(1, num + 1, dtype=np.int32), num), np.array([num - 1], dtype=np.int32)
    backend.forward([Forward(_tokens(backend, num), layout, cache, last, Hidden())])
    return cache


def _rows(cache: KeyCache, tokens: np.ndarray, num_open: int) -> Forward:
    """A forward that draws a token for the last `num_open` rows, and leaves its cache as it is."""
    num, places = len(tokens), cache.length + np.arange(len(tokens))
    layout, wanted = Layout(places, (places + 1).astype(np.int32), 0), np.arange(num - num_open, num, dtype=np.int32)
    return Forward(tokens, layout, cache, wanted, Draws(Rules(), places[num - num_open :] + 1))


def _tokens(backend: Backend, num: int) -> np.ndarray:
    known = backend.config.ordinary_ids
    drawn: np.ndarray = known[np.random.default_rng(0).integers(0, len(known), num)]
    return drawn


def seconds_of(step: Callable[[], object], clock: Clock) -> float:
    """The mean of as many runs as fit in MIN_SECONDS, at least two."""
    num, began = 0, clock()
    while True:
        step()
        num, took = num + 1, clock() - began
        if took >= MIN_SECONDS and num > 1:
            return took / num


ASKS = ("ready", "load", "texts", "nats", "write", "rows", "crowd", "keys")


def main() -> None:
    """Answer until the input ends."""
    answers, side = os.fdopen(os.dup(1), "w"), RealSide()
    os.dup2(2, 1)  # prints of libraries are not answers
    for line in sys.stdin:
        asked = json.loads(line)
        name = asked.pop("ask")
        assert name in ASKS
        try:
            found: dict[str, Any] = {"answer": getattr(side, name)(**asked)}
        except Exception as error:  # the leading process goes on without this side
            found = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        answers.write(json.dumps(found) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
