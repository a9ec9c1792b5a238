"""Drafts of published autoregressive models, by a head, by rows, or both: they leave the model's own numbers alone."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

pytest.importorskip("gguf")
pytest.importorskip("torch")

import daguerre
from backends import needs_compiler
from daguerre.canvas import Canvas
from daguerre.engine.engine import Engine
from daguerre.errors import CheckpointError, UnsupportedError
from daguerre.model import Model
from daguerre.models.added_weights import fingerprint
from daguerre.models.core.draft_head import DraftHead
from daguerre.models.core.parameters import parameter_shapes
from daguerre.models.draft_files import CONFIG, WEIGHTS, save_draft_folder
from daguerre.models.forward import Rules
from daguerre.models.loading import load_folder
from daguerre.models.processor import in_crowd
from daguerre.models.row_times import RowTimes
from daguerre.train.drafts.run import make_head

DATA = Path(__file__).parents[1] / "data" / "gguf"
ROWS = {"draft_rank": 8, "draft_rows": "learned", "draft_matrices": ["qkv", "out", "gate_up", "down"]}
MADE: dict[str, tuple[str, dict[str, Any]]] = {
    "head": ("llama-q4_k", {"draft_head": 40}),
    "rows": ("qwen2-q8_0", ROWS),
    "both": ("qwen3-q6_k", ROWS | {"draft_head": 40, "draft_matrices": ["qkv", "down"]}),
    "random": ("llama-q4_k", ROWS | {"draft_rows": "random", "draft_split": True}),
}
"""Which model has which drafts."""
TOKENS = tuple(range(10, 300, 3))
PROMPT = list(range(20, 60))
KINDS: list[dict[str, Any]] = [
    {},
    {"dtype": "float32", "quantize": "q8_0"},
    {"dtype": "bfloat16", "quantize": "q4_0"},
    {"backend": "torch", "dtype": "float32"},
]


def write(folder: Path, file: Path, seed: int = 1, **shape: Any) -> Path:
    """Random drafts for a file, by default of a head."""
    import torch

    config = load_folder(file, defer=True, drafts="none").weights.config
    shape = (shape or {"draft_head": 40}) | {"draft_tokens": list(TOKENS)}
    whole, generator = replace(config, **shape), torch.Generator().manual_seed(seed)
    before, tensors = parameter_shapes(config), dict[str, torch.Tensor]()
    for name, size in parameter_shapes(whole).items():
        if name not in before:
            tensors[name] = torch.randn(size, generator=generator) * size[-1] ** -0.5
    if whole.draft_head:
        head = make_head(whole, seed)
        randomize(head)
        tensors |= {f"draft_head.{name}": value for name, value in head.state_dict().items()}
    save_draft_folder(folder, tensors, {"name": file.name, "sha256": fingerprint([file])}, shape, {})
    return folder


def randomize(head: DraftHead) -> None:
    import torch

    with torch.no_grad():
        head.down.weight.normal_(0, 0.3, generator=torch.Generator().manual_seed(3))


@pytest.fixture(autouse=True)
def row_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A further row takes little, whatever this machine has to do: how much is drafted does not depend on it."""
    monkeypatch.setattr(RowTimes, "share", lambda self, crowd=1: in_crowd(0.05, crowd))


@pytest.fixture(scope="module", params=MADE)
def kind_of_drafts(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def file(kind_of_drafts: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / f"{MADE[kind_of_drafts][0]}.gguf"
    shutil.copy(DATA / path.name, path)
    return path


@pytest.fixture(scope="module")
def drafts(kind_of_drafts: str, file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("drafts"), file, **MADE[kind_of_drafts][1])


def cycle(model: Model, draft: np.ndarray, ahead: int) -> Any:
    """A verifying forward's answer."""
    session = model.denoiser.session(canvas_of(16))
    canvas = canvas_of(16)
    asking = session.cycle(canvas, draft, ahead, None, Rules(0.0), 0.0)
    (forward,) = next(asking)
    try:
        asking.send(model.denoiser.backend.forward([forward]))
    except StopIteration as stop:
        return stop.value
    raise AssertionError


def canvas_of(num: int) -> Canvas:
    tokens = np.array(PROMPT + [0] * num)
    is_open = np.arange(len(tokens)) >= len(PROMPT)
    return Canvas(tokens=tokens, open=is_open, span=(len(PROMPT), len(tokens)), gaps=((len(PROMPT), len(tokens)),))


@needs_compiler
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_clean_rows_have_the_same_bits_with_drafts(file: Path, drafts: Path, kind: dict[str, Any]) -> None:
    plain, drafting = daguerre.load(file, drafts="none", **kind), daguerre.load(file, drafts=drafts, **kind)
    draft = np.array([21, 35, 48])

    alone, beside = cycle(plain, draft, 0), cycle(drafting, draft, 4)

    assert np.array_equal(alone.tokens, beside.tokens)
    if kind.get("backend") != "torch":  # whose products promise no bits
        assert np.array_equal(alone.probabilities, beside.probabilities)
    assert len(beside.draft) and not len(alone.draft)
    assert {*beside.draft.tolist()} <= {*TOKENS}
    assert plain.nll("def f(x):\n    return x").value == drafting.nll("def f(x):\n    return x").value


CUTS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.3, "no_repeat_ngram_size": 3},
    {"temperature": 0.7, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 0.7, "min_p": 0.1, "top_k": 40, "no_repeat_ngram_size": 2},
    {"temperature": 1.0},
    {"temperature": 1.0, "top_p": 0.8, "repetition_penalty": 1.2},
]


