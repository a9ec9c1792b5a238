"""Sliding windows: who sees whom, by positions alone; both backends, caches, batches, trees, and ways of decoding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from backends import BACKENDS, every_isa
from conftest import MakeModel, tiny_config
from daguerre.engine.engine import Engine
from daguerre.errors import CheckpointError, UnsupportedError
from daguerre.model import Model
from daguerre.models.backends.native_backend import NativeBackend
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.core.batched import BatchLayout, run_batch
from daguerre.models.core.config import Experts, ModelConfig, RopeScaling, Windows
from daguerre.models.core.rotary import frequencies
from daguerre.models.forward import Backend, Forward, Layout, Logits
from daguerre.models.rows import Tree, plan_tree
from daguerre.models.scaling import read_scaling
from daguerre.models.tokenizer import Tokenizer
from daguerre.scoring.attribution import integrated_gradients
from daguerre.scoring.gradients import ModuleLine
from forwards import causal_layout, difference, tokens_of

WINDOW = 7
GEMMA: dict[str, Any] = {
    "windows": Windows(size=WINDOW, layers=(0, 2), rope_theta=100.0),
    "num_layers": 3,
    "norm_placement": "both",
    "embedding_scale": 3.0,
    "attention_scale": 0.4,
    "activation": "gelu_tanh",
    "mask_id": None,
    "null_id": None,
}
"""A model with all that Gemma 3 has."""
EVERY = {"windows": Windows(size=WINDOW, layers=(0, 1)), "mask_id": None, "null_id": None, "qk_norm": False}
"""A model like Mistral, all of whose layers slide."""
SHAPES: dict[str, dict[str, Any]] = {
    "gemma": GEMMA,
    "every": EVERY,
    "experts": {**GEMMA, "experts": Experts(num=6, per_token=2, width=20, shared_width=8)},
}
TREE = Tree.of([[5, 6, 7], [5, 6, 9, 9], [8]])[0]


@pytest.fixture(scope="module")
def windowed(make_model: MakeModel) -> dict[str, Model]:
    return {name: make_model(max_positions=400, **facts) for name, facts in SHAPES.items()}


def wanted_of(layout: Layout, past: int, window: int) -> np.ndarray:
    """The definition, for rows whose positions are known: what the layout sees, less than `window` positions back."""
    position = np.concatenate([np.arange(past), layout.position])
    return layout.dense(past) & (position > layout.position[:, None] - window)


def tree_layout(past: int, num: int) -> Layout:
    """Rows of a tree behind `num` clean ones, of which `past` are cached."""
    config = tiny_config(Tokenizer.default("2k"))
    return plan_tree(num, TREE).layout(config, past)


def test_a_row_sees_what_is_less_than_a_window_back() -> None:
    for past in (0, 1, 5, 30):
        for window in (1, 2, WINDOW, 100):
            for layout in (causal_layout(past, 20), tree_layout(past, past + 9), tree_layout(past, past)):
                assert np.array_equal(layout.within(window, past).dense(past), wanted_of(layout, past, window))
    canvas = causal_layout(4, 10)
    canvas.num_clean, canvas.end[3:] = 3, 14  # of a canvas every row sees what its first one does
    assert canvas.within(5, 4).dense(4)[3:].tolist() == [[place >= 3 for place in range(14)]] * 7


def answers(backend: Backend, layout: Layout, past: int, cache: Any = None) -> np.ndarray:
    """Logits of all rows of a layout behind `past` clean rows, which are cached if there is a cache."""
    num, given = len(layout.position), tokens_of(backend, 3, past + 300)
    if cache is not None and past > cache.length:
        first = causal_layout(cache.length, past - cache.length)
        backend.forward([Forward(given[cache.length : past], first, cache, np.zeros(1, np.int32), Logits())])
    if not num:
        return np.zeros(0)
    own = given[past : past + num]
    if layout.mask is not None:
        own = np.concatenate([own[: num - len(TREE.tokens)], TREE.tokens])
    (answer,) = backend.forward([Forward(own, layout, cache, np.arange(num, dtype=np.int32), Logits())])
    assert answer.logits is not None
    return answer.logits


@every_isa
def test_the_native_backend_equals_the_reference(
    windowed: dict[str, Model], isa: str, subtests: pytest.Subtests
) -> None:
    for name, model in windowed.items():
        with subtests.test(name):
            native, reference = NativeBackend(model.backbone), TorchBackend(model.backbone)
            for past, layout in ((0, causal_layout(0, 150)), (70, causal_layout(70, 9)), (70, tree_layout(70, 74))):
                got, want = (answers(one, layout, past, one.cache(400)) for one in (native, reference))
                assert difference(got, want) < 1e-5


@every_isa
@pytest.mark.parametrize("int8", [False, True])
def test_a_row_has_the_same_bits_cached_or_not_alone_or_not(make_model: MakeModel, isa: str, int8: bool) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        backend = NativeBackend(make_model(max_positions=400, **GEMMA).backbone.to(dtype))
        whole = answers(backend, causal_layout(0, 150), 0, backend.cache(400, int8=int8))
        cache = backend.cache(400, int8=int8)
        for past, num in ((0, 66), (66, 1), (67, 83)):
            assert np.array_equal(answers(backend, causal_layout(past, num), past, cache), whole[past : past + num])
        cache.truncate(40)
        assert np.array_equal(answers(backend, causal_layout(40, 8), 40, cache), whole[40:48])
        given, wanted = tokens_of(backend, 3, 300), np.arange(9, dtype=np.int32)
        caches = [backend.cache(400, int8=int8) for _ in range(4)]
        for held, number in zip(caches, (10, 63, 64, 100), strict=True):
            answers(backend, causal_layout(number, 0), number, held)  # fills the cache
        several = [
            Forward(given[held.length : held.length + 9], causal_layout(held.length, 9), held, wanted, Logits())
            for held in caches
        ]
        for answer, number in zip(backend.forward(several), (10, 63, 64, 100), strict=True):
            assert answer.logits is not None and np.array_equal(answer.logits, whole[number : number + 9])


def plain_logits(model: Model, tokens: list[int]) -> np.ndarray:
    """Logits under masks that are written from positions, one for each kind of layers."""
    num, config = len(tokens), model.config
    row, key = torch.arange(num)[:, None], torch.arange(num)
    everywhere, within = key <= row, (key <= row) & (key > row - WINDOW)

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask, groups = within if config.is_sliding(layer) else everywhere, q.shape[1] // k.shape[1]
        keys, values = (x.repeat_interleave(groups, dim=1).transpose(0, 1) for x in (k, v))
        scores = (q.transpose(0, 1) @ keys.transpose(-1, -2)) * q.shape[-1] ** -0.5
        return (scores.masked_fill(~mask, -torch.inf).softmax(-1) @ values).transpose(0, 1)

    with torch.inference_mode():
        hidden = model.backbone(torch.tensor(tokens), torch.arange(num), attend)
        return model.backbone.logits(hidden).numpy()


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_way_of_decoding_writes_the_text_of_a_plain_mask(make_model: MakeModel, backend: str) -> None:
    base = make_model(max_positions=400, **GEMMA)
    model = Model(base.backbone, base.tokenizer, backend=backend)
    prompt = model.tokenizer.encode("x = 1\ny = 2\nfor x in range(10):\n    x = x + y\n" * 2)
    ids = [*model.config.first, *prompt]
    for _ in range(24):
        row = plain_logits(model, ids)[-1]
        ids.append(int(np.where(np.isfinite(row), row, -np.inf).argmax()))
    want = ids[-24:]
    end = next((n for n, token in enumerate(want) if token in model.config.ends), 24)
    plain: dict[str, Any] = {"heal": False, "stop_loops": False}
    for more in (
        {"mode": "ar"},
        {"mode": "speculative"},
        {"mode": "ar", "cache": "none"},
        {"mode": "ar", "draft": model.tokenizer.decode(want)},
        {"mode": "ar", "regex": r"(.|\n)*"},
    ):
        found = [token.id for token in model.generate(prompt, 24, **plain, **more).tokens]
        assert found[:end] == want[:end], more
    known = plain_logits(model, [*model.config.first, *prompt])
    shifted = known[:-1] - np.logaddexp.reduce(known[:-1], axis=1, keepdims=True)
    total = -sum(float(shifted[at, token]) for at, token in enumerate([*model.config.first, *prompt][1:]))
    assert model.nll(model.tokenizer.decode(prompt)).value == pytest.approx(total, rel=1e-4)


def test_requests_of_a_batch_and_a_stored_prefix_change_nothing(windowed: dict[str, Model]) -> None:
    model = windowed["gemma"]
    prompts = ["def area(w, h):\n    return w * h\n\n\n" * 4 + end for end in ("def f", "x = ", "class A", "import")]
    alone = [model.generate(prompt, 12, mode="ar", heal=False) for prompt in prompts]
    with Engine(model) as engine:
        for _ in range(2):  # the second time all begin with stored pages
            jobs = [engine.generate(prompt, 12, mode="ar", heal=False) for prompt in prompts]
            found = [job.result(60) for job in jobs]
            for one, other in zip(found, alone, strict=True):
                assert [token.id for token in one.tokens] == [token.id for token in other.tokens]
        assert any(one.usage.reused_tokens > 12 for one in found)


def test_training_and_attribution_see_the_same_windows(windowed: dict[str, Model]) -> None:
    for name in ("gemma", "every"):
        backbone = windowed[name].backbone
        tokens = tokens_of(TorchBackend(backbone), 3, 40)
        layout = causal_layout(0, 40)
        (answer,) = TorchBackend(backbone).forward([Forward(tokens, layout, None, np.array([39], np.int32), Logits())])
        for attn_impl in ("sdpa", "matmul"):
            batch = BatchLayout.causal(40)
            with torch.no_grad():
                hidden = run_batch(backbone, torch.from_numpy(tokens)[None], batch, attn_impl=attn_impl)
            assert answer.logits is not None
            got = backbone.logits(hidden[0, 39:]).numpy()
            assert difference(got, answer.logits) < 1e-5
        token = int(np.nanargmax(np.where(np.isfinite(answer.logits[0]), answer.logits[0], np.nan)))
        one = Forward(tokens, layout, None, np.array([39], np.int32), Logits())
        found = integrated_gradients(ModuleLine(backbone, one, token), backbone.config, tokens, 2)
        assert found.logit == pytest.approx(answer.logits[0, token], rel=1e-3)


def test_what_cannot_have_windows_says_so(windowed: dict[str, Model], subtests: pytest.Subtests) -> None:
    backend = TorchBackend(windowed["gemma"].backbone)
    with pytest.raises(UnsupportedError, match="cannot be moved"):
        backend.cache(9).moved(np.zeros(0, np.int64))
    windows = Windows(size=4, layers=(0,))
    for facts, said in (
        ({"windows": Windows(size=4, layers=(9,))}, "numbers of layers"),
        ({"windows": windows, "context": "full", "mask_id": None}, "belong to causal context"),
        ({"windows": windows, "mask_id": 9}, "without masks"),
    ):
        with subtests.test(said), pytest.raises(CheckpointError, match=said):
            tiny_config(Tokenizer.default("2k"), **facts)
    config = tiny_config(Tokenizer.default("2k"), **GEMMA)
    assert ModelConfig.from_dict(config.to_dict()) == config


def test_the_short_factors_of_longrope_are_those_of_its_first_positions() -> None:
    short, long = (1.0, 1.5, 2.0, 3.0), (2.0, 4.0, 8.0, 16.0)
    scaling = RopeScaling(kind="longrope", factor=4.0, original_positions=32, short=short, long=long)
    config = tiny_config(Tokenizer.default("2k"), max_positions=128, head_width=8, rope_scaling=scaling)
    near = read_scaling("longrope:1")(config)
    (turns, scale), (near_turns, near_scale) = frequencies(config), frequencies(near)
    assert near.max_positions == 32 and scale == near_scale == pytest.approx((1 + np.log(4) / np.log(32)) ** 0.5)
    assert torch.allclose(near_turns / turns, torch.tensor(long) / torch.tensor(short))
    for given in ("longrope:2", "yarn:2"):
        with pytest.raises(UnsupportedError, match="rope_scaling"):
            read_scaling(given)(config)
    with pytest.raises(UnsupportedError, match="longrope:1"):
        read_scaling("longrope:1")(tiny_config(Tokenizer.default("2k")))
    with pytest.raises(CheckpointError, match="lists `short` and `long`"):
        RopeScaling(kind="longrope", factor=4.0, original_positions=32, short=short)
    for change, said in (
        ({"short": short[:3]}, "has 3 short factors, and heads that rotate 8 numbers"),
        ({"long": (*long, 1.0)}, "has 5 long factors"),
        ({"short": (1.0, 0.0, 1.0, 1.0)}, "above 0, not 0"),
        ({"long": (1.0, float("nan"), 1.0, 1.0)}, "above 0, not nan"),
        ({"original_positions": 1}, "original_positions above 1"),
    ):
        with pytest.raises(CheckpointError, match=said):
            tiny_config(Tokenizer.default("2k"), head_width=8, rope_scaling=replace(scaling, **change))
