"""An analysis as tables of text, for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np

from daguerre.router.analyze import Analysis, BackendTotals, Group
from daguerre.router.counterfactual import Counterfactual
from daguerre.router.estimators import Estimate, PolicyValue

NONE = "–"
ESTIMATORS = {
    "ips": "inverse propensity",
    "snips": "inverse propensity, self-normalized",
    "dr": "doubly robust",
}


@dataclass(frozen=True)
class ReportTable:
    """A table, with sentences before it; without rows it is the sentences alone."""

    title: str
    about: str
    head: Sequence[str] = ()
    rows: list[Sequence[str]] = field(default_factory=list)


def number(value: float) -> str:
    """With three digits that count, and without an exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return np.format_float_positional(value, precision=3, fractional=False, trim="-")


def percent(value: float) -> str:
    """Of a share."""
    return f"{100 * value:.1f}%"


def dollars(value: float) -> str:
    """Of an amount."""
    sign = "-" if value < 0 else ""
    return f"{sign}${abs(value):,.2f}" if abs(value) >= 1 or not value else f"{sign}${number(abs(value))}"


def milliseconds(value: float) -> str:
    """Of a time."""
    return f"{number(value)} ms"


def per_thousand(value: float) -> str:
    """Of dollars for a request, as dollars for a thousand."""
    return dollars(1000 * value)


def told(found: Estimate | None, say: Callable[[float], str]) -> str:
    """An estimate with its interval."""
    if found is None:
        return NONE
    if found.low is None and found.high is None:
        return f"{say(found.value)} (too few for an interval)"
    if found.low is None or found.high is None:
        bound = f"at most {say(found.high)}" if found.high is not None else f"at least {say(found.low or 0.0)}"
        return f"{say(found.value)} ({bound})"
    return f"{say(found.value)} ({say(found.low)} to {say(found.high)})"


def tables(analysis: Analysis) -> list[ReportTable]:
    """All tables of an analysis."""
    out = [_summary(analysis), _steps(analysis), _backends(analysis), _baselines(analysis), *_shadows(analysis)]
    return out if analysis.other is None else out + _other(analysis.other, analysis.overall)


def _summary(analysis: Analysis) -> ReportTable:
    all_ = analysis.overall
    counts = (
        f"{all_.answered:,} answered, {all_.failed:,} failed, {all_.refused:,} refused as wrong, {all_.left:,} left"
    )
    burned = NONE if all_.burn is None else f"{told(all_.burn, number)} times the budget of 5%"
    rows: list[Sequence[str]] = [
        ("requests", f"{all_.num:,}: {counts}"),
        ("attempts after the first", f"{all_.retries:,} retries, {all_.fallbacks:,} fallbacks, {all_.hedges:,} hedges"),
        ("paid", f"{dollars(all_.paid)} for {all_.input:,} tokens in and {all_.output:,} out"),
        ("cost of 1,000 requests", told(all_.cost, per_thousand)),
        ("first text of streams, p50", told(all_.first_p50, milliseconds)),
        ("first text of streams, p95", told(all_.first_p95, milliseconds)),
        ("end, p50", told(all_.whole_p50, milliseconds)),
        ("end, p95", told(all_.whole_p95, milliseconds)),
        ("within the SLO", told(all_.within, percent)),
        ("error budget burned", burned),
        ("quality (mean grade)", _graded(all_)),
    ]
    if all_.hits is not None:
        cache = f"{all_.cache['hit']:,} exact, {all_.cache['near']:,} near; {told(all_.hits, percent)} of those asked"
        rows.insert(3, ("answered by the cache", cache))
    when = " to ".join(datetime.fromtimestamp(each, UTC).strftime("%Y-%m-%d %H:%M") for each in
                       (analysis.begin, analysis.end))  # fmt: skip
    said = f"{analysis.log}, {when} UTC, {len(analysis.configs)} configuration(s)." if all_.num else "No requests."
    how = "Intervals are of 95%: Wilson's for shares and grades, bootstrap for costs, ranks for quantiles."
    return ReportTable("Summary", f"{said} {how}", ("", "all requests"), rows)


def _graded(group: Group) -> str:
    return NONE if group.quality is None else f"{told(group.quality, percent)} of {group.quality.num:,} graded"


def _steps(analysis: Analysis) -> ReportTable:
    head = ("step", "requests", "failed", "cost of 1,000", "p50", "p95", "within SLO", "burn", "quality", "tokens out")
    rows: list[Sequence[str]] = [
        (
            name,
            f"{one.num:,}",
            f"{one.failed:,}",
            told(one.cost, per_thousand),
            *(told(each, milliseconds) for each in (one.whole_p50, one.whole_p95)),
            told(one.within, percent),
            told(one.burn, number),
            _graded(one),
            f"{one.output:,}",
        )
        for name, one in analysis.steps.items()
    ]
    return ReportTable("By step", "Times are until the end of answers. Burn is in budgets of 5%.", head, rows)


def _backends(analysis: Analysis) -> ReportTable:
    about = (
        "Attempts count hedges, and times are from the beginning of an attempt. The other columns are of the requests "
        "that a backend answered: each has other requests, so do not compare their quality."
    )
    head = ("backend", "attempts", "failures", "first text p95", "p50", "p95", "answers", "cost of 1,000", "within SLO",
            "quality", "tokens out")  # fmt: skip
    return ReportTable("By backend", about, head, [_backend(name, one) for name, one in analysis.backends.items()])


def _backend(name: str, one: BackendTotals) -> Sequence[str]:
    return (
        name,
        f"{one.attempts:,}",
        told(one.failures, percent),
        *(told(each, milliseconds) for each in (one.first_p95, one.whole_p50, one.whole_p95)),
        f"{one.answers.num:,}",
        told(one.answers.cost, per_thousand),
        told(one.answers.within, percent),
        _graded(one.answers),
        f"{one.answers.output:,}",
    )


