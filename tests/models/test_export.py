"""What is exported is read back by transformers, with the same logits and the same tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import daguerre
from conftest import MakeModel, tiny_config
from daguerre.errors import InputError, UnsupportedError
from daguerre.model import Model
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import RopeScaling
from daguerre.models.export import class_of, export
from daguerre.models.loading import load_folder
from daguerre.models.tokenizer import Tokenizer
from published import CASES, ROWS, made, ours, seen_by

SCALINGS: dict[str, RopeScaling] = {
    "linear": RopeScaling(kind="linear", factor=4.0),
    "llama3": RopeScaling(kind="llama3", factor=8.0, original_positions=64, low_freq_factor=1.0, high_freq_factor=4.0),
    "yarn": RopeScaling(kind="yarn", factor=4.0, original_positions=64, attention_factor=1.1),
}
SHAPES: list[tuple[dict[str, Any], str]] = [
    ({}, "Qwen3ForCausalLM"),
    ({"draft_head": 24, "draft_rank": 2, "head_width": 12, "tied": False}, "Qwen3ForCausalLM"),
    ({"qkv_bias": True, "out_bias": True}, "Qwen3ForCausalLM"),
    ({"qk_norm": False, "rope_scaling": SCALINGS["llama3"], "rope_theta": 500.0}, "LlamaForCausalLM"),
    ({"qk_norm": False, "qkv_bias": True, "out_bias": True, "mlp_bias": True}, "LlamaForCausalLM"),
    ({"qk_norm": False, "rope_scaling": SCALINGS["linear"], "activation": "gelu_tanh"}, "LlamaForCausalLM"),
    ({"qk_norm": False, "qkv_bias": True, "rope_scaling": SCALINGS["yarn"], "norm_eps": 1e-3}, "Qwen2ForCausalLM"),
    ({"context": "full"}, "Qwen3ForCausalLM"),
    ({"context": "block", "block_size": 8, "shift": False, "qk_norm": False}, "LlamaForCausalLM"),
]


def read_back(folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


def their_logits(model: Any, tokens: np.ndarray, seen: torch.Tensor) -> torch.Tensor:
    bias = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    with torch.inference_mode():
        out: torch.Tensor = model(torch.from_numpy(tokens)[None], attention_mask=bias[None, None]).logits[0]
    return out


def assert_equal(model: Model, folder: Path) -> None:
    """Logits of tokens that may be drawn are equal, under the model's own context."""
    tokens = np.random.default_rng(0).choice(model.config.ordinary_ids, ROWS)
    seen = seen_by(model.config)
    expected, got = their_logits(read_back(folder), tokens, seen), ours("torch", model.backbone, tokens, seen)
    drawn = torch.isfinite(got)
    assert drawn.sum() > ROWS * 100
    assert (got[drawn] - expected[drawn]).abs().max() < 1e-4 * max(1.0, float(expected.abs().max()) / 10)


def test_every_shape_that_can_be_exported_is_computed_by_transformers(
    make_model: MakeModel, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for number, (facts, kind) in enumerate(SHAPES):
        with subtests.test(kind, **facts):
            (parent := tmp_path / str(number)).mkdir()
            model = make_model(**facts)
            with torch.no_grad():
                for name, weight in model.backbone.named_parameters():
                    if weight.dim() < 2:
                        weight.add_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(name))))
            assert export(model.backbone, model.tokenizer, parent / "out", torch.float32) == kind
            assert type(read_back(parent / "out")).__name__ == kind
            assert_equal(model, parent / "out")


