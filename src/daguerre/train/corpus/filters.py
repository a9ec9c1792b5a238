"""Which files are worth learning from: plain, hand-written Python that parses."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
import zlib
from pathlib import PurePath

MAX_BYTES = 1_000_000
MIN_CHARACTERS = 100
MAX_LINE = 1_000  # characters; longer lines are data or minified
MAX_MEAN_LINE = 100
MAX_PROSE_LINE = 10_000
MAX_DIGITS = 0.25  # share of the characters that are not white space
MAX_LITERAL_LINES = 0.7  # share of the lines that are one assigned list, dict, tuple or string
MIN_COMPRESSED = 0.06  # zlib's share; below it the file repeats itself
UNPARSABLE = "does not parse"

VENDORED = frozenset(
    "_vendor vendor vendored _vendored _vendoring vendoring third_party thirdparty _third_party third-party 3rdparty "
    "extern externals external _external _externals node_modules bundled _bundled __pycache__".split()
)
_GENERATED_NAME = re.compile(
    r"(_pb2(_grpc)?|_pb2_grpc|\.generated|_generated|_autogen|_parsetab|^parsetab|_lextab|^lextab)\.pyi?$"
)
_GENERATED_LINE = re.compile(
    r"^\W*((this|the) (file|module|code|script|class) (is|was|has been|were) )?"
    r"(auto[- ]?(matically )?[- ]?generated\b|(code )?generated (by|from|with|using|automatically)\b|"
    r"machine[- ]generated)|@generated\b|\bdo not (edit|modify|change)\b|"
    r"\b(is|was|has been) (auto[- ]?generated|automatically generated)\b",
    re.I,
)
_HEAD_LINES = 25
_LITERAL = (ast.List, ast.Dict, ast.Tuple, ast.Set, ast.Constant, ast.Call)


def refuse_path(path: PurePath) -> str | None:
    """Why a file is dropped by its path relative to the package's root, or None."""
    if VENDORED.intersection(part.lower() for part in path.parts[:-1]):
        return "vendored"
    return "generated" if _GENERATED_NAME.search(path.name) else None


def decode(content: bytes) -> str:
    """The text of a source file by PEP 263: no byte order mark, "\\n" line ends, one at the end.

    Raises SyntaxError or UnicodeDecodeError when the bytes are not in the encoding they declare.
    """
    content = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    return content.decode(encoding).removeprefix("\ufeff").rstrip() + "\n"


def refuse_text(text: str) -> str | None:
    """Why a file is dropped by its text, or None."""
    return _refuse_lines(text, MAX_LINE, MAX_MEAN_LINE) or _refuse_tree(text, text.count("\n") + 1)


def refuse_any_text(text: str, prose: bool) -> str | None:
    """Why a file in any language is dropped by its text, or None; prose may have a paragraph to a line."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "does not decode"
    return _refuse_lines(text, MAX_PROSE_LINE if prose else MAX_LINE, MAX_PROSE_LINE if prose else MAX_MEAN_LINE)


def _refuse_lines(text: str, longest: int, mean: int) -> str | None:
    """Why a file is dropped by what it says of itself or by the shape of its lines, or None."""
    if len(text) < MIN_CHARACTERS:
        return "tiny"
    lines = text.split("\n")
    if any(_GENERATED_LINE.search(line) for line in lines[:_HEAD_LINES]):
        return "generated"
    if max(map(len, lines)) > longest or len(text) > mean * len(lines):
        return "long lines"
    return "data" if _is_data(text) else None


def _is_data(text: str) -> bool:
    visible = len(text) - text.count(" ") - text.count("\n")
    if sum(map(text.count, "0123456789")) > MAX_DIGITS * visible or "\x00" in text:
        return True
    encoded = text.encode("utf-8", errors="replace")
    return len(encoded) > 4_000 and len(zlib.compress(encoded, 1)) < MIN_COMPRESSED * len(encoded)


def _refuse_tree(text: str, num_lines: int) -> str | None:
    try:
        text.encode("utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return UNPARSABLE
    if num_lines > 60 and _literal_lines(tree.body) > MAX_LITERAL_LINES * num_lines:
        return "data"
    return None


def _literal_lines(body: list[ast.stmt]) -> int:
    """Lines taken by assigned displays and constants, at the top and in class bodies."""
    total = 0
    for node in body:
        if isinstance(node, ast.ClassDef):
            total += _literal_lines(node.body)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, _LITERAL):
            total += (node.end_lineno or node.lineno) - node.lineno + 1
    return total
