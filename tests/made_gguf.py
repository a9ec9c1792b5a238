"""How the files of `tests/data/gguf` were made, which needs llama-cpp-python:

    PYTHONPATH=src:tests python tests/made_gguf.py

Tiny random models of five architectures are written in F16 by Daguerre, and quantized by llama.cpp's own quantizer.
What llama.cpp computes with them is recorded: their logits; those of the same weights, which it makes F32 again, so
that no row is rounded; and the ids of texts.
"""

from __future__ import annotations

import ctypes
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from checkpoints import scatter
from conftest import tiny_config
from daguerre.models.core.build import make_backbone
from daguerre.models.gguf.splits import BAILING
from daguerre.models.gguf.writing import write_gguf
from daguerre.models.published_tokenizer import PublishedTokenizer
from daguerre.models.tiktoken_files import CL100K, QWEN2
from daguerre.models.tokenizer import Tokenizer
from made_tokenizers import config as tokenizer_config
from made_tokenizers import entries, trained

DATA = Path(__file__).parent / "data" / "gguf"
RECORDED = DATA / "recorded.npz"
SIZE = 320
TOKENS = 12
MASK = SIZE - 5
FULL = {"context": "full", "mask_id": MASK}
LLAMA = {"qk_norm": False}
QWEN2_SHAPE = {"qk_norm": False, "qkv_bias": True}
MODELS: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "llama-q4_k": ("llama", CL100K, LLAMA | {"tied": False}, 15),
    "qwen2-q8_0": ("qwen2", QWEN2, QWEN2_SHAPE, 7),
    "qwen3-q6_k": ("qwen3", QWEN2, {}, 18),
    "dream-q4_0": ("dream", QWEN2, QWEN2_SHAPE | FULL, 2),
    "llada-q4_k": ("llada", BAILING, LLAMA | FULL | {"shift": False}, 15),
}
"""Files: the family, how its tokenizer splits texts, the shape, and llama.cpp's number of the type."""
TEXTS = (
    "def f(x):\n    return x + 12345  # it's\n\n\n\tdone",
    "It's NAÏVE, isn't it?\r\n\n  We'll see...  日本語と漢字 🙂🎉",
    "a  b   c\n \n d1234567890 Русский язык!!??",
    "'S 'll'LL x'RE\u00a0\u2003y",
    "<|begin|>x<|end|> <tool_call>",
)
SHAPE: dict[str, Any] = {"width": 256, "num_heads": 4, "num_kv_heads": 1, "mlp_width": 256, "num_layers": 1}


def made_tokenizer(pattern: str) -> PublishedTokenizer:
    values = trained(pattern, SIZE - 7)
    values["added_tokens"] = entries(SIZE - 7)
    values["model"]["ignore_merges"] = pattern == CL100K
    values["normalizer"] = {"type": "NFC"} if pattern == QWEN2 else None
    return PublishedTokenizer(json.dumps(values), tokenizer_config(add_bos_token=False))


def write(folder: Path, name: str) -> Path:
    """The model in F16."""
    family, pattern, shape, _ = MODELS[name]
    tokens = {"vocab_size": SIZE, "eos_id": SIZE - 7, "pad_id": SIZE - 6, "mask_id": None, "null_id": None}
    config = replace(tiny_config(Tokenizer.default("2k"), **SHAPE), bos_id=None, reserved_ids=(), **tokens)
    backbone = make_backbone(replace(config, **shape))
    scatter(backbone, seed=len(name))
    write_gguf(backbone, made_tokenizer(pattern), folder / f"{name}.f16", "f16", family)
    return folder / f"{name}.f16"


def quantize(source: Path, target: Path, kind: int) -> None:
    import llama_cpp

    options: Any = llama_cpp.llama_model_quantize_default_params()
    options.ftype, options.nthread, options.allow_requantize = kind, 1, True
    status = llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(options))
    assert status == 0


def main() -> None:
    from llama_cpp_runs import LlamaCpp

    DATA.mkdir(parents=True, exist_ok=True)
    recorded: dict[str, np.ndarray] = {"tokens": np.random.default_rng(0).integers(0, SIZE - 10, TOKENS)}
    with tempfile.TemporaryDirectory() as scratch:
        for name, (*_, kind) in MODELS.items():
            path = DATA / f"{name}.gguf"
            quantize(write(Path(scratch), name), path, kind)
            quantize(path, Path(scratch) / "f32.gguf", 0)
            for what, file in (("quantized", path), ("plain", Path(scratch) / "f32.gguf")):
                with LlamaCpp(file) as model:
                    recorded[f"{name} {what}"] = model.logits(recorded["tokens"].tolist())
                    for number, text in enumerate(TEXTS):
                        recorded[f"{name} text {number}"] = np.array(model.ids(text), np.int32)
    np.savez_compressed(RECORDED, **recorded)  # type: ignore[arg-type]


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
