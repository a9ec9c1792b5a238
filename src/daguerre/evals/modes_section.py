"""What each mode writes in which time, from reports of several tasks: the tables beside "Which mode, when"."""

from __future__ import annotations

from typing import Any

from daguerre.evals.infilling import BEAM
from daguerre.evals.tables import share, table


def completion_modes(tasks: dict[str, Any]) -> str:
    """Next lines in modes `ar`, `speculative` and `block`, the last at its most similar setting and at its fastest."""
    if not {"completion", "speculation"} <= tasks.keys():
        return ""
    (ar, *blocks), lines = _on_all_lines(tasks["completion"]), tasks["speculation"]["lines"]
    rows = [_completion_row("ar", ar, ar)]
    rows.append(["speculative", *rows[0][1:3], f"{lines['tokens_per_forward']:.2f}", f"{lines['total_speedup']:.2f}"])
    shown = (max(blocks, key=_similarity), max(blocks, key=_speed))
    rows += [_completion_row(best["label"], best, ar) for best in shown]
    header = [f"next lines, {ar['num']:,}", "exact, %", "similarity", "tokens a forward", "times `ar`"]
    return (
        f"{table(header, rows)}\n\n`speculative` wrote the same line as `ar` in {lines['identical']:,} of "
        f"{lines['lines']:,}. {_named(tasks, 'completion', 'speculation')}"
    )


def closest_setting(tasks: dict[str, Any]) -> str:
    """What the settings of mode `block` that ran on all lines cost beside `ar`, and which of them comes closest."""
    if "completion" not in tasks:
        return ""
    task = tasks["completion"]
    ar, *blocks = _on_all_lines(task)
    best, speeds = max(blocks, key=_similarity), [row["tokens_per_forward"] for row in blocks]
    found = task["best_no_worse"]
    verdict = "none is found to be as good as `ar`" if found is None else f"`{found}` is the fastest that is as good"
    file = "[completion](../benchmarks/results/default-completion.md)"
    return (
        f"On the {ar['num']:,} lines of {file} {len(blocks)} settings "
        f"of mode `block` committed {min(speeds):.2f} to {max(speeds):.2f} tokens a forward, and {verdict} (paired, "
        f"95%). The closest is {best['label']}: {best['tokens_per_forward']:.2f} tokens a forward, "
        f"{-best['similarity_difference']:.3f} less similarity, {100 * best['accuracy']:.1f}% exact lines "
        f"({100 * ar['accuracy']:.1f}%); {best['same_as_ar']:.0%} of its lines are those of `ar`."
    )


def gap_modes(tasks: dict[str, Any]) -> str:
    """Missing lines of unknown length in modes `block` and `beam`, and by `ar`, which does not see what follows."""
    if "infill" not in tasks:
        return ""
    of = {(each["method"], each["length"]): each for each in tasks["infill"]["outcomes"]}
    names = {"block": "infill", "beam": BEAM, "ar, without what follows": "ar"}
    found = {name: of[method, "unknown"] for name, method in names.items() if (method, "unknown") in of}
    rows = [
        [
            name,
            share(each["exact"], each["exact_interval"]),
            share(each["parses"], each["parses_interval"]),
            f"{each['seconds'] / found['block']['seconds']:.1f}",
        ]
        for name, each in found.items()
    ]
    header = [f"missing lines, {found['block']['num']:,}", "exact, %", "file parses, %", "time, times `block`"]
    return f"{table(header, rows)}\n\n{_named(tasks, 'infill')}"


def _on_all_lines(task: dict[str, Any]) -> list[dict[str, Any]]:
    """`ar`, and the settings that ran on as many lines."""
    (ar,) = (row for row in task["rows"] if row["mode"] == "ar")
    return [ar, *(row for row in task["rows"] if row["mode"] == "block" and row["num"] == ar["num"])]


def _completion_row(name: str, row: dict[str, Any], ar: dict[str, Any]) -> list[str]:
    times = f"{_speed(row) / _speed(ar):.2f}"
    exact = share(row["accuracy"], row["accuracy_interval"])
    return [name, exact, f"{_similarity(row):.3f}", f"{row['tokens_per_forward']:.2f}", times]


def _similarity(row: dict[str, Any]) -> float:
    return float(row["similarity"])


def _speed(row: dict[str, Any]) -> float:
    return float(row["tokens_per_second"])


def _named(tasks: dict[str, Any], *names: str) -> str:
    """Which files the figures are from, and 95% intervals."""
    files = sorted(file for file, report in tasks["reports"].items() if report.keys() & set(names))
    links = " and ".join(f"[{file}](../benchmarks/results/{file})" for file in files)
    return f"In brackets 95% intervals. Default model, from {links}."
