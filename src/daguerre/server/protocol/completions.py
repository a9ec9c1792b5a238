"""Bodies of completions: OpenAI's legacy ones, which have a suffix, and Mercury's for editors (gap, edit, merge)."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from daguerre.server.protocol.common import Body, Sampling, StreamOptions

Prompts = str | list[str] | list[int] | list[list[int]]


def each_of(given: Prompts) -> list[str | list[int]]:
    """Each of one or several texts or lists of tokens."""
    if isinstance(given, str):
        return [given]
    several = [one for one in given if not isinstance(one, int)]
    return [*several] if several or not given else [[one for one in given if isinstance(one, int)]]


class CompletionBody(Sampling):
    """A request of /v1/completions.

    prompt    one or several, as texts or tokens
    suffix    the text after the gap; an empty one is none
    echo      the answer begins with the prompt
    logprobs  of the tokens, and so many alternatives at each place
    max_tokens  0 with echo alone: the prompt, and what it is asked about
    best_of   must be n: choices are not ranked
    """

    prompt: Prompts
    suffix: str | None = None
    echo: bool = False
    max_tokens: int | None = Field(None, ge=0)
    logprobs: int | None = Field(None, ge=0, le=20)
    best_of: int | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt."""
        return each_of(self.prompt)


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
    """A request of /v1/edit/completions: one message of the user with the file and the region to edit.

    instruction  what to do in the region, or without one in the file; None: the next edit
    """

    model: str | None = None
    instruction: str | None = Field(None, min_length=1)
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
