"""MDLM, BD3-LM, SEDD, Duo and their AR baseline: from checkpoints in the publishers' layout to the published logits."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from backends import needs_compiler
from daguerre.errors import CheckpointError, UnsupportedError
from daguerre.models.backends.native_backend import NativeBackend
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.adaptive import total_noise
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.families.base import Family, Published
from daguerre.models.families.ddit import AR, BD3LM, DUO, MDLM, SEDD
from daguerre.models.forward import Backend, Forward, Layout, Logits
from oracles.ddit import LENGTH, ddit, published_config, published_weights, sedd_log_score

KINDS: dict[str, Family] = {"mdlm": MDLM, "bd3lm": BD3LM, "ar": AR, "sedd": SEDD, "duo": DUO}
LIVE = ("sedd", "duo")
"""Models whose noise level is an input."""


def read(kind: str, **changes: Any) -> ModelConfig:
    return KINDS[kind].read(Published(config=published_config(kind, **changes)))


def filled(family: Family, config: ModelConfig, weights: dict[str, Tensor]) -> Backbone:
    """A backbone whose every weight comes from a published tensor, each of which is used once."""
    with torch.device("meta"):
        backbone = Backbone(config)
    state = {name: torch.full(like.shape, torch.nan) for name, like in backbone.state_dict().items()}
    pieces = family.pieces(config)
    assert sorted(piece.name for piece in pieces) == sorted(weights)
    for piece in pieces:
        tensor = weights[piece.name] if piece.change is None else piece.change(weights[piece.name])
        assert state[piece.target][piece.index].shape == tensor.shape, piece
        state[piece.target][piece.index] = tensor
    assert not any(weight.isnan().any() for weight in state.values())
    backbone.load_state_dict(state, assign=True)
    backbone.never = torch.tensor(config.unpredictable_ids)
    return backbone.eval().requires_grad_(False)


@cache
def loaded(kind: str) -> Backbone:
    return filled(KINDS[kind], read(kind), published_weights(published_config(kind)))


def seen(kind: str) -> np.ndarray:
    """How many keys each row sees, int64 (LENGTH,)."""
    rows = np.arange(LENGTH)
    return {"ar": rows + 1, "bd3lm": (rows // 4 + 1) * 4}.get(kind, np.full(LENGTH, LENGTH))


def tokens_of(kind: str) -> np.ndarray:
    """Text in which a third of the tokens are the mask, if there is one."""
    random = np.random.default_rng(3)
    tokens = random.integers(0, 57, LENGTH)
    return tokens if kind in ("ar", "duo") else np.where(random.random(LENGTH) < 1 / 3, 57, tokens)


def ours(kind: str, backend: Backend, level: float) -> np.ndarray:
    config = backend.config
    num_clean = 0 if config.context == "full" else LENGTH
    layout = Layout(np.arange(LENGTH), seen(kind).astype(np.int32), num_clean)
    wanted = np.arange(LENGTH, dtype=np.int32)
    time = level if config.time_input else None
    (answer,) = backend.forward([Forward(tokens_of(kind), layout, None, wanted, Logits(), time)])
    assert answer.logits is not None
    return answer.logits


def theirs(kind: str, level: float) -> np.ndarray:
    """By the restated network, whose time is zeroed where the publisher zeroes it; reserved tokens left out."""
    sigma = torch.tensor([-np.log(1 - level) if kind in LIVE else 0.0], dtype=torch.float32)
    config, visible = published_config(kind), torch.arange(LENGTH) < torch.from_numpy(seen(kind))[:, None]
    tokens, weights = torch.from_numpy(tokens_of(kind))[None], published_weights(config)
    out = ddit(config, weights, tokens, None if kind == "ar" else sigma, visible)[0]
    out[:, read(kind).unpredictable_ids] = -torch.inf
    return out.numpy()


def furthest(one: np.ndarray, other: np.ndarray) -> float:
    assert np.array_equal(np.isfinite(one), np.isfinite(other))
    return float(np.abs(one[np.isfinite(one)] - other[np.isfinite(other)]).max())


def test_logits_are_the_published_ones(subtests: pytest.Subtests) -> None:
    """Measured: to 2e-5, of logits up to 12. The publishers' own modules were compared in the same way."""
    for kind in KINDS:
        with subtests.test(kind):
            for level in (0.05, 0.6, 0.999):
                want = theirs(kind, level)
                assert 0.35 < torch.from_numpy(want).softmax(-1).amax(-1).mean() < 0.8
                assert furthest(ours(kind, TorchBackend(loaded(kind)), level), want) < 1e-4


