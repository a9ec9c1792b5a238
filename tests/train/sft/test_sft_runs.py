"""Whole runs on prompts and answers: from scratch and from a model, killed and resumed, and what they say."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import daguerre
from answers import RECIPE, SHAPE, some_pairs, write_rows
from daguerre.errors import DaguerreError
from daguerre.model import Model
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.bpe import train_bpe
from daguerre.train.run import DATA, CopiedAnswers, run_training
from daguerre.train.sft.corpus import windows
from daguerre.train.sft.presets import Sft
from daguerre.train.sft.texts import Text
from daguerre.train.shards import write_shards
from daguerre.train.trainer import Trainer
from training_runs import rows, run_until

SHAPES = {
    "causal": SHAPE,
    "full": replace(SHAPE, context="full", shift=False),
    "full_shifted": replace(SHAPE, context="full"),
    "block": replace(SHAPE, context="block", shift=False, block_size=8),
}
SHORT = ["steps=4", "minutes=0", "precision=float32", "stages.0.length=64", "checkpoint_steps=1", "eval_steps=0"]


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "pairs.jsonl", some_pairs(40))


def files_of(path: Path, out: Path) -> CopiedAnswers:
    return CopiedAnswers([path], out / DATA, 64, 0.1)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("packing", [False, True])
def test_a_model_of_any_context_learns_answers_from_scratch_and_is_resumed(
    pairs: Path, tmp_path: Path, name: str, packing: bool
) -> None:
    """Stopped after two steps and resumed, it ends with the weights of a run that was not."""
    options = Sft(packing=packing, padding="unsupervised" if packing else None)
    stage = replace(RECIPE.stages[0], micro_batches=1)
    recipe = replace(RECIPE, model=SHAPES[name], sft=options, stages=(stage,), steps=4)
    Trainer(recipe, tmp_path / "whole", files_of(pairs, tmp_path / "whole"), quiet=True).run()
    out = tmp_path / "run"
    run_until(2, Trainer(recipe, out, files_of(pairs, out), quiet=True))
    assert [row["step"] for row in rows(out)] == ["1", "2"]
    Trainer(recipe, out, out / DATA, resume=True, quiet=True).run()
    weights = "model/model.safetensors"
    assert (out / weights).read_bytes() == (tmp_path / "whole" / weights).read_bytes()
    log = rows(out)
    assert len(log) == 4
    assert [float(row["loss"]) for row in log] == [float(row["loss"]) for row in rows(tmp_path / "whole")]
    model = daguerre.load(out / "model")
    assert model.config.context == SHAPES[name].context
    assert model.generate("name -> ", 4, min_tokens=4).usage.completion_tokens == 4
    held = rows(tmp_path / "whole", "held.csv")
    assert [row["step"] for row in held] == ["3", "4"]
    assert (held[0]["clean_bpb"] != "nan") == (name == "causal")


def test_an_answer_that_the_prompt_decides_is_learned(tmp_path: Path) -> None:
    """A run from scratch with a small vocabulary of its own learns which of two words follows."""
    letters = train_bpe(["ab " * 50], 272, exact=False)
    letters.save(tmp_path / "tokenizer.json")
    rule = [{"prompt": f"{a}{b}=", "completion": f"{b}{a}"} for a in "abcdefgh" for b in "abcdefgh"]
    file = write_rows(tmp_path / "rule.jsonl", rule)
    for context in ("causal", "full"):
        shape = replace(SHAPES[context], num_layers=2, max_positions=16)
        recipe = replace(
            RECIPE,
            model=shape,
            tokenizer=str(tmp_path / "tokenizer.json"),
            sft=Sft(preset="ar" if context == "causal" else "auto", held_out=0.01),
            stages=(replace(RECIPE.stages[0], length=16, sequences=32, micro_batches=1),),
            steps=120,
            eval_steps=0,
            checkpoint_steps=0,
        )
        out = tmp_path / context
        made = Trainer(recipe, out, CopiedAnswers([file], out / DATA, 16, 0.01), quiet=True)
        model = daguerre.load(made.run(), backend="torch")
        said = [model.generate(row["prompt"], 3, heal=False).text for row in rule[:24]]
        right = sum(text == row["completion"] for text, row in zip(said, rule[:24], strict=True))
        assert right >= 20, (context, said)


def test_a_run_from_a_model_says_what_it_read_and_what_it_brought(
    start: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_rows(tmp_path / "rows.jsonl", [*some_pairs(30), {"txt": "x"}, 7])
    out = tmp_path / "run"
    run_training("sft", start_from=start, data=[file], out=out, overrides=SHORT, device="cpu")
    said = capsys.readouterr().err
    assert "30 rows: " in said
    assert "texts held out; left out: 1 since its keys (txt) are none of" in said
    assert "(rows.jsonl:31)" in said and "(rows.jsonl:32)" in said
    assert "held-out text, next-token: " in said
    assert json.loads((out / DATA / "rows.json").read_text())["rows"] == 30


def test_a_run_goes_on_with_its_own_data_and_with_no_other(start: str, pairs: Path, tmp_path: Path) -> None:
    out, whole = tmp_path / "run", tmp_path / "whole"
    how: dict[str, Any] = {"device": "cpu", "quiet": True}
    for folder, steps in ((out, 2), (whole, 4)):
        few = [*SHORT, f"steps={steps}", "optim.warmup=0", "optim.decay=0"]
        run_training("sft", start_from=start, data=[pairs], out=folder, overrides=few, **how)
    other = write_rows(tmp_path / "other.jsonl", some_pairs(20, seed=1))
    with pytest.raises(DaguerreError, match="has not been trained on"):
        run_training("sft", resume=True, data=[other], out=out, overrides=SHORT, **how)
    longer = [*SHORT, "optim.warmup=0", "optim.decay=0"]
    run_training("sft", resume=True, out=out, data=[pairs], overrides=longer, **how)
    run_training(None, resume=True, out=out, **how)  # it is at its end, and the recipe is that of the run
    weights = "model/model.safetensors"
    assert (out / weights).read_bytes() == (whole / weights).read_bytes()


def test_what_is_wrong_with_the_data_is_one_line_before_anything_is_written(
    start: str, pairs: Path, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    write_shards(tmp_path / "text", {"train": ["x = 1\n"], "val": []}, tokenizer)
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    bad = write_rows(tmp_path / "bad.jsonl", [{"a": 1}, {"prompt": "a", "completion": ""}])
    usual: dict[str, Any] = {"start_from": start, "overrides": SHORT, "device": "cpu", "quiet": True}
    wrong: list[tuple[list[Path], str]] = [
        ([], "say what to train on: --data FILES of prompts and answers"),
        ([tmp_path / "none.jsonl"], "there is no file"),
        ([tmp_path / "empty"], "has no file of prompts and answers"),
        ([tmp_path / "notes.txt"], "by its name"),
        ([tmp_path / "text"], "is plain text, and recipe 'sft' trains answers"),
        (
            [bad],
            r"no row of bad.jsonl can be trained on: 1 since its keys \(a\).*\(bad.jsonl:1\); 1 since its completion",
        ),
    ]
    for data, message in wrong:
        with pytest.raises(DaguerreError, match=message) as caught:
            run_training("sft", data=data, out=tmp_path / "run", **usual)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "run").exists()
    run_training("sft", data=[pairs], out=tmp_path / "run", **usual)
    with pytest.raises(
        DaguerreError, match="holds prompts, or prompts and answers: train on it with the recipe for them"
    ):
        run_training("adapt", data=tmp_path / "run" / DATA, out=tmp_path / "other", **usual)
    with pytest.raises(DaguerreError, match=f"which the recipe sft trains on: daguerre train sft .*--data {pairs}"):
        run_training("lora", data=pairs, out=tmp_path / "other", **usual)
    with pytest.raises(DaguerreError, match="several --data are for prompts and answers"):
        run_training("adapt", data=[tmp_path, tmp_path], out=tmp_path / "other", **usual)


def test_a_long_text_becomes_windows_and_each_token_of_an_answer_is_learned_once() -> None:
    rng = np.random.default_rng(0)
    for num, longest in ((64, 64), (65, 64), (200, 64), (1000, 48), (30, 8)):
        text = Text(rng.integers(0, 99, num), rng.random(num) < 0.5)
        parts, learned = windows(text, longest), np.zeros(num, dtype=int)
        assert all(len(part.tokens) <= longest and (num <= longest or part.answer.any()) for part in parts)
        for part in parts:
            (start,) = [at for at in range(num) if np.array_equal(text.tokens[at : at + len(part.tokens)], part.tokens)]
            learned[start : start + len(part.tokens)] += part.answer
        assert np.array_equal(learned, text.answer)
    asked = Text(np.arange(100), np.arange(100) >= 90)
    assert len(windows(asked, 32)) == 1, "windows without an answer are left out"


def test_a_recipe_of_answers_has_no_mixture_and_others_have_no_blocks() -> None:
    for changes, message in (
        ({"draft_head": 8}, "sft does not read draft_head"),
        ({"sft": None}, "shares of a mixture"),
        (
            {"sft": None, "stages": (replace(RECIPE.stages[0], block_size=4),)},
            "mixture does not read stages.0.block_size",
        ),
        (
            {"sft": None, "stages": (replace(RECIPE.stages[0], corruption="edit"),)},
            "mixture does not read stages.0.corruption",
        ),
    ):
        with pytest.raises(DaguerreError, match=message):
            replace(RECIPE, **changes)  # type: ignore[arg-type]


def test_a_model_that_cannot_learn_answers_is_refused_before_anything_is_written(
    make_model: Callable[..., Model], pairs: Path, tmp_path: Path
) -> None:
    from daguerre.models.loading import save_model

    model = make_model(context="reordered", shift=False)
    folder = save_model(tmp_path / "model", model.backbone, model.tokenizer)
    with pytest.raises(DaguerreError, match="reordered context"):
        run_training("sft", start_from=str(folder), data=[pairs], out=tmp_path / "run", overrides=SHORT, device="cpu")
    assert not (tmp_path / "run").exists()
    assert torch.get_num_threads() == 1
