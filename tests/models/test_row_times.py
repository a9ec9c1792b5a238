"""What a row takes, learned from the forwards that are computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daguerre.models.processor import in_crowd, row_time
from daguerre.models.row_times import ENOUGH, MOST, MOST_SHARE, SKIPPED, RowTimes


def learned(alone: float, num: int = 200, noise: float = 0.0, rows: tuple[int, ...] = (1, 1, 3, 5, 9)) -> RowTimes:
    rng, times = np.random.default_rng(0), RowTimes()
    for number in range(num):
        some = rows[number % len(rows)]
        times.took(some, some, 0.01 * (1 + alone * (some - 1)) * (1 + noise * float(rng.uniform(-1, 1))))
    return times


@pytest.mark.parametrize("alone", [0.02, 0.12, 0.25, 0.5])
@pytest.mark.parametrize("crowd", [1, 4, 16])
def test_the_share_of_a_row_is_that_of_the_forwards_it_has_seen(alone: float, crowd: int) -> None:
    assert learned(alone).share(crowd) == pytest.approx(in_crowd(alone, crowd), rel=1e-6)
    assert learned(alone, noise=0.1).share(crowd) == pytest.approx(in_crowd(alone, crowd), rel=0.25)
    batches = learned(alone, rows=(16, 20, 32, 48))
    assert batches.share(crowd) == pytest.approx(in_crowd(alone, crowd), rel=1e-6)


def test_it_is_the_tables_until_enough_forwards_of_unlike_sizes_were_seen() -> None:
    assert RowTimes().share(3) == row_time(3)
    assert learned(0.1, SKIPPED + ENOUGH - 1).share() == row_time()
    assert learned(0.1, SKIPPED + ENOUGH).share() == pytest.approx(0.1)
    assert learned(0.1, rows=(1,)).share() == row_time()
    assert learned(5.0).share() == MOST_SHARE


def test_prompts_and_forwards_that_were_interrupted_do_not_count() -> None:
    times = learned(0.1)
    times.took(40, 1, 1.0)
    times.took(MOST + 1, MOST + 1, 1.0)
    times.took(5, 5, 1.0)
    assert times.share() == pytest.approx(0.1)


def test_it_follows_what_changes() -> None:
    times = learned(0.1)
    for number in range(400):
        rows = (1, 4)[number % 2]
        times.took(rows, rows, 0.02 * (1 + 0.3 * (rows - 1)))
    assert times.share() == pytest.approx(0.3, rel=0.02)


def test_a_model_drafts_less_where_rows_are_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the text itself; what it writes stays the same."""
    pytest.importorskip("gguf")
    import daguerre

    model = daguerre.load(Path(__file__).parents[1] / "data" / "gguf" / "llama-q4_k.gguf", drafts="none")
    prompt, found = [20, 31, 42, 53] * 8, dict[float, Any]()
    for share in (0.0, 0.3, 40.0):
        monkeypatch.setattr(RowTimes, "share", lambda self, crowd, share=share: share)
        found[share] = model.generate(prompt, 24, mode="speculative", heal=False)
    texts = {result.text for result in found.values()}
    assert texts == {model.generate(prompt, 24, mode="ar", heal=False).text}
    drafted = [result.usage.lookup_drafted for result in found.values()]
    assert drafted[0] >= drafted[1] > drafted[2] == 0
