"""Masks that estimate the evidence lower bound of an answer without bias, each with its weight.

Of a span of L free tokens the bound is the mean over k = 1 .. L, and over all masks of k tokens, of L/k times the
log-probability of what is masked: that of revealing the tokens one by one in random order.

    plain        k from strata of 1 .. L, one mask each; weight L / (k times)
    antithetic   everything masked, with weight 1/L; and k from strata of 1 .. L - 1, each mask and its complement, with
                 weights (L - 1) / (2 k times) and (L - 1) / (2 (L - k) times): every token is masked once in a pair
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from daguerre.train.sft.texts import AnswerSpan

COMMON = -1
"""The draw of what is there whatever is drawn."""


@dataclass(frozen=True)
class Noised:
    """A span with what is masked of it, bool like its `free`; the weight of each masked token; and the draw, 0 ..
    times - 1, that it is of, or COMMON.
    """

    span: AnswerSpan
    masked: np.ndarray
    weight: float
    draw: int

    @property
    def share(self) -> float:
        return float(self.masked.sum() / self.span.free.sum())


def noised_views(
    spans: Sequence[AnswerSpan], times: int, antithetic: bool, rng: np.random.Generator
) -> list[list[Noised]]:
    """Views of spans, each with its masks of all or some of them. The estimate is the weighted sum over all views."""
    views: list[list[Noised]] = [[] for _ in range(1 + 2 * times if antithetic else times)]
    for span in spans:
        places, offset = np.flatnonzero(span.free), rng.random()
        num = len(places)
        if antithetic:
            views[0].append(Noised(span, span.free, 1.0 / num, COMMON))
            if num == 1:
                continue
        most = num - 1 if antithetic else num
        for draw in range(times):
            k = 1 + min(most - 1, int(most * ((offset + draw / times) % 1.0)))
            masked = np.zeros(len(span.free), dtype=bool)
            masked[rng.permutation(places)[:k]] = True
            if antithetic:
                views[1 + 2 * draw].append(Noised(span, masked, most / (2 * k * times), draw))
                rest = span.free & ~masked
                views[2 + 2 * draw].append(Noised(span, rest, most / (2 * (num - k) * times), draw))
            else:
                views[draw].append(Noised(span, masked, num / (k * times), draw))
    return [view for view in views if view]
