"""Sections of a report of `harness.evaluate` in Markdown, one for each task: tables, and what their columns are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from daguerre.evals.concepts.report import concepts_section
from daguerre.evals.deadline import METHODS
from daguerre.evals.infilling import ENDED, NOVEL
from daguerre.evals.parallelism import parallelism_section
from daguerre.evals.speculation_section import speculation_section
from daguerre.evals.tables import (
    Column,
    Row,
    bracketed,
    counted,
    difference,
    layout_name,
    optional,
    percent,
    plus_minus,
    ratio,
    share,
    table,
    table_of,
    text,
)
from daguerre.evals.teaching.section import teacher_section


def _bits(figures: Sequence[Row]) -> str:
    columns: dict[str, Column] = {
        "layout": lambda f: layout_name(f["layout"]),
        "": lambda f: "exact" if f["exact"] else f"bound, {f['samples']} draws",
        "bits per byte": text("{value:.4f}"),
        "standard error": lambda f: "" if f["exact"] and not f["stderr"] else f"{f['stderr']:.4f}",
        "over texts": lambda f: optional(f["text_stderr"], 4),
        "ratio to `ar`": lambda f: optional(f["ratio"], 3),
        "windows scored": text("{num_scored} of {num_windows}"),
    }
    eighths = ["layout", *(f"{i}/8" for i in range(1, len(figures[0]["by_position"]) + 1))]
    positions = [[layout_name(f["layout"]), *(optional(v, 3) for v in f["by_position"])] for f in figures]
    return (
        "## Bits per byte\n\n"
        + table_of(columns, figures)
        + "\n\nEvery figure is for all windows. Where only some were scored, it is estimated by regression on the "
        "exact score of `ar`; the mean of the scored windows alone is `direct` in the JSON file. `left to right`: "
        "spans are revealed in that order, one token per forward; this is a likelihood, not a bound. `standard "
        "error`: of the figure for these documents, from random masks and from the choice of windows. `over texts`: "
        "how much the figure would vary over other documents like these.\n\nBy position in the context:\n\n"
        + table(eighths, positions)
    )


def _infill(task: Row) -> str:
    columns = {
        "method": text("{method}, {length} length"),
        "lines": text("{num}"),
        "exact, %": percent("exact"),
        "first line exact, %": percent("exact_line"),
        "file parses, %": percent("parses"),
        "similarity": text("{similarity:.3f}"),
        "seconds per line": text("{seconds:.2f}"),
    }
    pairs: dict[str, Column] = {
        "methods compared": text("{method} vs. {against}; {length} length"),
        "only the first exact": text("{only_first}"),
        "only the second exact": text("{only_second}"),
        "difference, %": lambda c: f"{100 * c['difference']:+.1f} ± {100 * c['difference_stderr']:.1f}",
        "p (McNemar)": text("{p_value:.2g}"),
    }
    methods = {outcome["method"] for outcome in task["outcomes"]}
    before, after = task["shown_tokens"]
    notes = [
        "In brackets: 95% intervals (Wilson).",
        f"Up to {before} tokens are shown before the line and {after} after it.",
        f"Unknown length: a gap of {task['unknown_length']} tokens, and the first line break ends the text"
        + (f", except in `{ENDED}`." if ENDED in methods else "."),
        "`copy` repeats the nearest line above; `ar` does not see the text after the line.",
    ]
    if NOVEL in methods:
        notes.append(
            f"`{NOVEL}` never repeats a line that is shown. The missing lines are chosen so that they occur nowhere "
            "in the text shown, and only this method uses that fact."
        )
    return (
        f"## Line infilling\n\n{table_of(columns, task['outcomes'])}\n\n{' '.join(notes)}\n\n"
        f"{table_of(pairs, task['comparisons'])}"
    )


def _draft(task: Row) -> str:
    rows = [
        ["equal", *(f"{value:.2f}" for value in task["match_by_position"])],
        ["standard error", *(optional(error, 3) for error in task["match_stderr"])],
        ["equal up to here", *(f"{value:.2f}" for value in task["accepted_by_position"])],
    ]
    numbers = (str(i) for i in range(1, len(task["match_by_position"]) + 1))
    return (
        "## Drafts\n\nOne-shot drafts compared with the model's own greedy text: "
        f"{counted(task['prompts'], 'prompt')} from {counted(task['documents'], 'document')}. "
        f"{task['accepted_a_cycle']:.2f}{plus_minus(task['accepted_stderr'])} tokens would be accepted per cycle, "
        "bonus token included.\n\n" + table(["position", *numbers], rows)
    )


def _completion(task: Row) -> str:
    columns: dict[str, Column] = {
        "setting": text("{label}"),
        "lines": text("{num}"),
        "exact, %": percent("accuracy"),
        "difference to ar, %": lambda r: "" if _is_ar(r) else difference(r["difference"], r["difference_interval"]),
        "same as ar, %": lambda r: f"{100 * r['same_as_ar']:.0f}",
        "similarity (difference to ar)": lambda r: f"{r['similarity']:.3f}{_similarity_difference(r)}",
        "forwards per line": text("{forwards:.1f}"),
        "tokens per forward": lambda r: ratio(r["tokens_per_forward"], r["tokens_per_forward_interval"]),
        "produced per forward": text("{produced_per_forward:.2f}"),
        "tokens per second": text("{tokens_per_second:.0f}"),
        "characters per second": text("{characters_per_second:.0f}"),
    }
    return (
        "## Next-line completion\n\n"
        + table_of(columns, task["rows"])
        + "\n\nIn brackets: 95% intervals (Wilson; for paired differences Agresti and Min; for ratios over "
        f"documents). Up to {task['shown_tokens']} tokens are shown before a line. Forwards are counted until the "
        "line and its break are final; `produced` counts all tokens of text that are committed by then, also those "
        f"behind the line. The prefill, {task['prefill_seconds']:.3f} s per line, is not counted.\n\nOf the "
        "settings run on all lines, the one with the most tokens per forward that is no worse than ar in exact lines "
        f"and similarity: {task['best_no_worse'] or 'none'}. The one whose difference to ar has an interval that "
        f"begins at -{100 * task['margin']:g}% or above: {task['best_within_margin'] or 'none'}.\n\n"
        + parallelism_section(task)
    )


def _is_ar(row: Row) -> bool:
    return bool(row["label"] == "ar")


def _similarity_difference(row: Row) -> str:
    """A setting's similarity less that of ar; nothing for ar itself, or where its interval is not known."""
    interval = row["similarity_difference_interval"]
    if _is_ar(row) or interval is None:
        return ""
    return f" ({bracketed(row['similarity_difference'], interval, '+.3f')})"


