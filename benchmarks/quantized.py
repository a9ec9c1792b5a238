"""What weights in fewer bits cost a model: nats a token on held-out text, and how often the likeliest token is the one
that float32 says.

    python benchmarks/quantized.py [--model NAME] [--windows N] [--positions N] [--llama]
                                   [--out benchmarks/results/quantized-default]

Windows of the frozen held-out sample, evenly spread; every token is scored given those before it. With --llama,
llama.cpp scores them, too, with files of the same weights by its own quantizer. Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daguerre.evals.bits import make_windows
from daguerre.evals.machine import machine_facts
from daguerre.evals.results import publish
from daguerre.evals.tables import table
from daguerre.heldout import load_frozen
from daguerre.model import load
from daguerre.models.backends.native_backend import NativeBackend
from daguerre.models.core.backbone import Backbone
from daguerre.models.forward import Backend, Forward, Layout, Logits

Scores = Callable[[np.ndarray], np.ndarray]
"""From a window's tokens to the logits of the token after each but the last."""
KINDS: dict[str, tuple[str, Any]] = {
    "float32": ("float32", None),
    "bfloat16": ("bfloat16", None),
    "int8": ("bfloat16", "int8"),
    "approximate_int4": ("bfloat16", "approximate_int4"),
}
"""By name: the type of the weights that are left, and how matrices are rounded."""


def logits_of(backend: Backend, tokens: np.ndarray) -> np.ndarray:
    """Logits of the token after each of a window's tokens but the last."""
    num = len(tokens) - 1
    layout = Layout(np.arange(num), np.arange(1, num + 1, dtype=np.int32), num)
    ask = Forward(tokens[:-1], layout, backend.cache(num), np.arange(num, dtype=np.int32), Logits())
    (answer,) = backend.forward([ask])
    assert answer.logits is not None
    return answer.logits


def llama(backbone: Backbone, positions: int, folder: Path) -> Iterator[tuple[str, Scores]]:
    """llama.cpp's logits by the type of its file; tokens that are never predicted are not."""
    from daguerre.evals.bench.family_files import WEIGHTS, quantize
    from daguerre.evals.bench.peers import LlamaCpp
    from daguerre.models.gguf.writing import write_gguf

    whole, never = folder / "whole.gguf", list(backbone.config.unpredictable_ids)
    write_gguf(backbone, None, whole, "f32")

    def scores(peer: LlamaCpp, tokens: np.ndarray) -> np.ndarray:
        logits = peer.logits(tokens[:-1].tolist())
        logits[:, never] = -np.inf
        return logits

    for kind in WEIGHTS.values():
        quantize(whole, kind, folder / f"{kind}.gguf")
        yield f"llama.cpp {kind}", partial(scores, LlamaCpp(folder / f"{kind}.gguf", 1, positions))


def scored(scores: Scores, text: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nats (N,) of the tokens of a text behind the first, and the likeliest tokens."""
    logits = scores(text).astype(np.float64)
    top = logits.max(1)
    mass = np.log(np.exp(logits - top[:, None]).sum(1)) + top
    return mass - logits[np.arange(len(logits)), text[1:]], logits.argmax(1)


def figures(found: dict[str, list[tuple[np.ndarray, np.ndarray]]]) -> dict[str, dict[str, float]]:
    """Of the scores of all texts in each kind: nats a token, their difference to float32 with its standard error over
    texts, and agreement.
    """
    counts, out = np.array([len(nats) for nats, _ in found["float32"]]), {}
    for name, texts in found.items():
        pairs = list(zip(texts, found["float32"], strict=True))
        more = np.array([(nats - known).sum() for (nats, _), (known, _) in pairs])
        mean = more.sum() / counts.sum()
        spread = np.sqrt(((more - mean * counts) ** 2).sum() * len(more) / max(1, len(more) - 1)) / counts.sum()
        agreed = sum((likeliest == known).sum() for (_, likeliest), (_, known) in pairs)
        out[name] = {
            "nats": float(sum(nats.sum() for nats, _ in texts) / counts.sum()),
            "more": float(mean),
            "stderr": float(spread),
            "agreement": float(agreed / counts.sum()),
        }
    return out


def measure(model: str, num: int, positions: int, peer: bool = False) -> dict[str, Any]:
    """The figures of each kind. positions: the most that a window has."""
    loaded = {dtype: load(model, dtype=dtype) for dtype in ("float32", "bfloat16")}
    one = loaded["float32"]
    if one.config.context != "causal":
        raise SystemExit(f"{model} has {one.config.context} context: this script scores causal models")
    positions = min(positions, one.config.max_positions)
    everything = make_windows(load_frozen(), one.tokenizer, positions)
    windows = everything[:: max(1, len(everything) // num)][:num]
    every: dict[str, Scores] = {
        name: partial(logits_of, NativeBackend(loaded[dtype].backbone, quantize))
        for name, (dtype, quantize) in KINDS.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        if peer:
            every |= llama(one.backbone, positions, Path(folder))
        found = {name: [scored(scores, one.tokens) for one in windows] for name, scores in every.items()}
    return {
        "model": Path(model).name,
        "parameters": one.backbone.num_parameters,
        "windows": len(windows),
        "tokens": sum(len(one.tokens) - 1 for one in windows),
        "kinds": figures(found),
        "machine": machine_facts(torch.device("cpu")),
    }


def page(found: dict[str, Any]) -> str:
    """The figures in Markdown."""
    peer = ", and by llama.cpp." if len(found["kinds"]) > len(KINDS) else "."
    return (
        f"# {found['model']}: weights in fewer bits\n\n{found['tokens']:,} tokens of held-out text in "
        f"{found['windows']} windows, by the native backend{peer}\n\n{table_of_kinds(found['kinds'])}\n"
    )


def table_of_kinds(kinds: dict[str, dict[str, float]]) -> str:
    """The figures of each kind."""
    header = ("weights", "nats a token", "more than float32", "standard error", "likeliest token as in float32")
    rows = [
        [name, *(f"{one['nats']:.4f}", f"{one['more']:+.4f}", f"{one['stderr']:.4f}", f"{one['agreement']:.2%}")]
        for name, one in kinds.items()
    ]
    return table(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--windows", type=int, default=160)
    parser.add_argument("--positions", type=int, default=1024, help="the most that a window has")
    parser.add_argument("--llama", action="store_true", help="llama.cpp beside it; needs the extra bench")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/quantized-default"))
    options = parser.parse_args()
    found = measure(options.model, options.windows, options.positions, options.llama)
    publish(options.out, found, page(found))


if __name__ == "__main__":
    main()