@needs_compiler
def test_the_native_backend_has_the_published_logits(subtests: pytest.Subtests) -> None:
    """Measured: to 2e-5. A zeroed level is folded into the matrices."""
    for kind in KINDS:
        with subtests.test(kind):
            for level in (0.05, 0.999):
                assert furthest(ours(kind, NativeBackend(loaded(kind)), level), theirs(kind, level)) < 1e-4


def test_the_noise_level_matters_where_it_is_an_input() -> None:
    for kind in KINDS:
        apart = furthest(theirs(kind, 0.1), theirs(kind, 0.9))
        assert (apart > 0.5) == (kind in LIVE)


def test_sigma_is_that_of_the_log_linear_schedule() -> None:
    """sigma(t) = -log(1 - (1 - eps) t), eps = 1e-3: the share of noise at the published time t is (1 - eps) t."""
    time = torch.linspace(0, 1, 11, dtype=torch.float64)
    want = -torch.log1p(-(1 - 1e-3) * time)
    assert torch.allclose(total_noise((1 - 1e-3) * time).double(), want, atol=1e-4)
    assert total_noise(torch.tensor(1.0)) == total_noise(torch.tensor(0.999))


def test_softmax_of_sedd_s_output_is_its_prediction_of_clean_tokens() -> None:
    """p(x_0 = y) = score(y) (e^sigma - 1) at a mask, which sums to 1 where scores are exact."""
    sigma, tokens = torch.tensor([1.3]), torch.from_numpy(tokens_of("sedd"))[None]
    config = published_config("sedd")
    output = ddit(config, published_weights(config), tokens, sigma, torch.ones(LENGTH, LENGTH, dtype=torch.bool))
    clean = sedd_log_score(output, tokens, sigma)[0, :, :57].exp() * torch.expm1(sigma)
    at_masks = tokens[0] == 57
    got = torch.from_numpy(ours("sedd", TorchBackend(loaded("sedd")), float(1 - torch.exp(-sigma)))).softmax(-1)
    want = clean / clean.sum(-1, keepdim=True)
    assert at_masks.sum() > 4
    assert (got[at_masks, :57] - want[at_masks]).abs().max() < 1e-5


# ---- configurations -----------------------------------------------------------------------------------------------

OWT = {"vocab_size": 50258, "model_length": 1024, "hidden_dim": 768, "cond_dim": 128, "n_blocks": 12, "n_heads": 12}
MEDIUM = {"hidden_size": 1024, "cond_dim": 128, "length": 1024, "n_blocks": 24, "n_heads": 16, "scale_by_sigma": True}
SIZES: list[tuple[str, dict[str, Any], int]] = [
    ("mdlm", OWT, 169_627_218),  # "169M" and "170M" in the papers
    ("bd3lm", OWT | {"block_size": 16}, 169_627_218),
    ("ar", OWT, 162_246_482),
    ("duo", OWT, 169_627_218),
    ("sedd", {"tokens": 50257, "model": MEDIUM}, 424_477_010),  # "424M": SEDD, section 5
]


def counted(width: int, blocks: int, vectors: int, vocabulary: int, adaptive: bool = True) -> int:
    """Numbers of a network by its description."""
    block = 12 * width**2 + 5 * width + 2 * width
    outside = 2 * vocabulary * width + vocabulary + width
    if adaptive:
        block += 6 * width * (vectors + 1)
        outside += 256 * vectors + vectors + vectors**2 + vectors + 2 * width * (vectors + 1)
    return blocks * block + outside


