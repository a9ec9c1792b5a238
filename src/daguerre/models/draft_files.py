"""The folder of drafts for a published autoregressive model (`daguerre train drafts`): CONFIG and WEIGHTS. It has a
draft head, low-rank weights of rows that draft, or both.

It is read beside the model that it was trained for, whose own weights and distributions stay as they are, to the bit.
Another model is refused: its states would be noise to the head.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daguerre.errors import CheckpointError, DaguerreError, UnsupportedError
from daguerre.files import write_json
from daguerre.models.adapter_files import CONFIG as ADAPTER
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.parameters import parameter_shapes
from daguerre.models.draft_adapters import SplitFactors, adapter_factors, adapter_files, adapter_values, is_adapter
from daguerre.models.json_files import read_json
from daguerre.models.model_weights import DeferredWeights, InBlocks, ModelWeights, Part, Parts, layer_of
from daguerre.models.shards import SafetensorsFile, Stored
from daguerre.models.sources import Loaded

if TYPE_CHECKING:
    from torch import Tensor

CONFIG, WEIGHTS = "draft_config.json", "drafts.safetensors"
NONE = Path("none")
"""What stands for no drafts."""
SHIPPED = "drafts"
"""The folder of the package's drafts among its assets, each in a folder of the model's name."""
LOG = logging.getLogger("daguerre")
SAMPLES, SAMPLE = 64, 1 << 18
"""How many places of the weights a fingerprint reads, and how many bytes at each."""


@dataclass(frozen=True)
class DraftFolder:
    """A folder of drafts: what its config says, and where its weights are.

    base      the model it was trained for, by its name, and the fingerprint of its weights
    shape     the fields of the model's config that it adds
    trained   what it was trained on, for people
    """

    path: Path
    base: Mapping[str, str]
    shape: Mapping[str, Any]
    trained: Mapping[str, Any]

    def config(self, config: ModelConfig) -> ModelConfig:
        """The model's config with the draft head. CheckpointError where the two do not fit."""
        try:
            return replace(config, **self.shape)
        except (DaguerreError, TypeError) as error:
            raise CheckpointError(f"{self.path / CONFIG} does not fit the model: {error}") from None

    def fits(self, paths: Sequence[Path]) -> bool:
        """Whether it was trained for these weights. An adapter does not say that: then their shapes have to do."""
        return "sha256" not in self.base or fingerprint(paths) == self.base["sha256"]

    def check_base(self, paths: Sequence[Path]) -> None:
        """CheckpointError for weights that it was not trained for."""
        if not self.fits(paths):
            raise CheckpointError(
                f"{self.path} drafts for {self.base.get('name', 'another model')}, and these are other weights: load "
                "that file, or train drafts for this one with `daguerre train drafts`"
            )

    @property
    def paths(self) -> list[Path]:
        """The files of its weights, and of an adapter the one that has their scale."""
        return [*adapter_files(self.path), self.path / ADAPTER] if is_adapter(self.path) else [self.path / WEIGHTS]

    def tensors(self, config: ModelConfig) -> Mapping[str, Stored | SplitFactors]:
        """Its weights for a model with this config, by name."""
        return adapter_factors(self.path, config) if is_adapter(self.path) else SafetensorsFile(self.paths[0]).tensors()


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


def is_draft_folder(path: Path) -> bool:
    """Whether there are drafts in a folder."""
    return (path / CONFIG).is_file() or is_adapter(path)


def is_model(drafts: str | os.PathLike[str] | None) -> bool:
    """Whether what is to draft is a second model, and not a folder of drafts, or nothing."""
    if drafts is None or Path(drafts) == NONE:
        return False
    try:
        return not is_draft_folder(Path(drafts).expanduser())
    except (OSError, RuntimeError, ValueError):  # what can be no path may be a name
        return True


