"""A published GGUF file is trained on, and what comes of it is read by llama.cpp."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import daguerre
from daguerre.models.gguf.adapter import write_adapter
from daguerre.models.gguf.writing import write_gguf
from daguerre.models.loading import load_folder, open_source, weights_hash
from daguerre.scoring.likelihood import score_tokens
from daguerre.train.run import run_training
from real.conftest import FULL
from real.files import bring, bring_llama_cpp
from real.prompts import odd_strings

pytestmark = pytest.mark.skipif(not FULL, reason="make real runs it")
ROWS = [{"prompt": f"What is {a} plus {b}?", "completion": f"{a} + {b} = {a + b}"} for a in range(8) for b in range(8)]
SETTINGS = ["steps=20", "minutes=0", "optim.adamw_lr=0.001", "stages.0.length=64", "stages.0.sequences=2"]
SETTINGS += ["stages.0.micro_batches=1", "eval_steps=0", "checkpoint_steps=20", "precision=float32"]


def llama_cpp(model: Path, texts: list[str], prompt: list[int], num: int, adapter: Path | None = None) -> Any:
    """Its ids of the texts, and the likeliest tokens after a prompt."""
    asked = {"model": str(model), "texts": texts, "prompts": [prompt], "num": num, "packages": str(bring_llama_cpp())}
    asked |= {} if adapter is None else {"adapter": str(adapter)}
    script = Path(__file__).parent / "llama.mjs"
    done = subprocess.run(["node", script], input=json.dumps(asked), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_a_file_is_trained_on_and_llama_cpp_reads_the_adapter_and_the_model(tmp_path: Path) -> None:
    path, data = bring("smollm2"), tmp_path / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, ROWS[:60])))
    given: dict[str, Any] = {"start_from": str(path), "data": [data], "quiet": True}
    adapter = run_training("sft", overrides=[*SETTINGS, "lora.rank=4"], out=tmp_path / "run", **given)
    assert json.loads((adapter / "training.json").read_text())["base_sha256"] == weights_hash(path)
    plain, tuned = daguerre.load(path, dtype="float32"), daguerre.load(path, adapter=adapter, dtype="float32")
    prompt = tuned.chat_prompt([{"role": "user", "content": "What is 3 plus 9?"}])
    text, num = [*prompt, *tuned.tokenizer.encode("3 + 9 = 12", begins=False)], len(prompt)
    models = (plain, tuned)
    before, after = (score_tokens(m.denoiser.backend, text, kind="ar", given=num).value for m in models)
    assert after < 0.8 * before, "twenty steps teach how such answers begin"

    def written(model: daguerre.Model) -> list[int]:
        return [token.id for token in model.generate(prompt, 16, mode="ar", heal=False).tokens]

    ours = written(tuned)
    own, merged = tmp_path / "own.gguf", tmp_path / "merged.gguf"
    for out, loaded in ((own, load_folder(path)), (merged, load_folder(path, adapter=adapter))):
        write_gguf(loaded.backbone, loaded.tokenizer, out, "f32", loaded.family)
    factors = tmp_path / "adapter.gguf"
    source = open_source(path)
    config, published = source.config(), source.names()
    assert write_adapter(config, published, adapter, factors) > 0
    again = daguerre.load(merged, dtype="float32")
    texts = [text for text in odd_strings(1000) if "\x00" not in text]
    ids = [tuned.tokenizer.encode(text) for text in texts]
    assert written(again) == ours and [again.tokenizer.encode(text) for text in texts] == ids
    assert again.tokenizer.chat_template.sources == tuned.tokenizer.chat_template.sources
    assert again.config.ends == tuned.config.ends
    found = llama_cpp(merged, texts, prompt, 16)
    assert found["ids"] == ids and found["written"][0]["tokens"] == ours
    assert llama_cpp(own, [], prompt, 16, factors)["written"][0]["tokens"] == ours


def test_a_whole_model_is_trained_and_converted_from_a_file_and_an_adapter_prefers(tmp_path: Path) -> None:
    path, data = bring("smollm2"), tmp_path / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, ROWS[:60])))
    given: dict[str, Any] = {"start_from": str(path), "data": [data], "quiet": True}
    settings = [*SETTINGS, "steps=1", "optim.muon_lr=0.0001", "checkpoint_steps=0", "checkpoint_minutes=60"]
    trained = run_training("sft", overrides=settings, out=tmp_path / "sft", **given)
    first, second = daguerre.load(path), daguerre.load(trained)
    assert second.config.ends == first.config.ends and second.family == first.family
    question = [{"role": "user", "content": "Hi"}]
    assert second.chat_prompt(question) == first.chat_prompt(question)
    converted = run_training("convert", overrides=settings, out=tmp_path / "convert", **given)
    model = daguerre.load(converted)
    assert model.config.context == "full" and model.config.mask_id == first.config.vocab_size
    assert len(model.generate("x", 4, min_tokens=4, heal=False).tokens) == 4
    pairs = [{"prompt": one["prompt"], "chosen": one["completion"], "rejected": "No."} for one in ROWS[:12]]
    data.write_text("\n".join(map(json.dumps, pairs)))
    adapter = run_training("prefer", overrides=[*settings, "lora.rank=4"], out=tmp_path / "prefer", **given)
    assert json.loads((adapter / "training.json").read_text())["base_sha256"] == weights_hash(path)
    assert daguerre.load(path, adapter=adapter).chat_prompt(question) == first.chat_prompt(question)
