"""Daguerre's own routes: requests that are watched, changed and cancelled, and the candidates of a position."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import numpy as np
import pytest

from daguerre.http.settings import Keys, Settings, hash_of
from daguerre.model import Model
from daguerre.server import watching
from daguerre.server.app import make_app
from daguerre.server.models import ModelPool
from daguerre.trace import Trace
from server.conftest import running
from server.processes import wait_until
from server.slowed import slowed

REQUESTS = "/v1/daguerre/requests"
CANDIDATES = "/v1/daguerre/candidates"
Events = list[tuple[str, dict[str, Any]]]


def parsed(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Server-sent events by the rules of the standard, as far as they are used."""
    name, data = "message", ""
    for line in lines:
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            data += line[6:]
        elif not line and data:
            yield name, json.loads(data)
            name, data = "message", ""


def events_of(client: httpx2.Client, **body: Any) -> Events:
    with client.stream("POST", REQUESTS, json={"model": "tiny", **body}) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        return list(parsed(answer.iter_lines()))


def result_of(client: httpx2.Client, **body: Any) -> dict[str, Any]:
    answer = client.post(REQUESTS, json={"model": "tiny", "stream": False, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()["result"]


BLOCK = {"mode": "block", "block_size": 8, "policy": "confidence", "steps": 4}
ASKED: dict[str, Any] = {"prompt": "def f(x):\n", "max_tokens": 24, "options": BLOCK}


def test_each_step_has_the_whole_draft_and_the_end_what_the_library_returns(client: httpx2.Client, tiny: Model) -> None:
    wanted = tiny.generate("def f(x):\n", 24, **BLOCK)

    (first, head), *steps, (last, end) = events_of(client, **ASKED)

    assert (first, last) == ("begin", "end") and {name for name, _ in steps} == {"step"}
    assert head["mode"] == "block" and head["policy"] == "confidence" and len(head["gaps"]) == 1
    assert (end["text"], end["usage"]["forwards"]) == (wanted.text, wanted.usage.forwards)
    assert end["finish_reason"] == wanted.finish_reason
    assert [token["id"] for token in end["tokens"]] == [token.id for token in wanted.tokens]
    assert [step["number"] for _, step in steps] == list(range(len(wanted.trace.steps)))
    assert [step["forwards"] for _, step in steps][-1] == wanted.usage.forwards
    assert json.dumps(end["trace"], separators=(",", ":")) == wanted.trace.to_json()


def test_drafts_are_what_the_trace_replays(client: httpx2.Client, tiny: Model) -> None:
    _, *steps, (_, end) = events_of(client, **ASKED)
    trace, pieces = Trace.from_json(json.dumps(end["trace"])), tiny.tokenizer

    for canvas, step, (_, shown) in zip(trace.replay(), trace.steps, steps, strict=True):
        start = canvas.gaps[0][0]
        by_place = {token["position"]: token for token in shown["gaps"][0]}
        for place, token in by_place.items():
            assert (token["state"] == "open") == bool(canvas.open[start + place])
        for position, probability in zip(step.decision.positions, step.decision.probabilities, strict=True):
            token = by_place.get(int(position) - start)
            if token is not None and token["state"] == "drawn":
                assert (token["step"], token["probability"]) == (step.step, probability)
                raw = pieces.token_bytes(int(canvas.tokens[position]))
                if token["position"] > 3 and raw.isascii() and "\ufffd" not in token["text"]:  # not healed
                    assert token["text"] == raw.decode()


def test_the_tokens_join_to_the_text_and_final_ones_never_change(client: httpx2.Client) -> None:
    final: dict[int, str] = {}
    _, *steps, (_, end) = events_of(client, **ASKED)

    for _, step in steps:
        now = {token["position"]: token["text"] for token in step["gaps"][0] if token["final"]}
        assert final.items() <= now.items()
        assert "".join(now[place] for place in sorted(now)) == step["committed"]
        final = now
    last = [token["text"] for token in steps[-1][1]["gaps"][0] if token["state"] == "drawn"]
    assert "".join(last).startswith(end["text"]) and final


def test_changes_rebuild_the_whole_drafts(client: httpx2.Client) -> None:
    options = {"mode": "block", "block_size": 8, "revise": 2, "revise_threshold": 0.1, "temperature": 1.0}
    body = {**ASKED, "options": options}
    whole = events_of(client, **body)
    (_, head), *steps, _ = events_of(client, **body, drafts="changes")

    board = [{token["position"]: token for token in tokens} for tokens in head["gaps"]]
    for (_, step), (_, wanted) in zip(steps, whole[1:-1], strict=True):
        for tokens, news in zip(board, step["gaps"], strict=True):
            tokens.update({token["position"]: token for token in news})
        assert [list(tokens.values()) for tokens in board] == wanted["gaps"]
    sent = [len(step["gaps"][0]) for _, step in steps]
    assert max(sent) < len(board[0]) and any(sent)


def test_characters_of_several_tokens_come_whole(client: httpx2.Client) -> None:
    text = "é€😀ß"
    _, *steps, (_, end) = events_of(client, prompt="x", options={"choices": [text], "mode": "block"})

    tokens = [token for token in steps[-1][1]["gaps"][0] if token["state"] == "drawn"]
    assert end["text"] == text and "".join(token["text"] for token in tokens) == text
    assert len(tokens) > len(text)  # some have the text of the ones before


KINDS: dict[str, tuple[dict[str, Any], Callable[[Model], Any]]] = {
    "infill": (
        {"prefix": "def f(x):\n", "suffix": "\n    return x\n", "max_tokens": 9},
        lambda m: m.infill("def f(x):\n", "\n    return x\n", 9, mode="block"),
    ),
    "fill": (
        {"template": "def <gap>(x):\n    return <gap>\n", "max_tokens": [4, 6]},
        lambda m: m.fill("def <gap>(x):\n    return <gap>\n", [4, 6], mode="block"),
    ),
    "edit": (
        {"text": "def f(x):\n    return x + 1\n", "spans": [[4, 5], [21, 26]]},
        lambda m: m.edit("def f(x):\n    return x + 1\n", [(4, 5), (21, 26)], mode="block"),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_the_call_of_the_library(client: httpx2.Client, tiny: Model, kind: str) -> None:
    body, call = KINDS[kind]
    wanted = call(tiny)

    (_, head), *_, (_, end) = events_of(client, kind=kind, **body, options={"mode": "block"})

    assert end["text"] == wanted.text and tuple(end["texts"]) == wanted.texts
    assert [tuple(span) for span in end["spans"]] == list(wanted.spans)
    assert end["diff"] == (wanted.diff if kind == "edit" else None)
    assert len(head["gaps"]) == len(wanted.texts)
    if kind != "infill":
        before, after = head["around"][0], head["around"][-1]
        assert wanted.text.startswith(before) and wanted.text.endswith(after)
    assert result_of(client, kind=kind, **body, options={"mode": "block"})["text"] == wanted.text


def test_a_text_that_loops_is_ended_and_both_forms_say_so(client: httpx2.Client, trained: Model) -> None:
    asked = {"model": "default", "prompt": "import os\nimport os\nimport os\n"}
    for most, loops in ((400, True), (4, False)):
        assert result_of(client, **asked | {"max_tokens": most})["looped"] is loops
        body = asked | {"max_tokens": most, "temperature": 0}
        answer = client.post("/v1/completions", json=body).json()["choices"][0]
        assert answer.get("daguerre") == ({"stopped": "loop"} if loops else None)


def test_a_request_that_is_done_is_watched_from_the_start(client: httpx2.Client) -> None:
    seen = events_of(client, **ASKED)
    key = seen[0][1]["id"]

    with client.stream("GET", f"{REQUESTS}/{key}") as answer:
        again = list(parsed(answer.iter_lines()))

    assert again == seen


# Requests that run


FAST = threading.Event()
"""Set where what is left of a request shall take no more time."""


@pytest.fixture(scope="module")
def slow_server(tiny: Model) -> Iterator[tuple[httpx2.Client, ModelPool]]:
    """A client of a server whose forwards take time until `FAST` is set, with two keys; and its models."""
    model = slowed(tiny, FAST)
    pool = ModelPool({"tiny": lambda: model})
    settings = Settings(keys=Keys(names={hash_of("one"): "one", hash_of("two"): "two"}))
    headers = {"Authorization": "Bearer one"}
    with running(make_app(pool, settings)) as url, httpx2.Client(base_url=url, timeout=60, headers=headers) as client:
        yield client, pool


@pytest.fixture
def slow(slow_server: tuple[httpx2.Client, ModelPool]) -> tuple[httpx2.Client, ModelPool]:
    """That server, slow again."""
    FAST.clear()
    return slow_server


LONG: dict[str, Any] = {
    "model": "tiny",
    "prompt": "def f(x):\n",
    "max_tokens": 60,
    "options": {"mode": "block", "block_size": 60, "policy": "confidence", "end_of_text": "never"},
}


def begun(client: httpx2.Client, **body: Any) -> str:
    answer = client.post(REQUESTS, json={**LONG, "detach": True, **body})
    assert answer.status_code == 202 and answer.json()["status"] == "running"
    return answer.json()["id"]


def until_idle(pool: ModelPool) -> None:
    """Wait until the engine has nothing to do."""
    wait_until(lambda: pool.get("tiny").idle)


def test_a_running_request_is_pinned_and_opened(slow: tuple[httpx2.Client, ModelPool], tiny: Model) -> None:
    client, _ = slow
    key = begun(client, changeable=True)
    seen: Events = []

    def change(body: dict[str, Any]) -> None:
        answer = client.post(f"{REQUESTS}/{key}/change", json=body)
        assert answer.status_code == 200, answer.text

    with client.stream("GET", f"{REQUESTS}/{key}") as answer:
        for name, data in parsed(answer.iter_lines()):
            seen.append((name, data))
            if len(seen) == 4:
                change({"pin": {"at": 40, "text": "return"}})
                change({"pin": {"at": 50, "text": "x"}})
                change({"unpin": [50, 51]})
                change({"remask": [0, 60]})
                FAST.set()

    end = seen[-1][1]
    changes = [data["change"] for name, data in seen if name == "step" and data["change"]]
    assert changes == ["pin", "pin", "unpin", "remask"]
    pinned = [token for token in seen[-2][1]["gaps"][0] if token["state"] == "pinned"]
    assert [(token["position"], token["text"]) for token in pinned] == [(40, "return")]
    assert "return" in end["text"]
    trace = Trace.from_json(json.dumps(end["trace"]))
    assert len(trace.steps) == len(seen) - 2
    opened = next(data for name, data in seen if name == "step" and data["change"] == "remask")
    assert {token["state"] for token in opened["gaps"][0]} == {"open", "pinned"}


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"pin": {"at": 99, "text": "x"}}, "pin"),
    ({"unpin": [0, 3]}, "nothing is pinned there"),
    ({"remask": [50, 99]}, "not in the gap"),
    ({"pin": {"at": 1, "text": "x"}, "remask": [1, 2]}, "one change at a time"),
    ({}, "one change at a time"),
    ({"move": [1, 2]}, "move"),
]
"""Changes that fit no request, and what is said of them."""


def test_a_change_that_does_not_fit_is_refused(
    slow: tuple[httpx2.Client, ModelPool], subtests: pytest.Subtests
) -> None:
    client, _ = slow
    for body, words in CHANGES:
        with subtests.test(words, body=body):
            key = begun(client, changeable=True)

            answer = client.post(f"{REQUESTS}/{key}/change", json=body)

            assert answer.status_code == 400 and words in answer.json()["error"]["message"]
            assert client.delete(f"{REQUESTS}/{key}").status_code == 200


def test_a_request_that_is_not_changeable_or_done_is_not_changed(slow: tuple[httpx2.Client, ModelPool]) -> None:
    client, _ = slow
    fixed, done = begun(client), events_of(client, prompt="x", max_tokens=2, changeable=True)[0][1]["id"]
    remask = {"remask": [0, 1]}

    assert client.post(f"{REQUESTS}/{fixed}/change", json=remask).status_code == 400
    answer = client.post(f"{REQUESTS}/{done}/change", json=remask)

    assert answer.status_code == 409 and answer.json()["error"]["code"] == "request_done"
    client.delete(f"{REQUESTS}/{fixed}")


def test_a_cancelled_request_ends_and_is_forgotten(slow: tuple[httpx2.Client, ModelPool]) -> None:
    client, pool = slow
    key = begun(client)

    with client.stream("GET", f"{REQUESTS}/{key}") as answer:
        stream = parsed(answer.iter_lines())
        next(stream)
        assert client.delete(f"{REQUESTS}/{key}").json() == {
            "id": key,
            "object": "daguerre.request",
            "deleted": True,
            "status": "running",
        }
        last = list(stream)[-1]

    assert last[0] == "error" and "cancelled" in last[1]["error"]["message"]
    until_idle(pool)
    assert client.get(f"{REQUESTS}/{key}").status_code == 404


def test_a_request_ends_when_its_client_goes_away_unless_it_is_detached(slow: tuple[httpx2.Client, ModelPool]) -> None:
    client, pool = slow
    with client.stream("POST", REQUESTS, json=LONG) as answer:
        key = next(parsed(answer.iter_lines()))[1]["id"]
    until_idle(pool)
    with client.stream("GET", f"{REQUESTS}/{key}") as answer:
        assert list(parsed(answer.iter_lines()))[-1][0] == "error"

    kept = begun(client)
    with client.stream("GET", f"{REQUESTS}/{kept}") as answer:
        next(parsed(answer.iter_lines()))
    FAST.set()
    with client.stream("GET", f"{REQUESTS}/{kept}") as answer:
        assert list(parsed(answer.iter_lines()))[-1][0] == "end"


def test_a_request_goes_on_while_another_client_watches_it(slow: tuple[httpx2.Client, ModelPool]) -> None:
    client, _ = slow
    first = client.stream("POST", REQUESTS, json=LONG)
    begin = parsed(first.__enter__().iter_lines())
    key = next(begin)[1]["id"]

    with client.stream("GET", f"{REQUESTS}/{key}") as second:
        others = parsed(second.iter_lines())
        next(others)
        first.__exit__(None, None, None)
        FAST.set()
        assert list(others)[-1][0] == "end"


def test_the_requests_of_another_key_are_not_found(slow: tuple[httpx2.Client, ModelPool]) -> None:
    client, _ = slow
    key, other = begun(client), {"Authorization": "Bearer two"}

    answers = [
        client.get(f"{REQUESTS}/{key}", headers=other),
        client.post(f"{REQUESTS}/{key}/change", json={"remask": [0, 1]}, headers=other),
        client.post(CANDIDATES, json={"id": key, "position": 0}, headers=other),
        client.delete(f"{REQUESTS}/{key}", headers=other),
    ]

    assert [answer.status_code for answer in answers] == [404] * 4
    assert client.delete(f"{REQUESTS}/{key}").status_code == 200


def test_old_requests_are_forgotten(client: httpx2.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "KEPT_REQUESTS", 2)
    keys = [events_of(client, prompt="x", max_tokens=2)[0][1]["id"] for _ in range(4)]
    assert [client.get(f"{REQUESTS}/{key}").status_code for key in keys[-3:]] == [404, 200, 200]

    monkeypatch.setattr(watching, "KEPT_BYTES", 1)
    assert [client.get(f"{REQUESTS}/{key}").status_code for key in keys[-2:]] == [404, 200]

    monkeypatch.setattr(watching, "KEPT_SECONDS", 0.0)
    assert client.get(f"{REQUESTS}/{keys[-1]}").status_code == 404


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "needs 'prompt'"),
    ({"prompt": "x", "suffix": "y"}, "'suffix' is not of kind 'generate'"),
    ({"kind": "infill", "prefix": "x"}, "needs 'suffix'"),
    ({"kind": "fill", "template": "no gap"}, "<gap>"),
    ({"kind": "edit", "text": "x"}, "spans"),
    ({"kind": "fill", "template": "a <gap> b", "changeable": True}, "changeable"),
    ({"prompt": "x", "options": {"tempreature": 1}}, "temperature"),
    ({"prompt": "x", "options": {"n": 3}}, "one sample"),
    ({"prompt": "x", "options": {"scorer": 1}}, "unknown option"),
    ({"prompt": "x", "options": {"pins": [{"text": "y"}]}}, '"at"'),
    ({"prompt": "x", "options": {"pins": "y"}}, "list of objects"),
    ({"prompt": "x", "options": {"logit_bias": {"y": 1}}}, "token id"),
    ({"prompt": "x", "max_tokens": [3, 4]}, "one number"),
    ({"prompt": "x", "changeable": True, "heal": True}, "heals no word"),
    ({"prompt": "x", "surprise": 1}, "surprise"),
]
"""Bodies, and what is said of them."""


