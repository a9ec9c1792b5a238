"""Long texts: what is cached is as good as what is computed, no mask is as large as the square of the text, and windows
of sliding layers are those of a plain mask.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import daguerre
from backends import BACKENDS, NATIVE
from conftest import GEMMA, MakeModel
from daguerre.models.backends import sliding
from daguerre.models.backends.native_backend import NativeBackend
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import Windows
from daguerre.models.core.gemma import CanvasRows, GemmaBackbone
from daguerre.models.forward import Backend, Forward, Hidden, Layout, Logits
from forwards import causal_layout, difference, same_bits

LONG, PIECE, BLOCK = 2048, 512, 9


def backend_of(name: str, backbone: Backbone) -> Backend:
    return NativeBackend(backbone) if name == "native" else TorchBackend(backbone)


def tokens_of(backend: Backend, num: int) -> np.ndarray:
    return np.random.default_rng(num).choice(backend.config.ordinary_ids, num)


def spans(block_size: int | None, past: int, num: int) -> Layout:
    """Clean rows behind a cache: causal ones, or those of whole blocks."""
    layout = causal_layout(past, num)
    if block_size is not None:
        layout.end = np.minimum((layout.position // block_size + 1) * block_size, past + num).astype(np.int32)
    return layout


def with_block(layout: Layout, num_noisy: int) -> Layout:
    """The same, and noisy rows behind it, which see everything."""
    total = int(layout.end[-1]) + num_noisy if len(layout.end) else num_noisy
    position = np.arange(total - num_noisy, total)
    end = np.concatenate([layout.end, np.full(num_noisy, total)]).astype(np.int32)
    return Layout(np.concatenate([layout.position, position]), end, layout.num_clean)


@pytest.mark.parametrize("facts", [{}, {"context": "block", "shift": False, "block_size": 8}, GEMMA])
@pytest.mark.parametrize("name", BACKENDS)
def test_a_block_behind_2048_cached_tokens_is_that_without_a_cache(
    name: str, facts: dict[str, Any], make_model: MakeModel
) -> None:
    """Read in pieces, and cut in the middle once, as the engine does; equal to the bit on the native backend."""
    backbone = make_model(**facts, max_positions=LONG + 64).backbone
    backend = backend_of(name, backbone)
    size = backbone.config.block_size if backbone.config.context == "block" else None
    tokens = tokens_of(backend, LONG + BLOCK)
    cache = backend.cache(LONG + 64)
    for stop in (*range(PIECE, LONG + 1, PIECE), 1600, LONG):
        if stop < cache.length:
            cache.truncate(stop - 64)
        part = slice(cache.length, stop)
        layout = spans(size, part.start, stop - part.start)
        backend.forward([Forward(tokens[part], layout, cache, np.zeros(1, dtype=np.int32), Hidden())])
    assert cache.length == LONG
    noisy = np.arange(BLOCK, dtype=np.int32)
    behind = with_block(Layout(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32), 0), BLOCK)
    behind.position, behind.end = behind.position + LONG, behind.end + LONG
    (cached,) = backend.forward([Forward(tokens[LONG:], behind, cache, noisy, Logits())])
    everything = with_block(spans(size, 0, LONG), BLOCK)
    (computed,) = backend.forward([Forward(tokens, everything, None, LONG + noisy, Logits())])
    if name == "native":
        assert same_bits(cached, computed)
    assert cached.logits is not None
    assert computed.logits is not None
    assert difference(cached.logits, computed.logits) < 1e-5


@pytest.mark.parametrize("name", BACKENDS)
def test_a_long_prompt_is_continued_as_without_a_cache(name: Any, make_model: MakeModel) -> None:
    made = make_model(max_positions=LONG + 64)
    model = daguerre.Model(made.backbone, made.tokenizer, backend=name)
    prompt = tokens_of(model.denoiser.backend, LONG).tolist()
    for mode in ({"mode": "ar"}, {"mode": "block", "block_size": 4, "threshold": 0.6}):
        exact, slow = (model.generate(prompt, 6, cache=cache, **mode) for cache in ("auto", "none"))
        assert [token.id for token in exact.tokens] == [token.id for token in slow.tokens]


def test_many_rows_have_no_mask_and_the_logits_that_they_have_with_one(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """Of full, block and causal context, behind a cache and without one: a few rows at a time on the torch backend."""
    for facts in [
        {"context": "full"},
        {"context": "full", "shift": False},
        {"context": "block", "shift": False, "block_size": 8},
        {"context": "reordered", "shift": False},
        {},
    ]:
        with subtests.test(**facts), monkeypatch.context() as patch:
            backend = TorchBackend(make_model(**facts, max_positions=300).backbone)
            config, num, noisy = backend.config, 150, 20
            forwards = []
            for past in (0,) if config.context == "full" else (0, 40):
                clean = 0 if config.context == "full" else num
                layout = spans(config.block_size if config.context == "block" else None, past, num)
                if config.context == "full":
                    layout = Layout(np.arange(num), np.full(num, num, dtype=np.int32), 0)
                layout = with_block(layout, noisy) if clean else layout
                tokens = tokens_of(backend, len(layout.position))
                wanted = np.arange(len(tokens), dtype=np.int32)
                cache = backend.cache(300) if past else None
                if cache is not None:
                    first = Forward(tokens[:past], causal_layout(0, past), cache, wanted[:1], Hidden())
                    backend.forward([first])
                level = 0.5 if config.time_input else None
                forwards.append((Forward(tokens, layout, cache, wanted, Logits(), level), past))
            expected = []
            for forward, past in forwards:
                expected.append(backend.forward([forward])[0])
                if forward.cache is not None:
                    forward.cache.truncate(past)
            patch.setattr(sliding, "ROWS", 16)
            patch.setattr(Layout, "dense", lambda *_: pytest.fail("a mask was made for all rows"))
            for (forward, _), want in zip(forwards, expected, strict=True):
                (got,) = backend.forward([forward])
                assert got.logits is not None
                assert want.logits is not None
                assert difference(got.logits, want.logits) < 1e-5


class PlainMask:
    """Attention under masks that are written from positions alone, one for sliding layers and one for global ones."""

    def __init__(self, backbone: GemmaBackbone, num_clean: int, num: int) -> None:
        windows = backbone.config.windows
        assert windows is not None
        self.sliding_layers = windows.layers
        row, key = torch.arange(num)[:, None], torch.arange(num)
        is_clean, window = row < num_clean, windows.size
        self.everywhere = ~is_clean | (key <= row)
        # A clean row sees its window; a noisy one its canvas, and of the text what the first noisy row's window holds.
        in_window = torch.where(is_clean, (row - window < key) & (key <= row), key > num_clean - window)
        self.within = in_window | (~is_clean & (key >= num_clean))

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = self.within if layer in self.sliding_layers else self.everywhere
        groups = q.shape[1] // k.shape[1]
        keys, values = (x.repeat_interleave(groups, dim=1).transpose(0, 1) for x in (k, v))
        scores = (q.transpose(0, 1) @ keys.transpose(-1, -2)).masked_fill(~mask, -torch.inf)
        return (scores.softmax(-1) @ values).transpose(0, 1)


@pytest.mark.parametrize("name", [NATIVE, "torch"])
def test_a_span_sees_the_window_of_a_plain_mask(
    name: str, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """Of texts shorter than the window, and far longer; the canvas is longer than the smaller windows."""
    for window in [1, 7, 64, 1000]:
        with subtests.test(window=window):
            backbone = make_model(**GEMMA | {"windows": Windows(size=window, layers=(0,))}, max_positions=400).backbone
            assert isinstance(backbone, GemmaBackbone)
            backend = backend_of(name, backbone)
            monkeypatch.setattr(sliding, "ROWS", 64)
            for num_clean in (3, 60, 200):
                num = num_clean + BLOCK
                tokens = tokens_of(backend, num)
                layout = with_block(causal_layout(0, num_clean), BLOCK)
                wanted = np.arange(num, dtype=np.int32)
                (got,) = backend.forward([Forward(tokens, layout, None, wanted, Logits())])
                noisy = torch.arange(num) >= num_clean
                rows = CanvasRows(noisy, torch.zeros(BLOCK, backbone.config.width))
                attend = PlainMask(backbone, num_clean, num)
                with torch.no_grad():
                    hidden = backbone(torch.from_numpy(tokens), torch.arange(num), attend, canvas=rows)
                    want = F.log_softmax(backbone.logits(hidden), -1)
                assert got.logits is not None
                ours = F.log_softmax(torch.from_numpy(got.logits), -1)
                finite = want.isfinite()
                assert (ours[finite] - want[finite]).abs().max() < 1e-3
