"""Answers of a model with block context, as rows: the clean text, then a noisy span for each view of each block.

A block is estimated given the blocks before it, so an answer's log-probability is a sum over its blocks, all of which
share one forward. Where the clean row before a block predicts the block's first token (Fast-dLLM v2), that token's
probability is exact, and every view of the others shows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from daguerre.models.core.batched import CLEAN, PADDING, BatchLayout, Rows
from daguerre.models.core.config import ModelConfig
from daguerre.train.noising import IGNORE
from daguerre.train.reinforce.estimates import DrawnAnswer, Views, drawn_views
from daguerre.train.reinforce.options import Reinforce


class _Part(NamedTuple):
    """Rows, each (R,): tokens, positions, the span and the horizon; the token that a row predicts, its weight, and its
    place in the answer.
    """

    tokens: Tensor
    position: Tensor
    span: Tensor
    horizon: Tensor
    target: Tensor
    weight: Tensor
    slot: Tensor


FILL = _Part(*map(torch.tensor, (0, 0, PADDING, 0, IGNORE, 0.0, 0)))


def block_views(
    answer: DrawnAnswer, options: Reinforce, config: ModelConfig, generator: torch.Generator
) -> Iterator[tuple[int, Tensor, Views]]:
    """Of each block with tokens that views estimate: its first position, the numbers of these tokens among the
    answer's, and the views.
    """
    size = config.block_size
    assert size is not None
    place = answer.asked % size
    for start in range(int(answer.asked[0]) // size * size, int(answer.asked[-1]) + 1, size):
        within = (answer.asked // size == start // size) & ((place > 0) | (config.anchor != "clean"))
        numbers = within.nonzero()[:, 0]
        if len(numbers):
            yield start, numbers, drawn_views(answer.steps[numbers], options, generator)


def rows_in_blocks(
    answers: Sequence[DrawnAnswer], options: Reinforce, config: ModelConfig, generator: torch.Generator
) -> tuple[Tensor, BatchLayout, Tensor, Tensor, Tensor]:
    """Tokens, layout, targets, weights and slots, as in a `PolicyBatch`: one sequence for each answer."""
    clean, noisy, first = list[_Part](), list[_Part](), 0
    for answer in answers:
        spans = list(_spans(answer, options, config, generator))
        clean.append(_clean(answer, config))
        noisy.append(_Part(*(torch.cat(each) for each in zip(*spans, strict=True))) if spans else _none())
        clean[-1].slot.add_(first)
        noisy[-1].slot.add_(first)
        first += len(answer.asked)
    num_clean = max(len(part.tokens) for part in clean)
    sides = (_stacked(clean), _stacked(noisy))
    made = _Part(*(torch.cat(each, 1) for each in zip(*sides, strict=True)))
    rows = Rows.make(made.position, made.span, horizon=made.horizon)
    layout = BatchLayout(rows, num_clean, "block", config.block_size)
    tokens = torch.where(made.span == PADDING, config.pad_id, made.tokens)
    return tokens, layout, made.target, made.weight, made.slot


def _clean(answer: DrawnAnswer, config: ModelConfig) -> _Part:
    """The canvas up to the answer's last block, whose end no row of another block sees."""
    size = config.block_size
    assert size is not None
    stop = min(len(answer.tokens), (int(answer.asked[-1]) // size + 1) * size)
    tokens, position = answer.tokens[:stop].clone(), torch.arange(stop)
    target, weight, slot = torch.full_like(tokens, IGNORE), torch.zeros(stop), torch.zeros_like(tokens)
    if config.anchor == "clean":
        (numbers,) = (answer.asked % size == 0).nonzero(as_tuple=True)
        rows = answer.asked[numbers] - 1
        target[rows], weight[rows], slot[rows] = answer.tokens[answer.asked[numbers]], 1.0, numbers
    return _Part(tokens, position, torch.full_like(tokens, CLEAN), torch.zeros_like(tokens), target, weight, slot)


def _spans(answer: DrawnAnswer, options: Reinforce, config: ModelConfig, generator: torch.Generator) -> Iterator[_Part]:
    """The views of each block."""
    size, number = config.block_size, 0
    assert size is not None
    for start, numbers, views in block_views(answer, options, config, generator):
        position = torch.arange(start, min(start + size, len(answer.tokens)))
        asked, held = answer.asked[numbers], answer.tokens[position]
        for hidden, weight in zip(views.hidden, views.weights, strict=True):
            tokens = held.clone()
            tokens[asked[hidden] - start] = config.placeholder
            ended = torch.isin(answer.end, numbers[hidden]) & (answer.behind < start + size)
            tokens[answer.behind[ended] - start] = config.placeholder
            wanted = hidden & (weight > 0)
            rows = asked[wanted] - start - config.noisy_offset
            target, slot = torch.full_like(tokens, IGNORE), torch.zeros_like(tokens)
            target[rows], slot[rows] = answer.tokens[asked[wanted]], numbers[wanted]
            weights = torch.zeros(len(tokens))
            weights[rows] = weight[wanted]
            spans = torch.full_like(tokens, number)
            yield _Part(tokens, position, spans, torch.full_like(tokens, start), target, weights, slot)
            number += 1


def _none() -> _Part:
    return _Part(*(fill.new_zeros(0) for fill in FILL))


def _stacked(parts: Sequence[_Part]) -> _Part:
    """Parts of unlike numbers of rows, padded on the right."""
    num = max(len(part.tokens) for part in parts)
    return _Part(
        *(
            torch.stack([torch.cat([one, fill.expand(num - len(one))]) for one in each])
            for each, fill in zip(zip(*parts, strict=True), FILL, strict=True)
        )
    )
