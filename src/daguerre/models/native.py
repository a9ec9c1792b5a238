"""Native execution: a forward as one call of C++, `native.cpp`, compiled for the processor at hand.

Compiled once, in seconds, for every model, and kept on disk; never required. A row's numbers are summed in one order
whatever is computed beside it, so rows have the same bits in every mode, on any number of threads, by construction.

With `int8` matrices, and what they are multiplied with, are 8-bit numbers: an approximation, which `load` offers by the
name "approximate_int8". Sums of those are exact.

Letters: B requests, R rows, A asked rows, C keys, D width, N heads, K key-value heads, H head width, V vocabulary.
"""

from __future__ import annotations

import copy
import ctypes

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.errors import UnsupportedError
from daguerre.models import native_library as interface
from daguerre.models.backbone import Backbone, Layer
from daguerre.models.cache import INT8, ROUND, Cache
from daguerre.models.draft_head import DraftHead, Step
from daguerre.models.layout import Layout, Rows, allowed
from daguerre.models.rotary import rotary_tables

COLUMNS, LANES, WORDS = 64, 16, 16
"""Of a packed panel, of a vector, and what the words of a row are filled up to."""
PRODUCTS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}


class NativeBackbone:
    """A `Backbone` for inference on a CPU: the same calls, the same answers to rounding, or nearly with `int8`.

    Holds a packed copy of the matrices. Nothing in it changes afterwards: safe to use from several threads, each with
    its own cache. UnsupportedError for what it cannot run, and without a C++ compiler when one is needed.
    """

    def __init__(self, backbone: Backbone, int8: bool = False) -> None:
        reason = cannot_run(backbone)
        if reason:
            raise UnsupportedError(f'execution "native" cannot run {reason}: leave out execution')
        self._library = interface.library()
        self.config = config = backbone.config
        self.embedding = backbone.embedding
        weight = backbone.embedding.weight.detach()
        self._packing = _Packing(torch.int8 if int8 else weight.dtype)
        packed, hold = self._packing.linear, self._packing.hold
        self._width, self._vocab = _filled(config.width, COLUMNS), _filled(config.vocab_size, COLUMNS)
        layers = (interface.Layer * config.num_layers)(*(self._layer(layer) for layer in backbone.layers))  # type: ignore[arg-type]
        position = torch.arange(config.max_positions)[None]
        cos, sin = (x[0, 0] for x in rotary_tables(position, config.head_width, config.rope_theta, torch.float32))
        bias = torch.full((self._vocab,), float("-inf"))
        bias[: config.vocab_size] = 0.0
        bias[list(config.unpredictable_ids)] = float("-inf")
        self._bias = bias
        self._model = interface.Model(
            config.width,
            config.num_heads,
            config.num_kv_heads,
            config.head_width,
            config.mlp_width,
            config.num_layers,
            config.vocab_size,
            config.max_positions,
            PRODUCTS[self._packing.dtype],
            int(weight.dtype == torch.bfloat16),
            config.norm_eps,
            *map(
                hold, (backbone.final_norm.weight.detach().float(), torch.cat([cos, cos], 1), torch.cat([-sin, sin], 1))
            ),
            hold(bias),
            layers,
            packed(weight),
        )
        self._drafter = None if backbone.draft_head is None else self._draft_head(backbone.draft_head, weight)
        self._this = ctypes.byref(self._model)

    def _layer(self, layer: Layer) -> interface.Layer:
        attention, mlp = layer.attention, layer.mlp
        num_heads, num_kv, _ = attention.heads
        q_weight = attention.q_norm.weight.detach().float() * attention.q_norm.weight.shape[0] ** -0.5
        k_weight = attention.k_norm.weight.detach().float()
        both = torch.cat([q_weight.expand(num_heads, -1), k_weight.expand(num_kv, -1)])
        packed = self._packing.linear
        return interface.Layer(
            packed(_scaled(attention.qkv.weight, layer.attention_norm.weight)),
            packed(attention.out.weight.detach()),
            packed(_in_turn(_scaled(mlp.gate_up.weight, layer.mlp_norm.weight))),
            packed(mlp.down.weight.detach()),
            self._packing.hold(both),
        )

    def _draft_head(self, head: DraftHead, embedding: Tensor) -> Tensor:
        """Embeddings over their root mean square (V, stride of D)."""
        width, packed, up = self.config.width, self._packing.linear, _in_turn(head.up.weight.detach())
        told = torch.cat([self._fill(up[:, width : 2 * width]), self._fill(up[:, 2 * width :])], dim=1)
        self._model.up_rows, self._model.up_told = packed(up[:, :width]), packed(told)
        self._model.down = packed(head.down.weight.detach())
        return self._fill(F.rms_norm(embedding.float(), embedding.shape[-1:]))

    def _fill(self, x: Tensor) -> Tensor:
        """Rows of D numbers, filled up to their stride."""
        return F.pad(x, (0, self._width - x.shape[-1])) if x.shape[-1] < self._width else x.contiguous()

    @torch.inference_mode()
    def __call__(
        self, tokens_BR: Tensor, layout: Layout, cache: Cache | None = None, asked_A: Tensor | None = None
    ) -> Tensor:
        """Float32 hidden states (B, R, D), or those of the asked rows (B, A, D); the cache is read and filled as by
        `Backbone`. Open rows are written behind its settled ones, as scratch: its capacity counts them too.
        """
        config, (batch, rows) = self.config, tokens_BR.shape
        assert cache is None or (cache.keys.shape[1] == batch and self._reads(cache)), "a cache of another model"
        first, count, base, mask = visible(layout, cache)
        if cache is None:
            room = _filled(rows, COLUMNS)
            shape = (batch * config.num_kv_heads, room, config.head_width)
            keys, values = (torch.zeros(shape, dtype=self.embedding.weight.dtype) for _ in range(2))
            scales, past, layer_stride = None, 0, 0
        else:
            cache.stored(rows)
            keys, values, scales, past, room = cache.keys, cache.values, cache.scales, cache.length, cache.keys.shape[3]
            layer_stride = batch * config.num_kv_heads * room
        x = self._fill(F.embedding(tokens_BR.reshape(-1), self.embedding.weight).float())
        position = layout.rows.position.expand(batch, rows).contiguous()
        asked = torch.arange(rows) if asked_A is None else asked_A.to(torch.int64).contiguous()
        out = torch.empty(batch * len(asked), self._width)
        call = interface.Call(
            x.data_ptr(),
            position.data_ptr(),
            first.ctypes.data,
            count.ctypes.data,
            None if mask is None else mask.data_ptr(),
            asked.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            None if scales is None else scales.data_ptr(),
            out.data_ptr(),
            layer_stride,
            *(batch, rows, len(asked), past, room, base),
            *((0, 0) if mask is None else (mask.shape[2], mask.shape[0])),
            int(isinstance(cache, PackedCache)),
            torch.get_num_threads(),
        )
        wrong = self._library.daguerre_forward(self._this, ctypes.byref(call))
        if wrong:
            raise (MemoryError if wrong == 3 else IndexError)(interface.WRONG[wrong])
        if cache is not None and layout.num_settled:
            cache.commit(layout.rows if layout.num_settled == rows else layout.rows[: layout.num_settled])
        return out[:, : config.width].view(batch, len(asked), config.width)

    def _reads(self, cache: Cache) -> bool:
        own = cache.keys if cache.scales is None else cache.scales
        return own.dtype == self.embedding.weight.dtype

    def cache(self, capacity: int) -> Cache:
        """A cache for one request: packed where that takes no more memory than one that is not."""
        kind = Cache if self.config.head_width % COLUMNS else PackedCache
        return kind(self.config, capacity, dtype=self.embedding.weight.dtype)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits (..., V) of the given hidden states (..., D); reserved tokens are minus infinity."""
        x = self._fill(hidden.reshape(-1, hidden.shape[-1]).float())
        out = torch.empty(len(x), self._vocab)
        threads = torch.get_num_threads()
        self._library.daguerre_logits(self._this, x.data_ptr(), len(x), out.data_ptr(), threads)
        return out[:, : self.config.vocab_size].view(*hidden.shape[:-1], self.config.vocab_size)

    def drafting(self, rows: Tensor) -> Step | None:
        """The draft head's steps over the hidden states (A, D) of `rows`; None without one."""
        return None if self._drafter is None else _Steps(self, self._drafter, rows)