def test_what_does_not_fit_is_refused_in_one_line(client: httpx2.Client, subtests: pytest.Subtests) -> None:
    for body, words in REFUSED:
        with subtests.test(words, body=body):
            answer = client.post(REQUESTS, json={"model": "tiny", **body})

            assert answer.status_code == 400
            message = answer.json()["error"]["message"]
            assert words in message and "\n" not in message and "Value error" not in message


def test_schemas_beyond_the_bound_are_refused(serve: Callable[..., httpx2.Client]) -> None:
    one = serve(max_schema=100)

    answer = one.post(REQUESTS, json={"prompt": "x", "options": {"regex": "a" * 200}})

    assert answer.status_code == 413 and answer.json()["error"]["param"] == "options.regex"


def test_options_reach_the_library(client: httpx2.Client, tiny: Model) -> None:
    effort = result_of(client, prompt="def f(x):\n", max_tokens=16, effort="instant", options={"mode": "block"})
    pins = [{"text": "return", "at": 3}]
    pinned = result_of(client, prompt="def f(x):\n", max_tokens=16, options={"mode": "block", "pins": pins})
    biased = result_of(client, prompt="x", max_tokens=4, options={"mode": "ar", "logit_bias": {"300": 1000}})
    short = result_of(client, prompt="x", max_tokens=8, options={"regex": "[a-c]{3}"})

    wanted = tiny.generate("def f(x):\n", 16, mode="block", threshold=0.3)
    assert (effort["text"], effort["usage"]["forwards"]) == (wanted.text, wanted.usage.forwards)
    assert pinned["tokens"][3]["text"] == "return" and pinned["tokens"][3]["logprob"] is None
    assert [token["id"] for token in biased["tokens"]][1:] == [300] * (len(biased["tokens"]) - 1)  # the first heals "x"
    assert len(short["text"]) == 3 and set(short["text"]) <= set("abc")


