"""Spans of text for a person to mark, so that a model which is asked for concepts can be calibrated and judged."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from daguerre.concepts.asked import ConceptAsker, text_spans
from daguerre.concepts.labels import TEXT_ENDINGS, python_files
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
    files = list(python_files(paths, TEXT_ENDINGS))
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


def check_marks(own: OwnTaxonomy, out: Path) -> None:
    """InputError where no concept is asked for, or a file cannot be written."""
    if not own.asked:
        raise InputError("all concepts of this taxonomy have rules: none is marked")
    if out.exists():
        raise InputError(f"{out} is there already: give another --out")
    if not out.parent.is_dir():
        raise InputError(f"there is no folder {out.parent}: make it, or give another --out")


def write_marks(
    own: OwnTaxonomy,
    paths: Sequence[Path],
    num: int,
    out: Path,
    asker: ConceptAsker | None,
    seed: int = 0,
    asking: Callable[[Sequence[str]], Iterable[str]] = iter,
) -> int:
    """Write so many spans for each concept that is asked for, those that have marks left out; returns how many lines
    there are, in which a person then sets "is". asking: goes through the spans that the model is asked about, to show
    progress. InputError where the file is there, or no concept is asked for.
    """
    check_marks(own, out)
    pool, rng = draw_spans(paths, POOL * num, seed), np.random.default_rng(seed)
    if asker is not None:
        pool = [span for span in pool if asker.can_ask(span)]
    chances = None if asker is None else np.stack([asker.scores(span, own.asked) for span in asking(pool)])
    lines = list[str]()
    for place, one in enumerate(own.asked):
        marked = {mark.text for mark in own.marks if mark.concept == one.name}
        order = np.array([at for at in rng.permutation(len(pool)).tolist() if pool[at] not in marked], dtype=int)
        if chances is not None:
            yes = chances[:, place, 0] - chances[:, place, 1]
            likely = order[np.argsort(-yes[order], kind="stable")][: round(LIKELY * num)]
            order = rng.permutation([*likely, *order[~np.isin(order, likely)][: num - len(likely)]]).astype(int)
        lines += [
            json.dumps({"concept": one.name, "text": pool[at], "is": None}, ensure_ascii=False)
            for at in order[:num].tolist()
        ]
    if not lines:
        raise InputError("all of the spans that were drawn have marks: give another --seed, or more text")
    with atomic_write(out) as file:
        file.write("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
    return len(lines)
