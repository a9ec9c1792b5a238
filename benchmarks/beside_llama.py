"""A published GGUF file: its prompt, its decoding, its loading and memory, beside llama.cpp with the same file.

    PYTHONPATH=src:tests python benchmarks/beside_llama.py gemma3-270m --out benchmarks/results/beside-gemma3-270m

Each engine is a process of its own that has one thread and stays; in every round each writes a text once, in turn.
Times are the processor's. The files are those of tests/real/files.py, llama.cpp is node-llama-cpp's build, made for
many levels of processors, of which it takes the best. The prompt is the beginning of a held-out file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch

import daguerre
from daguerre.errors import DaguerreError
from daguerre.evals.machine import machine_facts, memory
from daguerre.evals.results import publish
from daguerre.evals.tables import table
from daguerre.heldout import load_frozen
from real.files import MODELS, bring, bring_llama_cpp

PROMPT, WRITTEN, ROUNDS = 512, 64, 5
KINDS: dict[str, dict[str, Any]] = {
    "as stored": {},
    "int8": {"quantize": "int8"},
    "approximate_int4": {"quantize": "approximate_int4"},
}
"""How Daguerre loads the file."""
LLAMA = "llama.cpp"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--out", type=Path, help="results, without an ending")
    parser.add_argument("--side", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.side:
        answer_rounds(bring(options.model), KINDS[options.side])
        return
    results = {"model": options.model, "file": MODELS[options.model].name, "machine": machine_facts()}
    results |= measured(options.model)
    publish(options.out, results, page(results))


def measured(model: str) -> dict[str, Any]:
    """Every side's rounds, in turn, and what each took to load."""
    sides, refused = {LLAMA: LineProcess(["node", str(Path(__file__).with_suffix(".mjs"))])}, dict[str, str]()
    sides |= {kind: LineProcess([sys.executable, __file__, model, "--side", kind]) for kind in KINDS}
    packages, path = str(bring_llama_cpp()), str(bring(model))
    loads = dict[str, dict[str, Any]]()
    for name, side in list(sides.items()):
        loads[name] = side.ask({"packages": packages, "model": path, "context": 1024})
        if "refused" in loads[name]:
            refused[name] = loads.pop(name)["refused"]
            del sides[name]
    first = next(iter(KINDS))
    prompt = sides[first].ask({"ids": load_frozen()[0].text + load_frozen()[1].text, "num": PROMPT})["ids"]
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for _ in range(ROUNDS + 1):  # the first to warm up
        for name, side in sides.items():
            rounds[name].append(side.ask({"prompt": prompt, "num": WRITTEN}))
    for side in sides.values():
        side.end()
    return {
        "refused": refused,
        "sides": {name: {"load": loads[name], "rounds": found[1:]} for name, found in rounds.items()},
    }


class LineProcess:
    """A process that answers lines of JSON by lines of JSON."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, what: dict[str, Any]) -> dict[str, Any]:
        """The answer to a line."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def end(self) -> None:
        """Wait until it has ended."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def answer_rounds(path: Path, kind: dict[str, Any]) -> None:
    """Daguerre's side."""
    model = None
    for line in sys.stdin:
        asked = json.loads(line)
        if model is None:
            began = time.process_time()
            try:
                model = daguerre.load(path, backend="native", **kind)
            except DaguerreError as error:
                print(json.dumps({"refused": str(error)}), flush=True)
                return
            found: dict[str, Any] = {"seconds": time.process_time() - began}
        elif "ids" in asked:
            found = {"ids": [*model.config.first, *model.tokenizer.encode(asked["ids"])][: asked["num"]]}
        else:
            found = round_of(model, asked["prompt"], asked["num"])
        print(json.dumps(found), flush=True)


def round_of(model: daguerre.Model, prompt: list[int], num: int) -> dict[str, Any]:
    """Processor time until the first token, and of each token after it; and memory."""
    began, times, start = time.process_time(), list[float](), len(model.config.first)
    options: dict[str, Any] = {"mode": "ar", "heal": False, "stop_loops": False, "min_tokens": num + 1}
    *events, last = timed(model.stream(prompt[start:], num + 1, **options), times)
    tokens = [token.id for token in last.result.tokens]
    assert len(tokens) == len(events) == num + 1
    times.pop()
    return {
        "prompt": times[0] - began,
        "token": (times[-1] - times[0]) / num,
        "tokens": tokens,
        "memory": {name: memory(name) for name in ("VmRSS", "RssAnon", "VmHWM")},
    }


def timed(events: Iterator[Any], times: list[float]) -> Iterator[Any]:
    """Events; when each came is added to `times`."""
    for event in events:
        times.append(time.process_time())
        yield event


def page(results: dict[str, Any]) -> str:
    machine = results["machine"]
    about = (
        f"# {results['file']} beside llama.cpp\n\n"
        f"Measured with `benchmarks/beside_llama.py {results['model']}` on {machine['processor']} "
        f"({machine['instruction_set']}), one thread, processor time, at commit {machine['commit']}: medians of "
        f"{ROUNDS} interleaved rounds, a prompt of {PROMPT} tokens and {WRITTEN} written behind it."
    )
    header = ("", "load, s", "ms a token of the prompt", "ms a written token")
    header += ("resident, MB", "of it its own, MB", "peak, MB")
    rows = []
    for name, side in results["sides"].items():
        rounds = side["rounds"]
        prompt, token = (1000 * median(one[key] for one in rounds) for key in ("prompt", "token"))
        last = rounds[-1]["memory"]
        sizes = [f"{last[key] / 1e6:,.0f}" for key in ("VmRSS", "RssAnon", "VmHWM")]
        called, load = name if name == LLAMA else f"Daguerre, {name}", f"{side['load']['seconds']:.1f}"
        rows.append([called, load, f"{prompt / PROMPT:.2f}", f"{token:.1f}", *sizes])
    refused = [f"Daguerre, {name}, is refused: {why}" for name, why in results["refused"].items()]
    return "\n\n".join([about, table(header, rows), *refused]) + "\n"


if __name__ == "__main__":
    main()
