"""How long backends take: decayed quantiles of what was measured, by backend and by size of the request.

A measurement loses half of its weight every HALF_LIFE seconds. The sketch (DDSketch, VLDB 2019: quantiles within a
relative error of 1%) cannot forget, so later measurements weigh more instead: 2^(t / HALF_LIFE), which is the same
but for a factor (forward decay, ICDE 2009). While samples are few, the 95th percentile is drawn towards what the
configuration declares: it is the geometric mean of both, in which what is declared weighs PRIOR samples. A backend that
nobody asks is forgotten faster, by IDLE half lives more in each: one that was slow is tried again.
"""

from __future__ import annotations

import math
from collections import defaultdict

from ddsketch import DDSketch

HALF_LIFE = 60.0
PRIOR = 8.0
IDLE = 3.0
LEAST = 1e-3
"""Milliseconds that are taken for none."""
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
        self._half_life, self._start, self._last = half_life, 0.0, 0.0
        self._sketch, self._began = DDSketch(), False

    def add(self, value: float, at: float) -> None:
        """A measurement, 0 or more, at a time in seconds."""
        if not self._began:
            self._start, self._began = at, True
        if self._doublings(at) > MOST_DOUBLINGS:
            self._begin_again(at)
        self._sketch.add(max(value, 0.0), UNIT * 2.0 ** self._doublings(at))
        self._last = at

    def quantile(self, share: float) -> float | None:
        """The value that this share of the weight does not exceed; None without measurements."""
        found = self._sketch.get_quantile_value(share)
        return None if found is None else float(found)

    def weight(self, at: float) -> float:
        """How many measurements of this moment weigh as much as all that there are."""
        return 0.0 if not self._began else float(self._sketch.count) / UNIT * 2.0 ** -self._doublings(at)

    def near(self, declared: float, at: float) -> tuple[float | None, float | None]:
        """The median, and the 95th percentile drawn towards a declared one; None without measurements."""
        high = self.quantile(0.95)
        if high is None:
            return None, None
        weight = self.weight(at) * 2.0 ** (-IDLE * max(0.0, at - self._last) / self._half_life)
        drawn = weight * math.log(max(high, LEAST)) + PRIOR * math.log(max(declared, LEAST))
        return self.quantile(0.5), math.exp(drawn / (weight + PRIOR))

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
    """Of all backends, in milliseconds: until the first text of a stream, and until the end of any answer."""

    def __init__(self, half_life: float = HALF_LIFE) -> None:
        def table() -> dict[tuple[str, int, int], DecayedQuantiles]:
            return defaultdict(lambda: DecayedQuantiles(half_life))

        self._first, self._whole = table(), table()

    def add(self, backend: str, size: tuple[int, int], first: float | None, whole: float, at: float) -> None:
        """An answer that ended after so many milliseconds, and whose first text came after `first`; None: it was not
        streamed. size: tokens of the request and expected tokens of the answer.
        """
        if first is not None:
            self._first[_key(backend, size)].add(first, at)
        self._whole[_key(backend, size)].add(whole, at)

    def of(
        self, backend: str, size: tuple[int, int], declared: tuple[float, float], at: float
    ) -> tuple[float | None, float | None, float | None, float | None]:
        """The median and the 95th percentile until the first text, and those until the end; None where nothing was
        measured. declared: the 95th percentiles of the configuration.
        """
        key, nothing = _key(backend, size), (None, None)
        first, whole = self._first.get(key), self._whole.get(key)
        return (
            *(nothing if first is None else first.near(declared[0], at)),
            *(nothing if whole is None else whole.near(declared[1], at)),
        )


def _key(backend: str, size: tuple[int, int]) -> tuple[str, int, int]:
    return backend, bucket(size[0]), bucket(size[1])


def bucket(tokens: int) -> int:
    """The number of the bucket of a size."""
    return sum(tokens > edge for edge in BUCKETS)
