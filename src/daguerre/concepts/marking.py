"""Spans of text for a person to mark, so that a model which is asked for concepts can be calibrated and judged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from daguerre.concepts.asked import ConceptAsker, text_spans
from daguerre.concepts.labels import PROSE, python_files
from daguerre.concepts.own import OwnTaxonomy
from daguerre.errors import InputError
from daguerre.files import atomic_write

POOL = 8
"""Spans that are drawn for each one that is to be marked."""
LIKELY = 0.5
"""The share of a concept's spans that the model thinks the likeliest, where one is asked; the others are random."""


def draw_spans(paths: Sequence[Path], num: int, seed: int) -> list[str]:
    """Different spans of the text files of folders, `num` at most. InputError where there are none."""
    rng, found = np.random.default_rng(seed), dict[str, None]()
    files = list(python_files(paths, PROSE))
    for number in rng.permutation(len(files)).tolist():
        try:
            text = files[number].read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError:
            continue
        spans = [text[start:end] for start, end in text_spans(text)]
        found.update(dict.fromkeys(spans[place] for place in rng.permutation(len(spans))[: max(1, num // 8)].tolist()))
        if len(found) >= num:
            break
    if not found:
        raise InputError(f"there is no text in {', '.join(map(str, paths))}: name a folder that has some")
    return [*found][:num]


def write_marks(
    own: OwnTaxonomy, paths: Sequence[Path], num: int, out: Path, asker: ConceptAsker | None, seed: int = 0
) -> int:
    """Write so many spans for each concept that is asked for, those that have marks left out; returns how many lines
    there are, in which a person then sets "is". InputError where the file is there, or no concept is asked for.
    """
    if not own.asked:
        raise InputError("all concepts of this taxonomy have rules: none is marked")
    if out.exists():
        raise InputError(f"{out} is there already: give another --out")
    pool, rng = draw_spans(paths, POOL * num, seed), np.random.default_rng(seed)
    chances = None if asker is None else np.stack([asker.scores(span, own.asked) for span in pool])
    lines = list[str]()
    for place, one in enumerate(own.asked):
        marked = {mark.text for mark in own.marks if mark.concept == one.name}
        order = rng.permutation(len(pool))
        if chances is not None:
            yes = chances[:, place, 0] - chances[:, place, 1]
            likely = np.argsort(-yes, kind="stable")[: round(LIKELY * num)]
            order = rng.permutation([*likely, *order[~np.isin(order, likely)][: num - len(likely)]])
        texts = [pool[number] for number in order.tolist() if pool[number] not in marked]
        lines += [
            json.dumps({"concept": one.name, "text": text, "is": None}, ensure_ascii=False) for text in texts[:num]
        ]
    with atomic_write(out) as file:
        file.write("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
    return len(lines)
