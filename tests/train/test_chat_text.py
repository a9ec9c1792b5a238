"""Conversations that a chat model writes by itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import daguerre
from daguerre.errors import DataError, InputError
from daguerre.model import Model
from daguerre.train.commands import data_self
from daguerre.train.corpus import chat_text
from daguerre.train.corpus.chat_text import LOOP, TEXTS, cut, opening, read_chat_texts, told_prompts, write_chat_text
from published import CASES

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with a chat template."""
    path = CASES["llama"].write(tmp_path_factory.mktemp("published"))
    values = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps(values | {"chat_template": TEMPLATE}))
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return daguerre.load(folder, dtype="float32")


@pytest.fixture
def told(tmp_path: Path) -> Path:
    rows = [{"question": f"what is {number}?"} for number in range(5)]
    (tmp_path / "told.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "told.jsonl"


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_text, "LONGEST_ANSWER", 16)
    monkeypatch.setattr(chat_text, "LONGEST_PROMPT", 24)
    monkeypatch.setattr(chat_text, "SHORTEST_ANSWER", 1)
    monkeypatch.setattr(chat_text, "TOGETHER", 4)


def test_a_conversation_begins_as_the_template_says(model: Model) -> None:
    ids = opening(model)
    for text in ("hello", "3 apples"):
        assert model.chat_prompt([{"role": "user", "content": text}])[: len(ids)] == ids
    assert model.tokenizer.decode(ids).endswith("user\n")


def test_answers_are_the_models_own_and_keep_their_end(model: Model, told: Path, tmp_path: Path) -> None:
    written = write_chat_text(model, tmp_path / "out", 150, [told], seed=3)

    texts = read_chat_texts(tmp_path / "out")
    assert written == sum(len(text.new) for text in texts) >= 150
    ended = 0
    for text in texts:
        options = {"mode": "ar", "heal": False, "temperature": text.temperature, "seed": 3 + text.number}
        result = model.generate(text.prompt, 16, stop_loops=True, **options)
        alone = [token for step in result.trace.steps for token in step.decision.tokens.tolist()]
        assert alone[: len(text.new)] == text.new
        ended += text.new[-1] in model.config.ends
    assert {text.temperature for text in texts} == {0.0, 0.7, 1.0}
    assert ended


def test_an_interrupted_run_goes_on(model: Model, told: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_chat_text(model, out, 40, [told])
    before = read_chat_texts(out)
    with (out / TEXTS).open("ab") as file:
        file.write(b'{"number": 1, "pro')

    write_chat_text(model, out, 120, [told])

    after = read_chat_texts(out)
    assert after[: len(before)] == before
    assert len({text.number for text in after}) == len(after) > len(before)
    with pytest.raises(InputError, match="another seed"):
        write_chat_text(model, out, 120, [told], seed=4)


def test_a_greedy_answer_is_cut_where_it_loops() -> None:
    run = list(range(LOOP))
    assert cut([50, *run, 51, *run, 52], 0.0) == [50, *run, 51]
    assert cut([50, *run, 51, *run, 52], 0.7) == [50, *run, 51, *run, 52]
    assert cut([50, *run, 51, *run[:-1], 52], 0.0) == [50, *run, 51, *run[:-1], 52]


def test_prompts_of_files(tmp_path: Path) -> None:
    rows = [
        {"instruction": "add", "input": "1 and 2", "output": "3"},
        {"question": "why?"},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]},
        {"other": 1},
    ]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    assert list(told_prompts([tmp_path])) == ["add\n\n1 and 2", "why?", "hi"]
    (tmp_path / "rows.json").write_text('[{"other": 1}]')
    with pytest.raises(DataError, match="no prompts"):
        list(told_prompts([tmp_path]))


def test_the_command_writes_conversations(
    folder: Path, tmp_path: Path, told: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data_self(out=tmp_path / "out", data=None, model=str(folder), tokens=30, prompts=[told], as_json=True)
    facts = json.loads(capsys.readouterr().out)
    assert facts["tokens"] == sum(len(text.new) for text in read_chat_texts(tmp_path / "out")) >= 30
    with pytest.raises(InputError, match="--prompts"):
        data_self(out=tmp_path, data=tmp_path, prompts=[told])
