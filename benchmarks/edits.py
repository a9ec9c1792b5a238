"""Edits by instruction and merges of lazy snippets by a model with a chat template, each checked exactly.

    python benchmarks/edits.py MODEL.gguf --out edits.jsonl                    100 edits and 200 merges
    python benchmarks/edits.py MODEL.gguf --edits 20 --merges 0 --lines 60     fewer, in shorter files

Edits are those of `daguerre.evals.edit_rules`: files of the frozen held-out sample, a rule for each kind. Of every
fifth the same prompt is answered without a draft, too, in mode "ar": the same text, and its time to compare with; of
every twentieth so is the prompt that asks for the whole file.
Merges are those that recipes/instructions makes: most have chunks between lines that the file has once (`apply`),
others between lines that it has more often (`repeated`), or with new lines at their ends (`bare`).
One is damaged if a line of the file that the snippet does not replace is lost.

Each row is written as it is measured, and what --out has already is not measured again; a page beside it has the sums.
Times are processor time.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import daguerre
from daguerre.editing.answers import UnreadableAnswer
from daguerre.editing.merging import merged
from daguerre.editing.rewriting import rewriting
from daguerre.editing.snippets import merged_exactly
from daguerre.errors import DaguerreError
from daguerre.evals.edit_rules import EditTask, make_tasks
from daguerre.evals.machine import machine_facts
from daguerre.heldout import load_frozen
from daguerre.model import Model

sys.path.append(str(Path(__file__).resolve().parents[1] / "recipes" / "instructions"))

PLAIN_EVERY, WHOLE_EVERY = 5, 20
MERGES = {"apply": 0.625, "repeated": 0.175, "bare": 0.2}
"""The share of each kind of merge; of `repeated` the sample has no more."""
Row = dict[str, Any]


def edit_row(model: Model, task: EditTask, plain: bool, whole: bool) -> Row:
    """What became of a task; plain: measure its first answer without a draft, too; whole: and the whole file so."""
    row: Row = {"rule": task.rule, "file": task.file, "instruction": task.instruction, "refused": None}
    begun, name = time.process_time(), task.file.rpartition("/")[2]
    try:
        result = model.edit(task.text, instruction=task.instruction, name=name)
        usage = result.usage
        row |= {"right": task.is_right(result.text), "same": result.text == task.text, "diff": result.diff}
        row |= {"tokens": usage.completion_tokens, "forwards": usage.forwards, "computed": usage.computed_tokens}
    except UnreadableAnswer as error:
        row |= {"right": False, "refused": error.reason, "diff": error.answer}
    row["seconds"] = time.process_time() - begun
    if plain and "tokens" in row:
        row |= without_draft(model, task, name, whole)
    return row


def without_draft(model: Model, task: EditTask, name: str, whole: bool) -> Row:
    """Seconds of the first answer with its draft and without, and whether both are the same; those of the whole file,
    without a draft.
    """
    asked = next(rewriting(model, task.text, task.instruction, None, name))
    drawn: dict[str, Any] = {"temperature": 0.0}
    begun = time.process_time()
    fast = model.generate(asked.prompt, asked.max_tokens, draft=asked.draft, mode="speculative", **drawn)
    between = time.process_time()
    slow = model.generate(asked.prompt, asked.max_tokens, mode="ar", **drawn)
    row = {"drafted_seconds": between - begun, "plain_seconds": time.process_time() - between}
    row |= {"equal": fast.text == slow.text, "prompt": len(asked.prompt)}
    if whole:
        asked = next(rewriting(model, task.text, task.instruction, (1, len(task.text.splitlines())), name))
        begun = time.process_time()
        model.generate(asked.prompt, asked.max_tokens, mode="ar", **drawn)
        row["whole_seconds"] = time.process_time() - begun
    return row


def merge_rows(model: Model, num: int, done: set[str]) -> Iterator[Row]:
    """What became of `num` merges of files of up to 600 tokens."""
    from pieces import LONGEST, held_files, pieces_of
    from statements import Donors
    from tasks import MERGES as MAKERS

    rng = random.Random("edits")
    pieces = [one for file in held_files() for one in pieces_of(*file, model.tokenizer, rng, 12, LONGEST)]
    rng.shuffle(pieces)
    donors = Donors()
    for piece in pieces:
        donors.add(piece)
    for at, (kind, share) in enumerate(MERGES.items()):
        found = ((piece, MAKERS[kind](piece, donors, rng)) for piece in pieces[at :: len(MERGES)])
        made = ((piece, one) for piece, one in found if one is not None)
        for number, (piece, one) in enumerate(islice(made, round(share * num))):
            if f"{kind} {number}" not in done:
                snippet, want = ("\n".join(lines) + "\n" for lines in (one.snippet, one.merged))
                yield {"merge": f"{kind} {number}", **merge_row(model, piece.text, snippet, want)}


def merge_row(model: Model, text: str, snippet: str, want: str) -> Row:
    """What became of a merge."""
    begun, made, refused = time.process_time(), text, None
    try:
        made = merged(model, text, snippet)
    except DaguerreError as error:
        refused = str(error)
    kept = Counter(text.split("\n")) & Counter(want.split("\n"))
    lost = (kept - Counter(made.split("\n"))).total()
    exact = merged_exactly(text, snippet) is not None
    seconds = time.process_time() - begun
    return {"right": made == want, "damaged": lost > 0, "exact": exact, "refused": refused, "seconds": seconds}


def table(rows: Iterable[Row], key: str) -> list[str]:
    """Lines of a table: how many are right, by kind."""
    out, kinds = [], Counter[str]()
    good = Counter[str]()
    for row in rows:
        kinds[row[key].split()[0]] += 1
        good[row[key].split()[0]] += row["right"]
    for kind, num in kinds.items():
        out.append(f"| {kind} | {good[kind]} of {num} |")
    return [*out, f"| all | {good.total()} of {kinds.total()} |"]


def summary(rows: list[Row]) -> str:
    """What is reported."""
    edits, merges = [row for row in rows if "rule" in row], [row for row in rows if "merge" in row]
    out = ["| edit | right |", "|---|---|", *table(edits, "rule")] if edits else []
    written = [row for row in edits if "tokens" in row]
    if written:
        tokens, forwards = (sum(row[name] for row in written) for name in ("tokens", "forwards"))
        refused = sum(row["refused"] is not None for row in edits)
        out.append(f"\n{tokens / forwards:.1f} tokens a forward; {refused} refused.")
    both = [row for row in edits if "plain_seconds" in row]
    if both:
        ratio = sum(row["plain_seconds"] for row in both) / sum(row["drafted_seconds"] for row in both)
        out.append(
            f"{ratio:.2f} times `ar`, prompts included; {sum(row['equal'] for row in both)} of {len(both)} equal."
        )
    whole = [row for row in both if "whole_seconds" in row]
    if whole:
        ratio = sum(row["whole_seconds"] for row in whole) / sum(row["drafted_seconds"] for row in whole)
        out.append(f"{ratio:.2f} times `ar` that writes the whole file ({len(whole)} edits).")
    if merges:
        out += ["\n| merge | right |", "|---|---|", *table(merges, "merge")]
        out.append(
            f"\n{sum(row['damaged'] for row in merges)} damaged, {sum(row['exact'] for row in merges)} without a model."
        )
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--quantize")
    parser.add_argument("--edits", type=int, default=100)
    parser.add_argument("--merges", type=int, default=200)
    parser.add_argument("--lines", type=int, default=200, help="of a file, at most (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("edits.jsonl"))
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    done = {row.get("merge") or f"{row['rule']} {row['instruction']} {row['file']}" for row in rows}
    model = daguerre.load(options.model, quantize=options.quantize)

    def measured() -> Iterator[Row]:
        tasks = make_tasks(load_frozen(), options.edits, most_lines=options.lines)
        for number, task in enumerate(tasks):
            if f"{task.rule} {task.instruction} {task.file}" not in done:
                yield edit_row(model, task, number % PLAIN_EVERY == 0, number % WHOLE_EVERY == 0)
        yield from merge_rows(model, options.merges, done)

    with options.out.open("a") as out:
        for row in measured():
            rows.append(row)
            out.write(json.dumps(row) + "\n")
            out.flush()
            print({name: value for name, value in row.items() if name not in ("diff", "instruction")}, flush=True)
    facts = machine_facts()
    about = f"{Path(options.model).name}; {facts['processor']}, instruction set {facts['instruction_set']}, daguerre "
    text = f"# Edits and merges\n\n{summary(rows).strip()}\n\n{about}{facts['daguerre']}\n"
    print(text)
    options.out.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
