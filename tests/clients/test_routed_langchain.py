"""LangChain's own suite for chat models against a router, and its embeddings."""

from __future__ import annotations

import pytest
import test_langchain
from test_langchain import test_texts_are_embedded  # noqa: F401

from served import Served


@pytest.fixture(scope="session")
def base_url(routed: Served) -> str:
    """The router's in place of the server's."""
    return f"{routed.url}/v1"


class TestRoutedChatOpenAI(test_langchain.TestChatOpenAI):
    """The suite, but for what names a model: a router chooses it."""

    @property
    def supports_model_override(self) -> bool:
        """The backend's own model answers, whatever is named."""
        return False
