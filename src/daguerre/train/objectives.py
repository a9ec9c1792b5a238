"""Training objectives in one form:  loss = sum_i w_i [masked_i] CE_i / norm.

An objective has five parts, each named in a recipe: how the noise level t is drawn, the weight w, the layout
(which spans are open and what they see), the shift, and the normalizer. In causal and block context one forward carries
a clean stream, in causal context with next-token loss on every token, and behind it noisy rows that see the clean
stream as decoding would. In full context nothing settles: all rows are one noisy span.

An `Example` is one sequence as numpy arrays; `train/batch.py` stacks examples and takes the loss.
Letters: T clean rows, R rows in all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from daguerre.errors import InputError, unknown
from daguerre.models.config import Context
from daguerre.models.layout import EVERY_SPAN, NO_HORIZON, NO_SPAN, SETTLED
from daguerre.noise.process import Process
from daguerre.noise.schedule import SCHEDULES

Ints = np.ndarray
Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
IGNORE = -1
REVISED = -2
NUM_LEVELS = 8


def times_full(u: float) -> float:
    """t = 1: every open token is masked (a one-shot draft)."""
    return 1.0


def times_uniform(u: float) -> float:
    """t uniform on (0, 1]; `u` is a stratified uniform number, so t is stratified over the batch."""
    return max(u, 1e-6)


def times_half_full(u: float) -> float:
    """Half of the spans fully masked, as they are when decoding starts; the other half uniform on (0, 1]."""
    return 1.0 if u >= 0.5 else times_uniform(2 * u)


def times_light(u: float) -> float:
    """Half of the spans without a mask, as a finished text that is to be corrected; the other half up to one half."""
    return max(0.0, u - 0.5)


def times_clipped(u: float) -> float:
    """t uniform on [0.3, 0.8]: the clipped schedule of BD3-LM for blocks of 16 (lower gradient variance, no bound)."""
    return 0.3 + 0.5 * u


def weight_one(share: float, rate: float) -> float:
    """Plain cross-entropy: best at small budgets (Sahoo et al. 2026)."""
    return 1.0


def weight_elbo(share: float, rate: float) -> float:
    """rate/share = -alpha'/(1-alpha): the negative ELBO; on the linear schedule 1/t."""
    return rate / share


def weight_clipped(share: float, rate: float) -> float:
    """The weight of the negative ELBO, at most 5."""
    return min(rate / share, 5.0)


