"""Explanations and steering over HTTP: the same numbers and the same texts as the library's, or one clear error."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import httpx2
import pytest

from concept_models import CATALOG, SHAPE
from daguerre.http.settings import Settings
from daguerre.model import Model
from daguerre.server.app import make_app
from daguerre.server.models import ModelPool
from daguerre.server.protocol.common import MAX_STEERED
from served import Json, asked, refused, streamed
from server.conftest import running

CHAT, LEGACY, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
FIM, LLAMA, REQUESTS = "/v1/fim/completions", "/infill", "/v1/daguerre/requests"
TALK: Json = {"messages": [{"role": "user", "content": "x = "}], "max_tokens": 8}
BODIES: dict[str, Json] = {
    CHAT: TALK,
    LEGACY: {"prompt": "x = [1, 2", "max_tokens": 8},
    RESPONSES: {"input": "x = ", "max_output_tokens": 8},
    MESSAGES: TALK,
    FIM: {"prompt": "x = ", "suffix": "\n", "max_tokens": 8},
    LLAMA: {"input_prefix": "x = ", "input_suffix": "\n", "n_predict": 8},
}
PROGRAM: Json = {"steer": [{"kind": "add", "concepts": "call", "strength": 12.0}], "forbid": ["literal"]}


@pytest.fixture(scope="module")
def address(concept_pool: ModelPool) -> Iterator[str]:
    """The address of a server of a model with concept heads and one without."""
    with running(make_app(concept_pool, Settings(max_schema=4096))) as url:
        yield url


@pytest.fixture
def client(address: str) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=address, timeout=60) as one:
        yield one


def own(path: str, **fields: Any) -> Json:
    """A body with these fields in its `daguerre` object."""
    return {**BODIES[path], "daguerre": fields}


def plain(model: Model, **options: Any) -> Any:
    """The library's result of the request of `LEGACY`, and its concepts as JSON reads them."""
    result = model.generate(BODIES[LEGACY]["prompt"], 8, **options)
    concepts = None if result.concepts is None else json.loads(result.concepts.to_json())
    return result, concepts


@pytest.mark.parametrize("more", [{}, PROGRAM], ids=["alone", "steered"])
def test_completions_have_the_concepts_of_the_library(client: httpx2.Client, headed: Model, more: Json) -> None:
    result, wanted = plain(headed, explain=True, **more)
    body = own(LEGACY, explain=True, **more)
    choice = asked(client, LEGACY, body)["choices"][0]
    concepts = choice["daguerre"]["concepts"]

    assert choice["text"] == result.text == "".join(token["text"] for token in concepts["tokens"])
    assert concepts == {"num_known": SHAPE.known, **wanted}
    assert len(wanted["tokens"]) == 8 and wanted["error"] < 1e-4
    last = streamed(client, LEGACY, body)[-1]["choices"][0]
    assert last["finish_reason"] == choice["finish_reason"] and last["daguerre"] == choice["daguerre"]


def test_every_choice_has_its_own_concepts(client: httpx2.Client) -> None:
    body = {**own(LEGACY, explain=True), "temperature": 1.0, "seed": 5, "n": 2, "prompt": ["x = ", "import "]}
    choices = asked(client, LEGACY, body)["choices"]
    texts = ["".join(token["text"] for token in one["daguerre"]["concepts"]["tokens"]) for one in choices]
    assert texts == [one["text"] for one in choices] and len(set(texts)) == 4


@pytest.mark.parametrize("more", [{}, PROGRAM], ids=["alone", "steered"])
def test_chat_and_responses_explain_and_steer_as_completions_do(client: httpx2.Client, more: Json) -> None:
    choice = asked(client, CHAT, own(CHAT, explain=True, **more))["choices"][0]
    concepts = choice["daguerre"]["concepts"]
    assert "".join(token["text"] for token in concepts["tokens"]).lstrip(" ") == choice["message"]["content"]
    assert {"loop", "discovered 3"} & set(concepts["names"].values()) and concepts["error"] < 1e-4
    assert streamed(client, CHAT, own(CHAT, explain=True, **more))[-1]["choices"][0]["daguerre"] == choice["daguerre"]

    body = own(RESPONSES, explain=True, **more)
    answer = asked(client, RESPONSES, body)
    assert answer["output"][0]["content"][0]["text"] == choice["message"]["content"]
    assert answer["daguerre"]["concepts"] == concepts
    assert streamed(client, RESPONSES, body)[-1]["response"]["daguerre"]["concepts"] == concepts
    assert client.get(f"{RESPONSES}/{answer['id']}").json()["daguerre"]["concepts"] == concepts


