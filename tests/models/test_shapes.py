"""Every shape that a `ModelConfig` may have: the backbone is its formulas, and both backends give the same answers."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from backends import needs_compiler
from daguerre.errors import CheckpointError, InputError
from daguerre.models.backends.native_backend import NativeBackend
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.backbone import MLP, Backbone, Layer, Norm
from daguerre.models.core.config import Experts, ModelConfig, RopeScaling
from daguerre.models.core.experts import Mixture
from daguerre.models.core.rotary import frequencies, rotary_tables, rotate
from daguerre.models.forward import Forward, Logits
from forwards import NUM_KINDS, Expected, causal_layout, difference, error, logits_of, make, tokens_of
from oracles.rounding import rounded
from oracles.written_out import turns, written_out
from pairwise import covering

Facts = dict[str, Any]
GROUPED: Facts = {"num_groups": 4, "kept_groups": 2, "score": "sigmoid", "bias": True, "normalized": True, "scale": 2.5}
MANY = Experts(num=12, per_token=4, width=40, shared_width=16, first_layer=1, **GROUPED)
FACTORS: dict[str, list[Facts]] = {
    "heads": [
        {},
        {"head_width": 24},  # apart from width / heads
        {"width": 48, "num_heads": 6, "num_kv_heads": 1, "mlp_width": 80},
        {"width": 96, "num_heads": 1, "num_kv_heads": 1, "mlp_width": 40},  # a head of a panel and a half
    ],
    "mlp": [
        {},
        {"activation": "gelu", "gated_mlp": False},
        {"activation": "gelu_tanh"},
        {"experts": Experts(num=8, per_token=3, width=24)},
        {"experts": MANY},
    ],
    "norm": [
        {},
        {"norm": "layer"},
        {"norm_placement": "post"},
        {"norm": "layer", "norm_placement": "post", "norm_eps": 1e-3},
    ],
    "positions": [
        {},
        {"positions": "learned"},
        {"rope_share": 0.5},
        {"rope_scaling": RopeScaling(kind="linear", factor=4.0)},
        {"rope_scaling": RopeScaling(kind="llama3", factor=8.0, original_positions=64, query_beta=0.3)},
        {"rope_scaling": RopeScaling(kind="yarn", factor=4.0, original_positions=64), "rope_theta": 500.0},
    ],
    "biases": [{}, {"qkv_bias": True}, {"qkv_bias": True, "out_bias": True, "mlp_bias": True}],
    "qk_norm": [{}, {"qk_norm": False, "clip_qkv": 1.5}, {"qk_norm_scope": "all", "clip_qkv": 0.5}],
    "vocabulary": [{}, {"tied": False, "reserved_ids": (1, 2, 3, 4, 0, 77, 150, 299), "vocab_size": 300}],
    "kind": [{}, {"draft_head": 24}, {"context": "full", "shift": False, "time_input": True}],
}
SHAPES: list[Facts] = [
    {key: value for facts in case.values() for key, value in facts.items()} for case in covering(FACTORS)
]


@cache
def shaped(index: int) -> Backbone:
    """A random backbone whose biases and norms are no identities."""
    values: Facts = {
        "vocab_size": 290,
        "width": 32,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "mlp_width": 64,
    }
    values |= {"max_positions": 256, "pad_id": 0, "bos_id": 1, "eos_id": 2, "mask_id": 3, "null_id": 4}
    backbone = Backbone(ModelConfig(**(values | SHAPES[index]))).initialize(index, zero_outputs=False, scale=6.0)
    random = torch.Generator().manual_seed(index)
    with torch.no_grad():
        for name, weight in backbone.named_parameters():
            if name.endswith(("out.weight", "down.weight")):
                weight.mul_(10.0)
            if name.endswith("bias") or weight.dim() < 2:
                weight.add_(0.3 * torch.randn(weight.shape, generator=random))
    return backbone.eval().requires_grad_(False)


def settled(index: int) -> Backbone:
    """A backbone whose rows go through all experts, if it has any: else rounding may decide which are chosen."""
    backbone = shaped(index)
    experts = backbone.config.experts
    if experts is None:
        return backbone
    every = replace(experts, per_token=experts.num, kept_groups=experts.num_groups)
    out = Backbone(replace(backbone.config, experts=every))
    out.load_state_dict(backbone.state_dict())
    return out.eval().requires_grad_(False)


SOME = {*range(0, len(SHAPES), 4), *(i for i, facts in enumerate(SHAPES) if "experts" in facts and "norm" not in facts)}


@needs_compiler
@pytest.mark.parametrize("first", range(4))
def test_both_backends_answer_alike_in_float32(first: int, subtests: pytest.Subtests) -> None:
    """Hidden states, logits, log-probabilities, draws, draws in turn and cycles; measured, to 2e-6."""
    for index in range(first, len(SHAPES), 4):
        with subtests.test(str(index), **SHAPES[index]):
            reference, native = TorchBackend(shaped(index)), NativeBackend(shaped(index))
            batch, expected = [], []
            for number in range(7 * index, 7 * index + NUM_KINDS // 2):
                expected.append(Expected(reference, number))
                batch.append(make(native, number))
                expected[-1].check(reference.forward([make(reference, number)])[0], 1e-5)
            for want, answer in zip(expected, native.forward(batch), strict=True):
                want.check(answer, 1e-5)
            assert sum(want.sure for want in expected) >= len(expected) - 3


def plain(backbone: Backbone, index: int, num: int) -> Forward:
    """A forward of random tokens without a cache, of which all logits are wanted."""
    tokens, full = tokens_of(TorchBackend(backbone), index, num), backbone.config.context == "full"
    layout, level = causal_layout(0, num), 0.3 if full else None
    if full:
        layout.end, layout.num_clean = np.full(num, num, dtype=np.int32), 0
    return Forward(tokens, layout, None, np.arange(num, dtype=np.int32), Logits(), level)


def test_the_backbone_is_its_formulas(subtests: pytest.Subtests) -> None:
    for index in range(len(SHAPES)):
        with subtests.test(str(index), **SHAPES[index]):
            backbone = shaped(index)
            forward = plain(backbone, index, 9)
            (answer,) = TorchBackend(backbone).forward([forward])
            assert answer.logits is not None
            want = written_out(backbone, torch.from_numpy(forward.tokens), forward.level).numpy()
            assert difference(answer.logits, want) < 1e-5


@needs_compiler
def test_the_native_backend_is_near_float32_with_smaller_numbers(subtests: pytest.Subtests) -> None:
    """Measured: less than 0.4% in bfloat16 where rows are not rounded, and PyTorch has 0.5% to 1.3%; 1.5% to 4.5% with
    8-bit matrices.
    """
    for index in sorted(SOME):
        with subtests.test(str(index), **SHAPES[index]):
            exact = copy.deepcopy(settled(index)).to(torch.bfloat16).float()
            want = logits_of(TorchBackend(exact), 7 * index)
            small = NativeBackend(copy.deepcopy(exact).to(torch.bfloat16))
            assert 1e-4 < error(logits_of(small, 7 * index), want) < 0.015
            assert 1e-3 < error(logits_of(NativeBackend(exact, "int8"), 7 * index), want) < 0.06


def rounding(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T with every row of both rounded to multiples of a 127th of its largest number."""
    codes, scale, _ = rounded(weight)
    step = x.abs().amax(-1, keepdim=True) / 127
    near = torch.floor(x / step + 0.5)
    return (near.double() @ codes.double().T).float() * scale * step


