"""LangChain: its own integration suite for chat models, over its OpenAI class; and embeddings.

What the suite skips is what the server does not do: it reads texts alone, so no image, audio, PDF, or Anthropic's blocks.
"""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_tests.integration_tests import ChatModelIntegrationTests

from served import MODEL, SECOND


class TestChatOpenAI(ChatModelIntegrationTests):
    """The suite, with what the server can do declared."""

    where = ""

    @pytest.fixture(autouse=True)
    def _address(self, base_url: str) -> None:
        type(self).where = base_url

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        """The class under test."""
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        """Long enough for the largest of the suite's schemas, and the same at every run."""
        return {
            "base_url": self.where,
            "api_key": "none",
            "model": MODEL,
            "max_tokens": 256,
            "temperature": 0,
            "max_retries": 0,
        }

    @property
    def supports_json_mode(self) -> bool:
        """Any JSON object can be asked for."""
        return True

    @property
    def supports_model_override(self) -> bool:
        """The server has a second name for the model."""
        return True

    @property
    def model_override_value(self) -> str:
        """The second name."""
        return SECOND


def test_texts_are_embedded(base_url: str, model: str) -> None:
    embeddings = OpenAIEmbeddings(base_url=base_url, api_key="none", model=model, check_embedding_ctx_length=False)
    documents = embeddings.embed_documents(["def add(a, b): return a + b", "class Tree: pass"])
    assert len(documents) == 2
    assert len(documents[0]) == len(embeddings.embed_query("def add"))
