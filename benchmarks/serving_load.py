"""Load on the server, beside llama.cpp's server with the same weights.

`aiperf` is a package of PyPI, best in an environment of its own; `llama-server` is built from llama.cpp's source.

For each number of requests at once, NVIDIA's aiperf sends completions of a fixed length to one server after the other,
in turn, `--rounds` times; the table has medians, and a picture beside it. Both have the same random weights of the 34M
shape, the same prompts, the same threads, and as many places as there are requests. Goodput counts the requests that
have their first text within `FIRST_MS` and end within `WHOLE_MS`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from daguerre.evals.bench.gguf_file import write_gguf
from daguerre.evals.bench.job import YARDSTICK, random_model
from daguerre.evals.machine import machine_facts
from daguerre.evals.results import publish
from daguerre.evals.tables import table
from daguerre.models.own_layout import save_model
from daguerre.view.charts import BLUE, GRAY, GREEN, by_powers, legend_of_figure, new_figure, titled

SIDES: dict[str, dict[str, Any]] = {
    "daguerre ar": {"daguerre": {"mode": "ar"}},
    "daguerre block 8": {"daguerre": {"mode": "block", "block_size": 8, "policy": "confidence", "steps": 2}},
    "llama-server": {"ignore_eos": True},
}
"""What each side's requests have beside the prompt. Blocks commit 4 tokens a forward, as a trained model may."""
NUMBERS = {
    "tokens_per_second": ("output_token_throughput", "avg"),
    "p50": ("request_latency", "p50"),
    "p95": ("request_latency", "p95"),
    "p99": ("request_latency", "p99"),
    "first": ("time_to_first_token", "p50"),
    "goodput": ("goodput", "avg"),
}
PROMPT, NEW = 128, 64
FIRST_MS, WHOLE_MS = 2000, 20000
LEAST = 8
"""Requests of a run."""
COLORS = {"daguerre ar": BLUE, "daguerre block 8": GREEN, "llama-server": GRAY}
PANELS = {"tokens_per_second": "tokens a second", "first": "first text, p50 ms", "p95": "whole answer, p95 ms"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--aiperf", default="aiperf", help="the program")
    parser.add_argument("--llama-server", help="the program, built from llama.cpp's source; without it, ours alone")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=2, help="requests for each place")
    parser.add_argument("--threads", type=int, default=1, help="of each server; the load tool needs a core, too")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/serving-load"))
    given = parser.parse_args()
    found = list(measure(given))
    facts = {
        "machine": machine_facts(),
        "threads": given.threads,
        "prompt": PROMPT,
        "new": NEW,
        "rounds": given.rounds,
    }
    publish(given.out, {**facts, "runs": found}, page(found), draw(found))


