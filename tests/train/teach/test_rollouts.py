"""What a student writes to learn from: the engine's answers, a state of each block, and runs on them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from answers import STAGE, batches_of, corpus_of, some_pairs, write_rows
from daguerre.errors import InputError, UnsupportedError
from daguerre.model import Model
from daguerre.train.curves import draw_curves
from daguerre.train.noising import IGNORE
from daguerre.train.recipe import load_recipe
from daguerre.train.repetition import repeated
from daguerre.train.run import DATA, CopiedAnswers
from daguerre.train.teach.batches import RolledBatches
from daguerre.train.teach.options import Rollouts
from daguerre.train.teach.rollouts import Rolled, Student, states_of
from daguerre.train.trainer import Trainer
from training_runs import run_until

CONTEXTS: dict[str, dict[str, Any]] = {"causal": {}, "block": {"context": "block", "shift": False, "block_size": 4}}


def rolled(model: Model, folder: Path, **options: Any) -> RolledBatches:
    answers = batches_of(corpus_of(some_pairs(12), folder, model), model, padding="unsupervised")
    student = Student(model.backbone, model.tokenizer, Rollouts(**options), nullcontext)
    return RolledBatches(student, answers)


@pytest.mark.parametrize("name", CONTEXTS)
def test_answers_are_those_of_the_model_and_states_those_of_their_decoding(
    make_model: Callable[..., Model], tmp_path: Path, name: str
) -> None:
    model = make_model(num_layers=1, **CONTEXTS[name])
    made = rolled(model, tmp_path, threshold=0.3, temperature=0.0)
    prompts = made.prompts(0, 6, 12)
    texts = made.student.write(prompts, 12, 4, seed=7)
    seen, first = set[int](), len(model.config.first)
    for prompt, one in zip(prompts, texts, strict=True):
        how: dict[str, Any] = {"mode": "block", "block_size": 4, "policy": "threshold", "threshold": 0.3}
        result = model.generate(prompt[first:].tolist(), 12, heal=False, stop_loops=False, **how)
        answer = [token for token in one.tokens[one.first : one.last].tolist() if token not in model.config.ends]
        assert model.tokenizer.decode(answer) == result.text
        assert one.tokens[: one.first].tolist() == prompt.tolist()
        assert one.forwards <= result.usage.forwards
        for seed in range(4):
            state = states_of(one, replace(model.config, block_size=4), 4, np.random.default_rng(seed))
            for span, masked in zip(state.spans, state.masks, strict=True):
                steps = one.steps[span.start : span.end]
                step = steps[masked].min()
                assert (masked == (span.free & (steps >= step))).all()
                hidden = (steps >= step) | (steps < 0)
                given = hidden & ~span.free & (np.arange(span.start, span.end) >= one.first)
                assert (state.text.tokens[span.start : span.end][given] == model.config.placeholder).all()
                seen.add(int(masked.sum()))
            assert sum(int(span.free.sum()) for span in state.spans) == one.last - one.first
    assert len(seen) > 1


def test_an_end_of_text_and_what_is_behind_it_are_not_learned(make_model: Callable[..., Model], tmp_path: Path) -> None:
    model = make_model(num_layers=1)
    mask, end = model.config.placeholder, model.config.eos_id
    tokens = np.array([1, 40, 41, 42, 43, 44, 45, end, mask, mask])
    one = Rolled(tokens, 3, 7, np.array([-1, -1, -1, 0, 0, 1, 2, 3, -1, -1]))
    batch = rolled(model, tmp_path).batch_of([one], replace(STAGE, block_size=4), np.random.default_rng(0))
    noisy = batch.layout.rows.span[0] >= 0
    assert end not in batch.target[0][noisy].tolist() and mask not in batch.target[0].tolist()
    learned = {*batch.target[0][noisy].tolist()} - {IGNORE}
    assert learned and learned <= {42, 43, 44, 45}
    assert one.forwards == 4


def test_runs_on_own_answers_resume_as_if_they_had_not_stopped(
    make_model: Callable[..., Model], start: str, tmp_path: Path
) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", some_pairs(20))
    stages = ",".join(
        f"{{until={until},length=48,sequences=2,micro_batches=2,block_size={size},answer={num}}}"
        for until, size, num in ((0.8, 2, 6), (1.0, 4, 9))
    )
    more = ["steps=5", "minutes=0", "precision=float32", "checkpoint_steps=1", "eval_steps=5", f"stages=[{stages}]"]
    recipe = load_recipe("convert-policy", [*more, f"teacher.model={start}", "optim.adamw_lr=0.01"])
    for out in (tmp_path / "whole", tmp_path / "run"):
        data = CopiedAnswers([rows], out / DATA, 48, 0.2)
        trainer = Trainer(recipe, out, data, start_from=start, quiet=True)
        if out.name == "whole":
            trainer.run()
        else:  # between two steps on the same answers
            run_until(3, trainer)
            Trainer(recipe, out, out / DATA, resume=True, quiet=True).run()
    weights = "model/model.safetensors"
    assert (tmp_path / "run" / weights).read_bytes() == (tmp_path / "whole" / weights).read_bytes()
    names, *lines = ((tmp_path / "run" / "log.csv").read_text()).splitlines()
    assert {"kl", "kl_next", "tokens_per_forward", "repetition", "answer_length"} <= {*names.split(",")}
    lengths = [float(line.split(",")[names.split(",").index("answer_length")]) for line in lines]
    assert len(lengths) == 5 and max(lengths) > lengths[0]
    assert draw_curves(tmp_path / "run").stat().st_size > 10_000


def test_a_stage_that_asks_for_more_has_answers_of_its_own(make_model: Callable[..., Model], tmp_path: Path) -> None:
    made = rolled(make_model(num_layers=1), tmp_path, updates=2)
    first = replace(STAGE, sequences=2, micro_batches=2, block_size=2, answer=6)
    later = replace(first, sequences=4, micro_batches=4, block_size=4, answer=9)
    assert [len(made.draw(index, first).tokens) for index in range(4)] == [2] * 4
    kept = made.written
    made.draw(3, first)
    assert made.written is kept
    assert [len(made.draw(index, later).tokens) for index in (4, 5, 6, 7)] == [4] * 4
    assert made.written is not None and len(made.written[1]) == 16


def test_what_cannot_roll_out_is_refused(start: str, tmp_path: Path) -> None:
    data = CopiedAnswers([write_rows(tmp_path / "rows.jsonl", some_pairs(20))], tmp_path / "run" / DATA, 48, 0.2)
    recipe = load_recipe(
        "convert-policy", ["sft.preset=ar", f"teacher.model={start}", *(f"stages.{i}.length=48" for i in range(3))]
    )
    with pytest.raises(UnsupportedError, match="convert this one first"):
        Trainer(recipe, tmp_path / "run", data, start_from=start, quiet=True)
    alone = load_recipe("convert-policy", [f"stages.{i}.length=48" for i in range(3)])
    with pytest.raises(InputError, match=r"need teacher\.model"):
        Trainer(alone, tmp_path / "alone", data, start_from=start, quiet=True)
    with pytest.raises(InputError, match=r"needs \[teacher\]"):
        replace(load_recipe("convert-policy"), teacher=None)


def test_runs_of_four_that_come_twice_are_repetition() -> None:
    assert repeated([1, 2, 3]) == 0.0
    assert repeated([1, 2, 3, 4, 5, 1, 2, 3, 4]) == pytest.approx(2 / 6)
    assert repeated("a b c d a b c d a b c d".split()) == 1.0
