"""Adapters: only their factors learn, PEFT reads what is written, and merging gives what was trained."""

from __future__ import annotations

import copy
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import daguerre
from answers import write_rows
from conftest import MakeModel
from daguerre.errors import CheckpointError, InputError
from daguerre.models import lora
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import BatchLayout, run_batch
from daguerre.models.export import export
from daguerre.models.loading import load_folder, load_model, save_model
from daguerre.models.lora_factors import adapted
from daguerre.models.lora_names import names_in
from daguerre.train.chosen import base_of
from daguerre.train.lora import Lora, LoraRun, start_lora
from daguerre.train.optim import Muon, Optimizer
from daguerre.train.recipe import Optimization
from daguerre.train.run import run_training
from daguerre.train.trainer import Trainer
from published import CASES, NUM_TOKENS, ROWS, logits_under, made, ours, seen_by
from train.sft.test_published_runs import SHORT, TALKS, published
from training_runs import ADAPT, SHAPE, run, run_until

FAMILIES = [
    ("llama", Lora(rank=3, alpha=5, rslora=True)),
    ("qwen2", Lora(rank=4, targets=("q_proj", "v_proj", "down_proj"))),
    ("qwen3", Lora(rank=4, targets=("qkv", "layers.1.mlp.gate_proj"), whole=("lm_head", "model.norm"))),
    ("gpt2", Lora(rank=2, alpha=7)),
    ("gpt2 with a head", Lora(rank=2, targets=("c_attn",))),
    ("mistral", Lora(rank=4, targets=("o_proj", "embed_tokens"))),
    ("open dcoder", Lora(rank=4)),
    ("sdar", Lora(rank=4)),
]


def trained(folder: Path, options: Lora, steps: int = 3) -> tuple[Backbone, LoraRun]:
    """A model with an adapter after a few steps on random tokens."""
    backbone = load_folder(folder).backbone.train()
    made_run = start_lora(backbone, options, base_of(str(folder), backbone), seed=1)
    optimizer = Optimizer(backbone, Optimization(adamw_lr=0.05, warmup=0.0))
    tokens = torch.from_numpy(np.random.default_rng(2).integers(0, NUM_TOKENS, (2, 24)))
    for _ in range(steps):
        hidden = run_batch(backbone, tokens, BatchLayout.causal(24, batch=2))
        logits = backbone.logits(hidden)[:, :-1].flatten(0, 1)
        keep = logits.gather(1, tokens[:, 1:].reshape(-1, 1)).isfinite()[:, 0]
        F.cross_entropy(logits[keep], tokens[:, 1:].flatten()[keep]).backward()
        optimizer.step(0.5)
    return backbone, made_run


def written(made_run: LoraRun, backbone: Backbone, folder: Path) -> Path:
    return made_run.write(folder, backbone, dict(backbone.named_parameters()), {})


