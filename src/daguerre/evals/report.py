"""A report of `harness.evaluate` as files: JSON, and Markdown to read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from daguerre.errors import InputError
from daguerre.evals import results
from daguerre.evals.sections import SECTIONS
from daguerre.evals.tables import counted


def check_path(path: str | os.PathLike[str]) -> None:
    """InputError unless a report can be written there: a .json file, in a folder that is writable or can be made."""
    target = Path(path).absolute()
    if target.suffix != ".json":
        raise InputError(f"the report {target.name!r} must end in .json: its tables are written beside it, as .md")
    folder = next(parent for parent in target.parents if parent.exists())
    if target.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"a report cannot be written to {os.fspath(path)!r}: give a file in a folder you can write to")


def write_report(report: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write the JSON to `path`, and the tables beside it; makes the folder."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_json(report, path)
    results.write_page(Path(path), markdown(report))


def write_json(report: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write the whole report, with examples of predictions. ValueError for a figure that is no number."""
    results.write_json(Path(path), report, allow_nan=False)


def markdown(report: dict[str, Any]) -> str:
    """Tables of the figures, and a line on how they were measured."""
    parts = [_heading(report), *(write(report[name]) for name, write in SECTIONS.items() if name in report)]
    parts += [f"Not measured: {name}, because {reason}." for name, reason in report["skipped"].items()]
    parts.append(_measured_with(report))
    return "\n\n".join(parts) + "\n"


def _heading(report: dict[str, Any]) -> str:
    model, data = report["model"], report["data"]
    notes = ["A quick look at few examples: not to be quoted."] if report.get("quick") else []
    notes += [f"Not read: {file}, because {reason}." for file, reason in data["skipped"].items()]
    if num := data["carriage_returns"]:
        notes.append(f"Documents with carriage returns, of which no line is taken out: {num}.")
    return (
        f"# {model['name'] or 'Model'}: {model['parameters'] / 1e6:.2f}M parameters, {model['context']} context\n\n"
        f"On the {data['name']}: {counted(data['documents'], 'document')}, {data['bytes']:,} bytes."
        + "".join(f"\n\n{note}" for note in notes)
    )


def _measured_with(report: dict[str, Any]) -> str:
    machine, settings = report["machine"], report["settings"]
    seconds = ", ".join(f"{name} {value:.0f} s" for name, value in report["seconds"].items())
    instructions = f", {machine['instruction_set']}" if "instruction_set" in machine else ""
    return (
        f"Measured on {machine['processor']} ({machine['device']}, {counted(machine['threads'], 'thread')}, "
        f"{counted(machine['cores'], 'core')}{instructions}), {_computed_by(report['model'])}, Python "
        f"{machine['python']}, torch {machine['torch'] or 'none'}, daguerre {machine['daguerre']} (commit "
        f"{machine['commit'] or 'unknown'}), seed {settings['seed']}, {_processes(settings['workers'])}; {seconds}."
    )


def _computed_by(model: dict[str, Any]) -> str:
    """The type of the numbers and the backend, as far as the report has them."""
    kind = f"{model['dtype']} with {model['quantize']} matrices" if model.get("quantize") else str(model["dtype"])
    return f"{kind}, {model['backend']} backend" if model.get("backend") else kind


def _processes(workers: int) -> str:
    return "one process" if workers == 1 else f"examples in {workers} processes of one thread"
