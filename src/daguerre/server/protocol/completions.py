"""Bodies of OpenAI's legacy completions, which have a suffix: completion and infilling."""

from __future__ import annotations

from pydantic import Field

from daguerre.server.protocol.common import Sampling

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