@pytest.mark.parametrize("path", BODIES)
def test_every_route_steers_and_none_ignores_a_program(client: httpx2.Client, path: str) -> None:
    def text(body: Json) -> str:
        answer = asked(client, path, {"model": "headed", **body})
        for name in ("id", "created", "created_at", "completed_at", "usage", "timings"):
            answer.pop(name, None)
        return json.dumps([answer.get(name) for name in ("choices", "content")] + [_output(answer)])

    without, program = text(BODIES[path]), {"steer": [{"kind": "add", "concepts": ["loop"], "strength": 40.0}]}
    assert text({**BODIES[path], "daguerre": program}) != without
    assert text({**BODIES[path], "daguerre": {"steer": [], "explain": False}}) == without


def _output(answer: Json) -> list[Any]:
    return [item.get("content") and item["content"][0].get("text") for item in answer.get("output", [])]


@pytest.mark.parametrize("path", [CHAT, LEGACY])
def test_a_concept_with_texts_is_forbidden_exactly(client: httpx2.Client, path: str) -> None:
    choices = {"choices": ["eval(1)", "exec(1)", "f(1)"], "mode": "block"}
    warm = {"max_tokens": 12, "temperature": 2.0, "seed": 3, "n": 8}
    found = []
    for more in ({}, {"forbid": ["eval_exec"], "forbid_exactly": True}):
        answer = asked(client, path, {**own(path, **choices, **more), **warm})["choices"]
        found.append({one["text"] if path == LEGACY else one["message"]["content"] for one in answer})
    assert found[0] & {"eval(1)", "exec(1)"} and found[1] == {"f(1)"}
    error = refused(client, path, own(path, forbid=["loop"], forbid_exactly=True))
    assert "no text is in every instance" in error["message"]
    assert "forbid" in refused(client, path, own(path, forbid_exactly=True))["message"]


FIELDS: Json = {"explain": True, "steer": PROGRAM["steer"], "forbid": ["loop"], "forbid_exactly": True}


def test_a_field_at_the_top_of_a_body_is_refused_with_its_place(
    client: httpx2.Client, subtests: pytest.Subtests
) -> None:
    for path, (name, value) in product(BODIES, FIELDS.items()):
        with subtests.test(path, field=name):
            response = client.post(path, json={"model": "headed", **BODIES[path], name: value})
            error = response.json()["error"]
            assert response.status_code == 400 and f'"daguerre": {{"{name}"' in error["message"]
            assert path == MESSAGES or error["param"] == name


def test_a_model_without_heads_says_so(client: httpx2.Client, subtests: pytest.Subtests) -> None:
    for path, name in product((CHAT, LEGACY, RESPONSES, FIM), ("explain", "steer", "forbid")):
        if (path, name) == (FIM, "explain"):
            continue  # it has no place there
        with subtests.test(path, field=name):
            error = refused(client, path, {**own(path, **{name: FIELDS[name]}), "model": "tiny"})
            assert "'tiny' has no concept heads" in error["message"]
            assert error["param"] == f"daguerre.{name}" and error["code"] == "unsupported"


PROGRAMS: list[tuple[Json, str, str]] = [
    ({"steer": [{"kind": "add", "concepts": "lopo", "strength": 1}]}, "daguerre.steer", "'loop'"),
    ({"forbid": ["evalexec"]}, "daguerre.forbid", "'eval_exec'"),
    ({"steer": [{"kind": "add", "concepts": "loop"}]}, "daguerre.steer", "needs a strength"),
    ({"steer": [{"kind": "raise", "concepts": "loop"}]}, "daguerre.steer", "kind of steering"),
    ({"steer": [{"kind": "suppress", "concepts": ["loop"] * 200}]}, "daguerre.steer", f"at most {MAX_STEERED}"),
    ({"forbid": ["loop"] * 200}, "daguerre.forbid", f"at most {MAX_STEERED}"),
    ({"steer": {"loop": 4}}, "daguerre.steer", "list"),
    ({"explain": "much"}, "daguerre.explain", "boolean"),
    ({"explains": True}, "daguerre.explains", "not permitted"),
]
"""Fields of `daguerre`, the one that is named, and what is said of it."""


