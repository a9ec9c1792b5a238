"""Weights that a folder adds to a published model, whose own stay as they are to the bit: those of a draft head
(`models.draft_files`) or of concept heads (`models.head_files`). A folder names the model that it was trained for, and
is refused for another: that one's hidden states would be noise to it.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daguerre.errors import CheckpointError
from daguerre.files import atomic_write
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.parameters import parameter_shapes
from daguerre.models.model_weights import OUTSIDE, DeferredWeights, InBlocks, ModelWeights, Part, Parts
from daguerre.models.shards import SafetensorsFile

if TYPE_CHECKING:
    from torch import Tensor

NONE = Path("none")
"""What stands for no folder, also where one lies beside the model."""
SAMPLES, SAMPLE = 64, 1 << 18
"""How many places of the weights a fingerprint reads, and how many bytes at each."""


def fingerprint(paths: Sequence[Path]) -> str:
    """SHA-256 of files' sizes and of samples of their content, which tells weights from others: all of files of
    gigabytes would take seconds at every start.
    """
    digest = hashlib.sha256()
    for path in paths:
        size = path.stat().st_size
        digest.update(str(size).encode())
        with path.open("rb") as file:
            for number in range(SAMPLES):
                file.seek(number * max(0, size - SAMPLE) // (SAMPLES - 1))
                digest.update(file.read(SAMPLE))
    return digest.hexdigest()


def write_added(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the weights of a folder, in bfloat16; the file appears when it is whole."""
    import torch
    from safetensors.torch import save

    path.parent.mkdir(parents=True, exist_ok=True)
    content = save({name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in tensors.items()})
    with atomic_write(path) as file:
        file.write(content)


class AddedWeights(DeferredWeights):
    """The weights of a model with those of a file.

    config   of both together
    begins   what the names of the added weights begin with; they belong to no layer

    CheckpointError where the file has other tensors than the config says.
    """

    def __init__(self, weights: ModelWeights, config: ModelConfig, path: Path, begins: str) -> None:
        self.config, self.numbers, self.device = config, weights.numbers, weights.device
        self._weights, self._path, self._begins = weights, path, begins
        self._check(SafetensorsFile(path).tensors())

    def _check(self, stored: Mapping[str, Any]) -> None:
        wanted = {name: shape for name, shape in parameter_shapes(self.config).items() if name.startswith(self._begins)}
        if {name: tuple(one.shape) for name, one in stored.items()} != wanted:
            raise CheckpointError(f"{self._path} has other tensors than its config says: copy it again")

    @property
    def paths(self) -> list[Path]:
        """The files that hold them."""
        return [*self._weights.paths, self._path]

    @property
    def stored_bits(self) -> float | None:
        """Bits of a weight as it is stored, where some matrices are in blocks."""
        return self._weights.stored_bits

    def exact(self) -> ModelWeights:
        """The same weights, where they can be read again as float32."""
        exact = copy.copy(self)
        exact._weights = self._weights.exact()
        exact.numbers = exact._weights.numbers
        return exact

    def as_stored(self) -> Parts:
        """The same weights, of which matrices in blocks are rows of these."""
        stored = self._weights.as_stored()
        return InBlocks(self, lambda layer: self._with_added(layer, stored.part(layer)))

    def part(self, layer: int | None) -> Part:
        """The weights of a part."""
        return self._with_added(layer, self._weights.part(layer))

    def _with_added(self, layer: int | None, part: Part) -> Part:
        if layer is OUTSIDE:
            tensors = SafetensorsFile(self._path).tensors()
            part |= {name: one.read(self.numbers) for name, one in tensors.items()}
        return part
