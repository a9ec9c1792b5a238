"""Generate under JSON Schemas, judge every result with jsonschema, and count the invalid ones: there must be none.

    PYTHONPATH=tests python benchmarks/constraints.py shared/data/jsonschema --generations 2000 \\
        --out benchmarks/results/constraints.json

The folder holds files with a "schema" each. Those that are not supported are listed with the reason. For each
generation the weights (the model's or random ones), the kind (a completion or a gap), the mode, policy, block size,
temperature, cuts, seed and budget are drawn at random. Finished generations are in OUT.lines; a run that is started
again continues from there.

With --coverage nothing is generated: see constraint_coverage.py. The report keeps what it has of the other kind.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import random
import re
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import torch
from constraint_coverage import coverage, drawn

import daguerre
from daguerre.decoding.generate import Request, plan_of
from daguerre.decoding.request import Decode
from daguerre.errors import InputError
from daguerre.evals.machine import machine_facts
from daguerre.model import Model
from daguerre.sampling.policies import POLICIES

PROMPT, SUFFIX = "value = ", "\nprint(value)\n"
MAX_TOKENS = 200
SPARE_TOKENS = 40
HOST = re.compile(
    "(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
)
FORMATS: dict[str, Callable[[str], object]] = {
    "date": date.fromisoformat,
    "time": lambda text: datetime.fromisoformat(f"2000-01-01T{text}").utcoffset(),
    "date-time": datetime.fromisoformat,
    "email": lambda text: re.fullmatch("[^@\\s]+@[^@\\s]+", text),
    "hostname": HOST.fullmatch,
    "ipv4": ipaddress.IPv4Address,
    "uri": lambda text: urlsplit(text).scheme,
    "uuid": uuid.UUID,
}
"""Checks of the supported formats, by other code than Daguerre's: a ValueError, or nothing returned, is a fault."""


def judge() -> jsonschema.FormatChecker:
    """A checker of these formats alone."""
    checker = jsonschema.FormatChecker(formats=())
    for name, passes in FORMATS.items():
        found = lambda value, passes=passes: not isinstance(value, str) or passes(value) not in (None, "")  # noqa: E731
        checker.checks(name, raises=ValueError)(found)
    return checker


JUDGE = judge()


def wrong(text: str, schema: Any) -> str | None:
    """What is wrong with a text by this schema, in one line; None when it is valid."""
    try:
        value = json.loads(text)
        of_schema = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        of_schema(schema, format_checker=JUDGE).validate(value)
    except (ValueError, jsonschema.ValidationError) as error:
        return str(error).split("\n")[0]
    return None


def fewest_tokens(model: Model, schema: Any) -> int:
    """The length of the shortest text that the schema accepts. InputError where that is too long."""
    decode = Decode(schema=schema, mode="ar")
    plan = plan_of(model.denoiser, model.tokenizer, Request.of("generate", PROMPT, MAX_TOKENS, decode))
    assert plan.constraint is not None
    return max(automaton.fewest_tokens() for automaton in plan.constraint.automata.values())


def any_options(rng: random.Random) -> dict[str, Any]:
    """A completion or a gap ("suffix"), and how it is decoded."""
    options: dict[str, Any] = {"mode": rng.choice(["ar", "block", "block", "full"]), "seed": rng.randrange(10**6)}
    if options["mode"] != "ar":
        options["policy"] = rng.choice(
            sorted(name for name, kind in POLICIES.items() if not (kind.edits or kind.sequential))
        )
        options["suffix"] = SUFFIX if rng.random() < 0.4 else None
        if options["policy"] == "threshold":
            options["threshold"] = rng.choice([0.0, 0.3, 0.9])
    if options["mode"] == "block":
        options["block_size"] = rng.randint(1, 32)
    if rng.random() < 0.7:
        options |= {"temperature": rng.choice([0.3, 1.0, 3.0]), "top_p": rng.choice([0.5, 0.95, 1.0])}
        options["top_k"] = rng.choice([None, 1, 20])
    return options


def generation(models: dict[str, Model], schema: Any, shortest: int, rng: random.Random) -> dict[str, Any]:
    """The options, the text, and what is wrong with it, or None. An error while generating is wrong, too."""
    weights = rng.choice(sorted(models))
    model = models[weights]
    while True:
        options = any_options(rng) | {"max_tokens": shortest + rng.randint(0, SPARE_TOKENS)}
        suffix, max_tokens = options.pop("suffix", None), options["max_tokens"]
        decode = Decode(schema=schema, **{name: value for name, value in options.items() if name != "max_tokens"})
        try:
            asked = Request.of("stream", PROMPT, max_tokens, decode, suffix=suffix)
            plan_of(model.denoiser, model.tokenizer, asked)
            break
        except InputError as error:  # a span too long for so large a schema is refused before any forward
            if "too large for a span" not in str(error):
                raise
    record: dict[str, Any] = {"weights": weights, "infill": suffix is not None, "options": options}
    try:
        if suffix is None:
            result = model.generate(PROMPT, max_tokens, decode)
        else:
            result = model.infill(PROMPT, suffix, max_tokens, decode)
    except InputError as error:
        return record | {"forwards": 0, "wrong": f"refused while generating: {error}"}
    record |= {"text": result.text, "finish_reason": result.finish_reason, "forwards": result.usage.forwards}
    return record | {"wrong": wrong(result.text, schema)}