# Candidates


def test_candidates_of_a_step_have_the_probability_that_the_next_step_committed_by(client: httpx2.Client) -> None:
    (_, head), *_, (_, end) = events_of(client, **{**ASKED, "heal": False})
    trace = Trace.from_json(json.dumps(end["trace"]))
    start, compared = trace.canvas.gaps[0][0], 0

    for number, step in enumerate(trace.steps[1:]):
        if step.decision.positions[0] - start >= 8:
            continue  # a span that has not begun at the step before
        for position, token, probability in zip(
            step.decision.positions.tolist(), step.decision.tokens, step.decision.probabilities, strict=True
        ):
            body = {"id": head["id"], "event": number, "position": position - start, "top": 3}
            answer = client.post(CANDIDATES, json=body).json()
            known = {one["id"]: one["probability"] for one in answer["candidates"]}
            assert known[int(token)] == pytest.approx(probability, abs=1e-5) and answer["drawn"] is None
            compared += 1
    assert compared >= 6


def test_candidates_after_a_text_are_the_next_tokens_of_the_model(client: httpx2.Client, tiny: Model) -> None:
    text, tokenizer = "def f(x):\n    return", tiny.tokenizer
    answer = client.post(CANDIDATES, json={"model": "tiny", "text": text + "░", "position": 0, "top": 50}).json()

    best = answer["candidates"]
    probs = [one["probability"] for one in best]
    assert probs == sorted(probs, reverse=True) and 0.1 < sum(probs) <= 1.0001 and answer["forwards"] == 1
    num = 0
    for one in best[:20]:
        whole = text + one["text"]
        if one["special"] or tokenizer.encode(whole) != [*tokenizer.encode(text), one["id"]]:
            continue
        assert one["probability"] == pytest.approx(np.exp(-tiny.nll(whole).by_token[-1]), rel=1e-3)
        num += 1
    assert num


