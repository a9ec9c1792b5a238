"""The rows of a training example: a clean stream, and noisy spans that see it.

An `Example` is one sequence as numpy arrays; `train/examples.py` decides which spans it has, `train/batch.py` stacks
examples and takes the loss.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from daguerre.models.core.batched import CLEAN, NO_HORIZON, NO_SPAN
from daguerre.noise.process import Process
from daguerre.noise.schedule import SCHEDULES
from daguerre.train.objectives import MIN_TIME, WEIGHTS, Objective

Ints = np.ndarray
IGNORE = -1
REVISED = -2
NUM_LEVELS = 8


@dataclass(frozen=True)
class Source:
    """One training text, already cut: token pieces laid end to end, and the special tokens an example needs.

    `starts` are the token offsets at which a span begins by preference (cuts made at characters); `gaps` are token
    ranges [start, end) to infill. Ids in the range `ordinary` are not reserved. The first `given` tokens are the prompt
    of a text that a model has written; 1, <bos>, for all others.
    """

    tokens: Ints
    mask_id: int
    null_id: int | None = None
    ordinary: tuple[int, int] = (0, 0)
    starts: tuple[int, ...] = ()
    gaps: tuple[tuple[int, int], ...] = ()
    given: int = 1


@dataclass
class Example:
    """Rows of one sequence: `num_clean` clean rows, then noisy rows. All arrays int64 (R,) but `weight` and `time`
    (float32).

    `num_tokens` is the length of the text, `time` the noise level of a noisy row, as `ModelConfig.time_input` means it.

    `document` tells texts apart that are packed into one sequence: rows of one never see those of another.
    `level` is the noise bin of a masked row, 0 .. NUM_LEVELS-1, REVISED where a visible token is the target, or IGNORE
    on clean rows. `guess` is 1 where the row's token is to be replaced by the model's wrong guess. `origin` is which of
    the source's tokens a row predicts, whether it is masked or not; IGNORE: none.
    """

    num_clean: int
    num_tokens: int
    tokens: Ints
    position: Ints
    span: Ints
    segment: Ints
    horizon: Ints
    gap: Ints
    target: Ints
    weight: np.ndarray
    level: Ints
    guess: Ints
    time: np.ndarray
    origin: Ints
    document: Ints


@dataclass
class RowWriter:
    """Collects rows; `finish` makes the Example."""

    parts: dict[str, list[np.ndarray]] = field(default_factory=dict)
    num_rows: int = 0

    def add(self, tokens: Ints, position: Ints, target: Ints, weight: np.ndarray, **labels: Ints | float) -> None:
        num = len(tokens)
        defaults: dict[str, float] = {"span": CLEAN, "segment": 0, "horizon": NO_HORIZON, "gap": NO_SPAN}
        defaults |= {"level": IGNORE, "guess": 0, "time": 0.0, "origin": IGNORE, "document": 0}
        row = {"tokens": tokens, "position": position, "target": target, "weight": weight}
        for name, value in {**defaults, **labels}.items():
            row[name] = value if isinstance(value, np.ndarray) else np.full(num, value)
        for name, value in row.items():
            self.parts.setdefault(name, []).append(np.asarray(value))
        self.num_rows += num

    def clean_stream(self, tokens: Ints, objective: Objective, **labels: Ints) -> int:
        """Clean rows with the next token as target (none for the last, none without shift); returns their number."""
        target = np.append(tokens[1:], IGNORE) if objective.shift else np.full(len(tokens), IGNORE)
        position = labels.pop("position", np.arange(len(tokens)))
        origin = np.append(np.arange(1, len(tokens)), IGNORE) if objective.shift else np.arange(len(tokens))
        self.add(tokens, position, target, np.where(target == IGNORE, 0.0, objective.clean), origin=origin, **labels)
        return len(tokens)

    def finish(self, num_clean: int, num_tokens: int | None = None) -> Example:
        joined = {
            name: np.concatenate(values).astype(np.float32 if name in ("weight", "time") else np.int64)
            for name, values in self.parts.items()
        }
        return Example(num_clean, num_clean if num_tokens is None else num_tokens, **joined)


@dataclass(frozen=True)
class NoisySpan:
    """Positions [start, start + len(answer)) to be written at noise level t.

    number   its label
    before   the clean token at start - 1, which `add_span` needs
    horizon  its rows see clean rows below this; None: those before its first row
    origin   the place of its first token in the source; None: `start`
    masked   which tokens are masked, boolean; None: they are drawn
    """

    number: int
    start: int
    answer: Ints
    t: float
    before: int | None = None
    horizon: int | None = None
    origin: int | None = None
    masked: np.ndarray | None = None


def add_span(
    writer: RowWriter, span: NoisySpan, source: Source, objective: Objective, rng: np.random.Generator
) -> None:
    """Add the noisy rows of a span.

    Shifted: rows start-1 .. end-2, the first (the anchor) holding `before`, each predicting its successor. Otherwise
    rows start .. end-1, each predicting itself.
    """
    answer = span.answer
    assert span.before is not None
    expected, rate = _share_and_rate(objective.schedule, span.t)
    masked, from_left = _masks(span, np.arange(len(answer)), expected, rng), False
    if objective.left and rng.random() < objective.left:
        masked, from_left = np.sort(masked), True
    share = masked.sum() / len(answer)
    visible, guess = _plant_errors(answer, ~masked, source, objective, rng)
    noisy = np.where(masked, source.mask_id, visible)
    has_target = masked | (objective.errors > 0)
    weight = _span_weights(span, masked, from_left, share, rate, source, objective)
    level = np.where(masked, _level(share), REVISED)
    first, place = span.start - 1 if objective.shift else span.start, np.arange(len(answer))
    writer.add(
        np.concatenate([[span.before], noisy[:-1]]) if objective.shift else noisy,
        first + place,
        np.where(has_target, answer, IGNORE),
        np.where(has_target, weight, 0.0),
        span=span.number,
        horizon=first if span.horizon is None else span.horizon,
        level=np.where(has_target, level, IGNORE),
        guess=np.concatenate([[0], guess[:-1]]),
        origin=np.where(answer == source.null_id, IGNORE, (span.start if span.origin is None else span.origin) + place),
    )


def _span_weights(
    span: NoisySpan,
    masked: np.ndarray,
    from_left: bool,
    share: float,
    rate: float,
    source: Source,
    objective: Objective,
) -> np.ndarray:
    """What each token of a span weighs, where it is a target.

    The first gap filler of a gap, which ends it, weighs as much as any token, or ends would be as improbable as the
    fillers are many; those behind it weigh as much as one token together.
    """
    num = len(span.answer)
    weight = np.full(num, objective.masked * (WEIGHTS[objective.weight](share, rate) if share else 0.0))
    if objective.errors:
        weight[~masked] = objective.masked
    later_fillers = np.zeros(num, dtype=bool)
    if source.null_id is not None:
        has_target = masked | (objective.errors > 0)
        later_fillers[1:] = has_target[1:] & (span.answer[:-1] == source.null_id)
    if later_fillers.any():
        weight[later_fillers] /= later_fillers.sum()
    if from_left:
        weight[masked & (masked.cumsum() == 1)] *= objective.next
    return weight


def _plant_errors(
    answer: Ints, visible: np.ndarray, source: Source, objective: Objective, rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """The answer with random tokens in half of the places drawn for errors; 1 where the model's guess goes."""
    if not objective.errors:
        return answer, np.zeros(len(answer), dtype=np.int64)
    low, high = source.ordinary
    wrong = visible & (answer >= low) & (rng.random(len(answer)) < objective.errors)
    guess = wrong & (rng.random(len(answer)) < 0.5)
    other = (answer - low + rng.integers(1, high - low, len(answer))) % (high - low) + low
    return np.where(wrong & ~guess, other, answer), guess.astype(np.int64)


