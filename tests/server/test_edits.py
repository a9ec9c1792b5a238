"""Apply and next edit, as Mercury's clients ask for them, of models that were trained on them and of others."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from conftest import MakeModel
from daguerre.editing.rewriting import Asked
from daguerre.http.errors import ApiError
from daguerre.instructions import apply_prompt
from daguerre.model import Model
from daguerre.models.chat_template import ChatTemplate
from daguerre.next_edits import Change, next_edit_prompt
from daguerre.server.app import make_app
from daguerre.server.edits import edit_asked, history_of, merge_asked
from daguerre.server.models import ModelPool
from served import asked, streamed
from server.conftest import running

CODE = ["import os", "", "x = 1", "y = 2"]
SNIPPET = ["# ... existing code ...", "x = 1", "z = 3", "// ... existing code ..."]
MERGE = "<|original_code|>\n{}\n<|/original_code|>\n\n<|update_snippet|>\n{}\n<|/update_snippet|>"
EDIT = """<|recently_viewed_code_snippets|>
<|/recently_viewed_code_snippets|>

<|current_file_content|>
current_file_path: a.py
import os

<|code_to_edit|>
x = o<|cursor|>s.sep
y = os.name
<|/code_to_edit|>
print(os)
<|/current_file_content|>

<|edit_diff_history|>
--- a.py
+++ a.py
@@ -1,2 +1,1 @@
 import os
-import re
-z = os.sep
+import abc
+z = posix.sep
 y = 1
-w = 1
<|/edit_diff_history|>"""


@pytest.fixture(scope="module")
def taught(make_model: MakeModel) -> Model:
    """A random model that says that it was trained on both tasks; what it writes means nothing."""
    plain = make_model(max_positions=256)
    return Model(plain.backbone, plain.tokenizer, "torch", tasks=("apply", "next_edit"))


@pytest.fixture(scope="module")
def client(taught: Model, make_model: MakeModel) -> Iterator[httpx2.Client]:
    """A client of a server of that model and of one that was not trained so."""
    plain = make_model(max_positions=1024)
    tokenizer = copy.copy(plain.tokenizer)
    tokenizer.chat_template = ChatTemplate.of(  # type: ignore[attr-defined]
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<answer>"
    )
    models = {"taught": lambda: taught, "plain": lambda: Model(plain.backbone, plain.tokenizer, "torch")}
    pool = ModelPool(models | {"told": lambda: Model(plain.backbone, tokenizer, "torch")})
    with running(make_app(pool)) as url, httpx2.Client(base_url=url, timeout=60) as one:
        yield one


def say(content: str, **more: Any) -> dict[str, Any]:
    return {"model": "taught", "messages": [{"role": "user", "content": content}], **more}


def merge(code: list[str] = CODE, snippet: list[str] = SNIPPET, end: str = "") -> str:
    return MERGE.format("\n".join(code) + end, "\n".join(snippet))


def test_a_merge_is_the_file_that_the_edit_makes(taught: Model) -> None:
    one = merge_asked(taught, merge())
    assert one.prompt == apply_prompt(CODE, SNIPPET)
    assert one.prompt.endswith("y = 2 #4\n#> apply\n...\na x = 1 #\nb z = 3 #\n...\n#> result\n")
    written = "...\na x = 1 #3\nb z = 3 #4\n...\n"
    assert one.content(written, True) == "import os\n\nx = 1\nz = 3"
    assert merge_asked(taught, merge(end="\n")).content(written, True) == "import os\n\nx = 1\nz = 3\n"


def test_of_an_edit_that_is_being_written_what_is_certain_is_known(taught: Model) -> None:
    one = merge_asked(taught, merge(snippet=["# ...", "x = 1", "z = 3", "y = 2 #4"]))
    lines = ["...\n", "a x = 1 #3\n", "b z = 3\n", "c y = 2 #4\n"]
    parts = [one.content("".join(lines[:num]) + "b z", False) for num in range(5)]
    assert parts == ["", "", "import os\n", "import os\n\nx = 1", "import os\n\nx = 1\nz = 3"]
    assert one.content("".join(lines), True) == "import os\n\nx = 1\nz = 3\ny = 2 #4"


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Leaves a model one choice for the numbers of its edit."""

    def only(first: str, last: str) -> None:
        def pattern(code: list[str], snippet: list[str]) -> str:
            return f"\\.\\.\\.\na x = 1 #{first}\nb z = 3 #{last}\n\\.\\.\\.\n"

        monkeypatch.setattr("daguerre.server.edits.apply_pattern", pattern)

    return only


