"""Correction: some tokens of a held-out line are wrong, the model is shown the line in its place, and revises it.

The lines are those of infilling (`lines.py`), with their real prefix and suffix. Of a line's n tokens
max(1, round(rate n)) become wrong, so at least one: on short lines the true rate, which is reported, is above the
nominal one. Two kinds of wrong tokens:

    random  ordinary tokens other than the right one, uniformly drawn
    guess   the model's own mistakes: a random half of the line is masked, and of the places where its most likely token
            is not the right one, some are taken, with that token; fewer, or none, where there are not as many

and `none`, the line as it was. The line's positions are a gap that is all committed, so the model sees the tokens that
stand there, right or wrong, with the whole prefix and suffix. `sampling.revision.revise` replaces tokens whose most
likely successor is sure enough, until a round replaces nothing or ROUNDS are over. How a line is revised is a `Way`:

    reading    shown: one forward a round, every token in sight at its own place; masked: a forward a token, with that
               one masked: a model that never saw a wrong token believes what it sees, and judges better what it
               does not see
    order      all: a round replaces every token that it would; one: the one of highest gain
    threshold  the least probability of a replacement

Masked readings cost as many forwards as a line has tokens, so they are made in the order "all" and at few thresholds.

    fixed   wrong tokens that are right in the end, of all wrong ones
    broken  right tokens that are wrong in the end, of all right ones

For comparison, `refilled`: wrong tokens that are right when just these are masked and filled in one forward: what the
model knew, had it been told where to look.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from daguerre.canvas import Canvas
from daguerre.errors import DataError
from daguerre.evals.lines import MissingLine, hashed_order
from daguerre.evals.statistics import clustered_wilson, wilson
from daguerre.evals.workers import Tell, map_examples
from daguerre.model import Model
from daguerre.sampling.revision import Reading, readings, revise

RATES = (0.05, 0.15)
KINDS = ("random", "guess")
ORDERS: dict[str, int | None] = {"all": None, "one": 1}
"""The most tokens that a round replaces, by the name of the order."""
ROUNDS = 8
MOST_BROKEN = 0.02

Look = Callable[[Canvas, np.ndarray], np.ndarray]
"""look(canvas, positions) -> float64 logits (A, V) at these positions, int64 (A,), special tokens banned."""


@dataclass(frozen=True)
class Way:
    """One way to revise a line: see above."""

    reading: Reading
    order: str
    threshold: float


WAYS = (
    *(Way("shown", order, threshold) for order in ORDERS for threshold in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)),
    *(Way("masked", "all", threshold) for threshold in (0.3, 0.5, 0.9)),
)


@dataclass(frozen=True)
class Corrupted:
    """A line's tokens with some of them wrong: `wrong` are their indices, ascending."""

    kind: str
    rate: float
    tokens: np.ndarray
    wrong: np.ndarray


@dataclass(frozen=True)
class Trial:
    """One line, corrupted in one way and revised in one way: counts of tokens, and what it took."""

    num_wrong: int
    num_right: int
    fixed: int
    broken: int
    refilled: int
    exact: bool
    forwards: int


@dataclass(frozen=True)
class Corrected:
    """One way to corrupt and one to revise, on `num` lines. Intervals are of 95%, those of shares of
    tokens over documents.

    wrong_rate  the share of tokens that were wrong; `fixed` and `refilled` are None where there were none
    exact       lines that are right in the end; `forwards` is a mean
    """

    kind: str
    rate: float
    reading: Reading
    order: str
    threshold: float
    num: int
    wrong_rate: float
    fixed: float | None
    fixed_interval: tuple[float, float] | None
    broken: float
    broken_interval: tuple[float, float]
    refilled: float | None
    exact: float
    exact_interval: tuple[float, float]
    forwards: float


@dataclass(frozen=True)
class Correction:
    """`rows`: all combinations. `best`: for each kind and rate the row that fixes most of those that break at most
    MOST_BROKEN; its place in `rows`, or None. `left_out`: lines too long for the model beside what is shown.
    """

    rows: tuple[Corrected, ...]
    best: dict[str, int | None]
    left_out: int


