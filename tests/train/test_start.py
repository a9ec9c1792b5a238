"""Runs that start from a model: what they train, refuse, and resume with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import tiny_config
from daguerre.errors import InputError, UnsupportedError
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import Experts, RopeScaling
from daguerre.models.loading import load_model, save_model
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.checkpoint import list_checkpoints
from daguerre.train.drafting import with_draft_head
from daguerre.train.recipe import Share
from daguerre.train.run import run_training
from daguerre.train.trainer import Trainer
from training_runs import ADAPT, RECIPE, list_steps, run, run_until

OLD_FIELDS = (
    "vocab_size width num_layers num_heads num_kv_heads mlp_width max_positions mask_id eos_id bos_id pad_id null_id "
    "context shift block_size process time_input draft_head norm_eps rope_theta"
).split()
"""Fields of a config that version 0.1 wrote."""


def test_a_run_from_a_model_trains_all_of_it_and_resumes_without_naming_it_again(
    corpus: Path, reference: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    made = run(ADAPT, out, corpus, start_from=str(reference / "model"))
    begun = dict(load_model(reference / "model")[0].named_parameters())
    assert all(p.requires_grad for p in made.model.parameters())
    assert not any(torch.equal(begun[n], p) for n, p in made.model.named_parameters())
    other = tmp_path / "other"
    run(replace(ADAPT, steps=2), other, corpus, start_from=str(reference / "model"))
    resumed = run(ADAPT, other, corpus, resume=True)
    assert resumed.progress.step == 3
    assert resumed.model.config == made.model.config


def test_a_run_with_scaled_positions_reads_longer_texts_resumes_and_says_so_in_what_it_writes(
    corpus: Path, reference: Path, tmp_path: Path
) -> None:
    stage = replace(ADAPT.stages[0], until=1.0, length=96, sequences=1)
    recipe = replace(ADAPT, stages=(stage,), rope_scaling="yarn:2")
    with pytest.raises(InputError, match="windows of 96 tokens, the model's context is 64"):
        Trainer(replace(recipe, rope_scaling=""), tmp_path / "no", corpus, start_from=str(reference / "model"))
    whole = run(recipe, tmp_path / "whole", corpus, start_from=str(reference / "model"))
    made = Trainer(recipe, tmp_path / "parts", corpus, start_from=str(reference / "model"), quiet=True)
    run_until(1, made)
    resumed = run(recipe, tmp_path / "parts", corpus, resume=True)
    expected = RopeScaling(kind="yarn", factor=2.0, original_positions=64)
    for out, trained in ((tmp_path / "whole", whole), (tmp_path / "parts", resumed)):
        written = load_model(out / "model")[0]
        assert (written.config.rope_scaling, written.config.max_positions) == (expected, 128)
        assert trained.model.config.rope_scaling == expected
    ours, theirs = (load_model(tmp_path / name / "model")[0].state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    with pytest.raises(UnsupportedError, match="scaled already"):
        run_training(
            "adapt",
            start_from=str(tmp_path / "whole" / "model"),
            data=corpus,
            out=tmp_path / "again",
            overrides=["rope_scaling=yarn:2"],
            quiet=True,
        )
    for changes in ({"model": RECIPE.model}, {"rope_scaling": "dynamic:2"}, {"rope_scaling": "yarn"}):
        with pytest.raises((InputError, UnsupportedError), match="rope_scaling"):
            replace(recipe, **changes)


def test_a_run_resumes_with_what_drafts_and_the_gap_filler_of_the_model_it_came_from(
    corpus: Path, reference: Path, tmp_path: Path
) -> None:
    backbone, tokenizer = load_model(reference / "model", dtype=torch.float32)
    start = with_draft_head(backbone, 8, seed=1, rank=4)
    save_model(tmp_path / "model", start, tokenizer, dtype=torch.float32)
    mixture = {"next_token": Share(share=1.0, layout="next_token")}
    out, recipe = tmp_path / "run", replace(RECIPE, steps=3, checkpoint_steps=1, mixture=mixture)
    run(replace(recipe, steps=2), out, corpus, start_from=str(tmp_path / "model"))
    resumed = run(recipe, out, corpus, resume=True)
    assert resumed.progress.step == 3
    assert resumed.model.config == start.config
    assert start.config.null_id is not None
    for (name, old), new in zip(start.named_parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(old, new) == (name.startswith("draft_head") or "_draft." in name), name


def test_a_run_keeps_the_bias_of_experts_to_its_end_and_when_it_resumes(
    corpus: Path, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    config = tiny_config(tokenizer, experts=Experts(num=6, per_token=2, width=16, bias=True))
    start = Backbone(config).initialize(0)
    biases = {name: torch.arange(6.0) for name, _ in start.named_parameters() if name.endswith("expert_bias")}
    assert len(biases) == config.num_layers
    start.load_state_dict(start.state_dict() | biases)
    save_model(tmp_path / "model", start, tokenizer)
    out = tmp_path / "run"
    run(replace(ADAPT, steps=2), out, corpus, start_from=str(tmp_path / "model"))
    resumed = run(ADAPT, out, corpus, resume=True)
    for weights in (resumed.model.state_dict(), load_model(out / "model")[0].state_dict()):
        assert all(torch.equal(weights[name], bias.to(weights[name])) for name, bias in biases.items())
    assert not torch.equal(resumed.model.embedding.weight, start.embedding.weight)


def test_a_model_that_the_objectives_do_not_fit_is_refused(corpus: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"context": "full"}, "its layouts are full, full_suffix"),
        ({"context": "block", "shift": False, "block_size": 8}, "its layouts are bd3"),
        ({"null_id": None}, "no gap filler"),
    ]
    for facts, message in wrong:
        save_model(tmp_path / "model", Backbone(tiny_config(tokenizer, **facts)).initialize(0), tokenizer)
        with pytest.raises(UnsupportedError, match=message):
            Trainer(ADAPT, tmp_path / "run", corpus, start_from=str(tmp_path / "model"), quiet=True)


def test_a_run_of_an_earlier_version_goes_on(corpus: Path, reference: Path, tmp_path: Path) -> None:
    """Its config counts the reserved ids and has a family, its recipe other names, its Muon is PyTorch's."""
    out, whole = tmp_path / "run", tmp_path / "whole"
    run(ADAPT, whole, corpus, start_from=str(reference / "model"))
    run_until(2, Trainer(ADAPT, out, corpus, start_from=str(reference / "model"), quiet=True))
    state_file = list_checkpoints(out / "checkpoints")[-1] / "state.json"
    state = json.loads(state_file.read_text())
    model = {key: state["model"][key] for key in OLD_FIELDS} | {"num_reserved": 16, "family": "daguerre"}
    recipe = state["recipe"] | {"backend": state["recipe"].pop("attn_impl"), "model": None}
    state_file.write_text(json.dumps(state | {"model": model, "recipe": recipe}))
    (out / "recipe.json").write_text(json.dumps(recipe))
    tensors_file = state_file.with_name("tensors.pt")
    tensors = torch.load(tensors_file)
    muon = tensors["optimizer"][0]
    assert muon["param_groups"][0].keys() >= {"lr", "momentum", "weight_decay", "params"}
    theirs = torch.optim.Muon([torch.nn.Parameter(torch.zeros(2, 2))]).state_dict()["param_groups"][0]
    muon["param_groups"] = [theirs | group for group in muon["param_groups"]]
    torch.save(tensors, tensors_file)
    run_training(None, out=out, resume=True, quiet=True, device="cpu")
    assert list_steps(out)[-1] == 3
    weights = "model/model.safetensors"
    assert (out / weights).read_bytes() == (whole / weights).read_bytes()
