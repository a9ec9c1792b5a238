"""A report of `harness.evaluate` as a file, and as tables to read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from daguerre.errors import InputError
from daguerre.evals.bits import CHAIN
from daguerre.evals.infilling import ENDED
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
    parts = [_heading(report), *(write(report[name]) for name, write in WRITERS.items() if name in report)]
    parts += [f"Not measured: {name}, because {reason}." for name, reason in report["skipped"].items()]
    parts.append(_measured_with(report))
    return "\n\n".join(parts) + "\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, its columns after the first aligned to the right."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


Column = Callable[[dict[str, Any]], str]
"""What a column of a table says of a row."""


def _table(columns: dict[str, Column], rows: Iterable[dict[str, Any]]) -> str:
    return table(list(columns), [[cell(row) for cell in columns.values()] for row in rows])


def _text(form: str) -> Column:
    """A format of the row's values."""
    return form.format_map


def _percent(name: str) -> Column:
    """A share, with its interval where the row has one."""
    return lambda row: _share(row[name], row.get(f"{name}_interval"))


def _heading(report: dict[str, Any]) -> str:
    model, data = report["model"], report["data"]
    notes = [f"Not read: {file}, because {reason}." for file, reason in data["skipped"].items()]
    if num := data["carriage_returns"]:
        whose = "1 document has carriage returns, and no line is taken out of it."
        notes.append(whose if num == 1 else f"{num} documents have carriage returns, and no line is taken out of them.")
    return (
        f"# {model['name'] or 'Model'}: {model['parameters'] / 1e6:.2f}M parameters, {model['context']} context\n\n"
        f"On the {data['name']}: {data['documents']} documents, {data['bytes']:,} bytes."
        + "".join(f"\n\n{note}" for note in notes)
    )


def _bits(figures: Sequence[dict[str, Any]]) -> str:
    columns: dict[str, Column] = {
        "layout": lambda f: layout_name(f["layout"]),
        "": lambda f: "exact" if f["exact"] else f"bound, {f['samples']} draws",
        "bits per byte": _text("{value:.4f}"),
        "standard error": lambda f: "" if f["exact"] and not f["stderr"] else f"{f['stderr']:.4f}",
        "over texts": lambda f: _optional(f["text_stderr"], 4),
        "ratio to `ar`": lambda f: _optional(f["ratio"], 3),
        "windows scored": _text("{num_scored} of {num_windows}"),
    }
    eighths = ["layout", *(f"{i}/8" for i in range(1, len(figures[0]["by_position"]) + 1))]
    positions = [[layout_name(f["layout"]), *(_optional(v, 3) for v in f["by_position"])] for f in figures]
    return (
        "## Bits per byte\n\n"
        + _table(columns, figures)
        + "\n\nA figure is for all windows, by regression on the exact score of `ar` from those scored; the mean of "
        "those alone is `direct` in the JSON. `left to right`: spans revealed in that order, one token a forward; a "
        "likelihood, no bound. `standard error`: of the figure for these documents, from random masks and the choice "
        "of windows. "
        "`over texts`: how it would differ for other documents like them.\n\n"
        "By place in the context:\n\n" + table(eighths, positions)
    )


def _infill(task: dict[str, Any]) -> str:
    columns = {
        "method": _text("{method}, {length} length"),
        "lines": _text("{num}"),
        "exact, %": _percent("exact"),
        "first line exact, %": _percent("exact_line"),
        "file parses, %": _percent("parses"),
        "similarity": _text("{similarity:.3f}"),
        "seconds a line": _text("{seconds:.2f}"),
    }
    pairs: dict[str, Column] = {
        "exact in pairs": _text("{method} against {against}, {length} length"),
        "only the first": _text("{only_first}"),
        "only the second": _text("{only_second}"),
        "difference, %": lambda c: f"{100 * c['difference']:+.1f} ± {100 * c['difference_stderr']:.1f}",
        "p (McNemar)": _text("{p_value:.2g}"),
    }
    itself = any(o["method"] == ENDED for o in task["outcomes"])
    stops = f"; the first line break ends what is written, but not `{ENDED}`" if itself else ""
    return (
        "## Line infilling\n\n"
        + _table(columns, task["outcomes"])
        + f"\n\nIn brackets: 95% intervals (Wilson). Unknown length: a gap of {task['unknown_length']} tokens"
        f"{stops}. "
        f"Shown: up to {task['shown_tokens'][0]} tokens before the line and {task['shown_tokens'][1]} after it.\n\n"
        + _table(pairs, task["comparisons"])
    )


