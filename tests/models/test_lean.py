"""Lean execution equals the reference: every layout, cached and not, in batches, in float32 and bfloat16."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from daguerre.canvas import Canvas
from daguerre.errors import InputError, UnsupportedError
from daguerre.model import Model
from daguerre.models.backbone import Backbone
from daguerre.models.cache import Cache
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.layout import NO_HORIZON, SETTLED, Layout, Rows
from daguerre.models.lean import CHUNK, LeanBackbone
from executions import EXACT

NUM_SETTLED, NUM_OPEN = CHUNK + 11, 13
PROMPT = "def area(w, h):\n    return w"


def settled_then_open(batch: int, num_settled: int, num_open: int, **labels: Any) -> Rows:
    position = torch.arange(num_settled + num_open).expand(batch, -1)
    return Rows.make(position, torch.where(position < num_settled, SETTLED, 0), **labels)


def ar(batch: int) -> Layout:
    return Layout.causal(NUM_SETTLED, batch=batch)


def span(batch: int) -> Layout:
    return Layout(settled_then_open(batch, NUM_SETTLED, NUM_OPEN), NUM_SETTLED, plain=True, open_sees_all=True)


def span_by_mask(batch: int) -> Layout:
    return Layout(settled_then_open(batch, NUM_SETTLED, NUM_OPEN), NUM_SETTLED)


def only_open(batch: int) -> Layout:
    return Layout(settled_then_open(batch, 0, 2 * CHUNK + 3), 0, open_sees_all=True)


def full(batch: int) -> Layout:
    return Layout(Rows.make(torch.arange(50).expand(batch, -1)), 50, context="full")


def blocks(batch: int) -> Layout:
    return Layout(settled_then_open(batch, 84, 12), 84, context="block", block_size=12, open_sees_all=True)


def infill(batch: int) -> Layout:
    segment = (torch.arange(NUM_SETTLED + NUM_OPEN) > 30).long().expand(batch, -1)
    rows = settled_then_open(batch, NUM_SETTLED, NUM_OPEN, segment=segment)
    return Layout(rows, NUM_SETTLED, open_sees_all=True)


def drafts(batch: int) -> Layout:
    """Two open spans, each of which sees what is settled before it, as in training."""
    position = torch.cat([torch.arange(40), torch.arange(10, 18), torch.arange(30, 38)]).expand(batch, -1)
    number = torch.cat([torch.full((40,), SETTLED), torch.zeros(8), torch.ones(8)]).long().expand(batch, -1)
    horizon = torch.where(number == 1, 30, 10)
    return Layout(Rows.make(position, number, horizon=horizon), 40)


def verification(batch: int) -> Layout:
    """Settled rows, the last of which attend alone, and behind each of those two open ones that see up to it."""
    seeds = torch.arange(NUM_SETTLED - 5, NUM_SETTLED).repeat_interleave(2)
    position = torch.cat([torch.arange(NUM_SETTLED), seeds + torch.tensor([0, 1]).repeat(5)]).expand(batch, -1)
    number = torch.cat([torch.full((NUM_SETTLED,), SETTLED), seeds]).expand(batch, -1)
    rows = Rows.make(position, number, horizon=torch.where(number == SETTLED, NO_HORIZON, number))
    return Layout(rows, NUM_SETTLED, plain=True, alone=5)


LAYOUTS: dict[str, Callable[[int], Layout]] = {
    f.__name__: f for f in (ar, span, span_by_mask, only_open, full, blocks, infill, drafts, verification)
}


Executors = list[Backbone | LeanBackbone]


@pytest.fixture(scope="module")
def trios(make_model: Any) -> dict[torch.dtype, Executors]:
    """By dtype: the reference in float32, the reference, and lean execution, all of the same weights."""
    out: dict[torch.dtype, Executors] = {}
    for dtype in (torch.float32, torch.bfloat16):
        backbone = make_model(width=64, mlp_width=160, norm_eps=0.05).backbone
        with torch.no_grad():  # norms that do something
            for name, weight in backbone.named_parameters():
                if name.endswith("norm.weight"):
                    weight.copy_(torch.linspace(0.6, 1.6, len(weight)))
        backbone.to(dtype)
        out[dtype] = [copy.deepcopy(backbone).float(), backbone, LeanBackbone(backbone)]
    return out


def random_tokens(layout: Layout) -> Tensor:
    shape = layout.rows.position.shape
    return torch.randint(16, 2048, shape, generator=torch.Generator().manual_seed(shape[1]))


@torch.inference_mode()
def answers(executor: Backbone | LeanBackbone, layout: Layout, **options: Any) -> Tensor:
    return executor.logits(executor(random_tokens(layout), layout, **options))


def check(exact: Tensor, reference: Tensor, lean: Tensor, dtype: torch.dtype) -> None:
    """Float32: the same tokens, and logits within 1e-5 of the largest. Bfloat16: as near to float32 as the reference.

    Measured: a root mean square of 0.3% of the largest logit for both; on the default model 0.1%.
    """
    assert torch.equal(lean.isfinite(), exact.isfinite())
    exact, reference, lean = (x[..., 16:] for x in (exact, reference, lean))
    assert exact.std() > 1
    if dtype == torch.float32:
        assert (lean - exact).abs().max() <= 1e-5 * exact.abs().max()
        assert torch.equal(lean.argmax(-1), exact.argmax(-1))
    else:
        error, allowed = ((x - exact).pow(2).mean().sqrt() for x in (lean, reference))
        assert 0 < error <= 1.3 * allowed
        assert (lean.argmax(-1) == exact.argmax(-1)).float().mean() >= 0.9


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", LAYOUTS)
def test_lean_equals_the_reference_in_every_layout(
    trios: dict[torch.dtype, Executors], name: str, batch: int, dtype: torch.dtype
) -> None:
    layout = LAYOUTS[name](batch)
    check(*(answers(executor, layout) for executor in trios[dtype]), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_open", [1, 2, 8, 16, 33, 64])
def test_lean_equals_the_reference_behind_a_cache(
    trios: dict[torch.dtype, Executors], num_open: int, dtype: torch.dtype
) -> None:
    """Three forwards: a prompt, a span, then five settled rows with the next span behind them."""
    logits = []
    for executor, stored in zip(trios[dtype], (torch.float32, dtype, dtype), strict=True):
        cache = Cache(executor.config, 240, batch=4, dtype=stored)
        own = [answers(executor, Layout.causal(20, batch=4), cache=cache)]
        for num_settled in (0, 5):
            rows = settled_then_open(4, num_settled, num_open)
            moved = Rows(**{**rows.__dict__, "position": rows.position + cache.length})
            own.append(answers(executor, Layout(moved, num_settled, plain=True, open_sees_all=True), cache=cache))
        assert cache.length == 25
        assert cache.rows is not None
        assert cache.rows.position[0].tolist() == list(range(25))
        logits.append(torch.cat(own, dim=1))
    check(*logits, dtype)


@pytest.mark.parametrize("name", ["ar", "span", "infill"])
def test_asked_rows_are_those_of_the_whole_answer(trios: dict[torch.dtype, Executors], name: str) -> None:
    layout, asked = LAYOUTS[name](2), torch.tensor([3, 40, 70])
    for executor in trios[torch.float32]:
        whole = answers(executor, layout)
        assert torch.allclose(answers(executor, layout, asked_A=asked), whole[:, asked], atol=1e-4)


CASES: list[tuple[str, dict[str, Any]]] = [
    ("causal", {"mode": "ar"}),
    ("causal", {"mode": "ar", "temperature": 1.0, "seed": 3}),
    ("causal", {"block_size": 5, "threshold": 0.5}),
    *((name, {"threshold": 0.5}) for name in ("causal", "causal_unshifted", "full", "full_unshifted", "block")),
    *((name, {"temperature": 1.0, "seed": 3}) for name in ("causal", "causal_unshifted", "full", "block")),
    ("causal", {"mode": "full", "cache": "none"}),
]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_both_executions_generate_the_same_tokens(models: dict[str, Model], name: str, options: dict[str, Any]) -> None:
    own = models[name]
    results = [
        Model(own.backbone, own.tokenizer, kind).generate(PROMPT, 24, **options) for kind in ("lean", "reference")
    ]
    tokens = [[(token.id, token.step) for token in result.tokens] for result in results]
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("name", ["causal", "full"])
def test_both_executions_infill_the_same_tokens(models: dict[str, Model], name: str) -> None:
    own = models[name]
    both = [Model(own.backbone, own.tokenizer, kind) for kind in ("lean", "reference")]
    results = [model.infill(PROMPT, " * h\n", 16, threshold=0.4) for model in both]
    assert [t.id for t in results[0].tokens] == [t.id for t in results[1].tokens]


class Largest(TorchDispatchMode):
    """The most elements that any tensor had which an operation gave."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        self.numel = max([self.numel, *sizes])
        return out


