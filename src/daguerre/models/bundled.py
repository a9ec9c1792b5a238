"""An adapter that a published checkpoint brings along, in PEFT's layout: `<folder>/adapter_config.json` and
`<folder>/adapter_model.safetensors`.

Its tensors are read with those of the model (`models.published_weights`) and become weights of their own, which act on
some rows alone: nothing is merged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from daguerre.errors import CheckpointError
from daguerre.models.families.base import Family
from daguerre.models.json_files import read_json
from daguerre.models.published_weights import Stored
from daguerre.models.weights import open_shard

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@dataclass(frozen=True)
class Adapter:
    """A bundled adapter: what adapter_config.json says, and its tensors; both empty where there is none."""

    config: Mapping[str, Any]
    stored: Mapping[str, Stored]


NO_ADAPTER = Adapter({}, {})


def read_bundled(family: Family, folder: Path, weights: bool = True) -> Adapter:
    """The adapter that a published folder brings along, for a family that knows of one; without `weights`, what its
    config says. CheckpointError, in one line, where one of the files is missing or damaged.
    """
    if family.bundled is None or not (folder / family.bundled.folder).is_dir():
        return NO_ADAPTER
    source = folder / family.bundled.folder
    missing = [name for name in (CONFIG, WEIGHTS) if not (source / name).is_file()]
    if len(missing) == 2:
        return NO_ADAPTER
    if missing and (weights or CONFIG in missing):
        raise CheckpointError(f"{source} has no {missing[0]}: copy the whole folder, or delete {source.name} from it")
    config = read_json(source / CONFIG)
    if not weights:
        return Adapter(config, {})
    with open_shard(source / WEIGHTS) as content:
        views = {name: content.get_slice(name) for name in content.keys()}  # noqa: SIM118 - not a mapping
        stored = {name: Stored.plain(source / WEIGHTS, x.get_shape(), x.get_dtype()) for name, x in views.items()}
    return Adapter(config, stored)


def with_adapter(family: Family, adapter: Adapter) -> Family:
    """The family with the adapter's tensors among its pieces."""
    bundled, pieces = family.bundled, family.pieces
    if bundled is None or not adapter.stored:
        return family
    return replace(family, pieces=lambda config: [*pieces(config), *bundled.pieces(config, adapter.config)])
