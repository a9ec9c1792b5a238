"""What is wrong with a published folder is said at once, in one line; weights are streamed; nothing is executed."""

from __future__ import annotations

import json
import pickle
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import daguerre
from daguerre.errors import CheckpointError, DaguerreError, InputError
from daguerre.models.loading import load_folder, load_model, tokenizer_folder, weights_hash
from daguerre.models.published import describe
from published import CASES, LLAMA, Case, write_tensors

SHARDS = "model-0000{}-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
CASE = Case(
    family="qwen3",
    core="qwen3",
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    config=CASES["qwen3"].config,
    shards=2,
)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return CASE.write(tmp_path_factory.mktemp("published"))


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "model"))


def change(file: Path, **changes: torch.Tensor | None) -> None:
    """Replace tensors of a file; None removes one."""
    held = load_file(file) | {name: tensor for name, tensor in changes.items() if tensor is not None}
    save_file({name: tensor for name, tensor in held.items() if changes.get(name, 0) is not None}, file)


def change_index(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    values = json.loads((folder / INDEX).read_text())
    edit(values)
    (folder / INDEX).write_text(json.dumps(values))


def whole(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / SHARDS.format(1)) | load_file(folder / SHARDS.format(2))


def one_file(folder: Path, **changes: torch.Tensor | None) -> None:
    """The same checkpoint as one file, without an index."""
    tensors = whole(folder)
    for path in folder.glob("model*"):
        path.unlink()
    write_tensors(folder, tensors)
    change(folder / "model.safetensors", **changes)


def truncate(folder: Path) -> None:
    path = folder / SHARDS.format(2)
    path.write_bytes(path.read_bytes()[:-50])


def tensor_in_two_shards(folder: Path) -> None:
    change(folder / SHARDS.format(2), **{"model.norm.weight": torch.ones(32)})
    change(folder / SHARDS.format(1), **{"model.norm.weight": torch.ones(32)})


def only_pickle(folder: Path) -> None:
    for path in folder.glob("model*"):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({}))


def no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


NORM = "model.norm.weight"
DAMAGE: list[tuple[Callable[[Path], object], str]] = [
    (truncate, "model-00002-of-00002.safetensors cannot be read"),
    (lambda f: (f / SHARDS.format(1)).unlink(), "model-00001-of-00002.safetensors is missing, which"),
    (lambda f: (f / SHARDS.format(1)).write_bytes(b"PK"), "cannot be read"),
    (tensor_in_two_shards, "'model.norm.weight' is in model-00001-of-00002.safetensors and in"),
    (lambda f: (f / INDEX).write_text("{"), "index.json is not JSON"),
    (lambda f: (f / INDEX).write_text("[" * 100_000), "index.json is nested too deeply"),
    (lambda f: ((f / INDEX).unlink(), (f / INDEX).mkdir()), "cannot read .*index.json"),
    (lambda f: (f / INDEX).write_text("{}"), "is not an index of weights"),
    (lambda f: (f / INDEX).write_text('{"weight_map": {"a": "../a"}}'), "not a file in this folder"),
    (lambda f: change_index(f, lambda v: v["weight_map"].update(ghost=SHARDS.format(1))), "is wrong about ghost"),
    (lambda f: change_index(f, lambda v: v["weight_map"].update({NORM: SHARDS.format(1)})), f"wrong about {NORM}"),
    (only_pickle, "pytorch_model.bin may run code when it is read"),
    (lambda f: one_file(f, **{NORM: None}), r"\(qwen3\): 1 missing: model.norm.weight"),
    (lambda f: one_file(f, surprise=torch.ones(1)), "1 not expected: surprise"),
    (lambda f: one_file(f, **{NORM: torch.ones(7)}), r"of another shape: model.norm.weight \(7,\), not \(32,\)"),
    (lambda f: one_file(f, **{NORM: torch.ones(32).to(torch.float8_e4m3fn)}), r"model.norm.weight \(F8_E4M3\)"),
    (lambda f: one_file(f, **{NORM: torch.ones(32, dtype=torch.int8)}), r"model.norm.weight \(I8\)"),
    (lambda f: (f / "config.json").write_text("{"), "is not JSON"),
    (lambda f: (f / "config.json").write_text("[]"), "is not a JSON object"),
    (lambda f: (f / "generation_config.json").write_text("nope"), "generation_config.json is not JSON"),
    (no_tokenizer, "has no tokenizer"),
    (lambda f: (f / "tokenizer.json").write_text("{}"), "token"),
    (lambda f: (f / "tokenizer_config.json").write_text('{"added_tokens_decoder": {"x": 3}}'), "damaged"),
]


