"""The share of held-out tasks that a model answers exactly: `python recipes/instructions/evaluate.py MODEL --data DIR`.

Answers are written greedily, in mode "speculative", whose text is that of one token a forward. What counts as exact:

    apply, repeated, bare    the file that the edit makes, byte for byte
    rename, next_edit        the places that change, and so the file that they make, byte for byte
    fix                      the line and its number, byte for byte
    type, call               the expression, as a syntax tree

Beside them: `rule` merges by equal lines (`merges.merge_by_rule`), or takes every place that is shown; `numbers`
are merges whose text is given, so that the model chooses numbers alone; `served` are merges as the server asks for
them, where a number is that of an equal line, if the file has one.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from string import ascii_letters
from typing import Any

from make import HELD
from merges import merge_by_rule
from pieces import LONGEST, MOST
from tasks import TaskRow

import daguerre
from daguerre.decoding.generate import Request
from daguerre.errors import InputError
from daguerre.evals import tables
from daguerre.evals.results import write_json, write_lines
from daguerre.instructions import apply_pattern, read_listing, read_merge, read_rename
from daguerre.model import Model
from daguerre.next_edits import Change, read_next_edit

sys.path.append(str(Path(__file__).resolve().parents[1]))

from proofs import ExactShare, answered

MERGES = ("apply", "repeated", "bare")
"""Tasks whose answers are edits."""
AT_ONCE = 32
"""Answers that are written together."""
MORE = 16
"""Tokens that an answer may be longer than the right one."""
SOME = 4
"""Of so many merges one is written under a constraint, too, which takes a forward for each token."""
LENGTHS = (100, 200, 300, 400, 500, 600)
"""Tokens of files, for the table by length."""


class TaskShare(ExactShare):
    """How many tasks are exact, and of how many, in words."""

    def __str__(self) -> str:
        return self.text.replace("%", f"% of {self.num}", 1)


@dataclass(frozen=True)
class MeasuredShares:
    """A task's share, and the same by kind of task and by tokens of the file."""

    task: str
    all: TaskShare
    kinds: dict[str, TaskShare]
    lengths: dict[str, TaskShare]
    beside: dict[str, TaskShare] = field(default_factory=dict)


