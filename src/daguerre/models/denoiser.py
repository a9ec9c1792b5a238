"""A backbone as a denoiser: its backend, and the sessions that create forwards."""

from __future__ import annotations

import logging
from functools import cache
from itertools import chain
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from daguerre.canvas import Canvas
from daguerre.errors import InputError, UnsupportedError, unknown
from daguerre.extras import has_pytorch
from daguerre.kinds import options_of
from daguerre.models.backbone_session import BackboneSession
from daguerre.models.backends.native_backend import INSTEAD, WAYS_OUT, NativeBackend, fastest_numbers
from daguerre.models.backends.native_backend import can_compile as can_compile
from daguerre.models.bits import NumberType
from daguerre.models.core.config import ModelConfig
from daguerre.models.drafting_model import DraftingModel
from daguerre.models.forward import Backend, Head
from daguerre.models.heads import ArrayHeads, Heads
from daguerre.models.load_options import BackendName, LoadOptions, Place, Quantization
from daguerre.models.model_weights import BackboneWeights, ModelWeights, weights_of
from daguerre.models.processor import native_numbers
from daguerre.models.session import Session
from daguerre.models.stale import CACHE_MODES as CACHE_MODES
from daguerre.models.stale import RULES, StaleSession
from daguerre.models.stale import CacheMode as CacheMode

if TYPE_CHECKING:
    from daguerre.models.core.backbone import Backbone

LOG = logging.getLogger("daguerre")


class Denoiser(Protocol):
    """Predicts distributions of wanted positions from a canvas; never samples."""

    config: ModelConfig

    @property
    def backend(self) -> Backend:
        """The backend that computes the forwards of its sessions."""

    def session(self, canvas: Canvas, cache: CacheMode = "auto") -> Session:
        """A fresh session for canvases as long as `canvas`."""


class BackboneDenoiser:
    """A `Denoiser` over one backbone, which it only reads: safe to use from several threads.

    backend   "native" (`models.backends.native_backend`): C++ for a CPU, compiled once, in seconds; "torch"
              (`models.backends.torch_backend`): the backbone's PyTorch modules, on any device; None: native if it can
              be compiled, else torch
    quantize  matrices are rounded to a block type of GGUF files, such as "q8_0" or "q4_k", for the native backend only.
              "int8" and "approximate_int4" are former names, which are said to be so once
    head      turns hidden states into logits in place of the vocabulary projection
    drafting  the second model, which drafts for this one; set by `model.load`
    experts   where the native backend has the packed experts of a mixture: in "memory", or on the "disk", of which
              memory holds what it can (`models.backends.disk`); None: on the disk if they do not fit in free memory

    The native backend packs the weights at its first use, and again after they have changed. Those of files are read
    part by part, and packed: only `with_weights` keeps them.
    """

    def __init__(
        self,
        model: Backbone | ModelWeights,
        backend: BackendName | None = None,
        quantize: Quantization | None = None,
        head: Head | None = None,
        experts: Place | None = None,
    ) -> None:
        for name, value in (("backend", backend), ("quantize", quantize), ("experts", experts)):
            options_of(LoadOptions)[name].kind(name, value)
        say_former(quantize)
        if quantize and backend == "torch":
            raise UnsupportedError('backend "torch" multiplies no quantized matrices: leave out quantize or backend')
        self.weights = weights_of(model)
        self.config = self.weights.config
        if experts == "disk" and (backend == "torch" or not self.config.experts):
            reason = "PyTorch has all in memory" if self.config.experts else "the model has no experts"
            raise UnsupportedError(f'experts="disk" has no part here, since {reason}: leave it out')
        self.backend_name, self.quantize, self._head = backend, quantize, head
        self._experts = experts
        self.drafting: DraftingModel | None = None
        self._made: tuple[Stamp, Backend] | None = None
        self._fixed: Backend | None = None
        self._heads: tuple[Backend, Heads] | None = None
        self._making = Lock()

    def __reduce__(self) -> tuple[object, ...]:
        """A pickled copy, in another process for example, packs its weights anew; blocks it reads from their file."""
        weights = self.weights if self.weights.stored_bits else self.with_weights()
        return BackboneDenoiser, (weights, *self._how)

    @property
    def _how(self) -> tuple[Any, ...]:
        return self.backend_name, self.quantize, self._head, self._experts

    @property
    def backend(self) -> Backend:
        """The backend that runs the forwards. Weights are packed at first use, and again after they have changed."""
        if self._fixed is not None:
            return self._fixed
        if self._made is not None and not isinstance(self.weights, BackboneWeights):
            return self._made[1]  # of files, which are not read again
        with self._making:
            stamp = _stamp(self.weights)
            if self._made is None or self._made[0] != stamp:
                self._made = stamp, self._make()
            return self._made[1]

    @property
    def heads(self) -> Heads:
        """Concept heads and the vocabulary projection, of the weights that the backend has: PyTorch's modules where
        these compute, else NumPy.
        """
        backend = self.backend
        if self._heads is None or self._heads[0] is not backend:
            native = isinstance(backend, NativeBackend)
            self._heads = backend, ArrayHeads(self.weights) if native else _module_heads(self.backbone)
        return self._heads[1]

    @property
    def backbone(self) -> Backbone:
        """The backbone; see `with_weights`."""
        return self.with_weights()

    def with_weights(self) -> Backbone:
        """The backbone, whose weights are read from its files if they were only packed, and stay in memory."""
        with self._making:
            return self._module()

    def _module(self) -> Backbone:
        if not isinstance(self.weights, BackboneWeights):
            self.weights = BackboneWeights(self.weights.module())
            if self._made is not None:
                self._made = _stamp(self.weights), self._made[1]
        return self.weights.backbone

    @property
    def block_types(self) -> tuple[str, ...]:
        """The types of blocks that are multiplied as a file has them, by ggml's names; empty where none is."""
        backend = self.backend
        return backend.block_types if isinstance(backend, NativeBackend) else ()

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights, with a second model's: of the packed ones, where these are the only copy."""
        backend = None if isinstance(self.weights, BackboneWeights) else self.backend
        more = 0 if self.drafting is None else self.drafting.num_bytes
        if isinstance(backend, NativeBackend):
            return backend.num_bytes + more
        return sum(x.nbytes for x in self.backbone.parameters()) + more

    def fixed(self) -> BackboneDenoiser:
        """A denoiser with the same weights that does not look whether they have changed."""
        out = BackboneDenoiser(self.weights, *self._how)
        out._fixed, out.drafting = self.backend, self.drafting
        return out

    def _make(self) -> Backend:
        native = self.backend_name == "native" or self.quantize is not None
        if native or (self.backend_name is None and self.weights.cannot_pack is None and can_compile()):
            return NativeBackend(self.weights, self.quantize, self._head, self._experts)
        return _torch_backend(self._module(), self._head)

    def session(self, canvas: Canvas, cache: CacheMode = "auto") -> BackboneSession:
        """A fresh session. cache: "auto" keeps clean rows exactly; "none" recomputes all rows in every forward;
        "approximate_int8" keeps clean rows as 8-bit numbers; the others, for full context, keep rows that are out of
        date (`models.stale`).
        """
        if cache not in CACHE_MODES:
            raise unknown("cache", cache, CACHE_MODES)
        length = len(canvas.tokens)
        if length > self.config.max_positions:
            raise InputError(
                f"the canvas has {length} positions and the model {self.config.max_positions}: shorten the text"
            )
        if cache not in ("auto", "none"):
            check_cache(self.config, cache)
        if cache in RULES:
            return StaleSession(self.config, self.backend.cache(length), RULES[cache], length)
        if cache == "none" or self.config.context == "full":  # no row is ever clean
            return BackboneSession(self.config, None)
        key_cache = self.backend.cache(length, int8=cache == "approximate_int8")
        return BackboneSession(self.config, key_cache)


