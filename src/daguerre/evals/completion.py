"""Next-line completion: from the text before a held-out line, its first line that is not blank must come, exactly.

The lines are those of infilling (`lines.py`), asked without their suffix. The prefix ends with the break before the
line, so the line's own indentation is part of what is written; both are stripped before they are compared.

Every setting (a `Decode`) is run on the same lines as mode "ar", and stops as soon as the line and its break are final:
committed, with nothing open before them. Forwards are all those until then: healing's, those of a span not finished,
those that settle the span before (they are one with the next span's first). Only the prompt's prefill, one forward that
all settings of a line share, is left out, of forwards and of seconds.

    tokens a forward      tokens that bring text, up to the one that holds the line's break, over forwards
    produced a forward    all tokens of text committed by then, over the same forwards: healing's, which repeat the
                          prompt, and those right of the line's break, which nobody asked for

The whole grid runs on some lines. On all of them run `ar` and, from the setting with most tokens a forward down, those
that were no worse than it, until one is no worse on all lines, or FINALISTS have run. No worse: neither exact lines nor
similarity are significantly below those of `ar` (paired, 95%). Exact lines alone would say little where `ar` has few.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from daguerre.canvas import Canvas
from daguerre.evals.infilling import first_line, is_exact, similarity
from daguerre.evals.lines import MissingLine
from daguerre.evals.shared import SharedSession
from daguerre.evals.statistics import mcnemar, paired_difference, ratio_interval, wilson
from daguerre.evals.workers import map_examples
from daguerre.model import Model
from daguerre.plan import Plan
from daguerre.planning import make_plan
from daguerre.result import read
from daguerre.sample import Sample
from daguerre.sampling.decode import Decode

LINE_TOKENS = 48
"""The most a line may take: more than 99 in 100 held-out lines in our 2k vocabulary."""
BLOCK_SIZES = (4, 8, 16, 32)
THRESHOLDS = (0.4, 0.5, 0.7, 0.9)
CHAINED = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
MARGIN = 0.01
FINALISTS = 6
AR = Decode(mode="ar")

Progress = Callable[[str, int, int], None]


def grid() -> tuple[Decode, ...]:
    """Block sizes by thresholds, for each block size the static schedule of two tokens a forward, and chains."""
    sure = [Decode(block_size=size, threshold=level) for size in BLOCK_SIZES for level in THRESHOLDS]
    static = [Decode(block_size=size, policy="confidence", steps=size // 2) for size in BLOCK_SIZES]
    chained = [Decode(block_size=size, policy="chain", threshold=level) for size in (4, 8) for level in CHAINED]
    return (*sure, *static, *chained)


def label(decode: Decode) -> str:
    """A setting's name in a report."""
    if decode.autoregressive:
        return decode.mode
    how = f"{decode.policy}, {decode.steps} steps" if decode.steps else f"{decode.policy} {decode.threshold}"
    return f"{'full' if decode.mode == 'full' else f'block {decode.block_size}'}, {how}"


@dataclass(frozen=True)
class Attempt:
    """One line under one setting: the line written, and what it took (see the head of this file).

    `ended`: its break was written, or the text ended.
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


@dataclass(frozen=True)
class Row:
    """One setting on `num` lines. Differences are to `ar` on the same lines, `difference` in accuracy; intervals are of
    95%, those of ratios and of similarity over documents.

    tokens_per_forward, produced_per_forward, tokens_per_second, characters_per_second  ratios of sums over the lines;
    `forwards` and `seconds` are means. Seconds are those of one process.
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
    """`rows`: `ar` first, then the settings that ran on all lines, then the others; `lines` what the former wrote.

    The best setting is that of most tokens a forward among those that ran on all lines and
    `best_within_margin`  whose difference to `ar` has a lower end of -MARGIN or more;
    `best_no_worse`       that is no worse than `ar`, as the head of this file has it.
    None where there is none.
    """

    rows: tuple[Row, ...]
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
    progress: Progress | None = None,
) -> Completion:
    """Compare settings with `ar` on held-out lines.

    settings    None: `grid()`
    grid_lines  how many of the lines every setting runs on; None: all
    progress    called as progress(setting, lines done, lines to do)
    """
    tell = progress or (lambda what, done, total: None)
    trials = list(grid() if settings is None else settings)
    first, rest = list(examples[:grid_lines]), list(examples[len(examples[:grid_lines]) :])
    groups = np.array([example.document.sha256 for example in examples])

    def run(decodes: list[Decode], lines: list[MissingLine], what: str) -> tuple[float, list[list[Attempt]]]:
        found = map_examples(partial(attempts, model, decodes), lines, workers, partial(tell, what))
        prefill = sum(seconds for seconds, _ in found)
        return prefill, [[each[index] for _, each in found] for index in range(len(decodes))]

    prefill, (ar, *tried) = run([AR, *trials], first, "grid")
    rows = [_row(trial, done, ar, groups) for trial, done in zip(trials, tried, strict=True)]
    ranked = sorted(range(len(trials)), key=lambda index: -rows[index].tokens_per_forward)
    hopeful = [index for index in ranked if rows[index].no_worse][:FINALISTS]
    finished = {"ar": ar}
    if rest:
        more, (found,) = run([AR], rest, "ar")
        prefill, ar, finished = prefill + more, ar + found, {"ar": ar + found}
    for index in hopeful:
        done = tried[index]
        if rest:
            done = done + run([trials[index]], rest, label(trials[index]))[1][0]
        rows[index] = _row(trials[index], done, ar, groups)
        finished[rows[index].label] = done
        if rows[index].no_worse:
            break
    whole = [row for row in rows if row.num == len(examples)]
    others = [row for row in rows if row.num < len(examples)]
    return Completion(
        rows=(_row(AR, ar, ar, groups), *whole, *others),
        prefill_seconds=prefill / len(examples),
        best_within_margin=_fastest([row for row in whole if row.difference_interval[0] >= -MARGIN]),
        best_no_worse=_fastest([row for row in whole if row.no_worse]),
        lines=tuple({name: done[i].line for name, done in finished.items()} for i in range(len(examples))),
    )


