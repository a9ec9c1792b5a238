"""Files of code, short enough to be shown whole, made of the statements of real ones.

A piece is a run of statements at the top of a file, or the head of a class with a run of its methods. Packages of
`daguerre.train.corpus/heldout.txt` give no training piece, nor do forks of them (FORKS), nor files that are near
duplicates of the frozen held-out sample, which is what held-out pieces are made of.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

import numpy as np

from daguerre.evals.lines import first_line_number, parse
from daguerre.heldout import load_frozen
from daguerre.instructions import lines_of
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.corpus.dedup import THRESHOLD, signature, similarities
from daguerre.train.corpus.filters import decode, refuse_path, refuse_text
from daguerre.train.corpus.sources import Package, find_packages, heldout_splits, normalize

FORKS = frozenset({"httpx2", "httpcore2"})
"""Installed packages that come from held-out ones."""
FILES, STDLIB_FILES = 60, 500
"""Files that are taken of a package, and of the standard library."""
FEWEST, MOST, LONGEST = 40, 300, 600
"""Tokens of a piece; the longest for merges."""
PER_TOKEN = 3.0
"""Characters of a token, about."""
LONGEST_LINE = 140


@dataclass(frozen=True)
class ShortFile:
    """A short file."""

    package: str
    text: str

    @cached_property
    def lines(self) -> list[str]:
        return lines_of(self.text)

    @cached_property
    def tree(self) -> ast.Module:
        tree = parse(self.text)
        assert tree is not None
        return tree


def training_files(seed: int) -> Iterator[tuple[str, str]]:
    """(package, text) of files that may be trained on, in an order of the seed."""
    rng, frozen = random.Random(seed), np.stack([signature(document.text) for document in load_frozen()])
    chosen: list[tuple[Package, str]] = []
    for package in find_packages([]):
        if isinstance(package, Package) and normalize(package.name) not in {*heldout_splits(), *FORKS, "daguerre"}:
            files = [name for name in package.files if refuse_path(PurePosixPath(name)) is None]
            most = STDLIB_FILES if package.name == "python-stdlib" else FILES
            chosen += ((package, name) for name in rng.sample(files, min(len(files), most)))
    rng.shuffle(chosen)
    for package, name in chosen:
        try:
            text = decode((package.root / name).read_bytes())
        except (OSError, SyntaxError, UnicodeError, LookupError, ValueError):
            continue
        if len(text) < 300_000 and refuse_text(text) is None:
            if similarities(frozen, signature(text)).max() < THRESHOLD:
                yield package.name, text


def held_files() -> Iterator[tuple[str, str]]:
    """(package, text) of the frozen held-out sample."""
    yield from ((document.package, document.text) for document in load_frozen())


def pieces_of(
    package: str, text: str, tokenizer: Tokenizer, rng: random.Random, most: int, longest: int = MOST
) -> Iterator[ShortFile]:
    """At most `most` pieces of a file, of different lengths up to so many tokens."""
    tree = parse(text)
    if tree is None:
        return
    lines, seen = lines_of(text), set[str]()
    groups = [("", tree.body, 1)]
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.col_offset == 0 and node.body[0].lineno > node.lineno:
            start, inner = first_line_number(node), first_line_number(node.body[0])
            groups.append(("\n".join(lines[start:inner]) + "\n", node.body, inner + 1))
    for _ in range(4 * most if tree.body else 0):
        head, body, first = rng.choice(groups)
        budget = int(PER_TOKEN * rng.uniform(FEWEST, 1.1 * longest))
        at = rng.randrange(len(body))
        made = _run(lines, body, at, first, budget - len(head))
        if made is None or (candidate := head + made) in seen:
            continue
        seen.add(candidate)
        short = candidate.count("\n") >= 4 and max(map(len, candidate.split("\n"))) <= LONGEST_LINE
        clean = candidate.isascii() and not any(c in candidate for c in "\t\f\r\v")
        if short and clean and parse(candidate) is not None and FEWEST <= len(tokenizer.encode(candidate)) <= longest:
            yield ShortFile(package, candidate)
            if (most := most - 1) == 0:
                return


def _run(lines: Sequence[str], body: Sequence[ast.stmt], at: int, first: int, budget: int) -> str | None:
    """The statements from number `at` on that fit, with what is between them."""
    start = first if at == 0 else (body[at - 1].end_lineno or 0) + 1
    end = None
    for node in body[at:]:
        last = node.end_lineno or node.lineno
        if sum(map(len, lines[start - 1 : last])) + last - start > budget:
            break
        end = last
    if end is None:
        return None
    chosen = lines[start - 1 : end]
    while chosen and not chosen[0].strip():
        chosen = chosen[1:]
    return "\n".join(chosen) + "\n" if chosen else None
