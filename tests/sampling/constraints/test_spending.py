"""What compiling a constraint takes is bounded in each of its loops, and ends once nobody waits; caches are bounded by
bytes.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from daguerre.cancellation import Cancellation, current_cancellation, planning, use_cancellation
from daguerre.errors import CancelledError, InputError
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.constraints import compile_regex, compile_schema, programme
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.caching import cached
from daguerre.sampling.constraints.programme import Programme, shortest
from daguerre.sampling.constraints.wording import Wording, avoiding, compile_wording


def test_the_shortest_text_is_followed_little_beyond_the_room(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programme, "FAR", 30)
    long = compile_schema({"enum": ["~" * 600]}, tokenizer)
    fewest = long.fewest_tokens()
    assert fewest is not None and fewest > 30
    assert shortest(long, 8) == (False, "more than 30")
    assert shortest(long, fewest) == (True, str(fewest))
    assert shortest(long, fewest - 1) == (False, f"more than {fewest - 1}")
    with pytest.raises(InputError, match="its shortest text has more than 30 tokens"):
        Programme(long, np.zeros(8, dtype=np.int64), np.ones(8, dtype=bool)).check()


def test_long_forbidden_strings_are_compiled_in_linear_time_and_memory_is_counted(tokenizer: Tokenizer) -> None:
    avoiding(b"x" * 30_000, Wording(forbidden=("x" * 30_000,)), Budget())
    with pytest.raises(InputError, match="MiB of memory"):
        avoiding(bytes(range(1, 256)) * 40, Wording(), Budget(max_bytes=1 << 20))
    with pytest.raises(InputError, match="states"):
        compile_wording(Wording(within=(("ab" * 500, 0, 1_000),)), tokenizer)


def test_compiling_ends_once_nobody_waits(tokenizer: Tokenizer) -> None:
    before, cancellation = current_cancellation(), Cancellation(max_bytes=1 << 20)
    use_cancellation(cancellation)
    try:
        assert Budget().max_bytes == 1 << 20
        compile_regex("[0-9]+", tokenizer)
        cancellation.cancel()
        with pytest.raises(CancelledError):
            compile_regex("[0-9]+", tokenizer)
    finally:
        use_cancellation(before)
    assert Budget().max_bytes > 1 << 20


def test_all_budgets_of_a_request_count_together() -> None:
    with planning() as began:
        while time.thread_time() == began:
            pass
        assert Budget().began == Budget().began == began
    assert Budget().began > began


def test_a_cache_is_bounded_by_bytes() -> None:
    made = list[int]()

    @cached(10, len)
    def words(number: int) -> str:
        made.append(number)
        return "x" * number

    assert words(4) == words(4) == "xxxx" and made == [4]
    words(5)
    words(4)
    words(6)  # the one that was used the longest ago goes, and then the other, too
    assert made == [4, 5, 6]
    words(4)
    words(5)
    assert made == [4, 5, 6, 5]
    assert len(words(20)) == 20
    words(4)
    assert made[-2:] == [20, 4]
