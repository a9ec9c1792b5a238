"""Which answers are kept, for whom, and which requests they are given to again."""

from __future__ import annotations

import copy
import json
import math
import random
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daguerre.errors import InputError
from daguerre.router import cache
from daguerre.router.cache import (
    OVERHEAD,
    AnswerCache,
    CachedResponse,
    CacheKey,
    CacheStats,
    Hit,
    key_of,
    may_cache,
    may_keep,
)
from daguerre.router.config import Cache
from daguerre.router.near import DIMENSIONS, marks_of, nearest, vector_of
from scripted_backends import answer, events

TABLE = Cache(ttl=60)
NEAR = Cache(ttl=60, near=0.8)


def database(path: Path | str = ":memory:") -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


def chat(text: str = "hello", **more: Any) -> dict[str, Any]:
    return {"model": "auto", "messages": [{"role": "user", "content": text}], "temperature": 0} | more


def key(body: dict[str, Any], operation: str = "chat", **more: Any) -> CacheKey:
    found = key_of(operation, body, **({"answerers": "a", "owner": "", "wishes": {}} | more))
    assert found is not None
    return found


def said(text: str = "answer", **more: Any) -> CachedResponse:
    return CachedResponse(answer(text), "application/json", "one", **more)


def body_of(hit: Hit | None) -> bytes | None:
    return None if hit is None else hit.answer.body


# Which requests.


def test_only_a_temperature_of_0_that_is_given_is_kept() -> None:
    for given_, kept in ((0, True), (0.0, True), (0.1, False), (1, False), (None, False), (False, False), ("0", False)):
        assert may_cache("chat", chat(temperature=given_), {}, TABLE) is kept
    without = chat()
    del without["temperature"]
    assert not may_cache("chat", without, {}, TABLE) and not may_cache("chat", without | {"seed": 1}, {}, TABLE)
    assert may_cache("chat", without, {"cache": "on"}, TABLE)
    assert may_cache("embeddings", {"input": "x"}, {}, TABLE) and may_cache("decisions", {"state": "x"}, {}, TABLE)
    assert not may_cache("embeddings", {"input": "x", "temperature": 1}, {}, TABLE)


