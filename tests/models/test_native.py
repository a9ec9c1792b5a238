"""Native execution: equal to the reference, on every kind of processor that this one can play; the same bits whatever
is computed beside a row; kept on disk, never required. With 8-bit matrices: equal to a slow one that rounds alike.
"""

from __future__ import annotations

import dataclasses
import logging
import platform
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from daguerre.errors import UnsupportedError
from daguerre.model import Model, load
from daguerre.models import native as module
from daguerre.models import native_library as interface
from daguerre.models import step as slow
from daguerre.models.backbone import Backbone
from daguerre.models.cache import Cache
from daguerre.models.compiled import CompiledBackbone
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.layout import PADDING, SETTLED, Layout, Rows
from daguerre.models.lean import LeanBackbone
from daguerre.models.native import NativeBackbone, PackedCache, rounded
from daguerre.models.native_library import library
from executions import needs_compiler
from models.test_compiled import DTYPES, LONG, NAMES, PROMPT, check, layouts, logits, plain

pytestmark = needs_compiler
X86 = ("-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16")
PROCESSORS = {
    "this": (),
    "no tiles": ("-march=native", *X86),
    "no dot products": ("-march=native", *X86, "-mno-avx512vnni", "-mno-avx512bf16"),
    "AVX2": ("-march=x86-64-v3",),
    "any": ("-O2", "-march=x86-64"),
}
SHAPES: list[dict[str, Any]] = [
    {},
    {"width": 48, "num_heads": 6, "num_kv_heads": 1, "mlp_width": 80},
    {"width": 256, "num_heads": 2, "num_kv_heads": 2, "mlp_width": 704},
    {"width": 96, "num_heads": 1, "num_kv_heads": 1, "mlp_width": 40},
]
"""Heads of 8 numbers, half a vector; six queries of one key head; heads of two panels, and of one and a half."""


