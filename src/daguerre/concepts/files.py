"""Labels of files on disk, and examples of concepts in the held-out sample."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from daguerre.concepts.labels import LabelChunks, label_source, python_files
from daguerre.concepts.source import LINE, SourceText
from daguerre.concepts.taxonomy import Concept, taxonomy
from daguerre.errors import InputError
from daguerre.heldout import load_frozen

MIN_SHOWN = 3
"""Characters of an example; shorter ones say little."""


def label_files(paths: Sequence[Path], out: Path | None, progress: Console | None = None) -> dict[str, Any]:
    """Label all Python files of these folders; returns the counts, and the prevalence of each concept that was found.

    out  gets a line of JSON for each file, after one that says which taxonomy it is: file, sha256 of its bytes, whether
         it parses, and spans as [concept, first character, character after the last]. Of a file that was begun before,
         the files that are in it are left out. InputError for one of another taxonomy.
    """
    known, files = taxonomy(), list(python_files(paths))
    if not files:
        raise InputError(f"there is no Python file in {', '.join(map(str, paths))}: name a folder that has some")
    done = {} if out is None else _begun(out, known.sha256)
    chunks, counts = LabelChunks(), dict.fromkeys(("files", "spans", "unparsed", "skipped", "unreadable"), 0)
    seconds = 0.0
    shown = files if progress is None else track(files, "labeling", console=progress)
    with nullcontext() if out is None else out.open("a", encoding="utf-8") as target:
        for path in shown:
            content = path.read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            if done.get(str(path)) == digest:
                counts["skipped"] += 1
                continue
            try:
                text = content.decode("utf-8-sig")
            except UnicodeDecodeError:
                counts["unreadable"] += 1
                continue
            begun = time.process_time()
            source = SourceText(text)
            labels = label_source(source, known)
            seconds += time.process_time() - begun
            chunks.add(source, labels)
            counts["files"] += 1
            counts["spans"] += len(labels.spans)
            counts["unparsed"] += not labels.certain
            if target is not None:
                record = {"file": str(path), "sha256": digest, "parses": labels.certain, "spans": labels.spans.tolist()}
                target.write(json.dumps(record) + "\n")
    found = {one.name: chunks.prevalence(one) for one in known.concepts if chunks.counts[one.id]}
    return {**counts, "tokens": chunks.num_tokens, "seconds": round(seconds, 3), "prevalence": found}


def _begun(out: Path, sha256: str) -> dict[str, str]:
    """The hashes of the files that are labeled in `out` already; half a line at its end is cut off."""
    if not out.exists() or not out.stat().st_size:
        out.write_text(json.dumps({"taxonomy": sha256}) + "\n", encoding="utf-8")
        return {}
    content = out.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        out.write_bytes(whole)
    first, *lines = whole.decode("utf-8").splitlines() or [""]
    try:
        same = json.loads(first)["taxonomy"] == sha256
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{out} is no file of labels: name another one") from None
    if not same:
        raise InputError(f"{out} has labels of another taxonomy: name another file")
    records = (json.loads(line) for line in lines)
    return {record["file"]: record["sha256"] for record in records}


@dataclass(frozen=True)
class ConceptExample:
    """An instance of a concept in a held-out file. start, end: characters of `text`; line: from 1."""

    package: str
    file: str
    line: int
    text: str
    start: int
    end: int

    def around(self, lines: int, longest: int) -> tuple[str, str, str]:
        """What stands before it, itself, and after it: with so many lines on each side, and at most `longest` of it."""
        starts = [0, *(found.end() for found in LINE.finditer(self.text))]
        first = starts[max(0, self.line - 1 - lines)]
        middle = self.text[self.start : self.end]
        kept = "".join(middle.splitlines(keepends=True)[:longest])
        if len(kept) < len(middle):
            return self.text[first : self.start], kept.rstrip("\n"), "\n..."
        last = sum(start <= self.end for start in starts)  # lines up to the one it ends in
        stop = starts[last + lines] if last + lines < len(starts) else len(self.text)
        return self.text[first : self.start], middle, self.text[self.end : stop].rstrip("\n")


def examples(one: Concept, num: int) -> list[ConceptExample]:
    """Instances in held-out files, at most one of a file."""
    out = list[ConceptExample]()
    for document in load_frozen():
        if len(out) == num:
            break
        source = SourceText(document.text)
        if source.tree is None and not one.lexical:
            continue
        spans = sorted(set(one.detect(source)))
        if spans:
            start, end = next((span for span in spans if span[1] - span[0] >= MIN_SHOWN), spans[0])
            line = 1 + sum(found.end() <= start for found in LINE.finditer(document.text))
            out.append(ConceptExample(document.package, document.file, line, document.text, start, end))
    return out
