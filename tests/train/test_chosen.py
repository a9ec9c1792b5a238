"""Which weights a run trains, and layers that are computed again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from conftest import MakeModel
from daguerre.errors import InputError
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import BatchLayout, run_batch
from daguerre.models.loading import load_model
from daguerre.train.chosen import checkpoint_layers, named_weights
from daguerre.train.lora import Lora
from daguerre.train.trainer import Trainer
from training_runs import ADAPT, RECIPE, run, run_until


def test_patterns_name_consecutive_words(make_model: MakeModel) -> None:
    tied, untied = make_model(num_layers=12).backbone, make_model(num_layers=2, tied=False).backbone
    every = {name for name, _ in tied.named_parameters()}
    assert named_weights(tied, ["layers.1"]) == {name for name in every if name.startswith("layers.1.")}
    assert named_weights(tied, ["mlp"]) == {name for name in every if ".mlp." in name}
    assert named_weights(tied, ["layers.*.attention"]) == {name for name in every if ".attention." in name}
    assert named_weights(tied, ["layers.1?.mlp.down"]) == {f"layers.{n}.mlp.down.weight" for n in (10, 11)}
    assert named_weights(tied, ["head", "final_norm"]) == {"embedding.weight", "final_norm.weight"}
    assert named_weights(untied, ["head"]) == {"output.weight"}
    assert named_weights(untied, ["embedding"]) == {"embedding.weight"}
    norms = named_weights(tied, ["norms"])
    assert norms == {name for name in every if "norm" in name}
    with pytest.raises(InputError, match=r"train names 'layers\.12', and the model has no such weights"):
        named_weights(tied, ["mlp", "layers.12"])


def test_a_run_trains_the_weights_that_it_names_and_resumes(corpus: Path, start: str, tmp_path: Path) -> None:
    recipe = replace(ADAPT, train=("layers.1", "final_norm"), steps=3)
    one = run(recipe, tmp_path / "one", corpus, start_from=start)
    begun = dict(load_model(start)[0].named_parameters())
    changed = {n for n, w in one.model.named_parameters() if not torch.equal(w, begun[n])}
    assert changed == {n for n in begun if n.startswith(("layers.1.", "final_norm."))}
    assert one.trained.average.values.keys() == changed
    run_until(1, Trainer(recipe, tmp_path / "two", corpus, start_from=start, quiet=True))
    two = run(recipe, tmp_path / "two", corpus, resume=True)
    saved = [load_model(tmp_path / name / "model")[0].state_dict() for name in ("one", "two")]
    assert all(torch.equal(saved[0][n], saved[1][n]) for n in begun)
    assert two.trained.average.values.keys() == changed


@pytest.mark.parametrize(
    "facts", [{}, {"norm_placement": "post", "context": "full"}, {"adaptive_width": 16, "norm": "layer"}]
)
def test_layers_that_are_computed_again_give_the_same_gradients(
    facts: dict[str, object], make_model: MakeModel
) -> None:
    plain, again = (make_model(**facts).backbone.requires_grad_(True).train() for _ in range(2))
    checkpoint_layers(again)
    tokens, layout = torch.arange(40).view(2, 20), BatchLayout.causal(20, batch=2)
    for model in (plain, again):
        hidden = run_batch(model, tokens, layout, attn_impl="matmul")
        model.logits(hidden).logsumexp(-1).sum().backward()
    for (name, one), two in zip(plain.named_parameters(), again.parameters(), strict=True):
        assert one.grad is not None
        assert two.grad is not None
        assert torch.equal(one.grad, two.grad), name


def kept_bytes(model: Backbone, num_rows: int) -> int:
    """Bytes that a forward keeps for its backward pass, weights apart."""
    held: dict[int, int] = {}
    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden = run_batch(model, torch.zeros(1, num_rows, dtype=torch.int64), BatchLayout.causal(num_rows))
    assert hidden.requires_grad
    return sum(held.values())


def test_layers_that_are_computed_again_keep_less(make_model: MakeModel) -> None:
    plain, again = (make_model(num_layers=6).backbone.requires_grad_(True).train() for _ in range(2))
    checkpoint_layers(again)
    assert kept_bytes(again, 64) < kept_bytes(plain, 64) / 4


@pytest.mark.parametrize("lora", [None, Lora(rank=4, dropout=0.5)])
def test_a_run_with_layers_computed_again_ends_with_the_same_weights(
    lora: Lora | None, corpus: Path, start: str, tmp_path: Path
) -> None:
    ends = []
    for again in (False, True):
        recipe = replace(ADAPT, lora=lora, checkpoint_layers=again, steps=2, mixture=RECIPE.mixture)
        made = Trainer(recipe, tmp_path / str(again), corpus, start_from=start, quiet=True)
        made.run()
        ends.append(dict(made.model.named_parameters()))
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
