"""The average of the weights of models that were trained on from the same one.

Between such weights the loss has no barrier, and their mean is often better than either (Wortsman et al., "Robust
fine-tuning of zero-shot models", arXiv:2109.01903). The mean of models with different starts is useless, and no file
shows which case it is: measure the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from daguerre.errors import DataError, InputError
from daguerre.models.loading import (
    CONFIG,
    load_folder,
    load_model,
    model_folder,
    read_extra,
    save_model,
    weights_hash,
)


def average_models(parts: Sequence[tuple[str | Path, float]], out: str | Path) -> Path:
    """Write to `out` the model whose every weight is the sum of those of `parts`, each by its share; returns `out`.
    Where the first part alone has concept heads, they are taken as they are: train them alone afterwards. The tasks of
    `daguerre.instructions` that all parts were trained on are those of the model.

    Summed in float32 in the order given, stored in bfloat16. InputError unless two or more parts of one shape and one
    vocabulary have positive shares that add up to 1, and for a model that is in `out` already; DataError where nothing
    can be written.
    """
    if len(parts) < 2:
        raise InputError("an average is of two models or more")
    if not all(share > 0 for _, share in parts) or not math.isclose(sum(share for _, share in parts), 1, abs_tol=1e-6):
        raise InputError("the shares must be above 0 and add up to 1")
    if (Path(out) / CONFIG).exists():
        raise InputError(f"{out} has a model already: choose another folder")
    folders = [model_folder(name) for name, _ in parts]
    first = load_folder(folders[0], dtype=torch.float32)
    backbone, tokenizer = first.backbone, first.tokenizer
    weights = {name: parts[0][1] * tensor for name, tensor in backbone.state_dict().items()}
    for folder, (_, share) in zip(folders[1:], parts[1:], strict=True):
        other, its_tokenizer = load_model(folder, dtype=torch.float32)
        one, two = backbone.config.to_dict(), other.config.to_dict()
        alone = {"concepts"} if other.concepts is None else set[str]()
        if backbone.concepts is None and other.concepts is not None:
            raise InputError(f"{folder} has concept heads and {folders[0]} has none: name the model with heads first")
        if differing := [key for key in one if one[key] != two[key] and key not in alone]:
            raise InputError(f"{folder} has another {differing[0]} than {folders[0]}: average models of one shape")
        if its_tokenizer != tokenizer:
            raise InputError(f"{folder} has another vocabulary than {folders[0]}: average models of one")
        theirs = other.state_dict()
        for name, tensor in backbone.state_dict().items():
            weights[name] += share * theirs.get(name, tensor)
    backbone.load_state_dict(weights)
    made = [
        {"weights_sha256": weights_hash(folder), "share": share}
        for folder, (_, share) in zip(folders, parts, strict=True)
    ]
    taught = [read_extra(folder).get("tasks", []) for folder in folders]
    tasks = [task for task in taught[0] if all(task in others for others in taught)]
    extra = {"average": made} | ({"tasks": tasks} if tasks else {})
    try:
        return save_model(out, backbone, tokenizer, extra=extra, catalog=first.concepts)
    except OSError as error:
        raise DataError(f"cannot write {out}: {error}; give another --out") from error
