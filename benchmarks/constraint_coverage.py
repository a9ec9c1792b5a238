"""Which schemas of a folder compile, what refuses the others, and whether their instances are told apart.

    PYTHONPATH=tests python benchmarks/constraints.py MASKBENCH/data --coverage --sample 600 --seed 1 \\
        --without shared/data/jsonschema --processes 2 --out benchmarks/results/constraints.json

Each file holds a "schema" and "tests", a list of {"valid": ..., "data": ...}. A sample has as many files of each kind
(the part of a name before "---" or the last "_") as the folder has, in proportion.
"""

from __future__ import annotations

import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from daguerre.errors import InputError
from daguerre.sampling.constraints.budget import Budget
from daguerre.sampling.constraints.compile import DEPTH, written_dfa
from daguerre.sampling.constraints.keywords import read_schema
from oracles.written_json import written

Judge = Callable[[str, Any], str | None]


def kind_of(name: str) -> str:
    return name.split("---")[0] if "---" in name else name.rsplit("_", 1)[0]


def drawn(files: Sequence[Path], number: int, seed: int) -> list[Path]:
    """A sample of files, of each kind in proportion."""
    rng, kinds = random.Random(seed), {}
    for path in sorted(files):
        kinds.setdefault(kind_of(path.name), []).append(path)
    found = [
        path
        for kind in sorted(kinds)
        for path in rng.sample(kinds[kind], round(number * len(kinds[kind]) / len(files)))
    ]
    rest = sorted(set(files) - set(found))
    more = rng.sample(rest, max(0, number - len(found)))
    return sorted(rng.sample(found, min(number, len(found))) + more)


def reason_of(error: str) -> str:
    """An error without what is special to one schema."""
    bare = re.sub(r"#\S*|'[^']*'|\d[\d,.]*", "*", error.split(":")[0] if error.startswith("at #") else error)
    return bare.split(";")[0].split(": ")[0][:120]


def examined(path: Path, seconds: float, judge: Judge) -> dict[str, Any]:
    """What became of one file. An instance is accepted if one of its writings is."""
    held = json.loads(path.read_text(encoding="utf-8"))
    record: dict[str, Any] = {"file": path.name, "valid": 0, "invalid": 0, "accepted": [], "rejected": []}
    began = time.process_time()
    try:
        schema = read_schema(held["schema"], budget := Budget(seconds=seconds))
        dfa = written_dfa(schema, DEPTH, None, budget)
        if dfa.is_empty:
            raise InputError("the constraint allows no text at all")
        record |= {"states": len(dfa), "ignored": len(schema.ignored)}
    except InputError as error:
        record["refused"] = str(error)
    record["seconds"] = round(time.process_time() - began, 3)
    for number, test in enumerate(() if "refused" in record else held["tests"]):
        record["valid" if test["valid"] else "invalid"] += 1
        found = any(dfa.accepts(text.encode()) for text in written(schema, test["data"]))
        if found != test["valid"]:
            said = judge(json.dumps(test["data"]), held["schema"])
            record["accepted" if found else "rejected"].append({"test": number, "jsonschema": said or "valid"})
    return record


def coverage(files: Sequence[Path], processes: int, seconds: float, judge: Judge) -> dict[str, Any]:
    """The report of some files."""
    work = partial(examined, seconds=seconds, judge=judge)
    records = []
    with get_context("fork").Pool(processes) as pool:
        for record in pool.imap_unordered(work, files):
            records.append(record)
            sys.stderr.write(f"{len(records)}/{len(files)} {json.dumps(record)[:400]}\n")
    records.sort(key=lambda record: record["file"])
    compiled = [record for record in records if "refused" not in record]
    refused = [record for record in records if "refused" in record]
    states, times = (sorted(record[key] for record in compiled) for key in ("states", "seconds"))
    return {
        "files": len(files),
        "compiled": len(compiled),
        "share": round(len(compiled) / len(files), 4),
        "valid instances": sum(record["valid"] for record in compiled),
        "of them rejected": sum(len(record["rejected"]) for record in compiled),
        "invalid instances": sum(record["invalid"] for record in compiled),
        "of them accepted": sum(len(record["accepted"]) for record in compiled),
        "with ignored keywords or formats": sum(record["ignored"] > 0 for record in compiled),
        "refusals by reason": dict(Counter(reason_of(record["refused"]) for record in refused).most_common()),
        "refused": {record["file"]: record["refused"] for record in refused},
        "accepted though invalid": {record["file"]: record["accepted"] for record in compiled if record["accepted"]},
        "rejected though valid": {record["file"]: record["rejected"] for record in compiled if record["rejected"]},
        "states": {f"{q:.0%}": states[int(q * (len(states) - 1))] for q in (0.5, 0.9, 0.99)} if states else {},
        "seconds to compile to bytes": {f"{q:.0%}": times[int(q * (len(times) - 1))] for q in (0.5, 0.9, 0.99)}
        if times
        else {},
        "seconds allowed": seconds,
    }