def shift(norm: Norm | None, weight: Tensor) -> Tensor | None:
    """What a matrix (out, in) makes of the bias of the norm before it; None if there is none."""
    return None if norm is None or norm.bias is None else weight.float() @ norm.bias.detach().float()


class Rounding(torch.nn.Module):
    """A product that rounds, of a matrix whose bias has that of the norm before it."""

    def __init__(self, linear: torch.nn.Linear, norm: Norm | None) -> None:
        super().__init__()
        self.matrix, more = linear.weight.detach(), shift(norm, linear.weight.detach())
        bias = None if linear.bias is None else linear.bias.detach().float()
        self.add = more if bias is None else bias if more is None else bias + more

    def forward(self, x: Tensor) -> Tensor:
        out = rounding(x, self.matrix)
        return out if self.add is None else out + self.add


def round_mlp(mlp: MLP, norm: Norm | None) -> None:
    name = "gate_up" if mlp.gated else "up"
    setattr(mlp, name, Rounding(getattr(mlp, name), norm))
    mlp.down = Rounding(mlp.down, None)


def round_mixture(mixture: Mixture, norm: Norm | None) -> None:
    """All but the router, which is in float32."""
    biases = [shift(norm, weight) for weight in mixture.gate_up.weight]

    def expert(number: int, rows: Tensor) -> Tensor:
        weight, bias = mixture.gate_up.weight[number], biases[number]
        gate, up = (rounding(rows, weight) + (0 if bias is None else bias)).chunk(2, dim=-1)
        return rounding(mixture.activation(gate) * up, mixture.down.weight[number])

    mixture._expert = expert  # type: ignore[method-assign]
    assert shift(norm, mixture.router.weight) is None
    if mixture.shared is not None:
        round_mlp(mixture.shared, norm)