class PackedCache(Cache):
    """Keys and values as `native.cpp` multiplies with them: within ROUND rows of a key head their numbers lie as panels
    do. Native execution alone can read it.
    """

    def _longer(self, stored: Tensor, num_rows: int) -> Tensor:
        longer = stored.new_zeros(*stored.shape[:3], _filled(num_rows, ROUND), stored.shape[4])
        longer[:, :, :, : stored.shape[3]] = stored
        return longer

    def decoded(self, layer: int, num_rows: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer's first rows, (B, kv heads, num_rows, H), as other caches have them."""
        keys, values = (
            x[:, :, :num_rows] for x in (self._keys_of(self.keys[layer]), self._values_of(self.values[layer]))
        )
        return keys, values

    def spread(self, rows: Rows, capacity: int) -> Cache:
        """As `Cache.spread`; not packed."""
        plain = copy.copy(self)
        plain.keys, plain.values = self._keys_of(self.keys), self._values_of(self.values)
        return Cache.spread(plain, rows, capacity)

    @staticmethod
    def _keys_of(packed: Tensor) -> Tensor:
        numbers, head = 4 // packed.element_size(), packed.shape[-1]
        panels = packed.unflatten(-2, (-1, ROUND)).flatten(-2).unflatten(-1, (2, head // numbers, ROUND // 2, numbers))
        return panels.transpose(-3, -2).flatten(-2).flatten(-4, -2)

    @staticmethod
    def _values_of(packed: Tensor) -> Tensor:
        numbers, head = 4 // packed.element_size(), packed.shape[-1]
        shape = (head // COLUMNS, 2, ROUND // numbers, COLUMNS // 2, numbers)
        panels = packed.unflatten(-2, (-1, ROUND)).flatten(-2).unflatten(-1, shape)
        return panels.movedim((-3, -1), (-5, -4)).flatten(-3).flatten(-4, -2)


class _Steps:
    """The steps of a draft head over the hidden states (A, D) of rows."""

    def __init__(self, native: NativeBackbone, before: Tensor, rows: Tensor) -> None:
        self._native, self._before, self._rows = native, before, native._fill(rows.float())
        self._library, self._model = native._library, native._this
        self._threads = torch.get_num_threads()
        self._share = torch.empty(len(rows), native._model.up_rows.panels * COLUMNS)
        given = self._rows.data_ptr(), len(rows), self._share.data_ptr(), self._threads
        self._library.daguerre_share(self._model, *given)

    def __call__(self, place: int, token: int, state: Tensor) -> tuple[Tensor, Tensor]:
        """The state (1, D) of the row at `place`, and its logits (1, V); see `models.draft_head.Step`."""
        config, given = self._native.config, self._native._fill(state.float())
        out, logits = torch.empty(1, self._rows.shape[1]), torch.empty(1, len(self._native._bias))
        told = (self._share[place], self._before[token], given, self._rows[place], out, logits)
        self._library.daguerre_draft(self._model, *(x.data_ptr() for x in told), self._threads)
        return out[:, : config.width], logits[:, : config.vocab_size]

    def greedy(
        self, place: int, token: int, state: Tensor | None, added: np.ndarray, worth: float, threshold: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What `models.draft_head.Chain.greedy` says, from the row at `place` on."""
        num, vocab_size = added.shape
        bias = self._native._bias.numpy()
        bias = added + bias if vocab_size == len(bias) else np.pad(added, ((0, 0), (0, len(bias) - vocab_size))) + bias
        tokens, probabilities = np.zeros(num, dtype=np.int64), np.zeros(num)
        logits = np.empty(bias.shape, dtype=np.float32)
        given = None if state is None else self._native._fill(state.float())
        found = self._library.daguerre_greedy(
            *(self._model, self._share[place:].data_ptr(), self._before.data_ptr()),
            *(None if given is None else given.data_ptr(), self._rows[place:].data_ptr()),
            *(num, token, worth, threshold, bias.ctypes.data),
            *(tokens.ctypes.data, probabilities.ctypes.data, logits.ctypes.data, self._threads),
        )
        return tokens[:found], probabilities[:found], logits[:found, :vocab_size]


class _Packing:
    """Packs matrices as `native.cpp` reads them, and holds what it points to."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._held: list[Tensor] = []

    def hold(self, x: Tensor) -> int:
        """The address of a tensor that stays."""
        self._held.append(x.contiguous())
        return self._held[-1].data_ptr()

    def linear(self, weight: Tensor) -> interface.Linear:
        """Of a matrix (out, in): panels of COLUMNS, each (2, words, COLUMNS / 2, numbers in 32 bits)."""
        scale = offset = None
        if self.dtype == torch.int8:
            codes, scale, offset = rounded(weight)
            matrix = codes
        else:
            matrix = weight.to(self.dtype)
        num_out, num_in = matrix.shape
        numbers = 4 // matrix.element_size()
        words, panels = _filled(-(-num_in // numbers), WORDS), -(-num_out // COLUMNS)
        matrix = F.pad(matrix, (0, words * numbers - num_in, 0, panels * COLUMNS - num_out))
        matrix = matrix.view(panels, 2, COLUMNS // 2, words, numbers).transpose(2, 3)
        columns = [None if x is None else self.hold(F.pad(x, (0, panels * COLUMNS - num_out))) for x in (scale, offset)]
        return interface.Linear(self.hold(matrix), *columns, words, panels)


def rounded(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Int8 codes (out, in) of a matrix, float32 scales (out,), and int32 (out,), 128 times the sums of codes: what a
    product gains where 128 is added to each code of the inputs.
    """
    weight = weight.float()
    scale = weight.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny) / INT8
    codes = (weight / scale[:, None]).round()
    return codes.to(torch.int8), scale, (128 * codes.sum(1)).to(torch.int32)


def _filled(num: int, to: int) -> int:
    return -(-num // to) * to


def _scaled(weight: Tensor, norm: Tensor) -> Tensor:
    """The matrix (out, D) with the weight of the norm before it multiplied in."""
    return weight.detach().float() * norm.detach().float()


def _in_turn(gate_up: Tensor) -> Tensor:
    """Rows of gates and of values, a vector of each in turn: (2 * filled up, D)."""
    gate, up = (F.pad(x, (0, 0, 0, -len(x) % LANES)).unflatten(0, (-1, LANES)) for x in gate_up.chunk(2))
    return torch.stack([gate, up], dim=1).flatten(0, 2)


def visible(layout: Layout, cache: Cache | None) -> tuple[np.ndarray, np.ndarray, int, Tensor | None]:
    """Which keys each row sees: the first so many, int32 (R,); of those behind, up to another number (R,), what a mask
    says, uint8 (1 or B, R, M), which begins at the key of the number between them. None: it sees no others.
    """
    past, num = 0 if cache is None else cache.length, layout.rows.num_rows
    settled, together = layout.num_settled, layout.num_settled - layout.alone
    count = np.arange(past + 1, past + num + 1, dtype=np.int32)
    count[settled:] = past + num
    causal = layout.plain or together == 0
    if layout.seen is None and causal and (layout.open_sees_all or settled == num):
        return count, count, 0, None
    if layout.seen is None and causal and layout.among is not None:
        mask = torch.zeros(1, num, num - together, dtype=torch.uint8)
        mask[0, together:] = layout.among
        first = count.copy()
        first[settled:] = past + together
        return first, count, past + together, mask
    keys = layout.rows if cache is None or cache.rows is None else Rows.cat([cache.rows, layout.rows])
    seen = allowed(layout.rows, keys, layout.context, layout.block_size)
    if layout.seen is not None:
        seen = seen & layout.seen
    count[:] = past + num
    return np.zeros_like(count), count, 0, seen.to(torch.uint8).contiguous()


def cannot_run(backbone: Backbone) -> str | None:
    """Why this backbone cannot run native, or None when it can, given a compiler."""
    weight = backbone.embedding.weight
    if backbone.config.time_input:
        return "a model with `time_input`"
    if weight.device.type != "cpu":
        return f"on {weight.device.type}"
    if weight.dtype not in (torch.float32, torch.bfloat16):
        return f"in {str(weight.dtype).removeprefix('torch.')}"
    return None


def can_run(backbone: Backbone) -> bool:
    """Whether this backbone can run native here; what is needed for that is compiled."""
    if cannot_run(backbone):
        return False
    try:
        interface.library()
    except UnsupportedError:
        return False
    return True