def _steps(task: Row) -> str:
    columns: dict[str, Column] = {
        "text, temperature": lambda q: (
            f"{q['layout']}, {q['length']} tokens" + ("" if q["temperature"] is None else f", {q['temperature']:g}")
        ),
        "steps": lambda q: optional(q["steps"], 0),
        "texts": text("{num}"),
        "nats per token": lambda q: optional(q["nats"], 2) + plus_minus(q["nats_stderr"]),
        "unigram entropy": text("{entropy:.2f} ± {entropy_stderr:.2f}"),
        "parses by half, %": percent("parses"),
        "forwards": text("{forwards:.1f}"),
        "seconds": text("{seconds:.2f}"),
    }
    section = (
        "## Steps\n\n" + table_of(columns, task["texts"]) + "\n\n`nats per token`: of the text under the model's own "
        "autoregressive distribution. Read it together with the entropy of the text's tokens (nats): repetitive "
        "text is likely, and noise is varied. `truth`: the document's text. ±: standard errors."
    )
    return section + ("\n\nHeld-out spans of tokens, in place:\n\n" + _spans(task["spans"]) if task["spans"] else "")


def _spans(outcomes: Sequence[Row]) -> str:
    columns: dict[str, Column] = {
        "tokens, method": text("{length}, {method}"),
        "spans": text("{num}"),
        "exact, %": percent("exact"),
        "tokens right, %": lambda o: share(o["token_accuracy"], o["token_interval"]),
        "forwards": text("{forwards:.1f}"),
        "seconds per span": text("{seconds:.3f}"),
    }
    return table_of(columns, outcomes)


def _tokens(task: Row) -> str:
    return f"## Token spans of known length\n\n{_spans(task['outcomes'])}\n\nIn brackets: 95% intervals."