def _draft(task: dict[str, Any]) -> str:
    num = len(task["match_by_position"])
    rows = [
        ["equal", *(f"{share:.2f}" for share in task["match_by_position"])],
        ["standard error", *(_optional(error, 3) for error in task["match_stderr"])],
        ["equal up to here", *(f"{share:.2f}" for share in task["accepted_by_position"])],
    ]
    error = "" if task["accepted_stderr"] is None else f" ± {task['accepted_stderr']:.2f}"
    return (
        f"## Drafts\n\nOne-shot drafts against the model's own greedy text, {task['prompts']} prompts from "
        f"{task['documents']} documents; {task['accepted_a_cycle']:.2f}{error} tokens accepted a cycle, bonus token "
        "included.\n\n" + table(["position", *(str(i) for i in range(1, num + 1))], rows)
    )


def _completion(task: dict[str, Any]) -> str:
    columns: dict[str, Column] = {
        "setting": _text("{label}"),
        "lines": _text("{num}"),
        "exact, %": _percent("accuracy"),
        "less ar's, %": lambda r: "" if r["mode"] == "ar" else _difference(r["difference"], r["difference_interval"]),
        "same as ar, %": lambda r: f"{100 * r['same_as_ar']:.0f}",
        "similarity (less ar's)": lambda r: f"{r['similarity']:.3f}" + _beside(r),
        "forwards a line": _text("{forwards:.1f}"),
        "tokens a forward": lambda r: _range(r["tokens_per_forward"], r["tokens_per_forward_interval"]),
        "produced a forward": _text("{produced_per_forward:.2f}"),
        "tokens a second": _text("{tokens_per_second:.0f}"),
        "characters a second": _text("{characters_per_second:.0f}"),
    }
    return (
        "## Next-line completion\n\n"
        + _table(columns, task["rows"])
        + f"\n\nIn brackets: 95% intervals (Wilson; paired, Agresti and Min; over documents). Up to "
        f"{task['shown_tokens']} tokens are shown before a line. Forwards until the line and its break are final; "
        "`produced` counts all tokens of text committed by then, in the line or not. Prefill is left out, "
        f"{task['prefill_seconds']:.3f} s a line.\n\n"
        "Most tokens a forward, of the settings run on all lines, "
        f"with a difference to ar whose interval begins at -{100 * task['margin']:g}% or above: "
        f"{task['best_within_margin'] or 'none'}; "
        f"no worse than ar in exact lines and similarity: {task['best_no_worse'] or 'none'}."
    )


def _beside(row: dict[str, Any]) -> str:
    """A setting's similarity less that of ar; nothing for ar itself, or where it is not known how sure it is."""
    interval = row["similarity_difference_interval"]
    if row["mode"] == "ar" or interval is None:
        return ""
    return f" ({row['similarity_difference']:+.3f} [{interval[0]:+.3f}, {interval[1]:+.3f}])"


def _steps(task: dict[str, Any]) -> str:
    columns: dict[str, Column] = {
        "text, temperature": lambda q: (
            f"{q['layout']}, {q['length']} tokens" + ("" if q["temperature"] is None else f", {q['temperature']:g}")
        ),
        "steps": lambda q: "" if q["steps"] is None else str(q["steps"]),
        "texts": _text("{num}"),
        "nats a token": lambda q: "" if q["nats"] is None else f"{q['nats']:.2f} ± {q['nats_stderr']:.2f}",
        "unigram entropy": _text("{entropy:.2f} ± {entropy_stderr:.2f}"),
        "parses by half, %": _percent("parses"),
        "forwards": _text("{forwards:.1f}"),
        "seconds": _text("{seconds:.2f}"),
    }
    text = "## Steps\n\n" + _table(columns, task["texts"])
    text += (
        "\n\n`nats a token`: of the text under the model's own autoregressive law; to be read with the entropy of its "
        "tokens (nats), since repetition is likely and noise is varied. ±: standard errors."
    )
    return text + ("\n\nA held-out span in its place:\n\n" + _spans(task["spans"]) if task["spans"] else "")


def _spans(outcomes: Sequence[dict[str, Any]]) -> str:
    columns: dict[str, Column] = {
        "tokens, method": _text("{length}, {method}"),
        "spans": _text("{num}"),
        "exact, %": _percent("exact"),
        "tokens right, %": lambda o: _share(o["token_accuracy"], o["token_interval"]),
        "forwards": _text("{forwards:.1f}"),
        "seconds a span": _text("{seconds:.3f}"),
    }
    return _table(columns, outcomes)


