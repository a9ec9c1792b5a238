"""How well a chat model that is asked for concepts agrees with rules that are the truth.

    python benchmarks/asked_concepts.py MODEL --data FOLDER --out benchmarks/results/asked-NAME

Of a taxonomy whose concepts have rules, spans of the text in FOLDER are drawn: for each concept as many that have it,
by its rule, as have it not. The model is asked without the rules, calibrated on half of the spans, and compared on the
others, as `daguerre train heads --taxonomy FILE --ask MODEL` does with what a person marks. Concepts with fewer than
FEWEST spans of either kind are left out.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import daguerre
from daguerre.concepts.asked import ConceptAsker, judge
from daguerre.concepts.marking import draw_spans
from daguerre.concepts.own import Mark, OwnConcept, OwnTaxonomy, read_taxonomy

POOL, FEWEST = 20_000, 8


def marks_by_rule(own: OwnTaxonomy, one: OwnConcept, spans: list[str], num: int) -> list[Mark]:
    """At most `num` spans of either kind; none where there are fewer than FEWEST of one."""
    rule, kinds = own.only([one.name]), ([], [])  # type: tuple[OwnTaxonomy, tuple[list[Mark], list[Mark]]]
    for span in spans:
        has = bool(len(rule.label(span).spans))
        if len(kinds[has]) < num:
            kinds[has].append(Mark(one.name, span, has))
        elif min(map(len, kinds)) == num:
            break
    return [*kinds[0], *kinds[1]] if min(map(len, kinds)) >= FEWEST else []


def page(report: dict[str, Any], command: str, note: str) -> str:
    """The page of a report. note: a sentence about the text."""
    lines = [
        f"# Concepts that {report['model']} was asked for",
        "",
        f"{report['questions']:,} questions took {report['seconds']:.0f} s of processor time on one thread, "
        f"{3600 * report['questions'] / report['seconds']:,.0f} an hour. Labels by rule are the truth; half of the "
        f"spans calibrate the model, the others are compared. Kappa with its 95% interval.{' ' * bool(note)}{note}",
        "",
        "| concept | kappa | held-out spans |",
        "|---|---:|---:|",
    ]
    rows = [
        f"| {row['name']} | {row['kappa']:.2f} [{row['low']:.2f}, {row['high']:.2f}] | {row['cases']} |"
        for row in report["concepts"]
    ]
    return "\n".join([*lines, *rows, "", f"Written by `{command}`.", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--taxonomy", type=Path, default=Path("examples/concepts/prose.toml"))
    parser.add_argument("--data", type=Path, action="append", required=True)
    parser.add_argument("--num", type=int, default=20, help="spans of either kind for a concept, at most")
    parser.add_argument("--concept", action="append", help="one of the taxonomy's concepts; all by default")
    parser.add_argument("--note", default="", help="a sentence for the page, about the text")
    parser.add_argument("--out", type=Path, help="write NAME.md and NAME.json")
    given = parser.parse_args()
    own, spans = read_taxonomy(given.taxonomy), draw_spans(given.data, POOL, 0)
    own = own.only(given.concept or own.numbers)
    asked = [replace(one, pattern="", syntax="") for one in own.concepts]
    asker = ConceptAsker(daguerre.load(given.model, drafts="none", concepts="none", threads=1), asked)
    rows, questions, began = list[dict[str, Any]](), 0, time.process_time()
    for one, plain in zip(own.concepts, asked, strict=True):
        marks = marks_by_rule(own, one, spans, given.num)
        if marks:
            questions += len(marks)
            found = judge(plain, marks, asker)
            rows.append({"name": one.name, **asdict(found.agreement)})
            print(found.line(0.4), flush=True)
    seconds = time.process_time() - began
    report = {"model": Path(given.model).name, "questions": questions, "seconds": seconds, "concepts": rows}
    chosen = "".join(f" --concept {name}" for name in given.concept or ())
    text = page(
        report, f"python benchmarks/asked_concepts.py MODEL --data FOLDER --num {given.num}{chosen}", given.note
    )
    print(text)
    if given.out is not None:
        given.out.with_suffix(".md").write_text(text, encoding="utf-8")
        given.out.with_suffix(".json").write_text(json.dumps(report) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
