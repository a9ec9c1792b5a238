"""GGUF files that lie: every number of the header, every value of the metadata, every place where a file may be cut.
Each is an error of ours in one line, before any weight is allocated.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daguerre.errors import CheckpointError, UnsupportedError
from daguerre.models import published
from daguerre.models.gguf.header import read_header
from daguerre.models.gguf.writing import write_gguf
from daguerre.models.loading import load_folder
from daguerre.models.texts import Texts
from hostile import returns_within
from models.test_hostile_folders import SECONDS, wrong
from published import CASES

gguf = pytest.importorskip("gguf")
NUMBERS = {"I": (0, 1, 2, 5, 31, 2**31 - 1, 2**31, 2**32 - 1), "Q": (0, 1, 7, 2**31, 2**53, 2**62, 2**63, 2**64 - 1)}
FLOATS = (0.0, -1.0, float("nan"), float("inf"), 1e38)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    loaded = load_folder(CASES["llada"].write(folder))
    write_gguf(loaded.backbone, loaded.tokenizer, folder / "whole.gguf", "q8_0", loaded.family)
    assert load_folder(folder / "whole.gguf").backbone
    return folder / "whole.gguf"


@pytest.fixture
def nothing_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("weights were allocated")

    monkeypatch.setattr(published, "FileWeights", never)


def places(path: Path) -> dict[str, tuple[int, str]]:
    """Where the numbers of a file's header are, and their type, as the package `gguf` finds them."""
    reader = gguf.GGUFReader(path)
    found = {"version": (4, "I"), "tensors": (8, "Q"), "keys": (16, "Q")}
    for name, field in reader.fields.items():
        if name.startswith("GGUF."):
            continue
        at = int(field.offset)
        found[f"{name}: length"] = (at, "Q")
        at += sum(int(part.nbytes) for part in field.parts[:2])
        found[f"{name}: type"] = (at, "I")
        kind = {4: "I", 5: "I", 6: "f", 8: "Q"}.get(int(field.types[0]))
        if kind is not None:
            found[name] = (at + 4, kind)
        if int(field.types[0]) == 9:
            found[f"{name}: items"], found[f"{name}: number"] = (at + 4, "I"), (at + 8, "Q")
    for tensor in reader.tensors:
        at = int(tensor.field.offset)
        for part, what in zip(tensor.field.parts, ("length", "", "dimensions", "shape", "type", "offset"), strict=True):
            kinds = {"dimensions": "I", "type": "I"}
            if what:
                found[f"{tensor.name}: {what}"] = (at, kinds.get(what, "Q"))
            at += int(part.nbytes)
    return found


def changed(content: bytes, at: int, kind: str, value: Any) -> bytes:
    written = struct.pack(f"<{kind}", value)
    return content[:at] + written + content[at + len(written) :]


def lies(path: Path) -> Iterator[tuple[str, bytes]]:
    content = path.read_bytes()
    for name, (at, kind) in places(path).items():
        for value in FLOATS if kind == "f" else NUMBERS[kind]:
            yield f"{name}={value}", changed(content, at, kind, value)


def test_no_number_of_a_header_does_more_than_an_error(whole: Path, tmp_path: Path) -> None:
    every = random.Random(0).sample([*lies(whole)], 400)
    found, path = list[str](), tmp_path / "m.gguf"
    for what, content in every:
        path.write_bytes(content)
        found += wrong(lambda: load_folder(path), what)
    assert not found


