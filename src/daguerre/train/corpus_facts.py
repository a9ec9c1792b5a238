"""What a run says and keeps of its corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from daguerre.models.weights import sha256_of
from daguerre.train.shards import Shard, read_meta


def data_facts(data: Path, run: Path) -> dict[str, Any]:
    """Where a run's data is, and what distinguishes it from other data."""
    place, out = data.resolve(), run.resolve()
    return {
        "path": str(place.relative_to(out) if place.is_relative_to(out) else place),
        "splits": read_meta(data)["splits"],
    }


def manifest_hash(data: Path) -> str:
    """SHA-256 of the list of a corpus's documents, or of its meta.json where it has none."""
    listed = data / "manifest.jsonl"
    return sha256_of(listed if listed.exists() else data / "meta.json")


def data_line(train: Shard, val: Shard) -> str:
    """What is trained on, and what is held out of it."""
    line = f"training text: {_size(train)}; "
    if val is train:
        return line + "the data has no validation split: held-out figures are of the training text itself"
    return line + f"held out: {_size(val)}"


def _size(shard: Shard) -> str:
    return f"{shard.num_documents:,} file{'s' if shard.num_documents != 1 else ''}, {shard.num_tokens:,} tokens"