def _correction(task: dict[str, Any]) -> str:
    rows = task["rows"]
    thresholds = sorted({row["threshold"] for row in rows})
    curves: dict[str, dict[float, str]] = {}
    for row in rows:
        fixed = "" if row["fixed"] is None else f"{100 * row['fixed']:.0f} / "
        curves.setdefault(_revised(row), {})[row["threshold"]] = f"{fixed}{100 * row['broken']:.1f}"
    curve = [[name, *(cells.get(threshold, "") for threshold in thresholds)] for name, cells in curves.items()]
    best = [rows[place] for place in task["best"].values() if place is not None]
    columns: dict[str, Column] = {
        "wrong tokens, read, replaced": _revised,
        "threshold": _text("{threshold:g}"),
        "lines": _text("{num}"),
        "wrong, %": _percent("wrong_rate"),
        "fixed, %": _percent("fixed"),
        "broken, %": _percent("broken"),
        "refilled, %": _percent("refilled"),
        "lines exact, %": _percent("exact"),
        "forwards": _text("{forwards:.1f}"),
    }
    return (
        "## Correction\n\nWrong tokens fixed, % / right tokens broken, %, by the least probability of a replacement; "
        f"in up to {task['rounds']} rounds, all tokens at once or one a round. `shown`: one forward reads all tokens; "
        "`masked`: a forward for each, with that one masked:\n\n"
        + table(["wrong tokens, read, replaced", *(f"{threshold:g}" for threshold in thresholds)], curve)
        + f"\n\nMost fixed with at most {100 * task['most_broken']:g}% broken; `refilled`: right when only the wrong "
        "tokens are masked and filled in one forward:\n\n"
        + _table(columns, best)
        + (f"\n\n{task['left_out']} lines are too long for the model." if task["left_out"] else "")
    )


def _revised(row: dict[str, Any]) -> str:
    """What was wrong with lines, and how they were revised, but for the threshold."""
    return f"{row['kind']}, {100 * row['rate']:g}%, {row['reading']}, {row['order']}"


def _edit(task: dict[str, Any]) -> str:
    columns = {
        "spans written anew": _text("{spans}, strength {strength:g}"),
        "edits": _text("{num}"),
        "bytes changed outside": _text("{changed}"),
        "parses, %": _percent("parses"),
        "as it was, %": _percent("equal"),
        "forwards": _text("{forwards:.1f}"),
        "seconds an edit": _text("{seconds:.3f}"),
    }
    return (
        f"## Edits\n\nRandom spans of passages of up to {task['most_tokens']} tokens that are Python by themselves. In "
        "brackets: 95% intervals (Wilson).\n\n" + _table(columns, task["outcomes"])
    )


def _constrained(task: dict[str, Any]) -> str:
    columns: dict[str, Column] = {
        "type, method": _text("{kind}, {method}"),
        "places": _text("{num}"),
        "exact, %": _percent("exact"),
        "constrained is ahead by, %": lambda o: (
            "" if o["method"] == "constrained" else _difference(o["exact_difference"], o["exact_difference_interval"])
        ),
        "begins with it, %": _percent("begins"),
        "of the type, %": _percent("valid"),
        "file parses, %": _percent("parses"),
        "forwards": _text("{forwards:.1f}"),
        "seconds": _text("{seconds:.3f}"),
    }
    compiled = ", ".join(f"{kind} {seconds:.2f} s" for kind, seconds in task["compile_seconds"].items())
    return (
        "## Constrained and unconstrained\n\n"
        + _table(columns, task["outcomes"])
        + "\n\nIn brackets: 95% intervals (Wilson; differences in pairs, Agresti and Min). `free` and `healed` are "
        f"told no type; `healed` is the default of `infill`. A gap of {task['gap_tokens']} tokens, up to "
        f"{task['shown_tokens'][0]} shown before it and {task['shown_tokens'][1]} after. Seconds without compiling the "
        f"patterns ({compiled})."
    )


def _speculation(task: dict[str, Any]) -> str:
    columns = {
        "temperature": _text("{temperature:g}"),
        "same tokens as ar": _text("{identical} of {prompts}"),
        "tokens a forward": _text("{tokens_per_forward:.2f}"),
        "rows a forward": _text("{rows_per_forward:.1f}"),
        "accepted": _text("{accepted} of {drafted}"),
        "times as fast as ar": _text("{speedup:.2f}"),
    }
    text = f"## Speculation\n\n{task['new_tokens']} tokens a prompt, the modes in turn.\n\n"
    return text + _table(columns, task["outcomes"])


