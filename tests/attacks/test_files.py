"""Damaged files of tokenizers: each is refused, with the name of what is damaged, and ends no process.

A child process reads them (`reading.py`). What the library in Rust would do to the process itself is stood in for by a
process that aborts.
"""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import made_tokenizers as mt
from attacks.child import Child
from daguerre.commands.serving import Computing, make_pool
from daguerre.errors import CheckpointError
from daguerre.models import tokenizer_trial
from daguerre.models.tokenizer_trial import try_tokenizer
from daguerre.server.models import CannotLoad
from fuzz.mutate import mutant

Json = dict[str, Any]
NUM_DAMAGED = 400


@pytest.fixture(scope="module")
def reader() -> Iterator[Child]:
    made = Child("reading.py")
    yield made
    made.close()


def byte_level() -> Json:
    """A small tokenizer of bytes."""
    values = mt.trained(size=300)
    return {**values, "added_tokens": mt.entries(300)}


def marked() -> Json:
    """One with marks for spaces, and tokens of single bytes."""
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *("▁", "a", "b", "é", "▁a", "ab", "aé", "▁aé")]
    around = {"single": [{"SpecialToken": {"id": "<unk>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]}
    special = {"<unk>": {"id": "<unk>", "ids": [0], "tokens": ["<unk>"]}}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    decoders = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, strip]
    return {
        "version": "1.0",
        "added_tokens": [{**mt.entries(0)[0], "content": "<unk>"}],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": None,
        "post_processor": {"type": "TemplateProcessing", **around, "pair": [], "special_tokens": special},
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE", "unk_token": "<unk>", "byte_fallback": True, "fuse_unk": True,
            "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [["▁", "a"], ["a", "b"], ["a", "é"], ["▁", "aé"]],
        },
    }  # fmt: skip


def scored() -> Json:
    """One whose tokens have scores."""
    meta = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    vocab = [["<unk>", 0.0], ["▁", -2.0], ["a", -3.0], ["ab", -3.5], ["é", -4.0], ["▁a", -2.5]]
    model = {"type": "Unigram", "unk_id": 0, "byte_fallback": False, "vocab": vocab}
    return {**marked(), "normalizer": None, "pre_tokenizer": meta, "decoder": meta, "model": model}


def word_pieces() -> Json:
    """One of words and their pieces."""
    vocab = {token: index for index, token in enumerate(["[UNK]", "[CLS]", "[SEP]", "a", "##b", "é", "##é"])}
    return {
        **marked(),
        "added_tokens": [],
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "vocab": vocab}
        | {"max_input_chars_per_word": 100},
    }


def changed(values: Json, place: str, value: Any) -> Json:
    """Values with another one at a place."""
    out = at = copy.deepcopy(values)
    *way, last = place.split(".")
    for key in way:
        at = at[key]
    at[last] = value
    return out


def precompiled(table: str) -> Json:
    return {"type": "Precompiled", "precompiled_charsmap": table}


TEMPLATE = marked()["post_processor"]
OTHER_TEXT = {**TEMPLATE, "single": [{"Sequence": {"id": "B", "type_id": 0}}]}
IN_BYTES = {
    **{f"prefix {text!r}": ("model.continuing_subword_prefix", text, "continuing_subword_prefix")
       for text in ("x", "##", "é", "Ġ")},
    **{f"the id {index}": ("model.vocab.zz", index, "model.vocab") for index in (-1, 2**32, 1.5, "1")},
    "an id that no vocabulary has": ("model.vocab.zz", 2**31, "2147483648"),
}  # fmt: skip
"""What is changed in a tokenizer of bytes: where, to what, and what the error names."""
IN_MARKED = {
    **{f"prefix {text!r}": ("model.continuing_subword_prefix", text, "continuing_subword_prefix") for text in "xa"},
    **{f"table {table!r}": ("normalizer", precompiled(table), "precompiled_charsmap")
       for table in ("", "AAAA", "/////wAA", "BQAAAAAAAAAAAA==", "no base64", "AAAAAAAAAAA=")},
    "a table within a sequence": (
        "normalizer", {"type": "Sequence", "normalizers": [precompiled("/////wAA")]}, "precompiled_charsmap"
    ),
    "pieces of no length": ("pre_tokenizer", {"type": "FixedLength", "length": 0}, "FixedLength.length"),
    "more taken off than there is": ("decoder", {"type": "Strip", "content": "a", "start": 0, "stop": 9}, "Strip.stop"),
    "another text's place": ("post_processor", OTHER_TEXT, "TemplateProcessing.single"),
    "a special token that is none": ("post_processor", {**TEMPLATE, "special_tokens": {}}, "special_tokens"),
    "an added token far away": ("added_tokens", [mt.entries(10**7)[0]], "10000000"),
    "no model": ("model", None, "model"),
}  # fmt: skip


def test_a_damaged_field_is_refused_by_its_name(reader: Child, subtests: pytest.Subtests) -> None:
    for whole, changes in ((byte_level(), IN_BYTES), (marked(), IN_MARKED)):
        for name, (place, value, field) in changes.items():
            with subtests.test(name):
                error = reader.ask(content=json.dumps(changed(whole, place, value)))["error"]
                assert error is not None and error.startswith("DataError") and field in error
    for values in (byte_level(), marked(), scored(), word_pieces()):
        assert reader.ask(content=json.dumps(values))["error"] is None


def test_of_two_values_of_one_key_none_is_taken(reader: Child) -> None:
    """The library takes the one that is not null, and Python the last."""
    whole = json.dumps(byte_level())
    twice = whole.replace('"model": {', '"model": {"continuing_subword_prefix": "x", ', 1)
    assert twice != whole
    assert "continuing_subword_prefix" in reader.ask(content=twice)["error"]


def test_whatever_is_damaged_no_process_ends(reader: Child, subtests: pytest.Subtests) -> None:
    """Hundreds of random damages; each is read or refused."""
    seeds = [json.dumps(one, ensure_ascii=False).encode() for one in (byte_level(), marked(), scored(), word_pieces())]
    outcomes = set[bool]()
    for number in range(NUM_DAMAGED):
        damaged = mutant(seeds[number % len(seeds)], seeds, random.Random(number)).decode("utf-8", "replace")
        with subtests.test(number=number):
            outcomes.add(reader.ask(content=damaged)["error"] is None)
    assert outcomes == {True, False}


@pytest.fixture
def aborting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a model; processes that read its tokenizer abort as long as there is a file "aborts" in it."""
    model, code = tmp_path / "model", tmp_path / "code"
    for folder in (model, code):
        folder.mkdir()
    (model / "tokenizer.json").write_text(json.dumps(byte_level()))
    (model / "aborts").touch()
    lines = ["import os, tokenizers", f"if os.path.exists({str(model / 'aborts')!r}):"]
    lines += ["    tokenizers.Tokenizer = type('Tokenizer', (), {'from_str': lambda *_: os.abort()})"]
    (code / "sitecustomize.py").write_text("\n".join(lines))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(code), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("DAGUERRE_CACHE", str(tmp_path / "cache"))
    return model


def test_a_tokenizer_that_ends_its_process_is_refused_and_the_server_lives(aborting: Path) -> None:
    pool = make_pool([f"bad={aborting}"], Computing(), None)
    with pytest.raises(CannotLoad, match="the server's log says why") as caught:
        pool.get("bad")
    assert "SIGABRT" in str(caught.value.__cause__)
    with pytest.raises(CheckpointError, match="SIGABRT"):
        try_tokenizer(aborting)


def test_what_was_read_once_is_not_tried_again(aborting: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (aborting / "aborts").unlink()
    try_tokenizer(aborting)
    monkeypatch.setattr(tokenizer_trial, "subprocess", None)
    try_tokenizer(aborting)
    (aborting / "tokenizer.json").write_text("{}")
    with pytest.raises(AttributeError):
        try_tokenizer(aborting)
