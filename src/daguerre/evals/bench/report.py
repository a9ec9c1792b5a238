"""A report of `daguerre bench` as tables to read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from daguerre.evals.bench.bars import bars
from daguerre.evals.bench.family_report import families_table
from daguerre.evals.bench.job import RANDOM
from daguerre.evals.bench.real_report import real_table
from daguerre.evals.bench.rows import TORCH
from daguerre.evals.results import write_page
from daguerre.evals.tables import Column, counted, optional, table, table_of, text

BUSY = 0.05
"""The share of all CPUs' time, used by others, from which a machine was not idle."""


def markdown(report: dict[str, Any]) -> str:
    """Bars first, then every part."""
    parts = ["# Speed"]
    if found := bars(report):
        rows = [
            [name, threads, figure, bar, "met" if met else "**missed**"] for name, threads, figure, bar, met in found
        ]
        parts.append("## Bars\n\n" + table(["", "threads", "measured", "aimed at", ""], rows))
    parts += [
        f"## {TITLES[name]}\n\n{write(report[name])}\n\n{_measured(report[name])}"
        for name, write in WRITERS.items()
        if name in report
    ]
    return "\n\n".join(parts) + "\n"


def write(report: dict[str, Any], path: Path) -> None:
    """Write `markdown(report)` beside the JSON file at `path`."""
    write_page(path, markdown(report))


def _measured(part: dict[str, Any]) -> str:
    """One line on the machine, the types, the versions and the rounds; and whether the machine was idle."""
    settings, share = part["settings"], part["busy"] or 0.0
    num = settings.get("rounds", 0)
    rounds = f"{counted(num, 'round')}, " if num else ""
    busy = f" **The machine was not idle: {share:.0%} of its time was used before this began.**" if share > BUSY else ""
    return f"{machine_text(part['machine'])}, {rounds}{part['seconds']:.0f} s.{busy}"


def machine_text(machine: dict[str, Any]) -> str:
    """The processor, the instruction set and the type in use, and the versions, in one line."""
    level, best = machine["instruction_set"], machine["best_instruction_set"]
    limited = "" if level == best else f" of {best}, chosen by DAGUERRE_ISA for Daguerre and PyTorch"
    return (
        f"{machine['processor']}, {machine['cores']} cores, instruction set {level}{limited}, native type "
        f"{machine['dtype']}, Python {machine['python']}, torch {machine['torch']}, daguerre {machine['daguerre']} "
        f"(commit {machine['commit']})"
    )


def _by_threads(part: dict[str, Any], write: Callable[[Any], str]) -> str:
    return "\n\n".join(f"With {threads_text(threads)}:\n\n{write(found)}" for threads, found in part["threads"].items())


def threads_text(threads: str) -> str:
    return "one thread" if threads == "1" else f"{threads} threads"


def _sides(found: dict[str, Any]) -> str:
    columns: dict[str, Column] = {
        "": text("{name}"),
        "tokens/s end to end": text("{tokens_per_second:.0f}"),
        "after the first": text("{decode_tokens_per_second:.0f}"),
        "ms to the first": lambda s: f"{1e3 * s['first_seconds']:.0f}",
        "tokens a forward": lambda s: "" if s["forwards"] is None else f"{s['new_tokens'] / s['forwards']:.2f}",
        "rows": lambda s: optional(s["rows"], 0),
        "text of ar": lambda s: "" if s["tokens_as_ar"] is None else f"{s['tokens_as_ar']:.0%}",
    }
    sides = table_of(columns, (side | {"name": name} for name, side in found["sides"].items()))
    notes = [f"Not measured: {name}: {reason}" for name, reason in found["failed"].items()]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return "\n\n".join([sides, *notes, f"With {versions}."])


