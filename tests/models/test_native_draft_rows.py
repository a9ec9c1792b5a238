"""Low-rank weights of drafts on the native backend: as on the torch backend, for the noisy rows of drafts alone, with
the same bits whatever is computed beside them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from backends import every_isa, kinds, needs_compiler
from daguerre.models.backends.native_backend import NativeBackend
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import RopeScaling
from daguerre.models.forward import Forward, Hidden, Layout, Logits
from forwards import difference, make, same_bits, tokens_of

pytestmark = needs_compiler
BIASES = {"qkv_bias": True, "out_bias": True, "mlp_bias": True}
SCALED = RopeScaling(kind="yarn", factor=4.0, original_positions=64, query_beta=0.4)
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {"draft_rank": 8},
    "wide": {"draft_rank": 64, "width": 256, "num_heads": 2, "num_kv_heads": 2, "mlp_width": 704},
    "biases": {"draft_rank": 70, "norm": "layer", "gated_mlp": False, "activation": "gelu"} | BIASES,
    "one matrix": {"draft_rank": 128, "draft_matrices": ("out",), "rope_scaling": SCALED},
    "split": {"draft_rank": 24, "draft_matrices": ("qkv", "gate_up"), "draft_split": True},
    "first": {"draft_rank": 70, "draft_matrices": ("gate_up",), "norm": "layer", "mlp_bias": True},
    "post": {"draft_rank": 24, "norm": "layer", "norm_placement": "post", "norm_eps": 1e-3},
}
"""Ranks within a panel, of one panel and of two."""
NUMBERS = (6, 7, 11, 12, 13, 17, 18, 20, 29)
"""Forwards with noisy rows of every layout of `forwards.make`, behind a cache or without one."""


@pytest.fixture(scope="module")
def backbones(make_model: Any) -> dict[str, Backbone]:
    """Random backbones whose biases, norms and low-rank weights are no identities."""
    out, random = {}, torch.Generator().manual_seed(5)
    for name, facts in SHAPES.items():
        backbone = out[name] = make_model(draft_head=24, **{"norm_eps": 0.05} | facts).backbone
        for key, weight in backbone.named_parameters():
            if key.endswith("bias") or weight.dim() < 2:
                weight.add_(0.3 * torch.randn(weight.shape, generator=random))
            if key.endswith("_draft.b.weight"):
                weight.normal_(0, 0.7 * weight.shape[1] ** -0.5, generator=random)
            if key.endswith(("out_draft.b.weight", "down_draft.b.weight", "gate_up_draft.b.weight")):
                weight.mul_(10.0)
    return out


def noisy(backend: Any, number: int, num: int, clean: int = 0) -> Forward:
    """A forward without a cache: clean rows, and noisy ones that see everything."""
    end = np.concatenate([np.arange(1, clean + 1), np.full(num, clean + num)]).astype(np.int32)
    layout, wanted = Layout(np.arange(clean + num), end, clean), np.arange(clean + num, dtype=np.int32)
    return Forward(tokens_of(backend, number, clean + num), layout, None, wanted, Logits(), drafting=True)


def mixture(backend: Any, drafting: Sequence[bool] = (True, True, False)) -> list[Forward]:
    """Forwards that draft and such that do not, whose wanted rows are of both kinds, in any order and some twice."""
    made = [
        make(backend, number, ask=(Hidden(), Logits())[number % 2], drafting=drafting[index % len(drafting)])
        for index, number in enumerate(NUMBERS)
    ]
    for number, one in enumerate(made):
        num = len(one.tokens)
        made[number] = replace(one, wanted=np.random.default_rng(number).integers(0, num, num + 3).astype(np.int32))
    # Adjacent drafts of two requests: together more rows than a product computes at a time.
    made += [replace(noisy(backend, number, 21), drafting=any(drafting)) for number in (1, 2)]
    return [*made, replace(noisy(backend, 3, 5, 4), drafting=any(drafting))]


def numbers_of(answer: Any) -> np.ndarray:
    out: np.ndarray = answer.hidden if answer.logits is None else answer.logits
    return out


def computed(backend: Any, drafting: Sequence[bool] = (True, True, False)) -> list[np.ndarray]:
    """The numbers of a mixture, computed together."""
    return [numbers_of(answer) for answer in backend.forward(mixture(backend, drafting))]


def error(got: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> float:
    """The root mean square of a difference over that of what is wanted, where it is finite."""
    one, other = (np.concatenate([x[np.isfinite(y)] for x, y in zip(y_s, want, strict=True)]) for y_s in (got, want))
    return float(np.sqrt(np.mean((one - other) ** 2) / np.mean(other**2)))


@every_isa
def test_drafts_equal_the_reference(backbones: Any, isa: str, subtests: pytest.Subtests) -> None:
    for shape in SHAPES:
        with subtests.test(shape):
            reference, native = TorchBackend(backbones[shape]), NativeBackend(backbones[shape])
            want, plain = computed(reference), computed(reference, (False,))
            changed = [difference(one, other) > 0.05 for one, other in zip(plain, want, strict=True)]
            assert changed == [one.drafting for one in mixture(reference)]
            for one, other in zip(computed(native), want, strict=True):
                assert difference(one, other) < 1e-5
            for one, other in zip(computed(native, (False,)), plain, strict=True):
                assert difference(one, other) < 1e-5


@every_isa
def test_drafts_are_near_the_reference_with_smaller_numbers(
    backbones: Any, isa: str, subtests: pytest.Subtests
) -> None:
    for shape in SHAPES:
        with subtests.test(shape):
            exact = copy.deepcopy(backbones[shape]).to(torch.bfloat16).float()
            want = computed(TorchBackend(exact))
            assert error(computed(TorchBackend(exact), (False,)), want) > 0.3
            assert 1e-4 < error(computed(NativeBackend(copy.deepcopy(exact).to(torch.bfloat16))), want) < 0.015
            assert 1e-3 < error(computed(NativeBackend(exact, "int8")), want) < 0.06


@every_isa
def test_a_draft_has_the_bits_that_it_has_alone(backbones: Any, isa: str, subtests: pytest.Subtests) -> None:
    """Beside requests that draft and such that do not, in another order in each batch, on up to three threads."""
    for shape in ["wide", "biases", "one matrix", "split"]:
        with subtests.test(shape):
            for dtype, quantize in kinds():
                backend = NativeBackend(copy.deepcopy(backbones[shape]).to(dtype), quantize)
                alone = [backend.forward([one])[0] for one in mixture(backend)]
                for num_threads in (1, 3):
                    order = np.random.default_rng(num_threads).permutation(len(alone)).tolist()
                    batch = mixture(backend)
                    torch.set_num_threads(num_threads)
                    try:
                        answers = backend.forward([batch[number] for number in order])
                    finally:
                        torch.set_num_threads(1)
                    for number, answer in zip(order, answers, strict=True):
                        assert same_bits(answer, alone[number]), (dtype, quantize, num_threads, number)


@every_isa
def test_all_other_rows_are_computed_as_without_low_rank_weights(
    backbones: Any, isa: str, subtests: pytest.Subtests
) -> None:
    """To the bit: clean rows beside drafts, what is cached of them, and all rows of a forward that does not draft."""
    for shape in ["wide", "post", "one matrix", "first"]:
        with subtests.test(shape):
            whole = backbones[shape]
            without = Backbone(replace(whole.config, draft_rank=0)).requires_grad_(False)
            names = without.state_dict().keys()
            without.load_state_dict({name: x for name, x in whole.state_dict().items() if name in names})
            for dtype, quantize in kinds():
                ones = [NativeBackend(copy.deepcopy(x).to(dtype), quantize) for x in (whole, without)]
                batches = [mixture(backend) for backend in ones]
                answers = [
                    list(map(numbers_of, backend.forward(batch))) for backend, batch in zip(ones, batches, strict=True)
                ]
                num_changed = 0
                for one, got, want in zip(batches[0], *answers, strict=True):
                    drafts = one.drafting & (one.wanted >= one.layout.num_clean)
                    assert np.array_equal(got[~drafts], want[~drafts])
                    num_changed += int((got[drafts] != want[drafts]).any(axis=1).sum())
                assert num_changed > 80
                later = [
                    [replace(x, drafting=False) for x in batch if x.cache is not None and x.cache.length]
                    for batch in batches
                ]
                for got, want in zip(
                    *(backend.forward(b) for backend, b in zip(ones, later, strict=True)), strict=True
                ):
                    assert same_bits(got, want)
