"""What weights in fewer bits cost a model: nats a token on held-out text, and how often the likeliest token is the one
that float32 says.

    python benchmarks/quantized.py [--model NAME] [--windows N] [--positions N] [--llama]
                                   [--out benchmarks/results/quantized-default]

Windows of the frozen held-out sample, evenly spread; every token is scored given those before it. With --llama,
llama.cpp scores them, too, with files of the same weights by its own quantizer. Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daguerre.evals.bits import Window, make_windows
from daguerre.evals.machine import machine_facts
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


def read(every: dict[str, Scores], windows: Sequence[Window]) -> Iterator[dict[str, tuple[np.ndarray, np.ndarray]]]:
    """For each window, by kind: nats of its tokens, and the likeliest tokens."""
    for window in windows:
        found = {}
        for name, scores in every.items():
            logits = scores(window.tokens).astype(np.float64)
            top = logits.max(1)
            mass = np.log(np.exp(logits - top[:, None]).sum(1)) + top
            nats = mass - logits[np.arange(len(logits)), window.tokens[1:]]
            found[name] = nats, logits.argmax(1)
        yield found


def measure(model: str, num: int, positions: int, peer: bool = False) -> dict[str, Any]:
    """The figures of each kind: nats a token, their difference to float32 with its standard error over windows, and
    agreement. positions: the most that a window has.
    """
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
        found = list(read(every, windows))
    counts = np.array([len(each["float32"][0]) for each in found])
    kinds = {}
    for name in every:
        more = np.array([(each[name][0] - each["float32"][0]).sum() for each in found])
        mean = more.sum() / counts.sum()
        spread = np.sqrt(((more - mean * counts) ** 2).sum() * len(found) / max(1, len(found) - 1)) / counts.sum()
        kinds[name] = {
            "nats": float(sum(each[name][0].sum() for each in found) / counts.sum()),
            "more": float(mean),
            "stderr": float(spread),
            "agreement": float(sum((each[name][1] == each["float32"][1]).sum() for each in found) / counts.sum()),
        }
    return {
        "model": Path(model).name,
        "parameters": one.backbone.num_parameters,
        "windows": len(windows),
        "tokens": int(counts.sum()),
        "kinds": kinds,
        "machine": machine_facts(torch.device("cpu")),
    }


def table(found: dict[str, Any]) -> str:
    """The figures in Markdown."""
    lines = [
        f"# {found['model']}: weights in fewer bits",
        "",
        f"{found['tokens']:,} tokens of held-out text in {found['windows']} windows, by the native backend"
        + (", and by llama.cpp." if len(found["kinds"]) > len(KINDS) else "."),
        "",
        *rows_of("matrices", found["kinds"]),
    ]
    return "\n".join(lines) + "\n"


def rows_of(what: str, kinds: dict[str, dict[str, float]]) -> list[str]:
    """A table of the figures of each kind."""
    return [
        f"| {what} | nats a token | more than float32 | standard error | likeliest token as in float32 |",
        "| --- | ---: | ---: | ---: | ---: |",
        *(
            f"| {name} | {kind['nats']:.4f} | {kind['more']:+.4f} | {kind['stderr']:.4f} | {kind['agreement']:.2%} |"
            for name, kind in kinds.items()
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--windows", type=int, default=160)
    parser.add_argument("--positions", type=int, default=1024, help="the most that a window has")
    parser.add_argument("--llama", action="store_true", help="llama.cpp beside it; needs the extra bench")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/quantized-default"))
    options = parser.parse_args()
    found = measure(options.model, options.windows, options.positions, options.llama)
    options.out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    options.out.with_suffix(".md").write_text(table(found))
    print(table(found), end="")


if __name__ == "__main__":
    main()
