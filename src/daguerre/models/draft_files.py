"""The folder of drafts for a published autoregressive model (`daguerre train drafts`): CONFIG and WEIGHTS. It has a
draft head, low-rank weights of rows that draft, or both.

It is read beside the model that it was trained for, whose own weights and distributions stay as they are, to the bit.
Another model is refused: its states would be noise to the head.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daguerre.errors import CheckpointError, DaguerreError, UnsupportedError
from daguerre.files import write_json
from daguerre.models.adapter_files import CONFIG as ADAPTER
from daguerre.models.added_weights import NONE, AddedWeights, fingerprint, write_added
from daguerre.models.core.config import ModelConfig
from daguerre.models.draft_adapters import SplitFactors, adapter_factors, adapter_files, adapter_values, is_adapter
from daguerre.models.json_files import read_json
from daguerre.models.shards import SafetensorsFile, Stored
from daguerre.models.sources import Loaded

if TYPE_CHECKING:
    from torch import Tensor

CONFIG, WEIGHTS = "draft_config.json", "drafts.safetensors"
SHIPPED = "drafts"
"""The folder of the package's drafts among its assets, each in a folder of the model's name."""
LOG = logging.getLogger("daguerre")


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
    write_added(path / WEIGHTS, tensors)
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
    config = loaded.weights.config
    if not config.can_draft or config.draft_head or config.mask_id is not None:
        raise UnsupportedError(
            f"{folder.path} has drafts for an autoregressive model, and this one drafts by itself, or cannot: "
            "leave out drafts"
        )
    config = folder.config(config)
    weights = AddedWeights(loaded.weights, config, folder.paths, folder.tensors(config))
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
