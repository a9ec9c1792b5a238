"""The adapter to lm-evaluation-harness: its three kinds of requests, and a task of two examples through its command."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from daguerre.errors import InputError, MissingExtra, UnsupportedError
from daguerre.evals.lm_eval import HarnessAnswers, HarnessOptions, adapter, main, windows
from daguerre.model import Model, load
from daguerre.scoring.likelihood import score_tokens
from daguerre.scoring.windows import nll

CONTEXT = "import os\n\ndef size(path):\n    return"
LINE = " os.stat(path).st_size\n"


def answers(model: Model, decoding: dict[str, Any] | None = None, **options: object) -> HarnessAnswers:
    return HarnessAnswers(HarnessOptions(model=model, **options), decoding)  # type: ignore[arg-type]


def test_a_likelihood_of_a_causal_model_is_exact(causal: Model) -> None:
    whole, before = (nll(causal.denoiser.backend, causal.tokenizer, text) for text in (CONTEXT + LINE, CONTEXT))
    value, _ = answers(causal).continuation(CONTEXT, LINE)

    assert value == pytest.approx(-(whole.value - before.value), abs=1e-3)
    assert answers(causal).continuation("", LINE)[0] == pytest.approx(-causal.nll(LINE).value, abs=1e-3)
    assert answers(causal).continuation(CONTEXT, "") == (0.0, True)
    assert answers(causal).likelihood == "exact"


def test_a_token_over_the_border_is_scored_whole(causal: Model) -> None:
    encode = causal.tokenizer.encode
    before, whole = encode("def retur"), encode("def return")
    common = next(i for i, (a, b) in enumerate(zip(before, whole, strict=False)) if a != b)
    assert common < len(whole) < len(before) + len(encode("n"))

    value, _ = answers(causal).continuation("def retur", "n")

    tokens = [causal.tokenizer.bos_id, *whole]
    assert value == pytest.approx(-score_tokens(causal.denoiser.backend, tokens, given=common + 1).value, abs=1e-3)


def test_greedy_is_what_the_autoregressive_mode_writes(causal: Model) -> None:
    for prompt in (CONTEXT, "x = 1\n", "class A:\n"):
        ids = causal.tokenizer.encode(prompt)
        written = causal.generate(ids, 3, mode="ar", heal=False, min_tokens=3)
        greedy = [*ids, *(token.id for token in written.tokens)]
        other = [*greedy[:-1], greedy[-1] % 2000 + 16]

        assert answers(causal)._scored(greedy, len(ids))[1]
        assert not answers(causal)._scored(other, len(ids))[1]


@pytest.mark.parametrize("name", ["full", "block", "causal_unshifted"])
def test_other_models_answer_with_a_bound_of_the_continuation_alone(name: str, models: dict[str, Model]) -> None:
    model = models[name]
    subject = answers(model, samples=6, seed=3)
    ids = [model.tokenizer.bos_id, *model.tokenizer.encode(CONTEXT + LINE)]
    given = len(model.tokenizer.encode(CONTEXT)) + 1

    value, greedy = subject.continuation(CONTEXT, LINE)

    score = score_tokens(model.denoiser.backend, ids, given=given, kind="elbo", samples=6, seed=3)
    assert value == pytest.approx(-score.value)
    assert not greedy
    assert "6 draws" in subject.likelihood
    assert subject.continuation(CONTEXT, LINE) == (value, greedy)


def test_a_bound_says_whether_default_decoding_writes_the_answer(models: dict[str, Model]) -> None:
    model = models["full"]
    ids = model.tokenizer.encode(CONTEXT)
    written = model.generate(ids, 4, heal=False, min_tokens=4)

    greedy = [*ids, *(token.id for token in written.tokens)]

    assert answers(model, samples=2)._scored(greedy, len(ids))[1]


def test_kind_and_layout_can_be_chosen(causal: Model) -> None:
    given = len(causal.tokenizer.encode(CONTEXT)) + 1
    ids = [causal.tokenizer.bos_id, *causal.tokenizer.encode(CONTEXT + LINE)]
    for options in ({"kind": "chain", "layout": 4}, {"kind": "elbo", "layout": "full"}):
        score = score_tokens(causal.denoiser.backend, ids, given=given, samples=32, **options)  # type: ignore[arg-type]
        assert answers(causal, **options).continuation(CONTEXT, LINE)[0] == pytest.approx(-score.value)


def test_a_long_text_is_scored_in_windows_that_cover_it_once(causal: Model) -> None:
    text = "".join(f"value_{i} = {i}\n" for i in range(120))
    ids = causal.tokenizer.encode(text)
    parts = list(windows(ids, 255))

    assert len(ids) > 2 * 255
    assert [token for part, given in parts for token in part[given:]] == ids
    assert all(len(part) == 255 for part, _ in parts)
    assert parts[-1][1] > 0
    total = sum(
        score_tokens(causal.denoiser.backend, [causal.tokenizer.bos_id, *part], given=given + 1).value
        for part, given in parts
    )
    assert answers(causal).whole(text) == pytest.approx(-total)
    assert answers(causal).whole("x = 1\n") == pytest.approx(-causal.nll("x = 1\n").value)
    assert answers(causal).whole("") == 0


def test_what_does_not_fit_loses_its_beginning_and_that_is_logged(
    causal: Model, caplog: pytest.LogCaptureFixture
) -> None:
    text = "".join(f"value_{i} = {i}\n" for i in range(120))
    subject = answers(causal)

    with caplog.at_level(logging.WARNING):
        value, _ = subject.continuation(text, "x")

    ids = [causal.tokenizer.bos_id, *causal.tokenizer.encode(text + "x")[-255:]]
    assert value == pytest.approx(-score_tokens(causal.denoiser.backend, ids, given=255).value, abs=1e-4)
    assert "loses its first" in caplog.text
    assert subject.generate(text, {"max_gen_toks": 4}) != ""
    with pytest.raises(InputError, match="does not fit"):
        subject.continuation("", text)
    with pytest.raises(InputError, match="no room"):
        subject.generate(text, {"max_gen_toks": 255})


def test_generation_follows_the_arguments_of_the_task_and_the_options_of_the_model(causal: Model) -> None:
    subject = answers(causal, {"mode": "block", "block_size": 4, "seed": 5})
    free = causal.generate(CONTEXT, 12, mode="block", block_size=4)

    assert subject.generate(CONTEXT, {"max_gen_toks": 12, "do_sample": False, "temperature": 1.0}) == free.text
    assert subject.generate(CONTEXT, {"until": None, "max_gen_toks": 12}) == free.text
    stop = free.text[2:4]
    assert subject.generate(CONTEXT, {"until": [stop], "max_gen_toks": 12}) == free.text[: free.text.find(stop)]
    drawn = causal.generate(CONTEXT, 12, mode="block", block_size=4, temperature=1.0, seed=5).text
    assert subject.generate(CONTEXT, {"do_sample": True, "max_gen_toks": 12}) == drawn != free.text
    with pytest.raises(InputError, match="did you mean 'top_k'"):
        subject.generate(CONTEXT, {"topk": 3})


def test_what_cannot_be_honored_is_an_error(models: dict[str, Model]) -> None:
    with pytest.raises(UnsupportedError, match="no autoregressive likelihood"):
        answers(models["full"], kind="ar")
    with pytest.raises(UnsupportedError, match='mode "ar" needs'):
        answers(models["full"], {"mode": "ar"})
    with pytest.raises(InputError, match="did you mean 'mode'"):
        HarnessAnswers.of({"model": models["full"], "modee": "ar"})


def test_model_arguments_are_options_and_fields_of_decode(causal: Model) -> None:
    made = HarnessAnswers.of({"model": causal, "device": "cuda:0", "seed": 5, "mode": "block", "block_size": 4})

    assert made.decoding == {"mode": "block", "block_size": 4, "seed": 5}
    assert made.options.device == ("cuda:0" if torch.cuda.is_available() else "cpu")


def test_the_adapter_refuses_batches_and_unknown_arguments(causal: Model) -> None:
    pytest.importorskip("lm_eval")
    made = adapter()
    with pytest.raises(UnsupportedError, match="batch"):
        made(batch_size="auto", model=causal)
    with pytest.raises(InputError, match="did you mean 'mode'"):
        made(modee="ar")


@pytest.mark.slow
def test_a_toy_task_runs_through_the_command(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    write_toy_task(tmp_path)
    command = "-m daguerre.evals.lm_eval run --model daguerre --include_path . --output_path out --tasks"
    arguments = ["toy_choice,toy_text", "--model_args", "model=default,mode=block,block_size=4"]
    env = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

    done = subprocess.run(
        [sys.executable, *command.split(), *arguments],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "out").rglob("results_*.json")
    report = json.loads(path.read_text())
    assert report["config"]["likelihood"] == "exact"
    assert report["results"]["toy_choice"]["acc,none"] == 1.0
    model = load()
    nats = sum(model.nll(example["prompt"]).value for example in EXAMPLES)
    bits = nats / np.log(2) / sum(len(example["prompt"]) for example in EXAMPLES)
    assert report["results"]["toy_text"]["bits_per_byte,none"] == pytest.approx(bits, rel=1e-4)


def test_a_mistake_is_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise MissingExtra("lm-eval", "eval")

    monkeypatch.setattr("daguerre.evals.lm_eval.register", fails)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "daguerre: lm-eval is not installed: run `pip install 'daguerre[eval]'`\n"


EXAMPLES = [
    {"prompt": "import os\nimport ", "choices": ["sys", "qqq"], "answer": 0},
    {"prompt": "def add(a, b):\n    return a + ", "choices": ["b", "%"], "answer": 0},
]


def write_toy_task(folder: Path) -> None:
    """Two tasks over one file, as the harness reads them; JSON is YAML."""
    data = folder / "toy.jsonl"
    data.write_text("".join(json.dumps(example) + "\n" for example in EXAMPLES))
    shared = {
        "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}, "test_split": "test",
        "target_delimiter": "",
    }  # fmt: skip
    choice = {
        "task": "toy_choice", "output_type": "multiple_choice", "doc_to_text": "{{prompt}}",
        "doc_to_choice": "{{choices}}", "doc_to_target": "{{answer}}", "metric_list": [{"metric": "acc"}],
    }  # fmt: skip
    text = {
        "task": "toy_text", "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{prompt}}",
        "metric_list": [{"metric": "bits_per_byte"}],
    }  # fmt: skip
    for task in (choice, text):
        (folder / f"{task['task']}.yaml").write_text(json.dumps(shared | task))
