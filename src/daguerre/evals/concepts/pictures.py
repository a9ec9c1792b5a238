"""Pictures of concepts: detection by masked share, concept by concept, shares of predictions, and steering."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from daguerre.evals.concepts.cases import CONDITIONS, OURS
from daguerre.evals.concepts.injection import COMMENT, STEERED
from daguerre.evals.concepts.suppression import CONSTRAINT, NONE, STEERING
from daguerre.view.charts import BLACK, BLUE, GRAY, GREEN, ORANGE, RED, legend_below, titled

STYLES = ((BLUE, "o", "-"), (GRAY, "s", ":"), (ORANGE, "D", "--"), (GREEN, "^", "--"), (RED, "v", "--"))
SCATTERED = "reading, half masked"
HEIGHT = 4.1


def draw_concepts(figure: Any, report: dict[str, Any]) -> None:
    """A panel for each part that the report has."""
    task = report["concepts"]
    drawn: list[Callable[[Any, dict[str, Any]], None]] = []
    if "detection" in task:
        drawn += [_by_share, _scatter]
    drawn += [_shares] if "shares" in task else []
    drawn += [_suppression] if any(row["ways"] for row in task.get("suppression", {"rows": []})["rows"]) else []
    drawn += [_injection] if task.get("injection", {"rows": []})["rows"] else []
    if not drawn:
        return
    rows = -(-len(drawn) // 2)
    figure.set_size_inches(11, HEIGHT * rows)
    panels = figure.subplots(rows, 2, squeeze=False).ravel()
    for panel, draw in zip(panels, drawn, strict=False):
        draw(panel, task)
    for panel in panels[len(drawn) :]:
        panel.remove()


def _by_share(panel: Any, task: dict[str, Any]) -> None:
    """Macro AUC by the masked share, a line for each scorer, with 95% intervals of ours."""
    conditions = {each["condition"]: each for each in task["detection"]["conditions"]}
    reading = [each for each in CONDITIONS if not each.forecast and conditions[each.name]["concepts"]["all"]]
    names = [each["name"] for each in task["detection"]["conditions"][0]["scorers"]]
    for name, (color, marker, style) in zip(names, STYLES, strict=False):
        found = [_scorer(conditions[each.name], name)["all"] for each in reading]
        points = [100 * each.share for each in reading], [each["auc"] for each in found]
        panel.plot(*points, style, color=color, marker=marker, markersize=5, label=name)
        if name == OURS and found:
            low, high = zip(*(each["auc_interval"] for each in found), strict=True)
            panel.fill_between(points[0], low, high, color=color, alpha=0.15, linewidth=0)
    for each in CONDITIONS:
        if each.forecast and conditions[each.name]["concepts"]["all"]:
            value = _scorer(conditions[each.name], OURS)["all"]["auc"]
            panel.plot([0], [value], "*", color=BLACK, markersize=9, label=f"{OURS}, forecasting")
    titled(panel, "Detection", "masked, % of the span", "macro AUC")
    legend_below(panel, ncols=2, down=0.13, size=8)


def _scorer(condition: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in condition["scorers"] if each["name"] == name)
    return found


def _scatter(panel: Any, task: dict[str, Any]) -> None:
    """Each concept's AUC, ours against the best control's."""
    condition = next(each for each in task["detection"]["conditions"] if each["condition"] == SCATTERED)
    controls = [each["name"] for each in condition["scorers"][1:]]
    rows = condition["by_concept"]
    if not controls:
        panel.hist([row[OURS] for row in rows], bins=25, color=BLUE)
        titled(panel, "Concepts, half masked", "AUC", "concepts")
        return
    for lexical, color, marker, label in ((False, BLUE, "o", "structural"), (True, ORANGE, "s", "lexical")):
        some = [row for row in rows if row["lexical"] == lexical]
        best = [max(row[name] for name in controls) for row in some]
        above = sum(row[OURS] > value for row, value in zip(some, best, strict=True))
        label = f"{label}: {above} of {len(some)} above"
        panel.plot(best, [row[OURS] for row in some], marker, color=color, markersize=3.5, alpha=0.7, label=label)
    low = min([1.0, *(min(row[OURS], max(row[name] for name in controls)) for row in rows)])
    panel.plot([low, 1], [low, 1], color=GRAY, linewidth=0.8)
    titled(panel, "Each concept, half masked", "AUC of its best control", "AUC of the concept head")
    legend_below(panel, ncols=2, down=0.13, size=8)


def _shares(panel: Any, task: dict[str, Any]) -> None:
    """Shares of predictions by the masked share, and what is left unexplained."""
    rates = task["shares"]["rates"]
    lines = (("cc", "aggregated"), ("cc_known", "known alone"), ("cc_each", "single, absolute"), ("fvu", "FVU"))
    for (key, name), (color, marker, style) in zip(lines, (STYLES[0], *STYLES[2:]), strict=True):
        panel.plot([100 * each["rate"] for each in rates], [each[key] for each in rates], style, color=color,
                   marker=marker, markersize=5, label=name)  # fmt: skip
    panel.set_ylim(0, 1.05)
    titled(panel, "Share of predictions through concepts", "masked, % of the span", "share")
    legend_below(panel, ncols=len(lines), down=0.13, size=8)


def _suppression(panel: Any, task: dict[str, Any]) -> None:
    """How often a forbidden concept is used, concept by concept."""
    rows = [row for row in task["suppression"]["rows"] if row["ways"]]
    ways = ((NONE, GRAY, "s"), (STEERING, BLUE, "o"), (CONSTRAINT, GREEN, "^"))
    _by_concept(panel, [(row["concept"], {each["way"]: each for each in row["ways"]}) for row in rows], ways)
    titled(panel, "Forbidden concepts", "uses the concept, %", "")


def _injection(panel: Any, task: dict[str, Any]) -> None:
    """How often an asked concept is used, concept by concept."""
    ways = ((NONE, GRAY, "s"), (STEERED, BLUE, "o"), (COMMENT, ORANGE, "D"))
    _by_concept(panel, [(row["concept"], row["ways"]) for row in task["injection"]["rows"]], ways)
    titled(panel, "Asked concepts", "uses the concept in the next 48 tokens, %", "")


def _by_concept(panel: Any, rows: list[tuple[str, dict[str, Any]]], ways: tuple[tuple[str, str, str], ...]) -> None:
    for way, color, marker in ways:
        points = [(100 * found[way]["rate"], place) for place, (_, found) in enumerate(rows) if way in found]
        if points:
            panel.plot(*zip(*points, strict=True), marker, color=color, markersize=5, alpha=0.85, label=way)
    panel.set_yticks(range(len(rows)), [name for name, _ in rows], fontsize=7)
    panel.invert_yaxis()
    panel.set_xlim(-3, 103)
    legend_below(panel, ncols=len(ways), down=0.13, size=8)
