"""What the rules of a user's own taxonomy find in files, before anything is trained."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from daguerre.concepts.labels import TEXT_ENDINGS, python_files
from daguerre.concepts.own import OwnTaxonomy, read_taxonomy
from daguerre.errors import InputError, printable
from daguerre.files import atomic_write

SHOWN = 60
"""Characters of an example."""
EXAMPLES = 3


def label_by_rules(paths: Sequence[Path], taxonomy: Path, out: Path | None) -> dict[str, Any]:
    """Label the text files of folders by the rules of a taxonomy; returns how many files there are, and of each concept
    with a rule how many spans, in how many files, and EXAMPLES: the file, the line, from 1, and the text.

    out  gets a line of JSON for each file, in the form of a taxonomy's `labels`, to be corrected and learned from

    InputError where there is no file; files that are not UTF-8 are left out.
    """
    if out is not None and out.exists():
        raise InputError(f"{out} is there already: give another --out")
    own, files = read_taxonomy(taxonomy), list(python_files(paths, TEXT_ENDINGS))
    if not files:
        raise InputError(f"there is no file of text in {', '.join(map(str, paths))}: name a folder that has some")
    spans, of_files, examples, lines = Counter[str](), Counter[str](), dict[str, list[Any]](), list[str]()
    for path in files:
        text = _text(path)
        found = [] if text is None else _spans(own, text)
        spans.update(name for name, _, _ in found)
        of_files.update({name for name, _, _ in found})
        for name, start, end in found:
            assert text is not None
            shown = examples.setdefault(name, [])
            if len(shown) < EXAMPLES and (not shown or shown[-1][0] != str(path)):
                shown.append((str(path), 1 + text.count("\n", 0, start), " ".join(text[start:end].split())[:SHOWN]))
        if text is not None:
            lines.append(json.dumps({"text": text, "spans": found}, ensure_ascii=False) + "\n")
    if out is not None:
        with atomic_write(out) as file:
            file.write("".join(lines).encode())
    ruled = [one.name for one in own.concepts if one.pattern or one.syntax]
    of = {name: {"spans": spans[name], "files": of_files[name], "examples": examples.get(name, [])} for name in ruled}
    return {"files": len(files), "unreadable": len(files) - len(lines), "concepts": of}


def _text(path: Path) -> str | None:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def _spans(own: OwnTaxonomy, text: str) -> list[tuple[str, int, int]]:
    return [(own.concepts[number].name, start, end) for number, start, end in own.label(text).spans.tolist()]


def lines_of(found: dict[str, Any]) -> list[str]:
    """What was found, for people."""
    out = [
        f"{found['files']:,} files" + (f", {found['unreadable']:,} of them not UTF-8" if found["unreadable"] else "")
    ]
    width = max(map(len, found["concepts"]), default=0)
    for name, one in found["concepts"].items():
        out.append(f"{name:{width}}  {one['spans']:,} spans in {one['files']:,} files")
        out += [printable(f"{'':{width}}    {file}:{line}  {text}") for file, line, text in one["examples"]]
    return out