def _baselines(analysis: Analysis) -> ReportTable:
    about = (
        "What the same requests would have cost at one backend, by its prices. Answers are taken to have as many "
        "tokens from any backend as from the one that gave them. What a backend cannot serve costs what it did. "
        "Intervals are of bootstrap."
    )
    rows: list[Sequence[str]] = [
        (f"all to {one.backend}", dollars(one.paid), told(one.cost, per_thousand), told(one.saving, percent),
         percent(one.others))
        for one in analysis.baselines
    ]  # fmt: skip
    return ReportTable("Saved", about, ("baseline", "pays", "cost of 1,000", "the router saves", "cannot serve"), rows)


def _shadows(analysis: Analysis) -> list[ReportTable]:
    found, out = analysis.shadows, list[ReportTable]()
    if found.agreement:
        same: list[Sequence[str]] = [
            (one.main, one.second, f"{one.same.num:,}", told(one.same, percent)) for one in found.agreement
        ]
        about = "How often both answers were the same, which does not say how good they are."
        out.append(
            ReportTable("Agreement of shadows", about, ("answered by", "shadow", "both known", "the same"), same)
        )
    if found.why is not None and not found.pairs:
        return [*out, ReportTable("Regret", f"None can be told: {found.why}.")]
    rows: list[Sequence[str]] = [
        (one.main, one.second, f"{one.num:,}", told(one.main_quality, percent), told(one.second_quality, percent),
         told(one.difference, percent))
        for one in found.pairs
    ]  # fmt: skip
    head = ("answered by", "shadow", "both graded", "its quality", "the shadow's", "the shadow's more")
    out.append(ReportTable("Shadows", f"{found.num:,} requests were sent to a second backend, too.", head, rows))
    if found.regret is None:
        return [*out, ReportTable("Regret", f"None can be told: {found.why}.")]
    regret = found.regret
    about = (
        f"Against an oracle that knows both grades of {regret.num:,} requests before it decides, and luck, too: no "
        "router reaches it. Intervals are of bootstrap."
    )
    lost: list[Sequence[str]] = [
        ("grade lost at equal cost", told(regret.quality, percent)),
        ("of the cost, saved by the oracle at equal quality", told(regret.cost, percent)),
    ]
    return [*out, ReportTable("Regret", about, ("", "lost to the oracle"), lost)]


def _other(other: Counterfactual, own: Group) -> list[ReportTable]:
    all_ = other.overall
    refused = f" {other.refused:,} requests it could not serve at all." if other.refused else ""
    about = f"{percent(all_.changed)} of {all_.num:,} decisions change.{refused} " + (
        f"No support: the log never does {percent(all_.unsupported)} of its decisions."
        if all_.unsupported
        else "The log does all of its decisions now and then."
    )
    rows: list[Sequence[str]] = [
        ("cost of 1,000 requests", "prices and tokens", told(other.cost, per_thousand), ""),
        ("cost, more than was paid", "prices and tokens", told(other.more_cost, percent), ""),
        *_valued("quality", other.quality, percent),
    ]
    if own.quality is not None:
        rows.insert(2, ("quality of the log itself", "mean", told(own.quality, percent), f"{own.quality.num:,} graded"))
    known = told(other.both_known, percent) if other.both_known else other.both_known_why or NONE
    rows.append(("quality", "both backends graded (shadows)", known, ""))
    rows += [] if other.within is None else _valued("within its SLO", other.within, percent)
    rows += _valued("end, mean", other.ms, milliseconds)
    rows += [
        (f"end, p{name}", "self-normalized weights", told(each, milliseconds), "")
        for name, each in zip((50, 95), other.quantiles, strict=False)
    ]
    head = ("measure", "by", "value", "support")
    return [ReportTable("Another configuration", about, head, rows), _where(other), _other_steps(other)]


def _valued(name: str, found: PolicyValue, say: Callable[[float], str]) -> list[Sequence[str]]:
    """The rows of a measure."""
    worth = (
        f"{number(found.ess)} of {found.num:,} effective, {number(found.ess_changed)} of those that change; "
        f"{percent(found.unsupported)} unsupported"
    )
    if found.why is not None:
        return [(name, "any", found.why, worth)]
    gain = told(found.gain, say) if found.gain else "too few decisions that change were seen"
    return [
        *((name, ESTIMATORS[key], told(each, say), worth) for key, each in found.estimates.items()),
        (f"{name}, more than the log's", ESTIMATORS["dr"], gain, worth),
    ]


def _where(other: Counterfactual) -> ReportTable:
    rows: list[Sequence[str]] = [
        (name, percent(other.overall.given[name]), percent(other.overall.target[name])) for name in other.overall.target
    ]
    about = "Expected shares of the same requests, over the draws of exploration: known exactly, so without intervals."
    return ReportTable("Where requests go", about, ("backend", "by the log's configuration", "by the other one"), rows)


def _other_steps(other: Counterfactual) -> ReportTable:
    rows = list[Sequence[str]]()
    for name, one in sorted(other.steps.items(), key=lambda each: -each[1].num):
        found = other.by_step.get(name)
        said = "no request of it is graded" if found is None else found.why
        said = said or told(found.estimates["dr"] if found else None, percent)
        worth = NONE if found is None else f"{number(found.ess)} of {found.num:,}"
        rows.append((name, f"{one.num:,}", percent(one.changed), percent(one.unsupported), said, worth))
    head = ("step", "requests", "decisions that change", "no support", "quality, doubly robust", "effective")
    about = "The share without support is what the other configuration does and the log never did."
    return ReportTable("Another configuration by step", about, head, rows)
