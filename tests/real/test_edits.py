"""Edits by a small published model: whatever it writes, nothing else of the file changes."""

from __future__ import annotations

import pytest

from daguerre.editing.answers import UnreadableAnswer
from daguerre.editing.merging import merged
from daguerre.model import Model

TEXT = "import os\r\n\r\n\r\ndef f(x):\r\n\treturn x + 1\r\n\r\n\r\nprint(f(2))"


@pytest.mark.parametrize("instruction", ["Rename `x` to `number`.", "Add a docstring.", "Write a poem instead."])
def test_an_instruction_changes_the_lines_alone_or_nothing(smollm2: Model, instruction: str) -> None:
    before, behind = TEXT.split("def f(x):\r\n\treturn x + 1\r\n")
    try:
        result = smollm2.edit(TEXT, instruction=instruction, lines=(4, 5), name="a.py")
    except UnreadableAnswer:
        return  # which is not what is tested here
    assert result.text.startswith(before) and result.text.endswith(behind)
    region = result.text[len(before) : len(result.text) - len(behind)]
    assert region.count("\n") == region.count("\r\n") and region.endswith("\r\n")
    compile(result.text, "a.py", "exec")


def test_a_snippet_that_leaves_a_choice_loses_no_line(smollm2: Model) -> None:
    text = "a = 1\nb = 2\nc = 3\na = 1\nd = 4\n"
    made = merged(smollm2, text, "# ...\na = 1\nnew = 0\n# ...\n").split("\n")
    assert made.count("new = 0") == 1 and set(made) == {*text.split("\n"), "new = 0"}
