"""Captured execution: equal to the reference, bit for bit its own in speculation, memory lent and given back.

What captures here repeats a call at the same addresses, as a graph does, and runs on the CPU; tests/gpu has the graphs.
"""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from captures import Fixed, in_place
from daguerre.canvas import Canvas
from daguerre.errors import UnsupportedError
from daguerre.model import Model
from daguerre.models.cache import Cache
from daguerre.models.captured import ROWS, SPARE, CapturedBackbone, num_captured, num_kept
from daguerre.models.compiled import bias_of
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.layout import SETTLED, Layout, Rows
from daguerre.models.step import Step

PROMPT = "def area(w, h):\n    return w"
LONG = PROMPT + "".join(f"\n\ndef side{n}(w):\n    return w * {n}" for n in range(6))
DTYPES = [torch.float32, torch.bfloat16]
CASES: list[tuple[str, dict[str, Any]]] = [
    ("causal", {"mode": "ar"}),
    ("causal", {"mode": "ar", "temperature": 1.0, "seed": 3}),
    ("causal", {"mode": "speculative", "block_size": 3}),
    ("causal", {"block_size": 5, "threshold": 0.5}),
    ("causal", {"block_size": 20, "threshold": 0.5}),
    *((name, {"threshold": 0.5}) for name in ("causal", "causal_unshifted", "block")),
    ("causal", {"mode": "full", "cache": "none"}),
    ("causal", {"cache": "approximate_int8"}),
]


def captured(own: Model) -> Model:
    """The same model, run captured."""
    model = Model(own.backbone, own.tokenizer)
    model.denoiser = Fixed(CapturedBackbone(own.backbone, in_place))  # type: ignore[assignment]
    return model


def ids(result: Any) -> list[tuple[int, int]]:
    return [(token.id, token.step) for token in result.tokens]


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("prompt", ["", PROMPT, LONG])
def test_the_same_tokens_as_by_the_reference(
    models: dict[str, Model], name: str, options: dict[str, Any], prompt: str
) -> None:
    own = models[name]
    both = captured(own), Model(own.backbone, own.tokenizer, "reference")
    results = [model.generate(prompt, 24, **options) for model in both]
    assert ids(results[0]) == ids(results[1])