def measure(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A record of each side, number of requests at once, and round."""
    with tempfile.TemporaryDirectory() as folder:
        model = random_model(YARDSTICK, "float32", 1024)
        ours, theirs = Path(folder) / "model", Path(folder) / "model.gguf"
        save_model(ours, model.backbone, model.tokenizer, torch.bfloat16)
        write_gguf(model.backbone, theirs, "BF16", tokenizer=ours / "tokenizer.json")
        for places in given.concurrency:
            for number in range(given.rounds):
                for side, more in SIDES.items():
                    if side == "llama-server" and not given.llama_server:
                        continue
                    with serving(side, given, ours, theirs, places) as url:
                        numbers = ask(url, given, ours, places, more, Path(folder) / "artifacts")
                    yield {"side": side, "places": places, "round": number, **numbers}


@contextmanager
def serving(side: str, given: argparse.Namespace, ours: Path, theirs: Path, places: int) -> Iterator[str]:
    """A server's address."""
    threads = str(given.threads)
    environment = os.environ | {"OMP_NUM_THREADS": threads}
    if side == "llama-server":
        port, ready = 18080, "health"
        context = str(places * (PROMPT + NEW + 64))
        command = [given.llama_server, "-m", str(theirs), "--port", str(port), "--parallel", str(places), "-c", context]
        command += ["-t", threads, "-tb", threads, "--no-webui", "-lv", "0"]
    else:
        port, ready = 18081, "ready"
        command = [sys.executable, "-m", "daguerre", "serve", "--model", f"model={ours}", "--port", str(port)]
        command += ["--max-running", str(places)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/{ready}") as answer:
                if answer.status == 200:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def ask(
    url: str, given: argparse.Namespace, ours: Path, places: int, more: dict[str, Any], out: Path
) -> dict[str, Any]:
    """What aiperf measures of a server."""
    shutil.rmtree(out, ignore_errors=True)
    extra = {"temperature": 0, "min_tokens": NEW, **more}
    if "daguerre" in extra:
        extra["daguerre"] = {**extra["daguerre"], "min_tokens": extra.pop("min_tokens")}
    command = [given.aiperf, "profile", "--model", "model", "--url", url]
    command += ["--endpoint-type", "completions", "--streaming"]
    command += ["--concurrency", str(places), "--request-count", str(max(LEAST, places * given.requests))]
    command += ["--warmup-request-count", str(places), "--tokenizer", str(ours), "--extra-inputs", json.dumps(extra)]
    command += ["--synthetic-input-tokens-mean", str(PROMPT), "--output-tokens-mean", str(NEW), "--random-seed", "1"]
    command += ["--artifact-dir", str(out), "--ui", "none", "--use-server-token-count"]
    command += ["--workers-max", "1", "--record-processor-service-count", "1"]
    command += ["--no-server-metrics", "--no-gpu-telemetry"]
    command += ["--goodput", f"request_latency:{WHOLE_MS} time_to_first_token:{FIRST_MS}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"aiperf failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    read = json.loads((out / "profile_export_aiperf.json").read_text())
    return {name: read[metric][part] for name, (metric, part) in NUMBERS.items()}


def page(found: list[dict[str, Any]]) -> str:
    """Medians over rounds, as Markdown; the ratio is the median of those of a round, beside llama-server."""
    header = "at once, side, tokens a second, beside llama-server, p50 ms, p95 ms, p99 ms, first text ms".split(", ")
    rows = []
    for places in sorted({one["places"] for one in found}):
        for side, numbers in medians(found, places).items():
            times = [f"{numbers[name]:.0f}" for name in ("p50", "p95", "p99", "first")]
            rate, ratio = f"{numbers['tokens_per_second']:.0f}", beside(found, places, side)
            rows.append([places, side, rate, ratio, *times, f"{numbers['goodput']:.2f}"])
    return table([*header, "goodput, requests a second"], rows, left=2) + "\n"


def medians(found: list[dict[str, Any]], places: int) -> dict[str, dict[str, float]]:
    """Of each side, over the rounds with so many requests at once."""
    here = [one for one in found if one["places"] == places]
    return {
        side: {name: statistics.median(one[name] for one in here if one["side"] == side) for name in NUMBERS}
        for side in dict.fromkeys(one["side"] for one in here)
    }


def beside(found: list[dict[str, Any]], places: int, side: str) -> str:
    """The median over rounds of a side's tokens a second by those of llama-server; empty without it."""
    rate = {(one["side"], one["round"]): one["tokens_per_second"] for one in found if one["places"] == places}
    ratios = [rate[side, number] / peer for (name, number), peer in rate.items() if name == "llama-server"]
    return f"{statistics.median(ratios):.2f}" if ratios else ""


def draw(found: list[dict[str, Any]]) -> Any:
    """Medians by the number of requests at once."""
    figure = new_figure(11, 3.6)
    numbers = sorted({one["places"] for one in found})
    for panel, (name, label) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        for side in dict.fromkeys(one["side"] for one in found):
            values = [medians(found, places)[side][name] for places in numbers]
            panel.plot(numbers, values, "o-", color=COLORS[side], label=side)
        by_powers(panel, numbers)
        if name == "tokens_per_second":
            panel.set_ylim(bottom=0)
        else:
            panel.set_yscale("log")
        panel.yaxis.set_major_formatter("{x:,.0f}")
        panel.yaxis.set_minor_formatter("")
        titled(panel, label, "requests at once", size=11)
    legend_of_figure(figure, figure.axes[0], len(COLORS))
    return figure


if __name__ == "__main__":
    main()
