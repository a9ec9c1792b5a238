"""The weights of a model by name, without PyTorch: those of files, which are read part by part, or of a backbone.

Names and shapes are those of `models.core.parameters`. A part is a layer, whose names are those within it, or what is
outside of layers, `OUTSIDE`.
"""

from __future__ import annotations

import copy
import ctypes
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from daguerre.errors import CheckpointError
from daguerre.extras import pytorch
from daguerre.models.bits import TYPES, NumberType, converted, floats
from daguerre.models.block_rows import BlockRows, is_block_kind
from daguerre.models.core.config import ModelConfig
from daguerre.models.core.parameters import num_parameters, parameter_shapes
from daguerre.models.families.base import Piece
from daguerre.models.shards import Progress, Stored

if TYPE_CHECKING:
    import torch

    from daguerre.models.core.backbone import Backbone

OUTSIDE = None
"""The part that is no layer."""
Part = dict[str, np.ndarray]
"""Arrays of float32, or the bits of bfloat16 as uint16, by name."""


class Parts(ABC):
    """The weights of a model, part by part.

    config   the model's facts
    numbers  the type that they are computed in, "float32" or "bfloat16"
    """

    config: ModelConfig
    numbers: NumberType

    @abstractmethod
    def part(self, layer: int | None) -> Part:
        """The weights of a layer, or of what is outside of layers."""


class ModelWeights(Parts):
    """The weights of a model, of which PyTorch can make a backbone."""

    cannot_pack: str | None = None
    """Why the native backend cannot pack them; None if it can."""
    rounding: str | None = None
    """What matrices are rounded to, a name of `gguf.rounding.NAMES`; None: to nothing."""
    device: str = "cpu"
    """Where `module` is."""
    made: Any = None
    """The backbone, once it was made of weights that are read when they are asked for."""

    @property
    def paths(self) -> list[Path]:
        """The files that hold them; none of a backbone's."""
        return []

    def outside(self, names: Collection[str]) -> Part:
        """Those of some names that are there and belong to no layer."""
        return {name: array for name, array in self.part(OUTSIDE).items() if name in names}

    @property
    def stored_bits(self) -> float | None:
        """Bits of a weight as it is stored, where some matrices are in blocks; None where none is."""
        return None

    def as_stored(self) -> Parts:
        """The same weights, of which matrices in blocks are `BlockRows`."""
        raise NotImplementedError

    def exact(self) -> ModelWeights:
        """The same weights, where they can be read again as float32."""
        return self

    @abstractmethod
    def module(self) -> Backbone:
        """The backbone that computes with them in PyTorch. MissingExtra without that."""

    def rescale(self, scaling: Callable[[ModelConfig], ModelConfig]) -> None:
        """Give the model other positions; see `models.scaling`."""
        self.config = scaling(self.config)

    @property
    def num_parameters(self) -> int:
        """How many weights there are."""
        return num_parameters(self.config)


class WrittenPieces:
    """The weights of a model as the pieces that its files have, of which one part of the model is held at a time."""

    def __init__(self, weights: ModelWeights) -> None:
        self._part, self._shapes = lru_cache(maxsize=2)(weights.part), parameter_shapes(weights.config)

    def shape(self, piece: Piece) -> tuple[int, ...]:
        """The shape of a piece, before anything is changed back."""
        return np.broadcast_to(np.zeros(()), self._shapes[piece.target])[piece.index].shape

    def read(self, piece: Piece) -> np.ndarray:
        """A piece, before anything is changed back."""
        layer, name = layer_of(piece.target)
        return np.asarray(self._part(layer)[name][piece.index])


class DeferredWeights(ModelWeights):
    """Weights that are read when they are asked for; of which a backbone on a device is made once."""

    def rescale(self, scaling: Callable[[ModelConfig], ModelConfig]) -> None:
        """Give the model, and its backbone where it was made, other positions."""
        super().rescale(scaling)
        if self.made is not None:
            self.made.config = self.config

    def module(self) -> Backbone:
        """The backbone with these weights, which is made once."""
        if self.made is None:
            self.made = _made(self, self.device)
        module: Backbone = self.made
        return module


