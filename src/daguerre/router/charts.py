"""Small charts as SVG: text that a page has in it, without a library, a script or a request.

Colors come from the page's style, so charts follow a dark page; every label is escaped. Widths are in units of a
phone's screen, and the page scales them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LEFT, RIGHT = 400.0, 52.0, 12.0
ROW, TOP, BOTTOM = 38.0, 8.0, 26.0
COLORS = 6
LONGEST = 24
"""Characters of a name in a legend."""
Say = Callable[[float], str]


@dataclass(frozen=True)
class Bar:
    """A labeled value with its interval; a bound that is None is open."""

    label: str
    value: float
    low: float | None
    high: float | None
    kind: int = 0


@dataclass(frozen=True)
class Scale:
    """Maps numbers between two ends to pixels between two others, along a line or its logarithm."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """A place, never beyond the ends."""
        if self.log:
            share = (math.log(max(value, self.low)) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.begin + min(max(share, 0.0), 1.0) * (self.end - self.begin)


def ticks(low: float, high: float, num: int = 4) -> list[float]:
    """Round numbers, about `num`, that reach from one number or below it to another or above it."""
    if not high > low:
        low, high = low - 0.5 * abs(low or 1), low + 0.5 * abs(low or 1)
    rough = (high - low) / num
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each * power for each in (1, 2, 2.5, 5, 10) if each * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [place * step for place in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, or 1, 3 and 10 times them, around two numbers above 0."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    last = max(last, first + 1)
    if last - first > 2:
        return [10.0**each for each in range(first, last + 1)]
    return [base * 10.0**each for each in range(first, last) for base in (1, 3)] + [10.0**last]


def bars(
    title: str,
    items: Sequence[Bar],
    say: Say,
    mark: float | None = None,
    least: float | None = None,
    log: bool = False,
) -> str:
    """A value with its interval in each row, and a line at `mark`; the scale begins at `least`, if not before it."""
    numbers = [each for one in items for each in (one.value, one.low, one.high) if each is not None]
    numbers += [each for each in (mark, least) if each is not None]
    edges = log_ticks(min(numbers), max(numbers)) if log else ticks(min(numbers), max(numbers))
    height = TOP + ROW * len(items) + BOTTOM
    across = Scale(edges[0], edges[-1], 26, WIDTH - 28, log)
    out = [_grid(across, edges, say, TOP, height - BOTTOM)]
    if mark is not None:
        out.append(_line("mark", across(mark), TOP, across(mark), height - BOTTOM))
    for place, one in enumerate(items):
        y = TOP + ROW * place
        low = edges[0] if one.low is None else one.low
        high = edges[-1] if one.high is None else one.high
        said = f"{say(one.value)}"
        out += [
            f'<text x="14" y="{y + 13:.1f}">{escape(one.label)}</text>',
            f'<text class="number" x="{WIDTH - 14:.0f}" y="{y + 13:.1f}">{escape(said)}</text>',
            _line(f"whisker c{one.kind % COLORS}", across(low), y + 24, across(high), y + 24),
            f'<circle class="dot c{one.kind % COLORS}" cx="{across(one.value):.1f}" cy="{y + 24:.1f}" r="4.5"/>',
        ]
    return _figure(title, height, out, "; ".join(f"{one.label}: {say(one.value)}" for one in items))


def lines(
    title: str,
    times: Sequence[float],
    values: Sequence[float | None],
    bands: Sequence[tuple[float, float] | None],
    say: Say,
    say_time: Say,
    mark: float | None = None,
) -> str:
    """A value over time with its interval as a band, broken where it is None, and a line at `mark`."""
    known = [each for each in values if each is not None]
    known += [each for band in bands if band for each in band] + [0.0] + ([] if mark is None else [mark])
    edges, height = ticks(min(known), max(known)), 210.0
    along = Scale(times[0], max(times[-1], times[0] + 1), LEFT, WIDTH - RIGHT)
    up = Scale(edges[0], edges[-1], height - BOTTOM, TOP + 6)
    out = [_sides(edges, up, say), _times(times, along, height, say_time)]
    if mark is not None:
        out.append(_line("mark", LEFT, up(mark), WIDTH - RIGHT, up(mark)))
    for part in _unbroken(times, values, bands):
        above = [f"{along(time):.1f},{up(band[1]):.1f}" for time, _, band in part]
        below = [f"{along(time):.1f},{up(band[0]):.1f}" for time, _, band in reversed(part)]
        out.append(f'<polygon class="band" points="{" ".join(above + below)}"/>')
        points = " ".join(f"{along(time):.1f},{up(value):.1f}" for time, value, _ in part)
        out.append(f'<polyline class="line c0" points="{points}"/>')
        if len(part) == 1:
            out.append(f'<circle class="dot c0" cx="{along(part[0][0]):.1f}" cy="{up(part[0][1]):.1f}" r="3"/>')
    said = [each for each in values if each is not None]
    told = f"From {say(min(said))} to {say(max(said))} over time." if said else "No values."
    return _figure(title, height, out, told)


def stacks(
    title: str, times: Sequence[float], names: Sequence[str], counts: Sequence[Sequence[float]], say_time: Say
) -> str:
    """Counts over time, one of `names` on the other: `counts` has a list for each time."""
    edges, rows = ticks(0, max(*map(sum, counts), 1)), (len(names) + 1) // 2
    foot = 180.0
    height = foot + BOTTOM + 18.0 * rows
    up = Scale(edges[0], edges[-1], foot, TOP + 6)
    gap = min((after - before for before, after in zip(times, times[1:], strict=False)), default=1.0)
    along = Scale(times[0], times[-1] + gap, LEFT, WIDTH - RIGHT)
    wide = max(along(times[0] + gap) - along(times[0]) - 0.6, 0.8)
    out = [_sides(edges, up, lambda value: f"{value:,.0f}"), _times(times, along, foot + BOTTOM, say_time)]
    for time, some in zip(times, counts, strict=True):
        total = 0.0
        for place, count in enumerate(some):
            y, base = up(total + count), up(total)
            total += count
            if count:
                out.append(
                    f'<rect class="fill c{place % COLORS}" x="{along(time):.1f}" y="{y:.1f}" width="{wide:.1f}" '
                    f'height="{base - y:.1f}"/>'
                )
    for place, name in enumerate(names):
        x, y = 14 + 190 * (place % 2), foot + BOTTOM + 18 * (place // 2) + 8
        out.append(f'<rect class="fill c{place % COLORS}" x="{x}" y="{y - 9:.1f}" width="10" height="10"/>')
        shown = name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"
        out.append(f'<text x="{x + 15}" y="{y:.1f}">{escape(shown)}</text>')
    return _figure(title, height, out, f"Requests over time by backend: {', '.join(names)}.")


def curve(
    title: str, points: Sequence[tuple[float, float]], named: Sequence[tuple[str, float, float]], say_x: Say, say_y: Say
) -> str:
    """A curve, and points with names beside it."""
    all_ = [*points, *((x, y) for _, x, y in named)]
    across_at = ticks(min(x for x, _ in all_), max(x for x, _ in all_), 3)
    up_at = ticks(min(y for _, y in all_), max(y for _, y in all_))
    height = 230.0
    across = Scale(across_at[0], across_at[-1], LEFT, WIDTH - 26)
    up = Scale(up_at[0], up_at[-1], height - BOTTOM, TOP + 6)
    out = [_sides(up_at, up, say_y), _grid(across, across_at, say_x, TOP + 6, height - BOTTOM)]
    out.append(f'<polyline class="line c2" points="{" ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in points)}"/>')
    for name, x, y in named:
        right = across(x) > WIDTH / 2
        shift, anchor = (-9, "end") if right else (9, "start")
        out.append(f'<circle class="dot c1" cx="{across(x):.1f}" cy="{up(y):.1f}" r="5"/>')
        out.append(
            f'<text style="text-anchor:{anchor}" x="{across(x) + shift:.1f}" y="{up(y) + 16:.1f}">{escape(name)}</text>'
        )
    told = "; ".join(f"{name}: {say_x(x)}, {say_y(y)}" for name, x, y in named)
    return _figure(title, height, out, told)


def _unbroken(
    times: Sequence[float], values: Sequence[float | None], bands: Sequence[tuple[float, float] | None]
) -> list[list[tuple[float, float, tuple[float, float]]]]:
    """Runs of known values."""
    out: list[list[tuple[float, float, tuple[float, float]]]] = [[]]
    for time, value, band in zip(times, values, bands, strict=True):
        if value is None:
            out.append([])
        else:
            out[-1].append((time, value, band or (value, value)))
    return [part for part in out if part]


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _grid(across: Scale, edges: Sequence[float], say: Say, top: float, foot: float) -> str:
    """Vertical lines with numbers below."""
    out = list[str]()
    for edge in edges:
        x = across(edge)
        out.append(_line("grid", x, top, x, foot))
        out.append(f'<text class="tick middle" x="{x:.1f}" y="{foot + 16:.1f}">{escape(say(edge))}</text>')
    return "".join(out)


def _sides(edges: Sequence[float], up: Scale, say: Say) -> str:
    """Horizontal lines with numbers at the left."""
    out = list[str]()
    for edge in edges:
        y = up(edge)
        out.append(_line("grid", LEFT, y, WIDTH - RIGHT, y))
        out.append(f'<text class="tick end" x="{LEFT - 5:.1f}" y="{y + 4:.1f}">{escape(say(edge))}</text>')
    return "".join(out)


def _times(times: Sequence[float], along: Scale, height: float, say: Say) -> str:
    """The first time, the middle and the last below."""
    ends = (times[0], (times[0] + times[-1]) / 2, times[-1])
    kinds = ("", " middle", " end")
    chosen = zip(ends, kinds, strict=True) if times[-1] > times[0] else [(times[0], "")]
    return "".join(
        f'<text class="tick{kind}" x="{along(time):.1f}" y="{height - BOTTOM + 16:.1f}">{escape(say(time))}</text>'
        for time, kind in chosen
    )


def _figure(title: str, height: float, parts: Sequence[str], told: str) -> str:
    """A figure with its title; `told` is what a reader who does not see it hears."""
    name = escape(title)
    return (
        f'<figure><figcaption>{name}</figcaption><svg viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" '
        f'aria-label="{name}. {escape(told)}">{"".join(parts)}</svg></figure>'
    )