def test_candidates_of_a_drawn_position_are_those_before_it_was_drawn(client: httpx2.Client) -> None:
    options = {"mode": "block", "block_size": 24, "policy": "confidence", "end_of_text": "never"}
    (_, head), *steps, (_, end) = events_of(client, prompt="def f(x):\n", max_tokens=24, heal=False, options=options)
    (last,) = [token for token in steps[-1][1]["gaps"][0] if token["step"] == steps[-1][1]["step"]]
    body = {"id": head["id"], "position": last["position"], "top": 5}

    now = client.post(CANDIDATES, json=body).json()
    before = client.post(CANDIDATES, json={**body, "event": len(steps) - 2}).json()

    assert before["drawn"] is None and now["drawn"]["id"] == end["tokens"][last["position"]]["id"]
    assert now["drawn"]["probability"] == pytest.approx(last["probability"], abs=1e-5)
    pairs = zip(now["candidates"], before["candidates"], strict=True)
    assert all(a["id"] == b["id"] and a["probability"] == pytest.approx(b["probability"]) for a, b in pairs)


def test_candidates_in_a_gap_see_the_text_after_it(client: httpx2.Client) -> None:
    def best(text: str) -> list[float]:
        body = {"model": "tiny", "text": text, "position": 1, "top": 5}
        return [one["probability"] for one in client.post(CANDIDATES, json=body).json()["candidates"]]

    assert best("def f(░░):\n    return x\n") != best("def f(░░):\n    return y\n")