def test_a_wrong_program_is_refused_with_its_field(client: httpx2.Client, subtests: pytest.Subtests) -> None:
    for fields, param, words in PROGRAMS:
        with subtests.test(words, fields=fields):
            error = refused(client, LEGACY, own(LEGACY, **fields))
            assert error["param"] == param and words in error["message"]


def test_a_program_in_many_words_is_too_large(client: httpx2.Client) -> None:
    program = [{"kind": "add", "concepts": "loop", "strength": 1, "note": "x" * 9000}]
    response = client.post(LEGACY, json=own(LEGACY, steer=program))
    assert response.status_code == 413 and response.json()["error"]["param"] == "daguerre.steer"
    error = client.post(REQUESTS, json={"prompt": "x", "options": {"forbid": ["loop"] * 200}}).json()["error"]
    assert error["param"] == "options.forbid" and f"at most {MAX_STEERED}" in error["message"]


def test_where_concepts_have_no_place_they_are_refused(client: httpx2.Client) -> None:
    for path, body, param in (
        (FIM, own(FIM, explain=True), "daguerre"),
        (LLAMA, own(LLAMA, explain=True), "daguerre"),
        (CHAT, {**own(CHAT, explain=True), "diffusing": True}, "diffusing"),
        (CHAT, {**own(CHAT, trace=True), "diffusing": True}, "diffusing"),
    ):
        error = refused(client, path, body)
        assert error["param"] == param and "explain" in error["message"], path


def test_messages_have_no_place_for_concepts(client: httpx2.Client) -> None:
    response = client.post(MESSAGES, json={**own(MESSAGES, explain=True), "model": "headed"})
    assert response.status_code == 400 and "no place for explain" in response.json()["error"]["message"]


def test_a_watched_request_has_the_same_concepts_and_says_where_its_gaps_are(
    client: httpx2.Client, headed: Model
) -> None:
    _, wanted = plain(headed, explain=True)
    body = {"prompt": BODIES[LEGACY]["prompt"], "max_tokens": 8, "options": {"explain": True}, "stream": False}
    result = asked(client, REQUESTS, body)["result"]
    assert result["concepts"] == {"num_known": SHAPE.known, **wanted}
    first = result["starts"][0] + 1  # the last word of the prompt is drawn again
    assert result["concepts"]["tokens"][0]["position"] in (first - 1, first)
    template = {"kind": "fill", "template": "a = <gap>\nb = <gap>\n", "max_tokens": 3, "stream": False}
    two = asked(client, REQUESTS, {**template, "options": {"explain": True, "mode": "block"}})["result"]
    assert len(two["starts"]) == 2
    for token in two["concepts"]["tokens"]:
        assert any(start <= token["position"] < start + 3 + 3 for start in two["starts"])


def test_models_say_whether_they_have_concepts_and_which(client: httpx2.Client) -> None:
    facts = {one["id"]: one for one in client.get("/v1/models").json()["data"]}
    assert facts["headed"]["concepts"] == {"known": SHAPE.known, "discovered": SHAPE.discovered}
    asked(client, LEGACY, {**BODIES[LEGACY], "model": "tiny"})
    (tiny,) = [one for one in client.get("/v1/models").json()["data"] if one["id"] == "tiny"]
    assert tiny["concepts"] is None

    catalog = client.get("/v1/daguerre/concepts", params={"model": "headed"}).json()
    assert [one["name"] for one in catalog["data"]] == [one.name for one in CATALOG.concepts]
    assert [one["name"] for one in catalog["data"] if one["exact"]] == ["eval_exec"]
    assert (catalog["num_known"], catalog["num_discovered"]) == (SHAPE.known, SHAPE.discovered)
    assert client.get("/v1/daguerre/concepts").json() == catalog
    none = client.get("/v1/daguerre/concepts", params={"model": "tiny"})
    assert none.status_code == 400 and "no concept heads" in none.json()["error"]["message"]


def test_the_request_of_the_documentation_is_answered(client: httpx2.Client) -> None:
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    section = page[page.index("## Concepts") : page.index("## Keys and limits")].replace("\\\n", "")
    (found,) = re.findall(r"^curl \S+(/v1/\S+) .*? -d '(.*?)'$", section, flags=re.MULTILINE | re.DOTALL)
    choice = asked(client, found[0], json.loads(found[1]))["choices"][0]
    assert choice["daguerre"]["concepts"]["tokens"][0]["added"] and f"{MAX_STEERED} concepts" in section
