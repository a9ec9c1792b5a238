"""Next-line completion: a model is shown the text before a held-out line and must write that line exactly.

The lines are those of infilling (`lines.py`), without their suffix. The prefix ends with the break before the line, so
the line's indentation has to be written too. What is compared is the first line written that is not blank, and both
lines are stripped first.

Every setting (a `Decode`) runs on the same lines as mode "ar", and stops as soon as the line and its break are final:
committed, with nothing open before them. All forwards up to then count: those of healing, of an unfinished span, and
those that finalize the span before (they are also the next span's first). Only the prefill of the prompt, one forward
that all settings of a line share, counts neither as a forward nor in seconds.

    tokens per forward      tokens that bring text, up to the one with the line's break, over forwards
    produced per forward    all tokens of text committed by then, over the same forwards: also those of healing, which
                            repeat the prompt, and those right of the line's break

The whole grid runs on some lines. On all lines run `ar` and, from the setting with the most tokens per forward down,
those that were no worse than `ar`, until one is no worse on all lines or FINALISTS have run. No worse: neither exact
lines nor similarity are significantly below those of `ar` (paired, 95%). Exact lines alone would show little where `ar`
has few.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from daguerre.decoding.generate import Request, plan_of
from daguerre.decoding.plan import Plan
from daguerre.decoding.request import Decode
from daguerre.decoding.result import read
from daguerre.decoding.sample import Sample, drive
from daguerre.evals.infilling import first_line, is_exact, similarity
from daguerre.evals.lines import MissingLine
from daguerre.evals.shared import SharedSession
from daguerre.evals.statistics import mcnemar, paired_difference, ratio_interval, wilson
from daguerre.evals.workers import Progress, map_examples, no_progress
from daguerre.model import Model

LINE_TOKENS = 48
"""Most tokens of a line: more than 99% of the held-out lines are shorter in our 2k vocabulary."""
BLOCK_SIZES = (4, 8, 16, 32)
THRESHOLDS = (0.4, 0.5, 0.7, 0.9)
CHAINED_SIZES = (4, 8, 16)
CHAINED = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
MARGIN = 0.01
FINALISTS = 12
AR = Decode(mode="ar")


def grid() -> tuple[Decode, ...]:
    """Block sizes by thresholds, for each block size the static schedule of two tokens per forward, and chains."""
    block = partial(Decode, mode="block")
    thresholds = [block(block_size=size, threshold=level) for size in BLOCK_SIZES for level in THRESHOLDS]
    static = [block(block_size=size, policy="confidence", steps=size // 2) for size in BLOCK_SIZES]
    chains = [block(block_size=size, policy="chain", threshold=level) for size in CHAINED_SIZES for level in CHAINED]
    return (*thresholds, *static, *chains)


def label(decode: Decode) -> str:
    """A setting's name in a report; its mode is given."""
    name = decode.mode_entry.name
    if decode.autoregressive:
        return name
    policy = (
        f"{decode.policy_name}, {decode.steps} steps" if decode.steps else f"{decode.policy_name} {decode.threshold}"
    )
    return f"{name}, {policy}" if decode.block_size is None else f"{name} {decode.block_size}, {policy}"


@dataclass(frozen=True)
class Attempt:
    """One line under one setting: the line written, and its costs (see the head of this file).

    ended  whether its break was written, or the text ended
    ids    the tokens that `tokens` counts
    """

    line: str
    exact: bool
    similarity: float
    ended: bool
    forwards: int
    tokens: int
    produced: int
    characters: int
    seconds: float
    ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class CompletionRow:
    """One setting on `num` lines. Differences are to `ar` on the same lines, `difference` in accuracy. Intervals are of
    95%; those of ratios and of similarity take the lines of a document together.

    tokens_per_forward, produced_per_forward, tokens_per_second, characters_per_second  ratios of sums over the lines
    forwards, seconds   means over the lines, in one process
    """

    label: str
    mode: str
    block_size: int | None
    policy: str
    threshold: float | None
    steps: int | None
    num: int
    accuracy: float
    accuracy_interval: tuple[float, float]
    difference: float
    difference_interval: tuple[float, float]
    p_value: float
    same_as_ar: float
    similarity: float
    similarity_difference: float
    similarity_difference_interval: tuple[float, float] | None
    ended: float
    forwards: float
    tokens_per_forward: float
    tokens_per_forward_interval: tuple[float, float] | None
    produced_per_forward: float
    tokens_per_second: float
    characters_per_second: float
    seconds: float

    @property
    def no_worse(self) -> bool:
        """Neither accuracy nor similarity is significantly below that of `ar`."""
        similar = self.similarity_difference_interval
        return self.difference_interval[1] >= 0 and (similar is None or similar[1] >= 0)