TIMES = {
    "full": times_full,
    "uniform": times_uniform,
    "half_full": times_half_full,
    "light": times_light,
    "clipped": times_clipped,
}
WEIGHTS = {"one": weight_one, "elbo": weight_elbo, "clipped": weight_clipped}
NORMALIZERS = ("tokens", "masked")
TEACHERS = ("data", "own")
PROCESS_LOSSES = {"one": "cross_entropy", "elbo": "nelbo", "clipped": "dynamic_loss"}
"""What a weight stands for where tokens are replaced by others: the method of the process."""
LEAST_TIME = 1e-4
"""How near to its ends t is drawn where tokens are replaced by others: at the ends the losses are 0/0."""


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The five parts. `layout` is a key of LAYOUTS; `clean` weighs the next-token loss of the clean stream.

    A time t drawn by `times` masks a share 1 - alpha(t) of a span's tokens on `schedule`, and `weight` is a function of
    that share (exact-k: the masks that were drawn, not the mean) and the rate -alpha'(t).

    `normalizer`: "tokens" divides by the number of clean tokens of the batch, whatever is masked; "masked" by the sum
    of the weights, so that a batch with few masks counts as much as one with many. Without `shift` a row predicts
    itself, so a clean row has nothing to predict and there is no next-token loss. `masked` weighs the masked loss, on
    top of `weight`; `copies` is how many noisy versions of its gaps an infilling example has, each at its own level.
    `left` is the share of spans whose visible tokens are the leftmost ones, as decoding from left to right has them: a
    gap's end is decided in that state, which masks at random hardly ever show. In such a span the first masked token,
    which is what decoding draws, weighs `next` times as much.

    What the model itself says is put in place just before the forward (`train/own.py`):

    teacher    "own": spans continue with the model's own greedy text instead of the data's (sequence distillation, Kim
               and Rush 2016, from the same weights), so that drafts learn what the model would write one by one
    errors     share of a span's visible tokens that are replaced, half by random tokens and half by the model's own
               wrong guesses; every visible token is then a target (token-to-token editing, LLaDA2.1)
    certainty  weight of the entropy of masked rows whose most likely token is right (CAP, LLaDA2.0)

    `shift`, `block_size` and `process` are facts of the model that is trained, not of a recipe's mixture. `process` is
    None for the absorbing one. Another replaces tokens by others, each on its own with the probability of t on its own
    schedule; then the loss is the process's, on every token that may have been replaced: see PROCESS_LOSSES.
    """

    layout: str
    times: str = "uniform"
    schedule: str = "linear"
    weight: str = "one"
    shift: bool = True
    normalizer: str = "tokens"
    clean: float = 1.0
    masked: float = 1.0
    copies: int = 1
    left: float = 0.0
    next: float = 1.0
    teacher: str = "data"
    errors: float = 0.0
    certainty: float = 0.0
    block_size: int | None = None
    process: Process | None = None

    def __post_init__(self) -> None:
        for kind, name, table in (
            ("layout", self.layout, LAYOUTS),
            ("times", self.times, TIMES),
            ("schedule", self.schedule, SCHEDULES),
            ("weight", self.weight, WEIGHTS),
            ("normalizer", self.normalizer, NORMALIZERS),
            ("teacher", self.teacher, TEACHERS),
        ):
            if name not in table:
                raise unknown(kind, name, table)
        if self.copies < 1 or (self.copies > 1 and self.layout != "infill"):
            raise InputError(f"copies={self.copies}: one at least, and more than one only for the infill layout")
        if self.teacher == "own" and (self.layout not in ("drafts", "blocks") or not self.shift):
            raise InputError('teacher = "own" continues spans that see what is before them: drafts and blocks, shifted')
        if not 0 <= self.left <= 1:
            raise InputError(f"left is a share of the spans, not {self.left}")
        if self.next <= 0:
            raise InputError(f"next is a weight above 0, not {self.next}")
        if not (0 <= self.errors < 1 and self.certainty >= 0):
            raise InputError(f"errors is a share below 1 and certainty a weight, not {self.errors}, {self.certainty}")
        if self.errors and (self.teacher == "own" or not self.shift or self.layout == "next_token"):
            raise InputError('errors are planted in spans of the data, in a shifted model: leave out teacher = "own"')
        if self.layout == "next_token" and not self.shift:
            raise InputError("the next_token layout needs a shifted model: without `shift` nothing is left to predict")

        if self.process is not None:
            self._check_process(self.process)

    def _check_process(self, process: Process) -> None:
        name = type(process).__name__.lower()
        if self.context != "full" or self.shift:
            raise InputError(f"the {name} process is trained in full context without a shift: its layout is full")
        if self.schedule != "linear" or self.times not in ("uniform", "clipped"):
            raise InputError(f"the {name} process has its own schedule, and times 'uniform' or 'clipped'")
        if not hasattr(process, PROCESS_LOSSES[self.weight]):
            raise InputError(f"the {name} process has no weight {self.weight!r}: use 'one' or 'elbo'")

    @property
    def loss(self) -> Loss | None:
        """(logits, x_0, x_t, t) to nats; None for cross-entropy of what is masked."""
        return None if self.process is None else getattr(self.process, PROCESS_LOSSES[self.weight])

    @property
    def context(self) -> Context:
        """The context that the layout is for."""
        return CONTEXT_OF[self.layout]


@dataclass(frozen=True)
class Source:
    """One training text, already cut: token pieces laid end to end, and the special tokens an example needs.

    Even boundaries need no care: `starts` are the token offsets at which a span may begin by preference (cuts made
    at characters); `gaps` are token ranges [start, end) to infill. Ids in the range `ordinary` are not reserved.
    """

    tokens: Ints
    mask_id: int
    null_id: int | None = None
    ordinary: tuple[int, int] = (0, 0)
    starts: tuple[int, ...] = ()
    gaps: tuple[tuple[int, int], ...] = ()


@dataclass
class Example:
    """Rows of one sequence: `num_settled` clean rows, then open rows. All arrays int64 (R,) but `weight` and `time`
    (float32).

    `num_tokens` is the length of the text, `time` the noise level of a noisy row, as `ModelConfig.time_input` means it.

    `level` is the noise bin of a masked row, 0 .. NUM_LEVELS-1, REVISED where a visible token is the target, or IGNORE
    on clean rows. `guess` is 1 where the row's own token is to be replaced by the model's wrong guess.
    """

    num_settled: int
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


@dataclass
class _Writer:
    """Collects rows; `finish` makes the Example."""

    parts: dict[str, list[np.ndarray]] = field(default_factory=dict)
    num_rows: int = 0

    def add(self, tokens: Ints, position: Ints, target: Ints, weight: np.ndarray, **labels: Ints | float) -> None:
        num = len(tokens)
        defaults: dict[str, float] = {"span": SETTLED, "segment": 0, "horizon": NO_HORIZON, "gap": NO_SPAN}
        defaults |= {"level": IGNORE, "guess": 0, "time": 0.0}
        row = {"tokens": tokens, "position": position, "target": target, "weight": weight}
        for name, value in {**defaults, **labels}.items():
            row[name] = value if isinstance(value, np.ndarray) else np.full(num, value)
        for name, value in row.items():
            self.parts.setdefault(name, []).append(np.asarray(value))
        self.num_rows += num

    def finish(self, num_settled: int, num_tokens: int | None = None) -> Example:
        joined = {
            name: np.concatenate(values).astype(np.float32 if name in ("weight", "time") else np.int64)
            for name, values in self.parts.items()
        }
        return Example(num_settled, num_settled if num_tokens is None else num_tokens, **joined)


def _clean_stream(writer: _Writer, tokens: Ints, objective: Objective, **labels: Ints) -> int:
    """Settled rows with the next token as target (none for the last, none without shift); returns their number."""
    target = np.append(tokens[1:], IGNORE) if objective.shift else np.full(len(tokens), IGNORE)
    position = labels.pop("position", np.arange(len(tokens)))
    writer.add(tokens, position, target, np.where(target == IGNORE, 0.0, objective.clean), **labels)
    return len(tokens)


def _mask_exactly(num: int, share: float, rng: np.random.Generator) -> np.ndarray:
    """A boolean mask of ceil(share * num) positions, drawn without replacement (exact-k estimator)."""
    masked = np.zeros(num, dtype=bool)
    masked[rng.permutation(num)[: int(np.ceil(share * num))]] = True
    return masked


def _share_and_rate(schedule: str, t: float) -> tuple[float, float]:
    """(1 - alpha(t), -alpha'(t)) of the named schedule."""
    alpha, time = SCHEDULES[schedule](), torch.tensor(t, dtype=torch.float64)
    return 1.0 - float(alpha.alpha(time)), -float(alpha.alpha_prime(time))


def _open_span(
    writer: _Writer,
    before: int,
    answer: Ints,
    start: int,
    t: float,
    source: Source,
    objective: Objective,
    rng: np.random.Generator,
    *,
    span: int,
    horizon: int | None = None,
) -> None:
    """Noisy rows for the open positions [start, start + len(answer)); `before` is the settled token at start - 1.

    Shifted: rows start-1 .. end-2, the first (the seed) holding `before`, each predicting its successor. Otherwise rows
    start .. end-1, each predicting itself. The first null of a gap, which ends it, weighs as much as any token, or ends
    would be as improbable as the nulls are many; those behind it weigh as much as one token together.
    """
    num = len(answer)
    expected, rate = _share_and_rate(objective.schedule, t)
    masked, next_one = _mask_exactly(num, expected, rng), 1.0
    if objective.left and rng.random() < objective.left:
        masked, next_one = np.sort(masked), objective.next
    share = masked.sum() / num
    shown, guess = _plant_errors(answer, ~masked, source, objective, rng)
    noisy = np.where(masked, source.mask_id, shown)
    first = start - 1 if objective.shift else start
    inputs = np.concatenate([[before], noisy[:-1]]) if objective.shift else noisy
    weight = np.full(num, objective.masked * (WEIGHTS[objective.weight](share, rate) if share else 0.0))
    if objective.errors:
        weight[~masked] = objective.masked
    asked = masked | (objective.errors > 0)
    later_nulls = np.zeros(num, dtype=bool)
    if source.null_id is not None:
        later_nulls[1:] = asked[1:] & (answer[:-1] == source.null_id)
    if later_nulls.any():
        weight[later_nulls] /= later_nulls.sum()
    weight[masked & (masked.cumsum() == 1)] *= next_one
    level = np.where(masked, min(NUM_LEVELS - 1, int(share * NUM_LEVELS)), REVISED)
    writer.add(
        inputs,
        first + np.arange(num),
        np.where(asked, answer, IGNORE),
        np.where(asked, weight, 0.0),
        span=span,
        horizon=first if horizon is None else horizon,
        level=np.where(asked, level, IGNORE),
        guess=np.concatenate([[0], guess[:-1]]),
    )


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


def _noisy_rows(
    writer: _Writer,
    tokens: Ints,
    run: tuple[int, int],
    first: int,
    t: float,
    source: Source,
    objective: Objective,
    rng: np.random.Generator,
    *,
    span: int,
) -> None:
    """Open rows for all of `tokens`, at the positions from `first` on; those outside `run` [start, end) are given.

    Each row predicts itself, or with a shift its successor, and the last row then nothing. Of another process than the
    absorbing one every row that is not given has a target.
    """
    start, end = run
    if objective.process is not None:
        _replaced_rows(writer, tokens, run, t, objective.process, objective.masked, rng)
        return
    expected, rate = _share_and_rate(objective.schedule, t)
    masked = np.zeros(len(tokens), dtype=bool)
    masked[start:end] = _mask_exactly(end - start, expected, rng)
    share = masked.sum() / (end - start)
    predicted = np.append(masked[1:], False) if objective.shift else masked
    answer = np.append(tokens[1:], IGNORE) if objective.shift else tokens
    weight = objective.masked * (WEIGHTS[objective.weight](share, rate) if share else 0.0)
    writer.add(
        np.where(masked, source.mask_id, tokens),
        first + np.arange(len(tokens)),
        np.where(predicted, answer, IGNORE),
        np.where(predicted, weight, 0.0),
        span=span,
        horizon=first,
        level=np.where(predicted, min(NUM_LEVELS - 1, int(share * NUM_LEVELS)), IGNORE),
        time=share,
    )


def _replaced_rows(
    writer: _Writer,
    tokens: Ints,
    run: tuple[int, int],
    t: float,
    process: Process,
    weight: float,
    rng: np.random.Generator,
) -> None:
    """Rows of a whole text of which the tokens of `run` [start, end) are as the process has them at time t."""
    t = min(max(t, LEAST_TIME), 1 - LEAST_TIME)
    generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
    times = torch.tensor([t], dtype=torch.float64)
    noisy = process.corrupt(torch.from_numpy(tokens)[None], times, generator)[0].numpy()
    place = np.arange(len(tokens))
    noised = (place >= run[0]) & (place < run[1])
    writer.add(
        np.where(noised, noisy, tokens),
        place,
        np.where(noised, tokens, IGNORE),
        np.where(noised, weight, 0.0),
        span=0,
        horizon=0,
        level=np.where(noised, min(NUM_LEVELS - 1, int(t * NUM_LEVELS)), IGNORE),
        time=t,
    )


def _levels(objective: Objective, u: float, num: int) -> list[float]:
    """`num` noise levels, stratified over the spans of a sequence by a common offset u."""
    return [TIMES[objective.times]((u + i / num) % 1.0) for i in range(num)]


def _independent(
    source: Source, objective: Objective, u: float, rng: np.random.Generator, lengths: Ints, budget: int
) -> Example:
    """Many spans at random offsets of one clean stream; each sees the stream before it, and nothing after."""
    writer = _Writer()
    tokens = source.tokens
    settled = _clean_stream(writer, tokens, objective)
    lengths = np.minimum(lengths, min(budget, len(tokens) - 1))
    draws = rng.choice(lengths, size=budget // int(lengths.min()))
    kept = draws[np.cumsum(draws) <= budget]
    levels = _levels(objective, u, max(1, len(kept)))
    for index, length in enumerate(kept.tolist()):
        start = int(rng.integers(1, len(tokens) - length + 1))
        if fitting := [s for s in source.starts if s <= len(tokens) - length]:
            start = fitting[int(rng.integers(len(fitting)))]
        answer = tokens[start : start + length]
        _open_span(writer, tokens[start - 1], answer, start, levels[index], source, objective, rng, span=index)
    return writer.finish(settled)


def drafts(source: Source, objective: Objective, u: float, rng: np.random.Generator, budget: int) -> Example:
    """One-shot drafting: whole spans of 2 to 32 tokens, most of them up to 16, nothing after them."""
    return _independent(source, objective, u, rng, np.array([*range(2, 17), 24, 32]), budget)


def blocks(source: Source, objective: Objective, u: float, rng: np.random.Generator, budget: int) -> Example:
    """Block denoising: spans of 4 to 64 tokens at any offset."""
    return _independent(source, objective, u, rng, np.array([4, 8, 8, 16, 16, 16, 16, 32, 32, 64]), budget)


def canvas(source: Source, objective: Objective, u: float, rng: np.random.Generator, budget: int) -> Example:
    """Global masks: the whole text is one span; its first row is the beginning of text."""
    return _suffix_from(1, source, objective, u, rng, budget)


def suffix(source: Source, objective: Objective, u: float, rng: np.random.Generator, budget: int) -> Example:
    """Everything from a random offset on is one span; what is before it is settled."""
    start = int(rng.choice(source.starts)) if source.starts else int(rng.integers(1, len(source.tokens)))
    return _suffix_from(start, source, objective, u, rng, budget)


def _suffix_from(
    start: int, source: Source, objective: Objective, u: float, rng: np.random.Generator, budget: int
) -> Example:
    writer = _Writer()
    tokens = source.tokens
    settled = _clean_stream(writer, tokens, objective)
    answer = tokens[start : start + budget]
    t = TIMES[objective.times](u)
    _open_span(writer, tokens[start - 1], answer, start, t, source, objective, rng, span=0)
    return writer.finish(settled)


MAX_SLACK = 16


def infill(source: Source, objective: Objective, u: float, rng: np.random.Generator, budget: int) -> Example:
    """Gaps seen by no fixed segment: each segment is computed causally, blind to the others, at its true positions.

    A segment runs from the end of the gap before it to the end of its own gap: the gap's answer is part of the clean
    stream for the next-token loss and hidden from the open rows, as is the seed before it. After its answer a gap holds
    0 to MAX_SLACK nulls, which move what follows to the right. All gaps are one active span; with several `copies` each
    copy is a span of its own, blind to the others.
    """
    if source.null_id is None:
        raise InputError("infilling with slack needs a null token: use a tokenizer that has <null>")
    tokens, gaps = source.tokens, source.gaps
    if not gaps:
        raise InputError("an infilling example needs at least one gap")
    num = len(tokens)
    position, segment, hidden = np.arange(num), np.zeros(num, dtype=np.int64), np.full(num, NO_SPAN)
    pending = []
    for start, end in gaps:
        slack = int(rng.integers(0, MAX_SLACK + 1))
        at = int(position[start - 1]) + 1
        hidden[start - 1 if objective.shift else start : end] = EVERY_SPAN
        position[end:] += slack
        segment[end:] += 1
        pending.append((tokens[start - 1], np.append(tokens[start:end], [source.null_id] * slack).astype(np.int64), at))
    writer = _Writer()
    settled = _clean_stream(writer, tokens, objective, position=position, segment=segment, gap=hidden)
    for copy, t in enumerate(_levels(objective, u, objective.copies)):
        for before, answer, at in pending:
            if len(answer) and writer.num_rows - settled + len(answer) <= budget:
                _open_span(writer, before, answer, at, t, source, objective, rng, span=copy, horizon=NO_HORIZON)
    return writer.finish(settled)


def next_token(source: Source, objective: Objective, u: float, rng: np.random.Generator, budget: int) -> Example:
    """The clean stream alone: an autoregressive objective."""
    writer = _Writer()
    return writer.finish(_clean_stream(writer, source.tokens, objective))


def full(source: Source, objective: Objective, u: float, rng: np.random.Generator, budget: int) -> Example:
    """Full context: the whole text is one noisy span that sees itself both ways (MDLM, LLaDA); <bos> is given."""
    return _full(source, objective, u, rng, budget, 1, None)


def full_suffix(source: Source, objective: Objective, u: float, rng: np.random.Generator, budget: int) -> Example:
    """Full context with a prompt: what is before a random offset is given, all from there on is noisy."""
    return _full(source, objective, u, rng, budget, _full_start(source, rng, budget), None)


def full_gap(source: Source, objective: Objective, u: float, rng: np.random.Generator, budget: int) -> Example:
    """Full context with a gap: from a random offset on, a run of log-uniform length is noisy, all around it given."""
    start = _full_start(source, rng, budget)
    longest = min(len(source.tokens), budget) - start
    return _full(source, objective, u, rng, budget, start, start + int(np.exp(rng.uniform(0, np.log(longest + 1)))))


def _full_start(source: Source, rng: np.random.Generator, budget: int) -> int:
    last = min(len(source.tokens), budget)
    starts = [start for start in source.starts if start < last]
    return int(rng.choice(starts)) if starts else int(rng.integers(1, last))


def _full(
    source: Source,
    objective: Objective,
    u: float,
    rng: np.random.Generator,
    budget: int,
    start: int,
    end: int | None,
) -> Example:
    writer = _Writer()
    tokens, t = source.tokens[:budget], TIMES[objective.times](u)
    run = (start, len(tokens) if end is None else end)
    _noisy_rows(writer, tokens, run, 0, t, source, objective, rng, span=0)
    return writer.finish(0, len(tokens))


def bd3(source: Source, objective: Objective, u: float, rng: np.random.Generator, budget: int) -> Example:
    """BD3-LM's two streams: the clean text, and each block of an absolute grid as a noisy span at its own level.

    A clean row sees its block and earlier ones, a noisy one its noisy block and the clean blocks before it.
    """
    size = objective.block_size
    if size is None or objective.shift:
        raise InputError("the bd3 layout needs a model with block context, `block_size` and no shift")
    writer = _Writer()
    settled = _clean_stream(writer, source.tokens, objective)
    noisy = source.tokens[:budget]
    levels = _levels(objective, u, -(-len(noisy) // size))
    for block, t in enumerate(levels):
        first, start = block * size, int(block == 0)  # <bos> is given
        part = noisy[first : first + size]
        if len(part) > start:
            _noisy_rows(writer, part, (start, len(part)), first, t, source, objective, rng, span=block)
    return writer.finish(settled)


LAYOUTS = {
    "next_token": next_token,
    "drafts": drafts,
    "blocks": blocks,
    "canvas": canvas,
    "suffix": suffix,
    "infill": infill,
    "full": full,
    "full_suffix": full_suffix,
    "full_gap": full_gap,
    "bd3": bd3,
}
CONTEXT_OF: dict[str, Context] = dict.fromkeys(LAYOUTS, "causal")
CONTEXT_OF |= {"full": "full", "full_suffix": "full", "full_gap": "full", "bd3": "block"}
WHOLE_TEXT = ("canvas", "suffix", "full", "full_suffix", "full_gap", "bd3")
"""Layouts whose noisy rows are as many as the text has tokens."""


def make_example(source: Source, objective: Objective, u: float, rng: np.random.Generator, budget: int) -> Example:
    """One example of the objective's layout with at most `budget` open rows; u in [0, 1) places its noise level."""
    return LAYOUTS[objective.layout](source, objective, u, rng, budget)