WITH_TOOLS: tuple[dict[str, Any], ...] = (
    {"tools": [{"type": "function", "function": {"name": "f"}}]},
    {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"},
    {"functions": [{"name": "f"}]},
    {"web_search_options": {"search_context_size": "low"}},
    {"messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}, {"role": "user", "content": "x"}]},
    {"messages": [{"role": "assistant", "function_call": {"name": "f"}}, {"role": "user", "content": "x"}]},
    {"messages": [{"role": "tool", "tool_call_id": "c", "content": "x"}]},
    {"messages": [{"role": "function", "name": "f", "content": "x"}]},
    {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]},
)


def test_a_conversation_with_tools_is_kept_only_if_it_is_wished(subtests: pytest.Subtests) -> None:
    for more in WITH_TOOLS:
        with subtests.test(more=more):
            assert not may_cache("chat", chat(**more), {}, TABLE)
            assert may_cache("chat", chat(**more), {"cache": "on"}, TABLE)
            assert key(chat(**more), near=True).rest is None


def test_no_tools_in_lists_that_are_empty() -> None:
    assert may_cache("chat", chat(tools=[], functions=None), {}, TABLE)
    assistant = {"role": "assistant", "content": "x", "tool_calls": None, "function_call": None}
    assert may_cache("chat", chat(messages=[assistant, {"role": "user", "content": "x"}]), {}, TABLE)


STATEFUL: tuple[dict[str, Any], ...] = (
    {"previous_response_id": "r"},
    {"conversation": "c"},
    {"background": True},
    {"prompt": {"id": "p"}},
    {"store": True},
    {"store": None},
    {"input": [{"type": "item_reference", "id": "i"}]},
    {"daguerre": {"timeout": 1.5}},
    {"daguerre": {"changeable": True}},
)


def test_what_depends_on_a_servers_state_or_clock_is_never_kept(subtests: pytest.Subtests) -> None:
    body: dict[str, Any] = {"input": "x", "temperature": 0, "store": False}
    assert may_cache("responses", body, {}, TABLE)
    for more in STATEFUL:
        with subtests.test(more=more):
            assert not may_cache("responses", body | more, {"cache": "on"}, TABLE)


def test_responses_with_calls_in_their_input_are_kept_only_if_it_is_wished() -> None:
    call = {"type": "function_call_output", "call_id": "c", "output": "x"}
    body = {"input": [{"role": "user", "content": "x"}, call], "temperature": 0, "store": False}
    assert not may_cache("responses", body, {}, TABLE) and may_cache("responses", body, {"cache": "on"}, TABLE)
    assert may_cache("responses", body | {"input": [{"type": "message", "role": "user", "content": "x"}]}, {}, TABLE)


def test_a_chat_that_is_to_be_stored_and_a_wish_to_be_left_alone_are_never_answered_from_the_cache() -> None:
    assert not may_cache("chat", chat(store=True), {"cache": "on"}, TABLE)
    assert not may_cache("chat", chat(), {"cache": "off"}, TABLE)
    assert not may_cache("chat", chat(), {"cache": "on"}, Cache())


def test_a_wish_for_near_answers_is_refused_where_the_configuration_has_none() -> None:
    with pytest.raises(InputError, match="set near in"):
        may_cache("chat", chat(), {"cache": "near"}, TABLE)
    assert may_cache("chat", chat(), {"cache": "near"}, NEAR)
    assert not may_cache("chat", chat(temperature=1), {"cache": "near"}, NEAR)


# The key.

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
BODY = st.dictionaries(st.text(max_size=8), JSON, max_size=6)


def shuffled(value: Any, order: random.Random) -> Any:
    """The same value: objects in another order, and integers as floats."""
    if isinstance(value, dict):
        pairs = [(name, shuffled(held, order)) for name, held in value.items()]
        order.shuffle(pairs)
        return dict(pairs)
    if isinstance(value, list):
        return [shuffled(held, order) for held in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def plain(value: Any) -> Any:
    """Equal in Python where two JSON values are equal: True is not 1 here."""
    if isinstance(value, dict):
        return {name: plain(held) for name, held in value.items()}
    return [plain(held) for held in value] if isinstance(value, list) else (isinstance(value, bool), value)


@settings(max_examples=40, deadline=None)
@given(body=BODY, order=st.randoms(use_true_random=False))
def test_the_order_of_fields_and_how_a_number_is_written_do_not_change_the_key(
    body: dict[str, Any], order: random.Random
) -> None:
    assert key(body) == key(shuffled(body, order))


@settings(max_examples=60, deadline=None)
@given(one=BODY, other=BODY, name=st.text(max_size=8), value=JSON)
def test_bodies_have_one_key_exactly_if_all_that_counts_is_equal(
    one: dict[str, Any], other: dict[str, Any], name: str, value: Any
) -> None:
    def counted(body: dict[str, Any]) -> Any:
        off = body.get("stream") in (None, False)
        return plain({k: v for k, v in body.items() if k not in cache.APART and not (k == "stream" and off)})

    for changed in (other, one | {name: value}):
        assert (key(one) == key(changed)) == (counted(one) == counted(changed))


OTHERWISE: tuple[dict[str, Any], ...] = (
    {"model": "b"},
    {"temperature": 0.5},
    {"n": 2},
    {"seed": 1},
    {"seed": True},
    {"logprobs": True},
    {"max_tokens": 5},
    {"stop": None},
    {"stream": True},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"service_tier": "flex"},
    {"response_format": {"type": "json_object"}},
    {"tools": [{"type": "function", "function": {"name": "f"}}]},
    {"daguerre": {"mode": "ar"}},
    {"messages": [{"role": "system", "content": "hello"}]},
    {"messages": [{"role": "user", "content": "Hello"}]},
    {"messages": [{"role": "user", "content": "hello "}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]},
    {"messages": [{"role": "user", "content": "hello", "name": "ann"}]},
)


def test_what_can_change_an_answer_changes_the_key(subtests: pytest.Subtests) -> None:
    for more in OTHERWISE:
        with subtests.test(more=more):
            found = {key(chat(**more)).exact, key(chat(**more, user="x")).exact}
            assert len(found) == 1 and key(chat()).exact not in found


def test_normal_forms_of_a_text_have_keys_of_their_own_and_so_have_true_and_1() -> None:
    assert key(chat("caf\u00e9")) != key(chat("cafe\u0301"))
    assert key(chat(logprobs=1)) != key(chat(logprobs=True))
    assert key(chat(seed=0)) == key(chat(seed=0.0)) == key(chat(seed=-0.0)) != key(chat(seed=None))
    assert key(chat(seed=2**64 - 1)) != key(chat(seed=2**64 - 2))
    assert key(chat(top_p=0.1)) != key(chat(top_p=0.1 + 1e-16))


def test_who_asks_and_who_may_answer_changes_the_key() -> None:
    plain_ = key(chat())
    others: list[dict[str, Any]] = [
        {"answerers": "b"},
        {"owner": "ann"},
        {"owner": None},
        {"operation": "completions"},
        {"beta": "assistants=v2"},
        *({"wishes": wish} for wish in ({"backend": "x"}, {"step": "plan"}, {"tags": ["eu"]}, {"max_cost": 1.0})),
    ]
    found = [key(chat(), **other) for other in others]
    assert len({plain_, *found}) == len(others) + 1
    assert plain_ == key(chat(), wishes={"slo_ms": 5.0, "explore": True, "cache": "on"})


def test_who_the_end_user_is_changes_the_key_of_responses_alone_which_repeat_it() -> None:
    for name in sorted(cache.APART - {"store"}):
        assert key(chat()) == key(chat(**{name: "x"}))
        assert key({"input": "x"}, "responses") != key({"input": "x", name: "x"}, "responses")
    assert key(chat()) == key(chat(store=False)) == key(chat(stream=False)) == key(chat(stream=None))


def test_a_body_that_is_nested_too_deeply_or_is_no_text_has_no_key() -> None:
    deep: Any = "x"
    for _ in range(300):
        deep = [deep]
    more: dict[str, Any] = {"answerers": "a", "owner": "", "wishes": {}, "near": True}
    assert key_of("chat", chat(stop=deep), **more) is None
    for _ in range(3000):
        deep = [deep]
    assert key_of("chat", chat(stop=deep), **more) is None
    assert key_of("chat", chat("\ud800"), **more) is None


# Which answers.


def test_an_answer_is_kept_only_if_it_is_whole_and_ended_as_it_should() -> None:
    kind = "application/json"
    assert may_keep(200, kind, answer())
    assert not may_keep(201, kind, answer()) and not may_keep(200, kind, answer()[:-1])
    for finish, kept in (
        ("length", True),
        ("tool_calls", True),
        ("error", False),
        ("content_filter", False),
        (None, False),
    ):
        value = json.loads(answer())
        value["choices"].append({"index": 1, "finish_reason": finish})
        assert may_keep(200, kind, json.dumps(value).encode()) is kept
    for value, kept in (
        ({"error": {"message": "x"}}, False),
        ({"error": None, "data": []}, True),
        ({"choices": []}, False),
        ([], False),
        ({"object": "response", "status": "completed"}, True),
        ({"object": "response", "status": "incomplete"}, False),
        ({"object": "list", "data": [{"embedding": [0.5]}]}, True),
    ):
        assert may_keep(200, kind, json.dumps(value).encode()) is kept


def test_a_stream_is_kept_only_if_all_of_it_is_there() -> None:
    kind, whole = "text/event-stream; charset=utf-8", events("a", "b")
    assert may_keep(200, kind, b"".join(whole))
    assert may_keep(200, kind, b"".join(whole).replace(b"\n", b"\r\n"))
    assert may_keep(200, kind, b": wait\n\n" + b"".join(whole))
    assert not any(may_keep(200, kind, b"".join(whole[:some])) for some in range(len(whole)))
    assert not may_keep(200, kind, b"".join([*whole[:2], b'data: {"error": {"message": "x"}}\n\n', *whole[2:]]))
    assert not may_keep(200, kind, b"".join(whole).replace(b'"stop"', b'"error"'))
    assert not may_keep(200, kind, b"".join(whole).replace(b'"index": 0, "delta": {"content": "a"}', b'"index": 1'))


def test_a_stream_of_responses_is_kept_if_it_was_completed() -> None:
    def stream(*kinds: str) -> bytes:
        return b"".join(f"event: {kind}\ndata: {json.dumps({'type': kind})}\n\n".encode() for kind in kinds)

    kind = "text/event-stream"
    assert may_keep(200, kind, stream("response.created", "response.completed"))
    for last in ("response.failed", "response.incomplete", "error", "response.output_text.done"):
        assert not may_keep(200, kind, stream("response.created", last))


# What is kept.


def test_an_equal_request_has_the_same_bytes_again_and_another_owner_has_not() -> None:
    one, first = AnswerCache(database(), TABLE), key(chat())
    assert one.get(first, 100.0) is None
    one.put(first, said(usage={"prompt_tokens": 7}), 100.0)
    assert one.get(key(chat(user="x")), 130.0) == Hit(said(usage={"prompt_tokens": 7}), 30.0)
    assert one.get(key(chat(), owner="ann"), 130.0) is None
    assert one.stats() == CacheStats(hits=1, misses=2, entries=1, bytes=len(answer("answer")) + OVERHEAD)


def test_an_answer_is_given_until_its_time_is_over_and_no_longer_and_not_before_it_was_written() -> None:
    one = AnswerCache(database(), TABLE)
    one.put(key(chat()), said(), 100.0)
    assert one.get(key(chat()), 159.9) is not None
    assert one.get(key(chat()), 160.0) is None and one.get(key(chat()), 99.0) is None
    one.put(key(chat("other")), said(), 160.0)
    assert one.stats().entries == 1
    one.put(key(chat("third")), said(), 50.0)
    assert one.stats().entries == 1 and one.get(key(chat("third")), 51.0) is not None


def test_the_last_answer_to_a_request_stays_and_counts_once() -> None:
    one = AnswerCache(database(), TABLE)
    one.put(key(chat()), said("a" * 1000), 100.0)
    one.put(key(chat()), said("b"), 101.0)
    assert body_of(one.get(key(chat()), 102.0)) == answer("b")
    assert one.stats().entries == 1 and one.stats().bytes == len(answer("b")) + OVERHEAD


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(0, 3000), max_size=30), most=st.integers(OVERHEAD + 1, 8000))
def test_the_oldest_go_first_and_all_together_never_have_more_bytes_than_they_may(sizes: list[int], most: int) -> None:
    one = AnswerCache(database(), Cache(ttl=60, most_bytes=most))
    kept = list[tuple[int, int]]()
    for number, size in enumerate(sizes):
        body = b"x" * size
        one.put(key(chat(str(number))), CachedResponse(body, "k", "b"), 100.0)
        if size + OVERHEAD <= most:
            kept.append((number, size + OVERHEAD))
        while sum(held for _, held in kept) > most:
            del kept[0]
        assert (one.stats().entries, one.stats().bytes) == (len(kept), sum(held for _, held in kept))
    found = [number for number in range(len(sizes)) if one.get(key(chat(str(number))), 100.0)]
    assert found == [number for number, _ in kept]


