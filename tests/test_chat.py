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
from daguerre.decoding.defaults import with_defaults
from daguerre.decoding.effort import EFFORTS, effort_options
from daguerre.decoding.request import Decode
from daguerre.errors import InputError, UnsupportedError
from daguerre.model import Model
from daguerre.view.conversation import ChatSession, Terminal
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
        ChatSession(causal)


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


def published(model: Model, **defaults: Any) -> Model:
    return Model(model.backbone, model.tokenizer, family="made", defaults=defaults)


def ids(result: Any) -> list[int]:
    return [token.id for token in result.tokens]


def test_a_request_that_is_changed_on_the_way_has_the_published_defaults_too(models: dict[str, Model]) -> None:
    how = {"mode": "block", "policy": "confidence", "block_size": 4, "temperature": 1.0}
    made, plain = published(models["full"], **how), models["full"].start("x = ", 8).result()

    assert ids(made.start("x = ", 8).result()) == ids(made.generate("x = ", 8)) != ids(plain)
    noisy = published(models["full"], mode="ancestral", temperature=1.0)
    assert noisy.generate("x = ", 8).usage.mode == "ancestral"
    drawn = models["full"].start("x = ", 8, temperature=1.0, mode="block").result()
    assert ids(noisy.start("x = ", 8).result()) == ids(drawn)
    with pytest.raises(UnsupportedError, match="cannot be changed while it runs"):
        noisy.start("x = ", 8, mode="ancestral")


def test_what_is_about_completions_is_refused_in_gaps_and_no_default_there(models: dict[str, Model]) -> None:
    made = published(models["full"], mode="block", end_of_text="never", policy="margin")

    for gap, whole in (
        (lambda m, **o: m.infill("a = ", "\n", 6, **o), lambda m, **o: m.infill("a = ", "", 6, **o)),
        (lambda m, **o: m.fill("<gap> = <gap>", 4, **o), lambda m, **o: m.fill("a = <gap>", 6, **o)),
        (lambda m, **o: m.edit("a = 1", [(0, 1)], **o), lambda m, **o: m.edit("a = 1", [(4, 5)], 6, **o)),
        (lambda m, **o: list(m.stream("a", suffix="c", **o))[-1].result, lambda m, **o: m.generate("a", 6, **o)),
    ):
        assert gap(made).texts == gap(models["full"], policy="margin", mode="block", heal=False).texts
        spelled = {"mode": "block", "policy": "margin", "end_of_text": "never"}
        assert ids(whole(made)) == ids(whole(models["full"], heal=False, **spelled))
        with pytest.raises(UnsupportedError, match="leave out end_of_text, or the suffix"):
            gap(made, end_of_text="last")


def test_an_option_names_its_policy_and_an_error_only_what_was_given(models: dict[str, Model]) -> None:
    made = published(models["full"], mode="block", policy="joint_threshold", edit_threshold=0.4)

    with pytest.raises(InputError, match="edit_threshold is not used beside steps, which belongs to another policy"):
        made.generate("x = ", 8, steps=3, edit_threshold=0.2)
    assert made.generate("x = ", 8, steps=1, min_tokens=8, heal=False).usage.forwards == 1, "steps name their policy"


def test_a_cache_of_nothing_keeps_the_published_mode(models: dict[str, Model]) -> None:
    made = published(models["full"], mode="ancestral", steps=5)

    assert made.generate("x = ", 8, cache="none").usage.forwards == made.generate("x = ", 8).usage.forwards
    assert ids(made.generate("x = ", 8, cache="none")) == ids(made.generate("x = ", 8))


def test_an_autoregressive_model_fills_gaps_by_likelihood_alone(make_model: Any) -> None:
    model = make_model(mask_id=None, null_id=None)
    assert model.infill("a", "b", 4, num_beams=2).usage.mode == "beam"
    assert model.edit("a = 1", pattern="a", num_beams=2).text.endswith(" = 1")
    for mode in ("ar", "block"):
        with pytest.raises(UnsupportedError, match="an autoregressive model cannot infill"):
            model.infill("a", "b", 4, mode=mode)


