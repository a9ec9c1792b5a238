"""CUDA graphs for the torch backend: a step of decoding is replayed instead of launched kernel by kernel.

**It has never run on a CUDA device.** On a CPU it is tested with a capture that repeats the call in place.

A graph repeats the kernels of one forward with the sizes and addresses that it was captured with. Sizes: rows are
filled up to one of ROWS, and keys are always all that a cache has room for. Addresses: the memory of caches belongs to
the backend (`Slot`), which lends it to one request at a time together with the graphs captured over it.

One row of mode "ar" and the rows that verify a draft have the same sizes, so they are the same products. The modules
themselves run a prompt, a batch of several requests, more than ROWS[-1] rows, 8-bit keys and values, or no cache.

Letters: R rows, C keys, D width.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

from daguerre.errors import UnsupportedError
from daguerre.models.backends.torch_backend import TorchBackend, TorchCache
from daguerre.models.core.attention import sdpa
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import Forward, Head, KeyCache

ROWS = (16, 32, 64)
"""Rows of a captured step; the first holds a draft of three tokens with three noisy rows behind each."""
SPARE = 8
"""Slots that are kept while no request needs them."""
WARM_UPS = 3

Call = Callable[[], Tensor]
Capture = Callable[[Call], Call]
"""capture(call): what repeats a call at the same addresses. Its answer is overwritten by the next repetition."""


class Step:
    """A forward of so many rows over all keys of a slot, at fixed addresses."""

    def __init__(self, backbone: Backbone, slot: Slot, num_rows: int, capture: Capture) -> None:
        device = backbone.embedding.weight.device
        self.tokens, self.position, self.place = torch.zeros(3, num_rows, dtype=torch.int64, device=device)
        self.mask = torch.ones(1, 1, num_rows, slot.num_keys, dtype=torch.bool, device=device)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = slot.keys[layer], slot.values[layer]
            keys[0].index_copy_(1, self.place, k.transpose(0, 1))
            values[0].index_copy_(1, self.place, v.transpose(0, 1))
            return sdpa(q.transpose(0, 1)[None], keys, values, self.mask)[0].transpose(0, 1)

        def call() -> Tensor:
            hidden: Tensor = backbone(self.tokens, self.position, attend)
            return hidden

        self.place.copy_(torch.arange(slot.num_keys - num_rows, slot.num_keys))  # where nothing is kept
        self.play = capture(call)


class Slot:
    """Memory of one request's keys and values, (layers, 1, K, C, H), and the steps captured over it."""

    def __init__(self, backbone: Backbone, num_keys: int) -> None:
        config, weight = backbone.config, backbone.embedding.weight
        shape = (config.num_layers, 1, config.num_kv_heads, num_keys, config.head_width)
        self.num_keys = num_keys
        self.keys, self.values = weight.new_zeros(shape), weight.new_zeros(shape)
        self.steps: dict[int, Step] = {}


class SlotCache(TorchCache):
    """A cache in memory that steps are captured over."""

    def __init__(self, config: ModelConfig, capacity: int, slot: Slot) -> None:
        super().__init__(config, capacity, dtype=slot.keys.dtype, device=slot.keys.device)
        self.keys, self.values, self.slot = slot.keys.zero_(), slot.values.zero_(), slot


class GraphBackend(TorchBackend):
    """A `TorchBackend` on a CUDA device whose single requests of few rows are replayed. See the module.

    capture: CUDA graphs unless given. UnsupportedError for a device, or a model, that has none.
    """

    def __init__(self, backbone: Backbone, head: Head | None = None, capture: Capture | None = None) -> None:
        super().__init__(backbone, head)
        device = backbone.embedding.weight.device
        if capture is None and device.type != "cuda":
            raise UnsupportedError(f"graphs need a CUDA device, and this model is on {device.type}: leave out graphs")
        if self.config.context == "full":
            raise UnsupportedError("a model with full context has no cache and no step to capture: leave out graphs")
        self._capture = capture or cuda_graphs(device)
        self._num_keys = self.config.max_positions + ROWS[-1]
        self._spare: deque[Slot] = deque(maxlen=SPARE)
        self._playing = Lock()

    def cache(self, capacity: int, *, int8: bool = False) -> KeyCache:
        """An empty cache for one request, in memory that is lent for as long as the cache is in use."""
        if int8:
            return super().cache(capacity, int8=True)
        try:
            slot = self._spare.pop()
        except IndexError:
            slot = Slot(self.backbone, self._num_keys)
        cache = SlotCache(self.config, capacity, slot)
        finalize(cache, self._spare.append, slot).atexit = False
        return cache

    def hidden(self, batch: Sequence[Forward]) -> list[Tensor]:
        """Hidden states (A, D) of the wanted rows of each forward."""
        if len(batch) == 1:
            (one,) = batch
            cache, rows = one.cache, len(one.tokens)
            if isinstance(cache, SlotCache) and rows <= ROWS[-1] and one.level is None:
                num = next(size for size in ROWS if size >= rows)
                if cache.length + num <= cache.slot.num_keys:
                    return [self._replayed(one, cache, num)]
        return super().hidden(batch)

    def _replayed(self, one: Forward, cache: SlotCache, num: int) -> Tensor:
        """Hidden states (A, D) of a forward whose step is captured at its first use. Keys lie at their own numbers."""
        cache.reserve(cache.length, cache.length + one.layout.num_clean)
        rows, past, slot = len(one.tokens), cache.length, cache.slot
        mask = np.zeros((num, slot.num_keys), dtype=bool)
        mask[:rows, : past + rows] = one.layout.dense(past)
        mask[np.arange(rows, num), past + np.arange(rows, num)] = True  # what fills up sees itself alone
        with self._playing:  # graphs share the memory of what is between their kernels
            step = slot.steps.get(num)
            if step is None:
                step = slot.steps[num] = Step(self.backbone, slot, num, self._capture)
            for held, given in ((step.tokens, one.tokens), (step.position, one.layout.position)):
                held[:rows].copy_(torch.tensor(given))
            step.place.copy_(torch.arange(past, past + num))
            step.mask.copy_(torch.from_numpy(mask)[None, None])
            hidden = step.play()[torch.tensor(one.wanted, dtype=torch.int64, device=step.tokens.device)]
        cache.commit(one.layout.num_clean)
        return hidden


def cuda_graphs(device: torch.device) -> Capture:
    """CUDA graphs that share one pool of memory. A call computes its answer several times over, for libraries to make
    what they need on the way, so it may change nothing that it reads.
    """
    pool = torch.cuda.graph_pool_handle()

    def capture(call: Call) -> Call:
        with torch.cuda.device(device):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UPS):
                    call()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                out = call()

        def play() -> Tensor:
            graph.replay()
            return out

        return play

    return capture