def that_rounds(backbone: Backbone) -> Backbone:
    """A copy all of whose products round, as slowly as they are written."""
    out = copy.deepcopy(backbone)
    for layer in out.layers:
        assert isinstance(layer, Layer)
        attention, mlp, before = layer.attention, layer.mlp, [None if layer.post else layer.attention_norm]
        before.append(None if layer.post else layer.mlp_norm)
        attention.qkv, attention.out = Rounding(attention.qkv, before[0]), Rounding(attention.out, None)
        (round_mixture if isinstance(mlp, Mixture) else round_mlp)(mlp, before[1])
        for norm in before:
            if norm is not None and norm.bias is not None:
                norm.bias.zero_()
    codes, scale, _ = rounded(out.embedding.weight)
    projection = out.projection.detach().clone()
    out.embedding.weight.copy_(codes * scale[:, None])
    out.logits = lambda hidden: rounding(hidden, projection).index_fill(-1, out.never, float("-inf"))  # type: ignore
    return out


@needs_compiler
def test_the_same_experts_are_chosen_with_smaller_numbers(subtests: pytest.Subtests) -> None:
    """In most rows: where two scores are nearly the same rounding decides, and in a row that sees such a row, too."""
    for index in [i for i, facts in enumerate(SHAPES) if "experts" in facts]:
        with subtests.test(str(index), **SHAPES[index]):
            backbone = copy.deepcopy(shaped(index)).to(torch.bfloat16)
            exact = copy.deepcopy(backbone).float()
            forward = plain(exact, index, 15)
            want, *others = (
                backend.forward([forward])[0].logits
                for backend in (TorchBackend(exact), NativeBackend(backbone), NativeBackend(exact, "int8"))
            )
            known = np.isfinite(want[0])
            for got, limit in zip(others, (0.015, 0.06), strict=True):
                assert (
                    np.median([error(one[known], other[known]) for one, other in zip(got, want, strict=True)]) < limit
                )


@needs_compiler
def test_8_bit_matrices_equal_slow_ones_that_round_alike(subtests: pytest.Subtests) -> None:
    """As far as rounding lets two computations agree: a number between two codes may go either way in each of them, and
    that spreads.
    """
    for index in sorted(SOME):
        with subtests.test(str(index), **SHAPES[index]):
            backbone = settled(index)
            exact, slow = (logits_of(TorchBackend(one), 7 * index) for one in (backbone, that_rounds(backbone)))
            got = logits_of(NativeBackend(backbone, "int8"), 7 * index)
            assert 4 * error(got, slow) < error(exact, slow)


SCALINGS = [
    RopeScaling(kind="linear", factor=4.0),
    RopeScaling(kind="llama3", factor=8.0, original_positions=8192),
    RopeScaling(kind="llama3", factor=32.0, original_positions=512, low_freq_factor=2.0, high_freq_factor=8.0),
    RopeScaling(kind="yarn", factor=4.0, original_positions=4096),
    RopeScaling(kind="yarn", factor=16.0, original_positions=256, beta_fast=8.0, beta_slow=2.0, attention_factor=1.5),
]


