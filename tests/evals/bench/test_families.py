"""Part "families" of `daguerre bench` at a made tiny shape: its files, what it measures, and what it needs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from daguerre.cli import main
from daguerre.errors import InputError, MissingExtra
from daguerre.evals.bench import families, family_files, run, worker
from daguerre.evals.bench.family_files import SHAPES, Room, checkpoint, gguf_files, num_parameters, weights_of
from daguerre.evals.bench.peers import LlamaCpp
from daguerre.model import load
from daguerre.models.backends.torch_backend import TorchBackend
from daguerre.models.forward import Forward, Layout, Logits


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all files."""
    return tmp_path_factory.mktemp("families")


def quiet(what: str, done: int, total: int) -> None:
    """Progress that nobody watches."""


def test_blocks_commit_two_and_a_half_tokens_a_forward_by_force(parent: Path) -> None:
    model = load(checkpoint("sdar-tiny", parent))
    options = {"mode": "block", "block_size": 8, "policy": families.ForcedCommits(), "min_tokens": 80, "heal": False}
    result = model.generate([*range(300, 308)], 80, **options)
    counts = [len(step.decision) for step in result.trace.steps]

    assert counts == 2 * [3, 3, 2, 3, 3, 2, 3, 3, 2, 3, 3, 2, 2, 2, 2, 2]
    assert (result.usage.forwards, result.usage.completion_tokens) == (32, 80)
    assert result.usage.query_tokens == 8 * 32
    assert result.usage.finalized_tokens == 80 - 8  # each finished block but the last is clean rows of a cache


def test_shapes_with_the_same_tensors_share_their_files(parent: Path) -> None:
    blocks, words = checkpoint("sdar-tiny", parent), checkpoint("qwen3-tiny", parent)
    one, other = (load(folder, dtype="float32", backend="torch") for folder in (blocks, words))

    assert (blocks / "model-00001-of-00001.safetensors").samefile(words / "model-00001-of-00001.safetensors")
    assert (one.config.context, one.config.block_size, one.config.shift) == ("block", 8, False)
    assert one.config.mask_id == SHAPES["sdar-tiny"].vocabulary - 267
    assert other.config.context == "causal"
    assert num_parameters("qwen3-tiny") == one.num_parameters == other.num_parameters
    weights = [model.backbone.embedding.weight.numpy() for model in (one, other)]
    assert np.array_equal(*weights)


def test_published_shapes_are_as_large_as_they_say() -> None:
    assert {name: num_parameters(name) for name in family_files.PUBLISHED} == {
        "qwen3-0.6b": 596_049_920, "qwen3-1.7b": 1_720_574_976, "sdar-1.7b": 1_720_574_976,
        "llada-8b-2-layers": 1_472_221_184, "llada-8b-6-layers": 2_344_669_184,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["qwen3-tiny", "sdar-tiny"])
def test_a_shape_is_measured(name: str, parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "MIN_SECONDS", 0)
    monkeypatch.setattr(families, "READ", 1 << 20)
    found = families.measure({"shapes": [name], "weights": ["int8"], "folder": str(parent), "rounds": 2}, quiet)

    one = found["shapes"][name]["weights"]["int8"]
    assert one["forwards"] == (80 if name == "qwen3-tiny" else 32)
    ours = {"reading", "text", *(f"rows {rows}" for rows in families.ROWS)}
    theirs = set() if one["failed"] else {"llama.cpp text", "llama.cpp rows 1"}
    assert set(one["seconds"]) == ours | theirs
    assert all(len(took) == 2 and min(took) > 0 for took in one["seconds"].values())


def test_llama_cpp_has_the_same_model(parent: Path) -> None:
    pytest.importorskip("llama_cpp")
    pytest.importorskip("gguf")
    model, prompt = load(checkpoint("qwen3-tiny", parent), dtype="float32", backend="torch"), [*range(300, 316)]
    engine = LlamaCpp(gguf_files("sdar-tiny", ["BF16"], parent)["BF16"], 1, 64)
    steps = engine.generate(prompt)
    written = [next(steps) for _ in range(8)]
    engine.close()

    ours = model.generate(prompt, 8, mode="ar", min_tokens=8, heal=False)
    assert written[:4] == [token.id for token in ours.tokens][:4]


