"""Length search: the length of a gap, found by a model that was not trained to end one.

The training-free search of CAL (arXiv 2602.00476): a gap of each candidate length is laid out open between prefix and
suffix, and scored by how confident the model's first forward is in its most likely tokens. Confidence is highest near
the right length, but it falls with length whatever the text. CAL divides by a bias that was measured on other text;
here, as in LR-DLLM (arXiv 2602.07546), the bias is k log(length), with k from the request: the line that is fitted to
the scores of its candidates. The candidate that is highest above that line is chosen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from daguerre.canvas import Canvas
from daguerre.decoding.options import CONSTRAINTS
from daguerre.decoding.plan import Plan, Search
from daguerre.decoding.request import Decode, TokenRequest
from daguerre.errors import InputError, UnsupportedError
from daguerre.models.core.config import ModelConfig
from daguerre.models.denoiser import BackboneDenoiser, Denoiser
from daguerre.models.forward import Forward, Hidden, KeyCache, Logits
from daguerre.models.rows import NONE, RowPlan, plan_rows
from daguerre.models.session import Asking, Counts, compute, together
from daguerre.sampling.logits import biased, most_likely

MAX_LENGTHS = 32
"""The most candidates of a search. Of more lengths this many are taken, more densely where they are short."""
MAX_ROWS = 4096
"""The most noisy rows of a batch; more canvases take another batch."""

Look = Callable[[Denoiser, Sequence[Canvas], Counts], Asking[list[np.ndarray]]]


def wants_search(config: ModelConfig, request: TokenRequest, search_length: bool | None) -> bool:
    """Whether a gap's length is searched; None: only for a model that cannot end a gap.

    InputError or UnsupportedError for True where there can be no search.
    """
    infilling, budgets, mode = request.infilling, request.budgets, request.decode.mode_entry
    if search_length is None:
        possible = infilling and config.null_id is None and config.context != "block" and mode.searches_length
        return possible and len(budgets) == 1 and budgets[0][0] < budgets[0][1]
    if search_length and not mode.searches_length:
        instead = ', or use mode="block"' if config.process == "absorbing" else ""
        raise UnsupportedError(f'mode "{mode.name}" cannot search a length first: leave out search_length{instead}')
    if search_length and not infilling:
        raise InputError("a length search needs a text after the gap, and there is none: leave out search_length")
    if search_length and len(budgets) > 1:
        raise UnsupportedError(
            f"the length of one gap can be searched, and these are {len(budgets)}: give each its length, with "
            "min_tokens equal to max_tokens"
        )
    return search_length


def candidates(shortest: int, longest: int) -> tuple[int, ...]:
    """Lengths from `shortest`, or 1, to `longest`: all, or at most MAX_LENGTHS of them at equal ratios."""
    shortest = max(1, shortest)
    if longest - shortest < MAX_LENGTHS:
        return tuple(range(shortest, longest + 1))
    return tuple(np.unique(np.geomspace(shortest, longest, MAX_LENGTHS).round().astype(int)).tolist())


def search_length(
    denoiser: Denoiser, request: TokenRequest, plan_request: Callable[[TokenRequest], Plan], look: Look | None = None
) -> Plan:
    """`generate.plan_request` for one gap between two segments, of the length in its budget that the model prefers.

    plan_request: that of `generate`, for this model. look: computes the logits of all candidates; None:
    `look_together`; `look_alone` is the slow reference. Takes one forward for every MAX_ROWS noisy rows, and one for
    the given text where there is a cache. InputError or UnsupportedError, in one line.
    """
    decode, (budget,), config = request.decode, request.budgets, denoiser.config
    if decode.steps is not None:
        raise InputError("steps counts the forwards of a gap of known length: leave out steps, or give the length")

    def plan_of(length: int, how: Decode = decode) -> Plan:
        return plan_request(replace(request, decode=how, budgets=[(length, length)]))

    alone = {
        "lenient": False,
        "strict": False,
        "tool_choice": "auto",
        "parallel_calls": True,
    }  # not used without a constraint
    unconstrained: dict[str, Any] = dict.fromkeys(CONSTRAINTS) | alone
    plan_of(budget[1], Decode.of(decode, **unconstrained))
    started, counts = time.perf_counter(), Counts()
    lengths = candidates(*budget) if not (decode.constrained or decode.pins) else _allowed(candidates(*budget), plan_of)
    before, after = request.segments
    canvases = [Canvas.lay_out([[*config.first, *before], after], [length], config.placeholder) for length in lengths]
    asking = (look or look_together)(denoiser, [canvas.at(canvas.gaps[0]) for canvas in canvases], counts)
    found = compute(asking, denoiser.backend)
    scores = calibrated(lengths, [confidence(logits, decode, config.ends) for logits in found])
    searched = Search(lengths, tuple(scores.tolist()), counts, time.perf_counter() - started)
    return replace(plan_of(searched.best), searched=searched)


def look_alone(denoiser: Denoiser, canvases: Sequence[Canvas], counts: Counts) -> Asking[list[np.ndarray]]:
    """Float32 logits (A, V) of the open positions of the active span of each canvas, each in a separate session; what
    is computed is added to `counts`.
    """
    sessions = [denoiser.session(canvas) for canvas in canvases]
    askings = (
        session.ask(canvas, canvas.active_positions(), Logits())
        for session, canvas in zip(sessions, canvases, strict=True)
    )
    answers = yield from together(*askings)
    for session in sessions:
        counts.add(session.counts)
    return [answer.logits for answer in answers]


def look_together(denoiser: Denoiser, canvases: Sequence[Canvas], counts: Counts) -> Asking[list[np.ndarray]]:
    """The logits of each canvas as by `look_alone`, with the given tokens computed once.

    The canvases have the same given tokens around gaps of different lengths. A fixed run does not see the others, so in
    a canvas with a longer gap its rows are only further to the right, which rotates their keys and changes nothing
    else. Only the noisy rows of each canvas are left to compute. Other denoisers than a backbone, learned positions,
    which do not rotate, queries that positions scale, and reordered context, where the text after a gap sees the text
    before it, take each canvas alone.
    """
    config = denoiser.config
    scaled = config.rope_scaling is not None and config.rope_scaling.query_beta != 0
    absolute = config.context == "causal" and (config.positions == "learned" or scaled)
    if not isinstance(denoiser, BackboneDenoiser) or absolute or config.context == "reordered":
        return (yield from look_alone(denoiser, canvases, counts))
    plans = [plan_rows(config, canvas) for canvas in canvases]
    cache = yield from _clean_cache(denoiser, plans[0], plans[0].tokens(canvases[0]), counts)
    out: list[np.ndarray] = []
    for part in _parts(plans):
        batch = [
            _noisy(config, canvas, plan, cache and cache.moved(_positions(plan) - _positions(plans[0])))
            for canvas, plan in zip(canvases[part], plans[part], strict=True)
        ]
        answers = yield list(batch)
        out += [answer.logits for answer in answers if answer.logits is not None]
        counts.forwards += 1
        counts.query_tokens += sum(len(plan.noisy) for plan in plans[part])
        counts.reused_tokens += plans[0].num_clean * len(batch)
    return out


def _positions(plan: RowPlan) -> np.ndarray:
    return np.arange(plan.num_clean) if plan.clean is None else plan.clean


def _clean_cache(
    denoiser: BackboneDenoiser, plan: RowPlan, tokens: np.ndarray, counts: Counts
) -> Asking[KeyCache | None]:
    """A cache with the clean rows of a plan, whose tokens are (S,); None where there are none."""
    num = plan.num_clean
    if not num:
        return None
    cache, alone = denoiser.backend.cache(num), replace(plan, noisy=NONE)
    yield [Forward(tokens, alone.layout(denoiser.config, 0), cache, np.array([num - 1], dtype=np.int32), Hidden())]
    counts.forwards += 1
    counts.prefill_tokens += num
    return cache


def _noisy(config: ModelConfig, canvas: Canvas, plan: RowPlan, cache: KeyCache | None) -> Forward:
    """The noisy rows of a canvas, after its cached clean rows."""
    tokens = np.where(canvas.open, config.placeholder, canvas.tokens)[plan.noisy]
    rows, level = plan.rows_of(canvas.active_positions(), plan.num_clean), 1.0 if config.time_input else None
    return Forward(tokens, plan.layout(config, plan.num_clean), cache, rows, Logits(), level)


def _parts(plans: Sequence[RowPlan]) -> Iterator[slice]:
    """Runs of canvases whose noisy rows fit into a batch."""
    start = num = 0
    for end, plan in enumerate(plans):
        if num + len(plan.noisy) > MAX_ROWS and end > start:
            yield slice(start, end)
            start, num = end, 0
        num += len(plan.noisy)
    yield slice(start, len(plans))


def confidence(logits: np.ndarray, decode: Decode, ends: Sequence[int]) -> float:
    """Mean log-probability of the most likely tokens, ends excluded, in nats, from logits (L, V)."""
    logits = biased(logits, decode.sampling)
    logits[:, list(ends)] = -np.inf
    return float(np.log(most_likely(logits)[1]).mean())


def calibrated(lengths: Sequence[int], values: Sequence[float]) -> np.ndarray:
    """Values (n,) less their least-squares line over log(length); unchanged where there are fewer than three."""
    y = np.array(values, dtype=np.float64)
    if len(y) < 3:
        return y
    x = np.stack([np.ones(len(y)), np.log(lengths)], axis=1)
    return y - x @ np.linalg.lstsq(x, y, rcond=None)[0]


def _allowed(lengths: Sequence[int], plan_of: Callable[[int], Plan]) -> tuple[int, ...]:
    """The lengths for which the constraint has a text; its error where there is none."""
    out: list[int] = []
    refused: InputError | None = None
    for length in lengths:
        try:
            plan_of(length)
            out.append(length)
        except InputError as error:
            refused = error
    if not out:
        assert refused is not None
        raise refused
    return tuple(out)
