"""Folders that are no model, or another one: what each command says of them, in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import daguerre

BERT = {"architectures": ["BertForMaskedLM"], "model_type": "bert"}


def folder(path: Path, files: dict[str, str]) -> Path:
    path.mkdir()
    for name, text in files.items():
        (path / name).write_text(text)
    return path


FOLDERS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "another kind": (
        {"config.json": json.dumps(BERT), "model.safetensors": ""},
        ("BertForMaskedLM", "'bert'", "not supported"),
    ),
    "an adapter": ({"adapter_config.json": '{"base_model_name_or_path": "org/base"}'}, ("LoRA adapter", "org/base")),
    "a tokenizer": ({"tokenizer.json": "{}"}, ("config.json",)),
    "a program": ({"main.py": "print(1)\n"}, ("config.json", "model.safetensors")),
    "a broken config": ({"config.json": "{"}, ("config.json",)),
}
"""Files of a folder, and words of what is said of it."""


def test_a_folder_that_cannot_be_loaded_is_named(subtests: pytest.Subtests, tmp_path: Path) -> None:
    for name, (files, words) in FOLDERS.items():
        made = folder(tmp_path / name, files)
        for command in (("generate", "x", "-m"), ("inspect",)):
            with subtests.test(name, command=command[0]):
                ran = daguerre(*command, made)

                assert (ran.returncode, ran.stdout) == (2, "")
                assert len(ran.stderr.splitlines()) == 1
                assert all(word in ran.stderr for word in words)


@pytest.mark.parametrize(("name", "words"), [("m.gguf", "is truncated"), ("m.txt", "give its folder")])
def test_a_file_is_no_folder(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"GGUF" if name == "m.gguf" else b"text")
    ran = daguerre("inspect", tmp_path / name)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert words in ran.stderr
