"""Lean execution: a backbone's weights run for inference on a CPU, with little around the products.

What it leaves out of `Backbone.forward`, which stays the reference: laying weights out anew at every call (oneDNN packs
them once), concatenating cached and new keys (rows are written behind the settled ones, in place), rotary tables and
masks that the layout does not need, and the last layer's branches of rows that nobody asks for.

Attention is two plain products, chunk by chunk of rows: in bfloat16 up to three times as fast as SDPA on a CPU. Scores
are in the dtype of the weights, as in training. Norms and rotations are in float32.

Letters: B requests, R rows, A asked rows, C keys, D width, N heads, K key-value heads, G query heads for each of those,
H head width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.errors import UnsupportedError
from daguerre.models.backbone import LONG, Backbone, Layer
from daguerre.models.cache import ROUND, Cache
from daguerre.models.draft_head import DraftHead, Step
from daguerre.models.layout import Layout, Rows, allowed
from daguerre.models.rotary import rotary_tables

CHUNK = 64
"""Rows whose scores are in memory at a time."""
PACKED = 16
"""Rows that weights are packed for; packed for one, a row has other bits alone than among others, in float32."""
ROWS_TOGETHER = 4
"""In float32 queries of a key head come in multiples of it: the library sums fewer in another order."""
VECTOR = 32
"""Numbers in a register: queries of a key head come in multiples of it where softmax takes them side by side."""


class Linear:
    """x W^T + bias of packed weights, x (rows, in); or with `add` (rows, out), x W^T + add, in one operation.

    A row has the same bits whatever the number of rows and threads, in both types: weights are packed for PACKED rows,
    and of more than LONG inputs a single row is computed twice, which takes no longer than once.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._long = weight.shape[1] > LONG
        self._weight, self._bias = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), PACKED), bias
        self._plain = torch.ops.mkldnn._linear_pointwise.default
        self._binary = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        if self._long and len(x) == 1:
            return self(torch.cat([x, x]), None if add is None else torch.cat([add, add]))[:1]
        if add is None:
            return self._plain(x, self._weight, self._bias, "none", [], "")
        assert self._bias is None
        return self._binary(x, add, self._weight, None, "add")


@dataclass(frozen=True)
class Chunk:
    """Queries [start, stop) of a forward, the number C of keys they are multiplied with, of which they see `num_seen`
    at most, and a bias on those from `first` on, (B or 1, 1, stop - start, num_seen - first); None: they see all those.

    alone: some of the queries must have the bits that they have in a chunk of their own.
    """

    start: int
    stop: int
    num_keys: int
    num_seen: int
    first: int = 0
    bias: Tensor | None = None
    alone: bool = False