@pytest.mark.parametrize("execution", EXACT)
def test_no_tensor_grows_with_canvas_times_vocabulary(causal: Model, execution: str) -> None:
    tokenizer = causal.tokenizer
    canvas = Canvas.lay_out([[tokenizer.bos_id, *range(20, 120)]], [100], tokenizer.mask_id).at((101, 201))
    denoiser = Model(causal.backbone, tokenizer, execution).denoiser  # type: ignore[arg-type]
    session = denoiser.session(canvas)
    with Largest() as largest:
        session.logits(canvas, np.array([101, 200]))
    config = causal.config
    assert 2 * config.vocab_size <= largest.numel <= 101 * 201 * config.num_heads + 2 * config.vocab_size
    assert largest.numel < 201 * config.vocab_size


def test_weights_are_packed_once_and_again_when_they_change(make_model: Any) -> None:
    model = make_model()
    canvas = Canvas.lay_out([[1, 20, 21, 22]], [4], 3).at((4, 8))

    def ask() -> np.ndarray:
        return model.denoiser.session(canvas).logits(canvas, canvas.asked())

    first, packed = ask(), model.denoiser.executor
    assert model.denoiser.executor is packed
    with torch.no_grad():
        model.backbone.layers[0].mlp.down.weight.mul_(-1)
    assert model.denoiser.executor is not packed
    assert not np.allclose(first[:, 16:], ask()[:, 16:])
    model.backbone.to(torch.bfloat16)
    assert np.isfinite(ask()[:, 16:]).all()


