"""Correction: some tokens of a held-out line are made wrong, and the model, shown the line in its place, revises it.

The lines are those of infilling (`lines.py`), with their real prefix and suffix. Of a line's n tokens
max(1, round(rate n)) become wrong, so at least one: on short lines the true rate, which is reported, is above the
nominal one. Two kinds of wrong tokens:

    random  ordinary tokens other than the right one, uniformly drawn
    guess   the model's own mistakes: a random half of the line is masked; of the places where its most likely token is
            not the right one, some get that token; fewer, or none, where there are not that many

and `none`, the unchanged line. The line's positions are a gap that is all committed, so the model sees the tokens that
are there, right or wrong, with the whole prefix and suffix. `decoding.revision.revise` replaces tokens where another is
probable enough, until a round replaces nothing or ROUNDS are over. A `Revision` says how:

    reading    unmasked: one forward per round, all tokens unmasked; leave_one_out: one forward per token, with that
               token masked. A model that was not trained on wrong tokens believes those it sees
    order      all: a round replaces every token that qualifies; one: only the one of highest gain
    threshold  the minimum probability of a replacement

Leave-one-out readings take as many forwards as a line has tokens, so they are run in the order "all" and at few
thresholds.

    fixed   wrong tokens that are right in the end, of all wrong ones
    broken  right tokens that are wrong in the end, of all right ones

For comparison, `refilled`: wrong tokens that are right when only these are masked and filled in one forward, that is,
if the model knew where the mistakes are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from daguerre.canvas import Canvas
from daguerre.decoding.revision import RevisionReading, readings, revise
from daguerre.errors import DataError
from daguerre.evals.lines import MissingLine, hashed_order
from daguerre.evals.statistics import clustered_wilson, means, shares
from daguerre.evals.workers import ItemProgress, map_examples
from daguerre.model import Model
from daguerre.models.forward import Logits
from daguerre.models.session import compute

RATES = (0.05, 0.15)
KINDS = ("random", "guess")
ORDERS: dict[str, int | None] = {"all": None, "one": 1}
"""The most tokens that a round replaces, by the name of the order."""
ROUNDS = 8
MAX_BROKEN = 0.02

ReadLogits = Callable[[Canvas, np.ndarray], np.ndarray]
"""read(canvas, positions) -> float64 logits (A, V) at these positions, int64 (A,), special tokens banned."""


@dataclass(frozen=True)
class Revision:
    """How a line is revised: see above."""

    reading: RevisionReading
    order: str
    threshold: float


REVISIONS = (
    *(Revision("unmasked", order, level) for order in ORDERS for level in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)),
    *(Revision("leave_one_out", "all", level) for level in (0.3, 0.5, 0.9)),
)


@dataclass(frozen=True)
class Corrupted:
    """A line's tokens, some of them wrong: `wrong` are their indices, ascending."""

    kind: str
    rate: float
    tokens: np.ndarray
    wrong: np.ndarray


@dataclass(frozen=True)
class CorrectionTrial:
    """One line, one kind and rate of corruption, one revision: counts of tokens, and the cost."""

    num_wrong: int
    num_right: int
    fixed: int
    broken: int
    refilled: int
    exact: bool
    forwards: int


@dataclass(frozen=True)
class Corrected:
    """One kind and rate of corruption and one revision, on `num` lines. Intervals are of 95%; those of shares of tokens
    take the lines of a document together.

    wrong_rate  the share of tokens that were wrong; `fixed` and `refilled` are None where there were none
    exact       lines that are right in the end
    forwards    the mean
    """

    kind: str
    rate: float
    reading: RevisionReading
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
    """`rows`: all combinations. `best`: for each kind and rate, of the rows that break at most MAX_BROKEN the place of
    the one that fixes most, or None. `left_out`: lines that are too long for the model, with the text around them.
    """

    rows: tuple[Corrected, ...]
    best: dict[str, int | None]
    left_out: int