def test_published_sizes_have_the_published_numbers_of_parameters(subtests: pytest.Subtests) -> None:
    for kind, sizes, num in SIZES:
        with subtests.test(kind):
            config = read(kind, **sizes)
            with torch.device("meta"):
                backbone = Backbone(config)
            shape = config.width, config.num_layers, 128, config.vocab_size
            assert backbone.num_parameters == counted(*shape, adaptive=kind != "ar") == num
            targets = {piece.target for piece in KINDS[kind].pieces(config)}
            assert targets == set(backbone.state_dict())


def test_each_model_is_what_its_publisher_says() -> None:
    mdlm, bd3lm, ar, sedd, duo = (read(kind) for kind in ("mdlm", "bd3lm", "ar", "sedd", "duo"))
    assert [config.context for config in (mdlm, bd3lm, ar, sedd, duo)] == ["full", "block", "causal", "full", "full"]
    assert [config.time_input for config in (mdlm, bd3lm, ar, sedd, duo)] == [False, False, False, True, True]
    assert [config.mask_id for config in (mdlm, bd3lm, ar, sedd, duo)] == [57, 57, None, 57, None]
    assert [config.bos_id for config in (mdlm, bd3lm, ar, sedd, duo)] == [56, 56, 56, None, 56]
    assert bd3lm.block_size == 4 and not bd3lm.shift and ar.shift
    assert ar.adaptive_width == 0 and mdlm.adaptive_width == 12
    assert duo.process == "uniform" and duo.noise_ids == (0, 58)
    for config in (mdlm, bd3lm, ar, sedd, duo):
        assert config.unpredictable_ids == (57,) and config.eos_id == 56
        assert ModelConfig.from_dict(config.to_dict()) == config


def test_a_block_as_long_as_the_model_is_full_context() -> None:
    assert read("bd3lm", block_size=LENGTH).context == "full"
    assert read("bd3lm", cross_attn=False).context == "full"


def test_special_tokens_are_the_tokenizer_s_where_there_is_one() -> None:
    tokens = {"<|endoftext|>": 3, "[MASK]": 9}
    named = {"mask_token": {"content": "[MASK]"}, "eos_token": "<|endoftext|>"}
    published = Published(config=published_config("mdlm"), tokenizer=named, tokens=tokens, num_tokens=55)
    config = MDLM.read(published)
    assert (config.mask_id, config.eos_id) == (9, 3)
    assert config.reserved_ids == (9, 55, 56, 57)


WRONG: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("mdlm", {"n_heads": None}, CheckpointError, "no n_heads"),
    ("bd3lm", {"time_conditioning": True}, UnsupportedError, "time_conditioning"),
    ("duo", {"time_conditioning": False}, UnsupportedError, "noise level"),
    ("sedd", {"graph": {"type": "uniform"}}, UnsupportedError, "SEDD with noise 'uniform'"),
    ("sedd", {"noise": {"type": "geometric"}}, UnsupportedError, "schedule 'geometric'"),
    ("sedd", {"model": None}, CheckpointError, "no section 'model'"),
    ("sedd", {"tokens": "many"}, CheckpointError, "tokens must be a whole number"),
]


def test_what_cannot_be_honored_says_what_to_do(subtests: pytest.Subtests) -> None:
    for kind, changes, error, message in WRONG:
        with subtests.test(kind, **changes):
            with pytest.raises(error, match=message) as caught:
                read(kind, **changes)
            assert "\n" not in str(caught.value)


def test_tables_that_hold_nothing_of_the_model_are_ignored() -> None:
    names = "backbone.rotary_emb.inv_freq", "rotary_emb.inv_freq", "sampling_eps_min", "sampling_eps_max"
    for family in KINDS.values():
        assert all(any(re.fullmatch(pattern, name) for pattern in family.ignored) for name in names)
        assert not any(re.fullmatch(pattern, "backbone.blocks.0.norm1.weight") for pattern in family.ignored)
