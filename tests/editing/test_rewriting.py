"""An edit by instruction, from the prompt to the text, with answers that a test gives."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from conftest import MakeModel
from daguerre.editing.answers import UnreadableAnswer
from daguerre.editing.merging import EXAMPLES, merged, posed
from daguerre.editing.rewriting import Asked, EditedText, Editing, WrittenAnswer, region_of, rewriting
from daguerre.errors import ContextError, InputError, UnsupportedError
from daguerre.model import Model
from daguerre.models.chat_template import ChatTemplate

TEXT = "import os\n\n\ndef f(x):\n    return x\n\n\nclass C:\n\tdef g(self):\r\n\t\treturn 2\n\nlast = 1"
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<answer>{% endif %}"
)


@pytest.fixture(scope="module")
def told(make_model: MakeModel) -> Model:
    """A random model with a chat template; what it writes is what a test's pattern leaves it."""
    plain = make_model(max_positions=1024)
    tokenizer = copy.copy(plain.tokenizer)
    tokenizer.chat_template = ChatTemplate.of(TEMPLATE)  # type: ignore[attr-defined]
    return Model(plain.backbone, tokenizer, "torch")


def driven(edit: Editing, *answers: str, ended: bool = True) -> tuple[EditedText, list[Asked]]:
    """The edit that these answers make, and what was asked for each."""
    asked = [next(edit)]
    for answer in answers:
        try:
            asked.append(edit.send(WrittenAnswer(answer, ended)))
        except StopIteration as done:
            return done.value, asked
    raise AssertionError("the edit asks on")


def prompt_of(model: Model, asked: Asked) -> str:
    return model.tokenizer.decode(asked.prompt)


def test_the_old_text_is_the_draft_and_the_rest_stays(told: Model) -> None:
    edit = rewriting(told, TEXT, "Rename `f` to `h`.", (4, 5), "a.py")
    made, (asked,) = driven(edit, "def h(x):\n    return x\n```")
    assert made.text == TEXT.replace("def f", "def h") and made.region == "def h(x):\n    return x\n"
    assert asked.draft == "def f(x):\n    return x\n```"
    prompt = prompt_of(told, asked)
    assert prompt.startswith("<user>Here is the file `a.py`:\n\n```python\nimport os\n") and "\r" not in prompt
    assert "This is a part of it:\n\n```python\ndef f(x):\n    return x\n```" in prompt
    assert prompt.endswith("<assistant>```python\n")
    assert asked.max_tokens > len(told.tokenizer.encode(asked.draft))


@pytest.mark.parametrize("lines", [(1, 1), (8, 10), (10, 10), (12, 12), None])
def test_nothing_outside_the_lines_changes(told: Model, lines: tuple[int, int] | None) -> None:
    start, end = region_of(told, TEXT, lines)
    made, _ = driven(rewriting(told, TEXT, "Do it.", lines), "one = 1\n\n  two = 2\n\n```")
    assert made.text[:start] == TEXT[:start] and made.text.endswith(TEXT[end:])
    assert made.region.endswith("\n") == TEXT[start:end].endswith("\n")


def test_an_answer_that_changes_nothing_says_so(told: Model) -> None:
    answer = "a = 1\nb = 2\n```"
    same, asked = driven(rewriting(told, "a = 1\r\nb = 2\r\n", "Do it."), answer, answer)
    assert len(asked) == 2, "it may have overlooked what to do"
    assert not same.changed and same.text == "a = 1\r\nb = 2\r\n"


def test_what_cannot_be_read_is_asked_for_once_more_with_the_reason(told: Model) -> None:
    edit = rewriting(told, TEXT.replace("\r", ""), "Rename `f` to `h`.", (4, 5), "a.py")
    made, asked = driven(edit, "def h(x:\n    return x\n```", "def h(x):\n    return x\n```")
    assert made.text == TEXT.replace("\r", "").replace("def f", "def h")
    again = prompt_of(told, asked[1])
    assert again.startswith(
        prompt_of(told, asked[0]) + "def h(x:\n    return x\n```<user>That cannot be used: the file"
    )
    assert again.endswith("with the change: Rename `f` to `h`.<assistant>```python\n")
    assert asked[1].draft == asked[0].draft


@pytest.mark.parametrize(
    ("answer", "ended", "reason"),
    [
        ("def h(x):\n    return x\n", False, "cut off after"),
        ("def h(x):\n    return x\n", True, "does not end"),
        ("def h(x):\n```\nor\n```\ndef i(x):\n```", True, "2 code blocks"),
        ("    # ... existing code ...\n```", True, "leaves lines out"),
    ],
)
def test_a_second_bad_answer_is_refused_and_told(told: Model, answer: str, ended: bool, reason: str) -> None:
    with pytest.raises(UnreadableAnswer, match=reason) as found:
        driven(rewriting(told, TEXT, "Do it.", (4, 5)), answer, answer, ended=ended)
    assert found.value.answer == "```\n" + answer and "stays as it is" in str(found.value)


def test_a_text_with_fences_is_fenced_with_more(told: Model) -> None:
    text = '"""\n```py\nx\n```\n"""\n'
    made, (asked,) = driven(rewriting(told, text, "Do it."), '"""\n```py\ny\n```\n"""\n````')
    assert made.text == text.replace("x", "y") and prompt_of(told, asked).endswith("<assistant>````\n")