def test_a_damaged_folder_is_refused_in_one_line(written: Path, tmp_path: Path, subtests: pytest.Subtests) -> None:
    assert load_folder(written).family == "qwen3"
    for number, (damage, message) in enumerate(DAMAGE):
        with subtests.test(message):
            folder = Path(shutil.copytree(written, tmp_path / str(number)))
            damage(folder)
            with pytest.raises(CheckpointError, match=message) as caught:
                load_folder(folder)
            assert "\n" not in str(caught.value)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"hidden_size": None}, "config.json has no hidden_size"),
    ({"hidden_size": "32"}, "hidden_size must be a whole number above 0, at most 1,073,741,824, not '32'"),
    ({"num_hidden_layers": 0}, "num_hidden_layers must be a whole number"),
    ({"rms_norm_eps": "small"}, "rms_norm_eps must be a number"),
    ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false"),
    ({"num_key_value_heads": 3}, "4 heads must divide by 3"),
    ({"hidden_act": ["silu"]}, r"hidden_act must be a name, not \['silu'\]"),
    ({"layer_types": 5}, "layer_types must be 2 of"),
    ({"sliding_window": "x", "use_sliding_window": True, "max_window_layers": 1}, "sliding_window must be a whole"),
    ({"eos_token_id": "256"}, "eos_token_id must be the number of a token, not '256'"),
    ({"eos_token_id": [256, True]}, "eos_token_id must be the number of a token, not True"),
    ({"eos_token_id": 99_999}, "eos_token_id=99999 is outside the vocabulary of 320"),
]


def test_a_wrong_value_of_the_config_is_named(folder: Path, subtests: pytest.Subtests) -> None:
    values = json.loads((folder / "config.json").read_text())
    for changes, message in WRONG:
        with subtests.test(**changes):
            (folder / "config.json").write_text(json.dumps(values | changes))
            with pytest.raises(CheckpointError, match=message) as caught:
                load_folder(folder)
            assert "qwen3" in str(caught.value)


def test_everything_that_does_not_fit_is_named_at_once(folder: Path) -> None:
    bad = {f"extra.{number}": torch.ones(1) for number in range(30)}
    wrong = {"model.embed_tokens.weight": torch.ones(320, 31), "lm_head.weight": torch.ones(320, 32, 1)}
    one_file(folder, **bad, **wrong, **{NORM: None, "model.layers.1.mlp.up_proj.weight": None})
    with pytest.raises(CheckpointError) as caught:
        load_folder(folder)
    said = str(caught.value)
    assert "2 missing: model.layers.1.mlp.up_proj.weight, model.norm.weight" in said
    assert "30 not expected" in said
    assert said.count("extra.") == 20
    assert "and 10 more" in said
    assert "model.embed_tokens.weight (320, 31), not (320, 32)" in said
    assert "lm_head.weight (320, 32, 1), not (320, 32)" in said


def test_weights_are_read_from_every_type_into_the_asked_one(folder: Path, subtests: pytest.Subtests) -> None:
    tensors = whole(folder)
    for kind in [torch.float32, torch.float16, torch.bfloat16]:
        for dtype in [torch.float32, torch.bfloat16]:
            with subtests.test(kind=kind, dtype=dtype):
                stored = {name: tensor.to(kind) for name, tensor in tensors.items()}
                write_tensors(folder, stored, 2)
                backbone, _ = load_model(folder, dtype)
                assert {weight.dtype for weight in backbone.parameters()} == {dtype}
                assert torch.equal(backbone.embedding.weight, stored["model.embed_tokens.weight"].to(dtype))
                rows = stored["model.layers.1.self_attn.k_proj.weight"].to(dtype)
                assert torch.equal(backbone.layers[1].attention.qkv.weight[48:72], rows)
                assert not any(weight.requires_grad for weight in backbone.parameters())


def test_a_tied_projection_may_be_stored_and_must_be_the_embedding(tmp_path: Path) -> None:
    case = CASES["qwen2"]
    folder = case.write(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    assert torch.equal(tensors["lm_head.weight"], tensors["model.embed_tokens.weight"])
    assert load_folder(folder).backbone.output is None
    change(folder / "model.safetensors", **{"lm_head.weight": None})
    assert load_folder(folder).backbone.output is None
    change(folder / "model.safetensors", **{"lm_head.weight": torch.ones(320, 32)})
    with pytest.raises(CheckpointError, match=r"lm_head.weight is stored and differs .* tie_word_embeddings"):
        load_folder(folder)


def test_buffers_of_old_checkpoints_are_ignored(folder: Path, tmp_path: Path) -> None:
    one_file(folder, **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(6)})
    assert load_folder(folder).family == "qwen3"
    gpt2 = CASES["gpt2"].write(tmp_path / "gpt2")
    masks = {"h.0.attn.bias": torch.ones(1, 1, 8, 8), "h.1.attn.masked_bias": torch.tensor(-1e4)}
    change(gpt2 / "model.safetensors", **masks)
    assert load_folder(gpt2).family == "gpt2"


