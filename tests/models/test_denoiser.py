"""The rows that decoding computes are those that training computed: logits of both layouts agree."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from daguerre.canvas import Canvas
from daguerre.errors import InputError
from daguerre.model import Model
from daguerre.models.layout import Layout, Rows
from daguerre.models.rows import plan_rows
from daguerre.train import examples, objectives
from daguerre.train.batch import collate

TEXT = "import os\n\n\ndef area(width, height):\n    # in pixels\n    return width * height\n\n\nprint(area(2, 3))\n"


def clean_tokens(model: Model) -> np.ndarray:
    return np.array([model.tokenizer.bos_id, *model.tokenizer.encode(TEXT)])


def training_logits(model: Model, example: examples.Example, objective: objectives.Objective) -> torch.Tensor:
    batch = collate([example], objective, model.tokenizer.pad_id)
    with torch.no_grad():
        return model.backbone.logits(model.backbone(batch.tokens, batch.layout))[0]


def canvas_of(example: examples.Example, rows: np.ndarray, shift: bool, answers: np.ndarray) -> Canvas:
    """The canvas that one open span (or all gaps) of a training example stands for.

    `rows` are the indices of its open rows, `answers` the gap positions. Visible clean rows are given; an answer is
    open where its row is masked.
    """
    length = int(max(example.position.max(), answers.max())) + 1
    tokens, opened = np.zeros(length, dtype=np.int64), np.zeros(length, dtype=bool)
    settled = slice(0, example.num_settled)
    tokens[example.position[settled]] = example.tokens[settled]
    predicted = example.position[rows] + int(shift)
    masked = example.target[rows] != examples.IGNORE
    tokens[example.position[rows]] = example.tokens[rows]
    opened[predicted[masked]] = True
    edges = np.flatnonzero(np.diff(answers) > 1)
    starts = answers[np.concatenate([[0], edges + 1])]
    ends = answers[np.concatenate([edges, [-1]])] + 1
    gaps = tuple(zip(starts.tolist(), ends.tolist(), strict=True))
    return Canvas(tokens, opened, gaps).at((gaps[0][0], gaps[-1][1]))


@pytest.mark.parametrize("name", ["causal", "causal_unshifted"])
@pytest.mark.parametrize("seed", range(4))
def test_infilling_computes_what_training_computed(models: dict[str, Model], name: str, seed: int) -> None:
    model = models[name]
    shift = model.config.shift
    tokens = clean_tokens(model)
    source = examples.Source(
        tokens, model.tokenizer.mask_id, model.tokenizer.null_id, gaps=((4, 9), (12, 13), (20, 26))
    )
    objective = objectives.Objective(layout="infill", times="uniform", shift=shift)
    example = examples.infill(source, objective, 0.2 + 0.2 * seed, np.random.default_rng(seed), budget=100)
    rows = np.arange(example.num_settled, len(example.tokens))
    canvas = canvas_of(example, rows, shift, example.position[rows] + int(shift))
    assert len(canvas.gaps) == 3
    asked = canvas.asked()
    want = training_logits(model, example, objective)[rows[example.target[rows] != examples.IGNORE]].numpy()
    got = model.denoiser.session(canvas).logits(canvas, asked)
    assert len(asked) == len(want) > 0
    finite = np.isfinite(want)
    assert np.abs(got[finite] - want[finite]).max() < 1e-4
    assert np.ptp(want[finite]) > 5  # the comparison is not of constants


@pytest.mark.parametrize("name", ["causal", "causal_unshifted"])
@pytest.mark.parametrize("layout", ["drafts", "blocks"])
def test_a_span_of_a_completion_computes_what_training_computed(
    models: dict[str, Model], name: str, layout: str
) -> None:
    model = models[name]
    shift = model.config.shift
    tokens = clean_tokens(model)
    objective = objectives.Objective(layout=layout, shift=shift)
    source = examples.Source(tokens, model.tokenizer.mask_id)
    example = examples.make_example(source, objective, 0.4, np.random.default_rng(1), 80)
    want_all = training_logits(model, example, objective).numpy()
    num_spans = int(example.span.max()) + 1
    assert num_spans > 2
    for span in range(num_spans):
        rows = np.flatnonzero(example.span == span)
        answers = example.position[rows] + int(shift)
        canvas = canvas_of(example, rows, shift, answers)
        start, end = int(answers[0]), int(answers[-1]) + 1
        tokens_now, opened = canvas.tokens.copy(), canvas.open.copy()
        opened[end:] = True  # nothing after the span exists yet
        canvas = Canvas(tokens_now, opened, ((1, len(canvas)),), (start, end))
        session = model.denoiser.session(canvas)
        for earlier in sorted({1, max(1, start // 2), max(1, start - 3)}):  # settles the text before it in pieces
            if earlier < start:
                session.logits(canvas.at((earlier, start)), np.arange(earlier, start))
        got = session.logits(canvas, canvas.asked())
        want = want_all[rows[example.target[rows] != examples.IGNORE]]
        finite = np.isfinite(want)
        assert np.abs(got[finite] - want[finite]).max() < 1e-4


def test_one_settled_row_equals_one_open_row(causal: Model) -> None:
    """The autoregressive law is the span of one: its row may be settled or open."""
    tokens = torch.from_numpy(clean_tokens(causal)[:15])[None]
    canvas = Canvas.lay_out([tokens[0].tolist()], [1], causal.tokenizer.mask_id).at((15, 16))
    settled = causal.denoiser.session(canvas).logits(canvas, canvas.asked())
    position = torch.arange(15)[None]
    span = torch.where(position == 14, 0, -1)
    rows = Rows.make(position, span, horizon=torch.full_like(position, 14))
    with torch.no_grad():
        opened = causal.backbone.logits(causal.backbone(tokens, Layout(rows, num_settled=14))[:, -1]).numpy()
    finite = np.isfinite(opened)
    assert np.abs(settled[finite] - opened[finite]).max() < 1e-4


def test_a_span_of_one_equals_the_plain_autoregressive_forward(causal: Model) -> None:
    tokens = clean_tokens(causal)
    with torch.no_grad():
        hidden = causal.backbone(torch.from_numpy(tokens)[None], Layout.causal(len(tokens)))
        want = causal.backbone.logits(hidden)[0].numpy()
    opened = np.arange(len(tokens)) > 0
    canvas = Canvas(tokens, opened, ((1, len(tokens)),))
    session = causal.denoiser.session(canvas)
    for position in range(1, len(tokens)):
        opened = opened & (np.arange(len(tokens)) >= position)
        canvas = Canvas(tokens, opened, canvas.gaps, (position, position + 1))
        got = session.logits(canvas, canvas.asked())[0]
        finite = np.isfinite(got)
        assert np.abs(got[finite] - want[position - 1][finite]).max() < 1e-4
    assert session.counts.rows == len(tokens) - 1
    assert session.counts.settle_rows == 0


def test_full_context_is_one_forward_over_the_canvas(models: dict[str, Model]) -> None:
    for name in ("full", "full_unshifted"):
        model = models[name]
        tokens = clean_tokens(model)
        canvas = Canvas.lay_out([tokens[:9], tokens[15:20]], [6], model.tokenizer.mask_id).at((9, 15))
        filled = torch.from_numpy(np.where(canvas.open, model.tokenizer.mask_id, canvas.tokens))[None]
        rows = Rows.make(torch.arange(20)[None])
        with torch.no_grad():
            hidden = model.backbone(filled, Layout(rows, num_settled=20, context="full"))
            want = model.backbone.logits(hidden)[0].numpy()[canvas.asked() - int(model.config.shift)]
        got = model.denoiser.session(canvas).logits(canvas, canvas.asked())
        finite = np.isfinite(want)
        assert np.abs(got[finite] - want[finite]).max() < 1e-4


def test_a_block_sees_itself_both_ways_and_complete_blocks_before_it(models: dict[str, Model]) -> None:
    """Written from the rule of the context (DESIGN, section 2), with a dense forward over all positions."""
    model = models["block"]
    tokens = clean_tokens(model)
    canvas = Canvas.lay_out([tokens[:19]], [5], model.tokenizer.mask_id).at((19, 24))
    filled = torch.from_numpy(np.where(canvas.open, model.tokenizer.mask_id, canvas.tokens))[None]
    rows = Rows.make(torch.arange(24)[None])
    with torch.no_grad():
        hidden = model.backbone(filled, Layout(rows, num_settled=24, context="block", block_size=8))
        want = model.backbone.logits(hidden)[0].numpy()[19:]
    session = model.denoiser.session(canvas)
    got = session.logits(canvas, canvas.asked())
    finite = np.isfinite(want)
    assert np.abs(got[finite] - want[finite]).max() < 1e-4
    assert (session.counts.prefill_rows, session.counts.rows) == (16, 8)


def test_the_cache_holds_what_is_before_the_seed_and_no_more(causal: Model) -> None:
    canvas = Canvas.lay_out([[1, *range(20, 29)]], [16], 3)
    plan = plan_rows(causal.config, canvas.at((10, 18)))
    assert plan.settled.tolist() == list(range(9))
    assert plan.opened.tolist() == list(range(9, 17))
    plan = plan_rows(causal.config, canvas.at((10, 11)))
    assert (plan.settled.tolist(), plan.opened.tolist()) == (list(range(10)), [])


def test_what_stands_at_an_open_position_is_never_read(models: dict[str, Model]) -> None:
    for name, model in models.items():
        answers = []
        for placeholder in (model.tokenizer.mask_id, 77):
            canvas = Canvas.lay_out([[1, 20, 21, 22], [] if name == "block" else [23]], [4], placeholder).at((4, 8))
            answers.append(model.denoiser.session(canvas).logits(canvas, canvas.asked()))
        assert np.array_equal(*answers)


def test_a_canvas_without_a_beginning_is_refused(causal: Model) -> None:
    canvas = Canvas.lay_out([[]], [4], 3).at((0, 4))
    with pytest.raises(InputError, match="begins with <bos>"):
        causal.denoiser.session(canvas).logits(canvas, canvas.asked())


def test_a_span_behind_open_positions_is_refused(causal: Model) -> None:
    canvas = Canvas.lay_out([[1, 20]], [8], 3).at((4, 8))
    with pytest.raises(InputError, match="from left to right"):
        causal.denoiser.session(canvas).logits(canvas, canvas.asked())
