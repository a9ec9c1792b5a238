"""One text as the rows that an objective's layout makes of it: one function for each layout.

Each takes a source, the objective, u in [0, 1) that places the noise level, a generator, and a budget of noisy rows.
"""

from __future__ import annotations

import numpy as np

from daguerre.errors import InputError
from daguerre.models.core.batched import EVERY_SPAN, NO_HORIZON, NO_SPAN
from daguerre.train.noising import IGNORE, Example, Ints, NoisySpan, RowWriter, Source, add_span, add_whole
from daguerre.train.objectives import TIMES, Objective

MAX_SLACK = 16


def _levels(objective: Objective, u: float, num: int) -> list[float]:
    """`num` noise levels, stratified over the spans of a sequence by a common offset u."""
    return [TIMES[objective.times]((u + i / num) % 1.0) for i in range(num)]


def _independent(
    source: Source, objective: Objective, u: float, rng: np.random.Generator, lengths: Ints, budget: int
) -> Example:
    """Many spans at random offsets of one clean stream; each sees the stream before it, and nothing after."""
    writer = RowWriter()
    tokens = source.tokens
    num_clean = writer.clean_stream(tokens, objective)
    lengths = np.minimum(lengths, min(budget, len(tokens) - 1))
    draws = rng.choice(lengths, size=budget // int(lengths.min()))
    kept = draws[np.cumsum(draws) <= budget]
    levels = _levels(objective, u, max(1, len(kept)))
    for index, length in enumerate(kept.tolist()):
        start = int(rng.integers(1, len(tokens) - length + 1))
        if fitting := [s for s in source.starts if s <= len(tokens) - length]:
            start = fitting[int(rng.integers(len(fitting)))]
        span = NoisySpan(index, start, tokens[start : start + length], levels[index], before=tokens[start - 1])
        add_span(writer, span, source, objective, rng)
    return writer.finish(num_clean)


def drafts(source: Source, objective: Objective, u: float, rng: np.random.Generator, budget: int) -> Example:
    """One-shot drafting: whole spans of 2 to 32 tokens, most of them up to 16, nothing after them."""
    return _independent(source, objective, u, rng, np.array([*range(2, 17), 24, 32]), budget)


def groups(source: Source, objective: Objective, u: float, rng: np.random.Generator, budget: int) -> Example:
    """Drafts of a verifying forward: groups of masked rows after random clean rows, which see the stream up to there
    (`train/acceptance.py`). Each group's tokens, and one after them, are in the text; none reads a prompt's.
    """
    writer, size = RowWriter(), objective.group
    num_clean = writer.clean_stream(source.tokens, objective)
    last = len(source.tokens) - 2 - size
    first = max(0, min(source.given - 1, last))
    num = min(budget // size, last + 1 - first)
    if num > 0:
        after = first + np.sort(rng.permutation(last + 1 - first)[:num])
        position = (after[:, None] + np.arange(1, size + 1)).ravel()
        masks, ignored = np.full(num * size, source.mask_id), np.full(num * size, IGNORE)
        labels = {"span": np.repeat(np.arange(num), size), "horizon": np.repeat(after + 1, size)}
        writer.add(masks, position, ignored, np.zeros(num * size), **labels)
    return writer.finish(num_clean)


def blocks(source: Source, objective: Objective, u: float, rng: np.random.Generator, budget: int) -> Example:
    """Block denoising: spans of 4 to 64 tokens at any offset."""
    return _independent(source, objective, u, rng, np.array([4, 8, 8, 16, 16, 16, 16, 32, 32, 64]), budget)


def canvas(source: Source, objective: Objective, u: float, rng: np.random.Generator, budget: int) -> Example:
    """Global masks: the whole text is one span; its first row is the beginning of text."""
    return _suffix_from(1, source, objective, u, rng, budget)


def suffix(source: Source, objective: Objective, u: float, rng: np.random.Generator, budget: int) -> Example:
    """Everything from a random offset on is one span; what is before it is clean."""
    start = int(rng.choice(source.starts)) if source.starts else int(rng.integers(1, len(source.tokens)))
    return _suffix_from(start, source, objective, u, rng, budget)


def _suffix_from(
    start: int, source: Source, objective: Objective, u: float, rng: np.random.Generator, budget: int
) -> Example:
    writer = RowWriter()
    tokens = source.tokens
    num_clean = writer.clean_stream(tokens, objective)
    t = TIMES[objective.times](u)
    span = NoisySpan(0, start, tokens[start : start + budget], t, before=tokens[start - 1])
    add_span(writer, span, source, objective, rng)
    return writer.finish(num_clean)


def infill(source: Source, objective: Objective, u: float, rng: np.random.Generator, budget: int) -> Example:
    """Gaps seen by no fixed segment: each segment is computed causally, blind to the others, at its true positions.

    A segment runs from the end of the gap before it to the end of the gap behind it: that gap's answer is part of the
    clean stream for the next-token loss and hidden from the noisy rows, as is the anchor before it. After its answer a
    gap holds 0 to MAX_SLACK gap fillers, which move what follows to the right. All gaps are one active span; with
    several `copies` each copy is a separate span, blind to the others.
    """
    if source.null_id is None:
        raise InputError("infilling with slack needs a gap filler: use a tokenizer that has <null>")
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
        answer = np.append(tokens[start:end], [source.null_id] * slack).astype(np.int64)
        pending.append((tokens[start - 1], answer, at, start))
    writer = RowWriter()
    num_clean = writer.clean_stream(tokens, objective, position=position, segment=segment, gap=hidden)
    for copy, t in enumerate(_levels(objective, u, objective.copies)):
        for before, answer, at, start in pending:
            if len(answer) and writer.num_rows - num_clean + len(answer) <= budget:
                span = NoisySpan(copy, at, answer, t, before=before, horizon=NO_HORIZON, origin=start)
                add_span(writer, span, source, objective, rng)
    return writer.finish(num_clean)


def next_token(source: Source, objective: Objective, u: float, rng: np.random.Generator, budget: int) -> Example:
    """The clean stream alone: an autoregressive objective."""
    writer = RowWriter()
    return writer.finish(writer.clean_stream(source.tokens, objective))


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
    writer = RowWriter()
    span = NoisySpan(0, 0, source.tokens[:budget], TIMES[objective.times](u))
    place = np.arange(len(span.answer))
    free = (place >= start) & (place < (len(place) if end is None else end))
    add_whole(writer, span, free, source, objective, rng)
    return writer.finish(0, len(span.answer))


def bd3(source: Source, objective: Objective, u: float, rng: np.random.Generator, budget: int) -> Example:
    """BD3-LM's two streams: the clean text, and each block of an absolute grid as a noisy span with a level of its own.

    A clean row sees its block and earlier ones, a noisy one its noisy block and the clean blocks before it.
    """
    size = objective.block_size
    if size is None or objective.shift:
        raise InputError("the bd3 layout needs a model with block context, `block_size` and no shift")
    writer = RowWriter()
    num_clean = writer.clean_stream(source.tokens, objective)
    noisy = source.tokens[:budget]
    levels = _levels(objective, u, -(-len(noisy) // size))
    for block, t in enumerate(levels):
        first, start = block * size, int(block == 0)  # <bos> is given
        part = noisy[first : first + size]
        if len(part) > start:
            span = NoisySpan(block, first, part, t)
            add_whole(writer, span, np.arange(len(part)) >= start, source, objective, rng)
    return writer.finish(num_clean)


LAYOUTS = {
    layout.__name__: layout
    for layout in (next_token, drafts, groups, blocks, canvas, suffix, infill, full, full_suffix, full_gap, bd3)
}
WHOLE_TEXT = ("groups", "canvas", "suffix", "full", "full_suffix", "full_gap", "bd3")
"""Layouts that may have as many noisy rows as the text has tokens."""


def make_example(source: Source, objective: Objective, u: float, rng: np.random.Generator, budget: int) -> Example:
    """One example of the objective's layout with at most `budget` noisy rows; u in [0, 1) places its noise level."""
    return LAYOUTS[objective.layout](source, objective, u, rng, budget)
