"""Published chat models that learn to fill masks from what they were: runs, their resumption, and what comes out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import daguerre
from answers import write_rows
from daguerre.errors import CheckpointError, InputError, UnsupportedError
from daguerre.models.core.batched import BatchLayout, run_batch
from daguerre.models.loading import load_folder, load_model
from daguerre.train.recipe import load_recipe
from daguerre.train.run import DATA, CopiedAnswers
from daguerre.train.trainer import Trainer
from published import CASES, NUM_TOKENS, made
from training_runs import run_until

transformers = pytest.importorskip("transformers")
STAGES = (
    "stages=["
    + ",".join(
        f"{{until={until},length=48,sequences=2,micro_batches=2,block_size={size}}}"
        for until, size in ((0.5, 1), (1.0, 4))
    )
    + "]"
)
SHORT = ["steps=4", "minutes=0", "precision=float32", "checkpoint_steps=2", "eval_steps=2", STAGES]
FACTORS = ["lora.rank=2", "optim.adamw_lr=0.05"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return CASES["llama"].write(tmp_path / "published", made("llama"))


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    """Token ids, as a model that answers itself writes them."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(4, 14, (30, 2)).tolist()
    rows = [{"prompt": rng.integers(8, NUM_TOKENS, a).tolist(), "new": rng.integers(8, NUM_TOKENS, b).tolist()}
            for a, b in sizes]  # fmt: skip
    return write_rows(tmp_path / "texts.jsonl", rows)


def trainer(out: Path, source: Path, answers: Path, *more: str) -> Trainer:
    data = CopiedAnswers([answers], out / DATA, 48, 0.2)
    return Trainer(load_recipe("convert-chat", [*SHORT, *more]), out, data, start_from=str(source), quiet=True)


@pytest.mark.parametrize("more", [[], FACTORS, ["convert.to=sdar", "sft.gaps=0"]])
def test_a_run_with_a_teacher_that_is_resumed_ends_as_one_that_was_not_stopped(
    tmp_path: Path, source: Path, answers: Path, more: list[str]
) -> None:
    trainer(tmp_path / "whole", source, answers, *more).run()
    run_until(2, trainer(tmp_path / "run", source, answers, *more))
    recipe = load_recipe("convert-chat", [*SHORT, *more])
    Trainer(recipe, tmp_path / "run", tmp_path / "run" / DATA, resume=True, quiet=True).run()
    weights = "model/model.safetensors"
    assert (tmp_path / "run" / weights).read_bytes() == (tmp_path / "whole" / weights).read_bytes()
    held = (tmp_path / "run" / "held.csv").read_text().splitlines()
    names, *rows = [line.split(",") for line in held]
    assert {"kl", "kl_next"} <= {*names} and len(rows) == 3


def test_at_first_it_is_its_teacher_and_then_it_fills_masks(tmp_path: Path, source: Path, answers: Path) -> None:
    """A block of one masked token is what the teacher predicts, so nothing is to learn; the text from left to right
    stays that of the teacher while the rest is learned.
    """
    run = trainer(tmp_path / "run", source, answers, "sft.gaps=0")
    batch = run.method.batches.draw(0, run.recipe.stages[0])
    report = run.method.report(batch, 0.0, 0, run.recipe.stages[0])
    assert report.parts["kl"] == pytest.approx(0.0, abs=0.02) and report.parts["kl_next"] == pytest.approx(
        0.0, abs=0.02
    )
    folder = run.run()
    before, after = load_model(source)[0], load_folder(folder)
    assert after.family == "llama" and after.backbone.config == run.model.config
    assert (after.backbone.config.mask_id, after.backbone.config.null_id) != (None, None)
    ids, rows = torch.arange(8, 24)[None], BatchLayout.causal(16)
    with torch.no_grad():
        laws = [one.logits(run_batch(one, ids, rows)).log_softmax(-1) for one in (before, after.backbone)]
    away = laws[0].exp() * (laws[0] - laws[1]).nan_to_num()
    assert float(away.sum(-1).mean()) < 0.2
    theirs = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():  # who does not know of masks reads an autoregressive model
        logits = theirs(ids).logits[0].index_fill(-1, after.backbone.never, float("-inf"))
    assert torch.allclose(logits.log_softmax(-1), laws[1][0], atol=1e-3)
    model = daguerre.load(folder, dtype="float32", backend="torch")
    for mode, options in (("ar", {}), ("speculative", {}), ("block", {"block_size": 4, "threshold": 0.5})):
        assert model.generate("ab", 6, min_tokens=6, mode=mode, **options).usage.completion_tokens == 6
    assert model.infill("ab", "cd", max_tokens=4).usage.forwards > 0


def test_what_no_teacher_reads_is_refused(tmp_path: Path, source: Path, answers: Path) -> None:
    wrong: list[tuple[list[str], type[Exception], str]] = [
        (
            ["convert.to=diffullama", "sft.gaps=0"],
            UnsupportedError,
            "the clean text beside the masks",
        ),
        (["sft.padding=supervised"], InputError, "supervised padding"),
        (["convert.to=sdar"], InputError, "sft.gaps are for causal context"),
        (["sft.keep=1.0"], InputError, "sft.keep"),
    ]
    for more, kind, message in wrong:
        with pytest.raises(kind, match=message):
            trainer(tmp_path / "run", source, answers, *more)
    other = CASES["qwen2"].write(tmp_path / "other", made("qwen2"))
    run_until(2, trainer(tmp_path / "run", source, answers))
    data, recipe = tmp_path / "run" / DATA, load_recipe("convert-chat", [*SHORT, f"teacher.model={other}"])
    with pytest.raises(CheckpointError, match="had another teacher"):
        Trainer(recipe, tmp_path / "run", data, resume=True, quiet=True)
