"""Chat templates of published checkpoints: Jinja, in the dialect of the `transformers` library.

A template is a stranger's program. It runs in Jinja's immutable sandbox: it has no files, no imports, no attributes
that begin with an underscore, and changes nothing that it is given. It sees plain JSON values alone. Loops, calls, time
and all that it makes are limited (`template_limits`), so that an endless or a hostile template ends in an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property, partial
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError

from daguerre.errors import DataError, InputError, unknown
from daguerre.models.chat_messages import Wants
from daguerre.models.template_limits import MAX_SOURCE, Steps
from daguerre.models.template_sandbox import STEPS, Compiled, Given, Refused, compiled, joined

DEFAULT, TOOLS = "default", "tool_use"


class ChatTemplate:
    """The templates of a checkpoint, by name, and the texts of its special tokens, such as "bos_token"."""

    def __init__(self, sources: Mapping[str, str], tokens: Mapping[str, str] | None = None) -> None:
        self.sources, self.tokens = dict(sources), dict(tokens or {})

    @classmethod
    def of(cls, given: object, tokens: Mapping[str, str] | None = None) -> ChatTemplate:
        """From the `chat_template` of a `tokenizer_config.json`: a template, or a list of named ones. DataError for
        anything else.
        """
        if isinstance(given, str):
            return cls({DEFAULT: given}, tokens)
        if isinstance(given, Sequence) and given and all(isinstance(one, Mapping) for one in given):
            sources = [(one.get("name"), one.get("template")) for one in given]
            if all(isinstance(text, str) for pair in sources for text in pair):
                return cls(dict(sources), tokens)
        raise DataError(
            "chat_template is neither a template nor a list of named ones: copy tokenizer_config.json again"
        )

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        name: str | None = None,
        now: datetime | None = None,
        **variables: Any,
    ) -> str:
        """The text of a conversation, with all its special tokens written out.

        messages               each with a "role" and a "content", and what else the template knows
        tools                  descriptions of functions, as the template expects them
        add_generation_prompt  end with what begins an answer
        name                   of the template; None: "tool_use" for tools, where there is one, else "default"
        now                    the time that a template may ask for; None: it is asked of the clock
        variables              what else the template sees

        InputError, in one line, when the template fails or refuses the messages; DataError when it is no template.
        """
        if not isinstance(now, datetime | None):
            raise InputError(f"now must be a datetime, not {now!r:.40}: it is what the template's clock shows")
        clock, chosen = now or datetime.now(), self._compiled(self._choose(name, bool(tools)))
        values = {**self.tokens, "documents": None, **variables, "messages": messages, "tools": tools}
        given = {key: _copied(value, key) for key, value in {**chosen.demanded(tools, clock), **values}.items()}
        given["add_generation_prompt"] = add_generation_prompt
        given["strftime_now"] = clock.strftime
        try:
            return joined(chosen.template.generate({**given, STEPS: Steps()}))
        except Refused as error:
            raise InputError(f"the chat template refuses these messages: {_line(error)}") from None
        except SecurityError as error:
            raise InputError(f"the chat template does what it may not: {_line(error)}; use another one") from None
        except RecursionError:
            raise InputError("the chat template calls itself too often: use another one") from None
        except Exception as error:  # whatever a template makes Python raise
            raise InputError(
                f"the chat template fails on these messages ({type(error).__name__}: {_line(error)}): "
                "correct them, or use another template"
            ) from None

    def _choose(self, name: str | None, tools: bool) -> str:
        if name is None:
            name = TOOLS if tools and TOOLS in self.sources else DEFAULT
            if name not in self.sources and len(self.sources) == 1:
                (name,) = self.sources
        if name not in self.sources:
            raise unknown("chat template", name, self.sources)
        return name

    def wants(self, tools: bool = False, name: str | None = None) -> Wants:
        """How a template wants the messages of a conversation, with tools or without; name: as in `render`."""
        key = self._choose(name, tools), tools
        if key not in self._wants:
            self._wants[key] = Wants(partial(self.render, name=key[0]), tools)
        return self._wants[key]

    @cached_property
    def _wants(self) -> dict[tuple[str, bool], Wants]:
        return {}

    @cached_property
    def _templates(self) -> dict[str, Compiled]:
        return {}

    def _compiled(self, name: str) -> Compiled:
        if name not in self._templates:
            if len(self.sources[name]) > MAX_SOURCE:
                raise DataError(f"the chat template is longer than {MAX_SOURCE:,} characters: use another one")
            try:
                self._templates[name] = compiled(self.sources[name])
            except jinja2.TemplateSyntaxError as error:
                raise DataError(
                    f"line {error.lineno} of the chat template is not Jinja ({_line(error)}): use another template"
                ) from None
            except (ValueError, OverflowError) as error:  # of a number that Python reads or writes no more
                raise DataError(
                    f"the chat template has a number that is too long ({_line(error)}): use another template"
                ) from None
            except (RecursionError, SyntaxError, MemoryError):  # of Python, which a template becomes
                raise DataError("the chat template is nested too deeply: use another template") from None
        return self._templates[name]


def _copied(value: Any, what: str) -> Any:
    """A copy of what a template is given. InputError for what is no JSON value, or nests too deeply."""
    try:
        return plain(value, what)
    except RecursionError:
        raise InputError(f"{what} nest too deeply for a chat template: send less of it") from None


def plain(value: Any, what: str) -> Any:
    """A copy of a JSON value, in plain Python types. InputError for anything else."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):  # a subclass
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {plain(key, what): plain(held, what) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return Given(plain(held, what) for held in value)
    raise InputError(f"{what} must be JSON values, not {type(value).__name__}: convert it")


def _line(error: Exception) -> str:
    """An error's message, in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__