def test_a_merge_is_answered_and_streamed(client: httpx2.Client, numbers: Callable[[str, str], None]) -> None:
    numbers("3", "4")
    path, body = "/v1/apply/completions", say(merge())
    answer = asked(client, path, body)
    assert answer["choices"][0]["message"]["content"] == "import os\n\nx = 1\nz = 3"
    assert answer["choices"][0]["finish_reason"] == "stop" and answer["usage"]["completion_tokens"] > 10
    *parts, last = streamed(client, path, {**body, "stream_options": {"include_usage": True}})
    said = [part["choices"][0]["delta"].get("content", "") for part in parts]
    assert "".join(said) == "import os\n\nx = 1\nz = 3" and sum(map(bool, said)) > 1
    assert last["usage"]["total_tokens"] == answer["usage"]["total_tokens"]
    few = client.post(path, json={**body, "max_tokens": 3})
    assert few.status_code == 400 and few.json()["error"]["param"] == "max_tokens"


def test_any_model_writes_the_lines_of_the_snippet(client: httpx2.Client) -> None:
    """What its numbers are worth is another question: this one has learned nothing."""
    answer = client.post("/v1/apply/completions", json=say(merge()))
    if answer.status_code == 200:
        assert "x = 1\nz = 3" in answer.json()["choices"][0]["message"]["content"]
    else:
        assert answer.status_code == 502 and answer.json()["error"]["code"] == "invalid_answer"


def test_any_model_appends_what_is_behind_the_last_marker(client: httpx2.Client) -> None:
    code, new = ["import os", "", "x = 1"], ["", "", "def f():", "    return 2"]
    answer = asked(client, "/v1/apply/completions", say(merge(code, ["# ... existing code ...", *new])))
    assert answer["choices"][0]["message"]["content"] == "\n".join([*code, *new])


def test_a_snippet_without_markers_at_its_ends_leaves_the_rest(client: httpx2.Client) -> None:
    code = ["import os", "", "x = 1", "y = 2", "print(x)"]
    for snippet, made in (
        (["x = 1", "z = 3", "y = 2"], [*code[:3], "z = 3", *code[3:]]),
        (["from abc import ABC", "# ... existing code ..."], ["from abc import ABC", *code]),
        (["# ... existing code ...", "del x, y"], [*code, "del x, y"]),
    ):
        answer = asked(client, "/v1/apply/completions", say(merge(code, snippet)))
        assert answer["choices"][0]["message"]["content"] == "\n".join(made)


@pytest.mark.parametrize("wrong", [("4", "3"), ("3", "9")])
def test_what_is_no_edit_is_an_error_that_says_so(
    client: httpx2.Client, wrong: tuple[str, str], numbers: Callable[[str, str], None]
) -> None:
    numbers(*wrong)
    answer = client.post("/v1/apply/completions", json=say(merge()))
    assert answer.status_code == 502 and answer.json()["error"]["code"] == "invalid_answer"
    assert "lines around it" in answer.json()["error"]["message"]
    with client.stream("POST", "/v1/apply/completions", json={**say(merge()), "stream": True}) as stream:
        *_, last = [line for line in stream.iter_lines() if line]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "invalid_answer"