def add_whole(
    writer: RowWriter,
    span: NoisySpan,
    free: np.ndarray,
    source: Source,
    objective: Objective,
    rng: np.random.Generator,
) -> None:
    """Add noisy rows for all positions of a span. Tokens where `free`, boolean, is true may be noised, and at least one
    is; the others are given.

    Each row predicts itself, or with a shift its successor, and the last row then nothing. Of another process than the
    absorbing one every row that is not given has a target.
    """
    tokens, places = span.answer, np.flatnonzero(free)
    place = span.start + np.arange(len(tokens))
    if objective.process is not None:
        _add_replaced(writer, span, free, objective.process, objective.masked, rng)
        return
    expected, rate = _share_and_rate(objective.schedule, span.t)
    masked = _masks(span, places, expected, rng)
    share = masked.sum() / len(places)
    predicted = np.append(masked[1:], False) if objective.shift else masked
    answer = np.append(tokens[1:], IGNORE) if objective.shift else tokens
    weight = objective.masked * (WEIGHTS[objective.weight](share, rate) if share else 0.0)
    writer.add(
        np.where(masked, source.mask_id, tokens),
        place,
        np.where(predicted, answer, IGNORE),
        np.where(predicted, weight, 0.0),
        span=span.number,
        horizon=span.start,
        level=np.where(predicted, _level(share), IGNORE),
        time=share,
        origin=np.append(place[1:], IGNORE) if objective.shift else place,
    )


def _add_replaced(
    writer: RowWriter, span: NoisySpan, noised: np.ndarray, process: Process, weight: float, rng: np.random.Generator
) -> None:
    """Add rows of a whole text of which the tokens where `noised` are as the process has them at time t."""
    tokens, t = span.answer, min(max(span.t, MIN_TIME), 1 - MIN_TIME)
    generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
    times = torch.tensor([t], dtype=torch.float64)
    noisy = process.corrupt(torch.from_numpy(tokens)[None], times, generator)[0].numpy()
    place = np.arange(len(tokens))
    writer.add(
        np.where(noised, noisy, tokens),
        place,
        np.where(noised, tokens, IGNORE),
        np.where(noised, weight, 0.0),
        span=0,
        horizon=0,
        level=np.where(noised, _level(t), IGNORE),
        time=t,
        origin=place,
    )


def _level(share: float) -> int:
    """The noise bin of a masked share."""
    return min(NUM_LEVELS - 1, int(share * NUM_LEVELS))


def _masks(span: NoisySpan, places: Ints, share: float, rng: np.random.Generator) -> np.ndarray:
    """Which tokens of a span are masked: those it says, or this share of `places`."""
    if span.masked is not None:
        return span.masked
    masked = np.zeros(len(span.answer), dtype=bool)
    masked[places] = _mask_exactly(len(places), share, rng)
    return masked


def _mask_exactly(num: int, share: float, rng: np.random.Generator) -> np.ndarray:
    """A boolean mask of ceil(share * num) positions, drawn without replacement (exact-k estimator)."""
    masked = np.zeros(num, dtype=bool)
    masked[rng.permutation(num)[: int(np.ceil(share * num))]] = True
    return masked


def _share_and_rate(schedule: str, t: float) -> tuple[float, float]:
    """(1 - alpha(t), -alpha'(t)) of the named schedule."""
    alpha, time = SCHEDULES[schedule](), torch.tensor(t, dtype=torch.float64)
    return 1.0 - float(alpha.alpha(time)), -float(alpha.alpha_prime(time))
