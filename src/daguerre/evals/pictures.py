"""Pictures of a report of `harness.evaluate`: one PNG for each task that has one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from daguerre.evals.bits import NUM_BUCKETS
from daguerre.evals.concepts.pictures import draw_concepts
from daguerre.evals.deadline import METHODS
from daguerre.evals.parallelism import curves, report_rows
from daguerre.evals.tables import layout_name, plus_minus
from daguerre.view.charts import (
    BLACK,
    BLUE,
    COLORS,
    GRAY,
    MARKERS,
    ORANGE,
    RED,
    SIZE,
    SKY,
    by_powers,
    draw_parts,
    legend_below,
    legend_beside,
    legend_of_figure,
    reach,
    titled,
)  # fmt: skip

ALONE = {"ar": "*", "truth": "D"}
"""Markers of texts that have no number of steps."""


def draw_pictures(report: dict[str, Any], path: str | os.PathLike[str]) -> list[Path]:
    """Draw the pictures of `report` beside its JSON file at `path`, and return their paths: NAME-bits.png, and so on.

    The picture of a file that is named after its task, such as NAME-bits.json, has the same name. MissingExtra without
    matplotlib.
    """
    return draw_parts(report, Path(path), PICTURES)


def _bits(figure: Any, report: dict[str, Any]) -> None:
    """Bits per byte by position in the context, a line for each layout; bounds are dashed, chains dotted."""
    title = "Bits per byte by position in the context"
    panel = titled(figure.subplots(), title, "position in the context, tokens", "bits per byte")
    context = report["model"]["max_positions"] - 1
    for layout, color, marker in zip(report["bits"], COLORS, MARKERS, strict=False):
        points = [
            ((i + 0.5) * context / NUM_BUCKETS, value)
            for i, value in enumerate(layout["by_position"])
            if value is not None
        ]
        style = "-" if layout["layout"] == "ar" else ":" if layout["exact"] else "--"
        kind = "" if layout["exact"] else ", bound"
        name = f"{layout_name(layout['layout'])}{kind}: {layout['value']:.3f}"
        panel.plot(*zip(*points, strict=True), style, marker=marker, markersize=5, color=color, label=name)
    panel.set_xlim(0, context)
    legend_beside(panel, "all positions")


def _draft(figure: Any, report: dict[str, Any]) -> None:
    """Draft match by position, with standard errors, and the share of drafts that match up to it."""
    task = report["draft"]
    accepted = f"{task['accepted_a_cycle']:.2f}{plus_minus(task['accepted_stderr'])}"
    title = f"One-shot drafts: {accepted} tokens accepted per cycle, bonus token included"
    panel = titled(figure.subplots(), title, "position in the draft", f"share of {task['prompts']} prompts")
    position = range(1, len(task["match_by_position"]) + 1)
    errors = [value or 0.0 for value in task["match_stderr"]]
    panel.errorbar(
        position,
        task["match_by_position"],
        errors,
        fmt="o-",
        color=BLUE,
        markersize=5,
        capsize=2,
        label="this position is equal",
    )
    panel.plot(
        position,
        task["accepted_by_position"],
        "s--",
        color=RED,
        markersize=4,
        label="all positions up to this one are equal",
    )
    panel.set_xticks(position)
    panel.set_ylim(0, 1)
    legend_below(panel, title="equal to the model's greedy text (bars: standard error)")


def _completion(figure: Any, report: dict[str, Any]) -> None:
    """Tokens per forward, and what they cost: every setting's similarity, and below it the curves of parallelism."""
    figure.set_size_inches(SIZE[0], 1.8 * SIZE[1])
    panels = figure.subplot_mosaic([["settings", "settings"], ["same_as_ar", "exact"]], height_ratios=(1, 0.8))
    _settings(panels.pop("settings"), report)
    _parallelism(panels, report["completion"])