def test_files_are_written_once_and_what_they_are_made_of_is_not_kept(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    pytest.importorskip("gguf")
    first = gguf_files("qwen3-tiny", ["Q8_0", "Q4_0"], tmp_path)
    written = {path: path.stat().st_mtime_ns for path in first.values()}

    assert gguf_files("sdar-tiny", ["Q4_0", "Q8_0"], tmp_path) == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.gguf")} == written
    gguf_files("qwen3-tiny", ["BF16"], tmp_path)
    gguf_files("qwen3-tiny", ["Q8_0"], tmp_path)
    assert (tmp_path / "qwen3-tiny-BF16.gguf").exists()


def test_llama_cpp_computes_the_same_canvas(parent: Path) -> None:
    pytest.importorskip("llama_cpp")
    pytest.importorskip("gguf")
    model = load(checkpoint("llada-1-tiny", parent), dtype="float32", backend="torch")
    tokens = np.array([*range(300, 308), *[model.config.placeholder] * 8])
    rows = np.arange(16)
    layout = Layout(rows, np.full(16, 16, dtype=np.int32), 0)
    (ours,) = TorchBackend(model.backbone).forward([Forward(tokens, layout, None, rows.astype(np.int32), Logits())])
    engine = LlamaCpp(gguf_files("llada-1-tiny", ["BF16"], parent)["BF16"], 1, 32)
    step = engine.whole_canvas(tokens.tolist())
    for _ in range(2):  # a step leaves nothing to the next
        step()
        for row in (0, 15):
            assert ours.logits is not None
            known = np.isfinite(ours.logits[row])
            theirs = engine.canvas_logits(row, model.config.vocab_size)
            assert np.abs(theirs - ours.logits[row])[known].max() < 0.05 * np.abs(ours.logits[row][known]).max()
    engine.close()


def test_a_shape_with_full_context_is_measured(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "READ", 1 << 20)
    options = {"shapes": ["llada-1-tiny"], "weights": ["approximate_int4"], "folder": str(parent), "rounds": 1}
    shape = families.measure(options, quiet)["shapes"]["llada-1-tiny"]
    one = shape["weights"]["approximate_int4"]

    assert (shape["layers"], shape["deep"], one["forwards"], one["rows"]) == (1, 5, 16, 16 * 128)
    assert {"text", "approximate_prefix text", "approximate_dual text"} <= set(one["seconds"])
    assert one["failed"] or "llama.cpp canvas" in one["seconds"]


def test_without_llama_cpp_daguerre_is_measured_alone(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise MissingExtra("llama-cpp-python", "bench")

    monkeypatch.setattr(families, "MIN_SECONDS", 0)
    monkeypatch.setattr(families, "READ", 1 << 20)
    monkeypatch.setattr(family_files, "llama_api", missing)
    options = {"shapes": ["qwen3-tiny"], "weights": ["int8"], "folder": str(parent), "rounds": 1}
    one = families.measure(options, quiet)["shapes"]["qwen3-tiny"]["weights"]["int8"]

    assert "llama-cpp-python" in one["failed"]
    assert not any("llama" in name for name in one["seconds"])


def test_what_it_needs_is_known_before_it_starts(tmp_path: Path, parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    num = num_parameters("qwen3-1.7b")
    room = Room.of(["qwen3-1.7b", "sdar-1.7b"], ["int8"], tmp_path / "new")
    assert room.disk == int(num * (2 + 34 / 32))
    assert room.spare == 2 * num
    assert room.memory == int(num * 34 / 32 * 2) + family_files.SPARE
    checkpoint("qwen3-tiny", parent)
    assert Room.of(["qwen3-tiny"], ["int8"], parent).disk < 2 * num_parameters("qwen3-tiny")

    shapes = ("qwen3-0.6b", "qwen3-1.7b")
    options = run.BenchOptions(folder=str(tmp_path / "new"), shapes=shapes, weights=("int8",), threads=(1,))
    assert "7.1 GB of files are written to" in run.needs(options)
    assert "and 3.4 GB for a while; 4.7 GB of memory" in run.needs(options)
    monkeypatch.setattr(family_files, "free_memory", lambda: 1 << 30)
    with pytest.raises(InputError, match=r"1\.1 GB of memory are free, and .* are needed"):
        run.bench(["families"], options)
    assert not (tmp_path / "new").exists()


def test_few_layers_are_measured_in_four_bits_alone() -> None:
    assert weights_of("llada-8b-2-layers", ["int8", "approximate_int4"]) == ["approximate_int4"]
    assert weights_of("llada-8b-2-layers", ["int8"]) == ["int8"]
    assert weights_of("qwen3-0.6b", ["int8", "approximate_int4"]) == ["int8", "approximate_int4"]


def test_unknown_shapes_and_types_are_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'sdar-1"):
        run.BenchOptions(shapes=("sdar-1.8b",))
    with pytest.raises(InputError, match="unknown type of weights"):
        run.BenchOptions(weights=("int5",))


def test_families_are_measured_only_where_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in run.PARTS:
        monkeypatch.setitem(run.PARTS, name, lambda options, threads, progress: {})
    monkeypatch.setattr(run, "busy_share", lambda: 0.0)

    assert "families" not in run.bench(options=run.BenchOptions(threads=(1,)))


def test_the_command_writes_a_table_and_figures(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(families, "MIN_SECONDS", 0)
    monkeypatch.setattr(families, "READ", 1 << 20)
    monkeypatch.setattr(run, "busy_share", lambda: 0.0)
    monkeypatch.setattr(run, "in_worker", lambda task, threads, progress: families.measure(task["options"], progress))
    out = tmp_path / "families.json"
    options = ("--shape", "sdar-tiny", "--weights", "int8", "--threads", "1", "--rounds", "1", "--folder", str(parent))
    monkeypatch.setattr(sys, "argv", ["daguerre", "bench", "--what", "families", *options, "--out", str(out)])
    with pytest.raises(SystemExit) as stopped:
        main()

    assert not stopped.value.code
    said = capsys.readouterr()
    assert "of memory are needed" in said.err
    assert "| sdar-tiny | 1 | int8 |" in said.out
    assert out.with_suffix(".md").read_text() in said.out
    assert str(parent) not in out.read_text()
    assert json.loads(out.read_text())["families"]["threads"]["1"]["shapes"]["sdar-tiny"]["block"] == 8
    assert out.with_suffix(".png").exists() or "matplotlib" in said.err
    assert "families" in worker.TASKS
