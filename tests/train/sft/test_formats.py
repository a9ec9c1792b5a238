"""Rows of every format, from files of every kind, a few at a time; what is wrong with a row is said in a few words."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from daguerre.errors import DataError, InputError, MissingExtra
from daguerre.train.sft import files as module
from daguerre.train.sft.files import data_files, rows_of
from daguerre.train.sft.formats import ChatRow, PromptAndAnswer, read_row

ASK, SAY = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
ROWS: list[dict[str, Any]] = [
    {"messages": [ASK, SAY], "tools": [TOOL]},
    {"conversations": [{"from": "human", "value": "Hi — ñ"}, {"from": "gpt", "value": "Hello"}]},
    {"instruction": "Say hello", "input": "to Ann", "output": "Hello, Ann"},
    {"prompt": "a", "completion": "b"},
]


def said(row: Any) -> list[tuple[str, str, bool]]:
    talk = read_row(row)
    assert isinstance(talk, ChatRow)
    return [(m["role"], m["content"], a) for m, a in zip(talk.messages, talk.answers, strict=True)]


def test_every_format_is_the_same_conversation() -> None:
    hello = [("user", "Hi", False), ("assistant", "Hello", True)]
    assert said({"messages": [ASK, SAY]}) == hello
    assert said({"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}) == hello
    assert said({"conversations": [ASK, SAY]}) == hello
    assert said({"instruction": "Hi", "output": "Hello"}) == hello
    assert said({"instruction": "Hi", "input": "", "output": "Hello", "text": "x"}) == hello
    assert said({"prompt": [ASK], "completion": [SAY]}) == hello
    assert said({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}, SAY]}) == hello
    assert read_row({"prompt": "a", "completion": "b"}) == PromptAndAnswer("a", "b")
    assert read_row({"text": "b"}) == PromptAndAnswer("", "b")
    asked = said({"instruction": "Add", "input": "1 2", "output": "3", "system": "Be brief"})
    assert asked == [("system", "Be brief", False), ("user", "Add\n1 2", False), ("assistant", "3", True)]


def test_only_the_answers_that_are_to_be_learned_are() -> None:
    early = {"role": "assistant", "content": "x", "weight": 0}
    assert [a for *_, a in said({"messages": [ASK, early, ASK, SAY]})] == [False, False, False, True]
    assert [a for *_, a in said({"prompt": [ASK, SAY, ASK], "completion": [SAY]})] == [False, False, False, True]
    assert [a for *_, a in said({"messages": [ASK, {**SAY, "content": ""}, ASK, SAY]})] == [False, False, False, True]


def test_calls_of_tools_are_objects_in_either_format() -> None:
    result = {"role": "tool", "content": "3", "tool_call_id": "1"}
    openai = read_row({"messages": [ASK, {**SAY, "content": None, "tool_calls": [CALL]}, result, SAY], "tools": [TOOL]})
    turns = [("human", "Hi"), ("function_call", '{"name": "add", "arguments": {"a": 1}}'), ("observation", "3")]
    rows = [{"from": kind, "value": value} for kind, value in [*turns, ("gpt", "Hello")]]
    sharegpt = read_row({"conversations": rows, "tools": json.dumps([TOOL])})
    for talk in (openai, sharegpt):
        assert isinstance(talk, ChatRow)
        assert [m["role"] for m in talk.messages] == ["user", "assistant", "tool", "assistant"]
        assert talk.messages[1]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}
        assert (talk.messages[1]["content"], talk.answers) == ("", (False, True, False, True))
        assert talk.tools == (TOOL,)


UNUSABLE: list[tuple[Any, str]] = [
    (7, "no object"),
    ({}, r"its keys \(none\)"),
    ({"txt": "a", "prompt": None}, r"its keys \(txt\)"),
    ({"text": ""}, "its text is empty"),
    ({"prompt": "a", "completion": ""}, "completion is empty"),
    ({"prompt": "a", "completion": 3}, "neither two texts"),
    ({"messages": "a"}, "no list of objects"),
    ({"messages": [{"role": "robot", "content": "a"}]}, "the role 'robot'"),
    ({"messages": [ASK]}, "no message of the assistant"),
    ({"messages": [ASK, {**SAY, "weight": 0}]}, "no message of the assistant"),
    ({"messages": [ASK, {**SAY, "content": 3}]}, "no text"),
    ({"messages": [ASK, {**SAY, "tool_calls": [{"name": "x"}]}]}, "tool_calls"),
    ({"messages": [ASK, SAY], "tools": "x"}, "tools are no list"),
    ({"conversations": [{"from": "human"}]}, "from"),
    ({"conversations": [{"from": "function_call", "value": "x"}]}, "function_call"),
    ({"instruction": "a", "output": 3}, "not all texts"),
]


def test_a_row_that_cannot_be_learned_says_why(subtests: pytest.Subtests) -> None:
    for row, message in UNUSABLE:
        with subtests.test(message, row=row):
            with pytest.raises(InputError, match=message) as caught:
                read_row(row)
            assert len(str(caught.value)) < 160


# ---- files --------------------------------------------------------------------------------------------------------


def test_json_lines_json_and_parquet_have_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ROWS * 40
    (tmp_path / "a.jsonl").write_text("\n\n".join(map(json.dumps, rows)))
    (tmp_path / "b.json").write_text(json.dumps(rows, indent=2, ensure_ascii=False), encoding="utf-8")
    (tmp_path / "c.json").write_text("\n".join(map(json.dumps, rows)))
    assert [row for _, row in rows_of(tmp_path / "a.jsonl")] == rows
    assert [number for number, _ in rows_of(tmp_path / "a.jsonl")][:3] == [1, 3, 5]
    for chunk in (1 << 16, 7):
        monkeypatch.setattr(module, "CHUNK", chunk)
        assert [row for _, row in rows_of(tmp_path / "b.json")] == rows
    assert [row for _, row in rows_of(tmp_path / "c.json")] == rows
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(module, "ROWS", 7)
    keys = {key: None for row in ROWS for key in row}
    parquet.write_table(pyarrow.Table.from_pylist([keys | row for row in rows]), tmp_path / "d.parquet")
    found = [row for _, row in rows_of(tmp_path / "d.parquet")]
    assert [read_row(row) for row in found] == [read_row(row) for row in rows]  # all rows have the same columns there
    (tmp_path / "e.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(DataError, match="cannot be read as Parquet") as caught:
        list(rows_of(tmp_path / "e.parquet"))
    assert "\n" not in str(caught.value)


def test_a_file_is_read_a_few_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 64)
    path = tmp_path / "a.json"
    path.write_text("[" + json.dumps({"prompt": "a", "completion": "b"}) + ", {" + "x" * 10_000)
    rows = rows_of(path)
    assert next(rows) == (1, {"prompt": "a", "completion": "b"})  # before it reaches what is damaged
    with pytest.raises(DataError, match=r"a.json ends within item 2 of its list"):
        next(rows)


def test_bad_lines_are_rows_that_say_so(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "a"}\n{"prompt"\n' + "[" * 100_000 + "\n3\n")
    kinds = [type(row) for _, row in rows_of(tmp_path / "a.jsonl")]
    assert kinds == [dict, InputError, InputError, int]
    (tmp_path / "b.jsonl").write_bytes(b'{"a": "\xff"}\n')
    with pytest.raises(DataError, match="is not UTF-8"):
        list(rows_of(tmp_path / "b.jsonl"))
    (tmp_path / "c.json").write_text("[]")
    assert list(rows_of(tmp_path / "c.json")) == []


def test_files_and_folders_are_read_in_order(tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    names = ["in/b.jsonl", "in/a.json", "in/deep/c.parquet", "in/notes.txt", "z.jsonl"]
    for name in names:
        (tmp_path / name).touch()
    found = data_files([tmp_path / "z.jsonl", tmp_path / "in"])
    assert [path.name for path in found] == ["z.jsonl", "a.json", "b.jsonl", "c.parquet"]


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"pip install 'daguerre\[data\]'"):
        list(rows_of(tmp_path / "a.parquet"))