def test_a_stream_has_the_text_of_the_answer(client: httpx2.Client) -> None:
    whole = asked(client, "/v1/edit/completions", say(EDIT))
    *parts, last = streamed(client, "/v1/edit/completions", say(EDIT, stream_options={"include_usage": True}))
    said = "".join(part["choices"][0]["delta"].get("content", "") for part in parts)
    assert said == whole["choices"][0]["message"]["content"]
    assert parts[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert last["usage"]["total_tokens"] == whole["usage"]["total_tokens"]


def test_a_next_edit_is_fenced_and_none_where_nothing_changes(taught: Model) -> None:
    one = edit_asked(taught, EDIT)
    code = ["import os", "", "x = os.sep", "y = os.name", "print(os)"]
    assert one.prompt == next_edit_prompt(code, Change("os", "posix"), [(2, 4), (3, 4)])
    assert one.prompt.endswith("#> rename os to posix\n3 x = $a.sep\n4 y = $b.name\n#> result\n")
    assert one.content("None\n", True) == "None"
    assert one.content("b\n", True) == "```\nx = os.sep\ny = posix.name\n```"


def test_of_edits_that_have_no_place_in_the_region_nothing_follows(client: httpx2.Client) -> None:
    for history in ("", "-x = os.sep\n+y = 3\n", "-import os\n", "-re.sub(a)\n+re.match(a)\n"):
        content = EDIT[: EDIT.index("--- a.py")] + history + "<|/edit_diff_history|>"
        answer = asked(client, "/v1/edit/completions", say(content))
        assert answer["choices"][0]["message"]["content"] == "None", history


def test_any_model_repeats_the_last_edit_or_leaves_the_region(client: httpx2.Client) -> None:
    content = asked(client, "/v1/edit/completions", say(EDIT))["choices"][0]["message"]["content"]
    lines = (("x = os.sep", "x = posix.sep"), ("y = os.name", "y = posix.name"))
    able = {f"```\n{x}\n{y}\n```" for x in lines[0] for y in lines[1]} - {f"```\n{lines[0][0]}\n{lines[1][0]}\n```"}
    assert content in able | {"None"}


def test_of_a_long_file_the_lines_around_the_region_are_shown(taught: Model) -> None:
    long = EDIT.replace("import os\n\n<|code", "import os\n" + "a = b\n" * 200 + "<|code").replace(
        "print(os)\n", "print(os)\n" + "c = d\n" * 200
    )
    one = edit_asked(taught, long)
    assert len(taught.tokenizer.encode(one.prompt)) + one.max_tokens <= 256
    assert " a = b\n" in one.prompt and " c = d\n" in one.prompt and " x = $a.sep\n" in one.prompt
    assert one.content("a\n", True) == "```\nx = posix.sep\ny = os.name\n```"
    with pytest.raises(ApiError, match="send less code"):
        edit_asked(taught, EDIT.replace("y = os.name\n", "y = os.name\n" * 200))


def test_what_cannot_be_asked_is_said(client: httpx2.Client) -> None:
    long = client.post("/v1/apply/completions", json=say(MERGE.format("x = 1\n" * 200, "x = 2")))
    assert long.status_code == 400 and long.json()["error"]["code"] == "context_length_exceeded"
    for path in ("/v1/apply/completions", "/v1/edit/completions"):
        empty = client.post(path, json=say("merge this, please"))
        assert empty.status_code == 400 and "<|/" in empty.json()["error"]["message"]
        other = client.post(path, json={**say(merge(["x", "x"], ["# ...", "x", "y", "# ..."])), "model": "plain"})
        assert other.status_code == 400 and "docs/editing.md" in other.json()["error"]["message"]
    many = MERGE.format("x = 1", "\n".join(f"x{i}" for i in range(60)))
    assert "52 lines" in client.post("/v1/apply/completions", json=say(many)).json()["error"]["message"]


def test_many_markers_take_no_time(client: httpx2.Client) -> None:
    answer = client.post("/v1/edit/completions", json=say("<|current_file_content|>" * 50_000))
    assert answer.status_code == 400 and "<|/current_file_content|>" in answer.json()["error"]["message"]


def test_models_say_what_they_were_trained_for(client: httpx2.Client) -> None:
    asked(client, "/v1/apply/completions", say(merge(snippet=["x = 1", "z = 3", "y = 2"]), model="plain"))
    listed = {one["id"]: one.get("supported_endpoints", ()) for one in client.get("/v1/models").json()["data"]}
    assert {"edit.completions", "apply.completions"} <= set(listed["taught"])
    assert listed["plain"] and not {"edit.completions", "apply.completions"} & set(listed["plain"])
    assert "taught" in [one["id"] for one in client.get("/v1/edit/completions/models").json()["data"]]


def test_no_model_is_asked_where_the_lines_say_where_a_snippet_goes(client: httpx2.Client) -> None:
    body, made = say(merge(snippet=["x = 1", "z = 3", "y = 2"]), model="plain"), "import os\n\nx = 1\nz = 3\ny = 2"
    answer = asked(client, "/v1/apply/completions", body)
    assert answer["choices"][0]["message"]["content"] == made
    assert answer["usage"]["total_tokens"] == 0 and answer["choices"][0]["finish_reason"] == "stop"
    *parts, last = streamed(client, "/v1/apply/completions", body | {"stream_options": {"include_usage": True}})
    assert "".join(one["choices"][0]["delta"].get("content", "") for one in parts) == made
    assert parts[-1]["choices"][0]["finish_reason"] == "stop" and last["usage"]["total_tokens"] == 0


def test_a_model_that_takes_instructions_merges_and_predicts_edits(client: httpx2.Client) -> None:
    content = merge(["x = 1", "y = 2", "x = 1"], ["# ...", "x = 1", "z = 3", "# ..."])
    merged = asked(client, "/v1/apply/completions", say(content, model="told"))["choices"][0]["message"]["content"]
    assert "z = 3" in merged.split("\n") and set(merged.split("\n")) <= {"x = 1", "y = 2", "z = 3"}
    lines = (("x = os.sep", "x = posix.sep"), ("y = os.name", "y = posix.name"))
    answer = asked(client, "/v1/edit/completions", say(EDIT, model="told"))["choices"][0]["message"]["content"]
    assert answer in {"None", *(f"```\n{x}\n{y}\n```" for x in lines[0] for y in lines[1])}


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Leaves a model one answer to each instruction, in turn."""

    def only(*answers: str) -> None:
        left = iter(answers)

        def written(config: object, asked: Asked, options: dict[str, Any]) -> dict[str, Any]:
            return {**options, "regex": re.escape(next(left))}

        monkeypatch.setattr("daguerre.server.routes.edits.how_written", written)

    return only


def test_an_instruction_is_carried_out_in_the_region(client: httpx2.Client, writes: Callable[..., None]) -> None:
    ask = say(EDIT, model="told", instruction="Use posix.")
    new = "x = posix.sep\ny = posix.name\n"
    writes(new + "```", "x = (\n```", new + "```", new + "```", *["x = os.sep\ny = os.name\n```"] * 2)
    answer = asked(client, "/v1/edit/completions", ask)
    assert answer["choices"][0]["message"]["content"] == f"```\n{new}```"
    assert answer["usage"]["completion_tokens"] > 5 and answer["usage"]["prompt_tokens"] > 50
    again = asked(client, "/v1/edit/completions", ask)
    assert again["choices"][0]["message"]["content"] == f"```\n{new}```", "the second answer"
    assert again["usage"]["prompt_tokens"] > answer["usage"]["prompt_tokens"]
    parts = streamed(client, "/v1/edit/completions", ask)
    assert "".join(one["choices"][0]["delta"].get("content", "") for one in parts) == f"```\n{new}```"
    same = asked(client, "/v1/edit/completions", ask)
    assert same["choices"][0]["message"]["content"] == "None"


def test_a_message_without_marks_is_the_file(client: httpx2.Client, writes: Callable[..., None]) -> None:
    writes("a = 2\n```")
    answer = asked(client, "/v1/edit/completions", say("a = 1", model="told", instruction="Make it 2."))
    assert answer["choices"][0]["message"]["content"] == "```\na = 2\n```"


def test_what_is_no_answer_to_an_instruction_is_refused_with_what_was_written(
    client: httpx2.Client, writes: Callable[..., None]
) -> None:
    writes("x = (\n```", "y = )\n```")
    wrong = client.post("/v1/edit/completions", json=say(EDIT, model="told", instruction="Use posix."))
    error = wrong.json()["error"]
    assert wrong.status_code == 502 and error["code"] == "invalid_answer"
    assert "y = )" in error["message"] and "stays as it is" in error["message"]
    for path, body in (
        ("/v1/edit/completions", say(EDIT, model="plain", instruction="Use posix.")),
        ("/v1/edit/completions", say(EDIT, model="told", instruction="")),
        ("/v1/apply/completions", say(merge(), model="told", instruction="Merge.")),
    ):
        assert client.post(path, json=body).status_code == 400


def test_lines_that_diffs_change_are_paired_where_as_many_were_removed() -> None:
    assert history_of("") == []
    assert history_of("--- a\n+++ a\n@@ -1 +1 @@\n-a\n+b\n c\n+d") == [("a", "b")]
    assert history_of("-a\n-b\n+c\n-d\n+e\n-f\n-g\n+h\n+i") == [("d", "e"), ("f", "h"), ("g", "i")]
    assert history_of("-a\n\\ No newline at end of file\n+b\n\\ No newline at end of file") == [("a", "b")]
    assert history_of("-x = total\n-y = total\n+# n\n+x = left\n+y = left") == []
