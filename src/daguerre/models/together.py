"""Logits of one text at once with a gap of several lengths.

In causal context what is given around a gap is settled, each run of it blind to the others. So it is computed once: in
a canvas whose gap is longer, the same rows stand further to the right, which turns their keys and changes nothing else.
Then all canvases are a batch of open rows, filled up with padding that none of them sees. In full context nothing
settles, and a canvas is a row of the batch as it is.

Letters: A asked positions, B canvases, S settled rows, R rows of a forward, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from daguerre.canvas import Canvas
from daguerre.models.cache import Cache
from daguerre.models.denoiser import BackboneDenoiser, Counts, Denoiser
from daguerre.models.layout import PADDING, SETTLED, Layout, Rows
from daguerre.models.rows import RowPlan, plan_rows

MOST_ROWS = 4096
"""Rows of a forward, padding too: more canvases than have room in it take another."""


def logits_together(denoiser: Denoiser, canvases: Sequence[Canvas], counts: Counts) -> list[np.ndarray]:
    """Float32 logits (A, V) of what is open in the active span of each canvas; what it took is added to `counts`.

    The canvases have the same given tokens, and gaps of any length between them. A denoiser that is not a backbone of
    ours has no batch and is asked one canvas after the other, each in a session of its own: `logits_alone`, the slow
    reference, which is equal to rounding.
    """
    if not isinstance(denoiser, BackboneDenoiser):
        return logits_alone(denoiser, canvases, counts)
    plans = [plan_rows(denoiser.config, canvas) for canvas in canvases]
    tokens = [np.where(canvas.open, denoiser.config.mask_id, canvas.tokens) for canvas in canvases]
    cache = _settle(denoiser, plans[0], tokens[0][plans[0].settled], counts) if len(plans[0].settled) else None
    out: list[np.ndarray] = []
    for part in _parts(plans):
        out += _batch(denoiser, canvases[part], plans[part], tokens[part], cache, counts)
    return out


def logits_alone(denoiser: Denoiser, canvases: Sequence[Canvas], counts: Counts) -> list[np.ndarray]:
    """The same, each canvas by itself."""
    out = []
    for canvas in canvases:
        session = denoiser.session(canvas)
        out.append(session.logits(canvas, canvas.asked()))
        vars(counts).update(vars(counts + session.counts))
    return out


def _parts(plans: Sequence[RowPlan]) -> Iterator[slice]:
    """Runs of canvases whose rows, filled up to the longest, fit a forward."""
    start = 0
    for end in range(1, len(plans) + 1):
        widest = max(len(plan.opened) for plan in plans[start : end + 1])
        if end == len(plans) or widest * (end + 1 - start) > MOST_ROWS:
            yield slice(start, end)
            start = end


@torch.inference_mode()
def _settle(denoiser: BackboneDenoiser, plan: RowPlan, tokens: np.ndarray, counts: Counts) -> Cache:
    """A cache with the settled rows of a plan, whose tokens (S,) are given."""
    executor, num = denoiser.executor, len(tokens)
    weight = executor.embedding.weight
    cache = Cache(denoiser.config, num, dtype=weight.dtype, device=weight.device)
    layout = Layout(_settled_rows([plan]).to(weight.device), num, denoiser.config.context, denoiser.config.block_size)
    last = torch.tensor([num - 1], device=weight.device)
    executor(torch.from_numpy(tokens)[None].to(weight.device), layout, cache, asked_A=last)
    counts.forwards += 1
    counts.prefill_rows += num
    return cache


def _settled_rows(plans: Sequence[RowPlan]) -> Rows:
    """Labels (B, S) of settled rows that differ in their positions alone."""
    position, segment = np.stack([[plan.settled, plan.segment] for plan in plans], axis=1)
    return Rows.make(torch.from_numpy(position), SETTLED, segment=torch.from_numpy(segment))


@torch.inference_mode()
def _batch(
    denoiser: BackboneDenoiser,
    canvases: Sequence[Canvas],
    plans: Sequence[RowPlan],
    tokens: Sequence[np.ndarray],
    cache: Cache | None,
    counts: Counts,
) -> list[np.ndarray]:
    """One forward."""
    config, executor = denoiser.config, denoiser.executor
    device = executor.embedding.weight.device
    shape = (len(plans), max(len(plan.opened) for plan in plans))
    given, position = np.zeros((2, *shape), dtype=np.int64)
    span = np.full(shape, PADDING)
    for row, (plan, own) in enumerate(zip(plans, tokens, strict=True)):
        num = len(plan.opened)
        given[row, :num], position[row, :num], span[row, :num] = own[plan.opened], plan.opened, 0
    rows = Rows.make(torch.from_numpy(position), torch.from_numpy(span)).to(device)
    shared = None if cache is None else cache.spread(_settled_rows(plans).to(device), cache.length + shape[1])
    told = {"time_BR": torch.ones(shape, device=device)} if config.time_input else {}
    layout = Layout(rows, 0, config.context, config.block_size)
    hidden = executor(torch.from_numpy(given).to(device), layout, shared, **told)
    counts.forwards += 1
    counts.rows += sum(len(plan.opened) for plan in plans)
    counts.reused_rows += 0 if cache is None else cache.length * len(plans)
    out = []
    for canvas, plan, own in zip(canvases, plans, hidden, strict=True):
        wanted = np.searchsorted(plan.opened, canvas.asked() - plan.offset)
        out.append(executor.logits(own[torch.from_numpy(wanted).to(device)]).cpu().numpy())
    return out
