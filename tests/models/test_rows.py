"""Who sees whom when a request is decoded: runs of keys and masks say the same as the labels of training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from conftest import CONTEXTS, tiny_config
from daguerre.canvas import Canvas
from daguerre.models.core.batched import CLEAN, Rows, allowed
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import Layout
from daguerre.models.rows import RowPlan, Tree, plan_rows, plan_text, plan_tree, plan_verification
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.batch import collate
from daguerre.train.examples import make_example
from daguerre.train.noising import Source
from daguerre.train.objectives import Objective
from training_canvases import canvases_of

LENGTH = 64
CASES = [
    ("drafts", "causal"),
    ("blocks", "causal"),
    ("blocks", "causal_unshifted"),
    ("canvas", "causal"),
    ("suffix", "causal_unshifted"),
    ("infill", "causal"),
    ("infill", "causal_unshifted"),
    ("bd3", "block"),
    ("full", "full"),
    ("full_gap", "full_unshifted"),
    ("full_suffix", "full"),
]


def config_of(tokenizer: Tokenizer, name: str) -> ModelConfig:
    return tiny_config(tokenizer, **CONTEXTS[name])


def seen(plan: RowPlan, config: ModelConfig) -> tuple[Layout, np.ndarray]:
    """The layout of all rows of a plan, and its mask (R, R); of the rows behind cached ones it is the same."""
    layout = plan.layout(config, 0)
    mask = layout.dense(0)
    for past in range(plan.num_clean + 1):
        behind = plan.layout(config, past)
        assert np.array_equal(behind.dense(past), mask[past:])
        assert np.array_equal(behind.position, layout.position[past:])
        assert (behind.num_clean, behind.end.dtype) == (plan.num_clean - past, np.int32)
    return layout, mask


def test_decoding_sees_what_training_saw(tokenizer: Tokenizer, subtests: pytest.Subtests) -> None:
    """Every row of a plan sees those rows, and no others, that the same row of the training example sees."""
    for layout, name in CASES:
        with subtests.test(layout, name=name):
            config, num_canvases = config_of(tokenizer, name), 0
            gaps = ((4, 9), (12, 13), (20, 26)) if layout == "infill" else ()
            for seed in range(3):
                rng = np.random.default_rng(seed)
                source = Source(rng.integers(20, 2000, LENGTH), config.mask_id, config.null_id, gaps=gaps)
                objective = Objective(layout=layout, shift=config.shift, times="uniform", block_size=config.block_size)
                example = make_example(source, objective, 0.5, rng, 2 * LENGTH)
                labels = collate([example], objective, config.pad_id).layout.rows
                trained = allowed(labels, labels, config.context, config.block_size)[0].numpy()
                for noisy, canvas in canvases_of(example, config, infilling=layout == "infill"):
                    plan = plan_rows(config, canvas)
                    _, decoded = seen(plan, config)
                    place = {
                        position: row for row, position in enumerate(example.position[: example.num_clean].tolist())
                    }
                    clean = plan.clean if plan.clean is not None else np.arange(plan.num_clean)
                    rows = np.array([*(place[position] for position in clean.tolist()), *noisy[: len(plan.noisy)]])
                    assert np.array_equal(example.position[rows], np.concatenate([clean, plan.noisy]))
                    assert np.array_equal(trained[np.ix_(rows, rows)], decoded)
                    others = np.setdiff1d(np.arange(len(trained)), [*rows, *noisy])
                    assert not trained[np.ix_(rows, others)].any()
                    num_canvases += 1
            assert num_canvases >= 3


def test_a_block_sees_itself_both_ways_and_the_blocks_before_it(
    tokenizer: Tokenizer, subtests: pytest.Subtests
) -> None:
    """All of it, whatever part is asked for. With a shift its first row is the anchor, which stands in the block
    before: there its clean key is hidden.
    """
    for start, end, shift in [
        (1, 8, True),
        (5, 8, False),
        (8, 16, True),
        (11, 16, True),
        (11, 16, False),
        (19, 22, True),
        (16, 24, False),
    ]:
        with subtests.test(start=start, end=end, shift=shift):
            config = tiny_config(tokenizer, context="block", block_size=8, shift=shift)
            canvas = Canvas.lay_out([range(20, 20 + start)], [24 - start], config.mask_id).at((start, end))
            plan = plan_rows(config, canvas)
            layout, mask = seen(plan, config)
            first, offset = start // 8 * 8, int(shift)
            assert plan.num_clean == first
            assert layout.position[first:].tolist() == list(range(max(0, first - offset), first + 8 - offset))
            clean, noisy = torch.arange(first)[None], torch.from_numpy(plan.noisy)[None]
            labels = Rows.cat([Rows.make(clean), Rows.make(noisy, span=0, horizon=int(plan.noisy[0]))])
            assert np.array_equal(mask, allowed(labels, labels, "block", 8)[0].numpy())


def test_in_reordered_context_a_row_sees_the_rows_up_to_it(tokenizer: Tokenizer) -> None:
    """Known tokens first, then the masks of the span; their positions stay what they are, and nothing else has rows."""
    config, rng = config_of(tokenizer, "reordered"), np.random.default_rng(0)
    for gaps in (((9, 24),), ((3, 8), (12, 20)), ((0, 5),)):
        canvas = Canvas(np.arange(24), np.isin(np.arange(24), [i for a, b in gaps for i in range(a, b)]), gaps)
        for start, end in ((gaps[0][0], gaps[-1][1]), (gaps[0][0] + 1, gaps[0][0] + 5)):
            opened = canvas.open & (rng.random(24) < 0.6)
            now = Canvas(canvas.tokens, opened, gaps, (start, end))
            plan = plan_rows(config, now)
            layout, mask = seen(plan, config)
            masks = [i for i in range(start, end) if opened[i]]
            assert layout.position.tolist() == [i for i in range(24) if not opened[i]] + masks
            assert np.array_equal(mask, np.tri(len(layout.position), dtype=bool))
            assert plan.tokens(now).tolist() == [i for i in range(24) if not opened[i]]
            assert plan.noisy_tokens(config, now).tolist() == [config.mask_id] * len(masks)
            assert plan.rows_of(np.array(masks), 2).tolist() == [plan.num_clean - 2 + n for n in range(len(masks))]


@pytest.mark.parametrize(
    ("num_draft", "ahead", "room"), [(0, 3, 20), (1, 3, 20), (4, 3, 20), (4, 3, 7), (0, 1, 6), (4, 1, 6), (1, 0, 5)]
)
def test_a_verification_asks_every_place_with_what_stands_before_it(
    tokenizer: Tokenizer, num_draft: int, ahead: int, room: int
) -> None:
    """Clean rows are causal; the masked ones behind a place are a span that sees the clean rows up to that place."""
    config, start = config_of(tokenizer, "causal"), 9
    canvas = Canvas.lay_out([range(20, 20 + start)], [room], config.mask_id).at((start, start + room))
    plan, groups = plan_verification(canvas, num_draft, ahead)
    assert plan.ready is not None
    made = replace(plan, ready=None).layout(config, plan.num_clean - plan.num_read)
    for name in ("position", "end", "num_clean", "begin", "mask"):
        kept, again = getattr(plan.ready, name), getattr(made, name)
        assert np.array_equal(kept, again) and np.asarray(kept).dtype == np.asarray(again).dtype, name
    layout, mask = seen(plan, config)
    assert (plan.num_clean, plan.num_read) == (start + num_draft, num_draft + 1)
    assert layout.position[: plan.num_clean].tolist() == list(range(start + num_draft))
    position, number = list[int](), list[int]()
    for place in range(num_draft + 1):  # the row at p predicts p + 1, and the span's last position is never drafted
        behind = [at for at in range(start + place, start + place + ahead) if at + 1 < start + room - 1]
        position += behind
        number += [place] * len(behind)
    assert plan.noisy.tolist() == position
    assert np.diff(groups).tolist() == [number.count(place) for place in range(num_draft + 1)]
    span = torch.tensor([CLEAN] * plan.num_clean + number)[None]
    horizon = torch.where(span == CLEAN, 0, start + span)
    labels = Rows.make(torch.from_numpy(layout.position)[None], span, horizon=horizon)
    assert np.array_equal(mask, allowed(labels, labels, "causal")[0].numpy())
    wanted = plan.rows_of(np.array([start + num_draft]), 0) if not position else None
    assert wanted is None or wanted.tolist() == list(range(start - 1, start + num_draft))


def test_a_tree_is_its_paths(tokenizer: Tokenizer) -> None:
    """Each token sees what is given and those on its way, at the positions that it has in its text."""
    config, given = config_of(tokenizer, "causal"), 6
    paths = [[50], [50, 60, 70], [50, 60, 80], [90, 60], [], [90, 60, 70]]
    tree, ways = Tree.of(paths)
    assert [tree.tokens[way].tolist() for way in ways] == paths
    assert len(tree.tokens) == 7  # beginnings that paths share are there once
    layout, mask = seen(plan_tree(given, tree), config)
    assert np.array_equal(mask[:given, :given], np.tri(given, dtype=bool))
    for way in ways:
        for depth, row in enumerate(way):
            assert layout.position[given + row] == given + depth
            sees = np.flatnonzero(mask[given + row]).tolist()
            assert sees == [*range(given), *sorted(given + other for other in way[: depth + 1])]


def test_a_text_that_goes_on_is_causal_and_its_last_row_is_read(tokenizer: Tokenizer) -> None:
    plan = plan_text(7)
    _, mask = seen(plan, config_of(tokenizer, "causal"))
    assert np.array_equal(mask, np.tri(7, dtype=bool))
    assert plan.rows_of(np.array([7]), 4).tolist() == [2]


def test_a_span_of_one_reads_the_last_clean_row_and_a_longer_one_has_an_anchor(tokenizer: Tokenizer) -> None:
    config = config_of(tokenizer, "causal")
    canvas = Canvas.lay_out([[1, *range(20, 29)]], [16], 3)
    plan = plan_rows(config, canvas.at((10, 18)))
    assert (plan.num_clean, plan.noisy.tolist()) == (9, list(range(9, 17)))
    plan = plan_rows(config, canvas.at((10, 11)))
    assert (plan.num_clean, plan.noisy.tolist(), plan.num_read) == (10, [], 1)


def test_a_layout_is_dense_as_it_is_defined() -> None:
    """A run, and of the last keys those that the mask shows beside it."""
    layout = Layout(np.arange(3), np.array([2, 4, 9], dtype=np.int32), 0, np.array([0, 3, 2], dtype=np.int32))
    runs = [[True, True, False, False, False], [False, False, False, True, False], [False, False, True, True, True]]
    assert layout.dense(2).tolist() == runs
    mask = np.array([[True, False], [False, True], [False, False]])
    runs[0][3] = runs[1][4] = True
    assert replace(layout, mask=mask).dense(2).tolist() == runs
    nothing: dict[str, Any] = {"mask": np.zeros((3, 0), dtype=bool), "begin": None}
    assert replace(layout, **nothing).dense(0).tolist() == np.tri(3, 3, 1, dtype=bool).tolist()
