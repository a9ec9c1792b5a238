"""A mixture of experts that is larger than memory: answer tokens a second with its experts in memory, and on the disk.

    python benchmarks/experts_on_disk.py --folder FOLDER --limit 1.2 --out benchmarks/results/experts-on-disk

Random weights of SDAR-30B-A3B's published shape with fewer layers, in 4 bits, blocks of 8, at 2.5 tokens a forward.
Prompts and answers are random. Routers of random weights ask for few experts all the same; how many a trained one asks
for is not known here. `--limit`: gigabytes of memory for the last run, by a control group of its own, which takes the
rights of an administrator.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import daguerre
from daguerre.evals.bench.families import ForcedCommits
from daguerre.evals.bench.family_files import config_of, tokenizer, write_shard
from daguerre.evals.machine import machine_facts, measured_on, memory
from daguerre.evals.results import publish
from daguerre.evals.tables import table
from daguerre.evals.workers import alone
from daguerre.models.backends.disk import gigabytes

WIDTH, EXPERTS, CHOSEN, INNER, HEADS, KV_HEADS, HEAD, VOCABULARY, BLOCK = 2048, 128, 8, 768, 32, 4, 128, 151_936, 8
GROUP = Path("/sys/fs/cgroup")
PROMPT, TOKENS, ROUNDS = 64, 40, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for the checkpoint; it is kept")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--limit", type=float, help="gigabytes of memory of the last run")
    parser.add_argument("--out", type=Path, help="results, without an ending")
    given = parser.parse_args()
    folder = given.folder / f"sdar-moe-{given.layers}"
    write(folder, given.layers)
    runs = {"experts in memory": run(folder, "memory", None), "on the disk, memory is free": run(folder, "disk", None)}
    if given.limit:
        runs[f"on the disk, {given.limit:g} GB of memory"] = run(folder, "disk", int(given.limit * 1e9))
    results = {"layers": given.layers, "runs": runs, "machine": machine_facts()}
    publish(given.out, results, page(results))


def write(folder: Path, layers: int) -> None:
    """The checkpoint, a layer a file, unless it is there."""
    if (folder / "config.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer(VOCABULARY).save(str(folder / "tokenizer.json"))
    random, places = np.random.default_rng(0), dict[str, str]()
    for number in range(layers + 1):
        shard = list(layer(number) if number < layers else around())
        file = f"model-{number + 1:05}-of-{layers + 1:05}.safetensors"
        places |= dict.fromkeys((name for name, _ in shard), file)
        write_shard(folder / file, shard, random)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    config = config_of("sdar-1.7b") | {
        "architectures": ["SDARMoeForCausalLM"],
        "model_type": "sdar_moe",
        "hidden_size": WIDTH,
        "intermediate_size": 3 * WIDTH,
        "moe_intermediate_size": INNER,
        "num_experts": EXPERTS,
        "num_experts_per_tok": CHOSEN,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))


def layer(number: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a layer's tensors, as Qwen3-MoE has them."""
    name = f"model.layers.{number}."
    yield f"{name}input_layernorm.weight", (WIDTH,)
    for part, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
        yield f"{name}self_attn.{part}_proj.weight", (heads * HEAD, WIDTH)
    yield f"{name}self_attn.o_proj.weight", (WIDTH, HEADS * HEAD)
    yield f"{name}self_attn.q_norm.weight", (HEAD,)
    yield f"{name}self_attn.k_norm.weight", (HEAD,)
    yield f"{name}post_attention_layernorm.weight", (WIDTH,)
    yield f"{name}mlp.gate.weight", (EXPERTS, WIDTH)
    for expert in range(EXPERTS):
        yield f"{name}mlp.experts.{expert}.gate_proj.weight", (INNER, WIDTH)
        yield f"{name}mlp.experts.{expert}.up_proj.weight", (INNER, WIDTH)
        yield f"{name}mlp.experts.{expert}.down_proj.weight", (WIDTH, INNER)


def around() -> Iterator[tuple[str, tuple[int, ...]]]:
    """The same of what is no layer."""
    yield "model.embed_tokens.weight", (VOCABULARY, WIDTH)
    yield "model.norm.weight", (WIDTH,)
    yield "lm_head.weight", (VOCABULARY, WIDTH)


def run(folder: Path, place: str, limit: int | None) -> dict[str, Any]:
    """What a process of its own measures, in a control group of so many bytes."""
    if limit is None:
        return alone(measured, folder, place, None)
    first = (GROUP / "memory").is_dir()
    group = GROUP / ("memory" if first else "") / f"daguerre-{os.getpid()}"
    group.mkdir()
    (group / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(limit))
    try:
        return alone(measured, folder, place, group)
    finally:
        time.sleep(1)
        group.rmdir()


def measured(folder: Path, place: Any, group: Path | None) -> dict[str, Any]:
    """Answer tokens a second, bytes that a forward reads from the disk, and memory that is no file's; in a group."""
    if group is not None:
        (group / "cgroup.procs").write_text(str(os.getpid()))
    begun = time.perf_counter()
    model = daguerre.load(folder, quantize="approximate_int4", experts=place)
    loading, packing = time.perf_counter() - begun, model.denoiser.backend._packing  # type: ignore[attr-defined]
    disk = packing.experts
    rates, reads = [], []
    for number in range(ROUNDS + 1):
        start, before = time.perf_counter(), _read()
        prompt = model.tokenizer.decode(np.random.default_rng(number).integers(VOCABULARY, size=PROMPT).tolist())
        options: dict[str, Any] = {
            "max_tokens": TOKENS,
            "min_tokens": TOKENS,
            "policy": ForcedCommits(),
            "seed": number,
        }
        result = model.generate(prompt, mode="block", temperature=1.0, **options)
        rates.append(result.usage.completion_tokens / (time.perf_counter() - start))
        reads.append((_read() - before) / result.usage.forwards)
    return {
        "tokens_per_second": statistics.median(rates[1:]),
        "all": [round(one, 2) for one in rates],
        "read_per_forward": statistics.median(reads[1:]),
        "experts_bytes": disk.num_bytes if disk else None,
        "disk_speed": disk.speed() if disk else None,
        "anonymous": memory("RssAnon"),
        "loading": loading,
    }


def _read() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def page(results: dict[str, Any]) -> str:
    """A page of Markdown."""
    about = (
        f"# Experts on the disk\n\nSDAR-30B-A3B's shape with {results['layers']} layers of {EXPERTS} experts, of which "
        f"a row has {CHOSEN}; random weights in 4 bits; blocks of {BLOCK}, {TOKENS} random tokens behind {PROMPT}, "
        f"2.5 a forward; medians of {ROUNDS}. {measured_on(results['machine'])}"
    )
    header = ("", "tokens/s", "experts on the disk", "read in a forward", "disk, a second", "memory that is no file's")
    rows = []
    for name, one in results["runs"].items():
        size, speed, own = (
            "" if one[key] is None else gigabytes(one[key]) for key in ("experts_bytes", "disk_speed", "anonymous")
        )
        rows.append(
            [name, f"{one['tokens_per_second']:.1f}", size, f"{one['read_per_forward'] / 1e6:,.0f} MB", speed, own]
        )
    return f"{about}\n\n{table(header, rows)}\n"


if __name__ == "__main__":
    main()