@cache
def say_former(quantize: Quantization | None) -> None:
    """Say of a former name, once in a process, which one to give instead."""
    if quantize in INSTEAD:
        LOG.warning('quantize="%s" goes in the next release: give "%s"', quantize, INSTEAD[quantize])


def _torch_backend(backbone: Backbone, head: Head | None) -> Backend:
    from daguerre.models.backends.torch_backend import TorchBackend

    return TorchBackend(backbone, head)


def _module_heads(backbone: Backbone) -> Heads:
    from daguerre.models.core.module_heads import ModuleHeads

    return ModuleHeads(backbone)


def native_is_default(device: str, backend: BackendName | None) -> bool:
    """Whether the native backend computes what no backend was named for. UnsupportedError where nothing can compute."""
    if device != "cpu" or backend == "torch":
        return False
    if can_compile():
        return True
    if not has_pytorch():
        raise UnsupportedError(f"nothing here can compute: {WAYS_OUT}")
    return False


def auto_numbers(device: str = "cpu", backend: BackendName | None = None) -> NumberType:
    """The type of weights that forwards are fastest in: the native backend's own choice where it computes; elsewhere
    bfloat16 where the device multiplies it natively, else float32.
    """
    return fastest_numbers() if native_is_default(device, backend) else native_numbers(device)


def check_cache(config: ModelConfig, cache: CacheMode) -> None:
    """UnsupportedError for an approximate cache where there is nothing that it would approximate."""
    if cache == "approximate_int8" and config.context == "full":
        raise UnsupportedError(
            'cache="approximate_int8" has no part in full context, where no row is kept exactly: leave it out'
        )
    if cache in RULES and config.context != "full":
        raise UnsupportedError(
            f'cache="{cache}" is for full context, and this model has {config.context} context, whose cache is exact: '
            "leave it out"
        )
    if cache in RULES and config.process != "absorbing":
        raise UnsupportedError(
            f'cache="{cache}" has no part in the {config.process} process, which changes tokens everywhere in every '
            "step: leave it out"
        )


Stamp = tuple[tuple[int, int, Any], ...]


def _stamp(weights: ModelWeights) -> Stamp:
    """Identity and version of every weight of a backbone: equal stamps mean equal weights. Those of files stay."""
    if not isinstance(weights, BackboneWeights):
        return ()
    held = chain(weights.backbone.parameters(), weights.backbone.buffers())
    return tuple((w.data_ptr(), 0 if w.is_inference() else w._version, w.dtype) for w in held)
