"""GGUF files: an index whose numbers and names are changed, before tensors that are as they were."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random

from daguerre.models.gguf.writing import write_gguf
from daguerre.models.loading import load_folder
from fuzz.mutate import mutant
from fuzz.target import Run, Target
from fuzz.targets.checkpoints import scratch
from published import CASES

INDEX = 11_000
"""About as many bytes as the index has."""
NUMBERS = (0, 1, 2, 8, 9, 31, 255, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1)


def files() -> list[bytes]:
    """One of each architecture, plain and quantized."""
    out = []
    for case, dtype in (("llama", "q8_0"), ("qwen3", "f16"), ("dream", "q4_0"), ("llada", "bf16")):
        folder = scratch()
        loaded = load_folder(CASES[case].write(folder))
        write_gguf(loaded.backbone, loaded.tokenizer, folder / "m.gguf", dtype, loaded.family)
        out.append((folder / "m.gguf").read_bytes())
    return out


def reader() -> Run:
    path = scratch() / "m.gguf"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        load_folder(path)

    return run


def damaged(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """A file whose index is changed: a few numbers of it, or anything."""
    end = min(len(data), INDEX)
    head = bytearray(data[:end])
    if random.random() < 0.3:
        return mutant(bytes(head), others, random) + data[end:]
    for _ in range(random.randint(1, 4)):
        width = random.choice((1, 4, 8))
        at = random.randrange(max(1, len(head) - width))
        head[at : at + width] = struct.pack("<Q", random.choice(NUMBERS))[:width]
    return (
        bytes(head) + data[end : end + random.choice((len(data), len(data) // 2, 0)) if random.random() < 0.2 else None]
    )


TARGETS = (Target(name="gguf", make=reader, seeds=files, change=damaged, cases=150),)