def _settings(panel: Any, report: dict[str, Any]) -> None:
    """Tokens per forward and similarity lost: a color for each block size and policy, a marker for each threshold.

    A small model has too few exact lines to show differences between settings.
    """
    (ar,) = (row for row in report["completion"]["rows"] if row["mode"] == "ar")
    rows = [row for row in report["completion"]["rows"] if row is not ar]
    title = "Next-line completion: tokens per forward, and what they cost (bars: 95%)"
    titled(panel, title, "tokens per forward", "similarity to the true line, less that of ar")
    panel.axhline(0, color=GRAY, linewidth=0.8)
    panel.plot(
        [ar["tokens_per_forward"]], [0], "*", color=BLACK, markersize=13, label=f"ar: similarity {ar['similarity']:.2f}"
    )
    levels = sorted({row["threshold"] for row in rows if row["threshold"] is not None})
    marker_of: dict[float | None, str] = dict(zip(levels, MARKERS, strict=False)) | {None: "x"}
    kinds = sorted({(row["policy"] == "chain", row["block_size"]) for row in rows})
    for (chained, size), color in zip(kinds, COLORS[1:], strict=False):
        some = [row for row in rows if (row["policy"] == "chain", row["block_size"]) == (chained, size)]
        some.sort(key=lambda row: row["tokens_per_forward"])
        by_threshold = [row for row in some if row["threshold"] is not None]
        name = f"blocks of {size}, chain" if chained else f"blocks of {size}"
        panel.plot(*_differences(by_threshold)[:2], "--" if chained else "-", color=color, linewidth=1, label=name)
        panel.errorbar(*_differences(some), fmt="none", ecolor=color, elinewidth=0.7, capsize=2)
        for row in some:
            panel.plot(*_differences([row])[:2], marker_of[row["threshold"]], color=color, markersize=6)
    for level, marker in marker_of.items():
        name = "fixed number of steps" if level is None else f"threshold {level:g}"
        panel.plot([], [], marker, color=GRAY, label=name)
    legend_beside(panel, None)


def _differences(rows: Sequence[dict[str, Any]]) -> tuple[list[float], list[float], list[list[float]]]:
    """Tokens per forward, difference to `ar` in similarity, and how far its interval extends below and above."""
    ys = [row["similarity_difference"] for row in rows]
    ends = reach(ys, [row["similarity_difference_interval"] for row in rows])
    return [row["tokens_per_forward"] for row in rows], ys, ends


def _parallelism(panels: dict[str, Any], task: dict[str, Any]) -> None:
    """Percent of lines over tokens per forward: a curve for each policy on all lines, a dotted one on the grid's."""
    found = [curve for curve in curves(report_rows(task)) if curve.policy is not None]
    policies = sorted({str(curve.policy) for curve in found})
    looks = dict(zip(policies, zip(COLORS[1:], MARKERS, strict=False), strict=False))
    (ar,) = (row for row in task["rows"] if row["mode"] == "ar")
    shares = {"same_as_ar": ("Same line as ar", ar["same_as_ar"]), "exact": ("Exact lines", ar["accuracy"])}
    for name, (title, share_of_ar) in shares.items():
        panel = titled(panels[name], title, "tokens per forward", "percent of the lines")
        for curve in found:
            (color, marker), whole = looks[str(curve.policy)], curve.num == ar["num"]
            panel.plot(
                *zip(*getattr(curve, name).points, strict=True),
                marker + ("-" if whole else ":"),
                color=color,
                markersize=5,
                markerfacecolor=color if whole else "white",
                clip_on=False,
                label=f"{curve.policy}, {curve.num} lines",
            )
        panel.plot([ar["tokens_per_forward"]], [100 * share_of_ar], "*", color=BLACK, markersize=13, label="ar")
        panel.set_ylim(bottom=0)
    legend_beside(panels["exact"], "upper envelopes")


def _steps(figure: Any, report: dict[str, Any]) -> None:
    """The cost of few forwards: right tokens of held-out spans, and likelihood and entropy of free text."""
    spans = report["steps"]["spans"]
    texts = [text for text in report["steps"]["texts"] if text["nats"] is not None]
    draws = [(_span_steps, spans)] * bool(spans) + [(_text_steps, texts)] * bool(texts)
    if draws:
        for panel, (draw, rows) in zip(figure.subplots(1, len(draws), squeeze=False)[0], draws, strict=True):
            draw(panel, rows)


