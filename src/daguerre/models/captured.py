"""Captured execution: on a CUDA device, steps of decoding replay a graph of `models.step.Step`.

A graph repeats the kernels of one forward with the sizes and addresses that it was captured with, and leaves out the
work of Python and PyTorch between them (https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs). Sizes: rows
are filled up to one of ROWS, and keys are always all that a cache has room for. Addresses: the memory of caches belongs
to the executor (`Slot`), which lends it to one session at a time with all that was captured over it, so no graph is
captured anew for a session, and none outlives its memory.

A row's bits depend on the sizes of the products that it is part of, and on nothing else computed in them. One row of
mode `ar` and the up to ROWS[0] rows that verify a draft have the same sizes; in a product that reads its weights from
memory, and they are most of what it reads, so many rows cost what one does.

A prompt, more than ROWS[-1] rows, a batch, 8-bit keys and values, no cache at all run the backbone itself.

Letters: B requests, R rows, A asked rows, C keys, D width, V vocabulary.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from threading import Lock
from weakref import WeakKeyDictionary, finalize

import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.errors import UnsupportedError
from daguerre.models.backbone import Backbone
from daguerre.models.cache import ROUND, Cache
from daguerre.models.compiled import bias_of, filled, settle_first
from daguerre.models.layout import Layout
from daguerre.models.step import Step

ROWS = (16, 32, 64)
"""Rows of a step; the first holds a draft of three tokens with three open rows behind each."""
SPARE = 8
"""Slots of one size that are kept while no session needs them."""
WARM_UPS = 3

Call = Callable[[], Tensor]
Capture = Callable[[Call], Call]
"""capture(call): what repeats a call at the same addresses. Its answer is overwritten by the next repetition."""


def num_captured(num_rows: int) -> int:
    """Rows of the step that so few run in."""
    return next(size for size in ROWS if size >= num_rows)


def num_kept(capacity: int) -> int:
    """Keys of a cache for so many settled and asked rows, and behind them room for what fills up a step.

    Multiples of ROUND, above 512 of an eighth of the next power of two: few sizes, and never a quarter for nothing.
    """
    multiple = max(ROUND, 1 << (capacity - 1).bit_length() >> 3)
    return -(-capacity // multiple) * multiple + ROWS[-1]


class CapturedStep:
    """A step at fixed sizes and addresses; `given` are the first inputs, which capturing computes with."""

    def __init__(self, step: Step, given: list[Tensor], stored: list[Tensor], capture: Capture) -> None:
        self._held = [x.clone() for x in given]
        tokens, position, place, bias = self._held
        asked = torch.arange(len(tokens), device=tokens.device)
        self._play = capture(lambda: step(tokens, position, place, bias, asked, stored))

    def run(self, given: list[Tensor]) -> Tensor:
        """Hidden states (R, D) until the next run, of tokens, position, place (R,) and bias (R, C) as in `Step`."""
        for held, x in zip(self._held, given, strict=True):
            held.copy_(x)
        return self._play()


class Slot:
    """Memory of a cache with room for C keys, and the steps captured over it, by their number of rows."""

    def __init__(self, backbone: Backbone, num_keys: int) -> None:
        config, weight = backbone.config, backbone.embedding.weight
        shape = (config.num_layers, 1, config.num_kv_heads, num_keys, config.head_width)
        self.num_keys = num_keys
        self.memory = (weight.new_zeros(shape), weight.new_zeros(shape))
        self.numbers = torch.arange(num_keys, device=weight.device)
        self.steps: dict[int, CapturedStep] = {}


class CapturedBackbone:
    """A `Backbone` for inference on a CUDA device: the same calls, the same answers to rounding.

    Holds a second copy of the matrices behind a norm, the norm's weights multiplied in. Safe to use from several
    threads that use the same stream, each with its own cache. UnsupportedError where this model has no such steps.

    capture: CUDA graphs, unless told otherwise.
    """

    def __init__(self, backbone: Backbone, capture: Capture | None = None) -> None:
        reason = cannot_capture(backbone)
        if reason:
            raise UnsupportedError(f'execution "compiled" cannot run {reason}: use execution="reference"')
        self.config, self.embedding = backbone.config, backbone.embedding
        self.drafting = backbone.drafting
        self._backbone, self._step = backbone, Step(backbone).eval()
        self._capture = capture or graphs(self.embedding.weight.device)
        self._lent: WeakKeyDictionary[Cache, Slot] = WeakKeyDictionary()
        self._spare: defaultdict[int, deque[Slot]] = defaultdict(lambda: deque(maxlen=SPARE))
        self._playing = Lock()

    def cache(self, capacity: int) -> Cache:
        """A cache for one request in memory that steps are captured over, lent for as long as the cache is in use."""
        num_keys = num_kept(capacity)
        spare = self._spare[num_keys]
        try:
            slot = spare.pop()
        except IndexError:
            slot = Slot(self._backbone, num_keys)
        for memory in slot.memory:
            memory.zero_()  # whatever another request left, were it not finite, would reach this one
        cache = Cache(self.config, capacity, memory=slot.memory)
        self._lent[cache] = slot
        finalize(cache, spare.append, slot).atexit = False
        return cache

    @torch.inference_mode()
    def __call__(
        self, tokens_BR: Tensor, layout: Layout, cache: Cache | None = None, asked_A: Tensor | None = None
    ) -> Tensor:
        """Hidden states (B, R, D), or those of the asked rows, ascending, (B, A, D); the cache is read and filled as by
        `Backbone`.

        Where settled rows are asked, the autoregressive law, those before them run apart, so that how many rows are
        asked changes nothing of what they see.
        """
        rows = tokens_BR.shape[1]
        first = 0 if asked_A is None else min(int(asked_A[0]), layout.num_settled)
        slot = self._slot(cache)
        if slot is None or rows - first > ROWS[-1]:
            return self._plain(tokens_BR, layout, cache, asked_A)
        assert cache is not None
        if first and (first < layout.num_settled or rows > ROWS[-1]):
            assert asked_A is not None
            tokens_BR, layout, asked_A = settle_first(self._plain, first, tokens_BR, layout, cache, asked_A)
        return self._captured(slot, tokens_BR[0], layout, cache, asked_A)[None]

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits (..., V) of the given hidden states (..., D); reserved tokens are minus infinity."""
        rows = hidden.reshape(-1, hidden.shape[-1])
        more = num_captured(len(rows)) - len(rows) if len(rows) <= ROWS[-1] else 0
        out = self._backbone.logits(F.pad(rows, (0, 0, 0, more)))
        return out[: len(rows)].view(*hidden.shape[:-1], -1)

    def _plain(self, tokens_BR: Tensor, layout: Layout, cache: Cache | None, asked_A: Tensor | None) -> Tensor:
        hidden: Tensor = self._backbone(tokens_BR, layout, cache, asked_A=asked_A)
        return hidden

    def _slot(self, cache: Cache | None) -> Slot | None:
        """What a cache was lent, if it is there still and has room for a step."""
        slot = None if cache is None else self._lent.get(cache)
        if cache is None or slot is None or cache.keys is not slot.memory[0]:
            return None
        return slot if cache.length + ROWS[-1] <= slot.num_keys else None

    def _captured(self, slot: Slot, tokens_R: Tensor, layout: Layout, cache: Cache, asked_A: Tensor | None) -> Tensor:
        """Hidden states (A, D) of a forward that runs captured; the first of its size in a slot is captured now."""
        rows, past = len(tokens_R), cache.length
        num = num_captured(rows)
        stored = cache.stored(rows, num - rows)
        bias = bias_of(layout, cache, num, slot.num_keys)
        tokens, position = (filled(x, num) for x in (tokens_R, layout.rows.position[0]))
        given = [tokens, position, slot.numbers[past : past + num], bias]
        with self._playing:  # graphs share the memory of what is between their kernels
            if num not in slot.steps:
                slot.steps[num] = CapturedStep(self._step, given, stored, self._capture)
            hidden = slot.steps[num].run(given)
            hidden = hidden[:rows].clone() if asked_A is None else hidden[asked_A]
        if layout.num_settled:
            cache.commit(layout.rows[: layout.num_settled])
        return hidden


def cannot_capture(backbone: Backbone) -> str | None:
    """Why this backbone has no steps to capture, or None when it has."""
    if backbone.config.context == "full":
        return "a model with full context, where no row settles and there is no step"
    dtype = backbone.embedding.weight.dtype
    if dtype not in (torch.float32, torch.bfloat16):
        return f"in {str(dtype).removeprefix('torch.')}"
    return None


def graphs(device: torch.device) -> Capture:
    """CUDA graphs that share one pool of memory.

    A call computes its answer from the same inputs several times over, for libraries to make what they need on the way;
    so it may change nothing that it reads, but by what it would write again.
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
