"""The folder of concept heads for a published model (`daguerre train heads`): CONFIG, WEIGHTS and the catalog of names.

It is read beside the model that it was trained for, whose own weights and distributions stay as they are, to the bit.
Another model, and one with an adapter, is refused: heads read hidden states, and theirs are others.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daguerre.errors import CheckpointError, DaguerreError, UnsupportedError
from daguerre.files import atomic_write, write_json
from daguerre.models.added_weights import NONE, AddedWeights, fingerprint, write_added
from daguerre.models.catalog import FILE as NAMES
from daguerre.models.catalog import Catalog, read_catalog
from daguerre.models.core.shapes import ConceptShape
from daguerre.models.json_files import read_json
from daguerre.models.shards import SafetensorsFile
from daguerre.models.sources import Loaded, ModelSource

if TYPE_CHECKING:
    from torch import Tensor

CONFIG, WEIGHTS = "heads_config.json", "heads.safetensors"
CONCEPTS = "concepts."
"""What the names of their weights begin with."""
ENDING = ".concepts"
"""Of the folder beside a model: its name is the model's and this."""
MOST_BYTES = 15_000_000
"""Of the weights of heads that are trained."""
LOG = logging.getLogger("daguerre")


@dataclass(frozen=True)
class HeadFolder:
    """The folder of concept heads: what its config says, and where its weights and names are.

    base      the model they were trained for, by its name, and the fingerprint of its weights
    shape     of the heads
    trained   what they were trained on, for people
    """

    path: Path
    base: Mapping[str, str]
    shape: ConceptShape
    trained: Mapping[str, Any]

    def is_for(self, source: ModelSource) -> bool:
        """Whether they were trained for a model's weights."""
        return fingerprint(source.weight_files()) == self.base.get("sha256")

    def check_base(self, source: ModelSource) -> None:
        """CheckpointError for weights that they were not trained for."""
        if not self.is_for(source):
            raise CheckpointError(
                f"{self.path} has concept heads for {self.base.get('name', 'another model')}, and these are other "
                "weights: load that file, or train heads for this one with `daguerre train heads`"
            )

    def names(self) -> Catalog:
        """The names of their concepts. CheckpointError for a damaged file."""
        return read_catalog(self.path / NAMES, self.shape)

    def sha256(self) -> str:
        """SHA-256 of their weights."""
        return hashlib.sha256((self.path / WEIGHTS).read_bytes()).hexdigest()


def is_head_folder(path: Path) -> bool:
    """Whether there are concept heads in a folder."""
    return (path / CONFIG).is_file()


def read_head_folder(path: Path) -> HeadFolder:
    """CheckpointError, in one line, for a folder that is none, or damaged."""
    values = read_json(path / CONFIG, hint=f"concept heads have {CONFIG} and {WEIGHTS}", required=True)
    base, shape = values.get("base"), values.get("shape")
    if not isinstance(base, Mapping) or not isinstance(shape, Mapping):
        raise CheckpointError(f"{path / CONFIG} does not say which heads it has, and for which model: copy it again")
    if not (path / WEIGHTS).is_file():
        raise CheckpointError(f"{path} has no {WEIGHTS}: copy the whole folder")
    try:
        return HeadFolder(path, base, ConceptShape(**shape), values.get("trained") or {})
    except (DaguerreError, TypeError) as error:
        raise CheckpointError(f"{path / CONFIG} has no shape of heads ({error}): copy it again") from None


def save_head_folder(
    path: Path,
    tensors: Mapping[str, Tensor],
    base: Mapping[str, str],
    shape: ConceptShape,
    catalog: Catalog,
    trained: Mapping[str, Any],
) -> None:
    """Write concept heads, in bfloat16; each file appears when it is whole, the config last."""
    write_added(path / WEIGHTS, tensors)
    with atomic_write(path / NAMES) as file:
        file.write(catalog.to_bytes())
    write_json(path / CONFIG, {"base": dict(base), "shape": asdict(shape), "trained": dict(trained)})


def heads_of(source: ModelSource, chosen: Path | None) -> HeadFolder | None:
    """The concept heads in a chosen folder; those beside a model where none is chosen and these are for its weights;
    None for `NONE`, and where there are none.

    CheckpointError for a folder that has none, or has some for other weights.
    """
    if chosen is not None and chosen != NONE:
        folder = read_head_folder(chosen)
        folder.check_base(source)
        return folder
    place = source.path.with_name(f"{source.path.name}{ENDING}")
    if chosen is not None or not is_head_folder(place):
        return None
    folder = read_head_folder(place)
    if folder.is_for(source):
        return folder
    LOG.warning("%s has concept heads for other weights: it is left out", place)
    return None


def names_of(source: ModelSource) -> Catalog | None:
    """The names of a model's concepts, its own or those of heads beside it, without its weights; None where it has
    none.
    """
    shape = source.config().concepts
    if shape is not None:
        return read_catalog(source.path / NAMES, shape)
    folder = heads_of(source, None)
    return None if folder is None else folder.names()


def with_heads(loaded: Loaded, chosen: Path | None, changed: bool = False) -> Loaded:
    """The model with concept heads; see `heads_of`. changed: an adapter was merged, so that none are for its weights.

    UnsupportedError for a model that has heads of its own.
    """
    if changed:
        if chosen is not None and chosen != NONE:
            raise UnsupportedError(
                f"{chosen} has concept heads for the model without an adapter: leave out adapter or concepts"
            )
        return loaded
    folder = heads_of(loaded.source, chosen)
    if folder is None:
        return loaded
    config = loaded.weights.config
    if config.concepts is not None:
        raise UnsupportedError(f"the model has concept heads of its own: leave out {folder.path}")
    config = replace(config, concepts=folder.shape)
    path = folder.path / WEIGHTS
    weights = AddedWeights(loaded.weights, config, [path], SafetensorsFile(path).tensors())
    if loaded.weights.made is not None:
        weights.module()
    return replace(loaded, weights=weights, concepts=folder.names())
