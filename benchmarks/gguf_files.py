"""GGUF files: agreement with llama.cpp by type, and what loading one takes.

    PYTHONPATH=src:tests python benchmarks/gguf_files.py --out benchmarks/results/gguf

Agreement needs llama-cpp-python: the default model is written in each type, llama.cpp and Daguerre's torch backend (in
float32, with the weights as they are read back) compute the logits of the same held-out texts, and the likeliest tokens
are compared. Loading is measured in a process of its own: its peak beyond what it had before, and processor time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import daguerre
from daguerre.evals.machine import machine_facts, measured_on, memory
from daguerre.evals.results import publish
from daguerre.evals.tables import table
from daguerre.evals.workers import alone
from daguerre.heldout import load_frozen
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.build import make_backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import Forward, Layout, Logits
from daguerre.models.gguf.writing import DTYPES, write_gguf
from daguerre.models.loading import load_folder
from daguerre.models.tokenizer import Tokenizer

TEXTS, TOKENS = 40, 120
LARGE: dict[str, Any] = {"width": 1024, "num_heads": 16, "num_kv_heads": 8, "mlp_width": 3072, "head_width": 128}
LAYERS = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="results, without an ending")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.gguf"
        results = {"agreement": agreement(path), "loading": loadings(path), "machine": machine_facts()}
    publish(options.out, results, page(results))


def agreement(path: Path) -> list[dict[str, Any]]:
    from llama_cpp_runs import LlamaCpp

    default, rows = daguerre.load(dtype="float32", backend="torch"), []
    texts = [file.text for file in load_frozen()[:TEXTS]]
    for dtype in DTYPES:
        write_gguf(default.backbone, default.tokenizer, path, dtype)
        model, same, far = daguerre.load(path, dtype="float32", backend="torch"), [], 0.0
        with LlamaCpp(path) as theirs:
            for text in texts:
                tokens = np.array([1, *model.tokenizer.encode(text)][:TOKENS])
                ours = logits(model, tokens)
                found = theirs.logits(tokens.tolist())
                known = np.isfinite(ours)
                same.append(np.where(known, found, -np.inf).argmax(1) == ours.argmax(1))
                far = max(far, float(np.abs(found - ours)[known].max()))
        alike = np.concatenate(same)
        rows.append({"dtype": dtype, "positions": len(alike), "same": float(alike.mean()), "furthest": far})
    return rows


def logits(model: daguerre.Model, tokens: np.ndarray) -> np.ndarray:
    places = np.arange(len(tokens))
    layout = Layout(places, (places + 1).astype(np.int32), len(tokens))
    forward = Forward(tokens, layout, None, places.astype(np.int32), Logits())
    found: np.ndarray = TorchBackend(model.backbone).forward([forward])[0].logits
    return found


def loadings(path: Path) -> list[dict[str, Any]]:
    tokenizer = Tokenizer.default("8k")
    ids = {f"{name}_id": getattr(tokenizer, f"{name}_id") for name in ("pad", "bos", "eos", "mask", "null")}
    config = ModelConfig(**LARGE, **ids, num_layers=LAYERS, max_positions=1024, vocab_size=tokenizer.vocab_size)
    backbone = make_backbone(config).to(torch.bfloat16).initialize(0)
    rows = []
    for stored in ("bf16", "q8_0", "q4_0"):
        write_gguf(backbone, tokenizer, path, stored)
        for dtype in ("bfloat16", "float32"):
            row = alone(loading, path, dtype)
            rows.append({"stored": stored, "file": path.stat().st_size, "dtype": dtype, **row})
    return rows


def loading(path: Path, dtype: str) -> dict[str, Any]:
    """Bytes and seconds that one load takes in this process, after a small model, so that all is imported."""
    torch.set_num_threads(1)
    load_folder(Path(daguerre.__file__).parent / "assets" / "default")
    import gguf  # noqa: F401

    before, began = memory("VmRSS"), time.process_time()
    backbone = load_folder(path, getattr(torch, dtype)).backbone
    seconds = time.process_time() - began
    weights = sum(weight.nbytes for weight in backbone.state_dict().values())
    after, peak = memory("VmRSS"), memory("VmHWM")
    return {"weights": weights, "resident": after - before, "peak": peak - before, "seconds": round(seconds, 2)}


def page(results: dict[str, Any]) -> str:
    header = "stored as, file, loaded as, weights, resident after, peak, seconds of processor time".split(", ")
    sizes = ("weights", "resident", "peak")
    return "\n\n".join(
        [
            f"# GGUF files\n\nBy `benchmarks/gguf_files.py`. {measured_on(results['machine'])}",
            "Likeliest tokens of the default model, llama.cpp beside Daguerre with the same file: "
            f"{TEXTS} held-out texts, {TOKENS} tokens each at most.",
            table(
                ["type", "positions", "same token", "furthest logit"],
                [
                    [r["dtype"], f"{r['positions']:,}", f"{100 * r['same']:.2f}%", f"{r['furthest']:.2g}"]
                    for r in results["agreement"]
                ],
            ),
            "Loading 197M parameters; MB beyond what the process had before; the file is mapped, and among the peak.",
            table(
                header,
                [
                    [r["stored"], mb(r["file"]), r["dtype"], *(mb(r[name]) for name in sizes), r["seconds"]]
                    for r in results["loading"]
                ],
            )
            + "\n",
        ]
    )


def mb(num: int) -> str:
    return f"{num / 1e6:,.0f}"


if __name__ == "__main__":
    main()
