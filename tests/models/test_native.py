"""The native backend: on every instruction set of this machine equal to the torch backend, a request's bits the same
whatever is computed beside it; kept on disk, never required.
"""

from __future__ import annotations

import logging
import pickle
import re
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from time import sleep
from typing import Any

import numpy as np
import pytest
import torch

from backends import every_isa, kinds, needs_compiler, threads
from daguerre.errors import InputError, UnsupportedError
from daguerre.files import cache_folder
from daguerre.model import Model, load
from daguerre.models.backends import library as interface
from daguerre.models.backends import native_backend
from daguerre.models.backends.library import library
from daguerre.models.backends.native_backend import NativeBackend
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import Experts
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.forward import Answer, DraftStep, Draws, Forward, Hidden, Layout, Logits, Rules
from daguerre.models.load_options import Quantization
from daguerre.models.model_weights import BackboneWeights
from forwards import NUM_KINDS, Expected, causal_layout, difference, filled_cache, make, same_bits, tokens_of
from oracles.rounding import rounded

pytestmark = needs_compiler
PROMPT = "def area(w, h):\n    return w"
WIDE: dict[str, Any] = {"width": 256, "num_heads": 2, "num_kv_heads": 2, "mlp_width": 704}
"""Heads of two panels, and rows of several."""
GROUPED: dict[str, Any] = {"num_groups": 4, "kept_groups": 2, "score": "sigmoid", "bias": True, "normalized": True}
EXPERTS: dict[str, Any] = {
    "experts": Experts(num=20, per_token=3, width=40, shared_width=24, first_layer=1, scale=2.5, **GROUPED),
    "qk_norm_scope": "all",
    "draft_head": 24,
}
"""A mixture of experts, whose rows are computed beside those that have the same expert."""
KINDS_OF_BACKEND = NativeBackend, TorchBackend


@pytest.fixture(scope="module")
def backbones(make_model: Any) -> dict[tuple[str, torch.dtype], Backbone]:
    shapes = {"drafting": {"draft_head": 24}, "wide": WIDE, "experts": EXPERTS}
    return {
        (name, dtype): make_model(norm_eps=0.05, **facts).backbone.to(dtype)
        for name, facts in shapes.items()
        for dtype in (torch.float32, torch.bfloat16)
    }


@every_isa
def test_every_forward_equals_the_reference(backbones: Any, isa: str, subtests: pytest.Subtests) -> None:
    """Tokens, and numbers to 1e-5 of the largest; with smaller numbers logits alone, to 10% by root mean squares
    (measured, 5% with 8-bit matrices and bfloat16). Where rows have experts, most of them: rounding decides between two
    experts that are nearly as good.
    """
    for shape in ["drafting", "wide", "experts"]:
        with subtests.test(shape):
            typical = np.median if shape == "experts" else np.mean
            backbone, small = backbones[shape, torch.float32], backbones[shape, torch.bfloat16]
            reference, native = TorchBackend(backbone), NativeBackend(backbone)
            expected = [Expected(reference, number) for number in range(NUM_KINDS)]
            for want, answer in zip(
                expected, native.forward([make(native, number) for number in range(NUM_KINDS)]), strict=True
            ):
                want.check(answer, 1e-5)
            for near in (NativeBackend(small), NativeBackend(small, "int8")):
                for want in expected[:6]:
                    number = expected.index(want)
                    (answer,) = near.forward([replace(make(near, number), ask=Logits(), wanted=want.forward.wanted)])
                    got, exact = (x[:, np.isfinite(want.logits[0])] for x in (answer.logits, want.logits))
                    assert 0 < typical(np.mean((got - exact) ** 2, axis=1)) < 0.1**2 * np.mean(exact**2)