def run(given: argparse.Namespace, models: dict[str, Model], log: Path) -> dict[str, str]:
    """Append to the log a line for each generation that it lacks; returns the refused files, each with its reason."""
    done = set()
    if log.exists():
        done = {(record["file"], record["number"]) for record in map(json.loads, log.read_text().splitlines())}
    files = sorted(given.folder.glob("*.json"))[:: given.every]
    refused = {}
    schemas = {path.name: json.loads(path.read_text(encoding="utf-8"))["schema"] for path in files}
    supported = len(files) - given.refused
    with log.open("a", encoding="utf-8") as lines:
        for at, (name, schema) in enumerate(schemas.items()):
            try:
                shortest = fewest_tokens(models["model"], schema)
            except InputError as error:
                refused[name] = str(error)
                continue
            for number in range(-(-given.generations // supported)):
                if (name, number) in done:
                    continue
                began = time.thread_time()
                record = generation(models, schema, shortest, random.Random(f"{given.seed} {name} {number}"))
                record |= {"file": name, "number": number, "seconds": round(time.thread_time() - began, 3)}
                lines.write(json.dumps(record) + "\n")
                lines.flush()
            sys.stderr.write(f"{at + 1}/{len(files)} {name}\n")
    return refused


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--generations", type=int, default=2000, help="in all, at least; as many for each schema")
    parser.add_argument("--refused", type=int, default=32, help="how many schemas are expected not to be supported")
    parser.add_argument("--every", type=int, default=1, help="only every so many files")
    parser.add_argument("--model", default="default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--coverage", action="store_true", help="compile and judge instances; generate nothing")
    parser.add_argument("--sample", type=int, help="with --coverage: only so many files, drawn by the seed")
    parser.add_argument("--without", type=Path, help="with --coverage: leave out the files that this folder has")
    parser.add_argument("--skip", type=int, default=0, help="with --sample: draw after a sample of so many files")
    parser.add_argument("--processes", type=int, default=1, help="with --coverage")
    parser.add_argument("--seconds", type=float, default=10.0, help="with --coverage: to compile each schema")
    given = parser.parse_args()
    if given.coverage:
        return cover(given)
    torch.set_num_threads(1)
    models = {"model": daguerre.load(given.model), "random": daguerre.load(given.model)}
    models["random"].backbone.initialize(given.seed, zero_outputs=False, scale=6.0)
    facts, log = machine_facts(), given.out.with_suffix(".lines")
    refused = run(given, models, log)
    records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    invalid = [record for record in records if record["wrong"]]
    kinds = ("weights", "infill")
    options = ("mode", "policy", "temperature")
    report = {
        "generations": len(records),
        "invalid": len(invalid),
        "schemas": len({record["file"] for record in records}),
        "by": {kind: Counter(str(record[kind]) for record in records) for kind in kinds}
        | {kind: Counter(str(record["options"].get(kind)) for record in records) for kind in options},
        "refused": refused,
        "forwards": sum(record["forwards"] for record in records),
        "seconds": round(sum(record["seconds"] for record in records), 1),
        "seed": given.seed,
        "machine": facts,
        "examples": invalid[:20],
    }
    write(given.out, report)
    return 1 if invalid else 0


def write(out: Path, report: dict[str, Any]) -> None:
    """Put a report in place of what the file has of its kind."""
    held = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    text = json.dumps(held | report, indent=1, ensure_ascii=False) + "\n"
    out.write_text(text, encoding="utf-8")
    sys.stdout.write(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


def cover(given: argparse.Namespace) -> int:
    left_out = {path.name for path in given.without.glob("*.json")} if given.without else set()
    files = [path for path in sorted(given.folder.glob("*.json"))[:: given.every] if path.name not in left_out]
    if given.sample and given.skip:
        first = set(drawn(files, given.skip, given.seed))
        files = [path for path in files if path not in first]
    if given.sample:
        files = drawn(files, given.sample, given.seed)
    report = coverage(files, given.processes, given.seconds, wrong)
    write(given.out, {"coverage": report | {"seed": given.seed, "machine": machine_facts()}})
    return 1 if report["of them accepted"] else 0


if __name__ == "__main__":
    sys.exit(main())