def test_hundreds_of_small_entries_make_room_for_a_large_one() -> None:
    one = AnswerCache(database(), Cache(ttl=60, most_bytes=200 * (OVERHEAD + 10)))
    for number in range(200):
        one.put(key(chat(str(number))), CachedResponse(b"x" * 10, "k", "b"), 100.0)
    assert one.stats().entries == 200
    one.put(key(chat()), CachedResponse(b"x" * 199 * OVERHEAD, "k", "b"), 100.0)
    assert one.stats().bytes <= 200 * (OVERHEAD + 10) and one.get(key(chat()), 100.0) is not None


def test_answers_outlast_a_restart_and_are_counted_again(tmp_path: Path) -> None:
    db = database(tmp_path / "state.db")
    AnswerCache(db, TABLE).put(key(chat()), said(), 100.0)
    db.close()
    again = AnswerCache(database(tmp_path / "state.db"), TABLE)
    assert again.stats() == CacheStats(entries=1, bytes=len(answer("answer")) + OVERHEAD)
    assert body_of(again.get(key(chat()), 101.0)) == answer("answer")


# Damage.


def test_a_body_that_changed_on_disk_is_not_given(caplog: pytest.LogCaptureFixture) -> None:
    db = database()
    one = AnswerCache(db, TABLE)
    one.put(key(chat()), said("right"), 100.0)
    db.execute("UPDATE answers SET body = ?", (answer("wrong"),))
    assert one.get(key(chat()), 101.0) is None and one.get(key(chat()), 101.0) is None
    assert one.stats() == CacheStats(misses=2, failures=1) and "not what was written" in caplog.text


