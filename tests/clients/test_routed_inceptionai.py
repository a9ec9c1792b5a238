"""Inception's client for Mercury against a router: chat, gaps, decisions and edits as the server answers them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import inceptionai
import pytest
from inceptionai import Inception
from test_inceptionai import (  # noqa: F401
    AFTER,
    BEFORE,
    test_a_chat_is_answered_at_every_effort,
    test_a_gap_is_filled,
    test_a_gap_is_filled_in_a_stream,
    test_a_next_edit_is_an_error_that_says_why,
    test_a_plain_stream_only_grows,
    test_a_summary_that_is_asked_for_is_unavailable,
    test_a_tool_is_called,
    test_an_answer_of_a_schema_is_valid,
    test_frames_of_a_diffusing_stream_replace_each_other,
    test_questions_about_a_state_are_answered,
)

from served import Served


@pytest.fixture
def client(routed: Served) -> Inception:
    """The router's in place of the server's."""
    return Inception(base_url=routed.url, api_key="none", max_retries=0, _strict_response_validation=True)


def test_a_gap_and_questions_are_steps_of_their_own(
    client: Inception, model: str, decisions: Callable[[int], list[Any]]
) -> None:
    client.fim.completions.create(model=model, prompt=BEFORE, suffix=AFTER, max_tokens=4)
    client.decisions.create(model=model, state="x", questions={"one": {"type": "noul", "instructions": "Is it?"}})
    assert [(line["features"]["operation"], line["features"]["step"]) for line in decisions(2)] == [
        ("fim", "infill"),
        ("decisions", "classify"),
    ]


def test_a_wrong_request_is_the_clients_own_class(client: Inception, model: str) -> None:
    with pytest.raises(inceptionai.BadRequestError):
        client.chat.completions.create(model=model, messages=[])
