"""Record docs/demo.svg: `python docs/record_demo.py`. The default model fills two gaps; each frame is a step of it."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

import daguerre
from daguerre.view.watch import Part, canvas_parts

TEMPLATE = """\
class Stack:
    def __init__(self):
        self.items = []
    def push(self, item):
        self.items.<gap>

    def __len__(self):
        return <gap>"""
MAX_TOKENS = 6
WIDTH, HEIGHT, SIZE, LINE = 480, 264, 16, 24
SECONDS, LAST = 0.7, 3.5
"""How long a frame is shown, and the last one."""
STILL = "@media (prefers-reduced-motion:reduce){g{animation:none!important}}"
"""The last frame alone, for who asks for no motion."""
COLORS = {"green": "#7ee787", "yellow": "#e3b341", "red": "#ff7b72", "": "#8b949e"}


def main() -> None:
    model = daguerre.load(dtype="float32")
    result = model.fill(TEMPLATE, max_tokens=MAX_TOKENS)
    seen: dict[int, float] = {}
    canvas, frames = result.trace.canvas, [canvas_parts(model, result.trace.canvas, None, seen)]
    for step in result.trace.steps:
        canvas = canvas.at(step.span).apply(step.decision)
        frames.append(canvas_parts(model, canvas, step.decision, seen))
    Path(__file__).with_name("demo.svg").write_text(picture(frames), encoding="utf-8")


def picture(frames: list[list[Part]]) -> str:
    """An SVG whose frames follow one another; where nothing moves, the last is shown."""
    total = SECONDS * (len(frames) - 1) + LAST
    styles, groups = [STILL], list[str]()
    for number, frame in enumerate(frames):
        last = number + 1 == len(frames)
        start, end = (100 * SECONDS * n / total for n in (number, number + 1))
        shown = f"{start:.2f}%{{opacity:1}}" + ("" if last else f"{end:.2f}%{{opacity:0}}")
        shown = shown if not number else "0%{opacity:0}" + shown
        styles.append(
            f"@keyframes f{number}{{{shown}}}.f{number}{{animation:f{number} {total:.1f}s step-end infinite}}"
        )
        body = "".join(lines(frame)) + text(f"step {number} of {len(frames) - 1}", 24, HEIGHT - 16, COLORS[""])
        groups.append(f'<g class="f{number}" opacity="{int(last)}">{body}</g>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'role="img" aria-label="Two gaps of a Python class are filled side by side, step by step">'
        f"<style>text{{font:{SIZE}px 'DejaVu Sans Mono',Menlo,Consolas,monospace;white-space:pre}}{''.join(styles)}"
        f'</style><rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#0d1117"/>{"".join(groups)}</svg>\n'
    )


def lines(frame: list[Part]) -> Iterator[str]:
    """Every line as an SVG text, its parts in their colors."""
    rows: list[list[str]] = [[]]
    for content, color, new in frame:
        mark = ' font-weight="bold" text-decoration="underline"' if new else ""
        for number, piece in enumerate(content.split("\n")):
            if number:
                rows.append([])
            rows[-1].append(f'<tspan fill="{COLORS[color]}"{mark}>{escape(piece)}</tspan>' if piece else "")
    for number, row in enumerate(rows):
        yield f'<text x="24" y="{40 + LINE * number}">{"".join(row)}</text>'


def text(content: str, x: int, y: int, color: str) -> str:
    """A line of text."""
    return f'<text x="{x}" y="{y}" fill="{color}">{escape(content)}</text>'


if __name__ == "__main__":
    main()
