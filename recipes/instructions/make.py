"""Write tasks to train on, and held-out ones: `python recipes/instructions/make.py --out DIR`.

    DIR/train.jsonl   {"prompt", "completion"} rows of all tasks, and {"text"} rows of plain code: data of the recipe
    DIR/held.jsonl    tasks of files of held-out packages, with what a check or a rule needs: `--held` of each task, and
                      as many merges of longer files

The same seed makes the same files from the same installed packages.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import Path

from pieces import LONGEST, MOST, ShortFile, held_files, pieces_of, training_files
from statements import Donors
from tasks import MAKERS, TaskRow

from daguerre.evals.results import write_lines
from daguerre.models.tokenizer import Tokenizer

TRAIN, HELD = "train.jsonl", "held.jsonl"
SHARES = {"rename": 0.4, "fix": 0.35, "type": 0.05, "call": 0.1, "next_edit": 0.1}
"""Of the tasks that are trained on, but for merges."""
MERGE_SHARES = {"apply": 0.4, "touches": 0.35, "bare": 0.15, "repeated": 0.1}
"""Of the merges, which are of files of up to LONGEST tokens."""
MERGES = 0.8
"""Merges for each other task."""
HELD_TASKS = [task for task in MAKERS if task != "touches"]
"""What is measured on held-out files."""
PLAIN = 0.3
"""Rows of plain code, as a share of those of tasks: a third of all tokens."""
MOST_TOKENS, PLAIN_TOKENS = 1200, 830
"""Tokens of a prompt and its answer; of plain code."""
FEW = 3000
"""Pieces that donors are taken of."""
TRIES = 12


def rows_of(
    pieces: Iterable[ShortFile],
    donors: Donors,
    tasks: Mapping[str, float],
    seed: int,
    tokenizer: Tokenizer,
) -> Iterator[TaskRow]:
    """A task of each piece that has one."""
    for number, piece in enumerate(pieces):
        rng = random.Random(f"{seed} {number}")
        task = rng.choices(list(tasks), list(tasks.values()))[0]
        for _ in range(TRIES):
            row = MAKERS[task](piece, donors, rng)
            if (
                row is not None
                and len(tokenizer.encode(row.prompt)) + len(tokenizer.encode(row.completion)) <= MOST_TOKENS
            ):
                yield row
                break


def plain_rows(
    files: Iterable[tuple[str, str]], seed: int, tokenizer: Tokenizer, characters: int = 2200
) -> Iterator[dict[str, str]]:
    """Windows of files, from the beginning of a line to the end of one, of at most PLAIN_TOKENS."""
    rng = random.Random(seed)
    for _, text in files:
        start = 0 if len(text) < characters or rng.random() < 0.2 else rng.randrange(len(text) - characters // 2)
        start = text.find("\n", start) + 1 if start else 0
        part = text[start : start + characters]
        part = part if start + characters >= len(text) else part[: part.rfind("\n") + 1]
        if len(part) > 300 and len(tokenizer.encode(part)) <= PLAIN_TOKENS:
            yield {"text": part}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pieces", type=int, default=12, help="of a training file (%(default)s)")
    parser.add_argument("--held", type=int, default=300, help="held-out rows of each task (%(default)s)")
    parser.add_argument("--files", type=int, default=100_000, help="training files at most (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    tokenizer, rng = Tokenizer.default("2k"), random.Random(options.seed)
    files = [file for _, file in zip(range(options.files), training_files(options.seed), strict=False)]
    pieces, longer = (
        [piece for file in files for piece in pieces_of(*file, tokenizer, rng, options.pieces, longest)]
        for longest in (MOST, LONGEST)
    )
    rng.shuffle(pieces)
    rng.shuffle(longer)
    donors = Donors()
    for piece in pieces[:FEW]:
        donors.add(piece)
    made = list(rows_of(pieces, donors, SHARES, options.seed, tokenizer))
    merges = rows_of(longer, donors, MERGE_SHARES, options.seed, tokenizer)
    made += list(islice(merges, int(MERGES * len(made))))
    written = [{"prompt": row.prompt, "completion": row.completion} for row in made]
    windows = (row for turn in range(9) for row in plain_rows(files, options.seed + turn, tokenizer))
    written += islice(windows, int(PLAIN * len(made)))
    rng.shuffle(written)
    options.out.mkdir(parents=True, exist_ok=True)
    write_lines(options.out / TRAIN, written)
    print(f"{len(files):,} files, {len(pieces):,} pieces; tasks:", dict(Counter(row.task for row in made)), flush=True)
    rng = random.Random(f"{options.seed} held")  # what is held out does not depend on what is trained on
    held, longer = (
        [piece for file in held_files() for piece in pieces_of(*file, tokenizer, rng, 24, longest)]
        for longest in (MOST, LONGEST)
    )
    longer = [piece for piece in longer if len(tokenizer.encode(piece.text)) > MOST]
    rng.shuffle(held)
    rng.shuffle(longer)
    donors = Donors()
    for piece in held:
        donors.add(piece)
    rows = list[TaskRow]()
    for task, chosen in [("apply", longer), *((task, held) for task in HELD_TASKS)]:
        found = rows_of(chosen, donors, {task: 1.0}, options.seed, tokenizer)
        rows += (row for _, row in zip(range(options.held), found, strict=False))
    write_lines(options.out / HELD, map(asdict, rows))
    print("held out:", dict(Counter(row.task for row in rows)))


if __name__ == "__main__":
    main()