class FileWeights(DeferredWeights):
    """The weights in the files of a model: each part is read when it is asked for, and belongs to whoever asked."""

    def __init__(
        self,
        config: ModelConfig,
        numbers: NumberType,
        pieces: Sequence[Piece],
        stored: Mapping[str, Stored],
        progress: Progress | None = None,
        device: str = "cpu",
    ) -> None:
        """pieces: where each stored tensor belongs. progress: called with the bytes that were read, and all of them.
        device: of `module`.
        """
        self.config, self.numbers = config, numbers
        self._stored, self._progress, self.device = stored, progress, device
        self._done, self._total = 0, sum(stored[piece.name].num_bytes for piece in pieces)
        self._parts: dict[int | None, list[Piece]] = defaultdict(list)
        for piece in pieces:
            self._parts[layer_of(piece.target)[0]].append(piece)
        self._shapes = parameter_shapes(config)
        self._in_blocks = _in_blocks(pieces, stored)

    def __getstate__(self) -> dict[str, Any]:
        """What a pickled copy has: it reads the same files, and tells nobody."""
        return self.__dict__ | {"_progress": None, "made": None}

    @property
    def paths(self) -> list[Path]:
        """The files that hold them."""
        return sorted({path for stored in self._stored.values() for path in stored.paths})

    @property
    def stored_bits(self) -> float | None:
        """Bits of a weight as it is stored, where some matrices are in blocks."""
        return 8 * self._total / self.num_parameters if self._in_blocks else None

    def part(self, layer: int | None) -> Part:
        """The weights of a part. CheckpointError where a file has become shorter, or a copy of a tensor is not equal to
        it.
        """
        return self._part(layer, frozenset())

    def exact(self) -> ModelWeights:
        """The same weights as float32."""
        exact = copy.copy(self)
        exact.numbers = "float32"
        return exact

    def as_stored(self) -> Parts:
        """The same weights, of which matrices in blocks are `BlockRows`."""
        return InBlocks(self, lambda layer: self._part(layer, self._in_blocks))

    def _part(self, layer: int | None, in_blocks: frozenset[str]) -> Part:
        """The weights of a part, of which those of these names are `BlockRows`."""
        out = Part()
        blocks = defaultdict[str, list[tuple[Any, BlockRows]]](list)
        for copies in (False, True):
            for piece in (piece for piece in self._parts[layer] if piece.copy is copies):
                if piece.target in in_blocks and not copies:
                    blocks[piece.target].append((piece.index, self._rows(piece)))
                else:
                    self._read(piece, out)
                self._report(piece)
            made: Any = {name: BlockRows.joined(self._shapes[name], parts) for name, parts in blocks.items()}
            out |= made
        return {layer_of(name)[1]: array for name, array in out.items()}

    def outside(self, names: Collection[str]) -> Part:
        """Those of some names, of which no others are read."""
        out = Part()
        for piece in self._parts[OUTSIDE]:
            if piece.target in names and not piece.copy:
                self._read(piece, out)
        return out

    def _rows(self, piece: Piece) -> BlockRows:
        """A tensor in blocks as its rows."""
        rows = self._stored[piece.name].rows()
        return rows if piece.change is None else rows.changed(piece.change)

    def _report(self, piece: Piece) -> None:
        self._done = min(self._total, self._done + self._stored[piece.name].num_bytes)
        if self._progress is not None:
            self._progress(self._done, self._total)

    def _read(self, piece: Piece, out: Part) -> None:
        """Read a tensor to its place, or compare a copy with what is there."""
        stored, name = self._stored[piece.name], piece.target
        if piece.change is None and not piece.copy and not piece.index:
            out[name] = stored.read(self.numbers)
            return
        if name not in out:
            out[name] = np.empty(self._shapes[name], TYPES[self.numbers])
        held: Any = out[name]
        ours = (held.numbers() if isinstance(held, BlockRows) else held)[piece.index]
        if piece.change is None:
            theirs = stored.read(self.numbers)
        else:
            theirs = converted(piece.change(stored.array()), self.numbers)
        if not piece.copy:
            ours[...] = theirs
        elif not np.array_equal(floats(ours), floats(theirs), equal_nan=True):
            raise CheckpointError(
                f"{piece.name} is stored and differs from what config.json says it repeats: set tie_word_embeddings to "
                "false in config.json if the model has a projection of its own"
            )


class InBlocks(Parts):
    """The weights of files, of which matrices in blocks are rows of these."""

    def __init__(self, weights: ModelWeights, part: Callable[[int | None], Part]) -> None:
        self.config, self.numbers, self._part = weights.config, weights.numbers, part

    def part(self, layer: int | None) -> Part:
        """The weights of a part."""
        return self._part(layer)


