"""LoRA adapters in PEFT's layout, merged into the weights at load: W + s B A (Hu et al., arXiv 2106.09685).

The scale s is alpha / r, or alpha / sqrt(r) with rsLoRA (arXiv 2312.03732). What else PEFT can put into an adapter is
refused by name. Letters: I and O numbers before and after a matrix, r the rank.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from daguerre.errors import CheckpointError, UnsupportedError
from daguerre.extras import without_gradients
from daguerre.models.adapter_files import CONFIG as CONFIG
from daguerre.models.adapter_files import WEIGHTS as WEIGHTS
from daguerre.models.bits import converted, floats, number_type
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.parameters import parameter_shapes
from daguerre.models.families.base import Piece
from daguerre.models.families.gpt2 import transposed
from daguerre.models.json_files import read_json
from daguerre.models.model_weights import DeferredWeights, FileWeights, Part, array_of, layer_of, tensor_of
from daguerre.models.shards import KINDS, SafetensorsFile, Stored, some

if TYPE_CHECKING:
    from torch import Tensor

    from daguerre.models.core.backbone import Backbone

FACTOR = re.compile(r"(.+)\.lora_(embedding_)?([AB])(?:\.(?!weight$)[^.]+)?(?:\.weight)?")
WRAPPED = "base_model.model."
"""What PEFT puts before the names of a model."""
REFUSED = (
    "use_dora",
    "use_qalora",
    "use_bdlora",
    "lora_bias",
    "layer_replication",
    "target_parameters",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "velora_config",
    "megatron_config",
)
"""Options that change what is computed."""
ALPHA = 8
"""PEFT's `lora_alpha` where none is given."""
KNOWN_STARTS = (None, True, False, "gaussian", "orthogonal", "eva")
"""Initializations that leave the model's own weights as they were."""


@dataclass
class _Matrix:
    """The factors of one matrix: `lora_A` (r, I) and `lora_B` (O, r), or those of an embedding."""

    factors: dict[str, str] = field(default_factory=dict)
    embedding: bool = False


@dataclass(frozen=True)
class Merged:
    """An adapter that was merged: parts of the backbone's weights, and what they were before."""

    before: tuple[tuple[Tensor, Tensor], ...]

    @without_gradients
    def unmerge(self) -> None:
        """Give every changed weight the bits that it had. They are kept: (W + P) - P is rounded twice."""
        for ours, value in self.before:
            ours.copy_(value)


@without_gradients
def merge_adapter(
    backbone: Backbone, pieces: Sequence[Piece], folder: Path, prefix: str = "", *, keep: bool = False
) -> Merged:
    """Add an adapter's products to the weights of a backbone, which are PyTorch's; see `read_adapter`.

    keep    keep the weights that change, on the CPU, for `Merged.unmerge`
    """
    adapter, parts = read_adapter(folder, pieces, prefix, backbone.config), backbone.state_dict()
    views = [(name, parts[piece.target][piece.index]) for name, piece in adapter.pieces.items()]
    before = tuple((view, view.detach().to("cpu", copy=True)) for _, view in views if keep)
    for name, view in views:
        view.copy_(tensor_of(adapter.changed(name, array_of(view))))
    return Merged(before)


class AdaptedWeights(DeferredWeights):
    """Weights with an adapter merged into each part that is read."""

    def __init__(self, weights: FileWeights, adapter: Adapter) -> None:
        self.config, self.numbers, self.device = weights.config, weights.numbers, weights.device
        self._weights, self._adapter = weights, adapter

    def part(self, layer: int | None) -> Part:
        """The weights of a part."""
        out = self._weights.part(layer)
        for name, piece in self._adapter.pieces.items():
            number, target = layer_of(piece.target)
            if number == layer:
                out[target][piece.index] = self._adapter.changed(name, out[target][piece.index])
        return out


def merged(weights: FileWeights, pieces: Sequence[Piece], adapter: Path, prefix: str) -> AdaptedWeights:
    """Weights of files with the adapter of a folder; see `read_adapter`."""
    return AdaptedWeights(weights, read_adapter(adapter, pieces, prefix, weights.config))


