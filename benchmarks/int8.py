"""What 8-bit matrices cost in nats: the autoregressive law of held-out Python, by execution.

    python benchmarks/int8.py [--model default] [--dtype bfloat16] [--windows 64] [--json FILE]

Windows of 512 tokens, one of each document, all executions on the same ones. "Changed" is the mean over windows of the
difference to the reference in float32, with its standard error.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from daguerre.evals.heldout import load_frozen
from daguerre.evals.machine import machine_facts
from daguerre.model import DTYPES, load
from daguerre.models.denoiser import BackboneDenoiser, Execution
from daguerre.models.layout import Layout

LENGTH = 512
EXECUTIONS: tuple[Execution, ...] = ("reference", "native", "approximate_int8")


@torch.inference_mode()
def laws(executor: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Float32 log-probabilities (L - 1, V) of a window's tokens (L,), from the second on."""
    hidden = executor(tokens[None, :-1], Layout.causal(len(tokens) - 1))
    return torch.log_softmax(executor.logits(hidden)[0], dim=-1)


def measure(name: str, dtype: str, windows: int) -> dict[str, Any]:
    """By execution: nats a token, how much that is more than the reference's in float32, the divergence from its laws,
    and the share of positions whose most likely token is the same.
    """
    exact, model = load(name, execution="reference"), load(name, dtype=dtype)
    encoded = (model.tokenizer.encode(document.text)[:LENGTH] for document in load_frozen())
    texts = [
        torch.tensor(ids)
        for ids, _ in zip((ids for ids in encoded if len(ids) == LENGTH), range(windows), strict=False)
    ]
    executors = {kind: BackboneDenoiser(model.backbone, kind).executor for kind in EXECUTIONS}
    found: dict[str, list[list[float]]] = {kind: [] for kind in EXECUTIONS}
    for tokens in texts:
        want = laws(exact.denoiser.executor, tokens)
        target = tokens[1:, None]
        base = -want.gather(1, target).mean()
        for kind, executor in executors.items():
            got = laws(executor, tokens)
            nats = -got.gather(1, target).mean()
            divergence = (want.exp() * (want - got).masked_fill(want.isinf(), 0.0)).sum(-1).mean()
            same = (got.argmax(-1) == want.argmax(-1)).float().mean()
            found[kind].append([float(x) for x in (nats, nats - base, divergence, same)])
    out: dict[str, Any] = {}
    for kind, rows in found.items():
        values = torch.tensor(rows, dtype=torch.float64)
        mean, error = values.mean(0).tolist(), (values.std(0) / len(values) ** 0.5).tolist()
        out[kind] = {
            "nats": mean[0],
            "changed": mean[1],
            "stderr": error[1],
            "divergence": mean[2],
            "same_top": mean[3],
        }
    return {"model": name, "dtype": dtype, "windows": len(texts), "length": LENGTH, "executions": out}


def main() -> None:
    parser = argparse.ArgumentParser(description="Nats a token by execution.")
    parser.add_argument("--model", default="default")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--windows", type=int, default=64)
    parser.add_argument("--json", type=Path, help="also write the numbers, and the machine, to this file")
    given = parser.parse_args()
    found = measure(given.model, given.dtype, given.windows)
    print(f"{found['windows']} windows of {LENGTH} tokens, {given.dtype}")
    for kind, row in found["executions"].items():
        print(
            f"{kind:>18}  {row['nats']:.4f} nats a token, changed by {row['changed']:+.5f} ({row['stderr']:.5f}), "
            f"divergence {row['divergence']:.5f}, most likely token the same in {row['same_top']:.1%}"
        )
    if given.json is not None:
        facts = {"machine": machine_facts(torch.device("cpu")), **found}
        given.json.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