def read_rows(path: Path, tasks: Sequence[str] = (), num: int | None = None) -> list[TaskRow]:
    """The first `num` rows of each task."""
    rows = [TaskRow(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    names = tasks or list(dict.fromkeys(row.task for row in rows))
    return [row for name in names for row in [one for one in rows if one.task == name][:num]]


def answers(model: Model, rows: Sequence[TaskRow], given: str | None = None) -> Iterator[str]:
    """What a model answers, in order; rows of like length share a batch. given: of merges, "numbers" or "served"."""
    encode = model.tokenizer.encode
    sizes = [len(encode(row.completion)) for row in rows]
    order = sorted(range(len(rows)), key=lambda i: sizes[i])
    out: dict[int, str] = {}
    for first in range(0, len(order), AT_ONCE):
        chosen = order[first : first + AT_ONCE]
        how: dict[str, Any] = {"heal": False, "temperature": 0.0}
        requests = [
            Request.of("generate", rows[i].prompt, sizes[i] + MORE, regex=_pattern(rows[i], given), **how)
            for i in chosen
        ]
        out |= {i: result.text for i, result in zip(chosen, answered(model, requests), strict=True)}
    yield from (out[i] for i in range(len(rows)))


def _pattern(row: TaskRow, given: str | None) -> str | None:
    return None if given is None else apply_pattern(row.facts["code"], row.facts["snippet"], given == "served")


def is_exact(row: TaskRow, answer: str) -> bool:
    """Whether an answer is right."""
    return CHECKS[row.task](row, answer)


def _same_file(row: TaskRow, answer: str) -> bool:
    try:
        return answer.endswith("\n") and read_merge(row.facts["code"], answer) == row.facts["merged"]
    except InputError:
        return False


def _same_line(row: TaskRow, answer: str) -> bool:
    return answer == row.completion


def _same_names(row: TaskRow, answer: str) -> bool:
    made = read_rename(row.facts["code"], *row.facts["names"], answer, *row.facts["region"])
    return answer.endswith("\n") and made == list(row.facts["result"])


def _same_edit(row: TaskRow, answer: str) -> bool:
    change, places = Change(**row.facts["change"]), [(line, column) for line, column in row.facts["places"]]
    return answer.endswith("\n") and read_next_edit(row.facts["code"], change, places, answer) == row.facts["right"]


def _same_tree(row: TaskRow, answer: str) -> bool:
    try:
        return ast.dump(ast.parse(answer.strip(), mode="eval")) == ast.dump(
            ast.parse(row.completion.strip(), mode="eval")
        )
    except (SyntaxError, ValueError):
        return False


CHECKS: dict[str, Callable[[TaskRow, str], bool]] = {
    **dict.fromkeys(MERGES, _same_file),
    "rename": _same_names,
    "fix": _same_line,
    "type": _same_tree,
    "call": _same_tree,
    "next_edit": _same_edit,
}


def measured(task: str, rows: Sequence[TaskRow], found: Sequence[bool], sizes: Sequence[int]) -> MeasuredShares:
    """Shares of a task's rows, whose files have so many tokens."""
    kinds = {
        kind: [ok for row, ok in zip(rows, found, strict=True) if kind in row.kind.split("+")]
        for kind in kinds_of(rows)
    }
    beside = {}
    if task in MERGES:
        rule = [merge_by_rule(row.facts["code"], row.facts["snippet"]) == row.facts["merged"] for row in rows]
        beside["rule"] = TaskShare.of(rule)
    if task in ("rename", "next_edit"):
        beside["rule"] = TaskShare.of([is_exact(row, " ".join(ascii_letters) + "\n") for row in rows])
    shares = {kind: TaskShare.of(values) for kind, values in kinds.items()}
    return MeasuredShares(task, TaskShare.of(found), shares, by_length(found, sizes), beside)


def by_length(found: Sequence[bool], sizes: Sequence[int], bounds: Sequence[int] = LENGTHS) -> dict[str, TaskShare]:
    """Shares by tokens of the file."""
    out = {}
    for low, high in zip((0, *bounds), bounds, strict=False):
        if chosen := [ok for size, ok in zip(sizes, found, strict=True) if low < size <= high]:
            out[f"{low + 1} to {high}"] = TaskShare.of(chosen)
    return out


def kinds_of(rows: Sequence[TaskRow]) -> list[str]:
    """The kinds of rows."""
    return sorted({kind for row in rows for kind in row.kind.split("+")})


def evaluate(model: Model, rows: Sequence[TaskRow]) -> tuple[list[MeasuredShares], list[dict[str, Any]]]:
    """Shares of every task, and the answers that are wrong."""
    found, wrong = list[MeasuredShares](), list[dict[str, Any]]()
    for task in dict.fromkeys(row.task for row in rows):
        of_task = [row for row in rows if row.task == task]
        said = list(answers(model, of_task))
        right = _exact(of_task, said)
        sizes = [len(model.tokenizer.encode(file_of(row))) for row in of_task]
        found.append(measured(task, of_task, right, sizes))
        if task in MERGES:
            for given, some in ((None, 1), ("numbers", SOME), ("served", SOME)):
                chosen = of_task[::some]
                ways = right if given is None else _exact(chosen, answers(model, chosen, given))
                for key, share in by_length(ways, sizes[::some], (MOST, LONGEST)).items():
                    found[-1].beside[f"{given or 'freely'}, {key} tokens"] = share
        wrong += [
            {"task": task, "kind": row.kind, "prompt": row.prompt, "right": row.completion, "wrote": answer}
            for row, answer, ok in zip(of_task, said, right, strict=True)
            if not ok
        ]
        print(f"| {task} | {found[-1].all} |", flush=True)
    return found, wrong


def _exact(rows: Sequence[TaskRow], said: Iterable[str]) -> list[bool]:
    return [is_exact(row, answer) for row, answer in zip(rows, said, strict=True)]


def file_of(row: TaskRow) -> str:
    """The file that a row shows, without numbers."""
    if row.task in MERGES:
        return "".join(line + "\n" for line in row.facts["code"])
    return read_listing(row.prompt.split("#> ", 2)[1].split("\n", 1)[1])


def table(found: Sequence[MeasuredShares]) -> str:
    """Shares as a table in Markdown."""
    rows = []
    for one in found:
        rows.append([one.task, one.all, "; ".join(f"{name}: {share}" for name, share in one.beside.items())])
        for name, part in (("kind", one.kinds), ("tokens of the file", one.lengths)):
            if len(part) > 1:
                rows += [[f"&nbsp; {name}: {key}", share, ""] for key, share in part.items()]
    return tables.table(["task", "exact", "beside"], rows, left=3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder with a model")
    parser.add_argument("--data", type=Path, required=True, help=f"{HELD}, or the folder that it is in")
    parser.add_argument("--tasks", nargs="+", default=[], choices=sorted(CHECKS))
    parser.add_argument("--num", type=int, help="rows of each task; all by default")
    parser.add_argument("--json", type=Path, help="where to write the figures, too")
    parser.add_argument("--wrong", type=Path, help="where to write wrong answers")
    options = parser.parse_args()
    rows = read_rows(options.data / HELD if options.data.is_dir() else options.data, options.tasks, options.num)
    found, wrong = evaluate(daguerre.load(options.model), rows)
    print(table(found))
    if options.json is not None:
        write_json(options.json, [asdict(one) for one in found])
    if options.wrong is not None:
        write_lines(options.wrong, wrong)


if __name__ == "__main__":
    main()