def chunks(layout: Layout, cache: Cache | None, dtype: torch.dtype, size: int = CHUNK) -> list[Chunk]:
    """The products that attention makes for these rows behind those of the cache.

    Open rows are multiplied with all keys; settled rows with those up to the end of their chunk, if none later is seen.
    Behind a cache keys come in multiples of ROUND, the last of them scratch that gets no weight: oneDNN prepares a
    product anew for each shape that it meets. How many keys a row that attends alone is multiplied with depends on its
    place only, and neighbors with the same number are one chunk.
    """
    assert layout.seen is None or cache is None, "a mask beside the rule is of this forward's rows alone"
    past = 0 if cache is None else cache.length
    num_rows, num_settled, device = layout.rows.num_rows, layout.num_settled, layout.rows.position.device
    together = num_settled - layout.alone

    def width(num_keys: int) -> int:
        return num_keys if cache is None else -(-num_keys // ROUND) * ROUND

    widths = [width(past + row + 1) for row in range(together, num_settled)]
    last = widths.index(width(past + num_rows)) if width(past + num_rows) in widths else layout.alone
    apart = [together + row for row in range(last) if row == 0 or widths[row] != widths[row - 1]]
    edges = [*range(0, together, size), *apart, *range(together + last, num_rows, size), num_rows]
    out = []
    for start, stop in zip(edges, edges[1:], strict=False):
        if stop <= num_settled and (layout.plain or start >= together):
            out.append(_causal(start, stop, past, width(past + stop), dtype, start >= together, device))
        elif start >= num_settled and layout.open_sees_all:
            out.append(Chunk(start, stop, width(past + num_rows), past + num_rows))
        elif layout.among is not None:
            seen, num_keys = layout.among[None, None, start - together : stop - together], past + num_rows
            bias, alone = _bias(seen, dtype), start < num_settled
            out.append(Chunk(start, stop, width(num_keys), num_keys, past + together, bias, alone))
        else:
            keys = layout.rows if cache is None or cache.rows is None else Rows.cat([cache.rows, layout.rows])
            num_keys = past + (num_settled if stop <= num_settled else num_rows)
            seen = allowed(layout.rows[start:stop], keys[:num_keys], layout.context, layout.block_size)
            if layout.seen is not None:
                seen = seen & layout.seen[:, start:stop, :num_keys]
                num_keys = int(seen.any(dim=1).any(dim=0).nonzero()[-1]) + 1
                seen = seen[:, :, :num_keys]
            bias, alone = _bias(seen[:, None], dtype), together <= start < num_settled
            out.append(Chunk(start, stop, width(num_keys), num_keys, 0, bias, alone))
    return out


def _causal(
    start: int, stop: int, past: int, num_keys: int, dtype: torch.dtype, alone: bool, device: torch.device
) -> Chunk:
    """Settled rows of one causal run: only the keys of the chunk itself need a mask, those of one row none."""
    num = stop - start
    if num == 1:
        return Chunk(start, stop, num_keys, past + stop, alone=alone)
    seen = torch.ones(1, 1, num, num, dtype=torch.bool, device=device).tril()
    return Chunk(start, stop, num_keys, past + stop, past + start, _bias(seen, dtype), alone)


def _bias(seen: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min)


def _attend(q: Tensor, keys: Tensor, values: Tensor, parts: list[Chunk]) -> Tensor:
    """Attention of scaled q (B, N, R, H) over keys and values (B * K, C, H): (B * R, N * H)."""
    batch, num_heads, rows, head = q.shape
    out = [_product(q if len(parts) == 1 else q[:, :, part.start : part.stop], keys, values, part) for part in parts]
    joined = out[0] if len(out) == 1 else torch.cat(out, dim=2)
    return joined.transpose(1, 2).reshape(batch * rows, num_heads * head)


def _product(q: Tensor, keys: Tensor, values: Tensor, part: Chunk) -> Tensor:
    """One chunk, q (B, N, rows, H): the same shape."""
    batch, num_heads, rows, head = q.shape
    num_kv, groups = keys.shape[0] // batch, num_heads * batch // keys.shape[0]
    keys, values = keys[:, : part.num_keys], values[:, : part.num_keys]
    queries, num = q.reshape(batch * num_kv, groups * rows, head), groups * rows
    if q.dtype == torch.float32:
        queries = F.pad(queries, (0, 0, 0, -num % ROWS_TOGETHER)) if num % ROWS_TOGETHER else queries
        scores = torch.bmm(queries, keys.mT)
    else:
        scores = torch.bmm(keys, queries.mT).mT  # keys are read as they lie
    if part.num_seen < part.num_keys:
        scores[:, :, part.num_seen :] = torch.finfo(q.dtype).min
    if part.bias is not None:
        seen = scores[:, :num, part.first : part.num_seen].unflatten(0, (batch, num_kv)).unflatten(2, (groups, rows))
        seen.add_(part.bias[:, :, None])
    side_by_side = not part.alone and q.dtype != torch.float32 and num % VECTOR == 0
    weights = torch.softmax(scores.mT, dim=1).mT if side_by_side else torch.softmax(scores, dim=-1)
    return torch.bmm(weights, values)[:, :num].reshape(q.shape)


def _unit(x: Tensor, offset: Tensor) -> Tensor:
    """Float32 x / sqrt(sum x^2 + offset^2) over the last dimension: an RMSNorm without its weight and sqrt(D)."""
    x = x.float()
    return x / torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), offset)


