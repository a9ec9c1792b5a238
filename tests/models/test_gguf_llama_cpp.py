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
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.backbone import Backbone
from daguerre.models.forward import Forward, Layout, Logits
from daguerre.models.gguf.writing import write_gguf
from daguerre.models.loading import load_folder
from llama_cpp_runs import LlamaCpp
from made_tokenizers import made
from models.test_gguf import TEXTS, WRITTEN, of_tokenizer
from published import CASES, ROWS, ours, seen_by

gguf = pytest.importorskip("gguf")
llama_cpp = pytest.importorskip("llama_cpp")
IN_BLOCKS = ("stable diffcoder", "fast dllm", "a2d, blocks", "sdar", "sdar, named blocks")
"""llama.cpp has no block context."""
WITH_WINDOWS = ("mistral, windows", "phi3")
"""It has no windows in these architectures."""
PROMPTS = ("def fib(n):\n    if n", "import os\n\n\ndef read(path):\n", "class Point:\n    def __init__(self, ")
ROUNDING = {"f32": 1e-4, "f16": 0.15, "bf16": 1.0}
"""How far logits of up to 20 may differ: llama.cpp rounds rows to the type of the matrix that they meet."""


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_llama_cpp_computes_the_same_logits(dtype: str, tmp_path: Path, subtests: pytest.Subtests) -> None:
    for number, case in enumerate([case for case in WRITTEN if case not in (*IN_BLOCKS, *WITH_WINDOWS)]):
        with subtests.test(case):
            (parent := tmp_path / str(number)).mkdir()
            loaded = load_folder(CASES[case].write(parent))
            backbone, config = loaded.backbone, loaded.backbone.config
            write_gguf(backbone, loaded.tokenizer, parent / "m.gguf", dtype, loaded.family)
            again = load_folder(parent / "m.gguf").backbone
            tokens = np.random.default_rng(0).integers(0, 256, ROWS)
            wanted = ours("torch", again, tokens, seen_by(config))
            with LlamaCpp(parent / "m.gguf") as model:
                found = torch.from_numpy(model.logits(tokens.tolist()))
            known = wanted.isfinite()  # but for tokens that are never predicted
            assert (found - wanted)[known].abs().max() < ROUNDING[dtype]
            assert dtype == "bf16" or torch.equal(found.masked_fill(~known, -1e9).argmax(1), wanted.argmax(1))


@pytest.mark.parametrize("dtype", ["f32", "f16"])
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


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_llama_cpp_writes_the_greedy_tokens_of_the_default_model(dtype: str, tmp_path: Path) -> None:
    model = daguerre.load(dtype="float32", backend="torch")
    write_gguf(model.backbone, model.tokenizer, tmp_path / "m.gguf", dtype)
    with LlamaCpp(tmp_path / "m.gguf") as theirs:
        for text in PROMPTS:
            mine = model.generate(text, 48, mode="ar", min_tokens=48, heal=False)
            prompt = [1, *model.tokenizer.encode(text)]
            assert theirs.greedy(prompt, 48) == [token.id for token in mine.tokens]


@pytest.mark.parametrize("dtype", ["q8_0", "q4_0", "q6_k", "q4_k"])
def test_llama_cpp_differs_only_where_two_tokens_are_close(dtype: str, tmp_path: Path) -> None:
    """llama.cpp rounds rows to 8 bits where they meet a quantized matrix, and ours are float32."""
    default = daguerre.load(dtype="float32", backend="torch")
    write_gguf(default.backbone, default.tokenizer, tmp_path / "m.gguf", dtype)
    model = daguerre.load(tmp_path / "m.gguf", dtype="float32", backend="torch")
    same = []
    with LlamaCpp(tmp_path / "m.gguf") as theirs:
        for text in PROMPTS:
            mine = model.generate(text, 48, mode="ar", min_tokens=48, heal=False)
            tokens = np.array([1, *model.tokenizer.encode(text), *(token.id for token in mine.tokens)][: ROWS - 1])
            wanted = logits(model.backbone, tokens)
            found = torch.from_numpy(theirs.logits(tokens.tolist())).where(wanted.isfinite(), wanted)
            far = 2 * (found - wanted).nan_to_num().abs().max()
            best = wanted.topk(2).values
            alike = found.argmax(1) == wanted.argmax(1)
            assert far < (6 if dtype.startswith("q4") else 3)
            assert (alike | (best[:, 0] - best[:, 1] < far)).all()
            same.append(alike)
    assert torch.cat(same).float().mean() > 0.9


def logits(backbone: Backbone, tokens: np.ndarray) -> torch.Tensor:
    """The logits of a causal model, (R, V)."""
    rows = np.arange(len(tokens))
    layout = Layout(rows, (rows + 1).astype(np.int32), len(tokens))
    (answer,) = TorchBackend(backbone).forward([Forward(tokens, layout, None, rows.astype(np.int32), Logits())])
    return torch.from_numpy(answer.logits)


def test_llama_cpp_gives_a_text_the_same_ids(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for kind in ["byte_level", "qwen2", "tekken"]:
        with subtests.test(kind):
            tokenizer = made(kind)
            with LlamaCpp(of_tokenizer(tokenizer, tmp_path)) as model:
                for text in TEXTS:
                    assert model.ids(text) == tokenizer.encode(text)
