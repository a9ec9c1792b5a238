"""Files that llama.cpp's own quantizer wrote, and what llama.cpp computes with them, recorded by `made_gguf`."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

import daguerre
from checkpoints import BACKEND
from daguerre.models.forward import Forward, Layout, Logits
from daguerre.models.gguf.facts import stored_kinds
from daguerre.models.gguf.file import GgufFile
from daguerre.models.gguf.header import read_header
from daguerre.models.loading import load_folder
from made_gguf import DATA, MODELS, RECORDED, TEXTS

gguf = pytest.importorskip("gguf")
KINDS = {
    "llama-q4_k": {"F32": 3, "Q4_K": 6, "Q6_K": 3},
    "qwen2-q8_0": {"F32": 6, "Q8_0": 8},
    "qwen3-q6_k": {"F32": 5, "Q6_K": 8},
    "dream-q4_0": {"F32": 6, "Q4_0": 7, "Q6_K": 1},
    "llada-q4_k": {"F32": 3, "Q4_K": 5, "Q6_K": 3},
}


def test_logits_are_those_of_llama_cpp(subtests: pytest.Subtests) -> None:
    recorded = np.load(RECORDED)
    for name in MODELS:
        for backend in BACKEND:
            with subtests.test(name, backend=backend):
                loaded = load_folder(DATA / f"{name}.gguf")
                assert loaded.family == name.partition("-")[0]
                tokens, rows = recorded["tokens"], np.arange(len(recorded["tokens"]))
                full = loaded.backbone.config.context == "full"
                end = np.full(len(rows), len(rows)) if full else rows + 1
                layout = Layout(rows, end.astype(np.int32), 0 if full else len(rows))
                (answer,) = BACKEND[backend](loaded.backbone).forward(
                    [Forward(tokens, layout, None, rows.astype(np.int32), Logits())]
                )
                known = np.isfinite(answer.logits)  # but for tokens that are never predicted
                assert known.sum() >= len(rows) * 312
                most = np.abs(answer.logits[known]).max()
                assert np.abs(answer.logits - recorded[f"{name} plain"])[known].max() < 2e-5 * most
                rounded = np.abs(answer.logits - recorded[f"{name} quantized"])[known]  # rows of 8 bits
                assert rounded.max() < 0.1 * most
                assert rounded.mean() < 0.02 * most


def test_weights_are_those_that_the_package_makes(subtests: pytest.Subtests) -> None:
    for name in MODELS:
        with subtests.test(name):
            path = DATA / f"{name}.gguf"
            assert stored_kinds(read_header(path)) == KINDS[name]
            file = GgufFile(read_header(path))
            for tensor in gguf.GGUFReader(path).tensors:
                wanted = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
                assert np.array_equal(file.array(tensor.name), wanted)
                assert np.array_equal(file.blocks(tensor.name).ravel(), tensor.data.view(np.uint8).ravel())


def test_texts_have_llama_cpps_ids(subtests: pytest.Subtests) -> None:
    for name in MODELS:
        with subtests.test(name):
            recorded, tokenizer = np.load(RECORDED), load_folder(DATA / f"{name}.gguf").tokenizer
            for number, text in enumerate(TEXTS):
                assert tokenizer.encode(text) == recorded[f"{name} text {number}"].tolist()
                assert tokenizer.decode(tokenizer.encode_plain(text, begins=False)) == text


def test_a_quantized_file_writes_text(subtests: pytest.Subtests) -> None:
    for name in MODELS:
        with subtests.test(name):
            model = daguerre.load(os.fspath(DATA / f"{name}.gguf"), backend="torch")
            assert model.dtype in (torch.float32, torch.bfloat16)
            assert len(model.generate("def f(", 4, min_tokens=4, temperature=0.0).tokens) == 4