@every_isa
@pytest.mark.parametrize("shape", ["drafting", "experts"])
def test_an_answer_has_the_bits_that_it_has_alone(backbones: Any, isa: str, shape: str) -> None:
    """Requests of every kind, in another order in each batch, on up to three threads."""
    for dtype, quantize in kinds():
        backend = NativeBackend(backbones[shape, dtype], quantize)
        numbers = np.arange(2 * NUM_KINDS)
        alone = {number: backend.forward([make(backend, number)])[0] for number in numbers.tolist()}
        for num_threads in (1, 3):
            order = np.random.default_rng(num_threads).permutation(numbers).tolist()
            batch = [make(backend, number) for number in order]
            with threads(num_threads):
                answers = backend.forward(batch)
            for number, answer in zip(order, answers, strict=True):
                assert same_bits(answer, alone[number]), (dtype, quantize, num_threads, number)


def computed(backend: NativeBackend, *parts: int, noisy: int = 0, cached: bool = True) -> np.ndarray:
    """Logits of clean rows, computed in parts, each with some noisy rows beside it."""
    tokens, start, found = tokens_of(backend, 2, 150), 0, []  # type: ignore[arg-type]
    cache = backend.cache(200) if cached else None
    for num in parts:
        layout = causal_layout(start, num + noisy)
        layout.num_clean = num
        layout.end[num:] = start + num + noisy
        given = np.concatenate([tokens[start : start + num], np.full(noisy, 40)])
        (answer,) = backend.forward([Forward(given, layout, cache, np.arange(num, dtype=np.int32), Logits())])
        found.append(answer.logits)
        start += num
    return np.concatenate(found)


@every_isa
@pytest.mark.parametrize("shape", ["wide", "experts"])
def test_a_row_has_the_same_bits_whatever_is_cached_or_beside_it(backbones: Any, isa: str, shape: str) -> None:
    """The cache is exact to the bit: computed at once, in parts, or without one; on one thread or two."""
    for dtype, quantize in kinds():
        backend = NativeBackend(backbones[shape, dtype], quantize)
        whole = computed(backend, 150)
        assert whole[:, 16:].std() > 0.5
        assert np.array_equal(computed(backend, 150, cached=False), whole)
        assert np.array_equal(computed(backend, 100, 1, 1, 5, 13, 17, 13), whole)
        with threads(2):
            assert np.array_equal(computed(backend, 150, noisy=3), whole)
            assert np.array_equal(computed(backend, 64, 1, 60, 25, noisy=9), whole)


@every_isa
def test_8_bit_products_are_exact(backbones: Any, isa: str) -> None:
    """Given the same inputs they are the same on every processor, to the rounding of their scales."""
    backbone = backbones["wide", torch.float32]
    hidden = torch.randn(40, backbone.config.width, generator=torch.Generator().manual_seed(6))
    hidden[3] = 0
    hidden[4, 0] = 30.0
    (answer,) = NativeBackend(backbone, "int8").forward([DraftStep(hidden.numpy())])
    codes, scale, _ = rounded(backbone.embedding.weight.detach())
    step = hidden.abs().amax(-1, keepdim=True) / 127
    near = torch.floor(hidden / step + 0.5).nan_to_num()
    want = (near.double() @ codes.double().T).float() * scale * step
    assert answer.logits is not None
    assert torch.allclose(torch.from_numpy(answer.logits)[:, 16:], want[:, 16:], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("dtype", "quantize"), [("float32", None), ("bfloat16", None), ("float32", "int8")])
def test_speculation_has_the_bits_of_ar(dtype: str, quantize: Any) -> None:
    """The default model, with its draft head."""
    model = load(dtype=dtype, quantize=quantize, backend="native")
    for prompt, temperature in ((PROMPT, 1.0), (PROMPT * 4, 0.0)):
        options = {"temperature": temperature, "min_tokens": 60, "seed": 4}
        want, got = (model.generate(prompt, 60, mode=mode, **options) for mode in ("ar", "speculative"))
        texts = [[(t.id, t.logprob, t.confidence) for t in result.tokens] for result in (want, got)]
        assert texts[0] == texts[1]
        assert got.usage.forwards < want.usage.forwards


