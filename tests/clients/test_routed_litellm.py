"""LiteLLM's OpenAI and Inception providers against a router."""

from __future__ import annotations

import pytest
from test_litellm import (  # noqa: F401
    how,
    test_a_chat_is_answered,
    test_a_chat_is_answered_asynchronously,
    test_a_gap_is_filled_by_the_provider_for_it,
    test_a_router_over_the_server_answers,
    test_a_stream_is_the_same_text,
    test_a_text_is_completed_before_a_suffix,
    test_a_tool_is_called,
    test_frames_of_mercury_reach_the_caller,
    test_texts_are_embedded,
)

from served import Served


@pytest.fixture(scope="session")
def base_url(routed: Served) -> str:
    """The router's in place of the server's."""
    return f"{routed.url}/v1"
