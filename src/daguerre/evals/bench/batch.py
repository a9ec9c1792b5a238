"""Many requests driven together compared with one alone, and the time of decoding outside the model.

For random weights and a trained model, in the processor's native type: REQUESTS requests whose prompts have unlike
lengths, in mode "ar" and in blocks of BLOCK of which a forward commits FORCED tokens. In each round everything runs in
turn, short runs several times; a ratio is the median of those of the rounds.

alone     one request, by `decoding.sample.drive`
one       the same request, by `decoding.sample.Together`
bare      the same forwards, one after the other, by a loop that does nothing else
together  all requests, by `Together`

Python's time is what a step after the first takes outside of the calls of the native library.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any

from daguerre.decoding.generate import Request, plan_of
from daguerre.decoding.plan import Plan
from daguerre.decoding.request import Decode
from daguerre.decoding.sample import Sample, Together, drive
from daguerre.evals.bench.job import FORCED, RANDOM, BenchJob, BenchShape, model_of, prompts
from daguerre.evals.workers import Progress
from daguerre.model import Model
from daguerre.models.backends.library import library
from daguerre.models.forward import Backend, DraftStep, Forward

REQUESTS, BLOCK = 16, 8
WARM_UP = 1
REPEAT_SECONDS, MAX_REPEATS = 1.0, 5
"""Runs of one request are repeated in a round until they take so long, but no more often than that."""
Batch = list[Forward | DraftStep]


@dataclass(frozen=True)
class Lap:
    """Seconds, those of them in the native library, tokens written, and batches computed: from a run's start on."""

    seconds: float
    native_seconds: float
    tokens: int
    batches: int

    @property
    def per_second(self) -> float:
        """Tokens a second."""
        return self.tokens / max(self.seconds, 1e-9)

    @property
    def python_ms(self) -> float:
        """Milliseconds of a batch outside of the native library."""
        return 1e3 * (self.seconds - self.native_seconds) / max(self.batches, 1)


@dataclass(frozen=True)
class Took:
    """A run: to its end, and to the end of the first batch, which reads the prompts."""

    whole: Lap
    first: Lap

    @property
    def behind(self) -> Lap:
        """The steps after the first batch."""
        whole, first = self.whole, self.first
        return Lap(
            whole.seconds - first.seconds,
            whole.native_seconds - first.native_seconds,
            whole.tokens - first.tokens,
            whole.batches - first.batches,
        )


class NativeClock:
    """While it is entered, the seconds and the number of this process's calls of the native library."""

    def __enter__(self) -> NativeClock:
        self.seconds, self.calls = 0.0, 0
        self._library = library()
        self._forward = self._library.daguerre_forward
        self._library.daguerre_forward = self._timed
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._library.daguerre_forward = self._forward

    def lap(self, started: float, tokens: int) -> Lap:
        """Of a run that `started` then and has written so many tokens."""
        return Lap(time.perf_counter() - started, self.seconds, tokens, self.calls)

    def _timed(self, *arguments: Any) -> Any:
        started = time.perf_counter()
        out = self._forward(*arguments)
        self.seconds += time.perf_counter() - started
        self.calls += 1
        return out