def test_a_damaged_file_fails_no_request_and_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "state.db"
    db = database(path)
    one = AnswerCache(db, NEAR)
    for number in range(60):
        one.put(key(chat(f"word{number}"), near=True), said("x" * 500), 100.0)
    db.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(random.Random(0).randbytes(size - 4096))
    again = AnswerCache(database(path), NEAR)
    for number in range(60):
        name = key(chat(f"word{number}"), near=True)
        assert again.get(name, 101.0, near=True) is None
        again.put(name, said(), 101.0)
    assert again.stats().failures > 60 and len(caplog.records) == 1


def test_a_file_that_is_no_database_fails_no_request(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"no database at all" * 500)
    one = AnswerCache(database(tmp_path / "state.db"), TABLE)
    one.put(key(chat()), said(), 100.0)
    assert one.get(key(chat()), 100.0) is None and one.stats().failures == 3


def test_a_full_disk_fails_no_request_and_what_was_kept_is_still_given() -> None:
    db = database()
    one = AnswerCache(db, TABLE)
    one.put(key(chat()), said(), 100.0)
    db.execute(f"PRAGMA max_page_count = {db.execute('PRAGMA page_count').fetchone()[0]}")
    one.put(key(chat("large")), said("x" * 100_000), 100.0)
    assert one.get(key(chat("large")), 101.0) is None and one.get(key(chat()), 101.0) is not None
    assert one.stats() == CacheStats(hits=1, misses=1, entries=1, bytes=len(answer("answer")) + OVERHEAD, failures=1)
    assert not db.in_transaction
    db.execute("DELETE FROM answers")
    one.put(key(chat("large")), said("x" * 100_000), 101.0)
    assert one.stats().entries == one.stats().bytes == 0


