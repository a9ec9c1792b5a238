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
from daguerre.models.adapter_files import CONFIG, WEIGHTS
from daguerre.models.families.base import Bundled, Family
from daguerre.models.json_files import read_json
from daguerre.models.shards import SafetensorsFile, Stored


@dataclass(frozen=True)
class BundledAdapter:
    """A bundled adapter: what adapter_config.json says, and its tensors; both empty where there is none."""

    config: Mapping[str, Any]
    stored: Mapping[str, Stored]


NO_ADAPTER = BundledAdapter({}, {})


def read_bundled(bundled: Bundled, folder: Path, weights: bool = True) -> BundledAdapter:
    """The adapter that a published folder brings along; without `weights`, what its config says. CheckpointError, in
    one line, where one of the files is missing or damaged.
    """
    source = folder / bundled.folder
    if not source.is_dir():
        return NO_ADAPTER
    missing = [name for name in (CONFIG, WEIGHTS) if not (source / name).is_file()]
    if len(missing) == 2:
        return NO_ADAPTER
    if missing and (weights or CONFIG in missing):
        raise CheckpointError(f"{source} has no {missing[0]}: copy the whole folder, or delete {source.name} from it")
    config = read_json(source / CONFIG)
    if not weights:
        return BundledAdapter(config, {})
    return BundledAdapter(config, SafetensorsFile(source / WEIGHTS).tensors())


def with_adapter(family: Family, adapter: BundledAdapter) -> Family:
    """The family with the adapter's tensors among its pieces."""
    bundled, pieces = family.bundled, family.pieces
    if bundled is None:
        return family
    return replace(family, pieces=lambda config: [*pieces(config), *bundled.pieces(config, adapter.config)])
