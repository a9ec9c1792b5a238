"""Which model and which software a record is of."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import daguerre
from daguerre.audit.canonical import digest, plain
from daguerre.errors import DaguerreError
from daguerre.model import Model
from daguerre.models.backends.native_backend import NativeBackend
from daguerre.models.core.backbone import Backbone
from daguerre.models.hub import is_name
from daguerre.models.loading import model_folder, read_extra
from daguerre.models.processor import instruction_set

SOURCES = ("*.py", "*.cpp", "*.h")


def model_facts(model: Model, name: str | None) -> dict[str, Any]:
    """Which model: hashes of what it computes with, as it is in memory, and what its folder says of its training."""
    config, catalog = model.config, model.concepts
    weights, heads = weights_hashes(model.backbone)
    return {
        "name": name,
        "family": model.family,
        "parameters": model.num_parameters,
        "weights_sha256": weights,
        "concepts_sha256": heads,
        "config_sha256": digest(json.dumps(plain(config.to_dict()), sort_keys=True).encode()),
        "tokenizer_sha256": model.tokenizer.sha256,
        "taxonomy_sha256": None if config.concepts is None else config.concepts.taxonomy or None,
        "catalog_sha256": None if catalog is None else digest(json.dumps(plain(catalog), sort_keys=True).encode()),
        "training": training_facts(name),
    }


def weights_hashes(backbone: Backbone) -> tuple[str, str | None]:
    """SHA-256 of the names, types, shapes and bytes of all weights but the concept heads', and of those; None: there
    are no heads.
    """
    hashes = hashlib.sha256(), hashlib.sha256()
    for name, weight in sorted(backbone.state_dict().items()):
        one = weight.detach().cpu().contiguous()
        into = hashes[name.startswith("concepts.")]
        into.update(f"{name} {one.dtype} {list(one.shape)}\n".encode())
        into.update(memoryview(one.reshape(-1).view(torch.uint8).numpy()))
    return hashes[0].hexdigest(), None if backbone.concepts is None else hashes[1].hexdigest()


def training_facts(name: str | None) -> dict[str, Any]:
    """What `extra` in the config.json of the folder of that name says of the training: the id of the run, the SHA-256
    of its data, the recipe, the tokens that it saw. None for what it does not say; a hub is not asked.
    """
    extra = dict[str, Any]()
    if name is not None and (Path(name).expanduser().exists() or not is_name(name)):
        with suppress(DaguerreError):
            extra = read_extra(model_folder(name, weights=False))
    trained = extra.get("trained")
    tokens = trained.get("tokens") if isinstance(trained, dict) else None
    said = {key: extra.get(key) for key in ("run", "data_sha256", "recipe")}
    texts = {key: value if isinstance(value, str) else None for key, value in said.items()}
    return texts | {"tokens": tokens if isinstance(tokens, int) else None}


def software_facts(model: Model) -> dict[str, Any]:
    """What computed: versions, and the parts that decide the last bits."""
    native = isinstance(model.denoiser.backend, NativeBackend)
    return {
        "daguerre": daguerre.__version__,
        "commit": commit(),
        "source_sha256": source_hash(),
        "packages_sha256": packages_hash(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "cuda": torch.version.cuda,
        "backend": "native" if native else "torch",
        "dtype": str(model.dtype).removeprefix("torch."),
        "quantize": model.denoiser.quantize,
        "device": str(model.backbone.embedding.weight.device),
        "machine": platform.machine(),
        "instruction_set": instruction_set(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


@lru_cache(maxsize=1)
def commit() -> str | None:
    """The commit that was installed, where pip knows it (PEP 610)."""
    try:
        text = importlib.metadata.distribution("daguerre").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    found = json.loads(text or "{}").get("vcs_info", {}).get("commit_id")
    return None if found is None else str(found)


@lru_cache(maxsize=1)
def source_hash() -> str:
    """SHA-256 of what `sha256sum` prints of the package's Python and C++ files, by their paths in it. It tells an
    edited installation from the released one, where no commit does.
    """
    root = Path(daguerre.__file__).parent
    files = {path.relative_to(root).as_posix(): path for kind in SOURCES for path in root.rglob(kind)}
    return digest("".join(f"{digest(files[name].read_bytes())}  {name}\n" for name in sorted(files)).encode())


@lru_cache(maxsize=1)
def packages_hash() -> str:
    """SHA-256 of the installed packages, a line `name==version` each, in lower case and sorted."""
    found = {f"{one.name}=={one.version}\n".lower() for one in importlib.metadata.distributions()}
    return digest("".join(sorted(found)).encode())
