"""An analysis as a page of HTML that stands alone: one file, no script, nothing to be fetched.

Names of backends, models and files are escaped, and the page's own policy forbids scripts and requests besides. Charts
are SVG by `charts`: a library for pictures would be a dependency of the router, and its pictures do not turn dark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape

from daguerre.router.analyze import BUDGET, Analysis, Span
from daguerre.router.charts import COLORS, Bar, Say, bars, curve, lines, stacks
from daguerre.router.counterfactual import Counterfactual
from daguerre.router.estimators import Estimate
from daguerre.router.tables import (
    ESTIMATORS,
    ReportTable,
    dollars,
    milliseconds,
    number,
    per_thousand,
    percent,
    tables,
    told,
)

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
STYLE = """
:root{color-scheme:light dark;--page:#fff;--card:#f6f7f9;--ink:#1a1d21;--soft:#5b6470;--edge:#d9dde3;
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#aa4499;--c4:#b38600;--c5:#6b7280}
@media (prefers-color-scheme:dark){:root{--page:#14171b;--card:#1d2127;--ink:#e8eaed;--soft:#a3acb8;--edge:#363c45;
--c0:#56b4e9;--c1:#ff8c42;--c2:#2fc79a;--c3:#d98cc7;--c4:#f0c040;--c5:#9aa3af}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1120px;padding:20px 16px 48px;background:var(--page);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.6rem;line-height:1.2;margin:.2em 0}
h2{font-size:1.2rem;margin:2em 0 .3em}
p{margin:.3em 0 .8em;max-width:75ch;color:var(--soft)}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:1.2em 0}
dl div{background:var(--card);border:1px solid var(--edge);border-radius:10px;padding:10px 12px}
dt{color:var(--soft);font-size:.85rem}
dd{margin:0;font-size:1.35rem;font-weight:600;overflow-wrap:anywhere}
dd small{display:block;font-size:.8rem;font-weight:400;color:var(--soft)}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));gap:16px}
figure{margin:0;background:var(--card);border:1px solid var(--edge);border-radius:10px;padding:10px 8px}
figcaption{font-weight:600;padding:0 6px 6px}
svg{display:block;width:100%;max-width:520px;height:auto;margin:0 auto;font-size:12.5px;fill:var(--ink)}
svg{overflow:visible}svg text{paint-order:stroke;stroke:var(--card);stroke-width:4px;stroke-linejoin:round}
svg .tick{fill:var(--soft);font-size:11.5px}
svg .number{text-anchor:end;font-weight:600}
svg .end{text-anchor:end}svg .middle{text-anchor:middle}
svg .grid{stroke:var(--edge);stroke-width:1}
svg .mark{stroke:var(--ink);stroke-width:1.5;stroke-dasharray:4 3}
svg .line{fill:none;stroke-width:2}svg .whisker{stroke-width:3;stroke-opacity:.45;stroke-linecap:round}
svg .band{fill:var(--c0);fill-opacity:.2}
.scroll{overflow-x:auto;border:1px solid var(--edge);border-radius:10px}
.scroll:focus{outline:2px solid var(--c0)}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{padding:7px 10px;text-align:left;vertical-align:top;border-bottom:1px solid var(--edge)}
tbody tr:last-child>*{border-bottom:0}
thead th{background:var(--card);white-space:nowrap}
tbody th{font-weight:600;overflow-wrap:break-word;max-width:20em}
td{font-variant-numeric:tabular-nums}
td small{display:block;white-space:nowrap;color:var(--soft);font-size:.85em}
li{margin:.2em 0;color:var(--soft);max-width:75ch}
""" + "".join(
    f"svg .line.c{each},svg .whisker.c{each}{{stroke:var(--c{each})}}svg .dot.c{each},svg .fill.c{each}"
    f"{{fill:var(--c{each})}}\n"
    for each in range(COLORS)
)


def page(analysis: Analysis) -> str:
    """The page of an analysis."""
    title = f"Routing: {analysis.log}"
    charts = "".join(_charts(analysis))
    notes = [*analysis.notes, *(analysis.other.notes if analysis.other else ())]
    body = [
        f"<h1>{escape(title)}</h1><p>{escape(_when(analysis))}</p>",
        _cards(analysis),
        f'<section aria-label="Charts"><div class="charts">{charts}</div></section>',
        *(_table(each) for each in tables(analysis)),
        f"<section><h2>Notes</h2><ul>{''.join(f'<li>{escape(each)}</li>' for each in notes)}</ul></section>",
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>{''.join(body)}</main></body></html>\n"
    )


def _when(analysis: Analysis) -> str:
    begin, end = (datetime.fromtimestamp(each, UTC) for each in (analysis.begin, analysis.end))
    if not analysis.overall.num:
        return "No requests."
    return f"{analysis.overall.num:,} requests from {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC."


def _cards(analysis: Analysis) -> str:
    """The numbers to look at first."""
    all_ = analysis.overall
    dearest = max(analysis.baselines, key=lambda each: each.paid, default=None)
    items: list[tuple[str, str, str]] = [
        ("paid", dollars(all_.paid), f"{all_.num:,} requests"),
        ("cost of 1,000 requests", *_split(all_.cost, per_thousand)),
        ("answers within the SLO", *_split(all_.within, percent)),
        ("end, p95", *_split(all_.whole_p95, milliseconds)),
        ("quality (mean grade)", *_split(all_.quality, percent)),
    ]
    if dearest is not None:
        items.insert(2, (f"saved against all to {dearest.backend}", *_split(dearest.saving, percent)))
    said = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(more)}</small></dd></div>"
        for name, value, more in items
    )
    return f"<dl>{said}</dl>"


def _split(found: Estimate | None, say: Say) -> tuple[str, str]:
    """A number and its interval."""
    if found is None:
        return "–", "not known"
    value, _, rest = told(found, say).partition(" (")
    return value, rest.removesuffix(")")


def _table(table: ReportTable) -> str:
    name, said = escape(table.title), f"<p>{escape(table.about)}</p>"
    if not table.rows:
        return f"<section><h2>{name}</h2>{said}</section>"
    head = "".join(f'<th scope="col">{escape(each) or "measure"}</th>' for each in table.head)
    rows = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{_cell(each)}</td>" for each in rest)}</tr>'
        for first, *rest in table.rows
    )
    return (
        f'<section><h2>{name}</h2>{said}<div class="scroll" tabindex="0" role="region" aria-label="{name}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _cell(text: str) -> str:
    """A value, and on a line of its own its interval."""
    value, interval, rest = text.partition(" (")
    return escape(value) + (f"<small>{escape(interval[1:] + rest)}</small>" if interval else "")


def _charts(analysis: Analysis) -> list[str]:
    """Those that there are numbers for."""
    costs = [(f"all to {each.backend}", each.cost) for each in analysis.baselines]
    out = [_bars("Cost of 1,000 requests", [("the router", analysis.overall.cost), *costs], per_thousand, least=0.0)]
    within = [(name, one.within) for name, one in analysis.steps.items()]
    out.append(_bars("Answers within the SLO, by step", within, percent, 1 - BUDGET))
    graded = [(name, one.quality) for name, one in analysis.steps.items()]
    out.append(_bars("Quality, by step", graded, percent))
    times = [each for name, one in analysis.backends.items()
             for each in ((f"{name}, p50", one.whole_p50), (f"{name}, p95", one.whole_p95))]  # fmt: skip
    out.append(_bars("Time until the end, by backend (logarithmic)", times, milliseconds, log=True))
    if len(analysis.spans) > 1:
        out += _over_time(analysis)
    if analysis.shadows.regret is not None:
        regret = analysis.shadows.regret
        title = "The oracle's best, and the router (1,000 requests)"
        out.append(curve(title, regret.curve, [("the router", *regret.router)], per_thousand, percent))
    if analysis.other is not None:
        out += _others(analysis.other, analysis.overall.quality)
    return [each for each in out if each]


def _bars(
    title: str,
    found: Sequence[tuple[str, Estimate | None]],
    say: Say,
    mark: float | None = None,
    least: float | None = None,
    log: bool = False,
) -> str:
    """A chart of the estimates that there are; empty without any."""
    items = [Bar(name, each.value, each.low, each.high) for name, each in found if each and (each.value > 0 or not log)]
    return bars(title, items, say, mark, least, log) if items else ""


def _over_time(analysis: Analysis) -> list[str]:
    spans = analysis.spans
    starts = [each.start for each in spans]
    long = spans[-1].start - spans[0].start > 2 * 86400

    def clock(at: float) -> str:
        return datetime.fromtimestamp(at, UTC).strftime("%m-%d %H:%M" if long else "%H:%M")

    names, counts = _largest(spans)
    out = [stacks("Requests over time, by backend", starts, names, counts, clock)] if names else []
    missed = [each.missed for each in spans]
    if any(missed):
        title = "Share that missed the SLO, over time (budget 5%)"
        out.append(lines(title, starts, _values(missed), _bands(missed), percent, clock, BUDGET))
    late = [each.p95 for each in spans]
    if any(late):
        out.append(
            lines("p95 until the end, over time (s)", starts, _values(late, 1000), _bands(late, 1000), number, clock)
        )
    return out


def _largest(spans: Sequence[Span]) -> tuple[list[str], list[list[int]]]:
    """The backends with the most answers, as many as there are colors, the others as one, and their counts by span."""
    total = Counter[str]()
    for each in spans:
        total.update(each.backends)
    names = [name for name, _ in total.most_common(len(total) if len(total) <= COLORS else COLORS - 1)]
    counts = [[each.backends.get(name, 0) for name in names] for each in spans]
    if len(names) == len(total):
        return names, counts
    rest = [sum(each.backends.values()) - sum(some) for each, some in zip(spans, counts, strict=True)]
    return [*names, "others"], [[*some, left] for some, left in zip(counts, rest, strict=True)]


def _values(found: Sequence[Estimate | None], unit: float = 1.0) -> list[float | None]:
    return [None if each is None else each.value / unit for each in found]


def _bands(found: Sequence[Estimate | None], unit: float = 1.0) -> list[tuple[float, float] | None]:
    """Intervals; an open bound is drawn at the value."""

    def bound(each: Estimate, low: float | None) -> float:
        return (each.value if low is None else low) / unit

    return [None if each is None else (bound(each, each.low), bound(each, each.high)) for each in found]


def _others(other: Counterfactual, own: Estimate | None) -> list[str]:
    quality: list[tuple[str, Estimate | None]] = [("the log itself", own)]
    quality += [(ESTIMATORS[name], each) for name, each in other.quality.estimates.items()]
    quality.append(("both backends graded (shadows)", other.both_known))
    known = sum(each is not None for _, each in quality)
    out = [_bars("Quality of the other configuration", quality, percent)] if known > 1 else []
    shares = list[Bar]()
    for name, target in other.overall.target.items():
        given = other.overall.given[name]
        if given or target:
            shares += [
                Bar(f"{name}: the log's", given, given, given, 5),
                Bar(f"{name}: the other", target, target, target),
            ]
    return [*out, bars("Where requests go", shares, percent, least=0.0)] if shares else out
