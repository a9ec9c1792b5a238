"""Bodies of embeddings, and of texts as tokens and back."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from daguerre.server.protocol.chat import Templated, Tool
from daguerre.server.protocol.common import Body
from daguerre.server.protocol.completions import Prompts


class EmbeddingBody(Body):
    """A request of /v1/embeddings. dimensions: so many of the first numbers, again of length 1."""

    model: str | None = None
    input: Prompts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)

    @property
    def texts(self) -> list[str | list[int]]:
        """Each text."""
        if isinstance(self.input, str):
            return [self.input]
        several = [one for one in self.input if not isinstance(one, int)]
        return [*several] if several or not self.input else [[one for one in self.input if isinstance(one, int)]]


class TokenizeBody(Templated):
    """A text, or a conversation, as tokens: vLLM's body.

    add_special_tokens   of a text: with the <bos> that prompts begin with, if the model has one
    return_token_strs    also the text of each token
    parse_special        names of special tokens stand for them (llama.cpp's field): of a text they do unless this is
                         false, of messages only if it is true
    """

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = Field(None, min_length=1)
    tools: list[Tool] = Field(default_factory=list)
    add_special_tokens: bool | None = None
    return_token_strs: bool = False
    parse_special: bool | None = None

    @model_validator(mode="after")
    def _one(self) -> TokenizeBody:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give a prompt, or messages")
        return self


class DetokenizeBody(Body):
    """Tokens as a text."""

    model: str | None = None
    tokens: list[int]
