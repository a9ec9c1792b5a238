"""Chat templates of published checkpoints: Jinja, in the dialect of the `transformers` library.

A template is a stranger's program. It runs in Jinja's immutable sandbox: it has no files, no imports, no attributes
that begin with an underscore, and changes nothing that it is given. It sees plain JSON values alone. Loops, calls, time
and all that it makes are limited (`template_limits`), so that an endless or a hostile template ends in an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from daguerre.errors import DataError, InputError, unknown
from daguerre.models.chat_messages import Wants
from daguerre.models.template_limits import GUARDED, MAX_LENGTH, Steps, check_growth, check_operator, guarded

DEFAULT, TOOLS = "default", "tool_use"
STEPS, COUNTED, JOINED = " steps", " counted", " joined"
"""Names that no template can write."""
OWN_LIST = ("append", "pop")


class Refused(jinja2.TemplateError):
    """What a template raises itself."""


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
        clock, compiled = now or datetime.now(), self._compiled(self._choose(name, bool(tools)))
        values = {**self.tokens, "documents": None, **compiled.demanded(tools, clock), **variables}
        given = {key: plain(value, key) for key, value in {**values, "messages": messages, "tools": tools}.items()}
        given["add_generation_prompt"] = add_generation_prompt
        given["strftime_now"] = clock.strftime
        try:
            return _joined(compiled.template.generate({**given, STEPS: Steps()}))
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
            try:
                self._templates[name] = compiled(self.sources[name])
            except jinja2.TemplateSyntaxError as error:
                raise DataError(
                    f"line {error.lineno} of the chat template is not Jinja ({_line(error)}): use another template"
                ) from None
            except (RecursionError, SyntaxError, MemoryError):  # of Python, which a template becomes
                raise DataError("the chat template is nested too deeply: use another template") from None
        return self._templates[name]


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


class Given(list[Any]):
    """A list that the template was given, which it cannot change."""


@dataclass(frozen=True)
class Compiled:
    """A template whose loops are counted, and the names of what it is to be given."""

    template: jinja2.Template
    reads: frozenset[str]

    def demanded(self, tools: Sequence[Mapping[str, Any]] | None, now: datetime) -> dict[str, Any]:
        """What templates that do not read "tools" have in their place, and ask for: functions as a text (FireFunction).
        A conversation without tools has none.
        """
        if "tools" in self.reads:
            return {}
        values = {"functions": json.dumps(tools, indent=4, ensure_ascii=False)} if tools else {}
        values["datetime"] = now.strftime("%Y-%m-%d %H:%M:%S")
        return {name: value for name, value in values.items() if name in self.reads}


def compiled(source: str) -> Compiled:
    """A template that is ready to be rendered."""
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], autoescape=False
    )
    tree = environment.parse(source)
    reads = frozenset(find_undeclared_variables(tree))
    tree = _Bounded().visit(tree)
    for loop in list(tree.find_all(nodes.For)):
        loop.iter = nodes.Filter(loop.iter, COUNTED, [], [], None, None, lineno=loop.lineno)
    code = environment.compile(tree)
    return Compiled(jinja2.Template.from_code(environment, code, environment.make_globals(None)), reads)


class _Bounded(NodeTransformer):
    """`a ~ b` as a filter of both, which counts what it makes."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, JOINED, [], [], None, None, lineno=node.lineno)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with the names that chat templates use. Calls are counted."""

    intercepted_binops = frozenset(["*", "**", "+", "%"])

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.filters |= {"tojson": _tojson, "from_json": json.loads}
        self.filters |= {name: guarded(name, self.filters[name]) for name in GUARDED & self.filters.keys()}
        self.filters |= {COUNTED: _counted, JOINED: _joined_texts}
        self.globals |= {"raise_exception": _refuse, "dict": _new_dict, "namespace": _Names}
        del self.globals["lipsum"]

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may have an attribute: of lists that it has made itself also what changes them."""
        own = type(obj) is list and attr in OWN_LIST
        return own or bool(super().is_safe_attribute(obj, attr, value))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 (as in Jinja)
        """Call something, for the price of a step, and of one for each number of a range."""
        steps = __context.resolve(STEPS)
        steps.spend()
        method = getattr(__obj, "__wrapped__", __obj)  # Jinja wraps a text's format
        check_growth(getattr(method, "__name__", ""), getattr(method, "__self__", None), args, kwargs)
        result = super().call(__context, __obj, *args, **kwargs)
        if isinstance(result, range):
            steps.spend(len(result))
        return steps.made(result)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """`left` operator `right`, unless that is too large."""
        check_operator(operator, left, right)
        return context.resolve(STEPS).made(super().call_binop(context, operator, left, right))


class _Names(Namespace):
    """`namespace()`, whose attributes do not begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"it gives a namespace the attribute {name!r}")


class _Generation(Extension):
    """{% generation %} ... {% endgeneration %}: training marks the text in it; here it is text like any other."""

    tags = {"generation"}  # noqa: RUF012 (as in Jinja)

    def parse(self, parser: Parser) -> nodes.CallBlock:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body, lineno=line)

    def _body(self, caller: Macro) -> str:
        return str(caller())


@jinja2.pass_context
def _joined_texts(context: Context, parts: list[Any]) -> str:
    """The texts of values, one after the other."""
    texts = [str(part) for part in parts]
    if sum(map(len, texts)) > MAX_LENGTH:
        raise SecurityError("the result of ~ is too large")
    made: str = context.resolve(STEPS).made("".join(texts))
    return made


@jinja2.pass_context
def _counted(context: Context, items: Iterable[Any]) -> Iterable[Any]:
    """The same items; each is a step."""
    steps = context.resolve(STEPS)
    if isinstance(items, Sized):
        steps.spend(len(items))
        return items
    return _one_by_one(items, steps)


def _one_by_one(items: Iterable[Any], steps: Any) -> Iterator[Any]:
    for item in items:
        steps.spend()
        yield item


def _joined(pieces: Iterable[str]) -> str:
    held, length = [], 0
    for piece in pieces:
        held.append(piece)
        length += len(piece)
        if length > MAX_LENGTH:
            raise SecurityError(f"its text is longer than {MAX_LENGTH:,} characters")
    return "".join(held)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, where Jinja's own filter escapes what means something in HTML; what yields items is a list."""
    options: dict[str, Any] = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
    return json.dumps(value, ensure_ascii=ensure_ascii, default=_listed, **options)


def _listed(value: object) -> list[Any]:
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} is no JSON value")


def _refuse(message: object) -> None:
    raise Refused(str(message))


def _new_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _line(error: Exception) -> str:
    """An error's message, in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__
