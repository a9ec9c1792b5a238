"""Steerling's tokenizer: an encoding of tiktoken whose vocabulary is in another place than the special tokens.

A tiny vocabulary stands for cl100k_base. As there, a hole lies between it and the special tokens of the publisher.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import daguerre
import made_tokenizers as mt
from daguerre.errors import CheckpointError
from daguerre.model import Model
from daguerre.models.published_tokenizer import PublishedTokenizer
from daguerre.models.readers import read_tokenizer
from oracles import steerling

END = mt.SIZE + 1
FIRST = mt.SIZE + 21
"""The first id behind the vocabulary and the special tokens of the encoding."""
BASE = dict(zip(("<|pad|>", "<|bos|>", "<|endofchunk|>", "<|mask|>"), range(FIRST, FIRST + 4), strict=True))
CHAT = dict(zip(("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"), range(FIRST + 4, FIRST + 7), strict=True))
TURN = "<|start_header_id|>{}<|end_header_id|>\n\n{}<|endofchunk|><|eot_id|>"
TEMPLATE = (
    "{%- set ends = '<|endofchunk|><|eot_id|>' %}{% for m in messages %}{{ '<|start_header_id|>' + m.role + "
    "'<|end_header_id|>\n\n' + m.content + ends }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)


def configuration(instruct: bool) -> dict[str, Any]:
    """tokenizer_config.json, with the keys that the publisher writes."""
    out: dict[str, Any] = {
        "tokenizer_class": "SteerlingTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_steerling.SteerlingTokenizer", None]},
        "encoding_name": "cl100k_base",
        "pad_token": "<|pad|>",
        "bos_token": "<|bos|>",
        "eos_token": "<|endoftext|>",
        "additional_special_tokens": ["<|endofchunk|>", "<|mask|>", *(CHAT if instruct else ())],
        "eos_token_id": END,
        **{f"{text[2:-2]}_token_id": index for text, index in BASE.items()},
    }
    return out | ({text[2:-2]: index for text, index in CHAT.items()} | {"chat_template": TEMPLATE} if instruct else {})


def write(folder: Path, instruct: bool, *, words: bool = True) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer_config.json").write_text(json.dumps(configuration(instruct)))
    if words:
        (folder / "cl100k_base.tiktoken").write_bytes(mt.tiktoken_lines())
    return folder


def read(folder: Path, **options: Any) -> PublishedTokenizer:
    tokenizer = read_tokenizer(folder, **options)
    assert tokenizer is not None
    return tokenizer


@pytest.mark.parametrize("instruct", [False, True])
def test_texts_have_the_ids_of_tiktoken_with_the_publishers_special_tokens(instruct: bool, tmp_path: Path) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    special = {"<|endoftext|>": END} | BASE | (CHAT if instruct else {})
    theirs = tiktoken.Encoding(
        "made", pat_str=mt.CL100K, mergeable_ranks=mt.ranks(), special_tokens=special, explicit_n_vocab=None
    )
    ours = read(write(tmp_path, instruct))
    assert (ours.pad_id, ours.eos_id, ours.mask_id, ours.bos_id) == (FIRST, END, FIRST + 3, None)
    assert ours.num_tokens == FIRST + (7 if instruct else 4) == theirs.n_vocab
    assert ours.added == special
    for text in ("def f(x):\n    return 12345", "a<|mask|>b<|endofchunk|>", "x<|eot_id|> y<|endoftext|>\n\n", "é漢🙂"):
        assert ours.encode(text) == theirs.encode(text, allowed_special="all")
        assert ours.encode_plain(text) == theirs.encode_ordinary(text)
        assert ours.decode_bytes(ours.encode_plain(text)) == text.encode()
    assert all(not ours.token_bytes(index) for index in (*special.values(), END + 1, FIRST - 1))


def test_a_conversation_is_written_with_the_tokens_of_the_instruct_model(tmp_path: Path) -> None:
    ours = read(write(tmp_path, instruct=True))
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    assert ours.chat_template is not None
    text = ours.chat_template.render(messages)
    turns = "".join(TURN.format(message["role"], message["content"]) for message in messages)
    assert text == turns + "<|start_header_id|>assistant<|end_header_id|>\n\n"
    ids = ours.encode(text)
    assert [index for index in ids if index >= FIRST] == [
        *[CHAT["<|start_header_id|>"], CHAT["<|end_header_id|>"], BASE["<|endofchunk|>"], CHAT["<|eot_id|>"]] * 2,
        *(CHAT["<|start_header_id|>"], CHAT["<|end_header_id|>"]),
    ]


@pytest.mark.parametrize("words", ["tiktoken", "tokenizer.json"])
def test_a_vocabulary_of_another_folder_gets_the_names_of_the_checkpoint(words: str, tmp_path: Path) -> None:
    checkpoint, other = write(tmp_path / "checkpoint", True, words=False), tmp_path / "other"
    whole = read(write(tmp_path / "whole", True))
    other.mkdir()
    if words == "tiktoken":
        (other / "any.tiktoken").write_bytes(mt.tiktoken_lines())
    else:
        held = json.loads(mt.made("tiktoken").to_bytes())
        held["added_tokens"] = [{**held["added_tokens"][0], "id": END, "content": "<|endoftext|>"}]
        (other / "tokenizer.json").write_text(json.dumps(held))
        (other / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|endoftext|>", "add_bos_token": True}))
    ours = read(other, names=checkpoint)
    assert read_tokenizer(checkpoint) is None
    assert (ours.added, ours.mask_id, ours.bos_id) == (whole.added, whole.mask_id, None)
    assert ours.encode("a<|eot_id|> b") == whole.encode("a<|eot_id|> b")
    assert ours.chat_template is not None
    assert read(other).added != ours.added


def test_a_checkpoint_that_names_no_encoding_names_nothing_in_another_folder(tmp_path: Path) -> None:
    plain, other = tmp_path / "plain", tmp_path / "other"
    for folder, names in ((plain, {"eos_token": "x"}), (other, {"eos_token": "y"})):
        folder.mkdir()
        (folder / "tokenizer_config.json").write_text(json.dumps(names))
    (other / "any.tiktoken").write_bytes(mt.tiktoken_lines())
    assert read(other, names=plain).config["eos_token"] == "y"


def test_an_id_that_is_no_number_or_belongs_to_another_token_is_refused(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    folder = write(tmp_path, False)
    for index in ["many", True, [7], FIRST]:
        with subtests.test(index=index):
            (folder / "tokenizer_config.json").write_text(json.dumps(configuration(False) | {"mask_token_id": index}))
            with pytest.raises(
                CheckpointError, match="two special tokens of one id, or an id that is no number"
            ) as caught:
                read(folder)
            assert "\n" not in str(caught.value)


def test_a_token_without_an_id_is_none(tmp_path: Path) -> None:
    folder = write(tmp_path, False)
    (folder / "tokenizer_config.json").write_text(json.dumps(configuration(False) | {"mask_token_id": None}))
    assert read(folder).added == {"<|endoftext|>": END} | {text: BASE[text] for text in BASE if text != "<|mask|>"}


IDS = {"vocab_size": FIRST + 7, "pad_token_id": FIRST, "bos_token_id": FIRST + 1, "mask_token_id": FIRST + 3}
INSTRUCT = steerling.FLAT | IDS | {"eos_token_id": END, "eot_id": CHAT["<|eot_id|>"]}


def checkpoint(folder: Path) -> Path:
    """The instruct model with a tiny vocabulary, whose files are in another place."""
    steerling.write(folder, INSTRUCT)
    (folder / "tokenizer.json").unlink()
    return write(folder, True, words=False)


def assert_converses(model: Model) -> None:
    """Its answer to a conversation is that to the ids of the conversation, and ends as a turn does."""
    message = {"role": "user", "content": "Why?"}
    text = TURN.format("user", "Why?") + "<|start_header_id|>assistant<|end_header_id|>\n\n"
    ids = model.tokenizer.encode(text)
    assert CHAT["<|eot_id|>"] in ids
    asked, given = model.chat([message], max_tokens=8), model.generate(ids, 8)
    assert [token.id for token in asked.tokens] == [token.id for token in given.tokens]
    assert model.config.ends == [END, CHAT["<|eot_id|>"]]
    assert {FIRST, FIRST + 3} <= {*model.config.unpredictable_ids}


def test_a_checkpoint_beside_its_vocabulary_converses(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "checkpoint")
    with pytest.raises(CheckpointError, match="'Xenova/gpt-4'") as caught:
        daguerre.load(folder, backend="torch")
    assert "\n" not in str(caught.value)
    (folder / "cl100k_base.tiktoken").write_bytes(mt.tiktoken_lines())
    assert_converses(daguerre.load(folder, backend="torch"))


def test_a_checkpoint_with_a_vocabulary_from_elsewhere_converses(tmp_path: Path) -> None:
    folder, other = checkpoint(tmp_path / "checkpoint"), tmp_path / "other"
    other.mkdir()
    (other / "any.tiktoken").write_bytes(mt.tiktoken_lines())
    assert_converses(daguerre.load(folder, backend="torch", tokenizer=other))
