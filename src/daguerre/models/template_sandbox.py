"""The sandbox of chat templates: Jinja in which each step is asked for (`template_limits`) before it is taken.

Jinja itself asks about calls, attributes and operators. The rest is written into the template before it is compiled:
what a loop runs over, what is compared, joined by `~` and sliced, and each list, tuple and dictionary goes through a
function of this file, as a filter with a name that no template can write.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from daguerre.models.template_limits import (
    BY_ATTRIBUTE,
    EACH,
    LAZY,
    MAX_ITEMS,
    MAX_KEY,
    MAX_LENGTH,
    MAX_NAME,
    MAX_SLOW,
    PLAIN_TESTS,
    SHALLOW,
    SLOW,
    Steps,
    check_bits,
    check_growth,
    check_operator,
    weigh,
)

STEPS, COUNTED, JOINED, MADE, WEIGHED = " steps", " counted", " joined", " made", " weighed"
"""Names that no template can write."""
OWN_LIST = ("append", "pop")
"""What a template may do to lists that it has made itself."""
OF_JINJA = ("_loop_vars", "_block_vars")
"""What Jinja passes to each call of its own."""
LEAVES = (str, bool, float, type(None))
BYTES_OF_OUTPUT = 8


class Refused(jinja2.TemplateError):
    """What a template raises itself."""


class Given(list[Any]):
    """A list that the template was given, which it cannot change."""


@dataclass(frozen=True)
class Compiled:
    """A template that is ready to be rendered, and the names of what it is to be given."""

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
    """A template, compiled. Whatever Jinja and Python raise for what is none."""
    environment = _Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, loopcontrols],
        autoescape=False,
        finalize=_written,
    )
    tree = environment.parse(source)
    reads = frozenset(find_undeclared_variables(tree))
    code = environment.compile(_Asking().visit(tree))
    return Compiled(jinja2.Template.from_code(environment, code, environment.make_globals(None)), reads)


class _Asking(NodeTransformer):
    """Puts a filter around what is to be counted or weighed."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        size = BYTES_OF_OUTPUT * sum(len(output.nodes) for part in node.body for output in _outputs(part))
        self.generic_visit(node)
        node.iter = _filter(COUNTED, node.iter, nodes.Const(size))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        return _filter(JOINED, nodes.List(node.nodes, lineno=node.lineno))

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:
        self.generic_visit(node)
        node.expr = _weighed(node.expr)
        for operand in node.ops:
            operand.expr = _weighed(operand.expr)
        return node

    def visit_List(self, node: nodes.List) -> nodes.Expr:
        self.generic_visit(node)
        return _filter(MADE, node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:
        self.generic_visit(node)
        return _filter(MADE, node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        self.generic_visit(node)
        return _filter(MADE, node) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        return _filter(MADE, node) if isinstance(node.arg, nodes.Slice) else node

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.AssignBlock:
        self.generic_visit(node)
        node.filter = _filter(MADE, node.filter)
        return node


def _outputs(node: nodes.Node) -> Iterator[nodes.Output]:
    if isinstance(node, nodes.Output):
        yield node
    yield from node.find_all(nodes.Output)


def _filter(name: str, node: Any, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno if node else 1)


def _weighed(node: nodes.Expr) -> nodes.Expr:
    return node if isinstance(node, nodes.Const) else _filter(WEIGHED, node)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with the names that chat templates use."""

    intercepted_binops = frozenset(["*", "**", "+", "-", "/", "//", "%"])

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.filters |= {"tojson": _tojson, "from_json": _from_json}
        self.filters = {name: _guarded(name, one) for name, one in self.filters.items()}
        self.filters |= {COUNTED: _counted, JOINED: _joined_texts, MADE: _made, WEIGHED: _light}
        tests: dict[str, Any] = self.tests
        self.tests = {name: one if name in PLAIN_TESTS else _guarded_test(one) for name, one in tests.items()}
        self.globals |= {"raise_exception": _refuse, "dict": _new_dict, "namespace": _Names}
        del self.globals["lipsum"]

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """The text of a block or a macro."""
        return joined(pieces)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may have an attribute: none of numbers, and of its own lists also what changes them."""
        if isinstance(obj, int | float | bytes) or attr == "encode":
            return False
        return (type(obj) is list and attr in OWN_LIST) or bool(super().is_safe_attribute(obj, attr, value))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 (as in Jinja)
        """Call something, for the price of a step, and of one for each number of a range."""
        steps = __context.resolve(STEPS)
        steps.spend()
        if not isinstance(__obj, Macro | LoopContext):
            args = tuple(map(steps.listed, args))
            _check_call(__obj, args, {name: value for name, value in kwargs.items() if name not in OF_JINJA})
        result = super().call(__context, __obj, *args, **kwargs)
        if isinstance(result, range):
            steps.spend(len(result))
        return steps.pieces(result) if isinstance(_subject(__obj), str) else steps.made(result)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """`left` operator `right`, unless that is too large."""
        check_operator(operator, left, right)
        return _checked(context.resolve(STEPS).made(super().call_binop(context, operator, left, right)))


def _subject(method: Any) -> Any:
    """What a method is one of."""
    return getattr(getattr(method, "__wrapped__", method), "__self__", None)  # Jinja wraps a text's format


def _check_call(method: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    subject, name = _subject(method), getattr(getattr(method, "__wrapped__", method), "__name__", "")
    for value in (*args, *named.values()):
        weigh(value, apart=subject if name in OWN_LIST else None)
    if isinstance(subject, list | tuple) and name not in OWN_LIST:
        weigh(subject)
    check_growth(name, subject, args, named)
    if name == "strftime" and any(len(str(value)) > MAX_NAME for value in args):
        raise SecurityError("the format of a time is too long")


def _checked(value: Any) -> Any:
    """What was made, unless it is a number or a key that is too large."""
    if isinstance(value, int):
        check_bits(value)
    elif isinstance(value, tuple):
        weigh(value, MAX_KEY)
    return value


def _guarded(name: str, apply: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is asked about before it is applied."""

    @jinja2.pass_context
    def checked(context: Context, value: Any, *args: Any, **named: Any) -> Any:
        steps = context.resolve(STEPS)
        steps.on_time()
        args = tuple(map(steps.listed, args))
        value = value if name in LAZY else steps.listed(value)
        _check_filter(name, value, args, named)
        made = apply(*_passed(apply, context), value, *args, **named)
        return steps.pieces(made) if isinstance(value, str) else steps.made(made)

    return checked


def _guarded_test(apply: Callable[..., Any]) -> Callable[..., Any]:
    """A test of values that are weighed before."""

    @jinja2.pass_context
    def checked(context: Context, *values: Any) -> Any:
        context.resolve(STEPS).on_time()
        for value in values:
            weigh(value)
        return apply(*_passed(apply, context), *values)

    return checked


def _passed(apply: Callable[..., Any], context: Context) -> tuple[Any, ...]:
    """What Jinja passes to a filter or test before its own arguments."""
    passes = getattr(apply, "jinja_pass_arg", None)
    if passes is None:
        return ()
    return ({"context": context, "eval_context": context.eval_ctx}.get(passes.name, context.environment),)


def _check_filter(name: str, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    if name in EACH and isinstance(value, Sized) and len(value) > MAX_ITEMS:
        raise SecurityError(f"{name} is given more than {MAX_ITEMS:,} items")
    others = (*args, *named.values())
    for one in others if name in SHALLOW else (value, *others):
        weigh(one)
    if name in SLOW and weigh(value).size > MAX_SLOW:
        raise SecurityError(f"{name} is given more than {MAX_SLOW:,} characters")
    if name in BY_ATTRIBUTE and any(isinstance(one, str) and len(one) > MAX_NAME for one in others):
        raise SecurityError(f"an argument of {name} is longer than {MAX_NAME} characters")
    check_growth(name, value, args, named)


class _Names(Namespace):
    """`namespace()`, whose attributes do not begin with an underscore. As a text it does not show what it holds."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


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
def _written(context: Context, value: Any) -> Any:
    """What is written into the text."""
    context.resolve(STEPS).charge(BYTES_OF_OUTPUT)
    return value if type(value) in LEAVES else str(_weighed_value(value))


def _weighed_value(value: Any) -> Any:
    weigh(value)
    return value


@jinja2.pass_context
def _light(context: Context, value: Any) -> Any:
    """A value that is compared."""
    if type(value) in LEAVES:
        return value
    context.resolve(STEPS).on_time()
    return _weighed_value(value)


@jinja2.pass_context
def _made(context: Context, value: Any) -> Any:
    """What a literal, a slice or a block has made."""
    return _checked(context.resolve(STEPS).made(value))


@jinja2.pass_context
def _joined_texts(context: Context, parts: list[Any]) -> str:
    """The texts of values, one after the other."""
    weigh(parts)
    made: str = context.resolve(STEPS).made("".join(map(str, parts)))
    return made


@jinja2.pass_context
def _counted(context: Context, items: Iterable[Any], size: int) -> Iterable[Any]:
    """Yield the items, and charge for each a step and the bytes of what its turn writes."""
    steps: Any = context.resolve(STEPS)
    if isinstance(items, Sized):
        steps.spend(len(items))
        steps.charge(size * len(items))
        return items
    return _one_by_one(items, steps, size)


def _one_by_one(items: Iterable[Any], steps: Steps, size: int) -> Iterator[Any]:
    for item in steps.counted(items):
        steps.charge(size)
        yield item


def joined(pieces: Iterable[str]) -> str:
    """A text of pieces. SecurityError where it is too long."""
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
    """JSON as it is, where Jinja's own filter escapes what means something in HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _from_json(text: Any) -> Any:
    """The value of a text of JSON."""
    if isinstance(text, str) and len(text) > MAX_ITEMS:
        raise SecurityError(f"from_json is given more than {MAX_ITEMS:,} characters")
    return json.loads(text)


def _refuse(message: object) -> None:
    raise Refused(str(message))


def _new_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)
