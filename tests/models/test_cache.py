"""Caches are exact: whatever was cached, in whatever pieces, logits are those of one forward over everything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from backends import BACKENDS
from conftest import tiny_config
from daguerre.errors import InputError
from daguerre.models.backends.native_backend import NativeBackend
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.batched import BatchCache, BatchLayout, Rows, run_batch
from daguerre.models.core.cache import KeyValueCache, to_int8
from daguerre.models.core.config import RopeScaling
from daguerre.models.forward import Backend, Forward, Layout, Logits
from daguerre.models.tokenizer import Tokenizer
from forwards import causal_layout, difference, filled_cache, tokens_of

NUM = 24
MAKERS: dict[str, Callable[[Backbone], Backend]] = {"native": NativeBackend, "torch": TorchBackend}
each_backend = pytest.mark.parametrize("name", BACKENDS)


@pytest.fixture(scope="module")
def backbone(tokenizer: Tokenizer) -> Backbone:
    return Backbone(tiny_config(tokenizer)).initialize(0, zero_outputs=False).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def tokens(backbone: Backbone) -> Tensor:
    return torch.randint(16, backbone.config.vocab_size, (2, NUM), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def expected(backbone: Backbone, tokens: Tensor) -> Tensor:
    return backbone.logits(run_batch(backbone, tokens, BatchLayout.causal(NUM, batch=2)))


def batch_cache(backbone: Backbone, capacity: int = NUM) -> BatchCache:
    return BatchCache(backbone.config, capacity, 2, torch.float32, torch.device("cpu"))


def feed(backbone: Backbone, cache: BatchCache, tokens: Tensor, start: int, stop: int) -> Tensor:
    layout = BatchLayout.causal(stop - start, start=start, batch=len(tokens))
    return backbone.logits(run_batch(backbone, tokens[:, start:stop], layout, cache))


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("bounds", [(0, 24), (0, 1, 2, 3, 24), tuple(range(25))])
def test_pieces_of_any_size_give_the_logits_of_one_forward(
    backbone: Backbone, tokens: Tensor, expected: Tensor, bounds: tuple[int, ...]
) -> None:
    cache = batch_cache(backbone)
    parts = [feed(backbone, cache, tokens, a, b) for a, b in zip(bounds, bounds[1:], strict=False)]
    assert close(torch.cat(parts, dim=1), expected)
    assert cache.length == NUM


def test_what_is_forgotten_can_be_computed_again(backbone: Backbone, tokens: Tensor, expected: Tensor) -> None:
    cache = batch_cache(backbone)
    feed(backbone, cache, tokens, 0, 10)
    feed(backbone, cache, tokens.flip(0), 10, 16)
    cache.truncate(10)
    assert cache.length == 10
    assert cache.rows is not None
    assert cache.rows.num_rows == 10
    assert close(feed(backbone, cache, tokens, 10, NUM), expected[:, 10:])
    cache.truncate(0)
    assert cache.rows is None
    assert close(feed(backbone, cache, tokens, 0, NUM), expected)


def test_noisy_rows_are_answered_and_not_stored(backbone: Backbone, tokens: Tensor) -> None:
    cache = batch_cache(backbone)
    feed(backbone, cache, tokens, 0, 8)
    rows = Rows.make(torch.arange(8, 12).expand(2, -1), span=0)
    before = cache.read(1)[0].clone()
    layout = BatchLayout(rows, num_clean=0)
    first, again = (run_batch(backbone, tokens[:, 8:12], layout, cache) for _ in range(2))
    assert cache.length == 8
    assert torch.equal(cache.read(1)[0], before)
    assert torch.equal(first, again)


def test_one_forward_finishes_a_span_and_begins_the_next(backbone: Backbone, tokens: Tensor) -> None:
    """Clean and noisy rows together give what two forwards give."""
    clean = Rows.make(torch.arange(8, 12).expand(2, -1))
    noisy = Rows.make(torch.arange(12, 15).expand(2, -1), span=0)
    together, apart = (batch_cache(backbone) for _ in range(2))
    for cache in (together, apart):
        feed(backbone, cache, tokens, 0, 8)
    both = run_batch(backbone, tokens[:, 8:15], BatchLayout(Rows.cat([clean, noisy]), num_clean=4), together)
    first = run_batch(backbone, tokens[:, 8:12], BatchLayout(clean, num_clean=4), apart)
    second = run_batch(backbone, tokens[:, 12:15], BatchLayout(noisy, num_clean=0), apart)
    assert close(both, torch.cat([first, second], dim=1))
    assert together.length == apart.length == 12
    for layer in range(backbone.config.num_layers):
        assert all(map(close, together.read(layer), apart.read(layer)))


@each_backend
def test_requests_read_what_they_wrote_however_their_caches_grew(
    make_model: Any, name: str, subtests: pytest.Subtests
) -> None:
    """Row by row, at once, and forgotten and written again, beyond the room of the beginning. Both backends keep the
    same keys and values: to the rounding of sums; as 8-bit numbers to a code.
    """
    step = {False: {torch.float32: 1e-4, torch.bfloat16: 0.1}, True: {torch.float32: 0.02, torch.bfloat16: 0.1}}
    for dtype, int8 in product((torch.float32, torch.bfloat16), (False, True)):
        with subtests.test(dtype=dtype, int8=int8):
            backbone = make_model(head_width=24).backbone.to(dtype)
            backend, reference = MAKERS[name](backbone), TorchBackend(backbone)
            whole, parts = written(backend, int8, 140), written(backend, int8, 1, 62, 1, 1, 60, -50, 65)
            other = written(reference, int8, 140)
            for layer in range(backbone.config.num_layers):
                for one, two, want in zip(whole.read(layer), parts.read(layer), other.read(layer), strict=True):
                    assert one.shape == want.shape == (1, backbone.config.num_kv_heads, 140, 24)
                    limit = step[int8][dtype] * want.abs().amax(-1, keepdim=True)
                    assert ((one - want).abs() <= limit).float().mean() > 0.999
                    assert ((one - two).abs() <= limit).float().mean() > 0.999


def written(backend: Backend, int8: bool, *parts: int) -> Any:
    """A cache to which so many rows were added, one part after the other, or taken away."""
    cache: Any = backend.cache(150, int8=int8)
    tokens = tokens_of(backend, 5, 140)
    for num in parts:
        if num < 0:
            cache.truncate(cache.length + num)
            continue
        start, last = cache.length, np.array([num - 1], dtype=np.int32)
        backend.forward([Forward(tokens[start : start + num], causal_layout(start, num), cache, last, Logits())])
    return cache


@each_backend
def test_a_full_cache_says_how_many_rows_it_holds_and_keeps_them(backbone: Backbone, name: str) -> None:
    """Noisy rows take no room in it."""
    backend = MAKERS[name](backbone)
    cache: Any = backend.cache(10)
    tokens, last = tokens_of(backend, 0, 24), np.array([0], dtype=np.int32)
    with pytest.raises(InputError, match="holds 10 rows and 24 are needed"):
        backend.forward([Forward(tokens, causal_layout(0, 24), cache, last, Logits())])
    assert cache.length == 0
    backend.forward([Forward(tokens[:9], causal_layout(0, 9), cache, last, Logits())])
    noisy = replace(causal_layout(9, 15), num_clean=1)
    noisy.end[1:] = 24
    backend.forward([Forward(tokens[9:], noisy, cache, last, Logits())])
    assert cache.length == 10
    with pytest.raises(InputError, match="holds 10 rows and 11 are needed"):
        backend.forward([Forward(tokens[:1], causal_layout(10, 1), cache, last, Logits())])
    assert cache.length == 10


POSITIONS: list[dict[str, Any]] = [
    {},
    {"rope_share": 0.5},
    {"rope_scaling": RopeScaling(kind="yarn", factor=4.0, original_positions=64)},
]


@each_backend
def test_a_moved_copy_is_what_would_have_been_computed_there(
    make_model: Any, name: str, subtests: pytest.Subtests
) -> None:
    """Two runs that are blind to one another, the second moved. The original stays as it is, whatever is written into
    the copy; an empty cache has a copy, too.
    """
    for facts in POSITIONS:
        with subtests.test(**facts):
            backend = MAKERS[name](make_model(**facts).backbone)
            tokens, by = tokens_of(backend, 3, 80), np.repeat([0, 37], [70, 10])
            begin = np.repeat([0, 70], [70, 10]).astype(np.int32)
            answers, caches = [], []
            for moved in (False, True):
                cache: Any = backend.cache(100)
                for place in (slice(0, 70), slice(70, 80)):
                    position, end = np.arange(80) + by * (not moved), np.arange(1, 81, dtype=np.int32)
                    num = place.stop - place.start
                    layout = Layout(position[place], end[place], num, begin[place])
                    backend.forward([Forward(tokens[place], layout, cache, np.array([0], dtype=np.int32), Logits())])
                caches.append(cache)
                used = cache.moved(by) if moved else cache
                noisy = Layout(np.arange(70, 76), np.full(6, 86, dtype=np.int32), 0)
                masks = np.full(6, backend.config.mask_id)
                before = cache.read(1)[1].clone()
                (answer,) = backend.forward([Forward(masks, noisy, used, np.arange(6, dtype=np.int32), Logits())])
                answers.append(answer.logits)
                used.truncate(3)
                used.truncate(50)
                assert used.length == 3
                backend.forward([Forward(masks, causal_layout(3, 6), used, np.array([0], dtype=np.int32), Logits())])
                assert torch.equal(cache.read(1)[1], before) == moved
            assert difference(*answers) < 1e-5  # type: ignore[arg-type]
            assert (caches[0].length, caches[1].length) == (9, 80)
            assert not torch.allclose(caches[1].read(0)[0], caches[1].moved(by).read(0)[0], atol=0.1)
            assert backend.cache(5).moved(np.zeros(0, dtype=np.int64)).length == 0
            again = caches[1].moved(by).moved(-by)
            assert all(torch.allclose(*pair, atol=1e-4) for pair in zip(again.read(1), caches[1].read(1), strict=True))


def rounded_slowly(x: Tensor) -> Tensor:
    """Each row of the last dimension by itself: to multiples of a 127th of its largest number."""
    rows = x.double().reshape(-1, x.shape[-1]).numpy().copy()
    for row in rows:
        step = float(torch.tensor(np.abs(row).max() / 127).to(x.dtype))
        row[:] = np.clip(np.round(row / (step or 1.0)), -127, 127) * step
    return torch.from_numpy(rows).view(x.shape).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_8_bit_numbers_are_the_nearest_and_keep_their_rows(backbone: Backbone, dtype: torch.dtype) -> None:
    config = backbone.config
    shape = (1, config.num_kv_heads, 5, config.head_width)
    keys = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    keys[0, 0, 2] = 0
    codes, scales = to_int8(keys, dtype)
    assert torch.equal(codes * scales, rounded_slowly(keys))
    assert (codes.abs().amax(-1)[scales[..., 0] > 0] == 127).all()
    cache = KeyValueCache(config, 300, dtype=dtype, int8=True)
    cache.write(0, keys, -keys)
    assert cache.read(0)[0].shape[2] == 0  # until it is committed
    cache.commit(5)
    cache.reserve(200, 5)
    assert all(torch.equal(x, sign * codes * scales) for x, sign in zip(cache.read(0), (1, -1), strict=True))


@each_backend
def test_8_bit_numbers_take_little_more_than_half_of_the_memory(make_model: Any, name: str) -> None:
    backbone = make_model(width=256, num_heads=2, num_kv_heads=2).backbone.to(torch.bfloat16)
    backend = MAKERS[name](backbone)
    int8, exact = (filled_cache(backend, 0, 64, int8=given).num_bytes for given in (True, False))
    scales = {"torch": 1, "native": 2}[name]  # of bfloat16, and of float32
    assert int8 / exact == 0.5 + scales / backbone.config.head_width