@needs_compiler
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_texts_are_those_of_ar(file: Path, drafts: Path, backend: str) -> None:
    """Token for token, whole and streamed, whatever the drafts are and however many."""
    model = daguerre.load(file, drafts=drafts, backend=backend, dtype="float32")
    drafted = 0
    for number, cut in enumerate(CUTS):
        options: dict[str, Any] = {"seed": number, "heal": False} | cut
        plain = model.generate(PROMPT, 40, mode="ar", **options)
        for how in ({"drafter": "head", "block_size": 4}, {"drafter": "head", "block_size": 2}, {"drafter": "auto"}):
            result = model.generate(PROMPT, 40, mode="speculative", **how, **options)
            events = list(model.stream(PROMPT, 40, mode="speculative", **how, **options))

            assert [token.text for token in result.tokens] == [token.text for token in plain.tokens], (cut, how)
            assert events[-1].text == plain.text
            drafted += result.usage.head_drafted
    assert drafted > 100


@needs_compiler
def test_native_drafts_are_those_of_the_modules(file: Path, drafts: Path) -> None:
    """Up to near ties: the native head multiplies 8-bit numbers, and the rest are rounded otherwise, too."""
    native, torch = (
        daguerre.load(file, drafts=drafts, dtype="float32", backend=backend) for backend in ("native", "torch")
    )
    equal = 0
    for first in range(20, 32):
        draft = np.array([first, first + 7])
        made = [cycle(model, draft, 4).draft for model in (native, torch)]
        equal += int(np.array_equal(*made))
    assert equal >= 9


def test_drafts_beside_a_model_are_found_and_others_refused(file: Path, tmp_path: Path) -> None:
    copy, other = tmp_path / file.name, tmp_path / "other.gguf"
    shutil.copy(file, copy)
    assert not load_folder(copy, defer=True).weights.config.draft_head
    folder = write(tmp_path / f"{file.name}.drafts", copy)

    assert load_folder(copy, defer=True).weights.config.draft_tokens == TOKENS
    assert not load_folder(copy, defer=True, drafts="none").weights.config.draft_head

    content = bytearray(file.read_bytes())
    content[-7] ^= 1
    other.write_bytes(content)
    with pytest.raises(CheckpointError, match="these are other weights"):
        load_folder(other, defer=True, drafts=folder)
    shutil.copytree(folder, tmp_path / "other.gguf.drafts")
    assert not load_folder(other, defer=True).weights.config.draft_head  # beside it: left out, with a warning


def test_damaged_drafts_are_refused(file: Path, drafts: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(drafts, copy)
    values = json.loads((copy / CONFIG).read_text())
    (copy / CONFIG).write_text(json.dumps(values | {"shape": values["shape"] | {"draft_head": 48}}))
    with pytest.raises(CheckpointError, match="other tensors"):
        load_folder(file, defer=True, drafts=copy)
    (copy / CONFIG).write_text(json.dumps(values | {"shape": values["shape"] | {"draft_tokens": [3, 2]}}))
    with pytest.raises(CheckpointError, match="ascending"):
        load_folder(file, defer=True, drafts=copy)
    (copy / WEIGHTS).unlink()
    with pytest.raises(CheckpointError, match="copy the whole folder"):
        load_folder(file, defer=True, drafts=copy)


def test_a_model_that_does_not_draft_is_refused(tmp_path: Path) -> None:
    dream = tmp_path / "dream-q4_0.gguf"
    shutil.copy(DATA / dream.name, dream)
    folder = tmp_path / "drafts"
    llama = write(folder, DATA / "llama-q4_k.gguf")
    values = json.loads((llama / CONFIG).read_text())
    values["base"]["sha256"] = fingerprint([dream])
    (llama / CONFIG).write_text(json.dumps(values))
    with pytest.raises(UnsupportedError, match="autoregressive"):
        load_folder(dream, defer=True, drafts=llama)


@needs_compiler
def test_a_lora_adapter_is_merged_beside_drafts(file: Path, drafts: Path, tmp_path: Path) -> None:
    width, name = 256, "base_model.model.model.layers.0.self_attn.o_proj.lora_"
    rng = np.random.default_rng(0)
    save_file(
        {
            f"{name}{key}.weight": rng.standard_normal(shape).astype(np.float32)
            for key, shape in (("A", (4, width)), ("B", (width, 4)))
        },
        tmp_path / "adapter_model.safetensors",
    )
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8}))
    text = "def f(x):\n    return x"
    tuned, drafting = (
        daguerre.load(file, adapter=tmp_path, drafts=chosen, dtype="float32") for chosen in ("none", drafts)
    )

    assert drafting.config.draft_head or drafting.config.draft_rank
    assert tuned.nll(text).value == drafting.nll(text).value
    assert tuned.nll(text).value != daguerre.load(file, drafts="none", dtype="float32").nll(text).value


@needs_compiler
def test_texts_of_a_batch_are_those_of_each_alone(file: Path, drafts: Path) -> None:
    model = daguerre.load(file, drafts=drafts)
    how = {"mode": "speculative", "drafter": "head", "block_size": 3}
    with Engine(model) as engine:
        jobs = [
            engine.generate(PROMPT[number:], 24, seed=number, heal=False, **how, **CUTS[number % 6])
            for number in range(12)
        ]
        together = [job.result() for job in jobs]
    for number, result in enumerate(together):
        alone = model.generate(PROMPT[number:], 24, mode="ar", seed=number, heal=False, **CUTS[number % 6])
        assert result.text == alone.text
    assert model.generate(PROMPT, 24, heal=False, min_tokens=24, **how).usage.head_drafted