def test_the_same_infilling_as_by_the_reference(models: dict[str, Model]) -> None:
    own = models["causal"]
    for prefix in (PROMPT, LONG):
        both = captured(own), Model(own.backbone, own.tokenizer, "reference")
        results = [model.infill(prefix, " * h\n", 16, threshold=0.4) for model in both]
        assert ids(results[0]) == ids(results[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("prompt", ["", PROMPT, PROMPT * 3, LONG])
def test_speculation_has_the_bits_of_ar(make_model: Any, prompt: str, dtype: torch.dtype) -> None:
    own = make_model(draft_head=16)
    model = captured(Model(own.backbone.to(dtype), own.tokenizer))
    for temperature in (0.0, 1.0):
        options = {"temperature": temperature, "min_tokens": 70}
        want, got = (model.generate(prompt, 70, mode=mode, **options) for mode in ("ar", "speculative"))
        texts = [[(t.id, t.logprob, t.confidence) for t in result.tokens] for result in (want, got)]
        assert texts[0] == texts[1]
    slots = [slot for kept in model.denoiser.executor._spare.values() for slot in kept]  # type: ignore[union-attr]
    assert {num for slot in slots for num in slot.steps} == {ROWS[0]}  # of equal sizes, whatever is settled before


def test_sessions_in_turn_and_in_threads_change_nothing(causal: Model) -> None:
    model = captured(causal)
    jobs = [{"prompt": prompt, "seed": seed} for prompt in (PROMPT, LONG) for seed in range(3)]
    alone = [ids(causal.generate(**job, max_tokens=20, temperature=1.0)) for job in jobs]
    streams = [model.stream(**job, max_tokens=20, temperature=1.0) for job in jobs]
    last: dict[int, Any] = {}
    while len(last) < len(jobs):
        for index, stream in enumerate(streams):
            event = next(stream, None)
            if event is not None and event.result is not None:
                last[index] = event.result
    assert [ids(last[index]) for index in range(len(jobs))] == alone
    with ThreadPoolExecutor(3) as pool:
        results = pool.map(lambda job: model.generate(**job, max_tokens=20, temperature=1.0), jobs)
        assert [ids(result) for result in results] == alone


def test_memory_is_lent_and_comes_back_clean(causal: Model) -> None:
    captures: list[int] = []

    def counted(call: Any) -> Any:
        captures.append(1)
        return in_place(call)

    executor = CapturedBackbone(causal.backbone, counted)
    model = Model(causal.backbone, causal.tokenizer)
    model.denoiser = Fixed(executor)  # type: ignore[assignment]
    first = ids(model.generate(PROMPT, 20, mode="ar"))
    gc.collect()
    assert len(captures) == 1
    (spare,) = (x for x in executor._spare.values() if x)
    for memory in spare[0].memory:
        memory.fill_(float("nan"))  # of a request whose numbers overflowed
    assert ids(model.generate(PROMPT, 20, mode="ar")) == first
    assert len(captures) == 1  # the second request replays what the first captured
    caches = [executor.cache(100) for _ in range(SPARE + 2)]
    assert len({cache.keys.data_ptr() for cache in caches}) == SPARE + 2
    del caches
    gc.collect()
    assert len(executor._spare[num_kept(100)]) == SPARE


def layout(past: int, num_settled: int, num_open: int) -> Layout:
    position = torch.arange(past, past + num_settled + num_open)[None]
    rows = Rows.make(position, torch.where(position < past + num_settled, SETTLED, 0))
    return Layout(rows, num_settled, plain=True, open_sees_all=True)


def forward(executor: Any, cache: Cache, tokens: Tensor, num_settled: int) -> Tensor:
    with torch.inference_mode():
        now = layout(cache.length, num_settled, tokens.shape[1] - num_settled)
        return executor(tokens, now, cache)[0]


def test_a_cache_that_is_cut_and_filled_again_and_outgrows_its_memory(causal: Model) -> None:
    """Forwards of every size behind one cache of the executor's and one of the reference's, the same in both."""
    executor, seed = CapturedBackbone(causal.backbone, in_place), torch.Generator().manual_seed(0)
    executors, caches = (executor, causal.backbone), (executor.cache(100), Cache(causal.config, 100))
    slot = executor._lent[caches[0]]
    sizes = [(5, 3), (0, 16), (20, 0), (1, 30), (30, 30), (2, 2), (0, 40), (8, 8), (70, 3), (1, 2), (90, 0), (2, 6)]
    for turn, (num_settled, num_open) in enumerate(sizes):
        for cache in caches:
            if cache.length + num_settled + num_open > 100:
                cache.truncate(20 + turn)
            cache.reserve(cache.length + num_settled + num_open)
        tokens = torch.randint(16, 2048, (1, num_settled + num_open), generator=seed)
        got, want = (
            forward(x, c, tokens, num_settled) for x, c in zip((executor, causal.backbone), caches, strict=True)
        )
        assert (got - want).abs().max() <= 1e-4 * want.abs().max()
        assert caches[0].length == caches[1].length
        assert caches[0].keys is slot.memory[0]
    assert set(slot.steps) == set(ROWS)
    caches[0].reserve(slot.num_keys + 1)
    caches[1].reserve(slot.num_keys + 1)
    while caches[0].length <= slot.num_keys:
        tokens = torch.randint(16, 2048, (1, 40), generator=seed)
        got, want = (forward(x, c, tokens, 40) for x, c in zip(executors, caches, strict=True))
        assert (got - want).abs().max() <= 1e-4 * want.abs().max()
    assert caches[0].keys is not slot.memory[0]


def test_an_answer_stays_when_the_step_is_repeated(causal: Model) -> None:
    executor = CapturedBackbone(causal.backbone, in_place)
    cache, tokens = executor.cache(30), torch.arange(20, 29)[None]
    first = forward(executor, cache, tokens, 0)
    kept = first.clone()
    forward(executor, cache, tokens.flip(1), 0)
    assert torch.equal(first, kept)


def test_sizes() -> None:
    assert [num_captured(num) for num in (1, 16, 17, 33, 64)] == [16, 16, 32, 64, 64]
    assert [num_kept(num) - 64 for num in (1, 64, 65, 500, 513, 1025, 4096)] == [64, 64, 128, 512, 640, 1280, 4096]


class OneDevice(TorchDispatchMode):
    """Every tensor that an operation makes is on one device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            assert not isinstance(x, Tensor) or x.device.type == self.device, func
        return out


LABELS: dict[str, dict[str, Any]] = {
    "settled": {"num_settled": 4, "plain": True},
    "alone": {"num_settled": 3, "plain": True, "alone": 3, "open_sees_all": True},
    "by mask": {"num_settled": 2},
    "among": {"num_settled": 2, "plain": True, "alone": 2, "among": True},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LABELS)
def test_every_tensor_of_a_forward_is_on_the_device(
    make_model: Any, name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors without contents, on device "meta", stand for those on another device than the CPU."""
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)  # which knows no "meta"
    with torch.inference_mode():
        backbone = make_model().backbone.to("meta", dtype)
        step, labels = Step(backbone), LABELS[name]
        cache = Cache(backbone.config, 64, dtype=dtype, device="meta")
        with torch.device("meta"):
            numbers, position = torch.arange(16), torch.arange(4, 8)[None]
            cache.commit(Rows.make(torch.arange(4)[None]))
            span = torch.where(torch.arange(4) < labels["num_settled"], SETTLED, 0)[None]
            among = torch.ones(4, 4, dtype=torch.bool) if "among" in labels else None
        now = Layout(Rows.make(position, span), **labels | {"among": among})
        with OneDevice("meta"):
            bias = bias_of(now, cache, 16, 64)
            hidden = step(numbers, numbers, numbers, bias, numbers, cache.stored(4, 12))
            backbone.logits(backbone(numbers[None, :4], now, cache, asked_A=numbers[:2]))
        assert (hidden.dtype, hidden.shape) == (dtype, (16, backbone.config.width))


def test_on_a_cuda_device_compiled_is_captured(monkeypatch: pytest.MonkeyPatch, causal: Model) -> None:
    monkeypatch.setattr("daguerre.models.captured.graphs", lambda device: in_place)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    assert isinstance(BackboneDenoiser(causal.backbone, "compiled").executor, CapturedBackbone)


def test_what_has_no_steps_says_so(models: dict[str, Model], make_model: Any) -> None:
    with pytest.raises(UnsupportedError, match=r'full context.*use execution="reference"'):
        CapturedBackbone(models["full"].backbone, in_place)
    with pytest.raises(UnsupportedError, match="float64"):
        CapturedBackbone(make_model().backbone.to(torch.float64), in_place)


def test_a_canvas_of_several_gaps_agrees(causal: Model) -> None:
    t = causal.tokenizer
    segments = [[t.bos_id, *t.encode("def f(")], t.encode("):\n    return"), [77], t.encode("\n# end")]
    canvas = Canvas.lay_out(segments, [4, 6, 3], t.mask_id)
    canvas = canvas.at((canvas.gaps[0][0], canvas.gaps[-1][1]))
    got, want = (model.denoiser.session(canvas).logits(canvas, canvas.asked()) for model in (captured(causal), causal))
    assert torch.allclose(torch.from_numpy(got), torch.from_numpy(want), atol=1e-4)