def test_tools_are_described_wherever_they_are_given(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    described, tools = list[Any](), [{"name": "f", "parameters": {"type": "object"}}]
    monkeypatch.setattr(model, "chat_prompt", lambda messages, tools=None: described.append(tools) or [65, 66])
    decode = Decode(tools=tools)
    for how, options in ((None, {"tools": tools}), (decode, {}), (decode, {"tools": None})):
        model.chat(HELLO, 8, how, **options)

    assert described == [tools, tools, None]


def test_an_effort_sets_what_the_request_leaves_open(model: Model, causal: Model) -> None:
    def of(effort: str, **given: Any) -> dict[str, Any]:
        return effort_options(effort, model.config, model.defaults, {"max_tokens": 9, **given})

    assert of("instant", mode="block") == {"policy": "threshold", "threshold": 0.3}
    assert effort_options("instant", causal.config, {"mode": "ar"}, {"mode": "block"})["threshold"] == 0.3
    assert of("instant", policy="threshold") == {"threshold": 0.3}
    assert of("high", policy="margin") == {"schedule": "even"}
    for effort, given in (
        *(("high", {"threshold": 0.5}), ("high", {"policy": "threshold"}), ("instant", {"policy": "entropy"})),
        ("low", {"policy": "threshold", "threshold": 0.5}),
    ):
        with pytest.raises(InputError, match=f'effort "{effort}" has nothing to set beside .*{list(given)[-1]}'):
            of(effort, **given)


def test_the_effort_of_a_mode_without_policies_is_its_steps_or_refused(models: dict[str, Model]) -> None:
    causal, full = models["causal"], models["full"]
    assert effort_options("instant", full.config, {"mode": "ancestral"}) == {"steps": 8}
    assert effort_options("low", full.config, {}, {"mode": "ancestral", "temperature": 1.0}) == {"steps": 24}
    for config, defaults in ((full.config, {"mode": "ancestral"}), (causal.config, {})):
        assert effort_options("medium", config, defaults) == {}
        with pytest.raises(UnsupportedError, match='effort "high" has nothing to set in mode'):
            effort_options("high", config, defaults)
    with pytest.raises(InputError, match="nothing to set beside steps"):
        effort_options("low", full.config, {"mode": "ancestral"}, {"steps": 3})


def lines(*given: str) -> Callable[[str], str]:
    left: Iterator[str] = iter(given)

    def read(prompt: str) -> str:
        try:
            return next(left)
        except StopIteration:
            raise EOFError from None

    return read


def talk(model: Model, *given: str, **options: Any) -> tuple[ChatSession, str]:
    out = io.StringIO()
    conversation = ChatSession(model, max_tokens=8, **options)
    Terminal(conversation, Console(file=out, width=100), lines(*given)).run()
    return conversation, out.getvalue()


def test_questions_and_answers_are_kept_in_order(model: Model) -> None:
    conversation, shown = talk(model, "one", "two", system="be brief", temperature=0.0)
    roles = [message["role"] for message in conversation.messages]

    assert roles == ["system", "user", "assistant", "user", "assistant"]
    first = model.chat(
        [{"role": "system", "content": "be brief"}, {"role": "user", "content": "one"}], 8, temperature=0.0
    )
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


def test_options_are_set_shown_and_taken_back_and_a_question_is_asked_again(model: Model) -> None:
    conversation, shown = talk(
        model, "/set temperature .5", "one", "/set max-tokens 3", "/regenerate", "/show", "/bye", "x"
    )
    held = " ".join(shown.split())

    assert conversation.options == {"temperature": 0.5, "max_tokens": 3}
    assert [message["role"] for message in conversation.messages] == ["user", "assistant"]
    assert "temperature 0, the likeliest" in held and "temperature 0.5" in held and "2 messages" in held
    assert "cut at max_tokens" in held
    conversation, shown = talk(model, "/set temperature -1", "/set", "/set temprature 1", "/set max_tokens")
    for words in ("temperature must be", "name an option", "did you mean 'temperature'"):
        assert words in " ".join(shown.split())
    assert conversation.options == {"max_tokens": 8}


def test_a_question_that_is_asked_again_has_another_answer_and_a_seed_the_same_ones(model: Model) -> None:
    def answers(**options: Any) -> list[str]:
        asked = ChatSession(model, max_tokens=8, temperature=1.5, **options)
        for _ in range(3):
            for _ in asked.answer("one"):
                pass
        return [message["content"] for message in asked.messages if message["role"] == "assistant"]

    again, _ = talk(model, "one", "/regenerate", "/regenerate", temperature=1.5, seed=5)
    question = [{"role": "user", "content": "one"}]
    assert again.messages[1]["content"] == model.chat(question, 8, temperature=1.5, seed=7).text
    assert answers(seed=5) == answers(seed=5)
    assert len({tuple(answers()) for _ in range(3)}) == 3


def test_an_answer_that_is_stopped_keeps_what_was_written(model: Model) -> None:
    conversation = ChatSession(model, max_tokens=8)
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


def test_what_is_no_list_of_messages_is_refused(model: Model) -> None:
    wrong: Any
    for wrong in ("hello", {"role": "user"}, ["hello"], [{"content": "a"}], [{"role": 5}], [], None, iter(())):
        with pytest.raises(InputError, match="messages must be a list of one or more"):
            model.chat(wrong)


def test_a_fence_may_end_in_its_own_line_and_a_path_may_begin_a_question(model: Model, tmp_path: Path) -> None:
    conversation, shown = talk(model, '"""hello"""', "/usr/bin is what?", '"""', 'a"""', "/save a\0b")
    asked = [message["content"] for message in conversation.messages if message["role"] == "user"]

    assert asked == ["hello", "/usr/bin is what?", "a"]
    assert "cannot write 'a\\x00b'" in shown
