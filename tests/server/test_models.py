"""The models of a server: loaded by name, side by side, unloaded for want of memory."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from daguerre.errors import CheckpointError, EngineError
from daguerre.model import Model
from daguerre.server.app import make_app
from daguerre.server.models import CannotLoad, ModelPool, NoSuchModel
from server.conftest import running
from server.processes import wait_until

ASK = {"prompt": "def f(", "max_tokens": 4}


@pytest.fixture(scope="module")
def other(make_model: Callable[..., Model]) -> Model:
    return make_model(seed=1)


def size(model: Model) -> int:
    return sum(x.nbytes for x in model.backbone.parameters())


def test_models_are_loaded_once_each_when_they_are_asked_for(tiny: Model, other: Model) -> None:
    loaded = list[str]()
    pool = ModelPool({"a": lambda: loaded.append("a") or tiny, "b": lambda: loaded.append("b") or other})
    assert pool.names == ("a", "b") and loaded == []
    assert pool.get() is pool.get("a") is pool.get("default") is pool.get("")
    assert loaded == ["a"]
    assert pool.get("b").engine.generate("def f(", 8).result(60).text == other.generate("def f(", 8).text
    assert pool.get().engine.generate("def f(", 8).result(60).text == tiny.generate("def f(", 8).text
    assert loaded == ["a", "b"]
    with pytest.raises(NoSuchModel, match="no model 'c': ask for one of a, b") as error:
        pool.get("c")
    assert error.value.http_status == 404
    pool.close()


def test_the_model_that_was_used_the_longest_ago_gives_way(tiny: Model, other: Model) -> None:
    loaders = {"a": lambda: tiny, "b": lambda: other, "c": lambda: other}
    pool = ModelPool(loaders, memory=2 * size(tiny))
    for name in ("a", "b", "a", "c"):
        pool.get(name)
    assert [one.name for one in pool.loaded] == ["a", "c"]
    pool.get("b")
    assert [one.name for one in pool.loaded] == ["c", "b"]
    assert sum(one.num_bytes for one in pool.loaded) <= 2 * size(tiny)
    pool.close()


def test_a_model_at_work_does_not_give_way(tiny: Model, other: Model, caplog: pytest.LogCaptureFixture) -> None:
    pool = ModelPool({"a": lambda: tiny, "b": lambda: other}, memory=size(tiny))
    job = pool.get("a").engine.start_request("def f(", 200)
    stop = threading.Event()
    holding = pool.get("a").engine.call(lambda: stop.wait(60))  # the engine's thread stands still meanwhile
    wait_until(lambda: any((pool.get("a").engine.stats().waiting, pool.get("a").engine.stats().running)))
    pool.get("b")
    assert {one.name for one in pool.loaded} == {"a", "b"}
    assert "all are at work" in caplog.text
    stop.set()
    holding.result(60)
    job.cancel()
    pool.close()


def _unloading() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "daguerre-unload"]


def test_who_holds_a_model_that_is_unloaded_may_still_ask_it(tiny: Model, other: Model) -> None:
    pool = ModelPool({"a": lambda: tiny, "b": lambda: other}, memory=size(tiny))
    held = pool.get("a")
    pool.get("b")
    assert [one.name for one in pool.loaded] == ["b"]
    engine = held.engine
    job = engine.generate("def f(", 8)
    del held
    gc.collect()
    assert job.result(60).text == tiny.generate("def f(", 8).text
    wait_until(lambda: engine.error is not None and not _unloading())
    with pytest.raises(EngineError):
        engine.generate("def f(", 8)
    assert not _unloading()
    pool.close()


def test_a_model_that_cannot_be_loaded_is_tried_again(tiny: Model) -> None:
    tries = iter([CheckpointError("/secret/place is cut off"), RuntimeError("/secret/place"), None])

    def load() -> Model:
        error = next(tries)
        if error is not None:
            raise error
        return tiny

    pool = ModelPool({"a": load})
    for _ in range(2):
        with pytest.raises(CannotLoad, match="'a' could not be loaded; the server's log says why") as found:
            pool.get()
        assert found.value.http_status == 503 and "secret" not in str(found.value)
    assert pool.get().model is tiny
    pool.close()


def test_others_are_answered_while_a_model_is_loaded(tiny: Model, other: Model) -> None:
    begun, may_end, times = threading.Event(), threading.Event(), list[int]()

    def slow() -> Model:
        times.append(1)
        begun.set()
        assert may_end.wait(60)
        return other

    pool = ModelPool({"tiny": lambda: tiny, "slow": slow})
    with running(make_app(pool)) as url, httpx2.Client(base_url=url, timeout=60) as client:
        answers = list[Any]()

        def ask() -> None:
            answers.append(httpx2.post(f"{url}/v1/completions", json=ASK | {"model": "slow"}, timeout=60))

        askers = [threading.Thread(target=ask) for _ in range(12)]
        for asker in askers:
            asker.start()
        assert begun.wait(60)
        assert client.get("/health").status_code == client.get("/ready").status_code == 200
        assert client.post("/v1/completions", json=ASK | {"model": "tiny"}).status_code == 200
        assert client.get("/metrics").status_code == 200
        assert not answers
        may_end.set()
        for asker in askers:
            asker.join(60)
    assert [one.status_code for one in answers] == [200] * 12
    assert times == [1]
    assert {one.json()["choices"][0]["text"] for one in answers} == {other.generate("def f(", 4).text}
