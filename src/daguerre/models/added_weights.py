"""Weights that a folder adds to a published model, whose own stay as they are to the bit: those of drafts
(`models.draft_files`) or of concept heads (`models.head_files`). A folder names the model that it was trained for, and
is refused for another: that one's hidden states would be noise to it.
"""

from __future__ import annotations

import copy
import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from daguerre.errors import CheckpointError
from daguerre.files import atomic_write
from daguerre.models.bits import NumberType
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.parameters import parameter_shapes
from daguerre.models.model_weights import DeferredWeights, InBlocks, ModelWeights, Part, Parts, layer_of

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


class Added(Protocol):
    """A weight that is added: a tensor of a file, or what is made of several."""

    @property
    def shape(self) -> Sequence[int]:
        """Its sizes."""

    def read(self, numbers: NumberType) -> np.ndarray:
        """The numbers, in a type."""


class AddedWeights(DeferredWeights):
    """The weights of a model with those of files.

    config  of both together
    paths   the files that hold the added ones; the first is named in errors
    added   those, by name

    CheckpointError where other weights are added than the config says.
    """

    def __init__(
        self, weights: ModelWeights, config: ModelConfig, paths: Sequence[Path], added: Mapping[str, Added]
    ) -> None:
        self.config, self.numbers, self.device = config, weights.numbers, weights.device
        self._weights, self._paths, self._added = weights, paths, defaultdict[int | None, dict[str, Added]](dict)
        before = parameter_shapes(weights.config)
        wanted = {name: shape for name, shape in parameter_shapes(config).items() if name not in before}
        if {name: tuple(one.shape) for name, one in added.items()} != wanted:
            raise CheckpointError(f"{paths[0]} has other tensors than its config says: copy it again")
        for name, one in added.items():
            layer, inner = layer_of(name)
            self._added[layer][inner] = one

    @property
    def paths(self) -> list[Path]:
        """The files that hold them."""
        return [*self._weights.paths, *self._paths]

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
        return InBlocks(self, lambda layer: stored.part(layer) | self._read(layer))

    def part(self, layer: int | None) -> Part:
        """The weights of a part."""
        return self._weights.part(layer) | self._read(layer)

    def _read(self, layer: int | None) -> Part:
        return {name: one.read(self.numbers) for name, one in self._added[layer].items()}
