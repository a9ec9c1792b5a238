"""The folder of a draft head for a published autoregressive model (`daguerre train drafts`): CONFIG and WEIGHTS.

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
from daguerre.models.added_weights import NONE, AddedWeights, fingerprint, write_added
from daguerre.models.core.config import ModelConfig
from daguerre.models.json_files import read_json
from daguerre.models.sources import Loaded

if TYPE_CHECKING:
    from torch import Tensor

CONFIG, WEIGHTS = "draft_config.json", "drafts.safetensors"
HEAD = "draft_head."
SHIPPED = "drafts"
"""The folder of the package's drafts among its assets, each in a folder of the model's name."""
LOG = logging.getLogger("daguerre")


@dataclass(frozen=True)
class DraftFolder:
    """The folder of a draft head: what its config says, and where its weights are.

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

    def check_base(self, paths: Sequence[Path]) -> None:
        """CheckpointError for weights that it was not trained for."""
        if fingerprint(paths) != self.base.get("sha256"):
            raise CheckpointError(
                f"{self.path} drafts for {self.base.get('name', 'another model')}, and these are other weights: load "
                "that file, or train drafts for this one with `daguerre train drafts`"
            )


def is_draft_folder(path: Path) -> bool:
    """Whether there is a draft head in a folder."""
    return (path / CONFIG).is_file()


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
    values = read_json(path / CONFIG, hint=f"drafts have {CONFIG} and {WEIGHTS}", required=True)
    base, shape = values.get("base"), values.get("shape")
    if not isinstance(base, Mapping) or not isinstance(shape, Mapping) or not shape.get("draft_head"):
        raise CheckpointError(f"{path / CONFIG} does not say which drafts it has, and for which model: copy it again")
    if not (path / WEIGHTS).is_file():
        raise CheckpointError(f"{path} has no {WEIGHTS}: copy the whole folder")
    return DraftFolder(path, base, shape, values.get("trained") or {})


def save_draft_folder(
    path: Path, tensors: Mapping[str, Tensor], base: Mapping[str, str], shape: Mapping[str, Any], trained: Any
) -> None:
    """Write a draft head, in bfloat16; each file appears when it is whole, the config last."""
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
    weights = AddedWeights(loaded.weights, folder.config(config), folder.path / WEIGHTS, HEAD)
    if loaded.weights.made is not None:
        weights.module()
    return replace(loaded, weights=weights)


def _found(loaded: Loaded) -> DraftFolder | None:
    """The drafts beside a model, or those of the package for it; None where there are none for its weights."""
    path = loaded.source.path
    for place in (path.with_name(f"{path.name}.drafts"), Path(__file__).parents[1] / "assets" / SHIPPED / path.name):
        if is_draft_folder(place):
            folder = read_draft_folder(place)
            if fingerprint(loaded.source.weight_files()) == folder.base.get("sha256"):
                return folder
            LOG.warning("%s drafts for other weights: it is left out", place)
    return None
