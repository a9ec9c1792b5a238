"""Calls that a reviewer of security would stop at."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from daguerre.concepts.detectors import add, concept
from daguerre.concepts.detectors.library_calls import calls_of
from daguerre.concepts.source import SourceText, Span, constant, string

SHELL_PLACE = 8
"""The ninth parameter of `subprocess.Popen`, and of what passes its arguments on to it."""
POPEN = frozenset(
    "subprocess.Popen subprocess.run subprocess.call subprocess.check_call subprocess.check_output".split()
)
PICKLES = "pickle cPickle _pickle dill cloudpickle".split()
LOADS = [f"{module}.{name}" for module in PICKLES for name in ("load", "loads", "Unpickler")]
LOADS += "marshal.load marshal.loads shelve.open pandas.read_pickle".split()
YAML_LOADS = frozenset({"yaml.load", "yaml.load_all"})
YAML_ALWAYS = frozenset({"yaml.unsafe_load", "yaml.unsafe_load_all", "yaml.full_load", "yaml.full_load_all"})
YAML_SAFE = frozenset("SafeLoader CSafeLoader BaseLoader CBaseLoader".split())
WEAK = frozenset("md4 md5 sha1".split())
WEAK_CALLS = frozenset({"hashlib.md5", "hashlib.sha1"})
HTTP_METHODS = frozenset("get post put patch delete head options request send stream".split())
HTTP_LIBRARIES = ("requests.", "httpx.")
VERIFY = frozenset({"verify", "check_hostname"})
UNVERIFIED = frozenset({"ssl.CERT_NONE", "ssl._create_unverified_context"})


def keyword_values(call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """The arguments of a call that have a name, also those of `**{"name": value}`."""
    for one in call.keywords:
        if one.arg is not None:
            yield one.arg, one.value
        elif isinstance(one.value, ast.Dict):
            for key, value in zip(one.value.keys, one.value.values, strict=True):
                yield string(key) or "", value


def argument(call: ast.Call, place: int, *names: str) -> ast.expr | None:
    """The value of a parameter, by place or by one of its names."""
    first = call.args[: place + 1]
    if len(first) > place and not any(isinstance(one, ast.Starred) for one in first):
        return first[place]
    return next((value for name, value in keyword_values(call) if name in names), None)


@concept
def shell_true(source: SourceText) -> Iterator[Span]:
    for call in source.of(ast.Call):
        if call.keywords and any(name == "shell" and constant(value, True) for name, value in keyword_values(call)):
            yield source.span(call)
    for call, name in source.names.calls("subprocess"):
        if name in POPEN and constant(argument(call, SHELL_PLACE), True):
            yield source.span(call)


add("eval_exec", calls_of("builtins.eval builtins.exec"))
add("insecure_tempfile", calls_of("tempfile.mktemp"))
_load = calls_of(" ".join(LOADS))


def _safe_yaml(source: SourceText, loader: ast.expr | None) -> bool:
    """Whether a loader of yaml makes only plain objects, however it was imported."""
    names = source.names.meanings(loader)
    return bool(names) and all(name.startswith("yaml.") and name.rpartition(".")[2] in YAML_SAFE for name in names)


@concept
def unsafe_deserialization(source: SourceText) -> Iterator[Span]:
    yield from _load(source)
    for call, name in source.names.calls("yaml"):
        if name in YAML_ALWAYS or (name in YAML_LOADS and not _safe_yaml(source, argument(call, 1, "Loader"))):
            yield source.span(call)


def _weak(source: SourceText, node: ast.expr | None) -> bool:
    name = string(node)
    if name is not None:
        return name.lower().replace("-", "") in WEAK
    return source.names.means(node, WEAK_CALLS)


@concept
def weak_hash(source: SourceText) -> Iterator[Span]:
    for call, name in source.names.calls("hashlib"):
        if (
            name in WEAK_CALLS
            or (name == "hashlib.new" and _weak(source, argument(call, 0, "name")))
            or (name == "hashlib.file_digest" and _weak(source, argument(call, 1, "digest")))
        ):
            yield source.span(call)


def _http(source: SourceText, call: ast.Call) -> bool:
    """Whether a call is of a method with a name as HTTP has them, or of a library, or hands on something of one."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in HTTP_METHODS:
        return True
    return any(
        name.startswith(HTTP_LIBRARIES) for one in (call.func, *call.args) for name in source.names.meanings(one)
    )


@concept
def tls_verify_disabled(source: SourceText) -> Iterator[Span]:
    for call in source.of(ast.Call):
        if call.keywords:
            off = {name for name, value in keyword_values(call) if name in VERIFY and constant(value, False)}
            if "check_hostname" in off or (off and _http(source, call)):
                yield source.span(call)
    for node in source.of(ast.Assign):
        if constant(node.value, False):
            if any(isinstance(target, ast.Attribute) and target.attr in VERIFY for target in node.targets):
                yield source.span(node)
    for use, name in source.names.uses("ssl"):
        if name in UNVERIFIED:
            yield source.span(use)
