"""Ollama's API."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import httpx2
import numpy as np
import pytest

from daguerre.commands.serving import Computing, PullLimits, make_pulls
from daguerre.errors import InputError
from daguerre.http.errors import ApiError
from daguerre.http.settings import Keys, Settings, hash_of
from daguerre.model import Model
from daguerre.server.app import make_app
from daguerre.server.models import ModelPool
from daguerre.server.prompts import transcript
from daguerre.server.protocol.chat import ChatBody
from daguerre.server.protocol.ollama import OllamaChatBody, chat_body
from daguerre.server.pulls import Pulls, Told
from daguerre.server.routes import ollama
from server.conftest import running
from server.test_chat_format import model_of

USER = {"role": "user", "content": "Write a function."}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"place": {"enum": ["Rome", "Oslo"]}},
            "required": ["place"],
            "additionalProperties": False,
        },
    },
}
COLD = {"temperature": 0, "num_predict": 24}
COUNTS = ("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration")


def ask(client: httpx2.Client, path: str = "/api/chat", **body: Any) -> Any:
    """The answer without a stream."""
    response = client.post(path, json={"model": "default", "stream": False, **body})
    assert response.status_code == 200, response.text
    return response.json()


def lines(client: httpx2.Client, path: str = "/api/chat", **body: Any) -> list[dict[str, Any]]:
    """The lines of a stream, which is what is sent unless something else is asked for."""
    with client.stream("POST", path, json={"model": "default", **body}) as response:
        assert response.headers["content-type"] == "application/x-ndjson"
        return [json.loads(line) for line in response.iter_lines()]


def refused(client: httpx2.Client, path: str = "/api/chat", **body: Any) -> dict[str, Any]:
    """An error, whose text is under `error`."""
    response = client.post(path, json={"model": "default", **body})
    assert 400 <= response.status_code < 500, response.text
    assert isinstance(response.json()["error"], str)
    return response.json()


@pytest.fixture(scope="module")
def talking() -> Iterator[httpx2.Client]:
    """A client of a server of a random model with a chat template."""
    template = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}<|assistant|>"
    made = model_of(template)
    app = make_app(ModelPool({"default": lambda: made}))
    with running(app) as url, httpx2.Client(base_url=url, timeout=60) as one:
        yield one


# Conversations and completions


def test_a_stream_of_lines_is_the_whole_answer_with_counts_that_were_measured(
    client: httpx2.Client, trained: Model
) -> None:
    said = {"messages": [USER], "options": COLD}
    whole = ask(client, **said)
    streams = (lines(client, **said) for _ in range(50))  # what is written before a client reads comes in one line
    streamed = next(pieces for pieces in streams if len(pieces) > 2)

    text = "".join(line["message"]["content"] for line in streamed)
    assert text == whole["message"]["content"]
    assert [line["done"] for line in streamed] == [False] * (len(streamed) - 1) + [True]
    assert trained.generate(transcript([USER]), 24).text.lstrip().startswith(text)
    for last in (whole, streamed[-1]):
        datetime.fromisoformat(last["created_at"])
        assert all(isinstance(last[name], int) and last[name] > 0 for name in COUNTS)
        assert last["prompt_eval_count"] == len(trained.tokenizer.encode(transcript([USER])))
        assert last["eval_count"] <= 24 and last["done_reason"] in ("stop", "length")
        assert last["prompt_eval_duration"] + last["eval_duration"] <= last["total_duration"]


def test_options_are_those_of_the_other_surfaces(client: httpx2.Client) -> None:
    named = {"temperature": 0.9, "top_k": 20, "top_p": 0.8, "min_p": 0.02, "seed": 7, "frequency_penalty": 0.5}
    ours = client.post(
        "/v1/chat/completions", json={"messages": [USER], "max_tokens": 12, "repetition_penalty": 1.2, **named}
    ).json()["choices"][0]["message"]["content"]
    theirs = {"options": {**named, "num_predict": 12, "repeat_penalty": 1.2, "repeat_last_n": -1}}

    assert ask(client, messages=[USER], **theirs)["message"]["content"] == ours
    theirs["options"]["repeat_last_n"] = 0
    assert ask(client, messages=[USER], **theirs)["message"]["content"] != ours


def test_stop_strings_end_a_text_and_may_be_more_than_openais(client: httpx2.Client) -> None:
    text = ask(client, messages=[USER], options=COLD)["message"]["content"]
    stops = [*(f"never there {number}" for number in range(20)), text[4:7]]

    cut = ask(client, messages=[USER], options={**COLD, "stop": stops})
    assert cut["message"]["content"] == text[: text.index(stops[-1])] and cut["done_reason"] == "stop"
    assert refused(client, messages=[USER], options={"stop": ["x"] * 65})["param"] == "options.stop"


def test_no_limit_is_as_many_tokens_as_there_is_room_for(client: httpx2.Client, tiny: Model) -> None:
    for most in (-1, 10**6):
        answer = ask(client, model="tiny", messages=[USER], options={"num_predict": most, "temperature": 0})
        assert answer["eval_count"] + answer["prompt_eval_count"] <= tiny.config.max_positions


def test_what_changes_nothing_is_said(client: httpx2.Client) -> None:
    given = {"num_ctx": 4096, "num_thread": 2, "num_predict": 2, "nobody": 1}
    answer = ask(client, messages=[USER], options=given, keep_alive="5m")

    names = ["options.num_ctx", "options.num_thread", "options.nobody", "keep_alive"]
    assert answer["daguerre"]["ignored"] == names
    assert lines(client, messages=[USER], options=given, keep_alive=-1)[-1]["daguerre"]["ignored"] == names


def test_what_cannot_be_honored_is_refused_by_name(client: httpx2.Client, subtests: pytest.Subtests) -> None:
    chat: dict[str, Any] = {"messages": [USER]}
    prompt: dict[str, Any] = {"prompt": "x"}
    for path, body, field in (
        ("/api/chat", chat | {"options": {"mirostat": 2}}, "options.mirostat"),
        ("/api/chat", chat | {"options": {"temperature": 3}}, "options.temperature"),
        ("/api/chat", chat | {"options": {"repeat_penalty": 1.1, "repeat_last_n": 64}}, "options.repeat_last_n"),
        ("/api/chat", chat | {"think": True}, "think"),
        ("/api/chat", {"messages": [{**USER, "images": ["aGk="]}]}, "messages.0.images"),
        ("/api/chat", chat | {"daguerre": {"trace": True}}, "daguerre.trace"),
        ("/api/chat", {"messages": [], "keep_alive": 0}, "keep_alive"),
        ("/api/generate", prompt | {"images": ["aGk="]}, "images"),
        ("/api/generate", prompt | {"template": "{{ .Prompt }}"}, "template"),
        ("/api/generate", prompt | {"context": [1, 2]}, "context"),
        ("/api/generate", prompt | {"raw": True, "system": "Be brief."}, "system"),
        ("/api/generate", prompt | {"format": "yaml"}, "format.literal['','json']"),
    ):
        with subtests.test(field):
            assert refused(client, path, **body)["param"] == field
    assert "nobody" in refused(client, model="nobody", messages=[USER])["error"]


def test_an_error_within_a_stream_is_its_last_line(serve: Callable[..., httpx2.Client]) -> None:
    one = serve(timeout=0.05)
    last = lines(one, model="tiny", messages=[USER], options={"num_predict": 1000})[-1]

    assert "seconds" in last["error"] and last["code"] == "timeout"


def test_a_body_is_json_whatever_its_type(client: httpx2.Client) -> None:
    body = json.dumps({"model": "default:latest", "prompt": "x", "stream": False, "options": {"num_predict": 2}})
    answer = client.post("/api/generate", content=body, headers={"content-type": "application/x-www-form-urlencoded"})

    assert answer.status_code == 200 and answer.json()["model"] == "default:latest"
    foreign = {"content-type": "text/plain", "origin": "https://evil.example"}
    assert client.post("/api/generate", content=body, headers=foreign).status_code == 403


def test_formats_hold(client: httpx2.Client) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 22]}}, "required": ["n"]}
    for path, body in (
        ("/api/chat", {"messages": [USER]}),
        ("/api/generate", {"prompt": "x = ", "raw": True}),
    ):
        answer = ask(client, path, format=schema | {"additionalProperties": False}, **body)
        text = answer["response"] if "response" in answer else answer["message"]["content"]
        assert json.loads(text)["n"] in (1, 22)
    within = ask(client, messages=[USER], format="json", options={"num_predict": 60})
    assert within["message"]["content"].startswith("{")
    told = ask(client, messages=[USER], format=schema | {"nobody": 1}, options={"num_predict": 60})
    assert "nobody" in "".join(told["daguerre"]["ignored"])


def test_a_tool_is_called_as_a_whole(client: httpx2.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def forced(body: Any) -> ChatBody:
        return chat_body(body).model_copy(update={"tool_choice": "required", "parallel_tool_calls": False})

    monkeypatch.setattr(ollama, "chat_body", forced)  # these models call nothing by themselves
    asked = {"messages": [USER], "tools": [TOOL], "options": {"temperature": 0, "num_predict": 60}}
    whole = ask(client, **asked)
    messages = [line["message"] for line in lines(client, **asked)]

    (call,) = whole["message"]["tool_calls"]
    assert call["function"]["name"] == "weather" and call["function"]["arguments"]["place"] in ("Rome", "Oslo")
    assert [one["function"] for said in messages for one in said.get("tool_calls", ())] == [call["function"]]
    assert whole["done_reason"] == "stop"


def test_what_is_thought_has_a_field_of_its_own() -> None:
    template = (
        "{% for m in messages %}{{ m.content }}{% endfor %}<think>{% if not enable_thinking %}</think>{% endif %}"
    )
    made = model_of(template)
    app = make_app(ModelPool({"default": lambda: made}))
    with running(app) as url, httpx2.Client(base_url=url, timeout=60) as one:
        thinks, not_so = ("thinking", "content"), ("content", "thinking")
        for think, (field, other) in ((True, thinks), ("high", thinks), (False, not_so)):
            said = {"messages": [USER], "think": think, "options": {"temperature": 0, "num_predict": 6}}
            whole, streamed = ask(one, **said)["message"], lines(one, **said)
            assert whole[field] and not whole.get(other)
            assert "".join(line["message"].get(field, "") for line in streamed) == whole[field]
        prompted = ask(one, "/api/generate", prompt="x", think=True, options={"temperature": 0, "num_predict": 6})
        assert prompted["thinking"] and not prompted["response"]
        assert "thinking" in one.post("/api/show", json={"model": "default"}).json()["capabilities"]


def test_results_of_tools_find_their_calls_by_name() -> None:
    calls = [{"function": {"name": name, "arguments": {"x": 1}}} for name in ("a", "b", "b")]
    results = [{"role": "tool", "tool_name": name, "content": name} for name in ("b", "a", "b")]
    said = [USER, {"role": "assistant", "content": "", "tool_calls": calls}, *results]

    turn = chat_body(OllamaChatBody.model_validate({"messages": said}))
    named = {call["id"]: call["function"]["name"] for call in turn.messages[1]["tool_calls"]}
    found = [one["tool_call_id"] for one in turn.messages[2:]]
    assert len(named) == len(set(found)) == 3 and [named[key] for key in found] == ["b", "a", "b"]


def test_a_prompt_is_a_message_to_a_model_that_converses_and_a_text_to_others(
    client: httpx2.Client, talking: httpx2.Client, trained: Model
) -> None:
    text = ask(client, "/api/generate", prompt="def f(", options=COLD)["response"]
    assert text == trained.generate("def f(", 24).text
    body = {"prompt": "hello", "system": "Be brief.", "options": {"temperature": 0, "num_predict": 8}}
    system = {"role": "system", "content": "Be brief."}
    chat = ask(talking, messages=[system, {"role": "user", "content": "hello"}], options=body["options"])
    assert ask(talking, "/api/generate", **body)["response"] == chat["message"]["content"]
    raw = ask(talking, "/api/generate", prompt="hello", raw=True, options=body["options"])
    assert raw["prompt_eval_count"] < chat["prompt_eval_count"]


def test_a_suffix_asks_for_what_is_between(client: httpx2.Client) -> None:
    gap = {"prompt": "def add(a, b):\n    return ", "suffix": "\n\nprint(add(1, 2))\n"}
    whole = ask(client, "/api/generate", options={"temperature": 0}, **gap)
    streamed = lines(client, "/api/generate", options={"temperature": 0}, **gap)

    body = {"input_prefix": gap["prompt"], "input_suffix": gap["suffix"], "n_predict": 512}
    assert whole["response"] == client.post("/infill", json=body).json()["content"]
    assert "".join(line["response"] for line in streamed) == whole["response"]


def test_a_body_without_a_text_loads_the_model(client: httpx2.Client) -> None:
    for path, body in (("/api/chat", {"messages": []}), ("/api/generate", {}), ("/api/generate", {"prompt": ""})):
        assert lines(client, path, **body)[-1]["done_reason"] == "load"
        assert ask(client, path, **body)["done"] is True


# Models


def test_models_are_listed_without_loading_them(trained: Model, tiny: Model) -> None:
    pool = ModelPool({"default": lambda: trained, "tiny:4m": lambda: tiny})
    with running(make_app(pool, Settings(max_context=64))) as url, httpx2.Client(base_url=url, timeout=60) as one:
        assert one.get("/api/ps").json() == {"models": []}
        listed = one.get("/api/tags").json()["models"]
        assert [each["name"] for each in listed] == ["default:latest", "tiny:4m"]
        assert len({each["digest"] for each in listed}) == 2 and not pool.loaded
        shown = one.post("/api/show", json={"model": listed[0]["name"]}).json()
        (loaded,) = one.get("/api/ps").json()["models"]

    assert {"completion", "tools", "embedding", "insert"} == set(shown["capabilities"])
    architecture = shown["model_info"]["general.architecture"]
    assert shown["model_info"][f"{architecture}.context_length"] == loaded["context_length"] == 64
    assert shown["model_info"]["general.parameter_count"] == trained.num_parameters
    assert (loaded["name"], loaded["digest"], loaded["size"] > 0) == ("default:latest", listed[0]["digest"], True)


def test_embeddings_are_the_models_and_long_texts_are_cut(client: httpx2.Client, tiny: Model) -> None:
    texts = ["def f(): pass", "x = 1"]
    answer = ask(client, "/api/embed", model="tiny", input=texts)
    assert np.allclose(answer["embeddings"], tiny.embed(texts), atol=1e-5)
    assert answer["prompt_eval_count"] == sum(len(tiny.tokenizer.encode(text)) for text in texts)
    assert ask(client, "/api/embeddings", model="tiny", prompt="x = 1")["embedding"] == answer["embeddings"][1]
    assert ask(client, "/api/embed", model="tiny", input=[])["embeddings"] == []
    long, room = "x = 1\n" * 50_000, tiny.config.max_positions - len(tiny.config.first)
    cut = ask(client, "/api/embed", model="tiny", input=long)
    assert cut["prompt_eval_count"] == room
    ids = tiny.tokenizer.limited(10**9).encode(long)[:room]
    assert np.allclose(cut["embeddings"], tiny.embed([ids]), atol=1e-5)
    refused(client, "/api/embed", model="tiny", input=long, truncate=False)


def test_programs_find_a_server_and_browsers_a_page(client: httpx2.Client) -> None:
    assert "Ollama is running" in client.get("/").text and client.head("/").status_code == 200
    assert client.get("/", headers={"Accept": "text/html"}).text.startswith("<!doctype html>")
    assert client.get("/api/version").json()["version"].count(".") == 2


def test_keys_are_asked_for_in_ollamas_words(serve: Callable[..., httpx2.Client]) -> None:
    one = serve(keys=Keys(names={hash_of("k"): "me"}))
    assert one.get("/api/version").status_code == 200
    answer = one.get("/api/tags")
    assert answer.status_code == 401 and "API key" in answer.json()["error"]
    assert one.get("/api/tags", headers={"Authorization": "Bearer k"}).status_code == 200


def test_what_the_operator_does_is_refused(client: httpx2.Client) -> None:
    for path in ("create", "copy", "push", "pull"):
        assert client.post(f"/api/{path}", json={"model": "other"}).status_code == 403
    assert client.request("DELETE", "/api/delete", json={"model": "default"}).status_code == 403


# Models that a request brings

OWNER, OTHER = hash_of("boss"), hash_of("guest")


@pytest.fixture
def pulling(tiny: Model) -> Iterator[Callable[..., httpx2.Client]]:
    """pulling(bring, most): a client, with the key that may, of a server that brings models so."""
    opened: list[Any] = []

    def start(bring: Any, most: int = 1000) -> httpx2.Client:
        pool = ModelPool({"tiny": lambda: tiny})
        keys = Keys(names={OWNER: "boss", OTHER: "guest"})
        context = running(make_app(pool, Settings(keys=keys), Pulls(bring, OWNER, most)))
        one = httpx2.Client(base_url=context.__enter__(), timeout=60, headers={"Authorization": "Bearer boss"})
        opened.append((context, one))
        return one

    yield start
    for context, one in opened:
        one.close()
        context.__exit__(None, None, None)


def test_a_model_is_brought_for_the_key_that_may_and_answers(
    pulling: Callable[..., httpx2.Client], tiny: Model
) -> None:
    def bring(name: str, told: Told) -> Callable[[], Model]:
        told(50, 100)
        threading.Event().wait(0.6)  # long enough for a line or two
        told(100, 100)
        return lambda: tiny

    one = pulling(bring)
    guest = one.post("/api/pull", json={"model": "new"}, headers={"Authorization": "Bearer guest"})
    assert guest.status_code == 403 and "new:latest" not in one.get("/api/tags").text
    told = [json.loads(line) for line in one.post("/api/pull", json={"model": "new"}).text.splitlines()]
    assert (told[0]["status"], told[-1]["status"]) == ("pulling manifest", "success")
    assert {"status": "pulling new", "digest": told[1]["digest"], "total": 100, "completed": 50} in told
    assert ask(one, model="new", messages=[USER], options={"num_predict": 2})["eval_count"] == 2
    assert ask(one, "/api/pull", model="new") == {"status": "success"}


def test_what_may_be_brought_is_bounded(pulling: Callable[..., httpx2.Client], tiny: Model) -> None:
    written = list[int]()

    def bring(name: str, told: Told) -> Callable[[], Model]:
        size = int(name.removeprefix("of"))
        for done in (0, size // 2, size):
            told(done, size)
            written.append(done)
        return lambda: tiny

    one = pulling(bring, most=1000)
    assert one.post("/api/pull", json={"model": "of2000", "stream": False}).status_code == 413 and not written
    assert one.post("/api/pull", json={"model": "of600", "stream": False}).status_code == 200
    streamed = one.post("/api/pull", json={"model": "of601"}).text.splitlines()
    assert json.loads(streamed[-1])["code"] == "pull_too_large" and written == [0, 300, 600]
    assert one.post("/api/pull", json={"model": "of400", "stream": False}).status_code == 200


def test_one_model_is_brought_at_a_time_and_whoever_leaves_ends_it(
    pulling: Callable[..., httpx2.Client], tiny: Model
) -> None:
    began, ended = threading.Event(), threading.Event()

    def bring(name: str, told: Told) -> Callable[[], Model]:
        try:
            for done in range(1, 10_000):
                began.set()
                told(min(done, 900), 900)
                threading.Event().wait(0.01)
        except ApiError:
            ended.set()
            raise
        raise AssertionError("nobody ended it")

    one = pulling(bring)
    with one.stream("POST", "/api/pull", json={"model": "long"}) as response:
        told = response.iter_lines()  # which closes the connection once nobody has it
        next(told)
        assert began.wait(10)
        assert one.post("/api/pull", json={"model": "other", "stream": False}).status_code == 429
    assert ended.wait(10)


def test_the_operator_names_the_key_that_may_and_no_path_is_brought() -> None:
    keys = Keys(names={OWNER: "boss", OTHER: "guest"})
    pulls = make_pulls(keys, PullLimits(pull="boss", pull_gib=2), Computing())

    assert (pulls.owner, pulls.most) == (OWNER, 2 << 30)
    assert make_pulls(keys, PullLimits(), Computing()) is None
    for name in ("/etc/passwd", "../model", "default"):
        with pytest.raises(InputError):
            pulls.bring(name, lambda done, total: None)
    for wrong in (keys, Keys()):
        with pytest.raises(InputError, match="no key has the name 'nobody'"):
            make_pulls(wrong, PullLimits(pull="nobody"), Computing())


def test_a_model_that_cannot_be_brought_is_an_error_in_the_stream(pulling: Callable[..., httpx2.Client]) -> None:
    def bring(name: str, told: Told) -> Callable[[], Model]:
        raise InputError(f"there is no model {name!r} on the hub")

    one = pulling(bring)
    assert "on the hub" in json.loads(one.post("/api/pull", json={"model": "x"}).text.splitlines()[-1])["error"]
    assert one.post("/api/pull", json={"model": "x", "stream": False}).status_code == 400
