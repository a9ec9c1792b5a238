"""Generate under JSON Schemas, judge every result with jsonschema, and count the invalid ones: there must be none.

    python benchmarks/constraints.py shared/data/jsonschema --num 2000 --out benchmarks/results/constraints.json

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
import torch

import daguerre
from daguerre.errors import InputError
from daguerre.model import Model
from daguerre.sampling.constraints import compile_schema
from daguerre.sampling.policies import POLICIES

PROMPT = "value = "
MOST_TOKENS = 200


def supported(folder: Path, model: Model) -> tuple[dict[str, tuple[Any, int]], dict[str, str]]:
    """(file: schema and the tokens of its shortest text), (file: why not)."""
    schemas, refused = {}, {}
    for path in sorted(folder.glob("*.json")):
        schema = json.loads(path.read_text(encoding="utf-8"))["schema"]
        try:
            fewest = compile_schema(schema, model.tokenizer).fewest_tokens()
        except InputError as error:
            refused[path.name] = str(error)
            continue
        if fewest > MOST_TOKENS:
            refused[path.name] = f"its shortest text has {fewest} tokens"
        else:
            schemas[path.name] = schema, fewest
    return schemas, refused


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


def generations(model: Model, schemas: dict[str, tuple[Any, int]], num: int, seed: int) -> Iterator[dict[str, Any]]:
    """One record for each: the file, what was asked, the text, and what is wrong with it, or None."""
    rng = random.Random(seed)
    names = list(schemas) * -(-num // len(schemas))
    rng.shuffle(names)
    for name in names[:num]:
        schema, fewest = schemas[name]
        options = any_options(rng)
        result = model.generate(PROMPT, fewest + rng.randint(0, 40), schema=schema, **options)
        yield {
            "file": name,
            "options": options,
            "text": result.text,
            "forwards": result.usage.forwards,
            "seconds": result.usage.seconds,
            "wrong": wrong(result.text, schema),
        }


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
    parser.add_argument("--num", type=int, default=2000)
    parser.add_argument("--model", default="default")
    parser.add_argument("--random-weights", action="store_true", help="the model's shape, with weights drawn anew")
    parser.add_argument("--files", type=int, help="only this many files, evenly spread")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    model = daguerre.load(given.model)
    if given.random_weights:
        model.backbone.initialize(given.seed, zero_outputs=False, scale=6.0)
    schemas, refused = supported(given.folder, model)
    if given.files:
        schemas = dict(list(schemas.items())[:: max(1, len(schemas) // given.files)])
    began = time.perf_counter()
    with torch.inference_mode():
        records = list(generations(model, schemas, given.num, given.seed))
    invalid = [record for record in records if record["wrong"]]
    report = {
        "generations": len(records),
        "invalid": len(invalid),
        "schemas": len(schemas),
        "refused": refused,
        "forwards": sum(record["forwards"] for record in records),
        "seconds": round(time.perf_counter() - began, 1),
        "random_weights": given.random_weights,
        "seed": given.seed,
        "examples": invalid[:20],
    }
    text = json.dumps(report, indent=1, ensure_ascii=False)
    if given.out:
        given.out.write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(text + "\n")
    return 1 if invalid else 0


if __name__ == "__main__":
    sys.exit(main())
