"""How long backends take: decayed quantiles of what was measured, by backend and by size of the request.

A measurement loses half of its weight every HALF_LIFE seconds. The sketch (DDSketch, VLDB 2019: quantiles within a
relative error of 1%) cannot forget, so later measurements weigh more instead: 2^(t / HALF_LIFE), which is the same
but for a factor (forward decay, ICDE 2009). While samples are few, the 95th percentile is drawn towards what the
configuration declares, as if PRIOR samples had said so.
"""

from __future__ import annotations

from collections import defaultdict

from ddsketch import DDSketch

HALF_LIFE = 300.0
PRIOR = 8.0
UNIT = 2.0**20
"""The first weight: the sketch counts ranks from 1, which must be small beside it."""
MOST_DOUBLINGS = 512.0
KEPT = 64
"""Quantiles that are taken over where the weights begin again at 1."""
BUCKETS = (256, 1024, 4096, 16384)
"""Sizes of requests in tokens: up to each of these, and above."""


class DecayedQuantiles:
    """Quantiles of measurements whose weights halve every `half_life` seconds. Times only go forward."""

    def __init__(self, half_life: float = HALF_LIFE) -> None:
        self._half_life, self._start = half_life, 0.0
        self._sketch, self._began = DDSketch(), False

    def add(self, value: float, at: float) -> None:
        """A measurement, 0 or more, at a time in seconds."""
        if not self._began:
            self._start, self._began = at, True
        if self._doublings(at) > MOST_DOUBLINGS:
            self._begin_again(at)
        self._sketch.add(max(value, 0.0), UNIT * 2.0 ** self._doublings(at))

    def quantile(self, share: float) -> float | None:
        """The value that this share of the weight does not exceed; None without measurements."""
        found = self._sketch.get_quantile_value(share)
        return None if found is None else float(found)

    def weight(self, at: float) -> float:
        """How many measurements of this moment weigh as much as all that there are."""
        return 0.0 if not self._began else float(self._sketch.count) / UNIT * 2.0 ** -self._doublings(at)

    def _doublings(self, at: float) -> float:
        return max(0.0, at - self._start) / self._half_life

    def _begin_again(self, at: float) -> None:
        """The same quantiles with weights that fit in a number."""
        values = [self._sketch.get_quantile_value((place + 0.5) / KEPT) for place in range(KEPT)]
        each = self.weight(at) / KEPT
        self._sketch, self._start = DDSketch(), at
        if each > 0:
            for value in values:
                if value is not None:
                    self._sketch.add(value, UNIT * each)


class Latencies:
    """Of all backends: milliseconds until the first text, and for each token after it."""

    def __init__(self) -> None:
        self._first = defaultdict[tuple[str, int, int], DecayedQuantiles](DecayedQuantiles)
        self._token = defaultdict[tuple[str, int, int], DecayedQuantiles](DecayedQuantiles)

    def add(self, backend: str, size: tuple[int, int], first: float, whole: float, tokens: int, at: float) -> None:
        """An answer of so many tokens, whose first text and end came after so many milliseconds; size: tokens of the
        request and expected tokens of the answer.
        """
        key = _key(backend, size)
        self._first[key].add(first, at)
        if tokens > 1:
            self._token[key].add((whole - first) / (tokens - 1), at)

    def of(
        self, backend: str, size: tuple[int, int], declared: tuple[float, float], at: float
    ) -> tuple[float | None, float | None, float | None, float | None]:
        """The median and the 95th percentile until the first text, and those for a token; None where nothing was
        measured. declared: the 95th percentiles of the configuration.
        """
        key, out = _key(backend, size), list[float | None]()
        for table, expected in ((self._first, declared[0]), (self._token, declared[1])):
            found = table.get(key)
            if found is None:
                out += [None, None]
                continue
            high, weight = found.quantile(0.95), found.weight(at)
            assert high is not None
            out += [found.quantile(0.5), (weight * high + PRIOR * expected) / (weight + PRIOR)]
        return out[0], out[1], out[2], out[3]


def _key(backend: str, size: tuple[int, int]) -> tuple[str, int, int]:
    return backend, bucket(size[0]), bucket(size[1])


def bucket(tokens: int) -> int:
    """The number of the bucket of a size."""
    return sum(tokens > edge for edge in BUCKETS)