@pytest.mark.parametrize("quantize", [None, "int8"])
def test_a_draft_head_drafts_as_the_reference(backbones: Any, quantize: Quantization | None) -> None:
    backbone = backbones["drafting", torch.float32]
    native, reference = NativeBackend(backbone, quantize), TorchBackend(backbone)
    random, state = np.random.default_rng(3), None
    for token in (50, 70, 90):
        step = DraftStep(random.standard_normal((1, backbone.config.width)).astype(np.float32), token, state)
        (got,), (want,) = (backend.forward([step]) for backend in (native, reference))
        for one, other in ((got.hidden, want.hidden), (got.logits, want.logits)):
            assert one is not None and other is not None
            known = np.isfinite(other)
            limit = (0.03 if quantize else 1e-5) * other[known].std()
            assert np.sqrt(np.mean((one[known] - other[known]) ** 2)) <= limit
        state = want.hidden


def test_rows_are_wanted_in_any_order(backbones: Any) -> None:
    backend = NativeBackend(backbones["wide", torch.float32])
    forward = Forward(np.arange(100, 108), causal_layout(0, 8), None, np.arange(8, dtype=np.int32), Hidden())

    def ask(*rows: int) -> np.ndarray:
        (answer,) = backend.forward([replace(forward, wanted=np.array(rows, dtype=np.int32))])
        assert answer.hidden is not None
        return answer.hidden

    whole = ask(*range(8))
    for rows in ([6, 1, 1, 0], [0, 2, 4], [], [7] * 30):
        assert np.array_equal(ask(*rows), whole[rows])


def test_runs_of_keys_are_cut_as_a_mask_is(backbones: Any) -> None:
    """Ends behind the last key, beginnings behind the end, and rows that see only what their mask shows."""
    backbone, num = backbones["drafting", torch.float32], 12
    end = np.array([1, 40, 3, 4, 99, 6, 2, 8, 9, 10, 11, 12], dtype=np.int32)
    begin = np.array([0, 0, 1, 2, 0, 5, 4, 0, 0, 3, 9, 11], dtype=np.int32)
    layout = Layout(np.arange(num), end, 0, begin, np.eye(num, dtype=bool))
    forward = Forward(np.arange(100, 112), layout, None, np.arange(num, dtype=np.int32), Logits())
    got, want = (kind(backbone).forward([forward])[0].logits for kind in (NativeBackend, TorchBackend))
    assert got is not None and want is not None
    assert difference(got, want) < 1e-5


def test_a_run_that_begins_behind_masked_keys_hides_none_of_them(backbones: Any) -> None:
    """Among keys that are stored two panels long, and all runs begin in the second."""
    num, masked = 140, np.zeros((140, 140), dtype=bool)
    masked[np.arange(num), np.arange(num) * 7 % 60] = True
    ends, begins = np.full(num, num, dtype=np.int32), np.full(num, 100, dtype=np.int32)
    layout = Layout(np.arange(num), ends, num, begins, masked)
    forward = Forward(np.arange(100, 240), layout, None, np.arange(num, dtype=np.int32), Logits())
    got, want = (kind(backbones["drafting", torch.float32]).forward([forward])[0].logits for kind in KINDS_OF_BACKEND)
    assert got is not None and want is not None
    assert difference(got, want) < 1e-5


LEVELS: list[dict[str, Any]] = [{"time_input": True}, {"time_input": True, "adaptive_width": 8, "norm": "layer"}, {}]


@pytest.mark.parametrize("facts", LEVELS)
def test_a_forward_without_a_level_has_level_0_and_a_model_without_levels_ignores_one(
    make_model: Any, facts: dict[str, Any]
) -> None:
    backbone = make_model(context="full", shift=False, **facts).backbone
    layout = Layout(np.arange(12), np.full(12, 12, dtype=np.int32), 0)
    forward = Forward(np.arange(100, 112), layout, None, np.arange(12, dtype=np.int32), Logits())
    batch = [replace(forward, level=level) for level in (None, 0.0, 0.7)]
    native, torches = ([one.logits[:, 16:] for one in kind(backbone).forward(batch)] for kind in KINDS_OF_BACKEND)
    for got, want in zip(native, torches, strict=True):
        assert difference(got, want) < 1e-5
    for none, zero, high in (native, torches):
        assert np.array_equal(none, zero)
        assert np.array_equal(none, high) == (not facts)


