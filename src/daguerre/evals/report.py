"""A report of `harness.evaluate` as a file, and as tables to read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from daguerre.errors import InputError
from daguerre.files import atomic_write


def check_path(path: str | os.PathLike[str]) -> None:
    """InputError unless a report can be written there: a .json file, in a folder that is or can be made."""
    target = Path(path).absolute()
    if target.suffix != ".json":
        raise InputError(f"the report {target.name!r} must end in .json: its tables are written beside it, as .md")
    folder = next(parent for parent in target.parents if parent.exists())
    if target.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"a report cannot be written to {os.fspath(path)!r}: give a file in a folder that is yours")


def write_report(report: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write the JSON to `path`, and the tables beside it; makes the folder."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_json(report, path)
    write_markdown(report, Path(path).with_suffix(".md"))


def write_json(report: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write the whole report, examples of predictions included: beside, synced, then renamed."""
    with atomic_write(Path(path)) as file:
        file.write((json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())


def write_markdown(report: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write `markdown(report)`: beside, synced, then renamed."""
    with atomic_write(Path(path)) as file:
        file.write(markdown(report).encode())


def markdown(report: dict[str, Any]) -> str:
    """Tables of the figures, and a line on what they were measured with."""
    parts = [_heading(report)]
    if "bits" in report:
        parts.append(_bits(report["bits"]))
    if "infill" in report:
        parts.append(_infill(report["infill"]))
    if "draft" in report:
        parts.append(_draft(report["draft"]))
    if "speculation" in report:
        parts.append(_speculation(report["speculation"]))
    parts += [f"Not measured: {name}, because {reason}." for name, reason in report["skipped"].items()]
    parts.append(_measured_with(report))
    return "\n\n".join(parts) + "\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, its columns after the first aligned to the right."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _heading(report: dict[str, Any]) -> str:
    model, data = report["model"], report["data"]
    skipped = "".join(f"\n\nNot read: {file}, because {reason}." for file, reason in data["skipped"].items())
    return (
        f"# {model['name'] or 'Model'}: {model['parameters'] / 1e6:.2f}M parameters, {model['context']} context\n\n"
        f"On the {data['name']}: {data['documents']} documents, {data['bytes']:,} bytes.{skipped}"
    )


def _bits(figures: Sequence[dict[str, Any]]) -> str:
    rows = []
    for f in figures:
        kind = "exact" if f["exact"] else f"bound, {f['samples']} draws"
        ratio = "" if f["ratio"] is None else f"{f['ratio']:.3f}"
        error = "" if f["exact"] and not f["stderr"] else f"{f['stderr']:.4f}"
        rows.append(
            [
                _layout(f["layout"]),
                kind,
                f"{f['value']:.4f}",
                error,
                _optional(f["text_stderr"], 4),
                ratio,
                f"{f['num_scored']} of {f['num_windows']}",
            ]
        )
    header = ["layout", "", "bits per byte", "standard error", "over texts", "ratio to exact", "windows scored"]
    eighths = ["layout", *(f"{i}/8" for i in range(1, len(figures[0]["by_position"]) + 1))]
    positions = [[_layout(f["layout"]), *(_optional(v, 3) for v in f["by_position"])] for f in figures]
    return (
        "## Bits per byte\n\n"
        + table(header, rows)
        + "\n\nA bound is for all windows, by regression on the exact score from those scored; the mean of those alone "
        "is `direct` in the JSON. `standard error`: of the figure for these documents, from random masks and the "
        "choice of windows. "
        "`over texts`: how it would differ for other documents like them.\n\n"
        "By place in the context:\n\n" + table(eighths, positions)
    )


def _infill(task: dict[str, Any]) -> str:
    rows = [
        [
            f"{o['method']}, {o['length']} length",
            str(o["num"]),
            _share(o["exact"], o["exact_interval"]),
            f"{100 * o['exact_line']:.1f}",
            _share(o["parses"], o["parses_interval"]),
            f"{o['similarity']:.3f}",
            f"{o['seconds']:.2f}",
        ]
        for o in task["outcomes"]
    ]
    pairs = [
        [
            f"{c['method']} against {c['against']}, {c['length']} length",
            str(c["only_first"]),
            str(c["only_second"]),
            f"{100 * c['difference']:+.1f} ± {100 * c['difference_stderr']:.1f}",
            f"{c['p_value']:.2g}",
        ]
        for c in task["comparisons"]
    ]
    return (
        "## Line infilling\n\n"
        + table(
            ["method", "lines", "exact, %", "first line exact, %", "file parses, %", "similarity", "seconds a line"],
            rows,
        )
        + f"\n\nIn brackets: 95% intervals (Wilson). Unknown length: a gap of {task['unknown_length']} tokens. "
        f"Shown: up to {task['shown_tokens'][0]} tokens before the line and {task['shown_tokens'][1]} after it.\n\n"
        + table(["exact in pairs", "only the first", "only the second", "difference, %", "p (McNemar)"], pairs)
    )


def _draft(task: dict[str, Any]) -> str:
    match = task["match_by_position"]
    header = ["position", *(str(i) for i in range(1, len(match) + 1))]
    return (
        f"## Drafts\n\nOne-shot drafts against the model's own greedy text, {task['prompts']} prompts; "
        f"{task['accepted_a_cycle']:.2f} tokens accepted a cycle, bonus token included.\n\n"
        + table(header, [["equal", *(f"{share:.2f}" for share in match)]])
    )


def _speculation(task: dict[str, Any]) -> str:
    rows = [
        [
            f"{o['temperature']:g}",
            f"{o['identical']} of {o['prompts']}",
            f"{o['tokens_per_forward']:.2f}",
            f"{o['rows_per_forward']:.1f}",
            f"{o['accepted']} of {o['drafted']}",
            f"{o['speedup']:.2f}",
        ]
        for o in task["outcomes"]
    ]
    header = [
        "temperature",
        "same tokens as ar",
        "tokens a forward",
        "rows a forward",
        "accepted",
        "times as fast as ar",
    ]
    return f"## Speculation\n\n{task['new_tokens']} tokens a prompt, the modes in turn.\n\n" + table(header, rows)


def _measured_with(report: dict[str, Any]) -> str:
    machine, settings = report["machine"], report["settings"]
    seconds = ", ".join(f"{name} {value:.0f} s" for name, value in report["seconds"].items())
    return (
        f"Measured on {machine['processor']} ({machine['device']}, {machine['threads']} threads of {machine['cores']} "
        f"cores), {report['model']['dtype']}, Python {machine['python']}, torch {machine['torch']}, "
        f"daguerre {machine['daguerre']} (commit {machine['commit'] or 'unknown'}), seed {settings['seed']}; {seconds}."
    )


def _layout(name: str) -> str:
    return f"spans of {name}" if name.isdigit() else name


def _optional(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _share(share: float, interval: Sequence[float]) -> str:
    return f"{100 * share:.1f} [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]"