def _correction(task: Row) -> str:
    rows, first = task["rows"], "wrong tokens, reading, order"
    thresholds = sorted({row["threshold"] for row in rows})
    curves: dict[str, dict[float, str]] = {}
    for row in rows:
        fixed = "" if row["fixed"] is None else f"{100 * row['fixed']:.0f} / "
        curves.setdefault(_revision(row), {})[row["threshold"]] = f"{fixed}{100 * row['broken']:.1f}"
    curve = [[name, *(cells.get(threshold, "") for threshold in thresholds)] for name, cells in curves.items()]
    best = [rows[place] for place in task["best"].values() if place is not None]
    columns: dict[str, Column] = {
        first: _revision,
        "threshold": text("{threshold:g}"),
        "lines": text("{num}"),
        "wrong, %": percent("wrong_rate"),
        "fixed, %": percent("fixed"),
        "broken, %": percent("broken"),
        "refilled, %": percent("refilled"),
        "lines exact, %": percent("exact"),
        "forwards": text("{forwards:.1f}"),
    }
    return (
        "## Correction\n\nWrong tokens that were fixed, % / right tokens that were broken, %, by the minimum "
        f"probability of a replacement. Up to {task['rounds']} rounds; each replaces every token that qualifies "
        "(`all`) or only the one of highest gain (`one`). `unmasked`: one forward reads all tokens; `leave one "
        "out`: one forward per token, with that token masked.\n\n"
        + table([first, *(f"{threshold:g}" for threshold in thresholds)], curve)
        + f"\n\nThe settings that fix most and break at most {100 * task['most_broken']:g}%. `refilled`: right when "
        "only the wrong tokens are masked and filled in one forward.\n\n"
        + table_of(columns, best)
        + (f"\n\nLines too long for the model: {task['left_out']}." if task["left_out"] else "")
    )


def _revision(row: Row) -> str:
    """What was wrong with lines, and how they were revised, without the threshold."""
    return f"{row['kind']}, {100 * row['rate']:g}%, {row['reading'].replace('_', ' ')}, {row['order']}"


def _edit(task: Row) -> str:
    columns = {
        "spans rewritten": text("{spans}, strength {strength:g}"),
        "edits": text("{num}"),
        "bytes changed outside": text("{changed}"),
        "parses, %": percent("parses"),
        "same as the original, %": percent("equal"),
        "forwards": text("{forwards:.1f}"),
        "seconds per edit": text("{seconds:.3f}"),
    }
    return (
        f"## Edits\n\nRandom spans of passages of up to {task['most_tokens']} tokens, each a valid Python file. In "
        "brackets: 95% intervals (Wilson).\n\n" + table_of(columns, task["outcomes"])
    )


def _constrained(task: Row) -> str:
    columns: dict[str, Column] = {
        "type, method": text("{kind}, {method}"),
        "places": text("{num}"),
        "exact, %": percent("exact"),
        "constrained is better by, %": lambda o: (
            "" if o["method"] == "constrained" else difference(o["exact_difference"], o["exact_difference_interval"])
        ),
        "begins with it, %": percent("begins"),
        "of the right type, %": percent("valid"),
        "file parses, %": percent("parses"),
        "forwards": text("{forwards:.1f}"),
        "seconds": text("{seconds:.3f}"),
    }
    compiled = ", ".join(f"{kind} {seconds:.2f} s" for kind, seconds in task["compile_seconds"].items())
    return (
        "## Constrained and unconstrained\n\n"
        + table_of(columns, task["outcomes"])
        + "\n\nIn brackets: 95% intervals (Wilson; for paired differences Agresti and Min). Only `constrained` has "
        f"the type as a pattern; `healed` is the default of `infill`. A gap of {task['gap_tokens']} tokens, with up "
        f"to {task['shown_tokens'][0]} tokens shown before it and {task['shown_tokens'][1]} after. Seconds do not "
        f"include compiling the patterns ({compiled})."
    )


