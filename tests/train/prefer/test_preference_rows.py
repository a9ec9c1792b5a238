"""Rows of preference files: what they say, and why some cannot be used."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from answers import write_rows
from daguerre.errors import InputError
from daguerre.model import Model
from daguerre.train.prefer.rows import PairReader, read_preference
from daguerre.train.sft.corpus import AnswerFiles
from daguerre.train.sft.rendering import Renderer
from daguerre.train.shards import Shard
from preferences import pair_batches, some_preferences

ASKED = {"role": "user", "content": "name?"}
GOOD, BAD = {"role": "assistant", "content": "index"}, {"role": "assistant", "content": "value"}


@pytest.fixture(scope="module")
def renderer(make_model: Callable[..., Model]) -> Renderer:
    model = make_model()
    return Renderer(model.tokenizer, model.config)


def said(renderer: Renderer, row: Any, ends: bool = True) -> list[tuple[str, str]]:
    """Prompt and answer of both texts."""
    decode = renderer.tokenizer.decode
    texts = PairReader(ends)(renderer, row, 64)
    return [(decode(text.tokens[~text.answer].tolist()), decode(text.tokens[text.answer].tolist())) for text in texts]


def test_texts_have_a_prompt_or_begin_alike(renderer: Renderer) -> None:
    wanted = [("count = ", "name"), ("count = ", "value")]
    assert said(renderer, {"prompt": "count = ", "chosen": "name", "rejected": "value"}) == wanted
    assert said(renderer, {"chosen": "count = name", "rejected": "count = value"}) == wanted
    assert said(renderer, {"chosen": "count = nation", "rejected": "count = name"})[1] == ("count = ", "name")


def test_messages_of_every_format_say_the_same(renderer: Renderer) -> None:
    wanted = [("User: name?\nAssistant:", " index"), ("User: name?\nAssistant:", " value")]
    for row in (
        {"prompt": [ASKED], "chosen": [GOOD], "rejected": [BAD]},
        {"prompt": [ASKED], "chosen": GOOD, "rejected": BAD},
        {"prompt": [ASKED], "chosen": "index", "rejected": "value"},
        {"chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]},
        {"input": {"messages": [ASKED]}, "preferred_output": [GOOD], "non_preferred_output": [BAD]},
    ):
        assert said(renderer, row) == wanted, row


def test_tools_reach_the_template(renderer: Renderer) -> None:
    tools = [{"type": "function", "function": {"name": "find"}}]
    row: dict[str, Any] = {"input": {"messages": [ASKED], "tools": tools}}
    row |= {"preferred_output": [GOOD], "non_preferred_output": [BAD]}
    assert "find" in said(renderer, row)[0][0]
    assert read_preference(row)[2] == tools


def test_an_end_of_text_follows_unless_texts_are_cut_off(renderer: Renderer) -> None:
    row = {"prompt": "count", "chosen": " name", "rejected": " value"}
    eos = renderer.config.eos_id
    for ends in (True, False):
        texts = PairReader(ends)(renderer, row, 64)
        assert [int(text.tokens[-1]) == eos for text in texts] == [ends, ends]
    talk = {"prompt": [ASKED], "chosen": [GOOD], "rejected": [BAD]}
    assert all(int(text.tokens[-1]) == eos for text in PairReader(False)(renderer, talk, 64))


UNUSABLE: list[tuple[Any, str]] = [
    (7, "no object"),
    ({"prompt": "a", "completion": "b"}, "are none of prompt, chosen and rejected"),
    ({"prompt": "a", "chosen": "b", "rejected": ""}, "its rejected answer is empty"),
    ({"prompt": "a", "chosen": "b", "rejected": "b"}, "the same"),
    ({"prompt": "a", "chosen": "b", "rejected": 3}, "neither texts nor lists"),
    ({"prompt": "a", "chosen": [GOOD], "rejected": [BAD]}, "neither texts nor lists"),
    ({"prompt": [ASKED], "chosen": 3, "rejected": [BAD]}, "neither texts nor lists"),
    ({"prompt": [ASKED], "chosen": [GOOD], "rejected": [ASKED]}, "no message of the assistant"),
    ({"prompt": [ASKED], "chosen": [ASKED, GOOD], "rejected": [BAD]}, "do not follow the same prompt"),
    ({"input": [ASKED], "preferred_output": [GOOD], "non_preferred_output": [BAD]}, "input is no object"),
    ({"prompt": "a", "chosen": "b", "rejected": "c " * 80}, "longer than 64"),
]


def test_why_a_row_cannot_be_used(renderer: Renderer, subtests: pytest.Subtests) -> None:
    for row, why in UNUSABLE:
        with subtests.test(why, row=row), pytest.raises(InputError, match=why):
            PairReader(True)(renderer, row, 64)


def test_both_texts_of_a_row_are_on_the_same_side(make_model: Callable[..., Model], tmp_path: Path) -> None:
    model, rows = make_model(), [*some_preferences(30), {"prompt": "a", "chosen": "b"}]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    corpus = AnswerFiles([file], tmp_path / "corpus", 64, 0.3, PairReader(True), pairs=True)(
        model.tokenizer, model.config
    )
    report = json.loads((corpus / "rows.json").read_text())
    assert report["rows"] == 30 and "(rows.jsonl:31)" in report["line"]
    for split in ("train", "val"):
        shard = Shard.open(corpus, split)
        texts = [model.tokenizer.decode(shard.document(i).tolist()) for i in range(shard.num_documents)]
        assert texts and len(texts) % 2 == 0
        assert all(
            "yes" in chosen and "no" in rejected for chosen, rejected in zip(texts[::2], texts[1::2], strict=True)
        )


def test_an_epoch_has_every_pair_once(make_model: Callable[..., Model], tmp_path: Path) -> None:
    from answers import STAGE

    made = pair_batches(some_preferences(13), tmp_path, make_model())
    num = made.shard.num_documents // 2
    drawn = [made._pair(index, STAGE.length) for index in range(2 * num)]
    assert sorted(drawn[:num]) == sorted(drawn[num:]) == list(range(num))