def test_the_default_model_generates_the_same_tokens_in_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = daguerre.load(dtype="float32", backend="torch")
    kind = export(model.backbone, model.tokenizer, tmp_path / "out", torch.float32, shard_bytes=4_000_000)
    assert kind == "Qwen3ForCausalLM"
    assert len([*(tmp_path / "out").glob("model-*.safetensors")]) > 3
    assert_equal(model, tmp_path / "out")
    theirs, words = read_back(tmp_path / "out"), transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for prompt in ("def fib(n):\n    if n", "import os\nimport sys\n\n", "class Point:\n    def __init__("):
        ids = words(prompt, return_tensors="pt").input_ids
        assert ids[0].tolist() == [model.config.bos_id, *model.tokenizer.encode(prompt)]
        written = theirs.generate(ids, max_new_tokens=24)[0, ids.shape[1] :].tolist()
        result = model.generate(prompt, 24, mode="ar", temperature=0.0, heal=False)
        assert words.decode(written, skip_special_tokens=True) == result.text


def test_a_published_model_is_written_with_its_own_tokenizer(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = CASES["dream"].write(tmp_path, made("dream"))
    loaded = load_folder(folder)
    assert export(loaded.backbone, loaded.tokenizer, tmp_path / "out", torch.float32) == "Qwen2ForCausalLM"
    assert_equal(Model(loaded.backbone, loaded.tokenizer), tmp_path / "out")
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert words("a<|im_end|>b").input_ids == loaded.tokenizer.encode("a<|im_end|>b")
    assert "4-D" in (tmp_path / "out" / "README.md").read_text()


def test_what_is_exported_can_be_loaded_again(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model()
    export(model.backbone, model.tokenizer, tmp_path / "out", torch.float32)
    again = load_folder(tmp_path / "out")
    assert again.family == "qwen3"
    assert torch.equal(again.backbone.layers[1].mlp.gate_up.weight, model.backbone.layers[1].mlp.gate_up.weight)
    assert again.tokenizer.encode("x = 1") == model.tokenizer.encode("x = 1")


def test_the_readme_names_what_is_left_out(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model(draft_head=24, draft_rank=2)
    export(model.backbone, model.tokenizer, tmp_path / "out")
    said = (tmp_path / "out" / "README.md").read_text()
    for words in ("Qwen3ForCausalLM", "autoregressive half", "the gap filler (token 4)", "the draft head", "rank 2"):
        assert words in said
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["torch_dtype"] == "bfloat16"
    assert "mask_token_id" not in config


def test_what_transformers_cannot_compute_is_refused(tokenizer: Tokenizer, subtests: pytest.Subtests) -> None:
    for facts, word in [
        ({"norm": "layer"}, "norm='layer'"),
        ({"positions": "learned"}, "positions='learned'"),
        ({"rope_share": 0.5}, "rope_share=0.5"),
        ({"norm_placement": "post"}, "norm_placement='post'"),
        ({"context": "full", "shift": False, "time_input": True}, "time_input=True"),
        ({"qk_norm": False, "out_bias": True}, "biases"),
        ({"mlp_bias": True}, "biases"),
        ({"qkv_bias": True}, "biases"),
    ]:
        with subtests.test(word, **facts):
            with torch.device("meta"):
                backbone = Backbone(tiny_config(tokenizer, **facts))
            with pytest.raises(UnsupportedError, match=word):
                class_of(backbone.config)


def test_a_folder_with_files_is_not_written_to(make_model: MakeModel, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    model = make_model()
    with pytest.raises(InputError, match="not an empty folder"):
        export(model.backbone, model.tokenizer, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("folder", ["file/x", "locked/x"])
def test_a_place_that_cannot_be_written_is_named(make_model: MakeModel, tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "locked").symlink_to(tmp_path / "nowhere" / "more")
    model = make_model()
    with pytest.raises(InputError, match=r"cannot write .*: make room, or give another folder"):
        export(model.backbone, model.tokenizer, tmp_path / folder)


def test_a_full_disk_is_named(make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("daguerre.models.export.write_file", full)
    model = make_model()
    with pytest.raises(InputError, match=r"cannot write .* \(No space left on device\): make room"):
        export(model.backbone, model.tokenizer, tmp_path / "out")
