"""Layers that are split over processes answer as those of one process do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from conftest import MakeModel
from daguerre.errors import InputError, UnsupportedError
from daguerre.model import Model, load
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import BatchLayout, run_batch
from daguerre.models.core.config import Experts
from daguerre.models.loading import save_model
from daguerre.models.tensor_parallel import split_layers
from distributed_run import together
from published import CASES, made

FACTS: dict[str, dict[str, Any]] = {
    "ours": {},
    "biases": {"qkv_bias": True, "out_bias": True, "mlp_bias": True, "gated_mlp": False, "qk_norm": False},
    "full": {"context": "full", "shift": False},
    "drafts": {"draft_head": 8, "draft_rank": 2},
}
PROMPT = [*range(100, 112)]
ROWS = 12
DRAFTING = torch.arange(ROWS)[None] >= 8


def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Every row sees every other one."""
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2)


def outputs(model: Model) -> dict[str, Any]:
    """What a model writes and computes, and gradients of what is on every process."""
    config = model.config
    mode = {"full": "full", "block": "block"}.get(config.context, "ar")
    text = model.generate(PROMPT, 12, mode=mode)
    drawn = model.generate(PROMPT, 12, temperature=1.0, seed=3)
    backbone = model.backbone.requires_grad_(True)
    with torch.enable_grad():
        hidden = run_batch(backbone, torch.tensor([PROMPT]), BatchLayout.causal(ROWS))
        drafts = backbone(torch.tensor([PROMPT]), torch.arange(ROWS)[None], attend, drafting=DRAFTING)
        loss = backbone.logits(hidden)[..., 10:200].logsumexp(-1).sum()
    loss.backward()
    whole = {n: p.grad for n, p in backbone.named_parameters() if "norm" in n or n == "embedding.weight"}
    return {
        "tokens": [token.id for token in text.tokens],
        "drawn": [token.id for token in drawn.tokens],
        "hidden": hidden.detach(),
        "drafts": drafts.detach(),
        "gradients": {name: grad for name, grad in whole.items() if "q_norm" not in name and "k_norm" not in name},
        "cache": config.num_kv_heads,
    }


def one_of(folders: dict[str, str], out: str) -> None:
    """One process of several: write what each model gives here."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    made_here = {name: outputs(load(folder, dtype="float32", tensor_parallel=True)) for name, folder in folders.items()}
    torch.save(made_here, Path(out) / f"{dist.get_rank()}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_split_layers_write_the_same_tokens(processes: int, tmp_path: Path, make_model: MakeModel) -> None:
    folders = {}
    for name, facts in FACTS.items():
        model = make_model(num_heads=8, num_kv_heads=4, mlp_width=64, **facts)
        for key, weight in model.backbone.named_parameters():
            if key.endswith("_draft.b.weight"):  # zeros at first
                weight.normal_(generator=torch.Generator().manual_seed(len(key)))
        folders[name] = str(save_model(tmp_path / name, model.backbone, model.tokenizer, torch.float32))
    if processes == 2:  # keys and values have two heads
        folders["sdar"] = str(CASES["sdar"].write(tmp_path, made("sdar")))
    together(processes, one_of, folders, str(tmp_path))
    every = [torch.load(tmp_path / f"{rank}.pt") for rank in range(processes)]
    for name, folder in folders.items():
        wanted = outputs(load(folder, dtype="float32", backend="torch"))
        for here in (each[name] for each in every):
            assert here["tokens"] == wanted["tokens"]
            assert here["drawn"] == wanted["drawn"]
            assert here["cache"] * processes == wanted["cache"]
            for rows in ("hidden", "drafts"):
                assert torch.allclose(here[rows], wanted[rows], rtol=1e-4, atol=1e-5)
            for key, grad in wanted["gradients"].items():
                assert torch.allclose(here["gradients"][key], grad, rtol=1e-3, atol=1e-5 * float(grad.abs().max())), key


def test_a_process_that_torchrun_did_not_start_cannot_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(InputError, match="start them with `torchrun"):
        load(tensor_parallel=True)
    with pytest.raises(UnsupportedError, match="leave out native and quantize"):
        load(tensor_parallel=True, quantize="int8")


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"num_heads": 4, "num_kv_heads": 1}, "2 processes cannot share num_kv_heads=1"),
        ({"experts": Experts(num=4, per_token=2, width=16)}, "layers of a mixture of experts cannot be split"),
    ],
)
def test_what_cannot_be_split_is_refused(
    facts: dict[str, Any], message: str, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group=None: 2)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda group=None: 0)
    backbone: Backbone = make_model(**facts).backbone
    with pytest.raises(UnsupportedError, match=message):
        split_layers(backbone)
