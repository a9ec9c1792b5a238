"""The attention rule over labels against its words, pair by pair, and the products that a batch asks attention for."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from torch import Tensor

from daguerre.models.core.batched import CLEAN, NO_HORIZON, PADDING, BatchLayout, Rows, allowed
from daguerre.models.core.config import Context
from daguerre.train.objectives import CONTEXT_OF

each_context = pytest.mark.parametrize("context", sorted({*CONTEXT_OF.values()}))
BLOCK_SIZE = 4


def random_rows(seed: int, num: int = 40, batch: int = 2) -> Rows:
    generator = torch.Generator().manual_seed(seed)

    def draw(*values: int) -> Tensor:
        return torch.tensor(values)[torch.randint(len(values), (batch, num), generator=generator)]

    return Rows(
        position=torch.randint(12, (batch, num), generator=generator),
        span=draw(CLEAN, CLEAN, PADDING, 0, 1),
        document=draw(0, 0, 1),
        segment=draw(0, 0, 1),
        horizon=draw(3, 8, NO_HORIZON),
        gap=draw(-1, -1, 0, 1),
    )


def sees(query: dict[str, int], key: dict[str, int], context: Context) -> bool:
    """The rule of the module's docstring, for one pair."""
    if query["document"] != key["document"]:
        return False
    if query["span"] == PADDING or key["span"] == PADDING:
        return query["span"] == key["span"]
    if query["span"] == CLEAN:
        if key["span"] != CLEAN or query["segment"] != key["segment"]:
            return False
        if context == "causal":
            return key["position"] <= query["position"]
        return context == "full" or key["position"] // BLOCK_SIZE <= query["position"] // BLOCK_SIZE
    if key["span"] != CLEAN:
        return key["span"] == query["span"]
    return key["position"] < query["horizon"] and key["gap"] != query["span"]


def pair(rows: Rows, batch: int, index: int) -> dict[str, int]:
    return {f.name: int(getattr(rows, f.name)[batch, index]) for f in fields(rows)}


@each_context
def test_the_mask_is_the_rule_for_every_pair(context: Context) -> None:
    queries, keys = random_rows(0, 30), random_rows(1, 50)
    mask = allowed(queries, keys, context, BLOCK_SIZE)
    for b in range(2):
        for q in range(30):
            expected = [sees(pair(queries, b, q), pair(keys, b, k), context) for k in range(50)]
            assert mask[b, q].tolist() == expected


@each_context
def test_no_row_is_without_keys_when_it_is_its_own_key(context: Context) -> None:
    rows = random_rows(2)
    own_gap = (rows.span >= 0) & (rows.gap == rows.span)
    assert (allowed(rows, rows, context, BLOCK_SIZE).any(-1) | own_gap).all()


@each_context
def test_clean_rows_never_see_noisy_rows_and_nothing_sees_padding(context: Context) -> None:
    rows = random_rows(3)
    mask = allowed(rows, rows, context, BLOCK_SIZE)
    clean, noisy, padding = rows.span == CLEAN, rows.span >= 0, rows.span == PADDING
    assert not (mask & clean[:, :, None] & noisy[:, None, :]).any()
    assert not (mask & ~padding[:, :, None] & padding[:, None, :]).any()


def test_the_blocks_of_a_plain_layout_equal_those_of_the_rule() -> None:
    position = torch.arange(6).expand(2, -1)
    noisy = Rows.make(torch.arange(3, 6).expand(2, -1), span=0, horizon=3)
    rows = Rows.cat([Rows.make(position), noisy])
    plain, general = (BatchLayout(rows, num_clean=6, plain=plain).blocks(None) for plain in (True, False))
    assert plain[0] == (slice(0, 6), slice(0, 6), None)
    assert general[0][2] is not None
    assert torch.equal(general[0][2][0, 0], torch.ones(6, 6, dtype=torch.bool).tril())
    assert plain[1][:2] == general[1][:2] == (slice(6, 9), slice(0, 9))
    assert plain[1][2] is not None
    assert general[1][2] is not None
    assert torch.equal(plain[1][2], general[1][2])


def test_cached_rows_come_before_those_of_the_forward_as_keys() -> None:
    cached = Rows.make(torch.arange(4)[None])
    layout = BatchLayout.causal(2, start=4)
    ((rows, keys, mask),) = layout.blocks(cached)
    assert (rows, keys) == (slice(0, 2), slice(0, 6))
    assert mask is not None
    assert mask[0, 0].tolist() == [[True] * 5 + [False], [True] * 6]


def test_a_causal_forward_behind_a_cache_is_not_plain() -> None:
    """Rows that start at zero may still follow cached ones: the triangle alone would hide those."""
    cached = Rows.make(torch.arange(3)[None], document=1)
    ((_, keys, mask),) = BatchLayout.causal(2).blocks(cached)
    assert keys == slice(0, 5)
    assert mask is not None
    assert mask[0, 0].tolist() == [[False] * 3 + [True, False], [False] * 3 + [True, True]]


def test_noisy_rows_alone_make_one_block() -> None:
    layout = BatchLayout(Rows.make(torch.arange(3)[None], span=0), num_clean=0)
    ((rows, keys, mask),) = layout.blocks(None)
    assert (rows, keys) == (slice(0, 3), slice(0, 3))
    assert mask is not None
    assert mask.all()


def test_rows_slice_and_join_without_loss() -> None:
    rows = random_rows(4)
    joined = Rows.cat([rows[:7], rows[7:]])
    assert all(torch.equal(getattr(joined, f.name), getattr(rows, f.name)) for f in fields(rows))
    assert joined.num_rows == 40
    assert rows.to("cpu").num_rows == 40


def test_labels_are_numbers_or_tensors() -> None:
    segment = torch.tensor([[0, 1]])
    rows = Rows.make(torch.tensor([[5, 6]]), segment=segment, gap=2)
    assert rows.segment.tolist() == [[0, 1]]
    assert rows.gap.tolist() == [[2, 2]]
    assert rows.span.tolist() == [[CLEAN] * 2]
    assert rows.horizon.tolist() == [[NO_HORIZON] * 2]
