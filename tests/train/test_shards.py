"""Shards: what is written is read back, and damage is noticed."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from daguerre.errors import DataError, InputError
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.shards import Shard, write_shards
from daguerre.train.user_folder import UserFolder

TEXTS = ["x = 1\n", "", "def f():\n    return 'é <mask>'\n"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.default("2k")


@pytest.fixture
def corpus(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    write_shards(tmp_path / "corpus", {"train": iter(TEXTS), "val": TEXTS[:1], "test": []}, tokenizer)
    return tmp_path / "corpus"


def write_module(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    body = "\n".join(f"def function_{i}(value):\n    return value * {i} + offset_{number}\n" for i in range(4))
    path.write_text(f"offset_{number} = {number}\n\n{body}")


def test_documents_come_back_between_bos_and_eos(corpus: Path, tokenizer: Tokenizer) -> None:
    shard = Shard.open(corpus, "train")
    assert shard.num_documents == 3
    for index, text in enumerate(TEXTS):
        tokens = shard.document(index)
        assert (tokens[0], tokens[-1]) == (tokenizer.bos_id, tokenizer.eos_id)
        assert tokenizer.decode(tokens.tolist()) == text
    assert shard.tokens.dtype == np.uint16
    assert shard.starts.tolist()[0] == 0
    assert shard.starts.tolist()[-1] == shard.num_tokens
    assert shard.doc_bytes.tolist() == [len(text.encode()) for text in TEXTS]
    assert shard.num_bytes == sum(len(text.encode()) for text in TEXTS)


def test_the_folder_says_how_it_was_made(corpus: Path, tokenizer: Tokenizer) -> None:
    meta = json.loads((corpus / "meta.json").read_text())
    assert (meta["format"], meta["vocab_size"], meta["tokenizer_sha256"]) == (1, 2048, tokenizer.sha256)
    assert meta["splits"]["val"] == {"tokens": Shard.open(corpus, "val").num_tokens, "bytes": 6, "documents": 1}
    assert Tokenizer.load(corpus / "tokenizer.json") == tokenizer
    assert not list(corpus.glob("*.tmp"))


def test_an_empty_split_opens(corpus: Path) -> None:
    shard = Shard.open(corpus, "test")
    assert (shard.num_tokens, shard.num_documents, shard.num_bytes) == (0, 0, 0)


def test_another_process_maps_a_shard_and_gets_no_copy_of_its_tokens(tmp_path: Path, tokenizer: Tokenizer) -> None:
    write_shards(tmp_path, {"train": ["x = 1\n" * 2000]}, tokenizer)
    shard = Shard.open(tmp_path, "train")
    pickled = pickle.dumps(shard)
    again = pickle.loads(pickled)
    assert len(pickled) < 1000 < shard.tokens.nbytes
    assert isinstance(again.tokens, np.memmap)
    assert (again.tokens == shard.tokens).all()


def test_another_tokenizer_is_refused(corpus: Path, tokenizer: Tokenizer) -> None:
    Shard.open(corpus, "train", tokenizer.sha256)
    with pytest.raises(DataError, match=r"another vocabulary.*daguerre data"):
        Shard.open(corpus, "train", Tokenizer.default("8k").sha256)


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("train.bin", "truncate"),
        ("train.bin", "remove"),
        ("train.starts.npy", "truncate"),
        ("train.bytes.npy", "remove"),
    ],
)
def test_a_damaged_file_is_refused(corpus: Path, name: str, harm: str) -> None:
    path = corpus / name
    if harm == "remove":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=f"{name} is damaged.*make it again"):
        Shard.open(corpus, "train")


def test_a_folder_without_meta_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no meta\.json"):
        Shard.open(tmp_path, "train")


def test_a_strange_meta_is_refused(corpus: Path) -> None:
    cases: list[str] = ["", "[]", '{"format": 2}']
    for content in cases:
        (corpus / "meta.json").write_text(content)
        with pytest.raises(DataError, match="make it again"):
            Shard.open(corpus, "train")


def test_a_split_that_is_not_there_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    write_shards(tmp_path, {"train": TEXTS}, tokenizer)
    with pytest.raises(DataError, match="no split 'val'"):
        Shard.open(tmp_path, "val")
    with pytest.raises(InputError, match="unknown split 'dev'"):
        write_shards(tmp_path, {"dev": TEXTS}, tokenizer)


def test_a_crash_while_writing_leaves_no_folder_that_opens(corpus: Path, tokenizer: Tokenizer) -> None:
    def crashing():
        yield "x = 1\n"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_shards(corpus, {"train": crashing()}, tokenizer)
    assert not list(corpus.glob("*.tmp"))
    with pytest.raises(DataError, match=r"no meta\.json"):
        Shard.open(corpus, "train")


@pytest.mark.parametrize("count", [2, 3, 40])
def test_a_users_folder_is_split_by_file(tmp_path: Path, tokenizer: Tokenizer, count: int) -> None:
    for number in range(count):
        write_module(tmp_path / "src" / f"pkg{number % 3}" / f"module_{number}.py", number)
    UserFolder(tmp_path / "src").write(tmp_path / "out", tokenizer)
    train, val = Shard.open(tmp_path / "out", "train"), Shard.open(tmp_path / "out", "val")
    assert train.num_documents + val.num_documents == count
    assert 1 <= val.num_documents <= max(1, count // 3)
    assert train.num_documents >= 1


def test_a_folder_of_one_file_trains_on_it(tmp_path: Path, tokenizer: Tokenizer) -> None:
    write_module(tmp_path / "src" / "only.py", 7)
    UserFolder(tmp_path / "src").write(tmp_path / "out", tokenizer)
    assert Shard.open(tmp_path / "out", "train").num_documents == 1
    assert Shard.open(tmp_path / "out", "val").num_documents == 0


def test_a_folder_without_usable_files_is_refused_with_the_reasons(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "broken.py").write_text("def f(:\n" * 40)
    (tmp_path / "small.py").write_text("x = 1\n")
    with pytest.raises(DataError, match=r"no file left: 2 seen, 1 does not parse, 1 tiny; pass --data with a folder"):
        UserFolder(tmp_path).write(tmp_path / "out", tokenizer)
    with pytest.raises(DataError, match="not a folder"):
        UserFolder(tmp_path / "absent").write(tmp_path / "out", tokenizer)
