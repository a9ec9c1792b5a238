"""What a keystroke in a long file costs, by `daguerre serve` and by llama-server with the same file, asked alike.

    python benchmarks/keystroke.py FILE.gguf --llama-server PATH --out keystroke.json

Held-out files make a file of 2,000 lines. At the cursor, in its middle, the next lines of the true file are typed:
after each character `/infill` is asked for the rest of the line, greedy, at most 16 tokens, as plugins of editors do,
with all of the text before and after. How much of it is shown is each server's choice. The first request, which reads
the text before the cursor, is given apart. Tokens computed are those of the prompt that were not kept from before;
"first text" is the time from the request to its first characters: of the processor on one thread, else the wall's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
from fills import OURS, THEIRS, Filler, servers
from rich.progress import track

from daguerre.evals.machine import machine_facts
from daguerre.evals.results import publish
from daguerre.evals.tables import table
from daguerre.heldout import load_frozen

LINES = 2000
MOST = 16
"""Tokens of an answer."""
SHORTEST = 12
"""Characters of a line that is typed."""
Row = dict[str, Any]


def long_file() -> list[str]:
    """The first LINES lines of the held-out sample, each with its end."""
    lines = list[str]()
    for document in load_frozen():
        lines += document.text.splitlines(keepends=True)
        if len(lines) >= LINES:
            return lines[:LINES]
    raise SystemExit("the held-out sample is too short")


def keystrokes(lines: list[str], at: int, typed: int) -> list[tuple[str, str, str]]:
    """The text before the line of the cursor, the line up to it, and the text behind the cursor, for each character of
    the first `typed` lines from line `at` on that are long enough; the lines are in the text before, once typed.
    """
    found = list[tuple[str, str, str]]()
    while typed:
        line, at = lines[at].rstrip("\n"), at + 1
        begins = len(line) - len(line.lstrip())
        if len(line) - begins < SHORTEST:
            continue
        before, after = "".join(lines[: at - 1]), "\n" + "".join(lines[at:])
        found += [(before, line[:end], after) for end in range(begins, len(line))]
        typed -= 1
    return found


def answer(filler: Filler, before: str, line: str, after: str) -> Row:
    """Tokens shown and computed, seconds to the first text and to the end, and the text."""
    asked = {"input_prefix": before, "prompt": line, "input_suffix": after, "n_predict": MOST, "temperature": 0,
             "stop": ["\n"], "stream": True, "cache_prompt": True}  # fmt: skip
    began, first, text, last = filler.clock(), None, "", Row()
    with httpx2.stream("POST", f"{filler.url}/infill", json=asked, timeout=3600) as response:
        response.raise_for_status()
        for sent in response.iter_lines():
            if not sent.startswith("data: "):
                continue
            last = json.loads(sent.removeprefix("data: "))
            if first is None and last["content"]:
                first = filler.clock() - began
            text += last["content"]
    seconds = filler.clock() - began
    counts = {"shown": last["tokens_evaluated"], "computed": last["timings"]["prompt_n"]}
    return {**counts, "first": seconds if first is None else first, "seconds": seconds, "text": text}


def summary(found: list[dict[str, Row]]) -> dict[str, Row]:
    """Medians of each server over all keystrokes but the first, and that one."""
    out = dict[str, Row]()
    for name in found[0]:
        begun, *rows = (row[name] for row in found)
        names = ("shown", "computed", "first", "seconds")
        out[name] = {key: statistics.median(row[key] for row in rows) for key in names}
        out[name] |= {"begun": {key: begun[key] for key in names}, "most": max(row["computed"] for row in rows)}
    return out


def page(values: dict[str, Any]) -> str:
    """The summary as a page."""
    head = ["server", "tokens shown", "computed, median (most)", "first text, s", "whole answer, s",
            "the first request: computed, first text, s"]  # fmt: skip
    cells = [
        [name, f"{side['shown']:,.0f}", f"{side['computed']:,.0f} ({side['most']:,})", f"{side['first']:.2f}",
         f"{side['seconds']:.2f}", f"{side['begun']['computed']:,}, {side['begun']['first']:.1f}"]
        for name, side in values["sides"].items()
    ]  # fmt: skip
    facts = values["facts"]
    about = (
        f"{values['model']}, a file of {LINES:,} lines, the cursor in line {values['at']:,}, {values['keystrokes']} "
        f"keystrokes, {values['threads']} threads; {facts['processor']}, instruction set {facts['instruction_set']}, "
        f"daguerre {facts['daguerre']}"
    )
    return f"# A keystroke in a long file\n\n{table(head, cells)}\n\n{about}\n"


def main() -> None:
    """Type, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--at", type=int, default=LINES // 2, help="the line of the cursor (%(default)s)")
    parser.add_argument("--typed", type=int, default=2, help="lines that are typed (%(default)s)")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    asked = keystrokes(long_file(), given.at, given.typed)
    with ExitStack() as opened:
        fillers = opened.enter_context(servers(given.model, given.llama_server, given.threads))
        order = [name for name in (OURS, THEIRS) if name in fillers]
        found = [
            {name: answer(fillers[name], *one) for name in order}
            for one in track(asked, "keystrokes", disable=not sys.stderr.isatty())
        ]
    values = {"model": given.model.name, "threads": given.threads, "at": given.at, "keystrokes": len(asked) - 1,
              "facts": machine_facts(), "sides": summary(found)}  # fmt: skip
    publish(given.out, values, page(values))


if __name__ == "__main__":
    main()