def test_config_alone_describes_a_model(folder: Path, tmp_path: Path) -> None:
    whole_folder = describe(folder)
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(folder / "config.json", alone)
    described = describe(alone)
    assert described.family.name == "qwen3"
    assert described.config == whole_folder.config
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        describe(tmp_path)


def test_a_folder_never_touches_the_network(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    model = daguerre.load(folder, dtype="float32")
    assert model.family == "qwen3"
    assert model.generate("abc", 5).usage.completion_tokens > 0
    monkeypatch.chdir(folder.parent.parent)
    relative = f"{folder.parent.name}/{folder.name}"  # as a name on a hub looks
    assert daguerre.load(relative, dtype="float32").family == "qwen3"
    with pytest.raises(InputError, match=r"revision='main' is for names on a hub"):
        daguerre.load(folder, revision="main")


def test_progress_ends_with_all_bytes_that_are_stored(folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    load_folder(folder, progress=lambda done, total: seen.append((done, total)))
    size = sum(tensor.nbytes for tensor in whole(folder).values())
    assert seen[-1] == (size, size)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_what_belongs_to_published_checkpoints_is_refused_for_our_own(tmp_path: Path) -> None:
    for option in ("family", "tokenizer"):
        with pytest.raises(InputError, match=f"{option} is for published checkpoints"):
            daguerre.load(**{option: str(tmp_path)})


def test_a_tokenizer_can_be_given_to_a_checkpoint_without_one(folder: Path, written: Path) -> None:
    no_tokenizer(folder)
    words = tokenizer_folder(folder, written)
    assert load_folder(folder, tokenizer=words).tokenizer == load_folder(written).tokenizer
    assert tokenizer_folder(folder) is None


def test_the_hash_of_weights_changes_with_them(folder: Path) -> None:
    before = weights_hash(folder)
    assert weights_hash(folder) == before
    one_file(folder)
    assert weights_hash(folder) != before


def test_an_index_may_have_no_metadata(folder: Path) -> None:
    change_index(folder, lambda values: values.update(metadata=None))
    assert load_folder(folder).family == "qwen3"


def test_other_formats_of_errors_derive_from_one(folder: Path) -> None:
    with pytest.raises(DaguerreError, match="did you mean"):
        load_folder(folder, family="qwen33")


MEASURE = """
import gc, sys, torch
from daguerre.models.loading import load_folder
def now(key):
    with open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith(key)).split()[1]) << 10
torch.set_num_threads(1)
load_folder(sys.argv[2])  # what is imported and allocated once
before = now("VmRSS")
for dtype in (torch.bfloat16, torch.float32):  # the higher peak comes last
    loaded = load_folder(sys.argv[1], dtype)
    peak = now("VmHWM")
    weights = sum(weight.nbytes for weight in loaded.backbone.parameters())
    del loaded
    gc.collect()
    print(peak - before - weights, weights)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_loading_needs_little_more_memory_than_the_weights(folder: Path, tmp_path: Path) -> None:
    """Peak resident memory beyond the loaded weights is at most 1.15 times the largest of several shards, of 380 MB."""
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8, "vocab_size": 32_000}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **LLAMA, **sizes}
    large = tmp_path / "large"
    large.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, large)
    (large / "config.json").write_text(json.dumps(config))
    tensors = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in _shapes(1024, 4096, 8, 32_000).items()}
    total = sum(tensor.nbytes for tensor in tensors.values())
    assert total > 350e6
    write_tensors(large, tensors, 4)
    del tensors
    largest = max(path.stat().st_size for path in large.glob("*.safetensors"))
    command = [sys.executable, "-c", MEASURE, str(large), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    for line, factor in zip(done.stdout.splitlines(), (1, 2), strict=True):
        beyond, weights = map(int, line.split())
        assert weights == factor * total
        assert beyond <= 1.15 * largest, f"{beyond / largest:.2f} of the largest shard, {largest / 1e6:.0f} MB"


def _shapes(width: int, inner: int, layers: int, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors of a Llama with 4 heads, of which 2 are of keys."""
    out: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, width),
        "lm_head.weight": (vocabulary, width),
        "model.norm.weight": (width,),
    }
    for layer in range(layers):
        each = {
            "self_attn.q_proj": (width, width),
            "self_attn.k_proj": (width // 2, width),
            "self_attn.v_proj": (width // 2, width),
            "self_attn.o_proj": (width, width),
            "mlp.gate_proj": (inner, width),
            "mlp.up_proj": (inner, width),
            "mlp.down_proj": (width, inner),
            "input_layernorm": (width,),
            "post_attention_layernorm": (width,),
        }
        out |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in each.items()}
    return out