def _peers(part: dict[str, Any]) -> str:
    s = part["settings"]["shape"]
    shape = (
        f"Random weights: width {s['width']}, {s['num_layers']} layers, {s['num_heads']} heads ({s['num_kv_heads']} of "
        f"keys), MLP {s['mlp_width']}, vocabulary {s['vocab_size']:,}; a prompt of {s['prompt_tokens']}, "
        f"{s['new_tokens']} new, {part['machine']['dtype']} unless a name has another type, greedy. `block`, `full`, "
        "`LLaDA loop` and `diffusers` are made to commit 4 tokens a forward; rows are all that were computed, those of "
        "the prompt and of finished blocks included. `torch` is Daguerre's torch backend."
    )
    return f"{shape}\n\n{_by_threads(part, _sides)}"


def _modes(part: dict[str, Any]) -> str:
    return (
        f"Model `{part['settings']['model']}`, held-out Python, the default policy, {part['machine']['dtype']} unless "
        "a name has another type; llama.cpp runs the same weights. Then next-line completion of held-out lines.\n\n"
        f"{_by_threads(part, _mode_tables)}"
    )


def _mode_tables(found: dict[str, Any]) -> str:
    done = found["completion"]
    columns: dict[str, Column] = {
        "setting": text("{label}"),
        "lines": text("{num}"),
        "exact": lambda row: f"{100 * row['accuracy']:.1f}%",
        "similarity": text("{similarity:.3f}"),
        "tokens a forward": text("{tokens_per_forward:.2f}"),
        "tokens/s": text("{tokens_per_second:.0f}"),
        "times ar": lambda row: f"{row['tokens_per_second'] / done['rows'][0]['tokens_per_second']:.2f}",
    }
    best = done["best_no_worse"] or "none"
    note = f"No worse than `ar` in exact lines and similarity (paired, 95%), and fastest: {best}."
    return f"{_sides(found)}\n\n{table_of(columns, done['rows'])}\n\n{note}"


def _context(part: dict[str, Any]) -> str:
    def write(found: dict[str, Any]) -> str:
        contexts = sorted({row["context"] for row in found["rows"]})
        of = {(row["mode"], row["kv_heads"], row["context"]): row["ms"] for row in found["rows"]}
        rows = [
            [f"{mode}, {heads} KV heads", *(f"{of[mode, heads, context]:.2f}" for context in contexts)]
            for mode, heads in dict.fromkeys(key[:2] for key in of)
        ]
        return table(["ms a token, by tokens before it", *(f"{context:,}" for context in contexts)], rows)

    return _by_threads(part, write)


def _infill(part: dict[str, Any]) -> str:
    columns = {"": "model", "policy": "policy", "ms, median": "ms:.1f", "forwards": "forwards:g", "places": "places"}
    forms = {name: text(f"{{{form}}}") for name, form in columns.items()}
    return _by_threads(part, lambda found: table_of(forms, found))


def _rows(part: dict[str, Any]) -> str:
    def write(found: dict[str, Any]) -> str:
        parts = []
        for model, figures in found["models"].items():
            sides = figures["sides"]
            parts.append(f"{model}, {figures['parameters']:,} parameters:")
            parts += [rows_table(title, sides, value) for value, title in ROW_TABLES.items()]
            parts += [f"Not measured: {name}: {reason}" for name, reason in figures["failed"].items()]
        crowd = [[f"{p['requests']}", f"{p['ar_ms']:.2f}", f"{p['block_ms']:.2f}"] for p in found["concurrency"]]
        header = [f"requests at once, {RANDOM}", "one row each, ms", f"{found['block_rows']} rows each, ms"]
        return "\n\n".join([*parts, table(header, crowd)])

    return (
        f"A forward that gives the logits of all its rows, after {next(iter(part['threads'].values()))['context']} "
        f'cached tokens. int8 is quantize="int8" with {part["machine"]["dtype"]} beside its matrices; the bare '
        f"products are in {part['machine']['dtype']}. A ratio is the median of those of the rounds.\n\n"
        f"{_by_threads(part, write)}"
    )


ROW_TABLES = {
    "ms": "ms of a forward, by its rows",
    "times_one_row": "times one row",
    "times_torch": "times as fast as PyTorch's float32 modules",
}