class Requests:
    """Requests on one model that differ in their prompts alone."""

    def __init__(self, model: Model, plans: Sequence[Plan]) -> None:
        self.model, self.plans = model, plans
        self.backend: Backend = model.denoiser.backend

    @classmethod
    def of(cls, model: Model, texts: Sequence[Sequence[int]], decode: Decode) -> Requests:
        """REQUESTS of them, the shortest prompt half as long as the longest."""
        plans = []
        for number in range(REQUESTS):
            text = texts[number % len(texts)][1:]
            kept = text[len(text) * (REQUESTS - 1 - number) // (2 * REQUESTS - 2) :]
            request = Request.of("generate", list(kept), decode.min_tokens, decode, heal=False)
            plans.append(plan_of(model.denoiser, model.tokenizer, request))
        return cls(model, plans)

    @property
    def middle(self) -> int:
        """The number of the request whose prompt is of middle length."""
        return len(self.plans) // 2

    def sample(self, number: int) -> Sample:
        """One of them, at its start."""
        return Sample(self.model.denoiser, self.plans[number], 0, None)

    def alone(self) -> tuple[Took, list[int]]:
        """The middle request by `drive`; and its tokens."""
        with NativeClock() as native:
            started, first = time.perf_counter(), None
            sample = self.sample(self.middle)
            for event in drive(sample):
                if first is None:
                    first = native.lap(started, len(event.decision))
            whole = native.lap(started, 0)
        assert first is not None
        written = tokens_of(sample)
        return Took(replace(whole, tokens=len(written)), first), written

    def together(self, numbers: Sequence[int]) -> tuple[Took, list[list[int]]]:
        """Requests by `Together`; and the tokens of each."""
        with NativeClock() as native:
            started = time.perf_counter()
            samples = [self.sample(number) for number in numbers]
            group = Together(self.backend, samples)
            group.step()
            first = native.lap(started, sum(len(event.decision) for sample in samples for event in sample.events))
            group.run()
            whole = native.lap(started, 0)
        written = [tokens_of(sample) for sample in samples]
        return Took(replace(whole, tokens=sum(map(len, written))), first), written

    def recorded(self) -> list[tuple[Batch, list[int]]]:
        """The batches of the middle request, each with the length of the caches that it found."""
        sample, answers, out = self.sample(self.middle), None, list[tuple[Batch, list[int]]]()
        while (item := sample.advance(answers)) is not None:
            answers = None
            if isinstance(item, list):
                out.append((item, [_length(one) for one in item]))
                answers = self.backend.forward(item)
        return out

    def bare(self, recorded: Sequence[tuple[Batch, list[int]]]) -> float:
        """Seconds of these batches, computed again."""
        started = time.perf_counter()
        for batch, lengths in recorded:
            for one, length in zip(batch, lengths, strict=True):
                if isinstance(one, Forward) and one.cache is not None:
                    one.cache.truncate(length)
            self.backend.forward(batch)
        return time.perf_counter() - started


def _length(one: Forward | DraftStep) -> int:
    return one.cache.length if isinstance(one, Forward) and one.cache is not None else 0


def tokens_of(sample: Sample) -> list[int]:
    """What a sample that is done has written."""
    return [token.id for token in sample.result().tokens]


@dataclass(frozen=True)
class Round:
    """What one round found: runs of one request, alone, as one of `Together`, and bare, in turn; then all of them."""

    singles: Sequence[tuple[Took, float, float]]
    together: Took

    @property
    def alone(self) -> Took:
        """The run of middle length."""
        runs = sorted((took for took, _, _ in self.singles), key=lambda took: took.whole.seconds)
        return runs[len(runs) // 2]


def measure(options: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """options: shape, model, rounds."""
    shape, name, models = BenchShape(**options["shape"]), options["model"], {}
    for label in (RANDOM, name):
        job = BenchJob(side="ar", threads=1, shape=shape, model=None if label == RANDOM else name)
        found, texts = model_of(job), prompts(job)
        model = Model(found.backbone, found.tokenizer, "native")
        modes = {}
        for mode, decode in decodes(shape.new_tokens).items():
            requests = Requests.of(model, texts, decode)
            modes[mode] = compare(requests, options["rounds"], partial(progress, f"{label}, {mode}"))
        models[label] = {"parameters": model.num_parameters, "modes": modes}
    return {"requests": REQUESTS, "models": models}


def decodes(new_tokens: int) -> dict[str, Decode]:
    """The settings, by name."""
    blocks = Decode(mode="block", block_size=BLOCK, policy="confidence", steps=BLOCK // FORCED, min_tokens=new_tokens)
    return {"ar": Decode(mode="ar", min_tokens=new_tokens), f"block {BLOCK}": blocks}


def compare(requests: Requests, rounds: int, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """The figures of one model and mode."""
    recorded, (took, written) = requests.recorded(), requests.alone()
    repeats = min(MAX_REPEATS, math.ceil(REPEAT_SECONDS / took.whole.seconds))
    found, same = list[Round](), True
    for number in range(rounds + WARM_UP):
        progress(number, rounds + WARM_UP)
        singles = [
            (requests.alone()[0], requests.together([requests.middle])[0].whole.seconds, requests.bare(recorded))
            for _ in range(repeats)
        ]
        together, texts = requests.together(range(len(requests.plans)))
        same &= texts[requests.middle] == written
        found.append(Round(singles, together))
    return figures(found[WARM_UP:]) | {"same_text": same}


def figures(rounds: Sequence[Round]) -> dict[str, Any]:
    """Medians over rounds, and of what is run several times in a round over all runs."""
    median, singles = statistics.median, [single for found in rounds for single in found.singles]
    alone = [took for took, _, _ in singles]
    return {
        "new_tokens": alone[0].whole.tokens,
        "batches": alone[0].whole.batches,
        "alone_tokens_per_second": median(took.whole.per_second for took in alone),
        "together_tokens_per_second": median(found.together.whole.per_second for found in rounds),
        "gain": median(found.together.whole.per_second / found.alone.whole.per_second for found in rounds),
        "gain_behind_first": median(
            found.together.behind.per_second / found.alone.behind.per_second for found in rounds
        ),
        "driver_overhead": median(one / took.whole.seconds for took, one, _ in singles) - 1,
        "decoding_overhead": median(took.whole.seconds / bare for took, _, bare in singles) - 1,
        "step_ms": median(1e3 * took.behind.seconds / took.behind.batches for took in alone),
        "python_ms": median(took.behind.python_ms for took in alone),
        "python_ms_together": median(found.together.behind.python_ms / REQUESTS for found in rounds),
    }