# Near texts.


def near_hit(kept: dict[str, Any], asked: dict[str, Any], least: float = 0.5, **more: Any) -> Hit | None:
    one = AnswerCache(database(), Cache(ttl=60, near=least))
    one.put(key(kept, near=True, **more), said(), 100.0)
    return one.get(key(asked, near=True, **more), 101.0, near=True)


def test_a_request_with_a_near_text_has_the_answer_if_it_wishes() -> None:
    one = AnswerCache(database(), NEAR)
    one.put(key(chat("What is the capital of France?"), near=True), said("Paris"), 100.0)
    asked = key(chat("what is the capital of france"), near=True)
    assert one.get(asked, 101.0) is None
    hit = one.get(asked, 101.0, near=True)
    assert hit is not None and hit.similarity == 1.0 and hit.answer == said("Paris")
    equal = one.get(key(chat("What is the capital of France?"), near=True), 101.0, near=True)
    assert equal is not None and equal.similarity is None
    assert one.get(key(chat("Where does the river Seine begin?"), near=True), 101.0, near=True) is None
    assert one.stats() == CacheStats(hits=1, near=1, misses=2, entries=1, bytes=one.stats().bytes)


TURNED = (
    ("Sum 2 and 3", "Sum 2 and 4"),
    ("Take 2 from 3 please", "Take 3 from 2 please"),
    ("Sum two and three", "Sum two and four"),
    ("Is 5 prime?", "Is -5 prime?"),
    ("Work out 5 + 7", "Work out 5 - 7"),
    ("Convert $5 to pounds", "Convert €5 to pounds"),
    ("Is it safe to eat raw eggs", "Is it not safe to eat raw eggs"),
    ("You can use tools to do that", "You can't use tools to do that"),
    ("Ich will das haben bitte", "Ich will das nicht haben bitte"),
    ("Sort the list ascending please", "Sort the list descending please"),
    ("What came before the war in Europe", "What came after the war in Europe"),
    ('Translate "good day" to French', 'Translate "good night" to French'),
    ("Translate 'good day' to French", "Translate 'good night' to French"),
    ("Translate “good day” to French", "Translate “Good day” to French"),
    ("Explain `foo` in this program", "Explain `bar` in this program"),
    ("Explain this\n```\nx = a\n```\nto me please", "Explain this\n```\ny = a\n```\nto me please"),
    ("Explain this\n```\nx  = a\n```\nto me please", "Explain this\n```\nx = a\n```\nto me please"),
    ("Explain to me ```unclosed code here", "Explain to me ```unclosed code there"),
    ("Solve for x please and show the way", "Solve for y please and show the way"),
    ("Is option A right for a small house", "Is option B right for a small house"),
    ("Mail ann@example.org about the meeting", "Mail bob@example.org about the meeting"),
    ("Translate please 我喜欢猫", "Translate please 我喜欢狗"),
    ("Summarize file_a of this folder please", "Summarize file_b of this folder please"),
    ("Is the hill steep :-)", "Is the hill steep :-("),
    ("Work out (2 + 3) * 4", "Work out 2 + (3 * 4)"),
    ("Work out half of 5", "Work out half of .5"),
    ("Work out 5! please", "Work out 5 please"),
    ("Work out n! please", "Work out n please"),
)
"""Two texts each, of which one must not have the answer to the other."""