def line_correction(
    model: Model,
    examples: Sequence[MissingLine],
    *,
    seed: int = 0,
    workers: int = 1,
    progress: ItemProgress | None = None,
) -> Correction:
    """Corrupt every line in every way and revise it in every way. DataError when none fits the model."""
    room = model.config.max_positions
    kept = [example for example in examples if len(_place(model, example)[0]) <= room]
    if not kept:
        raise DataError(f"no line fits the model's {room} positions with the text shown around it: leave it out")
    found = map_examples(partial(correct_line, model, seed), kept, workers, progress)
    groups = np.array([example.document.sha256 for example in kept])
    rows = []
    for kind, rate in cases():
        for revision in REVISIONS:
            trials = [trial.get((kind, rate, revision)) for trial in found]
            made = np.array([trial is not None for trial in trials])
            if made.any():
                rows.append(_row(kind, rate, revision, [trial for trial in trials if trial is not None], groups[made]))
    best = {f"{kind} {rate:g}": _best(rows, kind, rate) for kind, rate in cases() if rate}
    return Correction(tuple(rows), best, len(examples) - len(kept))


def cases() -> list[tuple[str, float]]:
    """Kinds and rates of corruption; "none" is none."""
    return [("none", 0.0), *((kind, rate) for kind in KINDS for rate in RATES)]


def correct_line(model: Model, seed: int, example: MissingLine) -> dict[tuple[str, float, Revision], CorrectionTrial]:
    """Trials by kind, rate and revision; none of kind "guess" where all guesses of the model are right."""
    canvas, truth = _place(model, example)
    read = _reader(model, canvas)
    rng = np.random.default_rng(int(hashed_order(seed, example.document.sha256, example.number), 16))
    guesses = _wrong_guesses(read, canvas, truth, rng)
    out = {}
    for kind, rate in cases():
        corrupted = _corrupt(kind, rate, truth, guesses, model.config.ordinary_ids, rng)
        if kind != "none" and not corrupted.wrong.size:
            continue
        opened = np.zeros(len(canvas), dtype=bool)
        opened[canvas.gaps[0][0] + corrupted.wrong] = True
        refilled = _argmax(read, _written(canvas, truth, opened))[corrupted.wrong] == truth[corrupted.wrong]
        corrupted_canvas = _written(canvas, corrupted.tokens)
        for revision in REVISIONS:
            last, forwards = _revised(read, corrupted_canvas, revision)
            out[kind, rate, revision] = _trial(corrupted, truth, last, int(refilled.sum()), forwards)
    return out


def revised_text(model: Model, before: str, wrong: str, after: str, revision: Revision) -> str:
    """What revision makes of the text `wrong`, all of it committed, between two others."""
    config, encode = model.config, model.tokenizer.encode
    tokens = np.array(encode(wrong))
    canvas = Canvas.lay_out([[*config.first, *encode(before)], encode(after)], [len(tokens)], config.placeholder)
    last, _ = _revised(_reader(model, canvas), _written(canvas.at(canvas.gaps[0]), tokens), revision)
    return model.tokenizer.decode(last.tokens[slice(*last.gaps[0])].tolist())


def _trial(corrupted: Corrupted, truth: np.ndarray, last: Canvas, refilled: int, forwards: int) -> CorrectionTrial:
    """What became of a corrupted line, which is revised in the canvas `last`."""
    num_wrong = len(corrupted.wrong)
    right = last.tokens[slice(*last.gaps[0])] == truth
    fixed = int(right[corrupted.wrong].sum())
    return CorrectionTrial(
        num_wrong=num_wrong,
        num_right=len(truth) - num_wrong,
        fixed=fixed,
        broken=int((~right).sum()) - (num_wrong - fixed),
        refilled=refilled,
        exact=bool(right.all()),
        forwards=forwards,
    )


def _place(model: Model, example: MissingLine) -> tuple[Canvas, np.ndarray]:
    """A canvas with a gap as long as the line, and the line's tokens (n,)."""
    config, encode = model.config, model.tokenizer.encode
    truth = np.array(encode(example.line))
    before, after = [*config.first, *encode(example.prefix)], encode(example.suffix)
    canvas = Canvas.lay_out([before, after], [len(truth)], config.placeholder)
    return canvas.at(canvas.gaps[0]), truth


def _written(canvas: Canvas, tokens: np.ndarray, opened: np.ndarray | None = None) -> Canvas:
    """The canvas with `tokens` in its gap, committed except where the boolean `opened` (L,) is True."""
    changed = canvas.tokens.copy()
    changed[slice(*canvas.gaps[0])] = tokens
    return replace(canvas, tokens=changed, open=np.zeros(len(canvas), dtype=bool) if opened is None else opened)


