"""The published model that a run began with: its tokenizer when the run is resumed, and its layout at the end."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from daguerre.models.catalog import Catalog
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.loading import open_source, save_model
from daguerre.models.readers import read_tokenizer
from daguerre.models.republish import keep_origin, scale_origin, write_back
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.convert import Convert, convert_origin

ORIGIN = "origin"
"""The folder in a run that has the small files of the published model that it began with."""


def family_of(start_from: str | None, run: Path) -> str | None:
    """The family of the published model that a run began with; None for a model of Daguerre's own layout."""
    folder = run / ORIGIN if start_from is None else Path(start_from)
    return open_source(folder).family_name if folder.exists() else None


def keep(start_from: str | None, run: Path, resumed: bool, options: Convert | None, config: ModelConfig) -> None:
    """Keep what the end of a run needs of the published model that it begins with; `config` is the model's after a
    conversion, if there is one.
    """
    if start_from is not None and open_source(Path(start_from)).is_published:
        keep_origin(Path(start_from), run / ORIGIN)
        if options is not None:
            convert_origin(run / ORIGIN, Path(start_from), options, config)
        else:
            scale_origin(run / ORIGIN, config)
    elif not resumed:
        shutil.rmtree(run / ORIGIN, ignore_errors=True)


def tokenizer_of_run(run: Path, data: Path, config: dict[str, Any]) -> Tokenizer:
    """The tokenizer of a run that is resumed, whose model has this config."""
    tokenizer = read_tokenizer(run / ORIGIN) if (run / ORIGIN).is_dir() else None
    if tokenizer is None:
        return Tokenizer.load(data / "tokenizer.json")
    tokenizer = tokenizer.sized(config["vocab_size"])
    tokenizer.eos_id = config["eos_id"]
    return tokenizer


def write_model(
    run: Path, backbone: Backbone, tokenizer: Tokenizer, extra: dict[str, Any], names: Catalog | None
) -> Path:
    """Write a run's model: in the layout of the published one that it began with, or else in Daguerre's own."""
    if (run / ORIGIN).is_dir():
        return write_back(run / ORIGIN, run / "model", backbone)
    return save_model(run / "model", backbone, tokenizer, extra=extra, catalog=names)
