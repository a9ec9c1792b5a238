"""Weights that stay in their files until they are packed: one copy is in memory, and answers are the same."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from backends import needs_compiler
from daguerre import Model, load
from daguerre.models.backends.native_backend import NUMBERS, NativeBackend
from daguerre.models.core.build import make_backbone, make_shapes
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.loading import load_folder
from daguerre.models.model_weights import BackboneWeights, FileWeights
from forwards import logits_of
from made_gguf import DATA
from published import CASES, made

pytestmark = needs_compiler
PLAIN = ("qwen3", "llama", "llada")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    parent = tmp_path_factory.mktemp("deferred")
    longer = {"max_position_embeddings": 256}
    return {name: CASES[name].write(parent / name, made(name), **longer) for name in PLAIN}


def in_files(model: Model) -> bool:
    """Whether a model has only packed weights in memory."""
    weights = model.denoiser.weights
    return isinstance(weights, FileWeights) and weights.made is None


def test_only_the_packed_weights_are_in_memory(folders: dict[str, Path], subtests: pytest.Subtests) -> None:
    for name in PLAIN:
        for quantize in [None, *NUMBERS]:
            with subtests.test(name, quantize=quantize):
                model = load(folders[name], dtype="bfloat16", quantize=quantize)
                assert in_files(model) and model.dtype == torch.bfloat16
                whole = load_folder(folders[name], torch.bfloat16).backbone
                assert model.num_parameters == whole.num_parameters
                want = NativeBackend(whole, quantize)
                assert np.array_equal(logits_of(model.denoiser.backend), logits_of(want))
                assert model.denoiser.num_bytes == want.num_bytes > 0


def test_a_gguf_file_is_packed_a_layer_at_a_time(subtests: pytest.Subtests) -> None:
    pytest.importorskip("gguf")
    for name in ["llama-q4_k", "dream-q4_0", "qwen3-q6_k"]:
        for quantize in NUMBERS:
            with subtests.test(name, quantize=quantize):
                path = DATA / f"{name}.gguf"
                model, whole = (
                    load(path, dtype="bfloat16", quantize=quantize),
                    load_folder(path, torch.bfloat16).backbone,
                )
                assert in_files(model)
                assert np.array_equal(logits_of(model.denoiser.backend), logits_of(NativeBackend(whole, quantize)))
                assert torch.equal(model.backbone.embedding.weight, whole.embedding.weight)


def test_weights_are_there_for_who_asks_and_are_packed_again_when_they_change(folders: dict[str, Path]) -> None:
    model, whole = load(folders["qwen3"], dtype="float32"), load_folder(folders["qwen3"], torch.float32).backbone
    backend = model.denoiser.backend
    assert in_files(model)
    for name, weight in model.backbone.state_dict().items():
        assert torch.equal(weight, whole.state_dict()[name])
    assert model.denoiser.backend is backend and model.backbone is model.denoiser.backbone
    before = logits_of(backend)
    with torch.no_grad():
        model.backbone.embedding.weight.mul_(2)
    assert not np.array_equal(logits_of(model.denoiser.backend), before)


def test_a_copy_in_another_process_has_its_weights(folders: dict[str, Path]) -> None:
    model = load(folders["qwen3"], quantize="int8")
    copied = pickle.loads(pickle.dumps(model.denoiser))
    assert isinstance(copied, BackboneDenoiser)
    assert np.array_equal(logits_of(copied.backend), logits_of(model.denoiser.backend))


def test_progress_counts_every_byte_once(folders: dict[str, Path]) -> None:
    seen: list[tuple[int, int]] = []
    model = load(folders["llama"], dtype="float32", progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen) and seen[-1][0] == seen[-1][1] == 4 * model.num_parameters
    num = len(seen)
    model.backbone.embedding.weight.sum()  # read again, which nobody waits for
    assert seen[num:] == [seen[-1]] * (len(seen) - num)


def test_what_computes_with_pytorch_has_its_weights_at_once(folders: dict[str, Path]) -> None:
    model = load(folders["llama"], backend="torch")
    model.denoiser.backend  # noqa: B018
    assert isinstance(model.denoiser.weights, BackboneWeights)


def test_shapes_are_those_of_a_backbone_and_nothing_is_drawn(folders: dict[str, Path]) -> None:
    config = load(folders["llama"]).config
    shapes, made = make_shapes(config), make_backbone(config)
    assert {n: x.shape for n, x in shapes.state_dict().items()} == {n: x.shape for n, x in made.state_dict().items()}
    assert all(x.is_meta for x in shapes.parameters()) and made.embedding.weight.std() > 0.5