def _deadline(task: Row) -> str:
    limits = sorted({row["forwards"] for row in task["rows"]})
    rows: dict[str, list[str]] = {}
    for row in task["rows"]:
        cell = f"{100 * row['token_accuracy']:.1f} / {100 * row['filled']:.0f}"
        rows.setdefault(f"{row['task']}, {METHODS[row['way']]}", []).append(cell)
    alone = ", ".join(
        f"{name} {num:.1f} ({1000 * task['seconds_per_forward'][name]:.1f} ms each)"
        for name, num in task["unhurried"].items()
    )
    return (
        f"## Deadline\n\nSpans of {task['length']} tokens, their length known: tokens right, % / filled, %, by the "
        "number of forwards in the time given. `with a timeout`: the request commits more per forward, to be done "
        "in time; `cut off`: what a request without a timeout has committed by then.\n\n"
        + table(["", *map(str, limits)], [[name, *cells] for name, cells in rows.items()])
        + f"\n\nForwards without a deadline: {alone}."
    )


def _decide(task: Row) -> str:
    answers = [
        figures | {"kind": outcome["kind"], "is_majority": figures is outcome["majority"]}
        for outcome in task["outcomes"]
        for figures in (outcome["majority"], *outcome["figures"])
    ]
    columns: dict[str, Column] = {
        "questions, answered by": text("{kind}, {way}"),
        "right, %": lambda f: share(f["accuracy"], None),
        "difference to the majority, %": lambda f: (
            "" if f["is_majority"] else difference(f["difference"], f["difference_interval"] or (-1, 1))
        ),
        "calibration error": text("{calibration_error:.3f}"),
        "Brier": text("{brier:.3f}"),
        "nats": lambda f: optional(f["nats"], 3),
    }
    facts = {
        "questions": text("{kind}"),
        "labels": text("{labels}"),
        "tested on, documents": text("{num} from {documents}"),
        "fitted to": text("{fitted}"),
        "majority": text("`{majority_label}`"),
        "temperature": text("{temperature:.2f}"),
        "decisions per second": text("{decisions_per_second:.1f}"),
        "tokens computed": text("{rows:.0f}"),
    }
    left_out = f"\n\nLeft out, for lack of questions: {', '.join(task['left_out'])}." if task["left_out"] else ""
    return (
        "## Decisions\n\n"
        + table_of(columns, answers)
        + "\n\nIn brackets: 95% intervals over documents. Calibration error: 15 bins of equal size. Temperatures, "
        "biases and the majority label, whose probabilities are the shares of the labels, come from other documents "
        "than the figures.\n\n"
        + table_of(facts, task["outcomes"])
        + f"\n\nOne question per call and one forward each, with up to {task['shown_tokens']} tokens of text above "
        "it. The labels of `name` are numbered by nearness, 0 the nearest." + left_out
    )


def _instructions(task: Row) -> str:
    readings = {"strictly": "strict", "loosely": "loose"}
    rows = [
        [read, *(share(task[f"{name}_{unit}"]["share"], task[f"{name}_{unit}"]["interval"]) for unit in
                 ("prompts", "instructions"))]
        for read, name in readings.items()
    ]  # fmt: skip
    each = [[name, str(row["num"]), f"{100 * row['loose']:.0f}"] for name, row in task["by_instruction"].items()]
    left_out = f"{counted(task['left_out'], 'prompt')} that ask for a language (langdetect) were left out. "
    return (
        f"## Instructions\n\nIFEval, {counted(task['num'], 'prompt')}, greedy, at most {task['new_tokens']} tokens.\n\n"
        + table(["read", "prompts, %", "instructions, %"], rows)
        + "\n\nIn brackets: 95% intervals. "
        + (left_out if task["left_out"] else "")
        + f"{100 * task['ended']:.0f}% of the answers ended, after {task['tokens']:.0f} tokens on average, "
        f"{task['tokens_per_forward']:.2f} a forward; {100 * task['repetition']:.1f}% of runs of four words stand in "
        "their answer twice or more.\n\n" + table(["instruction", "number", "followed loosely, %"], each)
    )


SECTIONS: dict[str, Callable[[Any], str]] = {
    "bits": _bits,
    "infill": _infill,
    "draft": _draft,
    "completion": _completion,
    "steps": _steps,
    "tokens": _tokens,
    "correction": _correction,
    "edit": _edit,
    "constrained": _constrained,
    "speculation": speculation_section,
    "deadline": _deadline,
    "decide": _decide,
    "concepts": concepts_section,
    "instructions": _instructions,
    "teacher": teacher_section,
}
