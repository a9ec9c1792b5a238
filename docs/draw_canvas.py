"""Draw docs/canvas.png, a canvas over time: `python docs/draw_canvas.py`. The default model fills two gaps at once."""

from __future__ import annotations

from pathlib import Path

import daguerre
from daguerre.view.picture import draw

TEMPLATE = """\
import json
import os


def load(path):
    with <gap> as file:
        return <gap>


def save(path, value):
    with open(path, "w") as file:
        json.dump(value, file)
"""


def main() -> None:
    model = daguerre.load()
    result = model.fill(TEMPLATE, max_tokens=[8, 8])
    draw(result, model.tokenizer, Path(__file__).with_name("canvas.png"))


if __name__ == "__main__":
    main()
