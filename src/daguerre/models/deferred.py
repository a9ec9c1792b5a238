"""Weights of a published checkpoint that stay in its files: a part of a backbone has them only while it is packed, so
that one copy of the weights is in memory, the packed one.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import torch
from torch import nn

from daguerre.models.core.backbone import Backbone
from daguerre.models.core.build import make_shapes
from daguerre.models.core.config import ModelConfig
from daguerre.models.families.base import Piece
from daguerre.models.published_weights import Progress, copy_weights
from daguerre.models.shards import Stored

OUTSIDE = None
"""The part of a backbone that is no layer."""


def can_defer(config: ModelConfig) -> bool:
    """Whether a backbone is packed part by part, and never read again: cores without concept heads, a draft head or
    norms that depend on a noise level.
    """
    apart = (config.gemma, config.concepts, config.draft_head, config.draft_rank, config.adaptive_width)
    return not any(apart) and not config.time_input


def backbone_without_weights(config: ModelConfig, dtype: torch.dtype) -> Backbone:
    """A backbone for inference whose weights have a shape and a type, and no memory."""
    backbone = make_shapes(config).to(dtype).eval().requires_grad_(False)
    backbone.never = torch.tensor(config.unpredictable_ids, dtype=torch.int64)
    return backbone


def give_back() -> None:
    """Return freed memory to the system, which glibc keeps: as much as the packed weights, by the end."""
    with suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


class Deferred:
    """Where the weights of a backbone are, and how they get there."""

    def __init__(self, pieces: Sequence[Piece], stored: Mapping[str, Stored], progress: Progress | None = None) -> None:
        self._stored, self._progress, self._done = stored, progress, 0
        self._total = sum(stored[piece.name].num_bytes for piece in pieces)
        self._parts: dict[int | None, list[Piece]] = defaultdict(list)
        for piece in pieces:
            first, _, rest = piece.target.partition(".")
            self._parts[int(rest.partition(".")[0]) if first == "layers" else OUTSIDE].append(piece)

    @contextmanager
    def present(self, backbone: Backbone, layer: int | None) -> Iterator[None]:
        """The weights of a layer, or of what is outside of layers, are in memory while this lasts."""
        before = self._read(backbone, layer)
        try:
            yield
        finally:
            for (module, name), weight in before.items():
                setattr(module, name, weight)
            give_back()

    def read(self, backbone: Backbone) -> None:
        """Every weight is in memory from now on."""
        for layer in list(self._parts):
            self._read(backbone, layer)
        backbone.deferred = None

    def _read(self, backbone: Backbone, layer: int | None) -> dict[tuple[nn.Module, str], nn.Parameter]:
        """Read a part; returns the parameters that were there, by module and name."""
        before: dict[tuple[nn.Module, str], nn.Parameter] = {}
        for target in {piece.target for piece in self._parts[layer]}:
            path, _, name = target.rpartition(".")
            module = backbone.get_submodule(path)
            old = before[module, name] = module.get_parameter(name)
            setattr(module, name, nn.Parameter(torch.empty(old.shape, dtype=old.dtype), requires_grad=False))
        start, last = self._done, 0

        def progress(done: int, _: int) -> None:
            nonlocal last
            last = done
            if self._progress is not None and start + done <= self._total:
                self._progress(start + done, self._total)

        copy_weights(backbone, self._parts[layer], self._stored, progress)
        self._done += last
        return before