def wrong(forward: Forward, **layout: Any) -> Forward:
    return replace(forward, layout=replace(forward.layout, **layout))


WRONG: list[tuple[Callable[[Forward], Forward], str]] = [
    (lambda f: replace(f, wanted=np.array([8], dtype=np.int32)), "a wanted row that does not exist"),
    (lambda f: replace(f, wanted=np.array([-1], dtype=np.int32)), "a wanted row that does not exist"),
    (lambda f: wrong(f, position=np.arange(249, 257)), "a position that the model does not have"),
    (lambda f: wrong(f, position=np.arange(-1, 7)), "a position that the model does not have"),
    (lambda f: replace(f, tokens=np.full(8, 2048)), "a token that the vocabulary does not have"),
    (lambda f: replace(f, tokens=np.full(8, -1)), "a token that the vocabulary does not have"),
    (lambda f: replace(f, tokens=f.tokens.astype(np.int32)), "must be int64"),
    (lambda f: wrong(f, position=f.layout.position.astype(np.int32)), "must be int64"),
    (lambda f: wrong(f, end=f.layout.end.astype(np.int64)), "must be int64"),
    (lambda f: replace(f, wanted=f.wanted.astype(np.int64)), "must be int64"),
    (lambda f: replace(f, ask=Draws(Rules(), np.arange(8, dtype=np.int32))), "must be int64"),
]


def test_what_is_not_there_is_an_error_and_nothing_is_done(backbones: Any, subtests: pytest.Subtests) -> None:
    backend = NativeBackend(backbones["drafting", torch.float32])
    for change, message in WRONG:
        with subtests.test(message):
            cache: Any = backend.cache(100)
            good = Forward(np.arange(100, 108), causal_layout(0, 8), cache, np.arange(8, dtype=np.int32), Hidden())
            with pytest.raises(IndexError, match=message):
                backend.forward([make(backend, 4), change(good)])
            assert cache.length == 0
            assert backend.forward([good])[0].hidden is not None
            assert cache.length == 8


def test_python_threads_share_a_backend_each_with_its_own_cache(backbones: Any) -> None:
    backend = NativeBackend(backbones["drafting", torch.float32])

    def ask(number: int) -> Answer:
        return backend.forward([make(backend, number)])[0]

    alone = list(map(ask, range(NUM_KINDS)))
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(ask, range(NUM_KINDS)))
    assert all(map(same_bits, together, alone))