def _reader(model: Model, canvas: Canvas) -> ReadLogits:
    """A `ReadLogits` that remembers its answers: many revisions pass through the same line."""
    session, backend, config = model.denoiser.session(canvas), model.denoiser.backend, model.config
    seen: dict[tuple[bytes, ...], np.ndarray] = {}

    def read(now: Canvas, positions: np.ndarray) -> np.ndarray:
        tokens = np.where(now.open, config.placeholder, now.tokens)
        key = tokens.tobytes(), now.open.tobytes(), positions.tobytes()
        if key not in seen:
            answer = compute(session.ask(now, positions, Logits()), backend)
            assert answer.logits is not None
            seen[key] = answer.logits.astype(np.float64)
            seen[key][:, config.ends] = -np.inf
        return seen[key]

    return read


def _argmax(read: ReadLogits, canvas: Canvas) -> np.ndarray:
    return read(canvas, np.arange(*canvas.gaps[0])).argmax(axis=-1)


def _wrong_guesses(read: ReadLogits, canvas: Canvas, truth: np.ndarray, rng: np.random.Generator) -> dict[int, int]:
    """{index in the line: token} of the wrong ones among the most likely tokens for a random half of the line."""
    start, num = canvas.gaps[0][0], len(truth)
    hidden = np.sort(rng.choice(num, -(-num // 2), replace=False))
    opened = np.zeros(len(canvas), dtype=bool)
    opened[start + hidden] = True
    guess = _argmax(read, _written(canvas, truth, opened))
    return {int(i): int(guess[i]) for i in hidden if guess[i] != truth[i]}


def _corrupt(
    kind: str, rate: float, truth: np.ndarray, guesses: dict[int, int], ordinary: np.ndarray, rng: np.random.Generator
) -> Corrupted:
    """`ordinary`: the ids that a random wrong token may have."""
    tokens = truth.copy()
    count = max(1, round(rate * len(truth)))
    wrong = np.zeros(0, dtype=np.int64)
    if kind == "random":
        wrong = rng.choice(len(truth), count, replace=False)
        tokens[wrong] = [rng.choice(ordinary[ordinary != truth[index]]) for index in wrong]
    elif kind == "guess" and guesses:
        wrong = rng.choice(list(guesses), min(count, len(guesses)), replace=False)
        tokens[wrong] = [guesses[int(index)] for index in wrong]
    return Corrupted(kind, rate, tokens, np.sort(wrong))


def _revised(read: ReadLogits, canvas: Canvas, revision: Revision) -> tuple[Canvas, int]:
    """The canvas after revision, and how many forwards that took."""
    positions, forwards = np.arange(*canvas.gaps[0]), 0
    reading, limit = revision.reading, ORDERS[revision.order]
    for _ in range(ROUNDS):
        logits = [read(now, some) for now, some in readings(canvas, positions, reading)]
        forwards += len(logits)
        decision = revise(canvas, positions, np.concatenate(logits), revision.threshold, limit, reading=reading)
        if not len(decision):
            break
        canvas = canvas.apply(decision)
    return canvas, forwards


def _row(
    kind: str, rate: float, revision: Revision, trials: Sequence[CorrectionTrial], groups: np.ndarray
) -> Corrected:
    wrong, right, fixed, broken, refilled = (
        np.array([getattr(trial, name) for trial in trials], dtype=np.float64)
        for name in ("num_wrong", "num_right", "fixed", "broken", "refilled")
    )
    return Corrected(
        kind=kind,
        rate=rate,
        reading=revision.reading,
        order=revision.order,
        threshold=revision.threshold,
        num=len(trials),
        wrong_rate=float(wrong.sum() / (wrong.sum() + right.sum())),
        fixed=float(fixed.sum() / wrong.sum()) if wrong.sum() else None,
        fixed_interval=clustered_wilson(fixed, wrong, groups) if wrong.sum() else None,
        broken=float(broken.sum() / max(1.0, right.sum())),
        broken_interval=clustered_wilson(broken, right, groups),
        refilled=float(refilled.sum() / wrong.sum()) if wrong.sum() else None,
        **shares(trials, "exact"),
        **means(trials, "forwards"),
    )


def _best(rows: Sequence[Corrected], kind: str, rate: float) -> int | None:
    """The place of the row that fixes most among all that break at most MAX_BROKEN."""
    fixed = {
        place: row.fixed
        for place, row in enumerate(rows)
        if (row.kind, row.rate) == (kind, rate) and row.fixed is not None and row.broken <= MAX_BROKEN
    }
    return max(fixed, key=lambda place: fixed[place]) if fixed else None