def _in_blocks(pieces: Sequence[Piece], stored: Mapping[str, Stored]) -> frozenset[str]:
    """The parameters whose tensors are all in blocks, and rows of them. Matrices of a mixture of experts have the same
    inputs, so that either all or none of a layer are.
    """

    def fits(piece: Piece) -> bool:
        about = stored[piece.name]
        return is_block_kind(about.kind) and len(about.shape) > 1 and (piece.change is None or piece.rows)

    targets, mixtures = {piece.target for piece in pieces}, defaultdict[int | None, set[str]](set)
    others = {piece.target for piece in pieces if not piece.copy and not fits(piece)}
    for name in targets:
        layer, inner = layer_of(name)
        if inner.startswith("mlp.") and not inner.startswith("mlp.router"):
            mixtures[layer].add(name)
    for layer, names in mixtures.items():
        matrices = {name for name in names if name.endswith(".weight")}
        if f"layers.{layer}.mlp.router.weight" in targets and matrices & others:
            others |= names
    return frozenset(targets - others)


class BackboneWeights(ModelWeights):
    """The weights of a backbone, as they are now."""

    def __init__(self, backbone: Backbone) -> None:
        self.config, self.backbone = backbone.config, backbone
        weight = backbone.embedding.weight
        kind = str(weight.dtype).removeprefix("torch.")
        self.numbers = "bfloat16" if kind == "bfloat16" else "float32"
        if weight.device.type != "cpu":
            self.cannot_pack = f"on {weight.device.type}"
        elif kind not in TYPES:
            self.cannot_pack = f"in {kind}"

    def part(self, layer: int | None) -> Part:
        """The weights of a part, of which those on a CPU are not copied."""
        named = ((layer_of(name), tensor) for name, tensor in self.backbone.state_dict().items())
        return {name: array_of(tensor) for (number, name), tensor in named if number == layer}

    def outside(self, names: Collection[str]) -> Part:
        """Those of some names, of which those on a CPU are not copied."""
        held = self.backbone.state_dict()
        return {name: array_of(held[name]) for name in names if name in held}

    def module(self) -> Backbone:
        """The backbone."""
        return self.backbone

    def rescale(self, scaling: Callable[[ModelConfig], ModelConfig]) -> None:
        """Give the backbone other positions."""
        super().rescale(scaling)
        self.backbone.config = self.config


def weights_of(model: Backbone | ModelWeights) -> ModelWeights:
    """Weights as they are, or those of a backbone."""
    return model if isinstance(model, ModelWeights) else BackboneWeights(model)


def layer_of(name: str) -> tuple[int | None, str]:
    """The layer of a parameter, and its name within that."""
    first, _, rest = name.partition(".")
    if first != "layers":
        return OUTSIDE, name
    number, _, inner = rest.partition(".")
    return int(number), inner


def array_of(tensor: Any) -> np.ndarray:
    """The numbers of a PyTorch tensor: float32, or of bfloat16 the bits."""
    import torch

    held = tensor.detach().cpu().contiguous()
    if held.dtype == torch.bfloat16:
        bits: np.ndarray = held.view(torch.int16).numpy()
        return bits.view(np.uint16)
    made: np.ndarray = held.float().numpy()
    return made


def tensor_of(array: np.ndarray) -> Any:
    """The inverse of `array_of`; memory is shared."""
    import torch

    array = np.ascontiguousarray(array)
    if array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def give_back() -> None:
    """Return freed memory to the system, which glibc keeps: as much as the packed weights, by the end."""
    with suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def torch_type(numbers: Any) -> torch.dtype:
    """PyTorch's type of numbers by its name; one of PyTorch's is taken as it is. MissingExtra without PyTorch."""
    found: torch.dtype = getattr(pytorch(), str(numbers).removeprefix("torch."))
    return found


def _made(weights: ModelWeights, device: str) -> Backbone:
    """A backbone for inference with these weights, on a device."""
    config, dtype = weights.config, torch_type(weights.numbers)
    import torch

    from daguerre.models.core.build import make_shapes

    backbone = make_shapes(config).to(dtype).to_empty(device=device).eval().requires_grad_(False)
    backbone.never = torch.tensor(config.unpredictable_ids, dtype=torch.int64, device=device)
    held = backbone.state_dict()
    for layer in (OUTSIDE, *range(config.num_layers)):
        before = "" if layer is None else f"layers.{layer}."
        for name, array in weights.part(layer).items():
            held[before + name].copy_(tensor_of(array))
    return backbone