def test_texts_that_differ_in_what_turns_their_meaning_are_not_near(subtests: pytest.Subtests) -> None:
    for one, other in TURNED:
        with subtests.test(one, other=other):
            assert near_hit(chat(one), chat(f" {one}"), least=0.5) is not None
            assert near_hit(chat(one), chat(other), least=0.0) is None


def test_only_the_last_message_of_the_user_may_differ() -> None:
    first, last = (
        {"role": "user", "content": "tell me of dogs"},
        {"role": "user", "content": "And of their food please"},
    )
    other = {"role": "user", "content": "and of their food, please"}
    assert near_hit(chat(messages=[first, last]), chat(messages=[first, other])) is not None
    changed = {"role": "user", "content": "Tell me of dogs"}
    assert near_hit(chat(messages=[first, last]), chat(messages=[changed, other])) is None
    assert near_hit(chat(messages=[first, last]), chat(messages=[first, other], max_tokens=5)) is None
    model = {"role": "assistant", "content": "and of their"}
    assert near_hit(chat(messages=[last, model]), chat(messages=[other, model])) is None
    assert near_hit(chat(messages=[first, last]), chat(messages=[first, other]), wishes={"step": "plan"}) is not None


def test_images_beside_a_near_text_must_be_equal() -> None:
    def body(text: str, image: str) -> dict[str, Any]:
        parts = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": image}}]
        return chat(messages=[{"role": "user", "content": parts}])

    assert near_hit(body("What is this thing?", "data:a"), body("what is this thing", "data:a")) is not None
    assert near_hit(body("What is this thing?", "data:a"), body("what is this thing", "data:b")) is None


def test_responses_may_be_near_and_other_operations_are_not() -> None:
    body = {"temperature": 0, "store": False}
    one, other = "What is this thing?", "what is this thing"
    assert near_hit(body | {"input": one}, body | {"input": other}, operation="responses") is not None
    turns = [[{"role": "user", "content": [{"type": "input_text", "text": text}]}] for text in (one, other)]
    assert near_hit(body | {"input": turns[0]}, body | {"input": turns[1]}, operation="responses") is not None
    for operation, name in (("completions", "prompt"), ("embeddings", "input"), ("fim", "prompt")):
        assert near_hit(body | {name: one}, body | {name: other}, operation=operation) is None


