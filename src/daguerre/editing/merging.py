"""Merges and next edits by models with a chat template, which were trained on neither: the task, an example of it, and
then what is asked, in the form of `daguerre.instructions`.

What they write is held to a pattern that leaves them the choice of lines alone, so no answer can damage a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from daguerre.editing.rewriting import ToldModel, check_writer
from daguerre.editing.snippets import marked, merged_exactly
from daguerre.errors import ContextError
from daguerre.instructions import apply_pattern, apply_prompt, choice_prompt, lettered, lines_of, read_merge

TOLD = {
    "apply": "A file follows, with the number of each line at its end, and a snippet whose lines go into it; `...` "
    "stands for lines of the file that stay. Write the snippet again, and after the first and the last line of each "
    "chunk the number of the line of the file that it replaces, `#3`, or `#+3` where it is new and goes after line 3.",
    "next_edit": "A file follows, then a change that was just made in other lines of it, and the lines where the "
    "same may be due, each place with a letter. Write the letters of the places that have to change, or None.",
}
"""What the tasks are, for a model that does not know them."""
_CODE = ["import os", "", "x = 1", "y = 2", "print(x)"]
EXAMPLES = {
    "apply": (
        apply_prompt(_CODE, ["# ... existing code ...", "x = 1", "z = 3", "print(x)", "print(z)"]),
        "...\na x = 1 #3\nb z = 3\nc print(x)\nd print(z) #+5\n",
    ),
    "next_edit": (
        choice_prompt(["import re", "n = 1", "print(n)", "print('n')"], [(2, 6), (3, 7)], "n", "rename n to num"),
        "a\n",
    ),
}
"""A request of each, and its answer."""


def posed(model: ToldModel, tasks: Sequence[str], task: str, prompt: str) -> str | list[int]:
    """A prompt of a task as this model reads it: as it is if that is one of its `tasks`; else in a conversation.
    UnsupportedError for a model that neither was trained on it nor has a chat template.
    """
    if task in tasks:
        return prompt
    check_writer(model)
    example, answer = EXAMPLES[task]
    said = [f"{TOLD[task]}\n\n{example}", answer, prompt]
    roles = ("user", "assistant", "user")
    return model.chat_prompt([{"role": role, "content": text} for role, text in zip(roles, said, strict=True)])


MORE = 16
"""Tokens that an answer may have more than the text that it copies."""


def merged(model: Any, text: str, snippet: str) -> str:
    """A text with a snippet merged into it, by a `Model` where the lines leave a choice. InputError where the model's
    numbers make no edit; ContextError for a text that is too long.
    """
    exact = merged_exactly(text, snippet)
    if exact is not None:
        return exact
    ends = "\r\n" if "\r\n" in text and text.count("\r\n") == text.count("\n") else "\n"
    code, new = lines_of(text.replace(ends, "\n")), lines_of(snippet.replace("\r\n", "\n"))
    shown = marked(code, new)
    prompt = posed(model, model.tasks, "apply", apply_prompt(code, shown))
    copied = lettered(shown, [f"+{len(code)}"] * len(shown))
    sizes = [len(model.tokenizer.encode_plain(one) if isinstance(one, str) else one) for one in (prompt, copied)]
    if sum(sizes) + MORE > model.config.max_positions - 1:
        raise ContextError(f"the text and the snippet need {sum(sizes) + MORE:,} tokens: shorten the text")
    how = {"regex": apply_pattern(code, shown), "heal": False, "temperature": 0.0}
    result = model.generate(prompt, min(2 * sizes[1] + MORE, model.config.max_positions - sizes[0] - 1), **how)
    made = ends.join(read_merge(code, result.text, result.finish_reason == "stop"))
    return made + ends if text.endswith("\n") else made
