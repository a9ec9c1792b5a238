"""Low-rank weights of drafts: what they add, to which rows, and the confidence beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from conftest import tiny_config
from daguerre.errors import CheckpointError
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import BatchLayout, Rows, run_batch
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.low_rank import LowRank, add_low_rank, draft_rows
from daguerre.models.forward import Forward, Hidden, Layout
from daguerre.models.loading import load_model, save_model
from daguerre.models.tokenizer import Tokenizer

CLEAN, MASKED = 12, 4


@pytest.fixture(scope="module")
def model(make_model: Any) -> Any:
    return make_model(draft_head=24, draft_rank=8)


def verifying(number: int, backbone: Backbone, drafting: bool) -> Forward:
    """Clean rows, and behind the eighth of them masked ones that see it and each other."""
    rng, num = np.random.default_rng(number), CLEAN + MASKED
    tokens = np.append(rng.choice(backbone.config.ordinary_ids, CLEAN), [backbone.config.mask_id] * MASKED)
    position = np.append(np.arange(CLEAN), 8 + np.arange(MASKED))
    mask = np.zeros((num, num), dtype=bool)
    mask[CLEAN:, CLEAN:] = True
    end = np.append(np.arange(1, CLEAN + 1), [8] * MASKED).astype(np.int32)
    wanted = np.arange(num, dtype=np.int32)
    return Forward(tokens, Layout(position, end, CLEAN, mask=mask), None, wanted, Hidden(), drafting=drafting)


def test_it_adds_the_product_of_its_two_matrices_to_the_rows_of_drafts() -> None:
    torch.manual_seed(0)
    matrix, low_rank, x = torch.nn.Linear(6, 5, bias=False), LowRank(6, 5, 2), torch.randn(2, 3, 6)
    whole = F.linear(x, matrix.weight + low_rank.b.weight @ low_rank.a.weight)
    some = torch.tensor([[True, False, False], [False, True, True]])
    y = matrix(x)
    assert torch.allclose(add_low_rank(y, x, low_rank, draft_rows(some))[some], whole[some], atol=1e-6)
    assert torch.equal(add_low_rank(y, x, low_rank, draft_rows(some))[~some], y[~some])
    assert torch.allclose(add_low_rank(y, x, low_rank, draft_rows(some | True)), whole, atol=1e-6)
    for none in (None, some & False):
        assert add_low_rank(y, x, low_rank, draft_rows(none)) is y
    assert add_low_rank(y, x, None, draft_rows(some)) is y


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_a_draft_is_that_of_the_summed_matrices(tokenizer: Tokenizer, gated: bool, placement: str) -> None:
    """At qkv, out and down of every layer: a backbone whose matrices are W + B A, on rows that all draft."""
    facts: dict[str, Any] = {"gated_mlp": gated, "norm_placement": placement, "draft_head": 8}
    low = (
        Backbone(tiny_config(tokenizer, draft_rank=4, **facts)).initialize(1, zero_outputs=False).requires_grad_(False)
    )
    summed = Backbone(tiny_config(tokenizer, **facts))
    summed.load_state_dict({n: w for n, w in low.state_dict().items() if n in summed.state_dict()})
    for layer, other in zip(low.layers, summed.layers, strict=True):
        for part, name in (("attention", "qkv"), ("attention", "out"), ("mlp", "down")):
            added = getattr(getattr(layer, part), f"{name}_draft")
            weight = getattr(getattr(other, part), name).weight
            weight.data += added.b.weight @ added.a.weight
    tokens = torch.randint(16, 200, (2, 7), generator=torch.Generator().manual_seed(0))
    rows = Rows.make(torch.arange(7).expand(2, -1), span=0)
    layout = BatchLayout(rows, num_clean=0)
    plain, drafted = (run_batch(low, tokens, layout, drafting=drafting) for drafting in (False, True))
    assert torch.allclose(drafted, run_batch(summed, tokens, layout), atol=1e-4)
    assert not torch.allclose(drafted, plain, atol=1e-2)


def test_clean_rows_are_the_same_to_the_bit(model: Any) -> None:
    """In a batch of forwards, of which one drafts; its masked rows are others than without low-rank weights."""
    backbone = model.backbone
    backend = TorchBackend(backbone)
    plain, other = verifying(0, backbone, False), verifying(1, backbone, False)
    alone = [answer.hidden for answer in backend.forward([plain, other])]
    both = [answer.hidden for answer in backend.forward([verifying(0, backbone, True), other])]
    assert np.array_equal(alone[1], both[1])
    assert np.array_equal(alone[0][:CLEAN], both[0][:CLEAN])
    assert np.abs(alone[0][CLEAN:] - both[0][CLEAN:]).max() > 0.01


def test_fresh_weights_change_nothing_and_the_confidence_is_even(tokenizer: Tokenizer) -> None:
    facts = {"draft_head": 8, "draft_rank": 4}
    backbone = Backbone(tiny_config(tokenizer, **facts)).initialize(0).requires_grad_(False)
    backend = TorchBackend(backbone)
    plain, drafted = (backend.forward([verifying(0, backbone, drafting)])[0].hidden for drafting in (False, True))
    assert np.array_equal(plain, drafted)
    weights = dict(backbone.named_parameters())
    a = weights["layers.0.mlp.down_draft.a.weight"]
    assert a.shape == (4, backbone.config.mlp_width)
    assert float(a.var()) == pytest.approx(1 / backbone.config.mlp_width, rel=0.3)
    assert backbone.draft_head is not None
    found = backbone.draft_head.acceptance(torch.randn(3, backbone.config.width), torch.tensor([-1.0, -2, -3]), 0.5)
    assert found.tolist() == pytest.approx([0.6] * 3, abs=0.01)


def test_the_confidence_is_a_logistic_function_of_the_state_and_the_log_probability(model: Any) -> None:
    head, width = model.backbone.draft_head, model.config.width
    state, log_prob = torch.randn(5, width, generator=torch.Generator().manual_seed(0)), torch.linspace(-3, 0, 5)
    norm = state / (state.square().mean(-1, keepdim=True) + 1e-7).sqrt()
    z = torch.cat([norm, log_prob[:, None]], dim=1) @ head.confidence.weight.T + head.confidence.bias
    for temperature, share in ((0.0, 0.0), (0.25, 0.25), (1.0, 1.0), (1.7, 1.0)):
        expected = torch.sigmoid((1 - share) * z[:, 0] + share * z[:, 1])
        assert torch.allclose(head.acceptance(state, log_prob, temperature), expected, atol=1e-5)


def test_a_folder_keeps_them_and_older_folders_have_none(model: Any, causal: Any, tmp_path: Path) -> None:
    loaded, _ = load_model(save_model(tmp_path / "model", model.backbone, model.tokenizer, dtype=torch.float32))
    assert loaded.config == model.config
    for name, weight in model.backbone.named_parameters():
        assert torch.equal(loaded.get_parameter(name), weight), name
    older = {key: value for key, value in causal.config.to_dict().items() if key != "draft_rank"}
    assert ModelConfig.from_dict(older).draft_rank == 0
    with pytest.raises(CheckpointError, match="needs a `draft_head`"):
        ModelConfig.from_dict(older | {"draft_rank": 4})
