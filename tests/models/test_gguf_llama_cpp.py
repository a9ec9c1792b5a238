"""llama.cpp reads what is written: the same logits, the same greedy tokens, the same ids of texts. Skipped where
llama-cpp-python is not installed (`make bench` installs it).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import daguerre
from conftest import MakeModel
from daguerre.models.gguf.writing import write_gguf
from daguerre.models.loading import load_folder
from llama_cpp_runs import LlamaCpp
from made_tokenizers import made
from models.test_gguf import TEXTS, WRITTEN, of_tokenizer
from published import CASES, ROWS, ours, seen_by

pytest.importorskip("gguf")
pytest.importorskip("llama_cpp")
IN_BLOCKS = ("stable diffcoder", "fast dllm", "a2d, blocks", "sdar", "sdar, named blocks")
"""llama.cpp has no block context."""


@pytest.mark.parametrize("case", [case for case in WRITTEN if case not in IN_BLOCKS])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_llama_cpp_computes_the_same_logits(case: str, dtype: str, tmp_path: Path) -> None:
    loaded = load_folder(CASES[case].write(tmp_path))
    backbone, config = loaded.backbone, loaded.backbone.config
    write_gguf(backbone, loaded.tokenizer, tmp_path / "m.gguf", dtype, loaded.family)
    again = load_folder(tmp_path / "m.gguf").backbone
    tokens = np.random.default_rng(0).integers(0, 256, ROWS)
    wanted = ours("torch", again, tokens, seen_by(config))
    with LlamaCpp(tmp_path / "m.gguf") as model:
        found = torch.from_numpy(model.logits(tokens.tolist()))
    most = 2e-3 if dtype == "f32" else 0.06  # rows are bfloat16 there, too
    assert (found - wanted).abs().max() < most * wanted.abs().max()


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0", "q4_0"])
def test_llama_cpp_writes_the_greedy_tokens_of_a_model_of_ours(
    make_model: MakeModel, dtype: str, tmp_path: Path
) -> None:
    model = make_model(seed=1, width=64, num_heads=2, mlp_width=64)
    write_gguf(model.backbone, model.tokenizer, tmp_path / "m.gguf", dtype)
    again = daguerre.load(tmp_path / "m.gguf", dtype="float32", backend="torch")
    prompt = [*range(200, 220)]
    mine = again.generate(prompt, 16, mode="ar", min_tokens=16)
    with LlamaCpp(tmp_path / "m.gguf") as theirs:
        assert theirs.greedy([again.config.bos_id or 0, *prompt], 16) == [token.id for token in mine.tokens]


def test_llama_cpp_writes_the_greedy_tokens_of_the_default_model(tmp_path: Path) -> None:
    model = daguerre.load(dtype="float32", backend="torch")
    write_gguf(model.backbone, model.tokenizer, tmp_path / "m.gguf", "f32")
    with LlamaCpp(tmp_path / "m.gguf") as theirs:
        for text in ("def fib(n):\n    if n", "import os\n\n\ndef read(path):\n", "class Point:\n    def __init__(self, "):
            mine = model.generate(text, 48, mode="ar", min_tokens=48, heal=False)
            prompt = [1, *model.tokenizer.encode(text)]
            assert theirs.greedy(prompt, 48) == [token.id for token in mine.tokens]


@pytest.mark.parametrize("kind", ["byte_level", "qwen2", "tekken"])
def test_llama_cpp_gives_a_text_the_same_ids(kind: str, tmp_path: Path) -> None:
    tokenizer = made(kind)
    with LlamaCpp(of_tokenizer(tokenizer, tmp_path)) as model:
        for text in TEXTS:
            assert model.ids(text) == tokenizer.encode(text)
