"""Training in full and block context: rows, logits equal to decoding's, losses equal to the likelihood's, runs."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import daguerre
from daguerre.canvas import Canvas
from daguerre.errors import DaguerreError, InputError, UnsupportedError
from daguerre.evals.documents import Document
from daguerre.evals.harness import evaluate
from daguerre.evals.options import EvalLimits
from daguerre.model import Model
from daguerre.models.core import batched
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import BatchLayout, Rows, allowed, run_batch
from daguerre.models.core.config import RopeScaling
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.forward import Logits
from daguerre.models.session import compute
from daguerre.scoring.likelihood import _bound, _Masks, _spans
from daguerre.train.batch import Batch, batch_loss, collate, opened_over_time
from daguerre.train.curves import draw_curves
from daguerre.train.examples import make_example
from daguerre.train.noising import IGNORE, Example, Source
from daguerre.train.objectives import Objective
from daguerre.train.recipe import Recipe, Share, TrainedShape
from daguerre.train.stage import Stage
from daguerre.train.trainer import Trainer

LENGTH, MARGIN = 48, 1e-4
MakeSource = Callable[[int, str, int], Source]
CASES = [("full", "full"), ("full_suffix", "full"), ("full", "full_unshifted"), ("full_suffix", "full_unshifted")]
CASES += [("full_gap", "full"), ("full_gap", "full_unshifted"), ("full", "full_timed"), ("bd3", "block")]


@pytest.fixture(scope="module")
def models(models: dict[str, Model], make_model: Callable[..., Model]) -> dict[str, Model]:
    return models | {"full_timed": make_model(context="full", shift=False, time_input=True)}


def make_case(
    model: Model, make_source: MakeSource, layout: str, seed: int = 0, **parts: Any
) -> tuple[Source, Example, Batch]:
    facts = {"shift": model.config.shift, "block_size": model.config.block_size}
    objective = Objective(layout=layout, **(facts | parts))
    source = make_source(seed, layout, LENGTH)
    example = make_example(source, objective, 0.37, np.random.default_rng(seed), LENGTH)
    return source, example, collate([example], objective, model.tokenizer.pad_id)


def training_logits(model: Model, batch: Batch) -> Tensor:
    with torch.no_grad():
        time = batch.time if model.config.time_input else None
        return model.backbone.logits(run_batch(model.backbone, batch.tokens, batch.layout, time_BR=time))[0]


def masked_positions(example: Example, shift: bool) -> np.ndarray:
    """Positions whose token a noisy row has to find, ascending."""
    return example.position[example.target != IGNORE] + int(shift)


# ---- rows ---------------------------------------------------------------------------------------------------------


def test_noisy_rows_hold_the_text_or_masks_and_predict_it_at_their_position(
    models: dict[str, Model], make_source: MakeSource
) -> None:
    for layout, name in CASES:
        check_rows(models[name], make_source, layout)


def check_rows(model: Model, make_source: MakeSource, layout: str) -> None:
    source, example, _ = make_case(model, make_source, layout)
    noisy = slice(example.num_clean, None)
    assert example.position[noisy].tolist() == list(range(LENGTH))
    hidden = np.zeros(LENGTH, dtype=bool)
    hidden[masked_positions(example, model.config.shift)] = True
    assert not hidden[0]
    assert 0 < hidden.sum() < LENGTH - 1 or layout == "full_gap"
    assert np.array_equal(example.tokens[noisy], np.where(hidden, model.config.mask_id, source.tokens))
    targets = example.target[noisy][example.target[noisy] != IGNORE]
    assert np.array_equal(targets, source.tokens[hidden])
    assert np.array_equal(example.weight[noisy] > 0, example.target[noisy] != IGNORE)


def test_a_full_layout_has_no_clean_stream_and_a_prompt_is_left_as_it_is(
    models: dict[str, Model], make_source: MakeSource
) -> None:
    starts = set()
    for seed in range(12):
        source, example, batch = make_case(models["full"], make_source, "full_suffix", seed, times="full")
        assert batch.layout.num_clean == 0
        assert batch.num_tokens == batch.norm == LENGTH
        start = int(masked_positions(example, True)[0])
        assert masked_positions(example, True).tolist() == list(range(start, LENGTH))
        assert start in source.starts or not source.starts
        starts.add(start)
    assert len(starts) > 6


def test_a_gap_has_text_on_both_sides_and_any_length(models: dict[str, Model], make_source: MakeSource) -> None:
    lengths, behind = set(), 0
    for seed in range(30):
        _, example, _ = make_case(models["full"], make_source, "full_gap", seed, times="full")
        masked = masked_positions(example, True)
        assert np.all(np.diff(masked) == 1) and masked[0] > 0
        lengths.add(len(masked))
        behind += masked[-1] < LENGTH - 1
    assert min(lengths) <= 2 and max(lengths) > 10
    assert behind > 15


def test_every_block_has_a_level_of_its_own_and_the_levels_are_spread(
    models: dict[str, Model], make_source: MakeSource
) -> None:
    _, example, _ = make_case(models["block"], make_source, "bd3")
    spans = example.span[example.num_clean :]
    assert spans.tolist() == [position // 8 for position in range(LENGTH)]
    masked = example.target[example.num_clean :] != IGNORE
    counts = [int(masked[spans == span].sum()) for span in range(6)]
    assert len(set(counts)) >= 4
    assert sorted(counts)[0] >= 1
    whole = [i for i in range(6) if (spans == i).sum() == 8]
    shares = np.sort([masked[spans == span].mean() for span in whole])
    assert np.all(np.diff(shares) >= 0) and shares[-1] - shares[0] > 0.4


def test_two_streams_need_a_block_and_no_shift() -> None:
    source = Source(np.arange(20, 40), 3)
    for facts in ({"block_size": 4}, {"shift": False}):
        with pytest.raises(InputError, match="block context"):
            make_example(source, Objective(layout="bd3", **facts), 0.5, np.random.default_rng(0), 20)  # type: ignore[arg-type]


# ---- equal to decoding --------------------------------------------------------------------------------------------


def decoded(model: Model, source: Source, example: Example) -> dict[int, np.ndarray]:
    """Logits of every masked position, as one session gives them: the whole canvas at once, or block after block."""
    masked = np.zeros(LENGTH, dtype=bool)
    masked[masked_positions(example, model.config.shift)] = True
    size = model.config.block_size or LENGTH
    canvas = Canvas(source.tokens, masked, ((1, LENGTH),))
    denoiser = BackboneDenoiser(model.backbone, backend="torch")
    session = denoiser.session(canvas)
    out: dict[int, np.ndarray] = {}
    for start in range(0, LENGTH, size):
        end = min(start + size, LENGTH)
        still = masked & (np.arange(LENGTH) >= start)  # earlier blocks are decoded: clean
        now = Canvas(source.tokens, still, ((1, LENGTH),), (max(1, start), end))
        positions = now.active_positions()
        answer = compute(session.ask(now, positions, Logits()), denoiser.backend)
        assert answer.logits is not None
        out |= dict(zip(positions.tolist(), answer.logits, strict=True))
    return out


def largest_difference(model: Model, example: Example, batch: Batch, expected: dict[int, np.ndarray]) -> float:
    rows = np.flatnonzero(example.target != IGNORE)
    logits = training_logits(model, batch)[rows].numpy()
    wanted = np.stack([expected[p] for p in masked_positions(example, model.config.shift).tolist()])
    finite = np.isfinite(wanted)
    return float(np.abs(logits[finite] - wanted[finite]).max())


def test_training_logits_are_those_of_decoding(
    models: dict[str, Model], make_source: MakeSource, subtests: pytest.Subtests
) -> None:
    for layout, name in CASES:
        with subtests.test(layout, name=name):
            source, example, batch = make_case(models[name], make_source, layout)
            expected = decoded(models[name], source, example)
            assert len(expected) == (example.target != IGNORE).sum()
            assert largest_difference(models[name], example, batch, expected) < MARGIN
            finite = [row[np.isfinite(row)] for row in expected.values()]
            assert np.ptp(np.concatenate(finite)) > 5


def test_any_flipped_bit_of_the_two_stream_mask_breaks_the_equality(
    models: dict[str, Model], make_source: MakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models["block"]
    source, example, batch = make_case(model, make_source, "bd3")
    expected = decoded(model, source, example)
    rows = batch.layout.rows
    mask = allowed(rows, rows, "block", 8)[0].numpy()
    noisy = np.arange(len(mask)) >= LENGTH
    needed = noisy | ((example.position // 8) < (LENGTH - 1) // 8)  # nobody sees the last block's clean rows
    for part in (noisy, ~noisy & needed):
        for seen in (True, False):
            pairs = np.argwhere((mask == seen) & part[:, None] & (noisy[:, None] | ~noisy))
            for query, key in np.random.default_rng(0).permutation(pairs)[:8]:

                def flipped(queries: Rows, keys: Rows, *rule: Any, at: Any = (query, key)) -> Tensor:
                    out = allowed(queries, keys, *rule)
                    if (queries.num_rows == keys.num_rows) != bool(noisy[at[0]]):
                        out[0, at[0] % LENGTH, at[1]] ^= True
                    return out

                with monkeypatch.context() as patch:
                    patch.setattr(batched, "allowed", flipped)
                    assert largest_difference(model, example, batch, expected) > 10 * MARGIN, (query, key)


# ---- equal to the likelihood --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("layout", "name"), [case for case in CASES if case[0] in ("full", "bd3")])
def test_the_masked_loss_is_the_integrand_of_the_bound_on_the_same_masks(
    models: dict[str, Model], make_source: MakeSource, layout: str, name: str
) -> None:
    model = models[name]
    source, example, batch = make_case(model, make_source, layout, weight="elbo")
    masked = np.zeros((1, LENGTH), dtype=bool)
    masked[0, masked_positions(example, model.config.shift)] = True
    spans = _spans(model.config, 1, LENGTH, model.config.block_size or "full")
    weight = np.array([[(end - start) / masked[0, start:end].sum() for start, end in spans]])
    backend = BackboneDenoiser(model.backbone, backend="torch").backend
    bound = compute(_bound(backend, source.tokens, spans, _Masks(masked, weight)), backend)
    loss = float(batch_loss(model.backbone, batch).loss) * batch.norm
    assert loss == pytest.approx(bound.value, rel=1e-4)
    other = float(batch_loss(model.backbone, replace(batch, tokens=batch.tokens.roll(1, 1))).loss) * batch.norm
    assert abs(other - bound.value) > 2e-3 * bound.value


# ---- attention that opens over time -------------------------------------------------------------------------------


def test_attention_opens_from_the_causal_model_to_the_full_one(
    models: dict[str, Model], make_source: MakeSource
) -> None:
    model = models["full"]
    _, _, batch = make_case(model, make_source, "full")
    causal = Backbone(replace(model.config, context="causal"))
    causal.load_state_dict(model.backbone.state_dict())
    rng = np.random.default_rng(0)
    with torch.no_grad():
        want = causal.logits(run_batch(causal, batch.tokens, BatchLayout.causal(LENGTH)))[0]
    closed = training_logits(model, opened_over_time(batch, 0.0, rng))
    assert float((closed - want).nan_to_num().abs().max()) < MARGIN
    half = training_logits(model, opened_over_time(batch, 0.5, rng))
    whole = training_logits(model, opened_over_time(batch, 1.0, rng))
    assert torch.equal(whole, training_logits(model, batch))
    for a, b in ((closed, whole), (half, whole), (closed, half)):
        assert float((a - b).nan_to_num().abs().max()) > 100 * MARGIN


def test_the_share_of_edges_that_are_open_is_the_ratio(models: dict[str, Model], make_source: MakeSource) -> None:
    _, _, batch = make_case(models["full"], make_source, "full")
    seen = opened_over_time(batch, 0.3, np.random.default_rng(1)).layout.seen
    assert seen is not None
    ahead = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    assert seen[0][~ahead].all()
    assert float(seen[0][ahead].float().mean()) == pytest.approx(0.3, abs=0.05)


# ---- whole runs ---------------------------------------------------------------------------------------------------

SHAPE = TrainedShape(width=32, num_layers=2, num_heads=4, num_kv_heads=2, mlp_width=48, max_positions=64)
STAGES = (Stage(until=1.0, length=32, sequences=2, micro_batches=1),)
BASE = Recipe(
    name="tiny",
    tokenizer="2k",
    model=SHAPE,
    mixture={"ar": Share(share=1.0, layout="next_token")},
    stages=STAGES,
    steps=6,
    precision="float32",
    eval_steps=3,
)
FULL = {"full": Share(share=0.7, layout="full"), "prompted": Share(share=0.3, layout="full_suffix", weight="elbo")}
RECIPES = {
    "full": replace(BASE, model=replace(SHAPE, context="full", shift=False), mixture=FULL),
    "full_shifted": replace(BASE, model=replace(SHAPE, context="full"), mixture=FULL),
    "block": replace(
        BASE,
        model=replace(SHAPE, context="block", shift=False, block_size=8),
        mixture={"bd3": Share(share=1.0, layout="bd3", times="clipped")},
    ),
    "unshifted": replace(BASE, model=replace(SHAPE, shift=False), mixture={"b": Share(share=1.0, layout="blocks")}),
}


def trained(recipe: Recipe, out: Path, corpus: Path, **options: Any) -> Model:
    return daguerre.load(Trainer(recipe, out, corpus, quiet=True, **options).run())


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_of_any_context_measures_exports_decodes_and_is_evaluated(
    corpus: Path, tmp_path: Path, name: str
) -> None:
    """What such a model cannot do is left out of the figures, or an error that names it."""
    recipe = RECIPES[name]
    assert recipe.model is not None
    model = trained(recipe, tmp_path / "run", corpus)
    config = model.config
    assert (config.context, config.shift, config.null_id) == (recipe.model.context, recipe.model.shift, None)
    with (tmp_path / "run" / "held.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["3", "6"]
    assert rows[0]["clean_bpb"] == rows[0]["accepted"] == "nan"
    assert "match_1" not in rows[0]
    assert any(float(v) > 0 for k, v in rows[0].items() if k.startswith("masked"))
    with (tmp_path / "run" / "log.csv").open(newline="") as file:
        log = list(csv.DictReader(file))
    assert int(log[-1]["tokens"]) == 6 * 2 * 32
    if name == "block":
        assert draw_curves(tmp_path / "run").stat().st_size > 1000
    assert model.generate("x = ", 4, min_tokens=4).usage.completion_tokens == 4
    documents = [Document("p", "1", "MIT", "f.py", "", "import os\n\n\ndef f(x):\n    return x + 1\n" * 4)]
    figures = evaluate(model, documents, limits=EvalLimits(bound_windows=2, samples=2, prompts=2, lines=2))
    assert {"infill", "draft"} <= set(figures["skipped"])
    assert all(np.isfinite(figure["value"]) for figure in figures["bits"])


def test_a_converted_model_keeps_the_weights_it_starts_from_and_infills(corpus: Path, tmp_path: Path) -> None:
    trained(BASE, tmp_path / "ar", corpus)
    recipe = replace(RECIPES["full_shifted"], anneal=0.5)
    made = Trainer(recipe, tmp_path / "run", corpus, start_from=str(tmp_path / "ar" / "model"), quiet=True)
    begun = daguerre.load(tmp_path / "ar" / "model").backbone.state_dict()
    assert all(torch.equal(begun[name], value) for name, value in made.model.state_dict().items())
    ratios = []
    original = made.method.annealed

    def watched(batch: Batch, share: float, index: int) -> Batch:
        out = original(batch, share, index)
        ahead = torch.ones(batch.tokens.shape[1], batch.tokens.shape[1], dtype=torch.bool).triu(1)
        ratios.append(1.0 if out.layout.seen is None else float(out.layout.seen[0][ahead].float().mean()))
        return out

    made.method.annealed = watched  # type: ignore[method-assign]
    model = daguerre.load(made.run())
    assert ratios == pytest.approx([0, 1 / 3, 2 / 3, 1, 1, 1], abs=0.06)
    assert (model.config.context, model.config.shift, model.config.null_id) == ("full", True, None)
    for suffix in (None, "\n    return x\n"):
        options: dict[str, Any] = {"max_tokens": 5, "min_tokens": 5, "heal": False}
        r = model.generate("def f(x):", **options) if suffix is None else model.infill("def f(x):", suffix, **options)
        assert r.usage.completion_tokens == 5
    r = model.infill("def f(x):", "\n    return x\n", max_tokens=6)
    assert r.searched is not None  # without a gap filler the length is searched
    assert r.usage.completion_tokens == r.searched.best
    with pytest.raises(UnsupportedError, match="no <null>"):
        model.infill("def f(x):", "\n    return x\n", search_length=False)


def test_a_conversion_that_was_stopped_goes_on_as_if_it_had_not_been(corpus: Path, tmp_path: Path) -> None:
    trained(BASE, tmp_path / "ar", corpus)
    recipe = replace(RECIPES["full_shifted"], anneal=1.0)
    options: dict[str, Any] = {"start_from": str(tmp_path / "ar" / "model")}
    whole = trained(recipe, tmp_path / "whole", corpus, **options)
    first = Trainer(recipe, tmp_path / "run", corpus, quiet=True, **options)
    after = first._after_step

    def stop() -> None:
        after()
        first.stop_asked = first.progress.step == 4

    first._after_step = stop  # type: ignore[method-assign]
    first.run()
    resumed = trained(recipe, tmp_path / "run", corpus, resume=True)
    assert resumed.config == whole.config
    for a, b in zip(resumed.backbone.parameters(), whole.backbone.parameters(), strict=True):
        assert torch.equal(a, b)


BD3 = {"bd3": Share(share=1.0, layout="bd3")}


def test_a_model_that_cannot_be_is_an_error_that_says_why() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"context": "blok"}, "did you mean 'block'"),
        ({"context": "block", "shift": False}, "block_size"),
        ({"block_size": 8}, "block_size"),
        ({"context": "block", "block_size": 8}, "cannot be shifted"),
        ({"norm": "layr"}, "did you mean 'layer'"),
        ({"activation": "gelo"}, "did you mean 'gelu'"),
        ({"num_heads": 3}, "width 32 must divide by 3 heads"),
        ({"num_kv_heads": 3}, "4 heads must divide by 3"),
        ({"head_width": 7}, "make it even"),
        ({"context": "reordered", "shift": False}, "no layout of training has reordered context"),
        ({"positions": "learned", "rope_scaling": RopeScaling(kind="linear", factor=2.0)}, "leave it out"),
    ]
    for facts, message in wrong:
        with pytest.raises(InputError, match=message):
            replace(SHAPE, **facts)


def test_a_run_that_does_not_fit_its_model_is_refused_before_it_begins(corpus: Path, tmp_path: Path) -> None:
    trained(replace(BASE, steps=1, eval_steps=0), tmp_path / "ar", corpus)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"mixture": BD3}, "its layouts are next_token, drafts"),
        ({"mixture": FULL}, "which is for full context"),
        ({"anneal": 0.5}, "anneal opens the attention"),
        ({"model": None, "anneal": 0.5}, "context = "),
        ({"model": replace(SHAPE, context="full", width=64), "mixture": FULL}, "model.width = 64"),
        ({"model": replace(SHAPE, context="full", shift=False), "mixture": FULL}, "model.context|model.shift"),
        ({"model": replace(SHAPE, qk_norm=False)}, "model.qk_norm = False"),
    ]
    for changes, message in wrong:
        with pytest.raises(DaguerreError, match=message):
            Trainer(replace(BASE, **changes), tmp_path / "run", corpus, start_from=str(tmp_path / "ar" / "model"))
        assert not (tmp_path / "run").exists()