def read_draft_folder(path: Path) -> DraftFolder:
    """CheckpointError, in one line, for a folder that is none, or damaged."""
    if is_adapter(path):
        values = adapter_values(path)
        return DraftFolder(path, values["base"], values["shape"], {})
    values = read_json(path / CONFIG, hint=f"drafts have {CONFIG} and {WEIGHTS}", required=True)
    base, shape = values.get("base"), values.get("shape")
    if (
        not isinstance(base, Mapping)
        or not isinstance(shape, Mapping)
        or not (shape.get("draft_head") or shape.get("draft_rank"))
    ):
        raise CheckpointError(f"{path / CONFIG} does not say which drafts it has, and for which model: copy it again")
    if not (path / WEIGHTS).is_file():
        raise CheckpointError(f"{path} has no {WEIGHTS}: copy the whole folder")
    return DraftFolder(path, base, shape, values.get("trained") or {})


def save_draft_folder(
    path: Path, tensors: Mapping[str, Tensor], base: Mapping[str, str], shape: Mapping[str, Any], trained: Any
) -> None:
    """Write drafts, in bfloat16; each file appears when it is whole, the config last."""
    import torch
    from safetensors.torch import save

    from daguerre.files import atomic_write

    path.mkdir(parents=True, exist_ok=True)
    content = save({name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in tensors.items()})
    with atomic_write(path / WEIGHTS) as file:
        file.write(content)
    write_json(path / CONFIG, {"base": dict(base), "shape": dict(shape), "trained": trained})


def with_drafts(loaded: Loaded, chosen: Path | None) -> Loaded:
    """The model with the drafts of a folder; those beside it or in the package where none is chosen and these are for
    its weights; or without any for `NONE`.

    CheckpointError for a folder that is none, or for other weights; UnsupportedError for a model that cannot have any.
    """
    folder = _found(loaded) if chosen is None else None if chosen == NONE else read_draft_folder(chosen)
    if folder is None:
        return loaded
    if chosen is not None:
        folder.check_base(loaded.source.weight_files())
    weights = DraftedWeights(loaded.weights, folder)
    if loaded.weights.made is not None:
        weights.module()
    return replace(loaded, weights=weights)


def _found(loaded: Loaded) -> DraftFolder | None:
    """The drafts beside a model, or those of the package for it; None where there are none for its weights."""
    path = loaded.source.path
    for place in (path.with_name(f"{path.name}.drafts"), Path(__file__).parents[1] / "assets" / SHIPPED / path.name):
        if is_draft_folder(place):
            folder = read_draft_folder(place)
            if folder.fits(loaded.source.weight_files()):
                return folder
            LOG.warning("%s drafts for other weights: it is left out", place)
    return None


class DraftedWeights(DeferredWeights):
    """Weights of a model with those of drafts."""

    def __init__(self, weights: ModelWeights, folder: DraftFolder) -> None:
        if not weights.config.can_draft or weights.config.draft_head or weights.config.mask_id is not None:
            raise UnsupportedError(
                f"{folder.path} has drafts for an autoregressive model, and this one drafts by itself, or cannot: "
                "leave out drafts"
            )
        self.config, self.numbers = folder.config(weights.config), weights.numbers
        self.device = weights.device
        self._weights, self._folder = weights, folder
        self._drafts = defaultdict[int | None, dict[str, Stored | SplitFactors]](dict)
        stored = folder.tensors(self.config)
        for name, one in stored.items():
            layer, inner = layer_of(name)
            self._drafts[layer][inner] = one
        self._check(stored, parameter_shapes(weights.config))

    def _check(self, stored: Mapping[str, Any], before: Mapping[str, Any]) -> None:
        wanted = {name: shape for name, shape in parameter_shapes(self.config).items() if name not in before}
        if {name: tuple(one.shape) for name, one in stored.items()} != wanted:
            raise CheckpointError(f"{self._folder.paths[0]} has other tensors than its config says: copy it again")

    @property
    def paths(self) -> list[Path]:
        """The files that hold them."""
        return [*self._weights.paths, *self._folder.paths]

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
        return {name: one.read(self.numbers) for name, one in self._drafts[layer].items()}