def test_threads_that_start_together_share_one_packed_copy(make_model: Any) -> None:
    denoiser = BackboneDenoiser(make_model().backbone, "lean")
    with ThreadPoolExecutor(4) as pool:
        executors = list(pool.map(lambda _: denoiser.executor, range(8)))
    assert all(executor is executors[0] for executor in executors)
    assert isinstance(executors[0], LeanBackbone)


def test_what_cannot_be_packed_runs_as_reference_or_says_why(make_model: Any) -> None:
    backbone = make_model().backbone.to(torch.float64)
    assert BackboneDenoiser(backbone).executor is backbone
    with pytest.raises(UnsupportedError, match='float64: use execution="reference"'):
        BackboneDenoiser(backbone, "lean").executor  # noqa: B018
    with pytest.raises(InputError, match="did you mean 'lean'"):
        BackboneDenoiser(backbone, "leen")  # type: ignore[arg-type]


def test_a_cache_without_room_for_the_open_rows_is_refused(causal: Model) -> None:
    lean, rows = LeanBackbone(causal.backbone), settled_then_open(1, 0, 9)
    with pytest.raises(InputError, match="holds 8 rows and 9 are needed"):
        lean(torch.zeros(1, 9, dtype=torch.int64), Layout(rows, 0, open_sees_all=True), Cache(causal.config, 8))


def test_a_model_with_a_time_input_runs_as_reference(make_model: Any) -> None:
    model = make_model(context="full", shift=False, time_input=True)
    assert isinstance(model.denoiser.executor, Backbone)
    assert len(model.generate(PROMPT, 6, min_tokens=6).tokens) == 6
    with pytest.raises(UnsupportedError, match="time_input"):
        BackboneDenoiser(model.backbone, "lean").executor  # noqa: B018


def test_a_cache_made_larger_keeps_what_it_holds(causal: Model) -> None:
    """A verification near the end of a canvas has more rows than the canvas has positions."""
    caches = [Cache(causal.config, capacity) for capacity in (20, 90)]
    for cache in caches:
        answers(causal.denoiser.executor, Layout.causal(20), cache=cache)
        cache.reserve(60)
    assert caches[0].capacity == 75
    assert caches[1].capacity == 90
    own = [answers(causal.denoiser.executor, Layout.causal(40, start=20), cache=cache) for cache in caches]
    assert torch.equal(*own)


def test_a_copy_of_a_denoiser_packs_weights_of_its_own(make_model: Any) -> None:
    made = make_model()
    model = Model(made.backbone, made.tokenizer, "lean")
    packed = model.denoiser.executor
    copied = pickle.loads(pickle.dumps(model))
    assert isinstance(copied.denoiser.executor, LeanBackbone)
    assert copied.denoiser.executor is not packed
    assert copied.generate(PROMPT, 6).text == model.generate(PROMPT, 6).text