def attempts(model: Model, decodes: Sequence[Decode], example: MissingLine) -> tuple[float, list[Attempt]]:
    """Seconds of the prompt's prefill, and the line under each setting."""
    plans = [
        make_plan(model.config, model.tokenizer, decode, example.prefix, None, LINE_TOKENS, None) for decode in decodes
    ]
    shared = SharedSession(model.denoiser, plans[0].canvas)
    started = time.perf_counter()
    _prefill(shared, plans[0].canvas)
    seconds = time.perf_counter() - started
    out = []
    for plan in plans:
        _prefill(shared, plan.canvas)  # forgets what the setting before has written; one row
        out.append(_attempt(shared, plan, example))
    return seconds, out


def _prefill(shared: SharedSession, canvas: Canvas) -> None:
    """Leave the session with the rows of the prompt, and no others."""
    start = canvas.gaps[0][0]
    shared.session(canvas).logits(canvas.at((start, start + 1)), np.array([start]))


def _attempt(shared: SharedSession, plan: Plan, example: MissingLine) -> Attempt:
    """Write until the line is final."""
    started = time.perf_counter()
    canvas, forwards = plan.canvas, 0
    for event in Sample(shared, plan, 0, None).steps():
        canvas, forwards = event.canvas, event.step + 1
        if line_end(read(plan, canvas, done=False).gaps[0].text) is not None:
            break
    seconds = time.perf_counter() - started
    (reading,) = read(plan, canvas, done=True).gaps
    written = reading.text[: line_end(reading.text)]
    line = first_line(written)
    sizes = [
        len(plan.slots[0].healing.table.of[token]) for token in canvas.tokens[canvas.in_gap & ~canvas.open].tolist()
    ]
    return Attempt(
        line=line,
        exact=is_exact(example, line),
        similarity=similarity(example, line),
        ended=reading.stopped or line_end(reading.text) is not None,
        forwards=forwards,
        tokens=int(np.searchsorted(np.cumsum([0, *map(len, reading.texts)]), len(written))),
        produced=sum(size > 0 for size in sizes),
        characters=len(written),
        seconds=seconds,
    )


def line_end(text: str) -> int | None:
    """Where the first line that is not blank ends, its break included; None while it may go on."""
    blank = len(text) - len(text.lstrip())
    end = text.find("\n", blank)
    return None if end < 0 or blank == len(text) else end + 1


def _row(decode: Decode, done: Sequence[Attempt], ar: Sequence[Attempt], groups: np.ndarray) -> Row:
    num = len(done)
    exact = sum(attempt.exact for attempt in done)
    pairs = [(attempt.exact, other.exact) for attempt, other in zip(done, ar[:num], strict=True)]
    only_first, only_second = pairs.count((True, False)), pairs.count((False, True))
    difference, interval = paired_difference(only_first, only_second, num)
    alike, alike_ar = (np.array([attempt.similarity for attempt in some]) for some in (done, ar[:num]))
    forwards, tokens, produced, characters, seconds = (
        np.array([getattr(attempt, name) for attempt in done], dtype=np.float64)
        for name in ("forwards", "tokens", "produced", "characters", "seconds")
    )
    return Row(
        label=label(decode),
        mode=decode.mode,
        block_size=decode.block_size,
        policy=decode.policy,
        threshold=decode.threshold if not decode.autoregressive and decode.steps is None else None,
        steps=decode.steps,
        num=num,
        accuracy=exact / num,
        accuracy_interval=wilson(exact, num),
        difference=difference,
        difference_interval=interval,
        p_value=mcnemar(only_first, only_second),
        same_as_ar=sum(attempt.line == other.line for attempt, other in zip(done, ar[:num], strict=True)) / num,
        similarity=float(alike.mean()),
        similarity_difference=float((alike - alike_ar).mean()),
        similarity_difference_interval=ratio_interval(alike - alike_ar, np.ones(num), groups[:num]),
        ended=sum(attempt.ended for attempt in done) / num,
        forwards=float(forwards.mean()),
        tokens_per_forward=float(tokens.sum() / forwards.sum()),
        tokens_per_forward_interval=ratio_interval(tokens, forwards, groups[:num]),
        produced_per_forward=float(produced.sum() / forwards.sum()),
        tokens_per_second=float(tokens.sum() / seconds.sum()),
        characters_per_second=float(characters.sum() / seconds.sum()),
        seconds=float(seconds.mean()),
    )


def _fastest(rows: Sequence[Row]) -> str | None:
    return max(rows, key=lambda row: row.tokens_per_forward).label if rows else None
