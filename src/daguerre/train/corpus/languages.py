"""Text of any language in a user's folder: which files are read, and what they are called."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path, PurePath, PurePosixPath

from daguerre.train.corpus import filters
from daguerre.train.corpus.sources import walk

MOST_BYTES = 10_000_000
"""Bytes of files that are read, the first ones by a hash of their names: more than a first model sees in its time."""
NAMES = {
    "Python": "py pyi",
    "JavaScript": "js jsx mjs cjs",
    "TypeScript": "ts tsx mts",
    "C": "c h",
    "C++": "cc cpp cxx hpp hh hxx inl",
    "C#": "cs",
    "Java": "java",
    "Kotlin": "kt kts",
    "Scala": "scala",
    "Swift": "swift",
    "Objective-C or MATLAB": "m mm",
    "Go": "go",
    "Rust": "rs",
    "Ruby": "rb",
    "PHP": "php",
    "Perl": "pl pm",
    "Lua": "lua",
    "R": "r",
    "Julia": "jl",
    "Haskell": "hs",
    "OCaml": "ml mli",
    "Elixir": "ex exs",
    "Erlang": "erl hrl",
    "Clojure": "clj cljs",
    "Lisp": "lisp el scm",
    "Zig": "zig",
    "Dart": "dart",
    "Fortran": "f f90 f95",
    "CUDA": "cu cuh",
    "Assembly": "s asm",
    "shell": "sh bash zsh fish",
    "PowerShell": "ps1",
    "SQL": "sql",
    "CSS": "css scss less",
    "HTML": "html htm",
    "Vue": "vue",
    "YAML": "yaml yml",
    "TOML": "toml",
    "CMake": "cmake",
    "Nix": "nix",
    "Terraform": "tf",
    "Protocol Buffers": "proto",
    "Markdown": "md markdown",
    "reStructuredText": "rst",
    "LaTeX": "tex",
    "plain text": "txt text org adoc",
}
BY_SUFFIX = {f".{suffix}": name for name, suffixes in NAMES.items() for suffix in suffixes.split()}
BY_NAME = {"makefile": "make", "dockerfile": "Docker", "readme": "plain text"}
PROSE = ("Markdown", "reStructuredText", "LaTeX", "plain text")
"""Languages with a paragraph to a line."""
SKIPPED = frozenset(("site-packages", "__pycache__", "node_modules", "target", "build", "dist", "venv", "env"))
"""Folders of what is installed or built."""


def language_of(name: str) -> str | None:
    """What a file is written in, by its name; None for what is no text that somebody has written."""
    path = PurePath(name.lower())
    if path.name.endswith((".min.js", ".min.css")):
        return None
    return BY_SUFFIX.get(path.suffix) or BY_NAME.get(path.name)


def text_files(root: Path) -> tuple[str, ...]:
    """Files of known languages below `root`, sorted, without hidden folders and SKIPPED; links are not followed. Of a
    large folder those that have MOST_BYTES together.
    """
    chosen, total = [], 0
    files = walk(root, SKIPPED, lambda name: language_of(name) is not None)
    for file in sorted(files, key=lambda name: sha256(os.fsencode(name)).digest()):
        if total >= MOST_BYTES:
            break
        chosen.append(file)
        total += _size(root / file)
    return tuple(sorted(chosen))


def _size(path: Path) -> int:
    try:
        return min(path.stat().st_size, filters.MAX_BYTES)
    except OSError:
        return 0


def refuse(file: PurePosixPath, text: str) -> str | None:
    """Why a file is dropped by its text, or None: Python by the rules of a corpus, other languages without its tree."""
    language = language_of(file.name)
    return filters.refuse_text(text) if language == "Python" else filters.refuse_any_text(text, language in PROSE)


def counted(files: Iterable[str]) -> str:
    """How many files of which languages: "3 Rust and 2 TOML files"."""
    counts = Counter(language_of(file) or "other" for file in files).most_common()
    parts = [f"{count:,} {name}" for name, count in counts]
    return f"{', '.join(parts[:-1])}{' and ' if parts[1:] else ''}{parts[-1]} file{'s' if counts[-1][1] > 1 else ''}"