NOTHING: list[tuple[dict[str, Any], str]] = [
    ({"text": "no gap", "position": 0}, "0 open positions"),
    ({"text": "a░", "position": 1}, "1 open positions"),
    ({"position": 0}, "give the 'id'"),
    ({"text": "a░", "id": "b", "position": 0}, "give the 'id'"),
    ({"text": "░" * 5000, "position": 0}, "shorten the text"),
    ({"text": "a░", "position": 0, "top": 0}, "top"),
]
"""Positions that do not exist, and what is said of them."""


def test_candidates_of_nothing_are_refused(client: httpx2.Client, subtests: pytest.Subtests) -> None:
    for body, words in NOTHING:
        with subtests.test(words, body=body):
            answer = client.post(CANDIDATES, json={"model": "tiny", **body})

            assert answer.status_code == 400 and words in answer.json()["error"]["message"]


def test_candidates_of_a_place_that_a_request_does_not_have_are_refused(client: httpx2.Client) -> None:
    key = events_of(client, **ASKED)[0][1]["id"]

    for name, place in (("gap", 1), ("position", 24 + 8), ("event", 999)):
        answer = client.post(CANDIDATES, json={"id": key, "position": 0, name: place})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == name


# Static files of the playground

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def test_the_page_and_its_files_are_served_with_a_strict_policy(client: httpx2.Client) -> None:
    kinds = {"": "text/html", "playground/app.js": "text/javascript", "playground/style.css": "text/css"}
    for path, kind in (kinds | {"playground/favicon.svg": "image/svg+xml"}).items():
        answer = client.get(f"/{path}", headers=BROWSER)
        assert answer.status_code == 200 and answer.headers["content-type"].startswith(kind)
        assert answer.headers["content-security-policy"].startswith("default-src 'self';")
        assert "unsafe" not in answer.headers["content-security-policy"]
        again = client.get(f"/{path}", headers={**BROWSER, "If-None-Match": answer.headers["etag"]})
        assert again.status_code == 304 and not again.content


def test_other_files_are_not_served(client: httpx2.Client) -> None:
    for path in ("nothing.js", "..%2Fapp.py", "%2e%2e%2fapp.py", "__init__.py", "style.css%00"):
        assert client.get(f"/playground/{path}").status_code == 404, path


def test_without_the_playground_there_is_no_page(serve: Callable[..., httpx2.Client]) -> None:
    one = serve(playground=False)

    assert one.get("/", headers=BROWSER).headers["content-type"].startswith("text/plain")
    assert one.get("/playground/app.js").status_code == 404
