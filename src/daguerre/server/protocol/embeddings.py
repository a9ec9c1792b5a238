"""Bodies of embeddings, and of texts as tokens and back."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from daguerre.server.protocol.chat import Templated, Tool
from daguerre.server.protocol.common import Body
from daguerre.server.protocol.completions import Prompts, each_of


class EmbeddingBody(Body):
    """A request of /v1/embeddings. dimensions: so many of the first numbers, again of length 1."""

    model: str | None = None
    input: Prompts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)

    @property
    def texts(self) -> list[str | list[int]]:
        """Each text."""
        return each_of(self.input)


class TokenizeBody(Templated):
    """A text, or a conversation, as tokens: vLLM's body, or llama.cpp's.

    content              llama.cpp's name of the prompt
    add_special_tokens   of a text: with the <bos> that prompts begin with, if the model has one; unless said, yes, and
                         with `content` no. add_special is the same in llama.cpp
    return_token_strs    also the text of each token
    with_pieces          llama.cpp's: each token is an object with its id and its piece, a text, or bytes that are none
    parse_special        names of special tokens stand for them (llama.cpp's field): of a text they do unless this is
                         false, of messages only if it is true
    """

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: list[dict[str, Any]] | None = Field(None, min_length=1)
    tools: list[Tool] = Field(default_factory=list)
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    with_pieces: bool = False
    return_token_strs: bool = False
    parse_special: bool | None = None

    @model_validator(mode="after")
    def _one(self) -> TokenizeBody:
        if sum(given is not None for given in (self.prompt, self.content, self.messages)) != 1:
            raise ValueError("give a prompt (llama.cpp's content), or messages")
        return self

    @property
    def begins(self) -> bool:
        """Whether the tokens begin with <bos>."""
        given = self.add_special_tokens if self.add_special is None else self.add_special
        return self.content is None if given is None else given


class DetokenizeBody(Body):
    """Tokens as a text."""

    model: str | None = None
    tokens: list[int]