def _deadline(task: dict[str, Any]) -> str:
    deadlines = sorted({row["forwards"] for row in task["rows"]})
    rows: dict[tuple[str, str], list[str]] = {}
    for row in task["rows"]:
        cell = f"{100 * row['token_accuracy']:.1f} / {100 * row['filled']:.0f}"
        rows.setdefault((row["task"], row["way"]), []).append(cell)
    alone = ", ".join(
        f"{name} {num:.1f} ({1000 * task['seconds_per_forward'][name]:.1f} ms each)"
        for name, num in task["unhurried"].items()
    )
    return (
        f"## Deadline\n\nSpans of {task['length']} tokens, length known: tokens right / filled, %, by the forwards "
        "that there is time for. `hurried`: with a timeout, for which more is committed at once; `cut`: what "
        "stands by then without one.\n\n"
        + table(["", *(str(most) for most in deadlines)], [[f"{a}, {b}", *cells] for (a, b), cells in rows.items()])
        + f"\n\nForwards without a deadline: {alone}."
    )


def _decide(task: dict[str, Any]) -> str:
    answers = [
        f | {"kind": o["kind"], "is_majority": f is o["majority"]}
        for o in task["outcomes"]
        for f in (o["majority"], *o["figures"])
    ]
    columns: dict[str, Column] = {
        "questions, answered by": _text("{kind}, {way}"),
        "right, %": lambda f: _share(f["accuracy"], None),
        "less majority's, %": lambda f: (
            "" if f["is_majority"] else _difference(f["difference"], f["difference_interval"] or (-1, 1))
        ),
        "calibration error": _text("{calibration_error:.3f}"),
        "Brier": _text("{brier:.3f}"),
        "nats": lambda f: _optional(f["nats"], 3),
    }
    facts = {
        "questions": _text("{kind}"),
        "labels": _text("{labels}"),
        "tested, documents": _text("{num} from {documents}"),
        "fitted to": _text("{fitted}"),
        "majority": _text("`{majority_label}`"),
        "temperature": _text("{temperature:.2f}"),
        "decisions a second": _text("{decisions_per_second:.1f}"),
        "rows a decision": _text("{rows:.0f}"),
    }
    left_out = f"\n\nNot asked, for want of questions: {', '.join(task['left_out'])}." if task["left_out"] else ""
    return (
        "## Decisions\n\n"
        + _table(columns, answers)
        + "\n\nIn brackets: 95% intervals over documents. Calibration error: 15 bins of equal mass. Temperatures, "
        "biases and the majority, whose probabilities are its shares, are of other documents than the figures.\n\n"
        + _table(facts, task["outcomes"])
        + f"\n\nOne question a call, one forward each, with {task['shown_tokens']} tokens of text above it. `name`: "
        "the majority is by nearness, 0 the nearest." + left_out
    )


WRITERS: dict[str, Callable[[Any], str]] = {
    "bits": _bits,
    "infill": _infill,
    "draft": _draft,
    "completion": _completion,
    "steps": _steps,
    "tokens": lambda task: "## Token spans, true length\n\n" + _spans(task["outcomes"]),
    "correction": _correction,
    "edit": _edit,
    "constrained": _constrained,
    "speculation": _speculation,
    "deadline": _deadline,
    "decide": _decide,
}


def _measured_with(report: dict[str, Any]) -> str:
    machine, settings = report["machine"], report["settings"]
    seconds = ", ".join(f"{name} {value:.0f} s" for name, value in report["seconds"].items())
    execution = report["model"].get("execution")
    how = f", decoded by {execution} execution" if execution else ""
    return (
        f"Measured on {machine['processor']} ({machine['device']}, {machine['threads']} threads of {machine['cores']} "
        f"cores), {report['model']['dtype']}{how}, Python {machine['python']}, torch {machine['torch']}, "
        f"daguerre {machine['daguerre']} (commit {machine['commit'] or 'unknown'}), seed {settings['seed']}, "
        f"{_processes(settings['workers'])}; {seconds}."
    )


def _processes(workers: int) -> str:
    return "one process" if workers == 1 else f"examples in {workers} processes of one thread"


def layout_name(layout: str) -> str:
    """A layout of `bits` in words."""
    if layout.startswith(CHAIN):
        return f"{layout_name(layout.removeprefix(CHAIN))}, left to right"
    return f"spans of {layout}" if layout.isdecimal() else layout


def _optional(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _share(share: float, interval: Sequence[float] | None) -> str:
    return f"{100 * share:.1f}" + ("" if interval is None else f" [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]")


def _difference(value: float, interval: Sequence[float]) -> str:
    return f"{100 * value:+.1f} [{100 * interval[0]:+.1f}, {100 * interval[1]:+.1f}]"


def _range(value: float, interval: Sequence[float] | None) -> str:
    return f"{value:.2f}" + ("" if interval is None else f" [{interval[0]:.2f}, {interval[1]:.2f}]")