def test_frequencies_are_those_of_the_published_code(subtests: pytest.Subtests) -> None:
    """Written out in `oracles.written_out`; transformers 5 agrees with both to 3e-7."""
    for scaling in SCALINGS:
        with subtests.test(scaling.kind, factor=scaling.factor):
            for share in (1.0, 0.5):
                config = replace(shaped(0).config, width=512, head_width=128, rope_share=share, rope_scaling=scaling)
                plain = replace(config, rope_scaling=None)
                got, scale = frequencies(config)
                want, want_scale = turns(config)
                assert np.allclose(got.numpy(), want, rtol=1e-6, atol=0)
                assert math.isclose(scale, want_scale, rel_tol=1e-12)
                assert (got < 0.999 * frequencies(plain)[0]).any()


def test_what_is_not_rotated_stays_as_it_is() -> None:
    config = replace(shaped(0).config, width=64, head_width=16, rope_share=0.5)
    x = torch.randn(3, 4, 16, generator=torch.Generator().manual_seed(0))
    out = rotate(x, *rotary_tables(config, torch.tensor([0, 5, 900]), torch.float32))
    assert torch.equal(out[..., 8:], x[..., 8:])
    assert torch.equal(out[0], x[0])
    assert torch.allclose(out[..., :8].norm(dim=-1), x[..., :8].norm(dim=-1))
    assert (out[1:, :, :8] - x[1:, :, :8]).abs().max() > 0.1


def test_a_config_survives_its_file() -> None:
    for index in range(len(SHAPES)):
        config = shaped(index).config
        assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


WRONG: list[tuple[Facts, str]] = [
    ({"width": 33}, r"must divide by 4 heads, or give head_width"),
    ({"width": 12}, "make it even"),
    ({"rope_share": 0.4}, "make it even"),
    ({"num_kv_heads": 3}, "must divide by 3 for keys"),
    ({"context": "block"}, "block_size"),
    ({"time_input": True}, "full context"),
    ({"process": "uniform"}, "time_input"),
    ({"draft_head": 8, "shift": False}, "draft_head"),
    ({"positions": "learned", "rope_scaling": SCALINGS[0]}, "leave it out"),
    ({"num_layers": 0}, "num_layers must be a whole number from 1"),
    ({"norm": "rsm"}, "did you mean 'rms'"),
    ({"experts": MANY, "draft_head": 8, "draft_rank": 2}, "draft_rank belongs to a model without experts"),
]


def test_a_shape_that_no_model_can_have_is_an_error(subtests: pytest.Subtests) -> None:
    for facts, message in WRONG:
        with subtests.test(message), pytest.raises((CheckpointError, InputError), match=message):
            replace(shaped(0).config, **({"head_width": 0} | facts))


WRONG_EXPERTS: list[tuple[Facts, str]] = [
    ({"num": 0}, "experts: num must be a whole number from 1"),
    ({"per_token": 2.0}, "experts: per_token must be a whole number"),
    ({"shared_width": -1}, "experts: shared_width must be a whole number from 0"),
    ({"score": "sigmoyd"}, "did you mean 'sigmoid'"),
    ({"num_groups": 5}, "12 experts cannot be 5 equal groups"),
    ({"num_groups": 12}, "12 experts cannot be 12 equal groups of two or more"),
    ({"kept_groups": 1}, "4 experts cannot be chosen from 1 of 4 groups of 3: lower per_token"),
    ({"per_token": 13, "num_groups": 1, "kept_groups": 1}, "lower per_token"),
]


def test_experts_that_no_model_can_have_are_an_error(subtests: pytest.Subtests) -> None:
    for facts, message in WRONG_EXPERTS:
        with subtests.test(message), pytest.raises((CheckpointError, InputError), match=message):
            replace(MANY, **facts)


def test_a_scaling_that_says_too_little_is_an_error() -> None:
    with pytest.raises(CheckpointError, match="original_positions"):
        RopeScaling(kind="yarn", factor=4.0)
    with pytest.raises(CheckpointError, match="did you mean 'yarn'"):
        RopeScaling(kind="yaarn", factor=4.0)  # type: ignore[arg-type]
