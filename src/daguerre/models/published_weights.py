"""The weights of a published checkpoint: found in its files, and compared with what the model needs. Files are
safetensors or GGUF, so nothing can be executed; `models.model_weights` reads them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from daguerre.errors import CheckpointError
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.parameters import parameter_shapes
from daguerre.models.families.base import Family, Piece
from daguerre.models.gguf.header import KINDS as GGUF_KINDS
from daguerre.models.shards import KINDS, Stored, check_layers, some

READ = frozenset((*KINDS, *GGUF_KINDS))
"""Those, and ggml's, of which a GGUF file has no others."""


def fit(family: Family, config: ModelConfig, stored: Mapping[str, Stored], folder: Path) -> list[Piece]:
    """The pieces of a model that are stored. CheckpointError that names every tensor that is missing, not expected, or
    of another shape or type.
    """
    check_layers(config, len(stored), folder)
    needed = parameter_shapes(config)
    pieces = without_prefix(family, family.pieces(config), stored)
    here = [piece for piece in pieces if piece.name in stored]
    missing = [piece.name for piece in pieces if piece.name not in stored and not piece.copy]
    known = {piece.name for piece in pieces}
    extra = [name for name in stored if name not in known and not _is_ignored(family, name)]
    shapes = [text for piece in here if (text := _wrong_shape(piece, stored[piece.name].shape, needed))]
    kinds = [f"{p.name} ({stored[p.name].kind})" for p in here if stored[p.name].kind not in READ]
    problems = [
        f"{len(names)} {what}: {some(names)}"
        for what, names in (
            ("missing", missing),
            ("not expected", extra),
            ("of another shape", shapes),
            (f"of a type other than {', '.join(KINDS)}", kinds),
        )
        if names
    ]
    if problems:
        raise CheckpointError(
            f"the tensors in {folder} are not those of its config ({family.name}): {'; '.join(problems)}; copy it "
            "again, or use a checkpoint that is not quantized"
        )
    return here


def without_prefix(family: Family, pieces: list[Piece], stored: Iterable[str]) -> list[Piece]:
    """The pieces under the names that are stored: without the prefix where no name has it."""
    prefix = family.prefix
    if not prefix or any(name.startswith(prefix) for name in stored):
        return pieces
    return [replace(piece, name=piece.name.removeprefix(prefix)) for piece in pieces]


def _is_ignored(family: Family, name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in family.ignored)


def _wrong_shape(piece: Piece, shape: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """What is wrong with the shape of a stored tensor; None if it fits."""
    nothing = np.zeros((), np.bool_)  # of any shape, in no memory
    needed = np.broadcast_to(nothing, shapes[piece.target])[piece.index].shape
    try:
        has = np.broadcast_to(nothing, shape)
        has = has if piece.change is None else piece.change(has)
    except (IndexError, ValueError):
        return f"{piece.name} {shape}"
    return None if has.shape == needed else f"{piece.name} {has.shape}, not {needed}"