class LeanLayer:
    """One layer: packed weights, with the weights of the norms before them and their sqrt(D) multiplied in."""

    def __init__(self, layer: Layer, eps: float) -> None:
        attention, mlp = layer.attention, layer.mlp
        self.heads, self.head = attention.heads, attention.q_norm.weight.shape[0]
        num_heads, num_kv, _ = self.heads
        self._cuts = ((num_heads + num_kv) * self.head, num_kv * self.head)
        q_weight, k_weight = attention.q_norm.weight, attention.k_norm.weight * self.head**0.5
        both = torch.cat([q_weight.expand(num_heads, -1), k_weight.expand(num_kv, -1)])
        self._qk_weight = both.detach().float()  # the queries' sqrt(H) is left out: attention divides by it
        self._offset = torch.tensor((attention.qkv.in_features * eps) ** 0.5)
        self._head_offset = torch.tensor((self.head * eps) ** 0.5)
        self._qkv = Linear(_scaled(attention.qkv.weight, layer.attention_norm.weight))
        self._gate_up = Linear(_scaled(mlp.gate_up.weight, layer.mlp_norm.weight))
        self._out, self._down = Linear(attention.out.weight), Linear(mlp.down.weight)

    def project(self, x: Tensor, batch: int, rotary: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Scaled queries (B, N, R, H), keys and values (B, K, R, H) of hidden states (B * R, D); float32 but values."""
        qk, v = torch.split_with_sizes(self._qkv(_unit(x, self._offset).to(x.dtype)), self._cuts, dim=1)
        qk = _unit(qk.view(x.shape[0], -1, self.head), self._head_offset).mul_(self._qk_weight)
        cos, sin = rotary
        turned = (qk * cos).addcmul_(qk.roll(self.head // 2, -1), sin).view(batch, -1, sum(self.heads[:2]), self.head)
        q, k = torch.split_with_sizes(turned.transpose(1, 2), self.heads[:2], dim=1)
        return q, k, v.view(batch, -1, self.heads[2], self.head).transpose(1, 2)

    def finish(self, x: Tensor, y: Tensor) -> Tensor:
        """Hidden states (rows, D) behind the layer, from those before it and what attention gave."""
        x = self._out(y, add=x)
        gate, up = self._gate_up(_unit(x, self._offset).to(x.dtype)).chunk(2, dim=-1)
        return self._down(F.silu(gate).mul_(up), add=x)


def _scaled(weight: Tensor, norm: Tensor) -> Tensor:
    """The matrix (out, D) that takes `_unit` in place of an RMSNorm of weight `norm` (D,)."""
    return (weight.detach().float() * norm.detach().float() * len(norm) ** 0.5).to(weight.dtype)


class LeanDraftHead:
    """A `DraftHead`: of its first product the rows' share for all at once, embeddings of length one as they are."""

    def __init__(self, head: DraftHead, embedding: Tensor) -> None:
        width = embedding.shape[1]
        up = head.up.weight.detach() * width**0.5  # lengths of one take the place of root mean squares of one
        self._up_rows, self._up_told = Linear(up[:, :width]), Linear(up[:, width:])
        self._down, self._before = Linear(head.down.weight), F.normalize(embedding.float()).to(embedding.dtype)

    def over(self, rows: Tensor, logits: Callable[[Tensor], Tensor]) -> Step:
        """The steps over rows' hidden states (A, D)."""
        share = self._up_rows(rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True))

        def step(place: int, token: int, state: Tensor) -> tuple[Tensor, Tensor]:
            told = torch.cat([self._before[token : token + 1], state / torch.linalg.vector_norm(state)], dim=1)
            gate, value = self._up_told(told, add=share[place : place + 1]).chunk(2, dim=1)
            state = self._down(F.silu(gate).mul_(value), add=rows[place : place + 1])
            return state, logits(state)

        return step


