"""The rows that decoding computes are those that training computed: logits of both agree, by either backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from backends import BACKENDS
from daguerre.canvas import Canvas
from daguerre.errors import InputError
from daguerre.model import Model
from daguerre.models.core.batched import BatchLayout, Rows, run_batch
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.rows import Tree
from daguerre.models.session import compute
from daguerre.train import examples, objectives
from daguerre.train.batch import collate
from daguerre.train.noising import IGNORE, Example, Source
from driving import logits_of
from forwards import difference
from training_canvases import canvases_of

TEXT = "import os\n\n\ndef area(width, height):\n    # in pixels\n    return width * height\n\n\nprint(area(2, 3))\n"
SPANS = [("drafts", "causal"), ("blocks", "causal"), ("drafts", "causal_unshifted")]
WHOLE = [("bd3", "block"), ("full", "full"), ("full_gap", "full_unshifted")]


@pytest.fixture(params=BACKENDS)
def denoisers(request: pytest.FixtureRequest, models: dict[str, Model]) -> dict[str, BackboneDenoiser]:
    """One for each context, by name."""
    return {name: BackboneDenoiser(model.backbone, request.param) for name, model in models.items()}


def clean_tokens(model: Model) -> np.ndarray:
    return np.array([model.tokenizer.bos_id, *model.tokenizer.encode(TEXT)])


def batch_logits(model: Model, tokens: np.ndarray, layout: BatchLayout) -> np.ndarray:
    with torch.no_grad():
        hidden = run_batch(model.backbone, torch.from_numpy(tokens)[None], layout)
        out: np.ndarray = model.backbone.logits(hidden)[0].numpy()
    return out


def training_logits(model: Model, example: Example, objective: objectives.Objective) -> np.ndarray:
    batch = collate([example], objective, model.tokenizer.pad_id)
    return batch_logits(model, batch.tokens[0].numpy(), batch.layout)


def test_infilling_computes_what_training_computed(models: Any, denoisers: Any, subtests: pytest.Subtests) -> None:
    for name in ["causal", "causal_unshifted"]:
        with subtests.test(name):
            model, config = models[name], models[name].config
            gaps = ((4, 9), (12, 13), (20, 26))
            source = Source(clean_tokens(model), config.mask_id, config.null_id, gaps=gaps)
            objective = objectives.Objective(layout="infill", times="uniform", shift=config.shift)
            for seed in range(3):
                example = examples.infill(source, objective, 0.2 + 0.2 * seed, np.random.default_rng(seed), budget=100)
                ((rows, canvas),) = canvases_of(example, config, infilling=True)
                assert len(canvas.gaps) == 3
                asked = canvas.active_positions()
                want = training_logits(model, example, objective)[rows[example.target[rows] != IGNORE]]
                assert len(asked) == len(want) > 0
                assert difference(logits_of(denoisers[name], canvas, asked), want) < 1e-5
                assert np.ptp(want[np.isfinite(want)]) > 5  # the comparison is not of constants


def test_a_span_computes_what_training_computed(models: Any, denoisers: Any, subtests: pytest.Subtests) -> None:
    """What is before a span of causal context is computed in pieces first, by the session that is asked."""
    for layout, name in SPANS + WHOLE:
        with subtests.test(layout, name=name):
            model, config = models[name], models[name].config
            tokens, shift = clean_tokens(model), config.shift
            if config.context == "block":
                tokens = tokens[: len(tokens) // config.block_size * config.block_size]
            objective = objectives.Objective(layout=layout, shift=shift, block_size=config.block_size)
            example = examples.make_example(
                Source(tokens, config.mask_id), objective, 0.4, np.random.default_rng(1), 2 * len(tokens)
            )
            want = training_logits(model, example, objective)
            num_asked = 0
            for rows, canvas in canvases_of(example, config):
                assert canvas.span is not None
                session, start = denoisers[name].session(canvas), canvas.span[0]
                if config.context == "causal":
                    for earlier in sorted({1, max(1, start // 2), max(1, start - 3)}):
                        if earlier < start:
                            logits_of(denoisers[name], canvas.at((earlier, start)), np.arange(earlier, start), session)
                asked = canvas.active_positions()
                got = logits_of(denoisers[name], canvas, asked, session)
                masked = rows[(example.target[rows] != IGNORE) & np.isin(example.position[rows] + int(shift), asked)]
                assert len(masked) == len(asked)
                if len(asked):
                    assert difference(got, want[masked]) < 1e-5
                num_asked += len(asked)
            assert num_asked > 5


def test_one_clean_row_equals_one_noisy_row(causal: Model, denoisers: Any) -> None:
    """The autoregressive distribution is a span of one: its row may be clean or noisy."""
    tokens = clean_tokens(causal)[:15]
    canvas = Canvas.lay_out([tokens.tolist()], [1], causal.tokenizer.mask_id).at((15, 16))
    clean = logits_of(denoisers["causal"], canvas, canvas.active_positions())
    position = torch.arange(15)[None]
    rows = Rows.make(position, torch.where(position == 14, 0, -1), horizon=torch.full_like(position, 14))
    noisy = batch_logits(causal, tokens, BatchLayout(rows, num_clean=14))[-1:]
    assert difference(clean, noisy) < 1e-5


def test_a_span_of_one_equals_the_plain_autoregressive_forward(causal: Model, denoisers: Any) -> None:
    tokens, denoiser = clean_tokens(causal), denoisers["causal"]
    want = batch_logits(causal, tokens, BatchLayout.causal(len(tokens)))
    whole = Canvas(tokens, np.arange(len(tokens)) > 0, ((1, len(tokens)),))
    session = denoiser.session(whole)
    for position in range(1, len(tokens)):
        opened = np.arange(len(tokens)) >= position
        canvas = Canvas(tokens, opened, whole.gaps, (position, position + 1))
        got = logits_of(denoiser, canvas, canvas.active_positions(), session)
        assert difference(got, want[position - 1 : position]) < 1e-5
    assert session.counts.query_tokens == len(tokens) - 1
    assert session.counts.finalized_tokens == 0


def test_a_block_sees_itself_both_ways_and_complete_blocks_before_it(models: Any, denoisers: Any) -> None:
    """Written from the rule of the context (DESIGN, section 2), with a dense forward over all positions."""
    model, denoiser = models["block"], denoisers["block"]
    canvas = Canvas.lay_out([clean_tokens(model)[:19]], [5], model.tokenizer.mask_id).at((19, 24))
    filled = np.where(canvas.open, model.tokenizer.mask_id, canvas.tokens)
    layout = BatchLayout(Rows.make(torch.arange(24)[None]), num_clean=24, context="block", block_size=8)
    session = denoiser.session(canvas)
    got = logits_of(denoiser, canvas, canvas.active_positions(), session)
    assert difference(got, batch_logits(model, filled, layout)[19:]) < 1e-5
    assert (session.counts.prefill_tokens, session.counts.query_tokens) == (16, 8)


def test_a_tree_gives_the_distributions_of_its_texts(causal: Model, denoisers: Any) -> None:
    """Beginnings that texts share are computed once, and nothing of a tree is kept."""
    denoiser, given = denoisers["causal"], clean_tokens(causal)[:12]
    paths = [[50], [50, 60, 70], [50, 60, 80], [90, 60], []]
    tree, ways = Tree.of(paths)
    session = denoiser.session(Canvas.lay_out([given], [8], causal.tokenizer.mask_id))
    asked = np.array([way[-1] if way else -1 for way in ways])
    for _ in range(2):
        got = compute(session.tree_logits(given, tree, asked), denoiser.backend).logits
        for row, path in zip(got, paths, strict=True):
            text = np.array([*given.tolist(), *path])
            want = batch_logits(causal, text, BatchLayout.causal(len(text)))[-1]
            assert difference(row, want) < 1e-5
    assert session.counts.forwards == 4


def test_what_stands_at_an_open_position_is_never_read(models: Any, denoisers: Any) -> None:
    for name, model in models.items():
        answers = []
        for placeholder in (model.tokenizer.mask_id, 77):
            canvas = Canvas.lay_out([[1, 20, 21, 22], [] if name == "block" else [23]], [4], placeholder).at((4, 8))
            answers.append(logits_of(denoisers[name], canvas, canvas.active_positions()))
        assert np.array_equal(*answers)


def test_a_canvas_that_cannot_be_asked_about_is_refused(causal: Model) -> None:
    without_bos = Canvas.lay_out([[]], [4], 3).at((0, 4))
    with pytest.raises(InputError, match="the first position"):
        logits_of(causal.denoiser, without_bos, without_bos.active_positions())
    behind_open = Canvas.lay_out([[1, 20]], [8], 3).at((4, 8))
    with pytest.raises(InputError, match="from left to right"):
        logits_of(causal.denoiser, behind_open, behind_open.active_positions())
    long = Canvas.lay_out([[1]], [256], 3)
    with pytest.raises(InputError, match="the canvas has 257 positions and the model 256"):
        causal.denoiser.session(long)
    with pytest.raises(InputError, match="did you mean 'auto'"):
        causal.denoiser.session(without_bos, "aut")  # type: ignore[arg-type]


def test_names_of_backends_are_known(causal: Model) -> None:
    with pytest.raises(InputError, match="did you mean 'native'"):
        BackboneDenoiser(causal.backbone, "naive")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="did you mean 'int8'"):
        BackboneDenoiser(causal.backbone, quantize="int")  # type: ignore[arg-type]
    with pytest.raises(InputError, match='"torch" multiplies no quantized matrices'):
        BackboneDenoiser(causal.backbone, "torch", "int8")
