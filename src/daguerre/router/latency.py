"""How long backends take: decayed quantiles of what was measured, by backend and by size of the request.

A measurement loses half of its weight every HALF_LIFE seconds. The sketch (DDSketch, VLDB 2019: quantiles within a
relative error of 1%) cannot forget, so later measurements weigh more instead: 2^(t / HALF_LIFE), which is the same
but for a factor (forward decay, ICDE 2009). While samples are few, the 95th percentile is drawn towards what the
configuration declares: it is the geometric mean of both, in which what is declared weighs PRIOR samples. A backend that
nobody asks is forgotten faster, by IDLE half lives more in each: one that was slow is tried again. What is slower for
all sizes of requests at once is a pace, which is known after three answers.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from statistics import median

from ddsketch import DDSketch

HALF_LIFE = 60.0
PRIOR = 8.0
IDLE = 3.0
RECENT, LEAST_RECENT, SHIFTED, MEMORY = 5, 3, 1.5, 1 / 8
"""Of `Slowdown`; its memory is this share of the half-life."""
LEAST = 1e-3
"""Milliseconds that are taken for none."""
UNIT = 2.0**20
"""The first weight: the sketch counts ranks from 1, which must be small beside it."""
MOST_DOUBLINGS = 512.0
KEPT = 64
"""Quantiles that are taken over where the weights begin again at 1."""
BUCKETS = (256, 1024, 4096, 16384)
"""Sizes of requests in tokens: up to each of these, and above. Those of answers are powers of two."""


class DecayedQuantiles:
    """Quantiles of measurements whose weights halve every `half_life` seconds. Times only go forward."""

    def __init__(self, half_life: float = HALF_LIFE) -> None:
        self._half_life, self._start, self._last = half_life, 0.0, 0.0
        self._sketch, self._began = DDSketch(), False
        self._found = dict[float, float | None]()

    def add(self, value: float, at: float) -> None:
        """A measurement, 0 or more, at a time in seconds."""
        if not self._began:
            self._start, self._began = at, True
        if self._doublings(at) > MOST_DOUBLINGS:
            self._begin_again(at)
        self._sketch.add(max(value, 0.0), UNIT * 2.0 ** self._doublings(at))
        self._last = at
        self._found.clear()

    def quantile(self, share: float) -> float | None:
        """The value that this share of the weight does not exceed; None without measurements."""
        if share not in self._found:
            found = self._sketch.get_quantile_value(share)
            self._found[share] = None if found is None else float(found)
        return self._found[share]

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
        """Scale all weights down, so that they fit in a number; quantiles stay."""
        values = [self._sketch.get_quantile_value((place + 0.5) / KEPT) for place in range(KEPT)]
        each = self.weight(at) / KEPT
        self._sketch, self._start = DDSketch(), at
        if each > 0:
            for value in values:
                if value is not None:
                    self._sketch.add(value, UNIT * each)


class Slowdown:
    """How many times slower than usual a backend is at the moment, whatever the size of its requests: the median of its
    last RECENT answers, each beside the usual one of its size. 1 where that is below SHIFTED, and where fewer than
    LEAST_RECENT answers are known. One that was slow and has not answered for `memory` seconds is tried again, by one
    request at a time: one answer says whether it still is. What has lasted for `lasting` seconds is usual.
    """

    def __init__(self, memory: float, lasting: float) -> None:
        self._memory, self._lasting = memory, lasting
        self._last = deque[tuple[float, float]](maxlen=RECENT)
        self._since: float | None = None
        self._tried = -math.inf

    def add(self, ratio: float, at: float) -> None:
        """An answer that took so many times as long as usual."""
        if self._old(at) and not (self._slow() and ratio >= SHIFTED):
            self._last.clear()
        self._last.append((ratio, at))
        self._tried = -math.inf
        if len(self._last) >= LEAST_RECENT:
            self._since = (at if self._since is None else self._since) if self._slow() else None

    def asked(self, at: float) -> None:
        """A request goes there."""
        if self.doubtful(at):
            self._tried = at

    def doubtful(self, at: float) -> bool:
        """Whether it was slow when it was last seen, and one more request is to find out whether it still is."""
        return self._old(at) and self._slow() and at - self._tried >= self._memory

    def now(self, at: float, overdue: Sequence[float] = ()) -> float:
        """The factor at a time. overdue: by how much requests that have no answer are over what is usual."""
        if self._old(at):
            return 1.0 if not self._slow() or self.doubtful(at) else self._ratio()
        late = [one for one in overdue if one >= SHIFTED]
        values = [*(ratio for ratio, _ in self._last), *late][-RECENT:]
        if len(values) < LEAST_RECENT:
            return 1.0
        found = median(values)
        return found if found >= SHIFTED else 1.0

    def unusual(self, at: float) -> float:
        """By how much an answer of this time was slower than what is kept as usual."""
        return 1.0 if self._since is not None and at - self._since >= self._lasting else self.now(at)

    def _old(self, at: float) -> bool:
        return bool(self._last) and at - self._last[-1][1] >= self._memory

    def _slow(self) -> bool:
        return len(self._last) >= LEAST_RECENT and self._ratio() >= SHIFTED

    def _ratio(self) -> float:
        return median(ratio for ratio, _ in self._last)


class Latencies:
    """Of all backends, in milliseconds: until the first text of a stream, and until the end of any answer."""

    def __init__(self, half_life: float = HALF_LIFE) -> None:
        def table() -> dict[tuple[str, int, int], DecayedQuantiles]:
            return defaultdict(lambda: DecayedQuantiles(half_life))

        self._first, self._whole = table(), table()
        self._pace = defaultdict[str, Slowdown](lambda: Slowdown(MEMORY * half_life, half_life))

    def asked(self, backend: str, at: float) -> None:
        """A request goes to a backend."""
        self._pace[backend].asked(at)

    def over(self, backend: str, size: tuple[int, int], stream: bool, waited: float) -> float:
        """How many times as long as is usual a request has waited for its first text, or its answer; 0: not known."""
        usual = self._usual(self._first if stream else self._whole, backend, size)
        return waited / usual if usual else 0.0

    def add(self, backend: str, size: tuple[int, int], first: float | None, whole: float, at: float) -> None:
        """An answer that ended after so many milliseconds, and whose first text came after `first`; None: it was not
        streamed. size: tokens of the request and expected tokens of the answer.
        """
        pace, usual = self._pace[backend], self._usual(self._whole, backend, size)
        if usual:
            pace.add(whole / usual, at)
        factor = pace.unusual(at)
        if first is not None:
            self._first[_key(backend, size)].add(first / factor, at)
        self._whole[_key(backend, size)].add(whole / factor, at)

    def of(
        self,
        backend: str,
        size: tuple[int, int],
        declared: tuple[float, float],
        at: float,
        overdue: Sequence[float] = (),
    ) -> tuple[float | None, float | None, float | None, float | None]:
        """The median and the 95th percentile until the first text, and those until the end; None where nothing was
        measured. declared: the 95th percentiles of the configuration; overdue: of requests that are waiting (`over`).
        """
        key, nothing = _key(backend, size), (None, None)
        first, whole = self._first.get(key), self._whole.get(key)
        found = (
            *(nothing if first is None else first.near(declared[0], at)),
            *(nothing if whole is None else whole.near(declared[1], at)),
        )
        factor = self._pace[backend].now(at, overdue)
        return tuple(None if one is None else one * factor for one in found)  # type: ignore[return-value]

    def _usual(
        self, table: dict[tuple[str, int, int], DecayedQuantiles], backend: str, size: tuple[int, int]
    ) -> float | None:
        found = table.get(_key(backend, size))
        return None if found is None else found.quantile(0.5)


def _key(backend: str, size: tuple[int, int]) -> tuple[str, int, int]:
    return backend, bucket(size[0]), size[1].bit_length()


def bucket(tokens: int) -> int:
    """The number of the bucket of a size."""
    return sum(tokens > edge for edge in BUCKETS)