@pytest.fixture(scope="module")
def backbones(make_model: Any) -> dict[tuple[int, torch.dtype], Backbone]:
    return {
        (index, dtype): make_model(norm_eps=0.05, **shape).backbone.to(dtype)
        for index, shape in enumerate(SHAPES)
        for dtype in DTYPES
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", range(len(SHAPES)))
@pytest.mark.parametrize("past", [1, 63, 64, 130])
@pytest.mark.parametrize("name", NAMES)
def test_a_forward_equals_the_reference(backbones: Any, name: str, past: int, shape: int, dtype: Any) -> None:
    check(NativeBackbone(backbones[shape, dtype]), backbones[shape, dtype], past, name, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [kind for kind in PROCESSORS if kind != "this"])
def test_on_other_processors_too(backbones: Any, kind: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 and bfloat16 to rounding; 8-bit products are the same to the bit, given the same inputs."""
    if platform.machine() != "x86_64":
        pytest.skip("flags of another processor")
    backbone = backbones[2, dtype]
    hidden = torch.randn(40, backbone.config.width, generator=torch.Generator().manual_seed(5))
    here = NativeBackbone(backbone, int8=True).logits(hidden)
    monkeypatch.setattr(interface, "library", lambda: library(*PROCESSORS[kind]))
    check(NativeBackbone(backbone), backbone, 61, "settling", dtype)
    assert torch.allclose(NativeBackbone(backbone, int8=True).logits(hidden), here, rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_batch_with_padding_equals_the_reference(backbones: Any, dtype: Any) -> None:
    """Requests of one cache under other labels, and others without any."""
    backbone = backbones[0, dtype]
    tokens = torch.randint(16, 2048, (3, 40), generator=torch.Generator().manual_seed(1))
    span = torch.zeros(3, 20, dtype=torch.int64)
    span[1, 12:], span[2, 5:] = PADDING, PADDING
    starts = torch.tensor([20, 22, 25])[:, None]
    answers = []
    for executor in (NativeBackbone(backbone), backbone):
        cache = Cache(backbone.config, 64, dtype=dtype)
        with torch.inference_mode():
            executor(tokens[:1, :20], Layout.causal(20), cache)
            settled = Rows.make(torch.arange(20) + starts - 20)
            rows = Rows.make(torch.arange(20) + starts, span)
            hidden = executor(tokens[:, 20:], Layout(rows, 0), cache.spread(settled, 40))
            whole = executor(tokens, Layout.causal(40, batch=3), None, asked_A=torch.tensor([5, 39]))
            answers.append([executor.logits(x.to(dtype))[..., 16:] for x in (hidden, whole)])
    keep = span != PADDING
    for got, want in ((answers[0][0][keep], answers[1][0][keep]), (answers[0][1], answers[1][1])):
        near(got, want, dtype)


def near(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    limit = 1e-5 if dtype == torch.float32 else 0.05
    assert (got - want).abs().max() <= limit * want.abs().max()


@pytest.mark.parametrize("name", ["causal", "causal_unshifted", "full", "full_unshifted", "block"])
@pytest.mark.parametrize("options", [{"threshold": 0.5}, {"threshold": 0.5, "cache": "none"}, {"temperature": 1.0}])
def test_every_model_writes_what_the_reference_does(models: dict[str, Model], name: str, options: Any) -> None:
    own = models[name]
    both = [Model(own.backbone, own.tokenizer, kind) for kind in ("native", "reference")]  # type: ignore[arg-type]
    results = [[model.generate(LONG, 24, **options)] for model in both]
    if name != "block":  # where no block sees what comes after it
        for model, found in zip(both, results, strict=True):
            found.append(model.infill(PROMPT, " * h\n", 12, **options))
    native, reference = ([[(t.id, t.step) for t in result.tokens] for result in found] for found in results)
    assert native == reference


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_rows_bits_depend_on_nothing_computed_beside_it(backbones: Any, dtype: Any, int8: bool) -> None:
    """Settled all at once, or in parts, on one thread or two, with or without open rows behind."""
    executor = NativeBackbone(backbones[2, dtype], int8)
    tokens = torch.randint(16, 2048, (1, 150), generator=torch.Generator().manual_seed(2))

    def settle(*parts: int, num_open: int = 0) -> Tensor:
        cache, start, found = Cache(executor.config, 256, dtype=dtype), 0, []
        for num in parts:
            position = torch.arange(start, start + num + num_open)[None]
            rows = Rows.make(position, torch.where(position < start + num, SETTLED, 0))
            beside = torch.full((1, num_open), 40)
            given = torch.cat([tokens[:, start : start + num], beside], dim=1)
            hidden = executor(given, Layout(rows, num, plain=True, open_sees_all=True), cache)
            found.append(executor.logits(hidden[0, :num]))
            start += num
        return torch.cat(found)

    whole = settle(150)
    assert whole[:, 16:].std() > 0.5
    try:
        for num_threads in (1, 2):
            torch.set_num_threads(num_threads)
            assert torch.equal(settle(150), whole)
            assert torch.equal(settle(100, 1, 1, 5, 13, 17, 13), whole)
            assert torch.equal(settle(64, 1, 60, 25, num_open=9), whole)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("execution", ["native", "approximate_int8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_speculation_has_the_bits_of_ar(execution: Any, dtype: str) -> None:
    """The default model, with its draft head."""
    model = load(dtype=dtype, execution=execution)
    for prompt in (PROMPT, LONG):
        for temperature in (0.0, 1.0):
            options = {"temperature": temperature, "min_tokens": 70, "seed": 4}
            want, got = (model.generate(prompt, 70, mode=mode, **options) for mode in ("ar", "speculative"))
            texts = [[(t.id, t.logprob, t.confidence) for t in result.tokens] for result in (want, got)]
            assert texts[0] == texts[1]
            assert got.usage.forwards < want.usage.forwards


def rounding(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T with every row of both rounded to multiples of a 127th of its largest number."""
    codes, scale, _ = rounded(weight)
    step = x.float().abs().amax(-1, keepdim=True) / 127
    near = torch.floor(x.float() / step + 0.5)
    return (near.double() @ codes.double().T).float() * scale * step


class Rounding:
    """torch.nn.functional, its products rounding."""

    linear = staticmethod(rounding)

    def __getattr__(self, name: str) -> Any:
        return getattr(F, name)


@pytest.mark.parametrize("past", [20, 64])
@pytest.mark.parametrize("name", NAMES)
def test_8_bit_matrices_equal_a_slow_one_that_rounds_alike(
    backbones: Any, name: str, past: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as rounding lets two computations agree: a number between two codes may go either way in each of them, and
    that spreads; measured, a third of what rounding changes or less.
    """
    backbone = backbones[2, torch.float32]
    from daguerre.models import compiled

    monkeypatch.setattr(compiled, "load_step", plain)
    exact = logits(backbone, past, name, torch.float32)
    got = logits(NativeBackbone(backbone, int8=True), past, name, torch.float32)
    monkeypatch.setattr(slow, "F", Rounding())
    executor: Any = CompiledBackbone(backbone)
    executor._lean = NativeBackbone(backbone, int8=True)  # prompts, and logits of hidden states
    want = logits(executor, past, name, torch.float32)
    error, change = ((x - got).pow(2).mean().sqrt() for x in (want, exact))
    assert change > 0.01
    assert 2 * error < change


def test_an_8_bit_product_is_exact(backbones: Any) -> None:
    backbone = backbones[2, torch.float32]
    hidden = torch.randn(40, backbone.config.width, generator=torch.Generator().manual_seed(6))
    hidden[3] = 0
    hidden[4, 0] = 30.0
    want = rounding(hidden, backbone.embedding.weight.detach()).nan_to_num()[:, 16:]
    assert torch.allclose(NativeBackbone(backbone, int8=True).logits(hidden)[:, 16:], want, rtol=1e-5, atol=1e-5)


def test_8_bit_matrices_and_keys_go_together(backbones: Any) -> None:
    backbone = backbones[0, torch.float32]
    both = [Cache(backbone.config, 64, int8=True) for _ in range(2)]
    answers = []
    for executor, cache in zip((NativeBackbone(backbone), LeanBackbone(backbone)), both, strict=True):
        executor(torch.arange(100, 130)[None], Layout.causal(30), cache)
        law = Layout(Rows.make(torch.arange(30, 35)[None]), 5, plain=True)
        answers.append(executor(torch.arange(200, 205)[None], law, cache))
    codes = [cache.keys[..., :35, :].int() for cache in both]
    assert (codes[0] - codes[1]).abs().max() <= 1
    assert (codes[0] != codes[1]).float().mean() < 0.01
    near(answers[0], answers[1], torch.bfloat16)


@pytest.mark.parametrize("int8", [False, True])
def test_a_draft_head_drafts_as_the_reference(make_model: Any, int8: bool) -> None:
    backbone = make_model(draft_head=24).backbone
    executor = NativeBackbone(backbone, int8)
    random = torch.Generator().manual_seed(3)
    rows, state = (torch.randn(num, backbone.config.width, generator=random) for num in (3, 1))
    steps = executor.drafting(rows), backbone.drafting(rows)
    with torch.inference_mode():
        for place, token in ((0, 50), (2, 70)):
            (got, law), (want, expected) = (step(place, token, state) for step in steps)  # type: ignore[misc]
            for one, other in ((got, want), (law[:, 16:], expected[:, 16:])):
                assert (one - other).pow(2).mean() <= ((0.03 if int8 else 1e-5) * other.std()) ** 2
            assert torch.equal(law, executor.logits(got))
            state = want


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("int8", [False, True])
def test_a_packed_cache_changes_no_bit(backbones: Any, dtype: Any, int8: bool) -> None:
    """Nor does what was forgotten and written again; and it reads and spreads as others do."""
    executor = NativeBackbone(backbones[2, dtype], int8)
    tokens = torch.randint(16, 2048, (1, 400), generator=torch.Generator().manual_seed(2))
    packed, plain = executor.cache(400), Cache(executor.config, 400, dtype=dtype)
    assert isinstance(packed, PackedCache)
    assert not isinstance(NativeBackbone(backbones[0, dtype]).cache(400), PackedCache)
    for past in (1, 63, 130):
        for name in NAMES:
            layout, found = layouts(past)[name], []
            given = tokens[:, past : past + layout.rows.num_rows]
            for cache in (packed, plain):
                cache.truncate(past)
                if cache.length < past:
                    before = Layout(Rows.make(torch.arange(cache.length, past)[None]), past - cache.length, plain=True)
                    executor(tokens[:, cache.length : past], before, cache)
                found.append(executor(given, layout, cache))
            assert torch.equal(*found)
            for layer in range(executor.config.num_layers):
                for one, other in zip(packed.read(layer), plain.read(layer), strict=True):
                    assert torch.equal(one, other)
    packed.truncate(100)
    plain.truncate(100)
    turned = Rows.make(torch.arange(100) + torch.tensor([[3], [8]]))
    spread = packed.spread(turned, 120), plain.spread(turned, 120)
    assert torch.equal(spread[0].keys, spread[1].keys)
    assert torch.equal(spread[0].values, spread[1].values)


def test_rounding_a_matrix(backbones: Any) -> None:
    weight = torch.randn(7, 30, generator=torch.Generator().manual_seed(0))
    weight[3] = 0
    codes, scale, offset = rounded(weight)
    assert (codes * scale[:, None] - weight).abs().max() <= scale.max() / 2
    assert (codes.abs().amax(1)[[0, 1, 2, 4, 5, 6]] == 127).all()
    assert torch.equal(offset, 128 * codes.int().sum(1, dtype=torch.int32))


def test_it_is_what_runs_unless_told(causal: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(BackboneDenoiser(causal.backbone).executor, NativeBackbone)

    def none() -> str:
        raise UnsupportedError("no compiler")

    monkeypatch.setattr(interface, "library", none)
    assert isinstance(BackboneDenoiser(causal.backbone).executor, LeanBackbone)
    with pytest.raises(UnsupportedError, match="no compiler"):
        BackboneDenoiser(causal.backbone, "native").executor  # noqa: B018


def test_what_cannot_run_says_why(make_model: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"native.*float64: leave out execution"):
        NativeBackbone(make_model().backbone.to(torch.float64))
    with pytest.raises(UnsupportedError, match="time_input"):
        NativeBackbone(make_model(context="full", shift=False, time_input=True).backbone)


def test_a_second_start_compiles_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor does a damaged file stop one, nor a folder that cannot be written. Who waits for it is told."""
    caplog.set_level(logging.INFO, logger="daguerre")
    monkeypatch.setenv("DAGUERRE_CACHE", str(tmp_path))
    compiles, compile_ = [], interface._compile

    def counted(flags: Any, folder: Path) -> Any:
        compiles.append(flags)
        return compile_(flags, folder)

    monkeypatch.setattr(interface, "_compile", counted)
    flags = (*interface.FLAGS, "-march=native")
    path = tmp_path / "compiled" / f"native-{interface._key(flags)}.so"
    path.parent.mkdir()
    path.write_bytes(b"damaged")
    for _ in range(2):
        interface._load(flags)
        assert len(compiles) == 1
    told = "compiling the forward for this processor"
    assert caplog.messages == [f"{told}, once: it is kept"]
    monkeypatch.setenv("DAGUERRE_CACHE", "off")
    interface._load(flags)
    assert len(compiles) == 2
    assert caplog.messages[1:] == [told]
    (tmp_path / "file").touch()
    monkeypatch.setenv("DAGUERRE_CACHE", str(tmp_path / "file"))
    interface._load(flags)
    assert len(compiles) == 3


def test_a_compiler_that_fails_is_quoted_and_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGUERRE_CACHE", "off")
    monkeypatch.setattr(interface, "_libraries", {})
    with pytest.raises(UnsupportedError, match=r"error: .*-fnonsense.*name it in CXX, or leave out execution"):
        library("-fnonsense")
    monkeypatch.setattr(interface, "_load", None)
    with pytest.raises(UnsupportedError, match="-fnonsense"):
        library("-fnonsense")


def test_without_a_place_to_compile_lean_runs(causal: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DAGUERRE_CACHE", "off")
    monkeypatch.setattr(interface, "_libraries", {})
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    assert isinstance(BackboneDenoiser(causal.backbone).executor, LeanBackbone)
    with pytest.raises(UnsupportedError, match="no place to compile in"):
        BackboneDenoiser(causal.backbone, "native").executor  # noqa: B018


def test_rows_asked_for_in_any_order_and_nothing_outside(backbones: Any) -> None:
    executor = NativeBackbone(backbones[2, torch.float32])
    tokens = torch.arange(100, 108)[None]
    whole = executor(tokens, Layout.causal(8))[0]
    for asked in (
        torch.tensor([6, 1, 1, 0]),
        torch.arange(8)[::2],
        torch.arange(3, dtype=torch.int32),
        torch.arange(0),
    ):
        assert torch.equal(executor(tokens, Layout.causal(8), None, asked)[0], whole[asked.long()])
    assert torch.equal(executor(tokens, Layout.causal(8), None, torch.arange(8).repeat(3))[0], whole.repeat(3, 1))
    with pytest.raises(IndexError, match="a row is asked for"):
        executor(tokens, Layout.causal(8), None, torch.tensor([8]))
    with pytest.raises(IndexError, match="position"):
        executor(tokens, Layout.causal(8, start=executor.config.max_positions - 7))


def test_threads_share_it_each_with_a_cache_of_its_own(backbones: Any) -> None:
    from concurrent.futures import ThreadPoolExecutor

    executor = NativeBackbone(backbones[2, torch.float32])

    def ask(past: int) -> np.ndarray:
        return logits(executor, past, "settling", torch.float32).numpy()

    alone = [ask(past) for past in range(30, 50)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(ask, range(30, 50)))
    assert all(np.array_equal(one, other) for one, other in zip(alone, together, strict=True))


def test_a_processor_is_known_by_its_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {interface._key(interface.FLAGS), interface._key((*interface.FLAGS, "-g"))}
    monkeypatch.setattr(Path, "read_text", lambda self: "flags : sse2")
    assert len(keys | {interface._key(interface.FLAGS)}) == 3


def test_layouts_that_need_no_mask_get_none() -> None:
    for name, layout in layouts(20).items():
        cache: Any = dataclasses.make_dataclass("C", ["length", "rows"])(20, Rows.make(torch.arange(20)[None]))
        first, count, _, mask = module.visible(layout, cache)
        assert (mask is None) == (name in ("law", "span", "settling", "many"))
        if mask is None:
            assert np.array_equal(first, count)