def test_it_is_the_default_where_it_can_be_compiled(causal: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(BackboneDenoiser(causal.backbone).backend, NativeBackend)

    def none() -> str:
        raise UnsupportedError("no compiler")

    monkeypatch.setattr(interface, "library", none)
    assert isinstance(BackboneDenoiser(causal.backbone).backend, TorchBackend)
    for options in ({"backend": "native"}, {"quantize": "int8"}):
        with pytest.raises(UnsupportedError, match="no compiler"):
            BackboneDenoiser(causal.backbone, **options).backend  # type: ignore[arg-type] # noqa: B018


def test_what_it_cannot_run_says_why_and_runs_by_torch(make_model: Any) -> None:
    backbone = make_model().backbone.to(torch.float64)
    assert isinstance(BackboneDenoiser(backbone).backend, TorchBackend)
    with pytest.raises(UnsupportedError, match=r"native.*in float64: leave out backend"):
        NativeBackend(backbone)
    assert BackboneWeights(make_model().backbone.to("meta")).cannot_pack == "on meta"


@pytest.mark.parametrize("name", ["layers.0.mlp.down.weight", "layers.1.mlp.expert_bias"])
def test_weights_are_packed_once_and_again_when_they_change(make_model: Any, name: str) -> None:
    model = make_model(experts=EXPERTS["experts"])
    forward = Forward(np.arange(20, 24), causal_layout(0, 4), None, np.array([3], dtype=np.int32), Logits())

    def ask() -> np.ndarray:
        logits = model.denoiser.backend.forward([forward])[0].logits
        return logits[:, 16:]

    first, packed = ask(), model.denoiser.backend
    assert model.denoiser.backend is packed
    with torch.no_grad():
        changed = model.backbone.get_parameter(name)
        changed.copy_(-changed if changed.any() else torch.arange(len(changed)))
    assert model.denoiser.backend is not packed
    assert not np.allclose(first, ask())
    model.backbone.to(torch.bfloat16)
    assert np.isfinite(ask()).all()


def test_threads_that_start_together_share_one_packed_copy_and_a_pickled_one_has_its_own(causal: Model) -> None:
    model = Model(causal.backbone, causal.tokenizer, "native")
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: model.denoiser.backend, range(8)))
    assert all(backend is made[0] for backend in made)
    copied = pickle.loads(pickle.dumps(model))
    assert isinstance(copied.denoiser.backend, NativeBackend)
    assert copied.denoiser.backend is not made[0]
    assert copied.generate(PROMPT, 6).text == model.generate(PROMPT, 6).text


def test_a_second_start_compiles_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor does a damaged file stop one, nor a folder that cannot be written. Who waits for it reads why."""
    interface.library()
    used, folder = interface.compiler_flags(), cache_folder()
    assert folder is not None
    whole = interface.ctypes.CDLL(str(folder / "compiled" / f"native-{interface._key(interface.NATIVE, used)}.so"))
    caplog.set_level(logging.INFO, logger="daguerre")
    monkeypatch.setenv("DAGUERRE_CACHE", str(tmp_path))
    compiles: list[Any] = []

    def compiled(source: Any, flags: Any, folder: Path) -> Any:
        compiles.append(flags)
        made = folder / "made.so"
        shutil.copy(whole._name, made)
        return made, whole

    monkeypatch.setattr(interface, "_compile", compiled)
    flags = ("-march=native",)
    path = tmp_path / "compiled" / f"native-{interface._key(interface.NATIVE, flags)}.so"
    path.parent.mkdir()
    path.write_bytes(b"damaged")
    for _ in range(2):
        interface._load(interface.NATIVE, flags)
        assert len(compiles) == 1
    said = "compiling the native backend for this processor"
    assert caplog.messages == [f"{said}; this happens only once"]
    monkeypatch.setenv("DAGUERRE_CACHE", "off")
    interface._load(interface.NATIVE, flags)
    assert len(compiles) == 2
    assert caplog.messages[1:] == [said]
    (tmp_path / "file").touch()
    monkeypatch.setenv("DAGUERRE_CACHE", str(tmp_path / "file"))
    interface._load(interface.NATIVE, flags)
    assert len(compiles) == 3


def test_processes_that_start_side_by_side_compile_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Threads here, which hold locks of files of their own as processes do."""
    interface.library()
    used, folder, compiles = interface.compiler_flags(), cache_folder(), list[Any]()
    assert folder is not None
    whole, starts = folder / "compiled" / f"native-{interface._key(interface.NATIVE, used)}.so", Barrier(3)

    def compiled(source: Any, flags: Any, folder: Path) -> Any:
        compiles.append(flags)
        sleep(0.2)
        made = folder / "made.so"
        shutil.copy(whole, made)
        return made, interface.ctypes.CDLL(str(made))

    def start(flags: tuple[str, ...]) -> Any:
        starts.wait()
        return interface._load(interface.NATIVE, flags)

    monkeypatch.setattr(interface, "_compile", compiled)
    monkeypatch.setenv("DAGUERRE_CACHE", str(tmp_path))
    flags = ("-march=native",)
    with ThreadPoolExecutor(3) as pool:
        assert all(hasattr(found, "daguerre_forward") for found in pool.map(start, [flags] * 3))
    assert len(compiles) == 1