def _span_steps(panel: Any, rows: Sequence[dict[str, Any]]) -> None:
    title = f"Held-out spans of {rows[0]['length']} tokens"
    titled(panel, title, "forwards", f"percent, of {rows[0]['num']} spans or their tokens")
    xs = [row["forwards"] for row in rows]
    for name, what, color, marker in (("token", "tokens right", BLUE, "o"), ("exact", "spans exact", RED, "s")):
        share = [100 * row["token_accuracy" if name == "token" else name] for row in rows]
        errors = reach(share, [row[f"{name}_interval"] for row in rows], 100)
        panel.errorbar(xs, share, errors, fmt=f"{marker}-", color=color, markersize=5, capsize=2, label=what)
    by_powers(panel, xs)
    panel.set_ylim(bottom=0)
    legend_below(panel, title="bars: 95%")


def _text_steps(panel: Any, rows: Sequence[dict[str, Any]]) -> None:
    """The plane of likelihood and entropy: a curve over steps for each length and temperature, its ends labeled."""
    titled(panel, "Free text", "unigram entropy, nats", "nats per token, autoregressive")
    color_of = dict(zip(sorted({row["length"] for row in rows}, reverse=True), (BLUE, RED), strict=False))
    ends: dict[int, list[dict[str, Any]]] = {}
    for kind in dict.fromkeys((row["layout"], row["length"], row["temperature"]) for row in rows):
        some = [row for row in rows if (row["layout"], row["length"], row["temperature"]) == kind]
        layout, length, temperature = kind
        color, fill = color_of[length], "white" if temperature else color_of[length]
        points = [row["entropy"] for row in some], [row["nats"] for row in some]
        if layout in ALONE:
            panel.plot(*points, ALONE[layout], color=color, markersize=10, markerfacecolor=fill, zorder=3)
            continue
        panel.plot(*points, "o-", color=color, markersize=4, markerfacecolor=fill)
        ends.setdefault(length, []).extend((some[0], some[-1]))
    _label_ends(panel, ends, color_of)
    for length, color in color_of.items():
        layout = next(row["layout"] for row in rows if row["length"] == length)
        panel.plot([], [], "o-", color=color, markersize=4, label=f"{layout} of {length} tokens, by steps")
    for name, marker in ALONE.items():
        panel.plot([], [], marker, color=GRAY, label=name)
    panel.plot([], [], "o", color=GRAY, markerfacecolor="white", label="hollow: temperature 1")
    legend_below(panel)


def _apart(one: dict[str, Any], other: dict[str, Any]) -> float:
    """How far two texts are from each other in the plane of likelihood and entropy."""
    return float(abs(one["entropy"] - other["entropy"]) + abs(one["nats"] - other["nats"]))


def _label_ends(panel: Any, ends: dict[int, list[dict[str, Any]]], color_of: dict[int, str]) -> None:
    """The steps at both ends of each curve, on the side that is away from the nearest end of a curve of other color."""
    panel.margins(x=0.12)
    for length, rows in ends.items():
        others = [row for other, some in ends.items() if other != length for row in some]
        for row in rows:
            near = min(others, key=partial(_apart, row), default=row)
            left = row["entropy"] < near["entropy"]
            panel.annotate(f"{row['steps']}", (row["entropy"], row["nats"]), (-6 if left else 6, 0), va="center",
                           ha="right" if left else "left", textcoords="offset points", fontsize=8,
                           color=color_of[length])  # fmt: skip


def _deadline(figure: Any, report: dict[str, Any]) -> None:
    """Tokens right by the number of forwards in the time given, a panel for each task; tokens filled are dotted."""
    task = report["deadline"]
    names = list(task["unhurried"])
    panels = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
    for panel, name in zip(panels, names, strict=True):
        some = [row for row in task["rows"] if row["task"] == name]
        title = f"{name.capitalize()} of {task['length']} tokens"
        titled(panel, title, "forwards in the time given", f"percent of the tokens, {some[0]['num']} spans")
        for (method, words), color, marker in zip(METHODS.items(), (BLUE, RED), "os", strict=True):
            rows = [row for row in some if row["way"] == method]
            xs, right = [row["forwards"] for row in rows], [100 * row["token_accuracy"] for row in rows]
            ends = reach(right, [row["token_interval"] for row in rows], 100)
            style = {"color": color, "label": f"right, {words}"}
            panel.errorbar(xs, right, ends, fmt=f"{marker}-", markersize=5, capsize=2, **style)
            filled = [100 * row["filled"] for row in rows]
            panel.plot(xs, filled, f"{marker}:", color=color, markersize=3, linewidth=1, label=f"filled, {words}")
        panel.axvline(
            task["unhurried"][name], color=GRAY, linewidth=0.8, linestyle="--", label="forwards without a deadline"
        )
        by_powers(panel, [x for x in sorted({row["forwards"] for row in some}) if x & (x - 1) == 0])
        panel.set_ylim(0, 103)
    legend_of_figure(figure, panels[0], 3)