class LeanBackbone:
    """A `Backbone` for inference on a CPU: the same calls, the same answers to rounding.

    Holds a packed copy of the matrices as they are now, beside those of the backbone. Nothing in it changes afterwards:
    safe to use from several threads, each with its own cache. UnsupportedError where the weights cannot be packed.
    """

    def __init__(self, backbone: Backbone) -> None:
        weight = backbone.embedding.weight.detach()
        reason = cannot_pack(backbone)
        if reason:
            raise UnsupportedError(f'execution "lean" cannot run {reason}: use execution="reference"')
        self.config = config = backbone.config
        self.embedding = backbone.embedding
        self._layers = [LeanLayer(layer, config.norm_eps) for layer in backbone.layers]  # type: ignore[arg-type]
        self._final = backbone.final_norm.weight.detach().float() * config.width**0.5
        self._offset = torch.tensor((config.width * config.norm_eps) ** 0.5)
        bias = torch.zeros(config.vocab_size, dtype=weight.dtype)
        bias[list(config.unpredictable_ids)] = float("-inf")
        self._head = Linear(weight, bias)
        self._drafter = None if backbone.draft_head is None else LeanDraftHead(backbone.draft_head, weight)
        position = torch.arange(config.max_positions)[None]
        cos, sin = rotary_tables(position, config.head_width, config.rope_theta, torch.float32)
        self._rotary = torch.cat([cos, cos, -sin, sin], dim=-1).view(-1, 2, config.head_width)

    @torch.inference_mode()
    def __call__(
        self, tokens_BR: Tensor, layout: Layout, cache: Cache | None = None, asked_A: Tensor | None = None
    ) -> Tensor:
        """Hidden states (B, R, D), or those of the asked rows (B, A, D); the cache is read and filled as by `Backbone`.

        Open rows are written to the cache behind its settled ones, as scratch: its capacity counts them too.
        """
        batch, rows = tokens_BR.shape
        x = F.embedding(tokens_BR.reshape(-1), self.embedding.weight)
        cos, sin = torch.split_with_sizes(self._rotary[layout.rows.position.reshape(-1)], (1, 1), dim=1)
        parts = chunks(layout, cache, x.dtype)
        windows = None if cache is None else cache.window(rows)
        for index, layer in enumerate(self._layers):
            q, k, v = layer.project(x, batch, (cos, sin))
            if windows is None:
                keys, values = k.to(x.dtype).flatten(0, 1), v.flatten(0, 1)
            else:
                keys, values = windows[index].put(k, v)
            y = _attend(q.to(x.dtype, memory_format=torch.contiguous_format), keys, values, parts)
            if asked_A is not None and layer is self._layers[-1]:
                x, y = (z.view(batch, rows, -1)[:, asked_A].flatten(0, 1) for z in (x, y))
            x = layer.finish(x, y)
        if cache is not None and layout.num_settled:
            cache.commit(layout.rows if layout.num_settled == rows else layout.rows[: layout.num_settled])
        return _unit(x, self._offset).mul_(self._final).to(x.dtype).view(batch, -1, x.shape[-1])

    def drafting(self, rows: Tensor) -> Step | None:
        """The draft head's steps over the hidden states (A, D) of `rows`; None without one."""
        return None if self._drafter is None else self._drafter.over(rows, self.logits)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits (..., V) of the given hidden states (..., D); reserved tokens are minus infinity."""
        return self._head(hidden.reshape(-1, hidden.shape[-1])).float().view(*hidden.shape[:-1], self.config.vocab_size)


def cannot_pack(backbone: Backbone) -> str | None:
    """Why this backbone cannot run from packed weights, or None when it can."""
    weight = backbone.embedding.weight
    if backbone.config.time_input:
        return "a model with `time_input`"
    if weight.device.type != "cpu":
        return f"on {weight.device.type}"
    if not torch.backends.mkldnn.is_available():
        return "without oneDNN, which this build of torch lacks"
    if weight.dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return "in bfloat16 on this processor"
    if weight.dtype not in (torch.float32, torch.bfloat16):
        return f"in {str(weight.dtype).removeprefix('torch.')}"
    return None