def rows_table(title: str, sides: dict[str, Any], value: str) -> str:
    """A value of every side by its number of rows, without the lines that are 1 by definition."""
    numbers = list(dict.fromkeys(rows for side in sides.values() for rows in side["rows"]))
    lines = []
    for name, side in sides.items():
        if (value, name) == ("times_torch", TORCH) or (value == "times_one_row" and len(side["rows"]) == 1):
            continue
        of = dict(zip(side["rows"], side[value], strict=True))
        lines.append([name, *(f"{of[rows]:.2f}" if rows in of else "" for rows in numbers)])
    return table([title, *map(str, numbers)], lines)


def _batch(part: dict[str, Any]) -> str:
    some = next(iter(part["threads"].values()))
    return (
        f"{some['requests']} requests with prompts of unlike lengths, {part['settings']['shape']['new_tokens']} new "
        f"tokens each, in one batch, beside one of them alone, in {part['machine']['dtype']}; blocks are made to "
        "commit 4 tokens a forward. `Together` with one request is compared with `drive`, and `drive` with a loop that "
        "computes the same forwards and does nothing else. Python is the time of a step, for each request, outside of "
        "the native library.\n\n"
        f"{_by_threads(part, batch_table)}"
    )


def batch_table(found: dict[str, Any]) -> str:
    """Every model and mode that was measured."""
    columns: dict[str, Column] = {
        "": text("{name}"),
        "tokens/s of one": text("{alone_tokens_per_second:.0f}"),
        f"of {found['requests']}": text("{together_tokens_per_second:.0f}"),
        "times": text("{gain:.2f}"),
        "after the first": text("{gain_behind_first:.2f}"),
        "`Together` against `drive`": text("{driver_overhead:+.1%}"),
        "`drive` against a bare loop": text("{decoding_overhead:+.1%}"),
        "ms a step": text("{step_ms:.2f}"),
        "Python, ms": text("{python_ms:.3f}"),
        f"in a batch of {found['requests']}": text("{python_ms_together:.3f}"),
        "same text": lambda f: "yes" if f["same_text"] else "no",
    }
    rows = ((model, mode, f) for model, of_model in found["models"].items() for mode, f in of_model["modes"].items())
    return table_of(columns, (figures | {"name": f"{model}, {mode}"} for model, mode, figures in rows))


def _endpoint(part: dict[str, Any]) -> str:
    columns: dict[str, Column] = {
        "at once": text("{concurrency}"),
        "completed": text("{completed} of {requests}"),
        "ms to the first text": _ms("first_seconds"),
        "first text, p95": _ms("first_seconds_p95"),
        "ms between chunks": _ms("gap_seconds"),
        "chunks, p95": _ms("gap_seconds_p95"),
        "tokens/s": lambda level: optional(level["tokens_per_second"], 0),
        "a request": lambda level: optional(level["tokens_per_second_each"], 0),
    }
    errors = {reason: count for level in part["levels"] for reason, count in level["errors"].items()}
    about = f"{part['url']}, model `{part['model']}`, {part['route']}, at most {part['max_tokens']} tokens."
    notes = [f"Failed: {reason} ({count})." for reason, count in errors.items()]
    return "\n\n".join([about, table_of(columns, part["levels"]), *notes])


def _ms(name: str) -> Column:
    return lambda level: "" if level[name] is None else f"{1e3 * level[name]:.0f}"


TITLES = {
    "peers": "Beside other engines",
    "modes": "The modes of a model",
    "context": "Cost of a token by context",
    "infill": "Infilling a line",
    "rows": "What rows cost",
    "batch": "Many requests at once",
    "families": "Shapes of published families",
    "real": "A published file beside llama.cpp",
    "endpoint": "A server",
}
WRITERS: dict[str, Callable[[dict[str, Any]], str]] = {
    "peers": _peers,
    "modes": _modes,
    "context": _context,
    "infill": _infill,
    "rows": _rows,
    "batch": _batch,
    "families": families_table,
    "real": real_table,
    "endpoint": _endpoint,
}
