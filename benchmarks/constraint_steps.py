"""How long a constraint takes in each step, by vocabulary, at a span of 32 open positions; and how long to compile it.

    python benchmarks/constraint_steps.py [--schemas FOLDER] [--out benchmarks/results/constraint-steps.json]

Random logits under a tool-call schema, at the positions of a span; in every other span each step commits a quarter of
what is open, so that later steps of the span reuse what earlier ones kept. A number is the time of `Constraint.forced`
and `Constraint.propose` together, the processor's with one thread and by the clock with two; "full" are the steps with
all 32 positions open. Before that, a sample of the files of a folder, each with a "schema", is compiled for a small and
a large vocabulary. Vocabularies above 8k consist of that of 8k and random pairs of its tokens. Leave the machine idle.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daguerre.canvas import Canvas
from daguerre.errors import DaguerreError
from daguerre.evals.machine import machine_facts, measured_on
from daguerre.evals.results import write_report
from daguerre.evals.tables import table
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.constrained import Constraint
from daguerre.sampling.constraints import Budget, TokenAutomaton
from daguerre.sampling.constraints.answers import tools_dfa
from daguerre.sampling.constraints.compile import DEPTH, schema_dfa
from daguerre.sampling.constraints.tokens import VocabularyBytes, lift
from daguerre.sampling.constraints.tools import AUTO, CLOSING, OPENING
from daguerre.sampling.logits import SamplingParams

SPAN, GAP = 32, 96
THREADS = (1, 2)
SAMPLING = {
    "greedy": SamplingParams(),
    "sampled": SamplingParams(1.0),
    "warm": SamplingParams(0.7),
    "top_p": SamplingParams(1.0, 0.9),
}
SMALL, LARGE = 2048, 152_064
SIZES = (SMALL, 32_768, LARGE)
BEYOND_SOFTMAX_MS = 5.0
COMPILED_MS = {0.5: 10.0, 0.99: 500.0}
"""What is aimed at for a step beyond a softmax of the same logits, and for quantiles of compiling."""
MAX_MB = 50
NUM_SCHEMAS, REPEATS = 400, 3


def tools(bounded: bool) -> list[dict[str, Any]]:
    """Two functions with members of every plain type; `bounded` gives strings and numbers limits."""
    city: dict[str, Any] = {"type": "string"} | ({"maxLength": 40} if bounded else {})
    days: dict[str, Any] = {"type": "integer"} | ({"minimum": 1, "maximum": 14} if bounded else {})
    members = {"city": city, "unit": {"enum": ["celsius", "fahrenheit"]}, "days": days}
    search = {"query": {"type": "string"}, "limit": {"type": "integer"}, "exact": {"type": "boolean"}}
    closed: dict[str, Any] = {"type": "object", "additionalProperties": False}
    return [
        {"name": "get_weather", "parameters": closed | {"properties": members, "required": ["city", "unit"]}},
        {"name": "search", "parameters": closed | {"properties": search, "required": ["query"]}},
    ]


def vocabulary(size: int) -> VocabularyBytes:
    """The bytes of so many tokens; the first few are special."""
    tokenizer = Tokenizer.default("2k" if size <= 2048 else "8k")
    texts = [tokenizer.token_bytes(token) for token in range(min(size, tokenizer.vocab_size))]
    rng, known = np.random.default_rng(0), set(texts)
    while len(texts) < size:
        text = b"".join(texts[token] for token in rng.integers(300, tokenizer.vocab_size, size=2))
        if text not in known:
            known.add(text)
            texts.append(text)
    return VocabularyBytes.of(texts)


def compiled(functions: Sequence[dict[str, Any]], size: int, filler: int) -> TokenAutomaton:
    budget = Budget()
    dfa, _ = tools_dfa(functions, AUTO, (OPENING, CLOSING), DEPTH, budget)
    return lift(dfa, vocabulary(size), budget).with_filler(filler)


def seconds() -> float:
    """On the clock that is right for the number of threads."""
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()


def steps(automaton: TokenAutomaton, filler: int, params: SamplingParams, spans: int) -> Iterator[tuple[bool, float]]:
    """(whether all of the span was open, milliseconds) of each step."""
    rng, size = np.random.default_rng(0), automaton.vocab_size
    for number in range(spans):
        canvas = Canvas.lay_out([[1], []], [GAP], 3)
        gap = canvas.gaps[0]
        constraint = Constraint({gap: automaton}, filler, {gap: 1})
        canvas = canvas.at((1, 1 + SPAN))
        for step in range(3 + 5 * (number % 2)):
            active = canvas.active_positions()
            if not len(active):
                break
            logits = (rng.standard_normal((len(active), size)) * 3).astype(np.float32)
            u = rng.random(len(active))
            began = seconds()
            constraint.forced(canvas)
            proposals = constraint.propose(canvas, active, logits, params, u)
            yield len(active) == SPAN, 1000 * (seconds() - began)
            if number % 2 or step == 2:
                chosen = rng.permutation(len(active))[: max(1, len(active) // 4)]
                tokens, is_open = canvas.tokens.copy(), canvas.open.copy()
                tokens[active[chosen]], is_open[active[chosen]] = proposals.tokens[chosen], False
                canvas = Canvas(tokens, is_open, canvas.gaps, canvas.span)


def softmax_ms(size: int) -> float:
    """Milliseconds of PyTorch's softmax of a span's logits."""
    logits = torch.from_numpy((np.random.default_rng(0).standard_normal((SPAN, size)) * 3).astype(np.float32))
    times = []
    for _ in range(9):
        began = seconds()
        torch.softmax(logits, -1)
        times.append(1000 * (seconds() - began))
    return statistics.median(times)


def megabytes(automaton: TokenAutomaton) -> float:
    """Of all arrays of an automaton, those made in use included."""
    pairs = automaton.pairs
    arrays = [automaton.accept, automaton.class_of_token, automaton.order, automaton.first_token]
    arrays += [pairs.first, pairs.dst, pairs.bundle, pairs.starts, pairs.classes, *pairs.bundles_of]
    return sum(array.nbytes for array in arrays) / 1e6


def compiling(folder: Path) -> dict[str, Any]:
    """Milliseconds of compiling each schema of a sample of the folder, by vocabulary; those refused are counted."""
    files = sorted(folder.glob("*.json"))
    files = random.Random(1).sample(files, min(NUM_SCHEMAS, len(files)))
    texts, times, refused = {size: vocabulary(size) for size in (SMALL, LARGE)}, {SMALL: [], LARGE: []}, 0
    for path in files:
        schema = json.loads(path.read_text(encoding="utf-8"))["schema"]
        try:
            found = [compile_times(schema, texts) for _ in range(REPEATS)]
        except DaguerreError:
            refused += 1
            continue
        for size, held in times.items():
            held.append(statistics.median(one[size] for one in found))
    quantiles = {
        str(size): {str(q): round(float(np.quantile(held, q)), 1) for q in COMPILED_MS} for size, held in times.items()
    }
    return {"schemas": len(files), "refused": refused, "repeats": REPEATS, "milliseconds": quantiles}


def compile_times(schema: object, texts: dict[int, VocabularyBytes]) -> dict[int, float]:
    """Milliseconds of compiling a schema once, by vocabulary."""
    began = time.thread_time()
    dfa, _ = schema_dfa(schema, budget := Budget(), lenient=True)
    made, out = time.thread_time() - began, {}
    for size, held in texts.items():
        began = time.thread_time()
        lift(dfa, held, budget)
        out[size] = 1000 * (made + time.thread_time() - began)
    return out


def stepping(spans: int) -> Iterator[dict[str, Any]]:
    """One row for each schema, vocabulary, number of threads and way of sampling."""
    filler = 2
    for bounded, size in itertools.product((False, True), SIZES):
        automaton = compiled(tools(bounded), size, filler)
        for threads in THREADS:
            torch.set_num_threads(threads)
            softmax = softmax_ms(size)
            for name, params in SAMPLING.items():
                found = list(steps(automaton, filler, params, spans))
                times = [ms for _, ms in found]
                yield {
                    "schema": "bounded" if bounded else "plain",
                    "vocabulary": size,
                    "threads": threads,
                    "sampling": name,
                    "pairs": len(automaton.pairs),
                    "full_median_ms": round(statistics.median(ms for whole, ms in found if whole), 2),
                    "softmax_ms": round(softmax, 2),
                    "mb": round(megabytes(automaton), 1),
                    "median_ms": round(statistics.median(times), 2),
                    "mean_ms": round(statistics.mean(times), 2),
                    "steps": len(times),
                }


def verdict(met: bool) -> str:
    return "met" if met else "**missed**"


def markdown(report: dict[str, Any]) -> str:
    """The report as a page, each row with what was aimed at."""
    rows = []
    for row in report["rows"]:
        bar = row["softmax_ms"] + BEYOND_SOFTMAX_MS
        cells = [row["schema"], f"{row['vocabulary']:,}", row["threads"], row["sampling"]]
        cells += [f"{row['pairs']:,}", f"{row['mb']:.1f}"]
        cells += [f"{row[name]:.2f}" for name in ("softmax_ms", "full_median_ms", "median_ms", "mean_ms")]
        rows.append([*cells, f"{bar:.1f}", verdict(row["full_median_ms"] <= bar)])
    header = "schema, vocabulary, threads, sampling, pairs, MB, softmax, full, median, mean, aimed at, full".split(", ")
    parts = [
        "# How long a constraint takes to compile and in each step",
        "Milliseconds of `Constraint.forced` and `Constraint.propose`, with one thread of processor time: a tool-call "
        f'schema with a branch of free text, a span of {SPAN} positions. "plain" has two functions with strings, '
        'integers, an enum and a boolean; "bounded" limits a string to 40 characters and an integer to 1 to 14. '
        '"full" is the median with all positions open, "median" and "mean" are of all steps. sampled: temperature '
        "1; warm: temperature 0.7; top_p: temperature 1 and top-p 0.9. softmax: PyTorch's, of the same logits; aimed "
        f"at: {BEYOND_SOFTMAX_MS:g} ms more. MB: of the compiled constraint, aimed at {MAX_MB} at most.",
        table(header, rows, left=4),
    ]
    if cost := report.get("compiling"):
        parts += [
            f"Compiling {cost['schemas']} schemas drawn from a folder ({cost['refused']} refused), milliseconds, "
            f"the median of {cost['repeats']} times each:",
            table(["vocabulary", "quantile", "ms", "aimed at", ""], list(compiled_rows(cost["milliseconds"]))),
        ]
    command = "By `python benchmarks/constraint_steps.py --schemas FOLDER`."
    return "\n\n".join([*parts, f"{measured_on(report['machine'])} {command}"]) + "\n"


def compiled_rows(milliseconds: dict[str, dict[str, float]]) -> Iterator[list[str]]:
    for size, held in milliseconds.items():
        for q, ms in held.items():
            bar = COMPILED_MS[float(q)]
            yield [f"{int(size):,}", q, f"{ms:.1f}", f"{bar:g}", verdict(ms <= bar)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--spans", type=int, default=12)
    parser.add_argument("--schemas", type=Path, help="a folder of files with a schema each, to be compiled")
    parser.add_argument("--out", type=Path, help="a JSON file; a page of Markdown is written beside it")
    given = parser.parse_args()
    torch.set_num_threads(1)
    report: dict[str, Any] = {"machine": machine_facts(), "span": SPAN, "rows": []}
    if given.schemas:
        report["compiling"] = compiling(given.schemas)
        print(json.dumps(report["compiling"]), flush=True)
    for row in stepping(given.spans):
        report["rows"].append(row)
        print(*row.values(), sep="\t", flush=True)
    if given.out:
        write_report(given.out, report, markdown(report))


if __name__ == "__main__":
    main()
