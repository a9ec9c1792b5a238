"""Generate under JSON Schemas, judge every result with jsonschema, and count the invalid ones: there must be none.

    python benchmarks/constraints.py shared/data/jsonschema --out benchmarks/results/constraints.json

The folder holds files with a "schema" each. Those that are not supported are listed with the reason. Policy, mode,
block size, temperature, cuts, seed and budget of each generation are drawn at random.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema

import daguerre
from daguerre.errors import InputError
from daguerre.model import Model
from daguerre.plan import make_plan
from daguerre.sampling.decode import Decode
from daguerre.sampling.policies import POLICIES

PROMPT = "value = "
MOST_TOKENS = 200


def fewest_tokens(model: Model, schema: Any) -> int:
    """Of the shortest text that the schema accepts. InputError where it is not supported, or that text too long."""
    plan = make_plan(model.config, model.tokenizer, Decode(schema=schema), PROMPT, None, MOST_TOKENS, None)
    assert plan.constraint is not None
    return plan.constraint.automaton.fewest_tokens()


def any_options(rng: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {"mode": rng.choice(["ar", "block", "block", "full"]), "seed": rng.randrange(10**6)}
    if options["mode"] != "ar":
        options["policy"] = rng.choice(sorted(POLICIES))
        if options["policy"] == "threshold":
            options["threshold"] = rng.choice([0.0, 0.3, 0.9])
    if options["mode"] == "block":
        options["block_size"] = rng.randint(1, 32)
    if rng.random() < 0.7:
        options |= {"temperature": rng.choice([0.3, 1.0, 3.0]), "top_p": rng.choice([0.5, 0.95, 1.0])}
        options["top_k"] = rng.choice([None, 1, 20])
    return options


def generations(model: Model, name: str, schema: Any, fewest: int, num: int, seed: int) -> Iterator[dict[str, Any]]:
    """A record for each: what was asked, the text, and what is wrong with it, or None. An error is wrong too."""
    rng = random.Random(f"{seed} {name}")
    for _ in range(num):
        asked = any_options(rng) | {"max_tokens": fewest + rng.randint(0, 40)}
        try:
            result = model.generate(PROMPT, schema=schema, **asked)
        except InputError as error:
            yield {"file": name, "asked": asked, "forwards": 0, "wrong": f"refused on the way: {error}"}
            continue
        said = {"text": result.text, "finish_reason": result.finish_reason, "forwards": result.usage.forwards}
        yield {"file": name, "asked": asked, **said, "wrong": wrong(result.text, schema)}


def wrong(text: str, schema: Any) -> str | None:
    """What is wrong with a text by this schema, in one line; None when it is valid."""
    try:
        value = json.loads(text)
        jsonschema.validators.validator_for(schema)(schema).validate(value)
    except (ValueError, jsonschema.ValidationError) as error:
        return str(error).split("\n")[0]
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--each", type=int, default=15, help="generations for each schema")
    parser.add_argument("--every", type=int, default=1, help="only every so many files")
    parser.add_argument("--model", default="default")
    parser.add_argument("--random-weights", action="store_true", help="the model's shape, with weights drawn anew")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    model = daguerre.load(given.model)
    if given.random_weights:
        model.backbone.initialize(given.seed, zero_outputs=False, scale=6.0)
    began, records, refused = time.perf_counter(), [], {}
    for path in sorted(given.folder.glob("*.json"))[:: given.every]:
        schema = json.loads(path.read_text(encoding="utf-8"))["schema"]
        try:
            fewest = fewest_tokens(model, schema)
        except InputError as error:
            refused[path.name] = str(error)
            continue
        records += generations(model, path.name, schema, fewest, given.each, given.seed)
    invalid = [record for record in records if record["wrong"]]
    report = {
        "generations": len(records),
        "invalid": len(invalid),
        "schemas": len({record["file"] for record in records}),
        "refused": refused,
        "forwards": sum(record["forwards"] for record in records),
        "seconds": round(time.perf_counter() - began, 1),
        "random_weights": given.random_weights,
        "seed": given.seed,
        "examples": invalid[:20],
    }
    text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    if given.out:
        given.out.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 1 if invalid else 0


if __name__ == "__main__":
    sys.exit(main())