def line_correction(
    model: Model, examples: Sequence[MissingLine], *, seed: int = 0, workers: int = 1, tell: Tell | None = None
) -> Correction:
    """Corrupt and revise every line in every way. DataError when none fits the model."""
    room = model.config.max_positions
    kept = [example for example in examples if len(_place(model, example)[0]) <= room]
    if not kept:
        raise DataError(f"no line fits the model's {room} positions with what is shown around it: leave it out")
    found = map_examples(partial(correct_line, model, seed), kept, workers, tell)
    groups = np.array([example.document.sha256 for example in kept])
    rows = []
    for kind, rate in cases():
        for way in WAYS:
            trials = [trial.get((kind, rate, way)) for trial in found]
            made = np.array([trial is not None for trial in trials])
            if made.any():
                rows.append(_row(kind, rate, way, [trial for trial in trials if trial is not None], groups[made]))
    best = {f"{kind} {rate:g}": _best(rows, kind, rate) for kind, rate in cases() if rate}
    return Correction(tuple(rows), best, len(examples) - len(kept))


def cases() -> list[tuple[str, float]]:
    """Kinds and rates of corruption; "none" is none."""
    return [("none", 0.0), *((kind, rate) for kind in KINDS for rate in RATES)]


def correct_line(model: Model, seed: int, example: MissingLine) -> dict[tuple[str, float, Way], Trial]:
    """Trials by kind, rate and way; without those of guesses where the model has no wrong one."""
    canvas, truth = _place(model, example)
    look = _looker(model, canvas)
    rng = np.random.default_rng(int(hashed_order(seed, example.document.sha256, example.number), 16))
    guesses = _wrong_guesses(look, canvas, truth, rng)
    out = {}
    for kind, rate in cases():
        corrupted = _corrupt(kind, rate, truth, guesses, model, rng)
        if kind != "none" and not corrupted.wrong.size:
            continue
        start, end = canvas.gaps[0]
        opened = np.zeros(len(canvas), dtype=bool)
        opened[start + corrupted.wrong] = True
        refilled = _argmax(look, _written(canvas, truth, opened))[corrupted.wrong] == truth[corrupted.wrong]
        given = _written(canvas, corrupted.tokens)
        for way in WAYS:
            last, forwards = _revised(look, given, way)
            right = last.tokens[start:end] == truth
            fixed = int(right[corrupted.wrong].sum())
            broken = int((~right).sum()) - (len(corrupted.wrong) - fixed)
            out[kind, rate, way] = Trial(
                num_wrong=len(corrupted.wrong),
                num_right=len(truth) - len(corrupted.wrong),
                fixed=fixed,
                broken=broken,
                refilled=int(refilled.sum()),
                exact=bool(right.all()),
                forwards=forwards,
            )
    return out


def _place(model: Model, example: MissingLine) -> tuple[Canvas, np.ndarray]:
    """A canvas with a gap as long as the line, and the line's tokens (n,)."""
    config, encode = model.config, model.tokenizer.encode
    truth = np.array(encode(example.line))
    before, after = [config.bos_id, *encode(example.prefix)], encode(example.suffix)
    canvas = Canvas.lay_out([before, after], [len(truth)], config.mask_id)
    return canvas.at(canvas.gaps[0]), truth


def _written(canvas: Canvas, tokens: np.ndarray, opened: np.ndarray | None = None) -> Canvas:
    """The canvas with `tokens` in its gap, committed but where the boolean `opened` (L,) is True."""
    own = canvas.tokens.copy()
    own[slice(*canvas.gaps[0])] = tokens
    return replace(canvas, tokens=own, open=np.zeros(len(canvas), dtype=bool) if opened is None else opened)


def _looker(model: Model, canvas: Canvas) -> Look:
    """A `Look` that remembers: many ways to revise pass through the same line, and a masked token may be any."""
    session, config = model.denoiser.session(canvas), model.config
    seen: dict[tuple[bytes, ...], np.ndarray] = {}

    def look(now: Canvas, positions: np.ndarray) -> np.ndarray:
        tokens = np.where(now.open, config.mask_id, now.tokens)
        key = tokens.tobytes(), now.open.tobytes(), positions.tobytes()
        if key not in seen:
            seen[key] = session.logits(now, positions).astype(np.float64)
            seen[key][:, config.ends] = -np.inf
        return seen[key]

    return look


