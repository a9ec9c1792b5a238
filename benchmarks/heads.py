"""How well the concept heads of a published model tell concepts apart, in the held-out text of their own run.

    python benchmarks/heads.py runs/heads --out benchmarks/results/heads-NAME

RUN is the folder of `daguerre train heads --from MODEL`. It has the hidden states of what the heads learned from and of
the held-out packages, so no model is asked; controls learn from the same text (`daguerre.evals.concepts.heads`). With
--files FOLDER the spans are those of its Python files, of which the model computes the states. With --out two files are
written, a page and its figures.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import daguerre
from daguerre.evals.concepts.heads import CONTROLS, measure_heads, measure_shares, text_of

PROMPT = "def read_lines(path):\n    "
ROUNDS, NEW_TOKENS = 7, 64


def explained_times(model: daguerre.Model) -> list[float]:
    """The processor time of a greedy text that is explained, beside the same text plain, one token at a time: the ratio
    of each of ROUNDS rounds.
    """
    out = list[float]()
    for number in range(ROUNDS + 1):
        seconds = dict[bool, float]()
        for explain in (False, True) if number % 2 else (True, False):
            began = time.process_time()
            model.generate(PROMPT, NEW_TOKENS, mode="ar", temperature=0.0, explain=explain)
            seconds[explain] = time.process_time() - began
        out.append(seconds[True] / seconds[False])
    return out[1:]


def line_of(scorer: dict[str, Any]) -> str:
    """A scorer's line of a table."""
    cells = [scorer["name"]]
    for group in ("all", "lexical", "structural"):
        low, high = scorer[group]["auc_interval"] if group in scorer else (0.0, 0.0)
        cells.append(f"{scorer[group]['auc']:.3f} [{low:.3f}, {high:.3f}]" if group in scorer else "")
    every = scorer.get("all", {})
    low, high = every.get("gain_interval", (0.0, 0.0))
    cells.append(f"{every['gain']:+.3f} [{low:+.3f}, {high:+.3f}]" if "gain" in every else "")
    return f"| {' | '.join(cells)} |"


def page(report: dict[str, Any], command: str) -> str:
    """The page of a report."""
    trained, base = report["trained"], report["base"]
    lines = [
        f"# Concept heads of {base['name']}",
        "",
        f"{report['cases']:,} spans of {report['span']} tokens in {report['files']} files of {report['text']}; the "
        f"heads learned from {trained['rows']:,} tokens in {trained['steps']:,} steps, the controls from "
        f"{report['training_cases']:,} spans of the same text. Macro AUC over concepts with 20 spans of either kind; "
        "95% intervals over files.",
    ]
    for condition in report["conditions"]:
        of = condition["concepts"]
        lines += [
            "",
            f"## Concepts {'to come' if condition['condition'] == 'to come' else 'of tokens that were read'}",
            "",
            f"{of['all']} concepts, {of['lexical']} of them lexical.",
            "",
            "| | all | lexical | structural | heads less this one |",
            "|---|---:|---:|---:|---:|",
            *(line_of(scorer) for scorer in condition["scorers"]),
        ]
    if shares := report.get("shares"):
        lines += [
            "",
            "## Shares",
            "",
            f"Of the logits of {shares['rows']:,.0f} held-out tokens {100 * shares['aggregated']:.1f}% go through "
            f"concepts, {100 * shares['known']:.1f}% through named ones (each kind added up); with each concept's own "
            f"part {100 * shares['single']:.1f}%. Without the residual a token costs {shares['nats']:.2f} nats more "
            f"than the {shares['nats_whole']:.2f} that it does.",
        ]
    if times := report.get("explained"):
        lines += [
            "",
            f"A token that is explained takes {statistics.median(times):.3f} of a plain one's processor time (median "
            f"of {len(times)} interleaved rounds, {min(times):.3f} to {max(times):.3f}, one thread).",
        ]
    options = " ".join(f"{name}={value}" for name, value in trained["options"].items())
    return "\n".join([*lines, "", f"Written by `{command}`. Options of the run: {options}.", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--model", help="the model, for the shares of its logits, and for --files")
    parser.add_argument("--files", type=Path, help="a folder whose Python files are measured")
    parser.add_argument("--tokens", type=int, default=160_000, help="of --files, at most")
    parser.add_argument("--out", type=Path, help="write NAME.md and NAME.json")
    parser.add_argument("--spans", type=int, default=6000, help="training spans that controls learn from, at most")
    parser.add_argument("--control", action="append", choices=CONTROLS, help="one control; all by default")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.files is not None and given.model is None:
        parser.error("--files wants --model")
    model = None if given.model is None else daguerre.load(given.model, concepts=given.run / "concepts")
    test = None if given.files is None or model is None else text_of(given.files, model, given.tokens)
    report = measure_heads(
        given.run, given.control or CONTROLS, given.spans, lambda line: print(line, flush=True), test=test
    )
    report["text"] = "held-out packages" if test is None else given.files.name
    if model is not None and test is None:
        heads = model.denoiser.heads
        assert heads is not None
        report["shares"], report["explained"] = measure_shares(given.run, heads), explained_times(model)
    text = page(report, f"python benchmarks/heads.py RUN --spans {given.spans}")
    print(text)
    if given.out is not None:
        given.out.with_suffix(".md").write_text(text, encoding="utf-8")
        given.out.with_suffix(".json").write_text(json.dumps(report) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
