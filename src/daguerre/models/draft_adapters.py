"""LoRA adapters in PEFT's layout that act on the rows of drafts alone, which read random tokens: Uno (arXiv
2609.04010), whose adapters lie in a folder `adapter` beside the weights of their model (s-sahoo/uno-qwen3-8B).

As ifm-ai/uno computes it: the last token of the text is a row of the plain model, and behind it are rows of random
tokens, causally, with the adapter. There one forward drafts and the next one verifies; here a forward does both
(`decoding.modes.ar`), whose rows see the same. Its rejection sampling is not ours: a text is that of mode "ar".

Letters: r rank, I and O numbers before and after a matrix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daguerre.errors import CheckpointError
from daguerre.models.adapter_files import CONFIG
from daguerre.models.bits import NumberType, converted
from daguerre.models.core.config import DRAFT_PARTS, ModelConfig
from daguerre.models.core.parameters import parameter_shapes
from daguerre.models.families.base import Piece
from daguerre.models.families.llama import llama_pieces
from daguerre.models.families.peft import rank_of, scale_of
from daguerre.models.json_files import read_json
from daguerre.models.shards import SafetensorsFile, Stored

TARGETS = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "out": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
"""The published matrices of each of ours."""
PREFIX = "base_model.model."
ACCEPTANCE = (0.84,) * 15, (0.775,) * 15
"""The chances a at temperatures 0 and 1 for which 2 + a + ... + a^15 is what Uno at 8B is said to commit a cycle: 7.11
and 5.42."""


@dataclass(frozen=True)
class SplitFactors:
    """A or B of a matrix of ours, of those of the published ones that it consists of; None: of zeros.

    parts  of B, which is multiplied by `scale`, with the rows of the matrix that are theirs
    """

    shape: tuple[int, ...]
    parts: Sequence[tuple[slice, Stored | None]]
    rank: int
    scale: float | None = None

    def read(self, numbers: NumberType) -> np.ndarray:
        """The numbers, in a type."""
        out = np.zeros(self.shape, np.float32)
        for number, (rows, stored) in enumerate(self.parts):
            own = slice(number * self.rank, (number + 1) * self.rank)
            if stored is None:
                continue
            if self.scale is None:
                out[own] = stored.read("float32")
            else:
                out[rows, own] = self.scale * stored.read("float32")
        return converted(out, numbers)


def is_adapter(path: Path) -> bool:
    """Whether there is a LoRA adapter in a folder."""
    return (path / CONFIG).is_file()


def adapter_values(path: Path) -> dict[str, Any]:
    """What a folder of drafts would say in its config. CheckpointError or UnsupportedError, in one line, for an adapter
    that is damaged, or more than low-rank weights.
    """
    values = read_json(path / CONFIG, required=True)
    targets = [name for names in TARGETS.values() for name in names]
    rank = rank_of(values, str(path / CONFIG), targets)
    held = adapter_tensors(path)
    matrices = [
        ours for ours, names in TARGETS.items() if any(f".{name}.lora_A." in key for name in names for key in held)
    ]
    shape = {
        "draft_rank": rank,
        "draft_matrices": matrices,
        "draft_split": True,
        "draft_rows": "random",
        "draft_acceptance": ACCEPTANCE,
    }
    return {"base": {"name": str(values.get("base_model_name_or_path") or "")}, "shape": shape}


def adapter_files(path: Path) -> list[Path]:
    """The files of an adapter's weights. CheckpointError without any."""
    found = sorted(path.glob("adapter_model*.safetensors"))
    if not found:
        raise CheckpointError(f"{path} has no adapter_model.safetensors: copy the whole folder")
    return found


def adapter_tensors(path: Path) -> dict[str, Stored]:
    """The tensors of an adapter, by their names in the files."""
    return {name: one for file in adapter_files(path) for name, one in SafetensorsFile(file).tensors().items()}


def adapter_factors(path: Path, config: ModelConfig) -> Mapping[str, SplitFactors]:
    """An adapter's weights under the names of ours, for a model whose config has the low-rank weights. CheckpointError
    where they do not fit the model.
    """
    held, shapes, rank = adapter_tensors(path), parameter_shapes(config), config.draft_rank
    values, used = read_json(path / CONFIG, required=True), set[str]()
    pieces = [piece for piece in llama_pieces(config) if piece.target.endswith(".weight")]
    out = dict[str, SplitFactors]()
    for name in shapes:
        matrix = name.removesuffix("_draft.a.weight")
        if matrix == name or f"{matrix}.weight" not in shapes:
            continue
        own = [piece for piece in pieces if piece.target == f"{matrix}.weight"]
        if len(own) != DRAFT_PARTS[matrix.rpartition(".")[2]]:
            raise CheckpointError(f"{path} has low-rank weights of {matrix}, which this model's files have otherwise")
        num_out, num_in = shapes[f"{matrix}.weight"]
        rows = [_rows(piece, num_out) for piece in own]
        found = [
            _pair(held, piece, (rank, num_in, each.stop - each.start), path)
            for piece, each in zip(own, rows, strict=True)
        ]
        used |= {key for piece in own for key in _names(piece)}
        for kind, scale in enumerate((None, scale_of(values, rank))):
            key = f"{matrix}_draft.{'ab'[kind]}.weight"
            parts = [(each, pair[kind]) for each, pair in zip(rows, found, strict=True)]
            out[key] = SplitFactors(shapes[key], parts, rank, scale)
    if others := sorted(held.keys() - used):
        raise CheckpointError(
            f"{path} has tensors that this model has no place for, such as {others[0]}: leave out drafts"
        )
    return out


def _rows(piece: Piece, num_out: int) -> slice:
    rows = piece.index[0] if piece.index else slice(0, num_out)
    assert isinstance(rows, slice)
    return rows


def _names(piece: Piece) -> tuple[str, str]:
    module = PREFIX + piece.name.removesuffix(".weight")
    return f"{module}.lora_A.weight", f"{module}.lora_B.weight"


def _pair(
    held: Mapping[str, Stored], piece: Piece, sizes: tuple[int, int, int], path: Path
) -> tuple[Stored | None, Stored | None]:
    """A and B of a published matrix; None where the adapter leaves it alone."""
    a, b = (held.get(name) for name in _names(piece))
    rank, num_in, num_out = sizes
    if a is None and b is None:
        return None, None
    if a is None or b is None or a.shape != (rank, num_in) or b.shape != (num_out, rank):
        raise CheckpointError(f"{path} does not fit the model at {piece.name}: name the drafts of this model")
    return a, b