@dataclass(frozen=True)
class Completion:
    """`rows`: `ar` first, then the settings that ran on all lines, then the others; `lines`: what the former wrote.

    grid_rows  the settings that ran on all lines, on the lines of the grid; empty where these are all lines

    Of the settings that ran on all lines, the one with the most tokens per forward
    best_within_margin  whose difference to `ar` has a lower end of -MARGIN or more
    best_no_worse       that is no worse than `ar`, as defined at the head of this file
    None where there is none.
    """

    rows: tuple[CompletionRow, ...]
    grid_rows: tuple[CompletionRow, ...]
    prefill_seconds: float
    best_within_margin: str | None
    best_no_worse: str | None
    lines: tuple[dict[str, str], ...] = field(repr=False)


def next_line_completion(
    model: Model,
    examples: Sequence[MissingLine],
    *,
    settings: Sequence[Decode] | None = None,
    grid_lines: int | None = None,
    workers: int = 1,
    progress: Progress = no_progress,
) -> Completion:
    """Compare settings with `ar` on held-out lines.

    settings    None: `grid()`
    grid_lines  how many of the lines every setting runs on; None: all
    progress    called as progress(setting, lines done, lines to do)
    """
    tried = list(grid() if settings is None else settings)
    first, rest = list(examples[:grid_lines]), list(examples[len(examples[:grid_lines]) :])
    trials = _Trials(model, workers, progress, np.array([example.document.sha256 for example in examples]))
    ar, *found = trials.run([AR, *tried], first, "grid")
    rows = [trials.row(decode, done, ar) for decode, done in zip(tried, found, strict=True)]
    if rest:
        ar += trials.run([AR], rest, "ar")[0]
    finished, grid_rows = {label(AR): ar}, []
    for index in _finalists(rows):
        done = found[index]
        if rest:
            grid_rows.append(rows[index])
            done = done + trials.run([tried[index]], rest, rows[index].label)[0]
        rows[index] = trials.row(tried[index], done, ar)
        finished[rows[index].label] = done
        if rows[index].no_worse:
            break
    return _completion(trials.row(AR, ar, ar), rows, grid_rows, finished, trials.prefill_seconds / len(examples))


@dataclass
class _Trials:
    """Runs settings on lines. `groups`: the document of each line; `prefill_seconds` of all lines so far."""

    model: Model
    workers: int
    progress: Progress
    groups: np.ndarray
    prefill_seconds: float = 0.0

    def run(self, decodes: list[Decode], lines: list[MissingLine], name: str) -> list[list[Attempt]]:
        """The attempts of each setting; only a run with `AR` adds to the seconds of prefill, so a line counts once."""
        found = map_examples(partial(attempts, self.model, decodes), lines, self.workers, partial(self.progress, name))
        if AR in decodes:
            self.prefill_seconds += sum(seconds for seconds, _ in found)
        return [[each[index] for _, each in found] for index in range(len(decodes))]

    def row(self, decode: Decode, done: Sequence[Attempt], ar: Sequence[Attempt]) -> CompletionRow:
        return _row(decode, done, ar[: len(done)], self.groups[: len(done)])


def _finalists(rows: Sequence[CompletionRow]) -> list[int]:
    """Places of the settings that may run on all lines, from the most tokens per forward down."""
    ranked = sorted(range(len(rows)), key=lambda index: -rows[index].tokens_per_forward)
    return [index for index in ranked if rows[index].no_worse][:FINALISTS]


def _completion(
    ar: CompletionRow,
    rows: Sequence[CompletionRow],
    grid_rows: Sequence[CompletionRow],
    finished: dict[str, list[Attempt]],
    prefill_seconds: float,
) -> Completion:
    """`finished`: attempts on all lines, by setting."""
    whole = [row for row in rows if row.num == ar.num]
    others = [row for row in rows if row.num < ar.num]
    return Completion(
        rows=(ar, *whole, *others),
        grid_rows=tuple(grid_rows),
        prefill_seconds=prefill_seconds,
        best_within_margin=_fastest([row for row in whole if row.difference_interval[0] >= -MARGIN]),
        best_no_worse=_fastest([row for row in whole if row.no_worse]),
        lines=tuple({name: done[i].line for name, done in finished.items()} for i in range(ar.num)),
    )


