"""CUDA graphs for the torch backend: a decoding step is replayed instead of launched kernel by kernel.

**It has never run on a CUDA device.** On a CPU it is tested with a capture that calls the function again.

A graph repeats the kernels of one forward with the sizes and addresses of its capture. Sizes: rows are padded to one of
ROWS, and keys always span the full capacity of a cache. Addresses: the memory of caches belongs to the backend
(`GraphMemory`), which lends it to one request at a time together with the graphs captured over it.

The single row of mode "ar" and the rows that verify a draft are padded to the same sizes, so they use the same
products. Prompts, batches of several requests, more than ROWS[-1] rows, 8-bit keys and values, and requests without a
cache are run without graphs.

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
"""Numbers of rows of captured steps; the first fits a draft of three tokens with three noisy rows after each."""
SPARE = 8
"""How many unused `GraphMemory` objects are kept for later requests."""
WARM_UPS = 3

Call = Callable[[], Tensor]
Capture = Callable[[Call], Call]
"""capture(call): a function that repeats a call at the same addresses. Each repetition overwrites the last result."""


class Step:
    """A forward of `num_rows` rows over all keys of a `GraphMemory`, at fixed addresses."""

    def __init__(self, backbone: Backbone, memory: GraphMemory, num_rows: int, capture: Capture) -> None:
        device = backbone.embedding.weight.device
        self.tokens, self.position, self.place = torch.zeros(3, num_rows, dtype=torch.int64, device=device)
        self.mask = torch.ones(1, 1, num_rows, memory.num_keys, dtype=torch.bool, device=device)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = memory.keys[layer], memory.values[layer]
            keys[0].index_copy_(1, self.place, k.transpose(0, 1))
            values[0].index_copy_(1, self.place, v.transpose(0, 1))
            return sdpa(q.transpose(0, 1)[None], keys, values, self.mask)[0].transpose(0, 1)

        def call() -> Tensor:
            hidden: Tensor = backbone(self.tokens, self.position, attend)
            return hidden

        self.place.copy_(torch.arange(memory.num_keys - num_rows, memory.num_keys))  # beyond all clean rows
        self.play = capture(call)


class GraphMemory:
    """Memory for one request's keys and values, (layers, 1, K, C, H), and the steps captured over it."""

    def __init__(self, backbone: Backbone, num_keys: int) -> None:
        config, weight = backbone.config, backbone.embedding.weight
        shape = (config.num_layers, 1, config.num_kv_heads, num_keys, config.head_width)
        self.num_keys = num_keys
        self.keys, self.values = weight.new_zeros(shape), weight.new_zeros(shape)
        self.steps: dict[int, Step] = {}


class GraphCache(TorchCache):
    """A cache in memory over which steps are captured."""

    def __init__(self, config: ModelConfig, capacity: int, memory: GraphMemory) -> None:
        super().__init__(config, capacity, dtype=memory.keys.dtype, device=memory.keys.device)
        self.keys, self.values, self.memory = memory.keys.zero_(), memory.values.zero_(), memory


class GraphBackend(TorchBackend):
    """A `TorchBackend` on a CUDA device that replays single requests of few rows. See the module docstring.

    capture: CUDA graphs unless given. UnsupportedError for a device or a model without support for them.
    """

    def __init__(self, backbone: Backbone, head: Head | None = None, capture: Capture | None = None) -> None:
        super().__init__(backbone, head)
        device = backbone.embedding.weight.device
        if capture is None and device.type != "cuda":
            raise UnsupportedError(f"graphs need a CUDA device and this model is on {device.type}: leave out graphs")
        if self.config.context == "full":
            raise UnsupportedError("a model with full context has no cache, so graphs cannot be used: leave out graphs")
        if self.config.experts is not None:
            raise UnsupportedError("graphs cannot be used for a model with experts: leave out graphs")
        if self.config.windows is not None:
            raise UnsupportedError("graphs cannot be used for a model with sliding layers: leave out graphs")
        self._capture = capture or cuda_graphs(device)
        self._num_keys = self.config.max_positions + ROWS[-1]
        self._spare: deque[GraphMemory] = deque(maxlen=SPARE)
        self._playing = Lock()

    def cache(self, capacity: int, *, int8: bool = False) -> KeyCache:
        """An empty cache for one request, in memory that is lent while the cache is in use."""
        if int8:
            return super().cache(capacity, int8=True)
        try:
            memory = self._spare.pop()
        except IndexError:
            memory = GraphMemory(self.backbone, self._num_keys)
        cache = GraphCache(self.config, capacity, memory)
        finalize(cache, self._spare.append, memory).atexit = False
        return cache

    def hidden(self, batch: Sequence[Forward]) -> list[Tensor]:
        """Hidden states (A, D) of the wanted rows of each forward."""
        if len(batch) == 1:
            (one,) = batch
            cache, rows = one.cache, len(one.tokens)
            plain = one.level is None and not one.drafting
            if isinstance(cache, GraphCache) and rows <= ROWS[-1] and plain:
                num = next(size for size in ROWS if size >= rows)
                if cache.length + num <= cache.memory.num_keys:
                    return [self._replayed(one, cache, num)]
        return super().hidden(batch)

    def _replayed(self, one: Forward, cache: GraphCache, num: int) -> Tensor:
        """Hidden states (A, D) of a forward whose step is captured at first use. Keys are at their row indices."""
        cache.reserve(cache.length, cache.length + one.layout.num_clean)
        rows, past, memory = len(one.tokens), cache.length, cache.memory
        mask = np.zeros((num, memory.num_keys), dtype=bool)
        mask[:rows, : past + rows] = one.layout.dense(past)
        mask[np.arange(rows, num), past + np.arange(rows, num)] = True  # a padding row sees only itself
        with self._playing:  # graphs share the memory for intermediate results
            step = memory.steps.get(num)
            if step is None:
                step = memory.steps[num] = Step(self.backbone, memory, num, self._capture)
            for target, source in ((step.tokens, one.tokens), (step.position, one.layout.position)):
                target[:rows].copy_(torch.tensor(source))
            step.place.copy_(torch.arange(past, past + num))
            step.mask.copy_(torch.from_numpy(mask)[None, None])
            hidden = step.play()[torch.tensor(one.wanted, dtype=torch.int64, device=step.tokens.device)]
        cache.commit(one.layout.num_clean)
        return hidden


def cuda_graphs(device: torch.device) -> Capture:
    """CUDA graphs that share one pool of memory. A call runs several times before its capture, so that libraries set up
    their state; it must not modify its inputs.
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