def test_what_an_instruction_names_is_shown_alone(told: Model) -> None:
    long = "".join(f"def f{n}(x):\n    return x + {n}\n\n\n" for n in range(200))
    for text in (long, long[: long.index("def f80")]):
        made, (asked,) = driven(
            rewriting(told, text, "In `f77`, add 1.", name="a.py"), "def f77(x):\n    return x + 78\n```"
        )
        assert made.text == made.region == text.replace("x + 77\n", "x + 78\n") and made.changed
        assert prompt_of(told, asked).startswith("<user>Here are parts of the file `a.py`:\n\n```python\ndef f77")
        assert asked.draft == "def f77(x):\n    return x + 77\n```" and "def f76" not in prompt_of(told, asked)


def test_of_a_long_text_something_must_be_named(told: Model) -> None:
    long = "".join(f"def f{n}(x):\n    return x + {n}\n\n\n" for n in range(200))
    made, _ = driven(rewriting(told, long, "add 1 in f7 now"), "def f7(x):\n    return 1\n```")
    assert made.text == long.replace("    return x + 7\n", "    return 1\n")
    for instruction in ("Add 1.", "Add 1 wherever `f7` is called."):
        with pytest.raises(ContextError, match="say which lines"):
            next(rewriting(told, long, instruction))
    with pytest.raises(ContextError, match="name fewer lines"):
        next(rewriting(told, long, "Add 1.", (1, 500)))


def test_what_is_left_out_is_removed_the_second_time(told: Model) -> None:
    text = "def f(x):\n    return x\n\n\ndef g():\n    pass\n"
    made, asked = driven(rewriting(told, text, "Remove `f`.", name="a.py"), "```", "```")
    assert made.text == "def g():\n    pass\n" and "nothing is left of it" in prompt_of(told, asked[1])


def test_an_answer_that_ends_early_is_no_answer(told: Model) -> None:
    text = "".join(f"{n}\n" for n in range(20))
    with pytest.raises(UnreadableAnswer, match="leaves the last 17 lines out"):
        driven(rewriting(told, text, "Change the first."), *["one\n2\n```"] * 2)
    made, _ = driven(rewriting(told, text, "Write it in one line."), "0 1 2 3\n```")
    assert made.text == "0 1 2 3\n", "it is another text"


def test_a_model_carries_out_an_instruction(told: Model) -> None:
    answer = "def h(x):\n    return x\n```"
    how: dict[str, Any] = {"instruction": "Rename it.", "lines": (4, 5), "name": "a.py", "regex": re.escape(answer)}
    result = told.edit(TEXT, **how)
    assert result.text == TEXT.replace("def f", "def h") and result.original == TEXT
    assert result.texts == ("def h(x):\n    return x\n",) and result.text[slice(*result.spans[0])] == result.texts[0]
    assert "+def h(x):" in result.diff
    with pytest.raises(UnreadableAnswer, match="2 code blocks") as found:
        told.edit(TEXT, **how | {"regex": re.escape("a\n```\n```\nb\n```")})
    assert found.value.answer.endswith("b\n```")


def test_what_cannot_be_asked_is_refused(told: Model, make_model: MakeModel) -> None:
    for arguments in ({"spans": [(0, 1)]}, {"pattern": "x"}, {"strength": 0.5}, {"max_tokens": 3}):
        with pytest.raises(InputError, match="leave out what else"):
            told.edit(TEXT, instruction="x", **arguments)  # type: ignore[arg-type]
    for text, instruction, lines in (
        ("", "x", None),
        (TEXT, " ", None),
        (TEXT, "x", [(1, 2), (4, 5)]),
        (TEXT, "x", (9, 99)),
    ):
        with pytest.raises(InputError):
            told.edit(text, instruction=instruction, lines=lines)
    with pytest.raises(UnsupportedError, match="no chat template"):
        make_model().edit(TEXT, instruction="x")
    with pytest.raises(UnsupportedError, match="no chat template"):
        posed(make_model(), (), "apply", "x")


def test_tasks_are_told_with_an_example(told: Model) -> None:
    assert posed(told, ("apply",), "apply", "x") == "x"
    for task, (example, answer) in EXAMPLES.items():
        prompt = posed(told, (), task, "asked")
        assert isinstance(prompt, list)
        assert told.tokenizer.decode(prompt).endswith(f"{example}<assistant>{answer}<user>asked<answer>")


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("mark", ["\n", "\r\n"])
def test_a_model_decides_where_lines_leave_a_choice_and_damages_nothing(told: Model, ends: bool, mark: str) -> None:
    lines, end = ["a = 1", "b = 2", "a = 1", "c = 3"], mark if ends else ""
    made = merged(told, mark.join(lines) + end, "# ...\na = 1\nnew = 0\n# ...\n")
    places = [
        mark.join([*lines[:n], *extra, *lines[n:]]) + end
        for n in range(5)
        for extra in (["new = 0"], ["a = 1", "new = 0"])
    ]
    replaced = [mark.join([*lines[: n + 1], "new = 0", *lines[m:]]) + end for n in (0, 2) for m in range(n + 1, 5)]
    assert made in {*places, *replaced} and "new = 0" in made
