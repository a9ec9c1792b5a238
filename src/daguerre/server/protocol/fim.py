"""Bodies of Mercury's routes for editors: fill in the middle, next edit, apply."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from daguerre.server.protocol.common import Body, Sampling, StreamOptions


class FimBody(Sampling):
    """A request of /v1/fim/completions: the text between `prompt` and `suffix`.

    Both may be whole files; what the model is shown of them is chosen, and the answer says what it was. An empty
    suffix asks for a completion. `max_tokens` is at most; see `server.gaps`.
    """

    prompt: str
    suffix: str | None = None
    temperature: float | None = Field(0.0, ge=0, le=2)
    diffusing: bool = False


class EditBody(Body):
    """A request of /v1/edit/completions: one message of the user with the file and the region to edit."""

    model: str | None = None
    messages: list[dict[str, Any]] = Field(min_length=1, max_length=1)
    max_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(0.0, ge=0, le=2)
    seed: int | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None

    @model_validator(mode="after")
    def _one_of_the_user(self) -> EditBody:
        message = self.messages[0]
        if message.get("role") != "user" or not isinstance(message.get("content"), str):
            raise ValueError("there must be one message, of the role user, whose content is a text")
        return self


class ApplyBody(EditBody):
    """A request of /v1/apply/completions: one message of the user with the code and the snippet to merge into it."""