def test_answers_of_a_temperature_above_0_are_near_to_none_whatever_is_wished() -> None:
    warm = [chat(text, temperature=1) for text in ("What is this thing?", "what is this thing")]
    assert near_hit(warm[0], warm[1]) is None and all(key(body, near=True).rest is None for body in warm)


def test_a_text_without_words_and_one_that_is_long_are_near_to_none() -> None:
    for text in ("", "12 + 13", "word " * 1000):
        assert key(chat(text), near=True) == key(chat(text), near=False)


def test_owners_are_not_near_each_other() -> None:
    one = AnswerCache(database(), NEAR)
    one.put(key(chat("What is this thing?"), near=True, owner="ann"), said(), 100.0)
    asked = chat("what is this thing")
    assert one.get(key(asked, near=True, owner="bob"), 101.0, near=True) is None
    assert one.get(key(asked, near=True, owner="ann"), 101.0, near=True) is not None


def test_the_most_similar_of_the_newest_entries_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    one = AnswerCache(database(), Cache(ttl=60, near=0.3))
    for number, text in enumerate(
        ("tell me about dogs and cats", "tell me about dogs", "tell me about birds and cats")
    ):
        one.put(key(chat(text), near=True), said(text), 100.0 + number)
    asked = key(chat("tell me about dogs and cats please"), near=True)
    hit = one.get(asked, 110.0, near=True)
    assert hit is not None and hit.answer.body == answer("tell me about dogs and cats") and hit.age == 10.0
    monkeypatch.setattr(cache, "MOST_COMPARED", 2)
    hit = one.get(asked, 110.0, near=True)
    assert hit is not None and hit.answer.body != answer("tell me about dogs and cats")
    assert one.get(asked, 162.5, near=True) is None


def cosine(one: str, other: str) -> float:
    """Of counts in dictionaries, for texts of plain words."""

    def counts(text: str) -> Counter[str]:
        words = text.lower().split()
        return Counter(words) + Counter(f"{a} {b}" for a, b in zip(words, words[1:], strict=False))

    a, b = counts(one), counts(other)
    return sum(a[name] * b[name] for name in a) / math.sqrt(
        sum(number**2 for number in a.values()) * sum(number**2 for number in b.values())
    )


def test_the_similarity_is_the_cosine_of_counts_to_a_few_hundredths() -> None:
    order = random.Random(0)
    for _ in range(200):
        words = [f"{chr(97 + order.randrange(26))}{chr(97 + order.randrange(26))}" for _ in range(order.randint(2, 80))]
        other = [word if order.random() < 0.9 else "zz" for word in words]
        one, two = " ".join(words), " ".join(other)
        place, found = nearest(vector_of(one).tobytes(), [vector_of("qq").tobytes(), vector_of(two).tobytes()])
        true = cosine(one, two)
        assert place == 1 and abs(found - true) < 0.02 + 0.25 * (1 - true)


def test_one_word_of_31_changes_the_similarity_as_documented() -> None:
    words = [f"{chr(97 + number % 26)}{chr(97 + number // 26)}q" for number in range(31)]
    for num, near in ((31, True), (30, False)):
        other = [*words[:9], "other", *words[10:num]]
        assert cosine(" ".join(words[:num]), " ".join(other)) == pytest.approx(1 - 3 / (2 * num - 1))
        assert (1 - 3 / (2 * num - 1) >= 0.95) is near


def test_marks_are_in_the_order_of_the_text_and_free_of_what_does_not_count() -> None:
    assert marks_of("Don't add 3 (or 4.5) to I or x!, please.") == ["not", "add", "3", "(or", "4.5)", "or", "x!"]
    assert marks_of("It’s cold; a well-known thing...") == []
    assert marks_of("cannot") == marks_of("not") == marks_of("isn’t") == ["not"]
    assert abs(vector_of("dog " * 500)).max() == 127
    assert vector_of("").shape == (DIMENSIONS,) and not vector_of("1 + 2").any()


def test_keys_do_not_change_a_body() -> None:
    body = chat(messages=[{"role": "user", "content": [{"type": "text", "text": "x y"}]}], stream=False, seed=1.0)
    before = copy.deepcopy(body)
    key(body, near=True)
    assert body == before and isinstance(body["seed"], float)