def attempts(model: Model, decodes: Sequence[Decode], example: MissingLine) -> tuple[float, list[Attempt]]:
    """Seconds of the prompt's prefill, and the line under each setting."""
    asked = [Request.of("generate", example.prefix, LINE_TOKENS, decode, heal=model.heal) for decode in decodes]
    plans = [plan_of(model.denoiser, model.tokenizer, request) for request in asked]
    shared = SharedSession(model.denoiser, plans[0].canvas)
    started = time.perf_counter()
    shared.prefill(plans[0])
    seconds = time.perf_counter() - started
    out = []
    for plan in plans:
        shared.prefill(plan)  # forgets what the setting before has written; one row
        out.append(_attempt(shared, plan, example))
    return seconds, out


def _attempt(shared: SharedSession, plan: Plan, example: MissingLine) -> Attempt:
    """Write until the line is final."""
    started = time.perf_counter()
    canvas, forwards = plan.canvas, 0
    for event in drive(Sample(shared, plan, 0, None)):
        canvas, forwards = event.canvas, event.step + 1
        if line_end(read(plan, canvas, done=False).gaps[0].text) is not None:
            break
    seconds = time.perf_counter() - started
    (reading,) = read(plan, canvas, done=True).gaps
    written = reading.text[: line_end(reading.text)]
    line = first_line(written)
    committed = canvas.tokens[canvas.in_gap & ~canvas.open].tolist()
    num = int(np.searchsorted(np.cumsum([0, *map(len, reading.texts)]), len(written)))
    return Attempt(
        line=line,
        exact=is_exact(example, line),
        similarity=similarity(example, line),
        ended=reading.stopped or line_end(reading.text) is not None,
        forwards=forwards,
        tokens=num,
        produced=sum(len(plan.vocabulary.of[token]) > 0 for token in committed),
        characters=len(written),
        seconds=seconds,
        ids=tuple(canvas.tokens[list(reading.positions[:num])].tolist()),
    )


def line_end(text: str) -> int | None:
    """Where the first line that is not blank ends, its break included; None while it may go on."""
    blank = len(text) - len(text.lstrip())
    end = text.find("\n", blank)
    return None if end < 0 or blank == len(text) else end + 1


def _row(decode: Decode, done: Sequence[Attempt], ar: Sequence[Attempt], groups: np.ndarray) -> CompletionRow:
    num = len(done)
    exact = sum(attempt.exact for attempt in done)
    pairs = [(attempt.exact, other.exact) for attempt, other in zip(done, ar, strict=True)]
    only_first, only_second = pairs.count((True, False)), pairs.count((False, True))
    difference, interval = paired_difference(only_first, only_second, num)
    similarity_less = np.array([one.similarity - other.similarity for one, other in zip(done, ar, strict=True)])
    forwards, tokens, produced, characters, seconds = (
        np.array([getattr(attempt, name) for attempt in done], dtype=np.float64)
        for name in ("forwards", "tokens", "produced", "characters", "seconds")
    )
    return CompletionRow(
        label=label(decode),
        mode=decode.mode_entry.name,
        block_size=decode.block_size,
        policy=decode.policy_name,
        threshold=decode.threshold if not decode.autoregressive and decode.steps is None else None,
        steps=decode.steps,
        num=num,
        accuracy=exact / num,
        accuracy_interval=wilson(exact, num),
        difference=difference,
        difference_interval=interval,
        p_value=mcnemar(only_first, only_second),
        same_as_ar=sum(attempt.line == other.line for attempt, other in zip(done, ar, strict=True)) / num,
        similarity=sum(attempt.similarity for attempt in done) / num,
        similarity_difference=float(similarity_less.mean()),
        similarity_difference_interval=ratio_interval(similarity_less, np.ones(num), groups),
        ended=sum(attempt.ended for attempt in done) / num,
        forwards=float(forwards.mean()),
        tokens_per_forward=float(tokens.sum() / forwards.sum()),
        tokens_per_forward_interval=ratio_interval(tokens, forwards, groups),
        produced_per_forward=float(produced.sum() / forwards.sum()),
        tokens_per_second=float(tokens.sum() / seconds.sum()),
        characters_per_second=float(characters.sum() / seconds.sum()),
        seconds=float(seconds.mean()),
    )


def _fastest(rows: Sequence[CompletionRow]) -> str | None:
    return max(rows, key=lambda row: row.tokens_per_forward).label if rows else None
