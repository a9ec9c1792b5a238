"""Compiled execution: equal to the reference, bit for bit its own in speculation, kept on disk, never required.

Two models are really compiled. Elsewhere the step runs as the plain function that would be compiled.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from captures import Fixed
from daguerre.errors import UnsupportedError
from daguerre.model import Model
from daguerre.models import compiled as module
from daguerre.models.backbone import Backbone
from daguerre.models.cache import ROUND, Cache
from daguerre.models.compiled import FEW, CompiledBackbone, Run, load_step, step_edges
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.layout import NO_HORIZON, SETTLED, Layout, Rows
from daguerre.models.step import Step
from executions import libraries_sum_alike, needs_compiler

PROMPT = "def area(w, h):\n    return w"
LONG = PROMPT + "".join(f"\n\ndef side{n}(w):\n    return w * {n}" for n in range(4))
DTYPES = [torch.float32, torch.bfloat16]


def plain(backbone: Backbone, folder: Path | None = None) -> Run:
    """The step as it is before it is compiled."""
    step = Step(backbone).eval()
    return lambda given: [step(*given[:5], given[5:])]


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "load_step", plain)


@pytest.fixture(scope="module")
def backbones(make_model: Any) -> dict[torch.dtype, Backbone]:
    return {dtype: make_model(norm_eps=0.05).backbone.to(dtype) for dtype in DTYPES}


@pytest.fixture(scope="module")
def really(backbones: dict[torch.dtype, Backbone]) -> dict[torch.dtype, Callable[[], CompiledBackbone]]:
    """By dtype, what is really compiled, the first time that it is asked for."""
    made: dict[torch.dtype, CompiledBackbone] = {}

    def get(dtype: torch.dtype) -> CompiledBackbone:
        if dtype not in made:
            made[dtype] = CompiledBackbone(backbones[dtype])
        return made[dtype]

    return {dtype: lambda dtype=dtype: get(dtype) for dtype in DTYPES}  # type: ignore[misc]


def layouts(past: int) -> dict[str, Layout]:
    """Forwards behind a cache of `past` settled rows."""

    def rows(num_settled: int, num_open: int, **labels: Any) -> Rows:
        position = torch.arange(past, past + num_settled + num_open)[None]
        return Rows.make(position, torch.where(position < past + num_settled, SETTLED, 0), **labels)

    seeds = torch.arange(past, past + 5).repeat_interleave(2)
    position = torch.cat([torch.arange(past, past + 5), seeds + torch.tensor([0, 1]).repeat(5)])[None]
    span = torch.cat([torch.full((5,), SETTLED), seeds])[None]
    drafts = Rows.make(position, span, horizon=torch.where(span == SETTLED, NO_HORIZON, span))
    return {
        "law": Layout(rows(1, 0), 1, plain=True, alone=1),
        "span": Layout(rows(0, 9), 0, open_sees_all=True),
        "settling": Layout(rows(5, 8), 5, plain=True, open_sees_all=True),
        "by mask": Layout(rows(5, 8), 5),
        "segment": Layout(rows(5, 8, segment=torch.ones(1, 13, dtype=torch.int64)), 5, open_sees_all=True),
        "verification": Layout(drafts, 5, plain=True, alone=5),
        "many": Layout(rows(FEW + 30, 3), FEW + 30, plain=True, open_sees_all=True),
    }


def logits(executor: Any, past: int, name: str, dtype: torch.dtype, asked: Tensor | None = None) -> Tensor:
    """Logits (R, V) of a layout behind `past` rows that lean execution would have settled too."""
    layout, cache = layouts(past)[name], Cache(executor.config, 256, dtype=dtype)
    tokens = torch.randint(16, 2048, (1, past + layout.rows.num_rows), generator=torch.Generator().manual_seed(past))
    with torch.inference_mode():
        executor(tokens[:, :past], Layout.causal(past), cache)
        hidden = executor(tokens[:, past:], layout, cache, asked_A=asked)
        assert cache.length == past + layout.num_settled
        return executor.logits(hidden)[0, :, 16:]


def check(executor: CompiledBackbone, backbone: Backbone, past: int, name: str, dtype: torch.dtype) -> None:
    """Float32: within 1e-5 of the largest logit, measured 1e-6. Bfloat16: as near to float32 as the reference."""
    got, reference = (logits(one, past, name, dtype) for one in (executor, backbone))
    if dtype == torch.float32:
        assert (got - reference).abs().max() <= 1e-5 * reference.abs().max()
        return
    own = Backbone(backbone.config).requires_grad_(False).eval()
    own.load_state_dict({key: value.float() for key, value in backbone.state_dict().items()})
    exact = logits(own, past, name, torch.float32)
    error, allowed = ((x - exact).pow(2).mean().sqrt() for x in (got, reference))
    assert 0 < error <= 1.6 * allowed  # of as little as one row


NAMES = ("law", "span", "settling", "by mask", "segment", "verification", "many")


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_code_equals_the_reference(really: Any, backbones: Any, dtype: torch.dtype) -> None:
    for name in NAMES:
        check(really[dtype](), backbones[dtype], 61, name, dtype)


@needs_compiler
@libraries_sum_alike
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("prompt", ["", PROMPT, LONG])
def test_speculation_has_the_bits_of_ar(really: Any, backbones: Any, tokenizer: Any, prompt: str, dtype: Any) -> None:
    """Prompts of 1, about 14 and more than FEW tokens; texts that pass a multiple of ROUND."""
    model = Model(backbones[dtype], tokenizer)
    model.denoiser = Fixed(really[dtype]())  # type: ignore[assignment]
    for temperature in (0.0, 1.0):
        options = {"temperature": temperature, "min_tokens": 70}
        want, got = (model.generate(prompt, 70, mode=mode, **options) for mode in ("ar", "speculative"))
        texts = [[(t.id, t.logprob, t.confidence) for t in result.tokens] for result in (want, got)]
        assert texts[0] == texts[1]
        given = model.generate(prompt, 70, mode="speculative", draft=want.text[:60], **options)
        assert [(t.id, t.logprob, t.confidence) for t in given.tokens] == texts[0]
        assert given.usage.forwards < want.usage.forwards


@needs_compiler
def test_a_rows_bits_depend_on_nothing_computed_beside_it(really: Any) -> None:
    """The last settled row of 2 to 9, and in bfloat16 whatever the number of keys that have no weight."""
    for dtype in DTYPES:
        executor, rows = really[dtype](), 9
        tokens = torch.arange(100, 100 + 61 + rows)[None]
        found = []
        for num in range(1, rows + 1):
            cache = Cache(executor.config, 256, dtype=dtype)
            executor(tokens[:, :61], Layout.causal(61), cache)
            position = torch.arange(61, 61 + num)[None]
            layout = Layout(Rows.make(position), num, plain=True, alone=num)
            found.append(executor(tokens[:, 61 : 61 + num], layout, cache, torch.arange(num))[0])
        assert all(torch.equal(one, found[-1][: len(one)]) for one in found)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("past", [1, 20, 63, 64])
@pytest.mark.parametrize("name", NAMES)
def test_a_step_equals_the_reference(uncompiled: None, backbones: Any, name: str, past: int, dtype: Any) -> None:
    check(CompiledBackbone(backbones[dtype]), backbones[dtype], past, name, dtype)


@pytest.mark.parametrize("name", ["span", "settling", "verification", "many"])
def test_asked_rows_are_those_of_the_whole_answer(uncompiled: None, backbones: Any, name: str) -> None:
    executor = CompiledBackbone(backbones[torch.float32])
    for past in (20, 60):
        whole = logits(executor, past, name, torch.float32)
        for first in (3, len(whole) - 2):
            asked = torch.arange(first, len(whole))
            own = logits(executor, past, name, torch.float32, asked)
            assert torch.allclose(own, whole[first:], atol=1e-4)


CASES: list[tuple[str, dict[str, Any]]] = [
    ("causal", {"mode": "ar"}),
    ("causal", {"mode": "ar", "temperature": 1.0, "seed": 3}),
    ("causal", {"mode": "speculative", "block_size": 3}),
    ("causal", {"block_size": 5, "threshold": 0.5}),
    *((name, {"threshold": 0.5}) for name in ("causal", "causal_unshifted", "block")),
    ("causal", {"mode": "full", "cache": "none"}),
    ("causal", {"cache": "approximate_int8"}),
]


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("prompt", [PROMPT, LONG])
def test_the_same_tokens_as_by_the_reference(
    uncompiled: None, models: dict[str, Model], name: str, options: dict[str, Any], prompt: str
) -> None:
    own = models[name]
    results = [
        Model(own.backbone, own.tokenizer, kind).generate(prompt, 24, **options) for kind in ("compiled", "reference")
    ]  # type: ignore[arg-type]
    tokens = [[(token.id, token.step) for token in result.tokens] for result in results]
    assert tokens[0] == tokens[1]


def test_the_same_infilling_as_by_the_reference(uncompiled: None, models: dict[str, Model]) -> None:
    own = models["causal"]
    both = [Model(own.backbone, own.tokenizer, kind) for kind in ("compiled", "reference")]  # type: ignore[arg-type]
    results = [model.infill(LONG, " * h\n", 16, threshold=0.4) for model in both]
    assert [t.id for t in results[0].tokens] == [t.id for t in results[1].tokens]


def test_in_float32_settled_rows_are_cut_where_the_number_of_keys_changes(causal: Model) -> None:
    cache = Cache(causal.config, 256)
    cache.commit(Rows.make(torch.arange(ROUND - 4)[None]))
    layout = layouts(ROUND - 4)["settling"]
    assert step_edges(layout, cache, torch.float32) == [0, 4, 13]
    assert step_edges(layout, cache, torch.bfloat16) == [0, 13]
    cache.truncate(ROUND - 7)
    assert step_edges(layouts(ROUND - 7)["settling"], cache, torch.float32) == [0, 5, 13]
    cache.truncate(20)
    assert step_edges(layouts(20)["settling"], cache, torch.float32) == [0, 13]


@needs_compiler
def test_a_second_start_compiles_nothing(really: Any, backbones: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a damaged file stop one, and other weights are other code."""
    backbone = backbones[torch.float32]
    really[torch.float32]()
    folder, compiles = module.compiled_folder(), []
    assert folder is not None
    path = folder / f"{module.key_of(backbone)}.pt2"
    whole = path.read_bytes()

    def compile_again(backbone: Backbone, beside: Path) -> Path:
        compiles.append(1)
        beside.write_bytes(whole)
        return beside

    monkeypatch.setattr(module, "_compile", compile_again)
    load_step(backbone, folder)
    assert not compiles
    path.write_bytes(whole[: len(whole) // 2])
    load_step(backbone, folder)
    assert compiles == [1]
    assert path.read_bytes() == whole
    load_step(backbone, None)
    assert compiles == [1, 1]
    other = Backbone(backbone.config).initialize(5)
    assert module.key_of(other) != module.key_of(backbone)


def test_without_a_compiler_it_says_what_to_do(causal: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"install g\+\+, or leave out execution"):
        CompiledBackbone(causal.backbone, tmp_path)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UnsupportedError, match="CXX names no-such-compiler, which is not found"):
        CompiledBackbone(causal.backbone, tmp_path)


def test_what_cannot_be_compiled_says_why(models: dict[str, Model], make_model: Any) -> None:
    with pytest.raises(UnsupportedError, match=r'full context.*use execution="lean"'):
        BackboneDenoiser(models["full"].backbone, "compiled").executor  # noqa: B018
    with pytest.raises(UnsupportedError, match="float64"):
        CompiledBackbone(make_model().backbone.to(torch.float64))


def test_a_draft_head_drafts_as_by_lean(uncompiled: None, make_model: Any) -> None:
    own = make_model(draft_head=16)
    both = [Model(own.backbone, own.tokenizer, kind) for kind in ("compiled", "lean")]  # type: ignore[arg-type]
    results = [model.generate(PROMPT, 16, mode="speculative") for model in both]
    assert results[0].text == results[1].text
    assert results[0].usage.forwards == results[1].usage.forwards