def _argmax(look: Look, canvas: Canvas) -> np.ndarray:
    return look(canvas, np.arange(*canvas.gaps[0])).argmax(axis=-1)


def _wrong_guesses(look: Look, canvas: Canvas, truth: np.ndarray, rng: np.random.Generator) -> dict[int, int]:
    """{index in the line: token} of the wrong ones among the most likely tokens for a random half of the line."""
    start, num = canvas.gaps[0][0], len(truth)
    hidden = np.sort(rng.choice(num, -(-num // 2), replace=False))
    opened = np.zeros(len(canvas), dtype=bool)
    opened[start + hidden] = True
    guess = _argmax(look, _written(canvas, truth, opened))
    return {int(i): int(guess[i]) for i in hidden if guess[i] != truth[i]}


def _corrupt(
    kind: str, rate: float, truth: np.ndarray, guesses: dict[int, int], model: Model, rng: np.random.Generator
) -> Corrupted:
    tokens = truth.copy()
    count = max(1, round(rate * len(truth)))
    wrong = np.zeros(0, dtype=np.int64)
    if kind == "random":
        wrong = rng.choice(len(truth), count, replace=False)
        ordinary = np.arange(model.config.num_reserved, model.config.vocab_size)
        tokens[wrong] = [rng.choice(ordinary[ordinary != truth[index]]) for index in wrong]
    elif kind == "guess" and guesses:
        wrong = rng.choice(list(guesses), min(count, len(guesses)), replace=False)
        tokens[wrong] = [guesses[int(index)] for index in wrong]
    return Corrupted(kind, rate, tokens, np.sort(wrong))


def _revised(look: Look, canvas: Canvas, way: Way) -> tuple[Canvas, int]:
    """The canvas after revision, and how many forwards that took."""
    positions, forwards = np.arange(*canvas.gaps[0]), 0
    for _ in range(ROUNDS):
        logits = [look(now, asked) for now, asked in readings(canvas, positions, way.reading)]
        forwards += len(logits)
        decision = revise(
            canvas, positions, np.concatenate(logits), way.threshold, ORDERS[way.order], reading=way.reading
        )
        if not len(decision):
            break
        canvas = canvas.apply(decision)
    return canvas, forwards


def _row(kind: str, rate: float, way: Way, trials: Sequence[Trial], groups: np.ndarray) -> Corrected:
    wrong, right, fixed, broken, refilled = (
        np.array([getattr(trial, name) for trial in trials], dtype=np.float64)
        for name in ("num_wrong", "num_right", "fixed", "broken", "refilled")
    )
    num, exact = len(trials), sum(trial.exact for trial in trials)
    return Corrected(
        kind=kind,
        rate=rate,
        reading=way.reading,
        order=way.order,
        threshold=way.threshold,
        num=num,
        wrong_rate=float(wrong.sum() / (wrong.sum() + right.sum())),
        fixed=float(fixed.sum() / wrong.sum()) if wrong.sum() else None,
        fixed_interval=clustered_wilson(fixed, wrong, groups) if wrong.sum() else None,
        broken=float(broken.sum() / max(1.0, right.sum())),
        broken_interval=clustered_wilson(broken, right, groups),
        refilled=float(refilled.sum() / wrong.sum()) if wrong.sum() else None,
        exact=exact / num,
        exact_interval=wilson(exact, num),
        forwards=sum(trial.forwards for trial in trials) / num,
    )


def _best(rows: Sequence[Corrected], kind: str, rate: float) -> int | None:
    """The place of the row that fixes most, of those that break little enough."""
    fixed = {
        place: row.fixed
        for place, row in enumerate(rows)
        if (row.kind, row.rate) == (kind, rate) and row.fixed is not None and row.broken <= MOST_BROKEN
    }
    return max(fixed, key=lambda place: fixed[place]) if fixed else None
