"""A published model is written back as its publisher wrote it, whatever its family, with nothing lost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from daguerre.errors import UnsupportedError
from daguerre.models.families import FAMILIES
from daguerre.models.gguf.writing import write_gguf
from daguerre.models.loading import load_folder
from daguerre.models.readers import FAMILY_KEY, read_tokenizer
from daguerre.models.republish import keep_origin, write_back
from daguerre.models.shards import find_tensors
from oracles import steerling
from published import CASES, made

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def test_a_model_that_is_written_back_is_the_same_model(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Under another name of its folder, with its family, config, tensors, tokenizer and defaults of generation."""
    pytest.importorskip("transformers")
    for number, name in enumerate(CASES):
        with subtests.test(name):
            (parent := tmp_path / str(number)).mkdir()
            source = CASES[name].write(parent / "published", made(name))
            (source / "chat_template.jinja").write_text(TEMPLATE)
            (source / "modeling.py").write_text("raise SystemExit")
            for folder, beside in (("adapter", "adapter_config.json"), ("original", "params.json")):
                (source / folder).mkdir()
                (source / folder / beside).write_text("{}")
                (source / folder / "weights.safetensors").write_bytes(b"large")
            before = load_folder(source)
            keep_origin(source, parent / "origin")
            kept = [path.parent.name for path in (parent / "origin").rglob("*.safetensors*")]
            assert kept == ["adapter"]
            assert (parent / "origin" / "original" / "params.json").is_file()
            folder = write_back(parent / "origin", parent / "other", before.backbone)
            after = load_folder(folder)
            assert (after.family, after.decode) == (before.family, before.decode)
            assert after.backbone.config == before.backbone.config
            ours, theirs = before.backbone.state_dict(), after.backbone.state_dict()
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[key], theirs[key]) for key in ours)
            assert after.tokenizer == before.tokenizer
            assert read_tokenizer(folder).chat_template.sources == {"default": TEMPLATE}  # type: ignore[union-attr]
            assert (folder / "modeling.py").read_text() == "raise SystemExit"
            wrote, read = find_tensors(folder), find_tensors(source)
            assert {key: (t.shape, t.kind) for key, t in wrote.items()} == {
                key: (t.shape, t.kind) for key, t in read.items()
            }
            values = json.loads((source / "config.json").read_text())
            written = json.loads((folder / "config.json").read_text())
            assert {key: value for key, value in written.items() if key in values} == values
            assert set(written) - set(values) <= {FAMILY_KEY, "block_size", "bd_size"}


def test_blocks_and_ends_may_change_and_weights_may_be_in_several_files(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    source = CASES["sdar, named blocks"].write(tmp_path / "published", made("sdar, named blocks"))
    loaded = load_folder(source)
    keep_origin(source, tmp_path / "origin")
    assert json.loads((tmp_path / "origin" / "config.json").read_text())["block_size"] == 16  # which the name said
    config = loaded.backbone.config
    assert config.block_size == 16
    loaded.backbone.config = replace(config, block_size=32, end_ids=(*config.end_ids, 7, 8))
    write_back(tmp_path / "origin", tmp_path / "other", loaded.backbone)
    folder = write_back(tmp_path / "origin", tmp_path / "other", loaded.backbone, shard_bytes=20_000)
    assert not (folder / "model.safetensors").exists()
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    after = load_folder(folder).backbone
    assert after.config.block_size == 32
    assert {7, 8} <= set(after.config.ends)
    assert all(
        torch.equal(a, b)
        for a, b in zip(after.state_dict().values(), loaded.backbone.state_dict().values(), strict=True)
    )


def test_steerling_keeps_its_context_which_its_config_calls_a_block(tmp_path: Path) -> None:
    source = steerling.write(tmp_path / "published", steerling.FLAT)
    before = load_folder(source)
    keep_origin(source, tmp_path / "origin")
    after = load_folder(write_back(tmp_path / "origin", tmp_path / "other", before.backbone))
    assert after.backbone.config == before.backbone.config
    assert (after.backbone.config.max_positions, after.backbone.config.block_size) == (256, 8)


def test_what_was_changed_when_it_was_read_and_cannot_be_undone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    source = CASES["gpt2"].write(tmp_path / "published", made("gpt2"))
    loaded = load_folder(source)
    keep_origin(source, tmp_path / "origin")
    entry: Any = FAMILIES["gpt2"]

    def halved(config: Any) -> Any:
        return [replace(p, change=None if p.change is None else lambda x: x.t() / 2) for p in entry.pieces(config)]

    monkeypatch.setitem(FAMILIES, "gpt2", replace(entry, pieces=halved))
    with pytest.raises(UnsupportedError, match="cannot be written back"):
        write_back(tmp_path / "origin", tmp_path / "other", loaded.backbone)
    assert not (tmp_path / "other" / "config.json").exists()


def test_the_model_of_a_gguf_file_is_written_as_a_folder_of_its_family(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    for name in ("qwen2", "llama"):
        (parent := tmp_path / name).mkdir()
        loaded = load_folder(CASES[name].write(parent, made(name)))
        write_gguf(loaded.backbone, loaded.tokenizer, file := parent / "a.gguf", "f32", loaded.family)
        given = load_folder(file)
        keep_origin(file, parent / "origin")
        again = load_folder(write_back(parent / "origin", parent / "again", given.backbone))
        assert again.backbone.config == given.backbone.config and again.family == given.family
        assert again.tokenizer.encode("a b") == given.tokenizer.encode("a b")
        for key, weight in again.backbone.state_dict().items():
            assert torch.allclose(weight, given.backbone.state_dict()[key], atol=1e-2), key
