"""Folders of published checkpoints: which files hold the tokenizer, its names and its templates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import made_tokenizers as mt
from daguerre.errors import CheckpointError, DaguerreError, InputError, UnsupportedError
from daguerre.models.published_tokenizer import PublishedTokenizer
from daguerre.models.readers import read_tokenizer
from daguerre.models.tokenizer_files import read_config

TEXT = "def f(self):\n    return '<|mask|>' <tool_call> 1234 e\u0301"


def write(folder: Path, **files: Any) -> Path:
    """Files by name, with "__" for a dot; what is neither text nor bytes is written as JSON."""
    for name, content in files.items():
        raw = content if isinstance(content, bytes) else content.encode() if isinstance(content, str) else None
        path = folder / name.replace("__", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(json.dumps(content).encode() if raw is None else raw)
    return folder


def read(folder: Path, *args: Any, **options: Any) -> PublishedTokenizer:
    tokenizer = read_tokenizer(folder, *args, **options)
    assert tokenizer is not None
    return tokenizer


def vocabulary_files(pattern: str = mt.QWEN2) -> dict[str, Any]:
    model = mt.trained(pattern)["model"]
    merges = "#version: 0.2\n" + "\n".join(" ".join(pair) for pair in model["merges"]) + "\n"
    return {"vocab__json": model["vocab"], "merges__txt": merges}


def test_a_folder_without_a_tokenizer_has_none(tmp_path: Path) -> None:
    assert read_tokenizer(write(tmp_path, tokenizer_config__json=mt.config())) is None


def test_a_tokenizer_json_is_read_with_its_configuration(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for kind in ["byte_level", "qwen2", "llama2"]:
        with subtests.test(kind):
            made = mt.made(kind)
            write(
                tmp_path, tokenizer__json=made.to_bytes(), tokenizer_config__json=made.config, tekken__json=mt.tekken()
            )
            tokenizer = read(tmp_path, made.vocab_size + 7)
            assert tokenizer == made.sized(made.vocab_size + 7)
            assert tokenizer.encode(TEXT) == made.encode(TEXT)


def test_a_vocabulary_and_merges_are_read_with_added_tokens_of_an_older_file(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for name in ["DreamTokenizer", "Qwen2Tokenizer", "Qwen2TokenizerFast"]:
        with subtests.test(name):
            made = mt.made("vocab_and_merges")
            write(
                tmp_path,
                **vocabulary_files(),
                added_tokens__json=made.added,
                special_tokens_map__json={
                    "eos_token": {"content": "<|end|>"},
                    "additional_special_tokens": ["<|begin|>"],
                },
                tokenizer_config__json={"tokenizer_class": name, "mask_token": "<|mask|>", "pad_token": "<|pad|>"},
            )
            tokenizer = read(tmp_path)
            assert tokenizer.encode(TEXT) == made.encode(TEXT)
            assert (tokenizer.eos_id, tokenizer.mask_id, tokenizer.bos_id) == (made.eos_id, made.mask_id, None)
            assert tokenizer.special_ids == made.special_ids
            assert tokenizer.token_bytes(made.added["<tool_call>"]) == b"<tool_call>"


def test_a_vocabulary_without_a_class_is_split_as_gpt2_does(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    files = vocabulary_files(mt.CL100K)
    model = mt.trained(mt.CL100K)["model"]
    theirs = transformers.GPT2Tokenizer(model["vocab"], [tuple(pair) for pair in model["merges"]])
    config = {"bos_token": "self", "add_bos_token": True}
    tokenizer = read(write(tmp_path, **files, tokenizer_config__json=config))
    for text in ("I'll say 1234 'twas\n\n\n  x = 1  ", "e\u0301 naïve 日本"):
        assert tokenizer.encode(text) == theirs.encode(text)
    assert tokenizer.bos_id == model["vocab"]["self"]


def test_another_class_with_a_vocabulary_is_refused(tmp_path: Path) -> None:
    write(tmp_path, **vocabulary_files(), tokenizer_config__json={"tokenizer_class": "RobertaTokenizer"})
    with pytest.raises(InputError, match=r"unknown class of tokenizers .*'RobertaTokenizer'"):
        read_tokenizer(tmp_path)


def test_a_tiktoken_file_is_read_with_special_tokens_that_no_file_names(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for number, name in enumerate(["any__tiktoken", "tiktoken__model", "tokenizer__model"]):
        with subtests.test(name):
            (folder := tmp_path / str(number)).mkdir()
            write(folder, **{name: mt.tiktoken_lines()})
            tokenizer = read(folder, specials={"<|mask|>": mt.SIZE + 9})
            assert tokenizer.added == {"<|mask|>": mt.SIZE + 9}
            assert tokenizer.encode("a<|mask|>") == [*tokenizer.encode("a"), mt.SIZE + 9]
            assert tokenizer.encode("12345") == mt.made("tiktoken").encode("12345")
            write(folder, tokenizer_config__json={"pat_str": mt.QWEN2})
            assert len(read(folder).encode("12345")) == 5


def test_a_tekken_file_names_its_own_special_tokens(tmp_path: Path) -> None:
    tokenizer = read(write(tmp_path, tekken__json=mt.tekken()))
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id, tokenizer.mask_id) == (1, 2, 3, None)
    write(tmp_path, tokenizer_config__json={"eos_token": "[INST]", "mask_token": "<SPECIAL_30>"})
    tokenizer = read(tmp_path)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.mask_id) == (1, 8, 30)


def test_a_sentencepiece_model_is_refused_with_what_to_do(tmp_path: Path) -> None:
    write(tmp_path, tokenizer__model=b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02")
    with pytest.raises(UnsupportedError, match=r"SentencePiece model.* save it as tokenizer\.json"):
        read_tokenizer(tmp_path)


def test_templates_in_files_of_their_own_come_first(tmp_path: Path) -> None:
    config = mt.config(chat_template="in the configuration")
    write(tmp_path, tokenizer__json=mt.made("byte_level").to_bytes(), tokenizer_config__json=config)
    assert read(tmp_path).chat_template.render([]) == "in the configuration"
    write(tmp_path, chat_template__json={"chat_template": "in an older file"})
    assert read(tmp_path).chat_template.render([]) == "in an older file"
    write(tmp_path, chat_template__jinja="ends with {{ eos_token }}")
    (tmp_path / "additional_chat_templates").mkdir()
    write(tmp_path / "additional_chat_templates", tool_use__jinja="{{ tools|length }} tools")
    template = read(tmp_path).chat_template
    assert template.render([]) == "ends with <|end|>"
    assert template.render([], [{}, {}]) == "2 tools"
    assert template.render([], [{}, {}], name="default") == "ends with <|end|>"


def test_without_a_template_there_is_none() -> None:
    assert mt.made("byte_level").chat_template is None


def test_a_damaged_file_is_refused_in_one_line_with_its_folder(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for number, files in enumerate(
        [
            {"tokenizer__json": "{"},
            {"tokenizer__json": b"\xff\xfe"},
            {"tokenizer__json": "{}", "tokenizer_config__json": "[1]"},
            {"tokenizer__json": "{}", "tokenizer_config__json": "{"},
            {"tekken__json": "{}"},
            {"x__tiktoken": b"nothing"},
            {"vocab__json": "[]", "merges__txt": ""},
            {"vocab__json": {"a": 0}, "merges__txt": "a b\n"},
            {"tokenizer__json": "{}", "special_tokens_map__json": "3"},
        ]
    ):
        with subtests.test(**files):
            (folder := tmp_path / str(number)).mkdir()
            with pytest.raises(CheckpointError, match=r"copy (it|the file) again") as refused:
                read_tokenizer(write(folder, **files))
            assert str(folder) in str(refused.value) and "\n" not in str(refused.value)
            assert isinstance(refused.value, DaguerreError)


def test_what_the_configuration_says_comes_before_older_files(tmp_path: Path) -> None:
    write(tmp_path, special_tokens_map__json={"eos_token": "a", "pad_token": "b"}, added_tokens__json={"c": 5})
    write(tmp_path, tokenizer_config__json={"eos_token": "d", "added_tokens_decoder": {"7": {"content": "e"}}})
    config = read_config(tmp_path)
    assert (config["eos_token"], config["pad_token"]) == ("d", "b")
    assert list(config["added_tokens_decoder"]) == ["7"]


def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for number, name in enumerate(["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"]):
        with subtests.test(name):
            (folder := tmp_path / str(number)).mkdir()
            (folder / name).write_text('{"a":' * 100_000)
            with pytest.raises(CheckpointError, match=f"{name} is nested too deeply"):
                read_tokenizer(folder)
