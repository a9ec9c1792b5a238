"""Record the demonstration as docs/demo.svg: `python docs/record_demo.py`. It is what `daguerre demo` prints."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

import daguerre
from daguerre.demo import show

WIDTH = 100


def main() -> None:
    console = Console(record=True, width=WIDTH, force_terminal=True, file=io.StringIO(), highlight=False)
    show(console, daguerre.load(), live=False)
    page = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    page = page.replace("Fira Code", "DejaVu Sans Mono")
    svg = console.export_svg(title="daguerre demo", code_format=page, unique_id="demo")
    Path(__file__).with_name("demo.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
