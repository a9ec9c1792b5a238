"""The bars of a concept model, each beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from daguerre.evals.concepts import alignment, injection, shares, suppression
from daguerre.evals.concepts.detection import OURS, TARGETS
from daguerre.evals.tables import bracketed

Bar = dict[str, Any]


def bars(report: dict[str, Any]) -> list[Bar]:
    """An entry for each bar of the parts that a report has: what, the bar and the figure in words, and whether the bar
    is met; None: there is no bar.
    """
    makers = {
        "detection": _detection,
        "shares": _shares,
        "suppression": _suppression,
        "injection": _injection,
        "alignment": _alignment,
        "stability": _stability,
        "audit": _audit,
    }
    return [bar for name, make in makers.items() if name in report for bar in make(report[name])]


def _bar(what: str, bar: str, measured: str, met: bool | None) -> Bar:
    return {"what": what, "bar": bar, "measured": measured, "met": met}


def _detection(part: dict[str, Any]) -> Iterator[Bar]:
    for condition in part["conditions"]:
        name, scorers = condition["condition"], {each["name"]: each for each in condition["scorers"]}
        if "all" not in scorers[OURS] or name not in TARGETS:
            continue
        ours, target = scorers[OURS]["all"]["auc"], TARGETS[name]
        yield _bar(f"detection, {name}", f"macro AUC {target:.2f}", f"{ours:.3f}", ours >= target)
        for control in condition["scorers"][1:]:
            gain, interval = (control["all"][key] for key in ("gain", "gain_interval"))
            what, measured = f"detection, {name}, less {control['name']}", bracketed(gain, interval, "+.3f")
            yield _bar(what, "above 0 (95%)", measured, interval[0] > 0)


def _shares(part: dict[str, Any]) -> Iterator[Bar]:
    mean, clean = part["mean"], part["clean"]
    for key, what in (("cc", "aggregated"), ("cc_known", "known alone"), ("cc_each", "single concepts, absolute")):
        bar, met = ("", None) if key != "cc" else (f"{shares.LEAST_SHARE:.2f}", mean[key] >= shares.LEAST_SHARE)
        yield _bar(f"share of predictions, {what}", bar, f"{mean[key]:.3f}", met)
    limits = [("bits per byte without the residual, clean stream", "cost", shares.MOST_COST, "+.1%")]
    limits += [("bits per byte less the plain model's", "tax", shares.MOST_TAX, "+.2%")] if "tax" in clean else []
    for what, key, most, form in limits:
        yield _bar(what, f"at most {most:+.0%}", f"{clean[key]:{form}}", clean[key] <= most)


def _suppression(part: dict[str, Any]) -> Iterator[Bar]:
    for row in part["rows"]:
        ways = {each["way"]: each for each in row["ways"]}
        for name, most in ((suppression.STEERING, suppression.MOST_USED), (suppression.CONSTRAINT, 0.0)):
            if name not in ways:
                continue
            way, plain = ways[name], ways[suppression.NONE]
            parses = way["parses"] / plain["parses"] if plain["parses"] else 1.0
            met = way["rate"] <= most and parses >= suppression.LEAST_PARSING
            yield _bar(
                f"`{row['concept']}` by {name}",
                f"at most {most:.0%}, parsing {suppression.LEAST_PARSING:.0%} of unsteered",
                f"{100 * way['rate']:.1f}% (unsteered {100 * plain['rate']:.1f}%), parsing {100 * parses:.0f}%",
                met if row["has_bar"] else None,
            )


def _injection(part: dict[str, Any]) -> Iterator[Bar]:
    plain, ours = part["means"][suppression.NONE], part["means"][injection.STEERED]
    parses = ours["parses"] / plain["parses"] if plain["parses"] else 1.0
    yield _bar(
        "asked concept in the next 48 tokens, mean of concepts",
        f"{injection.LEAST_USED:.0%}, parsing {injection.LEAST_PARSING:.0%} of unsteered",
        f"{100 * ours['rate']:.1f}%, parsing {100 * parses:.0f}%",
        ours["rate"] >= injection.LEAST_USED and parses >= injection.LEAST_PARSING,
    )


def _alignment(part: dict[str, Any]) -> Iterator[Bar]:
    if part["median"] is not None:
        met = part["median"] >= alignment.LEAST_MEDIAN
        yield _bar("precision at 10 of top tokens, median", f"{alignment.LEAST_MEDIAN}", f"{part['median']:.2f}", met)


def _stability(part: dict[str, Any]) -> Iterator[Bar]:
    measured = f"{100 * part['share']:.1f}% (by chance {100 * part['share_by_chance']:.1f}%)"
    yield _bar("discovered concepts found again with another seed", "", measured, None)


def _audit(part: dict[str, Any]) -> Iterator[Bar]:
    found, num = part["changes_found"], part["changes"]
    yield _bar(
        "random changes of a ledger found", "all", f"{found:,} of {num:,}", found == num and not part["problems"]
    )
    measured = f"{part['forgeries_found']:,} of {part['forgeries']:,}"
    yield _bar("numbers forged by the owner of the key found by replay", "", measured, None)
    speeds = part["records_a_second"]
    measured = f"{speeds['chain']:.0f}, with replay {speeds['replay']:.0f}"
    yield _bar("records checked a second", "", measured, None)