def with_peft(peft: Any, model: torch.nn.Module, adapter: Path) -> Any:
    """A model of transformers with an adapter, by PEFT, which warns of keys that are missing or unknown."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", message=".*fan_in_fan_out.*")
        warnings.simplefilter("ignore", FutureWarning)
        return peft.PeftModel.from_pretrained(model, str(adapter)).eval()


@pytest.mark.parametrize(("name", "options"), FAMILIES)
def test_peft_reads_what_was_trained(name: str, options: Lora, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    folder = CASES[name].write(tmp_path, made(name))
    before = {n: p.clone() for n, p in load_folder(folder).backbone.named_parameters()}
    backbone, made_run = trained(folder, options)
    for n, weight in backbone.named_parameters():
        if n in before:
            assert torch.equal(weight, before[n]) == (not weight.requires_grad), n
    adapter = written(made_run, backbone, tmp_path / "adapter")
    tokens, seen = np.random.default_rng(0).integers(0, NUM_TOKENS, ROWS), seen_by(backbone.config)
    theirs = with_peft(peft, copy.deepcopy(made(name)), adapter)
    expected = logits_under(theirs, torch.from_numpy(tokens), seen)[:, :NUM_TOKENS]
    merged = load_folder(folder, adapter=adapter).backbone
    size = expected.abs().max()
    for model in (backbone.eval().requires_grad_(False), merged):
        got = ours("torch", model, tokens, seen)[:, :NUM_TOKENS]
        known = got.isfinite()
        assert (got - expected)[known].abs().max() < 1e-5 * size
    plain = logits_under(made(name), torch.from_numpy(tokens), seen)[:, :NUM_TOKENS]
    assert (plain - expected).abs().max() > 0.01 * size
    wanted = {key.rpartition(".lora_")[0] for key in theirs.state_dict() if ".lora_" in key}
    assert len(wanted) == len([*adapted(backbone)])


def test_norms_that_are_published_otherwise_are_written_as_they_are_published(tmp_path: Path) -> None:
    """Gemma 3 has w of norms that multiply by 1 + w. Rows within a window are compared."""
    peft = pytest.importorskip("peft")
    folder = CASES["gemma3"].write(tmp_path, made("gemma3"))
    options = Lora(rank=4, whole=("model.norm", "q_norm", "post_attention_layernorm"))
    backbone, made_run = trained(folder, options)
    adapter = written(made_run, backbone, tmp_path / "adapter")
    merged = load_folder(folder, adapter=adapter).backbone.state_dict()
    for name, weight in backbone.state_dict().items():
        if "norm" in name:
            assert torch.equal(merged[name], weight) or (merged[name] - weight).abs().max() < 1e-6
    tokens, seen = np.random.default_rng(0).integers(0, NUM_TOKENS, ROWS), torch.ones(ROWS, ROWS).tril().bool()
    theirs, num = with_peft(peft, copy.deepcopy(made("gemma3")), adapter), 8
    expected = logits_under(theirs, torch.from_numpy(tokens), seen)[:num, :NUM_TOKENS]
    got = ours("torch", backbone.eval().requires_grad_(False), tokens, seen)[:num, :NUM_TOKENS]
    known = got.isfinite()
    assert (got - expected)[known].abs().max() < 1e-5 * expected.abs().max()


def test_peft_reads_an_adapter_of_our_own_layout_on_the_exported_model(tmp_path: Path, make_model: MakeModel) -> None:
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    model = make_model(max_positions=64)
    folder = save_model(tmp_path / "model", model.backbone, model.tokenizer, torch.float32)
    backbone, made_run = trained(folder, Lora(rank=4))
    adapter = written(made_run, backbone, tmp_path / "adapter")
    export(model.backbone, model.tokenizer, tmp_path / "exported", torch.float32)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported", attn_implementation="eager")
    theirs = with_peft(peft, theirs, adapter)
    tokens = np.random.default_rng(0).integers(5, 200, ROWS)
    expected = logits_under(theirs, torch.from_numpy(tokens), torch.ones(ROWS, ROWS).tril().bool())
    merged = daguerre.load(folder, dtype="float32", adapter=adapter)
    got = ours("torch", merged.backbone, tokens, torch.ones(ROWS, ROWS).tril().bool())
    known = got.isfinite()
    assert (got - expected)[known].abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_adapter_is_taken_out_to_the_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    folder = CASES["qwen3"].write(tmp_path, made("qwen3"))
    backbone, made_run = trained(folder, Lora(rank=4, whole=("lm_head",)))
    adapter = written(made_run, backbone, tmp_path / "adapter")
    plain = load_folder(folder, dtype).backbone
    before = {name: weight.clone() for name, weight in plain.state_dict().items()}
    names = names_in(plain.config, "qwen3")
    merged = lora.merge_adapter(plain, names.pieces, adapter, names.prefix, keep=True)
    inside = {name: weight.clone() for name, weight in plain.state_dict().items()}
    assert sum(not torch.equal(inside[n], before[n]) for n in before) == 4 * plain.config.num_layers + 1
    merged.unmerge()
    assert all(torch.equal(weight, before[name]) for name, weight in plain.state_dict().items())
    weight = before["layers.0.mlp.down.weight"]
    product = inside["layers.0.mlp.down.weight"].float() - weight.float()
    again = ((weight.float() + product).to(dtype).float() - product).to(dtype)
    assert dtype is torch.bfloat16 or not torch.equal(again, weight)  # which is why the weights are kept


def test_a_fresh_adapter_changes_nothing_and_only_factors_have_optimizer_state(
    make_model: MakeModel, tmp_path: Path
) -> None:
    model = make_model()
    folder = save_model(tmp_path / "model", model.backbone, model.tokenizer, torch.float32)
    plain, fresh = (load_folder(folder).backbone for _ in range(2))
    start_lora(fresh, Lora(), base_of(str(folder), fresh), seed=0)
    tokens, layout = torch.arange(30)[None], BatchLayout.causal(30)
    with torch.no_grad():
        assert torch.equal(run_batch(plain, tokens, layout), run_batch(fresh, tokens, layout))
    optimizer = Optimizer(fresh, Optimization())
    assert not any(isinstance(part, Muon) for part, _ in optimizer.parts)
    run_batch(fresh, tokens, layout).sum().backward()
    optimizer.step(0.5)
    states = sum(tensor.numel() for part, _ in optimizer.parts for s in part.state.values() for tensor in s.values())
    factors = sum(p.numel() for _, _, pair in adapted(fresh) for p in pair.parameters())
    assert states == 2 * factors + 2 * len([*adapted(fresh)])  # of each factor two moments, and a count of steps
    assert all(p.grad is None for n, p in fresh.named_parameters() if ".lora." not in n)


def test_dropout_acts_where_gradients_are_computed_alone(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model()
    folder = save_model(tmp_path / "model", model.backbone, model.tokenizer, torch.float32)
    backbone, _ = trained(folder, Lora(dropout=0.5))
    tokens, layout = torch.arange(30)[None], BatchLayout.causal(30)
    assert not torch.equal(run_batch(backbone, tokens, layout), run_batch(backbone, tokens, layout))
    with torch.no_grad():
        assert torch.equal(run_batch(backbone, tokens, layout), run_batch(backbone, tokens, layout))


RECIPE = replace(ADAPT, lora=Lora(rank=4, dropout=0.25, whole=("model.norm",)), steps=4)


def test_a_run_trains_an_adapter_and_ends_the_same_if_it_was_killed(corpus: Path, start: str, tmp_path: Path) -> None:
    one = Trainer(RECIPE, tmp_path / "one", corpus, start_from=start, quiet=True)
    assert one.run() == tmp_path / "one" / "adapter"
    run_until(2, Trainer(RECIPE, tmp_path / "two", corpus, start_from=start, quiet=True))
    two = Trainer(RECIPE, tmp_path / "two", corpus, resume=True, quiet=True)  # which finds its base by itself
    two.run()
    files = [tmp_path / name / "adapter" / lora.WEIGHTS for name in ("one", "two")]
    assert files[0].read_bytes() == files[1].read_bytes()
    base = dict(load_model(start)[0].named_parameters())
    learned = [name for name, weight in one.model.named_parameters() if weight.requires_grad]
    assert {name for name in learned if ".lora." not in name} == {"final_norm.weight"}
    assert all(torch.equal(one.model.get_parameter(n), w) for n, w in base.items() if n not in learned)
    held = torch.load(next((tmp_path / "one" / "checkpoints").glob("step-*")) / "tensors.pt")
    assert held["model"].keys() == held["average"].keys() == {*learned}
    values = json.loads((tmp_path / "one" / "adapter" / lora.CONFIG).read_text())
    assert (values["base_model_name_or_path"], values["modules_to_save"]) == (start, ["model.norm"])


def test_in_16_bits_only_what_is_trained_is_in_float32_and_the_text_is_the_same(
    corpus: Path, start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = replace(RECIPE, precision="bf16", steps=3, lora=Lora(rank=4, whole=("gate_proj", "up_proj")))
    made_run = Trainer(recipe, tmp_path / "run", corpus, start_from=start, quiet=True)
    kinds = {(w.requires_grad, w.ndim): w.dtype for w in made_run.model.parameters()}
    assert kinds == {(False, 2): torch.bfloat16, (False, 1): torch.float32, (True, 2): torch.float32}
    made_run.run()
    monkeypatch.setattr("daguerre.train.chosen.keep_frozen_in", lambda model, dtype: None)
    other = Trainer(recipe, tmp_path / "other", corpus, start_from=start, quiet=True)
    other.run()
    for name, value in other.trained.average.values.items():
        assert torch.equal(value, made_run.trained.average.values[name]), name


def test_the_recipe_lora_trains_an_adapter(corpus: Path, start: str, tmp_path: Path) -> None:
    settings = ["steps=1", "minutes=0.0", "stages.0.length=32", "eval_steps=0"]
    out = run_training("lora", start_from=start, data=corpus, overrides=settings, out=tmp_path / "run", quiet=True)
    assert json.loads((out / lora.CONFIG).read_text())["r"] == 16
    assert len(daguerre.load(start, adapter=out, backend="torch").generate("def ", 2).tokens) == 2


def test_a_run_goes_on_only_from_the_model_that_it_began_with(
    corpus: Path, start: str, make_model: MakeModel, tmp_path: Path
) -> None:
    other = make_model(seed=5, max_positions=64)
    folder = save_model(tmp_path / "other", other.backbone, other.tokenizer)
    run_until(1, Trainer(RECIPE, tmp_path / "run", corpus, start_from=start, quiet=True))
    with pytest.raises(CheckpointError, match="began with other weights than those of"):
        Trainer(RECIPE, tmp_path / "run", corpus, start_from=str(folder), resume=True, quiet=True)


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"targets": ("q_prjo",)}, "did you mean 'q_proj'"),
    ({"targets": ("embed_tokens",)}, "embed_tokens"),
    ({"whole": ("q_proj",)}, "lora.whole has model.layers.0.self_attn.q_proj, which is one matrix with others"),
    ({"whole": ("embed_tokens",)}, "lora.whole has the embedding, which is the projection, too"),
    ({"rank": 0}, "lora.rank must be at least 1, not 0"),
    ({"dropout": 1.0}, "lora.dropout must be at least 0 and below 1, not 1.0"),
    ({"targets": ()}, "lora.targets is empty"),
]


def test_what_an_adapter_cannot_be_is_refused(make_model: MakeModel, tmp_path: Path, subtests: pytest.Subtests) -> None:
    model = make_model()
    folder = save_model(tmp_path / "model", model.backbone, model.tokenizer)
    for options, message in IMPOSSIBLE:
        with subtests.test(message):
            backbone = load_folder(folder).backbone
            with pytest.raises(InputError, match=message):
                start_lora(backbone, Lora(**options), base_of(str(folder), backbone), seed=0)


def test_an_adapter_needs_a_model_and_no_second_answer(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="name the model with --from"):
        run(replace(RECIPE, model=SHAPE), tmp_path / "run", corpus)
    with pytest.raises(InputError, match=r"train and \[lora\] both say"):
        replace(RECIPE, train=("mlp",))


@pytest.mark.parametrize("name", ["qwen2", "sdar", "open dcoder"])
def test_answers_are_learned_by_an_adapter_of_a_published_model(name: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    source = published(name, tmp_path / "published")
    file = write_rows(tmp_path / "talks.jsonl", TALKS)
    settings = [*SHORT, "lora.rank=4", "optim.adamw_lr=0.05"]
    out = run_training(
        "sft", start_from=str(source), data=[file], overrides=settings, out=tmp_path / "run", device="cpu", quiet=True
    )
    assert out == tmp_path / "run" / "adapter"
    merged = daguerre.load(source, dtype="float32", adapter=out, backend="torch")
    assert merged.chat([{"role": "user", "content": "a?"}], 4).usage.completion_tokens <= 4
    tokens, seen = np.random.default_rng(0).integers(0, NUM_TOKENS - 1, ROWS), seen_by(merged.config)
    theirs = with_peft(peft, copy.deepcopy(made(name)), out)
    expected = logits_under(theirs, torch.from_numpy(tokens), seen)[:, :NUM_TOKENS]
    got = ours("torch", merged.backbone, tokens, seen)[:, :NUM_TOKENS]
    known = got.isfinite()
    assert (got - expected)[known].abs().max() < 1e-5 * expected.abs().max()