def _constrained(figure: Any, report: dict[str, Any]) -> None:
    """Exact texts and seconds by type, with the type as a constraint and without; bars are of 95%."""
    outcomes = report["constrained"]["outcomes"]
    kinds, methods = (list(dict.fromkeys(o[name] for o in outcomes)) for name in ("kind", "method"))
    exact, seconds = figure.subplots(1, 2)
    titled(exact, "Literals and arguments filled in", "", "exact, percent")
    titled(seconds, "Time", "", "seconds per gap")
    width = 0.8 / len(methods)
    for index, (method, color) in enumerate(zip(methods, (BLUE, ORANGE, SKY), strict=True)):
        some = [o for o in outcomes if o["method"] == method]
        places = [kinds.index(o["kind"]) + (index - (len(methods) - 1) / 2) * width for o in some]
        shares = [100 * o["exact"] for o in some]
        ends = reach(shares, [o["exact_interval"] for o in some], 100)
        exact.bar(
            places, shares, width, color=color, yerr=ends, error_kw={"elinewidth": 0.8, "capsize": 2}, label=method
        )
        exact.plot(places, [100 * o["begins"] for o in some], "D", color=BLACK, markerfacecolor="none", markersize=5)
        seconds.bar(places, [o["seconds"] for o in some], width, color=color)
    for panel in (exact, seconds):
        panel.set_xticks(range(len(kinds)), kinds, rotation=20)
        panel.grid(visible=False, axis="x")
    exact.plot([], [], "D", color=BLACK, markerfacecolor="none", markersize=5, label="begins with it")
    figure.legend(loc="outside lower center", frameon=False, fontsize=9, ncols=len(methods) + 1)


def _decide(figure: Any, report: dict[str, Any]) -> None:
    """Reliability: the share right by the answers' probability, before calibration and after, a panel for each kind."""
    outcomes = report["decide"]["outcomes"]
    down = -(-len(outcomes) // 3)
    figure.set_size_inches(SIZE[0], 3.7 * down)
    panels = figure.subplots(down, 3, squeeze=False).ravel()
    for panel, outcome in zip(panels, outcomes, strict=False):
        before, after = outcome["figures"][0], outcome["figures"][-1]
        title = f"{outcome['kind']}: {outcome['num']} of {outcome['labels']} labels"
        titled(panel, title, "probability", "share right", 10)
        panel.plot([0, 1], [0, 1], "-", color=GRAY, linewidth=0.8)
        for figures, color, marker in ((before, RED, "s"), (after, BLUE, "o")):
            error = f"{figures['way']}: {figures['calibration_error']:.3f}"
            points = [[each[name] for each in figures["bins"]] for name in ("confidence", "accuracy")]
            panel.plot(*points, f"{marker}-", color=color, markersize=3.5, linewidth=1, label=error)
        panel.axhline(
            outcome["majority"]["accuracy"], color=BLACK, linestyle=":", linewidth=0.9, label="always the majority"
        )
        panel.set_xlim(0, 1)
        panel.set_ylim(0, 1.02)
        legend_below(panel, ncols=1)
    for panel in panels[len(outcomes) :]:
        panel.remove()


PICTURES: dict[str, Callable[[Any, dict[str, Any]], None]] = {
    "bits": _bits,
    "draft": _draft,
    "completion": _completion,
    "steps": _steps,
    "deadline": _deadline,
    "constrained": _constrained,
    "decide": _decide,
    "concepts": draw_concepts,
}
