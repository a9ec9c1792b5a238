"""Which length a gap should have, asked of a model that was not trained to end one.

The training-free search of CAL (arXiv 2602.00476): a gap of each candidate length stands fully open between prefix and
suffix, and the model's first look at it is scored by how sure it is of its most likely tokens. Surest is a gap of about
the right length, but short gaps are surer than long ones whatever the text. CAL divides by a bias that was measured on
other text; here, as in LR-DLLM (arXiv 2602.07546), it is k log(length), with k of the request itself: the line through
the scores of its own candidates. What stands out above that line is chosen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from daguerre.canvas import Canvas
from daguerre.errors import InputError, UnsupportedError
from daguerre.models.config import ModelConfig
from daguerre.models.denoiser import Counts, Denoiser
from daguerre.models.together import logits_together
from daguerre.models.tokenizer import Tokenizer
from daguerre.plan import Plan, Search
from daguerre.planning import lay_out
from daguerre.request import Request, check_budget
from daguerre.sampling.decode import CONSTRAINTS, Decode
from daguerre.sampling.logits import biased, most_likely

MOST_LENGTHS = 32
"""Candidates of a search; of more lengths than that these many are taken, close together where they are short."""

Look = Callable[[Denoiser, Sequence[Canvas], Counts], list[np.ndarray]]


def wants_search(config: ModelConfig, request: Request, asked: bool | None) -> bool:
    """Whether a gap's length is to be searched: where it is asked, or, unless told, where only that can find it.

    InputError or UnsupportedError for a search that is asked for and cannot be.
    """
    infilling, budgets, mode = request.infilling, request.budgets, request.decode.mode
    if asked is None:
        sighted = infilling and config.null_id is None and config.context != "block"
        sighted = sighted and mode not in ("ancestral", "beam")
        return sighted and len(budgets) == 1 and budgets[0][0] < budgets[0][1]
    if asked and mode == "ancestral":
        raise UnsupportedError(
            'mode "ancestral" begins with noise, not with open positions that a model is sure about: give the length'
        )
    if asked and mode == "beam":
        raise UnsupportedError('mode "beam" compares fillings of every length itself: leave out search_length')
    if asked and not infilling:
        raise InputError("a length is searched for what stands before a text, and nothing is behind this gap")
    if asked and len(budgets) > 1:
        raise UnsupportedError(
            f"the length of one gap can be searched, and these are {len(budgets)}: give each its length, with "
            "min_tokens equal to max_tokens"
        )
    return asked


def candidates(least: int, most: int) -> tuple[int, ...]:
    """Lengths from `least` (1 at least) to `most`, all or MOST_LENGTHS of them at equal ratios."""
    least = max(1, least)
    if most - least < MOST_LENGTHS:
        return tuple(range(least, most + 1))
    return tuple(np.unique(np.geomspace(least, most, MOST_LENGTHS).round().astype(int)).tolist())


def search_length(denoiser: Denoiser, tokenizer: Tokenizer, request: Request, look: Look = logits_together) -> Plan:
    """`planning.lay_out` of one gap between two segments, as long as the model finds best of its budget.

    look: asks the model; `models.together.logits_alone` is the slow reference. Takes one forward for every
    `together.MOST_ROWS` open rows, and one for what is given where that is settled. InputError or UnsupportedError, in
    one line.
    """
    decode, (budget,), config = request.decode, request.budgets, denoiser.config
    if decode.steps is not None:
        raise InputError("steps counts the forwards of a gap of known length: leave out steps, or give the length")

    def plan_of(length: int, how: Decode = decode) -> Plan:
        return lay_out(config, tokenizer, replace(request, decode=how, budgets=[(length, length)]))

    unconstrained: dict[str, Any] = dict.fromkeys(CONSTRAINTS) | {"lenient": False}
    check_budget(*budget)
    plan_of(budget[1], Decode.of(decode, **unconstrained))
    started, counts = time.perf_counter(), Counts()
    lengths = candidates(*budget) if not (decode.constrained or decode.pins) else _allowed(candidates(*budget), plan_of)
    before, after = request.segments
    canvases = [Canvas.lay_out([[config.bos_id, *before], after], [length], config.mask_id) for length in lengths]
    found = look(denoiser, [canvas.at(canvas.gaps[0]) for canvas in canvases], counts)
    scores = calibrated(lengths, [sureness(logits, decode, config.ends) for logits in found])
    searched = Search(lengths, tuple(scores.tolist()), counts, time.perf_counter() - started)
    return replace(plan_of(searched.best), searched=searched)


def sureness(logits: np.ndarray, decode: Decode, ends: Sequence[int]) -> float:
    """Mean log-probability of the most likely tokens that are no end, in nats, from logits (L, V)."""
    own = biased(logits, decode.law)
    own[:, list(ends)] = -np.inf
    return float(np.log(most_likely(own)[1]).mean())


def calibrated(lengths: Sequence[int], values: Sequence[float]) -> np.ndarray:
    """Values (n,) less the least-squares line through them over log(length); as they are where there are only two."""
    y = np.array(values, dtype=np.float64)
    if len(y) < 3:
        return y
    x = np.stack([np.ones(len(y)), np.log(lengths)], axis=1)
    return y - x @ np.linalg.lstsq(x, y, rcond=None)[0]


def _allowed(lengths: Sequence[int], plan_of: Callable[[int], Plan]) -> tuple[int, ...]:
    """The lengths at which the constraint has a text; its error where there is none."""
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