@dataclass(frozen=True)
class Adapter:
    """An adapter: its factors by the published names of their matrices, and the tensors that are whole."""

    config: Mapping[str, Any]
    tensors: Mapping[str, Stored]
    by_name: Mapping[str, Piece]
    matrices: Mapping[str, _Matrix]
    whole: Mapping[str, str]

    @property
    def pieces(self) -> dict[str, Piece]:
        """What changes, by its published name: whole tensors first."""
        return {name: self.by_name[name] for name in (*self.whole, *self.matrices)}

    def factors(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """A (r, I) and B (O, r) of a matrix, float32."""
        a, b = (self.tensors[self.matrices[name].factors[key]].read("float32") for key in "AB")
        return a, b

    def scale(self, name: str, rank: int) -> float:
        """What a matrix's product is multiplied by."""
        return _scale(self.config, name.removesuffix(".weight"), rank)

    def changed(self, name: str, ours: np.ndarray) -> np.ndarray:
        """A tensor of the model, of any type of weights, as the adapter has it."""
        kind = number_type(ours)
        if name in self.whole:
            ours = converted(np.asarray(self._ours(name, self.tensors[self.whole[name]].array())), kind)
        if name in self.matrices:
            a, b = self.factors(name)
            product = np.float32(self.scale(name, len(a))) * (b @ a)
            ours = converted(floats(ours) + self._ours(name, self._turned(name, product)), kind)
        return ours

    def _turned(self, name: str, product: np.ndarray) -> np.ndarray:
        """A product of factors in the shape of the published tensor."""
        conv = self.by_name[name].change is transposed  # which PEFT recognizes by itself
        return product.T if conv or self.matrices[name].embedding else product

    def _ours(self, name: str, theirs: np.ndarray) -> np.ndarray:
        """A published tensor in the shape that the model has."""
        change = self.by_name[name].change
        return theirs if change is None else change(theirs)

    def fits(self, name: str, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of the model has the shape of what is put in its place, or added."""
        nothing = np.zeros((), np.bool_)
        needed = np.broadcast_to(nothing, shape)[self.by_name[name].index].shape
        try:
            return all(self._ours(name, np.broadcast_to(nothing, one)).shape == needed for one in self._shapes(name))
        except (IndexError, ValueError):
            return False

    def _shapes(self, name: str) -> Iterator[tuple[int, ...]]:
        """The shapes of what the adapter has for a published tensor. ValueError for factors that have no product."""
        if name in self.whole:
            yield self.tensors[self.whole[name]].shape
        if name in self.matrices:
            a, b = (np.broadcast_to(np.zeros(()), self.tensors[self.matrices[name].factors[key]].shape) for key in "AB")
            if a.ndim != 2 or b.ndim != 2 or len(a) != b.shape[1] or not len(a):
                raise ValueError(name)
            yield self._turned(name, np.broadcast_to(np.zeros(()), (len(b), a.shape[1]))).shape


def read_adapter(folder: Path, pieces: Sequence[Piece], prefix: str, config: ModelConfig) -> Adapter:
    """The adapter of a folder for a model; tensors that it holds whole replace the model's.

    pieces  those of the model, by whose published names the adapter names its matrices
    prefix  `Family.prefix`, which the names of an adapter may have or lack

    CheckpointError that names every tensor of the adapter that does not fit; UnsupportedError for kinds of adapters
    that cannot be merged.
    """
    given = _read_config(folder / CONFIG)
    by_name = {name: piece for piece in pieces for name in (prefix + piece.name, piece.name.removeprefix(prefix))}
    by_name |= {piece.name: piece for piece in pieces}
    _check_file(folder)
    tensors = SafetensorsFile(folder / WEIGHTS).tensors()
    matrices, whole = _sorted(folder / WEIGHTS, tensors)
    _check(folder / WEIGHTS, matrices, whole, by_name, config.tied)
    adapter, shapes = Adapter(given, tensors, by_name, matrices, whole), parameter_shapes(config)
    wrong = [name for name, piece in adapter.pieces.items() if not adapter.fits(name, shapes[piece.target])]
    if wrong:
        raise CheckpointError(
            f"{folder / WEIGHTS} has matrices of another shape than the model's: {some(wrong)}; it was trained on "
            "another model"
        )
    return adapter


def base_name(folder: Path) -> str:
    """The model that an adapter says it was trained on. CheckpointError where it names none."""
    name = _read_config(folder / CONFIG).get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise CheckpointError(f"{folder / CONFIG} does not say which model the adapter is for: name it")
    return name


def _check_file(folder: Path) -> None:
    if (folder / WEIGHTS).is_file():
        return
    pickled = next(iter(sorted(folder.glob("adapter_model*.bin"))), None)
    if pickled is not None:
        raise CheckpointError(
            f"{pickled} may run code when it is read, so it is not: have PEFT load the adapter where that does no "
            "harm, and write it again with save_pretrained, which makes safetensors"
        )
    raise CheckpointError(f"{folder} has no {WEIGHTS}: copy the whole folder")


def _read_config(path: Path) -> Mapping[str, Any]:
    config = read_json(path, hint=f"an adapter has {CONFIG} and {WEIGHTS}", required=True)
    if "peft_type" not in config:
        raise CheckpointError(f"{path} is not an adapter's configuration (it has no peft_type): copy it again")
    kind = config["peft_type"]
    if kind != "LORA":
        raise UnsupportedError(f"{path}: adapters of peft_type {kind!r} are not supported, only LORA")
    for key in REFUSED:
        if config.get(key):
            raise UnsupportedError(f"{path}: {key} is not supported: merge the adapter with PEFT, then load the result")
    _check_scales(path, config)
    start = config.get("init_lora_weights")
    if start not in KNOWN_STARTS:
        raise UnsupportedError(
            f"{path}: init_lora_weights={start!r} changed the model's own weights: convert the adapter with PEFT's "
            "path_initial_model_for_weight_conversion"
        )
    return config


def _check_scales(path: Path, config: Mapping[str, Any]) -> None:
    """CheckpointError for a scale that is no number, and for a pattern that is no regular expression."""
    patterns = config.get("alpha_pattern") or {}
    if not isinstance(patterns, Mapping):
        raise CheckpointError(f"{path}: alpha_pattern must map names to numbers, not {patterns!r:.40}; copy it again")
    for name, alpha in (("lora_alpha", config.get("lora_alpha", ALPHA)), *patterns.items()):
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
            raise CheckpointError(f"{path}: the scale {name!r} must be a number, not {alpha!r:.40}; copy it again")
    for pattern in patterns:
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise CheckpointError(
                f"{path}: alpha_pattern has {pattern!r:.40}, which is no regular expression ({error}): copy it again"
            ) from None


def _sorted(path: Path, tensors: Mapping[str, Stored]) -> tuple[dict[str, _Matrix], dict[str, str]]:
    """Factors by the name of their matrix, and whole tensors by theirs. Both by published names."""
    matrices: dict[str, _Matrix] = {}
    replaced: dict[str, str] = {}
    for key, stored in sorted(tensors.items()):
        if stored.kind not in KINDS:
            raise CheckpointError(f"{path}: {key!r} holds {stored.kind}, not floating point: copy it again")
        name = key.removeprefix(WRAPPED).replace(".modules_to_save.default", "").replace(".base_layer", "")
        if "lora_magnitude_vector" in name:
            raise UnsupportedError(f"{path}: DoRA ({key}) is not supported: merge the adapter with PEFT")
        if (found := FACTOR.fullmatch(name)) is None:
            replaced[name] = key
            continue
        matrix = matrices.setdefault(f"{found[1]}.weight", _Matrix(embedding=bool(found[2])))
        matrix.factors[found[3]] = key
    return matrices, replaced


def _check(
    path: Path,
    matrices: Mapping[str, _Matrix],
    replaced: Mapping[str, str],
    by_name: Mapping[str, Piece],
    tied: bool,
) -> None:
    """CheckpointError for tensors that the model does not have, and for half of a pair; UnsupportedError for a change
    of one use of a tied embedding.
    """
    unknown = [name for name in (*matrices, *replaced) if name not in by_name]
    halves = [name for name, matrix in matrices.items() if len(matrix.factors) < 2]
    if unknown or halves or not (matrices or replaced):
        what = [
            *([f"is for tensors that the model does not have: {some(unknown)}"] if unknown else []),
            *([f"lacks one of lora_A and lora_B of {some(halves)}"] if halves else []),
        ]
        raise CheckpointError(f"{path} {' and '.join(what) or 'is empty'}: use the model that it was trained on")
    shared = [name for name in (*matrices, *replaced) if by_name[name].target == "embedding.weight"]
    if tied and shared:
        raise UnsupportedError(
            f"{path} changes {some(shared)}, which is the embedding and the projection at once: merge it with PEFT"
        )


def _scale(config: Mapping[str, Any], module: str, rank: int) -> float:
    """The scale s of a module's product, whose alpha may be one of `alpha_pattern`."""
    patterns: Mapping[str, float] = config.get("alpha_pattern") or {}
    found = (value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", module))
    alpha = next(found, config.get("lora_alpha", ALPHA))
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)
