"""Which model and which software a record is of."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
from contextlib import suppress
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

import daguerre
from daguerre.audit.canonical import digest, plain
from daguerre.errors import DaguerreError
from daguerre.extras import pytorch
from daguerre.model import Model
from daguerre.models.backends.native_backend import NativeBackend
from daguerre.models.bits import number_type
from daguerre.models.contention import num_threads
from daguerre.models.core.parameters import parameter_shapes
from daguerre.models.hub import is_name
from daguerre.models.loading import model_folder, read_extra
from daguerre.models.model_weights import ModelWeights, layer_of
from daguerre.models.processor import instruction_set

SOURCES = ("*.py", "*.cpp", "*.h")


def model_facts(model: Model, name: str | None) -> dict[str, Any]:
    """Which model: hashes of what it computes with, as it is in memory, and what its folder says of its training."""
    config, catalog = model.config, model.concepts
    weights, heads = weights_hashes(model.denoiser.weights)
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


def weights_hashes(weights: ModelWeights) -> tuple[str, str | None]:
    """SHA-256 of the names, types, shapes and bytes of all weights but the concept heads', and of those; None: there
    are no heads.
    """
    hashes = hashlib.sha256(), hashlib.sha256()
    for layer, names in groupby(sorted(parameter_shapes(weights.config)), lambda name: layer_of(name)[0]):
        part = weights.part(layer)
        for name in names:
            one = np.ascontiguousarray(part[layer_of(name)[1]])
            into = hashes[name.startswith("concepts.")]
            into.update(f"{name} torch.{number_type(one)} {list(one.shape)}\n".encode())
            into.update(one.reshape(-1).view(np.uint8).data)
    return hashes[0].hexdigest(), None if weights.config.concepts is None else hashes[1].hexdigest()


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
        "numpy": np.__version__,
        "backend": "native" if native else "torch",
        "quantize": model.denoiser.quantize,
        "machine": platform.machine(),
        "instruction_set": instruction_set(),
        "threads": num_threads(),
    } | (_native_facts(model) if native else _pytorch_facts(model))


def _native_facts(model: Model) -> dict[str, Any]:
    """What PyTorch's facts are where it computes nothing; it need not be installed."""
    version = None
    with suppress(importlib.metadata.PackageNotFoundError):
        version = importlib.metadata.version("torch")
    return {"torch": version, "cuda": None, "dtype": model.numbers, "device": "cpu", "deterministic": False}


def _pytorch_facts(model: Model) -> dict[str, Any]:
    torch = pytorch()
    return {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.backbone.embedding.weight.device),
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
