"""What weights in fewer bits cost a made model of a published shape, here and in llama.cpp: nats a token, and how often
the likeliest token is the one that float32 says.

    python benchmarks/quantized_families.py --folder DIR [--shape qwen3-0.6b] [--texts 16] [--tokens 128]

Random weights, with a last norm that is SHARP times as large, so that the model is sure of some tokens as a trained one
is; the text is its own, drawn at temperature 1 in bfloat16. The weights of llama.cpp's files are by its own quantizer.
The reference is the native backend in float32. Writes benchmarks/results/quantized-families.*
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from quantized import KINDS, Scores, figures, logits_of, scored, table_of_kinds

from daguerre.evals.bench.family_files import WEIGHTS, checkpoint, quantize
from daguerre.evals.bench.peers import LlamaCpp
from daguerre.evals.bench.worker import versions
from daguerre.evals.machine import machine_facts
from daguerre.evals.results import publish
from daguerre.model import load
from daguerre.models.gguf.writing import write_gguf
from daguerre.models.loading import load_folder

SHARP = 4.0
NORM = "model.norm.weight"
RESULTS = Path(__file__).resolve().parent / "results" / "quantized-families.json"


def sharpened(name: str, parent: Path) -> Path:
    """A copy of the shape's folder with a larger last norm."""
    folder, made = checkpoint(name, parent), parent / f"{name}-sharp"
    if (made / "config.json").exists():
        return made
    shutil.copytree(folder, made, ignore=shutil.ignore_patterns("config.json"), dirs_exist_ok=True)
    shard = json.loads((made / "model.safetensors.index.json").read_text())["weight_map"][NORM]
    with (made / shard).open("r+b") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        start, end = json.loads(file.read(size))[NORM]["data_offsets"]
        file.seek(8 + size + start)
        norm = torch.frombuffer(bytearray(file.read(end - start)), dtype=torch.bfloat16)
        file.seek(8 + size + start)
        file.write((norm * SHARP).view(torch.int16).numpy().tobytes())
    shutil.copy(folder / "config.json", made / "config.json")
    return made


def texts_of(folder: Path, number: int, length: int) -> list[np.ndarray]:
    """Texts of the model itself, as token ids, behind one token each."""
    model = load(folder, dtype="bfloat16", backend="native")
    out = []
    for first in range(300, 300 + number):
        options: dict[str, Any] = {"mode": "ar", "temperature": 1.0, "min_tokens": length - 1, "heal": False}
        found = model.generate([first], length - 1, seed=first, **options)
        out.append(np.array([first, *(token.id for token in found.tokens)], dtype=np.int64))
    return out


def native(folder: Path, kind: str) -> Scores:
    """The native backend's logits."""
    dtype, rounded = KINDS[kind]
    backend = load(folder, dtype=dtype, quantize=rounded, backend="native").denoiser.backend
    return lambda tokens: logits_of(backend, tokens)


def llama(file: Path, length: int) -> Iterator[Scores]:
    """llama.cpp's."""
    peer = LlamaCpp(file, torch.get_num_threads(), length)
    yield lambda tokens: peer.logits(tokens[:-1].tolist())
    peer.close()


def files_of(folder: Path) -> dict[str, Path]:
    """llama.cpp's files, by type."""
    files = {kind: folder.with_name(f"{folder.name}-{kind}.gguf") for kind in WEIGHTS.values()}
    whole = files["BF16"]
    if not whole.exists():
        write_gguf(load_folder(folder, torch.bfloat16).backbone, None, whole, "bf16")
    for kind, path in files.items():
        if not path.exists():
            quantize(whole, kind, path)
    return files


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """All kinds, one in memory at a time."""
    folder = sharpened(given.shape, given.folder)
    texts = texts_of(folder, given.texts, given.tokens)
    files, found = files_of(folder), dict[str, list[tuple[np.ndarray, np.ndarray]]]()
    for kind in KINDS:
        logits = native(folder, kind)
        found[kind] = [scored(logits, text) for text in texts]
    for kind, path in files.items():
        for logits in llama(path, given.tokens):
            found[f"llama.cpp {kind}"] = [scored(logits, text) for text in texts]
    command = " ".join("DIR" if one == str(given.folder) else one for one in sys.argv)
    facts = {"machine": machine_facts(), "versions": versions(), "command": command, "sharp": SHARP}
    tokens = sum(len(text) - 1 for text in texts)
    return facts | {"shape": given.shape, "tokens": tokens, "texts": len(texts), "kinds": figures(found)}


def page(found: dict[str, Any]) -> str:
    """The figures in Markdown."""
    return (
        f"# {found['shape']}: weights in fewer bits, beside llama.cpp\n\nRandom weights of the shape with a last norm "
        f"{found['sharp']:g} times as large; {found['tokens']:,} tokens of {found['texts']} texts of its own. The "
        f"reference is float32.\n\n{table_of_kinds(found['kinds'])}\n"
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--folder", type=Path, required=True)
    options.add_argument("--shape", default="qwen3-0.6b")
    options.add_argument("--texts", type=int, default=16)
    options.add_argument("--tokens", type=int, default=128)
    options.add_argument("--out", type=Path, default=RESULTS)
    given = options.parse_args()
    found = measure(given)
    publish(given.out, found, page(found))


if __name__ == "__main__":
    main()
