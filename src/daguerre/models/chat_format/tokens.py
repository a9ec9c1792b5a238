"""A chat format in a vocabulary: which of its marks are special tokens.

In texts that are read, MARKED stands before each special token of the format (`chat_format.written`). So a mark that is
spelled by ordinary tokens is text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any

from daguerre.errors import DaguerreError
from daguerre.models.chat_format import Thinks, written
from daguerre.models.chat_format.chat_format import ChatFormat
from daguerre.models.chat_format.description import Format
from daguerre.models.chat_format.named import ASSUMED
from daguerre.models.chat_format.source import MARKED
from daguerre.models.chat_template import ChatTemplate
from daguerre.models.tokenizer import Tokenizer

TAIL = 48
"""How many tokens of a prompt are read to find what it has begun."""


@dataclass(frozen=True, eq=False)
class TokenFormat:
    """A format, and the ids of its special tokens, by their texts."""

    form: Format
    special: Mapping[str, int]

    @cached_property
    def marked(self) -> Format:
        """The format as it stands in texts that are read."""
        marked: Format = _mapped(self.form, self._mark)
        return marked

    @cached_property
    def shown(self) -> Mapping[int, bytes]:
        """What special tokens are written out as, by their ids."""
        return {token: written.special(text).encode() for text, token in self.special.items()}

    @property
    def opening(self) -> str:
        """What the first call begins with: a special token, or else its first word; "" where calls have no mark."""
        calls = self.form.calls
        first = "" if calls is None or calls.bare else (calls.opening.split() or [""])[0]
        return next((text for text in sorted(self.special, key=len, reverse=True) if first.startswith(text)), first)

    @property
    def opening_is_shared(self) -> bool:
        """Whether an answer without calls may need it, too."""
        return self._is_shared(self.opening)

    @cached_property
    def call_signs(self) -> tuple[str, ...]:
        """What an answer has for the sake of calls alone, as it is written out: special tokens, or what calls begin
        with.
        """
        signs = [written.special(text) for text in self.special if not self._is_shared(text)]
        plain = self.opening if self.opening not in self.special and not self.opening_is_shared else ""
        return (*signs, plain) if plain else tuple(signs)

    def _is_shared(self, mark: str) -> bool:
        form = self.form
        thinking = () if form.thinking is None else (form.thinking.open, form.thinking.close)
        return any(mark in other for other in (*form.ends, *form.text, *thinking, form.header, form.glue))

    def _mark(self, text: str) -> str:
        places = sorted(self.special, key=len, reverse=True)
        for number, name in enumerate(places):
            text = text.replace(name, f"\0{number}\0")
        for number, name in enumerate(places):
            text = text.replace(f"\0{number}\0", MARKED + name)
        return text

    def thinks(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> Thinks:
        """Whether an answer begins within a thought, after a prompt."""
        thinking = self.marked.thinking
        if thinking is None or not thinking.open:
            return "may"
        names = {token: MARKED + text for text, token in self.special.items()}
        runs = groupby(prompt[-TAIL:], key=names.get)
        text = "".join(
            _ordinary(tokenizer, run) if name is None else name * len(list(run)) for name, run in runs
        ).rstrip()
        return "does" if text.endswith(thinking.open.rstrip()) else "may"


def _ordinary(tokenizer: Tokenizer, tokens: Iterable[int]) -> str:
    return b"".join(map(tokenizer.token_bytes, tokens)).decode("utf-8", "ignore")


def format_of(tokenizer: Tokenizer) -> TokenFormat | None:
    """The format of a tokenizer's chat template; None: it has none, or one that writes no calls."""
    template = getattr(tokenizer, "chat_template", None)
    if template is None:
        return None
    return _found(tokenizer, tuple(template.sources.items()), tuple(sorted(template.tokens.items())))


@lru_cache(maxsize=16)
def _found(
    tokenizer: Tokenizer, sources: tuple[tuple[str, str], ...], tokens: tuple[tuple[str, str], ...]
) -> TokenFormat | None:
    try:
        form = ChatFormat(ChatTemplate(dict(sources), dict(tokens))).form
    except DaguerreError:  # a template that fails on a plain question fails on every request, in words of its own
        return None
    if form.source == ASSUMED:
        return None
    added: Mapping[str, int] = getattr(tokenizer, "added", {})
    special = {}
    for text in _texts(form):
        for start, end in tokenizer.find_special(text):
            if text[start:end] in added:
                special[text[start:end]] = added[text[start:end]]
    return TokenFormat(form, special)


def _texts(value: Any) -> Iterator[str]:
    """All texts in a description."""
    if isinstance(value, str):
        yield value
    elif is_dataclass(value):
        for each in fields(value):
            yield from _texts(getattr(value, each.name))
    elif isinstance(value, Mapping):
        yield from (text for held in value.values() for text in _texts(held))
    elif isinstance(value, tuple):
        yield from (text for held in value for text in _texts(held))


def _mapped(value: Any, change: Any) -> Any:
    """A description with other texts."""
    if isinstance(value, str):
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: _mapped(getattr(value, each.name), change) for each in fields(value)})
    if isinstance(value, Mapping):
        return {key: _mapped(held, change) for key, held in value.items()}
    if isinstance(value, tuple):
        return tuple(_mapped(held, change) for held in value)
    return value