@pytest.mark.usefixtures("nothing_is_allocated")
def test_a_file_that_is_cut_anywhere_is_truncated(whole: Path, tmp_path: Path) -> None:
    content, path = whole.read_bytes(), tmp_path / "m.gguf"
    start = min(entry.offset for entry in read_header(whole).entries.values())
    cuts = [*random.Random(0).sample(range(5, start), 60), start, start + 1, len(content) // 2, len(content) - 40]
    for cut in cuts:
        path.write_bytes(content[:cut])
        with pytest.raises(CheckpointError, match=r"truncated|more than it could hold"), returns_within(SECONDS):
            load_folder(path)


def test_no_changed_byte_does_more_than_an_error(whole: Path, tmp_path: Path) -> None:
    content, path, draw = whole.read_bytes(), tmp_path / "m.gguf", random.Random(0)
    start, found = min(entry.offset for entry in read_header(whole).entries.values()), list[str]()
    for _ in range(240):
        new = bytearray(content)
        for at in draw.sample(range(start), draw.randint(1, 4)):
            new[at] = draw.randrange(256)
        path.write_bytes(new)
        found += wrong(lambda: load_folder(path), path)
    assert not found


def rewritten(path: Path, values: dict[str, Any]) -> Path:
    """A file whose metadata has other values."""
    header, out = read_header(path), path.with_name("rewritten.gguf")
    writer = gguf.GGUFWriter(out, "")  # the architecture is among the values
    for name, held in (dict(header.metadata) | values).items():
        held = held.tolist() if isinstance(held, np.ndarray | Texts) else held
        if held != []:
            writer.add_key_value(name, held, gguf.GGUFValueType.get_type(held))
    for tensor in gguf.GGUFReader(path).tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


OTHERS = ("split.count", "llada.rope.scaling.type", "llada.logit_scale", "tokenizer.chat_templates", "daguerre.family")
"""Keys that the file has not, beside those that it has."""
VALUES = ([1, 2], ["a", "b"], [0.5], [True], "x", "", -1, 0, 1, 10**6, True, 1.5, float("nan"))


def test_no_value_of_the_metadata_does_more_than_an_error(whole: Path) -> None:
    found = list[str]()
    assert load_folder(rewritten(whole, {"general.name": "x"})).family == "llada"
    every = [(key, value) for key in [*read_header(whole).metadata, *OTHERS] for value in VALUES]
    for key, value in random.Random(0).sample(every, 120):
        found += wrong(lambda: load_folder(rewritten(whole, {key: value})), (key, value))  # noqa: B023
    assert not found


NAMED: list[tuple[str, Any, str]] = [
    ("version", 9, "is GGUF version 9"),
    ("tensors", 2**62, "says that it has 4,611,686,018,427,387,904 tensors, more than it could hold"),
    ("tensors", 1, "says 2 layers .* has 1 tensors in all"),
    ("keys", 2**40, "says that it has 1,099,511,627,776 keys"),
    ("keys", 2**16, "keys, more than it could hold|truncated|twice|type"),
    ("general.architecture: length", 2**50, "more than it could hold"),
    ("general.architecture: type", 77, "unknown type 77"),
    ("llada.block_count", 10**9, "llada.block_count must be a whole number from 1 to 4,096, not 1000000000"),
    ("llada.block_count", 0, "llada.block_count must be a whole number"),
    ("llada.block_count", 4000, "says 4,000 layers"),
    ("llada.block_count", 1, "not expected: blk.1.attn_"),
    ("llada.block_count", 3, "missing: blk.2.attn_"),
    ("llada.embedding_length", 64, r"token_embd.weight is \(320, 32\) and llada.embedding_length 64"),
    ("llada.feed_forward_length", 2**30, "mlp_width must be a whole number"),
    ("llada.feed_forward_length", 64, "of another shape: blk.0.ffn_gate.weight"),
    ("llada.attention.head_count", 5, "cannot be read as llada|not 8, the width of a head|of another width"),
    ("llada.attention.head_count_kv", 3, "4 heads must divide by 3"),
    ("llada.attention.key_length", 16, "is not 16, the width of a head"),
    (
        "llada.attention.layer_norm_rms_epsilon",
        float("nan"),
        "_epsilon must be a number above 0, not nan",
    ),
    ("llada.rope.freq_base", -1.0, "llada.rope.freq_base must be a number above 0"),
    ("llada.vocab_size", 400, "llada.vocab_size is 400 and token_embd.weight has 320 rows"),
    ("llada.context_length", 0, "llada.context_length must be a whole number"),
    ("tokenizer.ggml.eos_token_id", 9999, "eos_token_id=9999 is outside the vocabulary of 320"),
    ("tokenizer.ggml.mask_token_id", 2**32 - 1, "mask_token_id=4294967295 is outside the vocabulary"),
    ("tokenizer.ggml.tokens: number", 2**60, "'tokenizer.ggml.tokens', more than it could hold"),
    ("tokenizer.ggml.tokens: items", 9, "has an array of the type 9"),
    ("token_embd.weight: type", 99, "'token_embd.weight' is of the type number 99, which is not read"),
    ("token_embd.weight: type", 23, "is of the type IQ4_XS, which is not read"),
    ("token_embd.weight: dimensions", 5, "has 5 dimensions"),
    ("token_embd.weight: shape", 2**61, "is truncated, or lies: 'token_embd.weight' of "),
    ("token_embd.weight: shape", 0, "which cannot be"),
    ("token_embd.weight: shape", 33, "which cannot be"),
    ("token_embd.weight: offset", 2**40, "says that 'token_embd.weight' is at 1,099,511,627,776"),
    ("blk.1.attn_q.weight: offset", 0, "says that 'blk.1.attn_q.weight' is at 0, and it follows at"),
    ("output.weight: length", 3, "UTF-8|twice|dimensions|truncated|more than|not expected"),
]


@pytest.mark.usefixtures("nothing_is_allocated")
def test_what_lies_is_named(whole: Path, tmp_path: Path, subtests: pytest.Subtests) -> None:
    content, found = whole.read_bytes(), places(whole)
    for name, value, said in NAMED:
        with subtests.test(name, value=value):
            (tmp_path / "m.gguf").write_bytes(changed(content, *found[name], value))
            with returns_within(SECONDS), pytest.raises((CheckpointError, UnsupportedError), match=said) as caught:
                load_folder(tmp_path / "m.gguf")
            assert "\n" not in str(caught.value)
            assert "m.gguf" in str(caught.value) or "m (llada)" in str(caught.value)


@pytest.mark.usefixtures("nothing_is_allocated")
def test_what_is_missing_is_named(whole: Path, tmp_path: Path, subtests: pytest.Subtests) -> None:
    content = whole.read_bytes()
    for key, said in [
        ("general.architecture", "has no general.architecture"),
        ("llada.block_count", "has no llada.block_count"),
        ("llada.embedding_length", "has no llada.embedding_length"),
        ("llada.attention.head_count", "has no llada.attention.head_count"),
        ("llada.feed_forward_length", "has no llada.feed_forward_length"),
        ("llada.attention.layer_norm_rms_epsilon", "has no llada.attention.layer_norm_rms_epsilon"),
        ("llada.context_length", "has no llada.context_length"),
        ("tokenizer.ggml.mask_token_id", "says which token is the mask"),
        ("tokenizer.ggml.tokens", "has no list of tokens"),
        ("token_embd.weight", "has no tensor token_embd.weight"),
        ("blk.0.attn_k.weight", "1 missing: blk.0.attn_k.weight"),
    ]:
        with subtests.test(key):
            other = key[:-1] + "~"  # under another name
            assert content.count(key.encode()) >= 1
            at = content.index(struct.pack("<Q", len(key)) + key.encode()) + 8
            (tmp_path / "m.gguf").write_bytes(content[:at] + other.encode() + content[at + len(key) :])
            with pytest.raises(CheckpointError, match=said) as caught:
                load_folder(tmp_path / "m.gguf")
            assert "\n" not in str(caught.value)


def test_a_file_that_names_no_end_of_text_is_named(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(whole.read_bytes().replace(b"tokenizer.ggml.eo", b"tokenizer.ggml.xo"))
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.ggml\.eos_token_id"):
        load_folder(tmp_path / "m.gguf")


def test_a_file_without_the_magic_is_none(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGML" + whole.read_bytes()[4:])
    with pytest.raises(CheckpointError, match="is not a GGUF file: it does not begin with GGUF"):
        load_folder(tmp_path / "m.gguf")