def test_a_compiler_that_fails_is_quoted_and_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGUERRE_CACHE", "off")
    monkeypatch.setattr(interface, "_libraries", {})
    with pytest.raises(UnsupportedError, match=r"error: .*-fnonsense.*name it in CXX, or leave out backend"):
        library("-fnonsense")
    monkeypatch.setattr(interface, "_load", None)
    with pytest.raises(UnsupportedError, match="-fnonsense"):
        library("-fnonsense")


def test_without_a_compiler_or_a_place_torch_runs_and_one_sentence_says_what_to_do(
    causal: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="daguerre")
    monkeypatch.setenv("DAGUERRE_CACHE", "off")

    def refused(message: str) -> None:
        monkeypatch.setattr(interface, "_libraries", {})
        native_backend._say_once.cache_clear()
        caplog.clear()
        for _ in range(2):
            assert isinstance(BackboneDenoiser(causal.backbone).backend, TorchBackend)
        with pytest.raises(UnsupportedError, match=f"{message}.*leave out backend$"):
            BackboneDenoiser(causal.backbone, "native").backend  # noqa: B018
        (said,) = caplog.messages
        assert re.match(f'backend "native" .*{message}', said)
        assert said.endswith("; PyTorch computes instead, which is slower")
        assert "leave out" not in said

    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
        refused("no folder to compile in")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("CXX", raising=False)
    refused(r"install g\+\+")
    monkeypatch.setenv("CXX", "no-such-compiler")
    refused("CXX names no-such-compiler, which is not found")
    monkeypatch.undo()
    monkeypatch.setenv("DAGUERRE_CACHE", "off")
    monkeypatch.setenv("CXX", "false")
    refused(r"could not be compiled by false \(no reason given\): install another compiler and name it in CXX")


def test_a_processor_is_known_by_its_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    first = interface._key(interface.NATIVE, ())
    keys = {first, interface._key(interface.NATIVE, ("-g",))}
    monkeypatch.setattr(Path, "read_text", lambda self: "flags : sse2")
    assert len(keys | {interface._key(interface.NATIVE, ())}) == 3


def test_a_cache_belongs_to_one_request_and_says_when_it_is_full(backbones: Any) -> None:
    backend = NativeBackend(backbones["wide", torch.float32])
    cache = filled_cache(backend, 1, 250)
    small: Any = backend.cache(10)
    good = Forward(np.arange(100, 108), causal_layout(0, 8), small, np.arange(8, dtype=np.int32), Hidden())
    backend.forward([good])
    with pytest.raises(InputError, match="the cache holds 10 rows and 16 are needed"):
        backend.forward([replace(good, layout=causal_layout(8, 8))])
    assert (cache.length, small.length) == (250, 8)


@pytest.mark.parametrize("int8", [False, True])
def test_pages_that_caches_share_are_not_written(backbones: Any, int8: bool) -> None:
    backend = NativeBackend(backbones["wide", torch.float32])
    first, second = (backend.cache(300, int8=int8) for _ in range(2))

    def read(cache: Any) -> list[torch.Tensor]:
        return [rows.clone() for layer in range(backend.config.num_layers) for rows in cache.read(layer)]

    def add(cache: Any, first_token: int, num: int) -> None:
        tokens = np.arange(first_token, first_token + num)
        wanted = np.zeros(0, dtype=np.int32)
        backend.forward([Forward(tokens, causal_layout(cache.length, num), cache, wanted, Hidden())])

    add(first, 100, 130)
    before = read(first)
    second.append(first.copy(0, 128))
    assert second.num_bytes * 3 == first.num_bytes * 2
    second.truncate(100)  # within a page
    add(second, 400, 60)
    for old, now, other in zip(before, read(first), read(second), strict=True):
        assert torch.equal(old, now)
        assert torch.equal(other[:, :, :100], old[:, :, :100])
        assert not torch.equal(other[:, :, 100:128], old[:, :, 100:128])
