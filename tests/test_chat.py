"""Conversations: the model's own template, published defaults, and the terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import daguerre
from daguerre.decoding.effort import EFFORTS, effort_options
from daguerre.decoding.options import Decode, with_defaults
from daguerre.errors import InputError, UnsupportedError
from daguerre.model import Model
from daguerre.view.conversation import Conversation, Terminal
from published import CASES, START, TURN

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Dream checkpoint with a chat template."""
    path = CASES["dream"].write(tmp_path_factory.mktemp("published"))
    values = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps(values | {"chat_template": TEMPLATE}))
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return daguerre.load(folder, dtype="float32")


def test_messages_become_the_tokens_of_the_template(model: Model) -> None:
    ids = model.chat_prompt([{"role": "user", "content": "hi"}])

    assert ids == [
        *(START, *model.tokenizer.encode("user\nhi"), TURN, *model.tokenizer.encode("\n")),
        *(START, *model.tokenizer.encode("assistant\n")),
    ]


def test_an_answer_is_the_completion_of_the_conversation(model: Model) -> None:
    result = model.chat(HELLO, max_tokens=12, temperature=0.0)

    assert result.text == model.generate(model.chat_prompt(HELLO), 12, temperature=0.0).text
    assert result.usage.prompt_tokens == len(model.chat_prompt(HELLO))


def test_a_model_without_a_template_says_so(causal: Model) -> None:
    with pytest.raises(UnsupportedError, match="no chat template"):
        causal.chat(HELLO)
    with pytest.raises(UnsupportedError, match="no chat template"):
        Conversation(causal)


def test_published_defaults_hold_unless_the_request_excludes_them() -> None:
    defaults = {"mode": "block", "policy": "confidence", "steps": 4, "temperature": 0.2, "block_size": 8}

    assert with_defaults(defaults, {}) == defaults
    assert with_defaults(defaults, {"temperature": 0.0})["temperature"] == 0.0
    assert with_defaults(defaults, {"mode": "ar"}) == {"mode": "ar", "temperature": 0.2}
    assert with_defaults(defaults, {"threshold": 0.5}) == {
        "threshold": 0.5,
        "mode": "block",
        "temperature": 0.2,
        "block_size": 8,
    }
    assert with_defaults({"mode": "ancestral"}, {"steps": 4}) == {"mode": "ancestral", "steps": 4}
    with pytest.raises(InputError, match="threshold"):
        with_defaults(defaults, {"threshold": 3.0})


def test_a_published_model_decodes_by_its_defaults_and_heals_no_word(model: Model) -> None:
    assert model.defaults
    asked = model.generate("def", 8)
    spelled = model.generate("def", 8, Decode(**with_defaults(model.defaults, {})), heal=False)

    assert [token.id for token in asked.tokens] == [token.id for token in spelled.tokens]
    assert asked.usage.forwards == spelled.usage.forwards
    assert len(asked.trace.canvas.gaps[0]) == 2 and asked.trace.canvas.gaps[0][0] == len(model.tokenizer.encode("def"))


def test_effort_changes_how_many_forwards_an_answer_takes(model: Model) -> None:
    forwards = {}
    for effort in EFFORTS:
        options = effort_options(effort, model.config, model.defaults)
        forwards[effort] = model.chat(HELLO, max_tokens=24, end_of_text="never", **options).usage.forwards

    assert forwards["instant"] < forwards["low"] < forwards["high"] == 24
    with pytest.raises(InputError, match=r"unknown effort 'hgih'.*'high'"):
        effort_options("hgih", model.config, {})


def test_the_effort_of_an_autoregressive_model_is_always_the_same(causal: Model) -> None:
    assert effort_options("high", causal.config, {}) == {}


def lines(*given: str) -> Callable[[str], str]:
    left: Iterator[str] = iter(given)

    def read(prompt: str) -> str:
        try:
            return next(left)
        except StopIteration:
            raise EOFError from None

    return read


def talk(model: Model, *given: str, **options: Any) -> tuple[Conversation, str]:
    out = io.StringIO()
    conversation = Conversation(model, max_tokens=8, **options)
    Terminal(conversation, Console(file=out, width=100), lines(*given)).run()
    return conversation, out.getvalue()


def test_questions_and_answers_are_kept_in_order(model: Model) -> None:
    conversation, shown = talk(model, "one", "two", system="be brief")
    roles = [message["role"] for message in conversation.messages]

    assert roles == ["system", "user", "assistant", "user", "assistant"]
    first = model.chat([{"role": "system", "content": "be brief"}, {"role": "user", "content": "one"}], 8)
    assert conversation.messages[2]["content"] == first.text
    assert conversation.messages[3]["content"] == "two"
    assert "a forward" in shown


def test_several_lines_are_one_question(model: Model) -> None:
    conversation, _ = talk(model, "a\\", "b", '"""', "c", "", 'd"""')
    asked = [message["content"] for message in conversation.messages if message["role"] == "user"]

    assert asked == ["a\nb", "c\n\nd"]


def test_a_conversation_is_saved_read_and_taken_back(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    first, _ = talk(model, "one", "two", f"/save {path}", "/undo")
    second, _ = talk(model, f"/load {path}")

    assert [message["content"] for message in first.messages if message["role"] == "user"] == ["one"]
    assert [message["content"] for message in second.messages if message["role"] == "user"] == ["one", "two"]
    assert talk(model, "one", "/clear")[0].messages == []


def test_mistakes_are_said_and_the_conversation_goes_on(model: Model, tmp_path: Path) -> None:
    conversation, shown = talk(
        model, "/hlep", "/effort hgih", "/save", f"/load {tmp_path / 'none.json'}", "/undo", "/help", "one"
    )

    for words in ("did you mean '/help'", "did you mean 'high'", "name a file", "cannot read", "no question", "/undo"):
        assert words in " ".join(shown.split())
    assert len(conversation.messages) == 2


def test_an_answer_that_is_stopped_keeps_what_was_written(model: Model) -> None:
    conversation = Conversation(model, max_tokens=8)
    events = conversation.answer("one")
    next(events)
    events.close()  # type: ignore[attr-defined]

    assert [message["role"] for message in conversation.messages] == ["user", "assistant"]


@pytest.mark.skipif(sys.platform == "win32", reason="pseudoterminals")
def test_the_command_converses_in_a_real_terminal(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    leader, follower = pty.openpty()
    run = "import sys; from daguerre.cli import main; sys.argv[0] = 'daguerre'; main()"
    command = [sys.executable, "-c", run, "chat", "--model", str(folder), "--max-tokens", "6"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    os.write(leader, f"hello\n/save {path}\n/exit\n".encode())
    shown = b""
    while True:
        try:
            shown += os.read(leader, 4096)
        except OSError:  # the other end is closed
            break
    os.close(leader)

    assert process.wait(timeout=60) == 0, shown.decode(errors="replace")
    assert [message["role"] for message in json.loads(path.read_text())["messages"]] == ["user", "assistant"]
    assert "a forward" in shown.decode(errors="replace")
