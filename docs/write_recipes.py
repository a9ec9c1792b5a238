"""Write the tables of recipes.md again: `python docs/write_recipes.py`."""

from __future__ import annotations

import re
from pathlib import Path

from daguerre.files import atomic_write
from daguerre.train.recipe_keys import page

PAGE = Path(__file__).with_name("recipes.md")
BLOCK = re.compile(r"(<!-- keys -->\n).*(<!-- end -->)", flags=re.DOTALL)


def written(text: str) -> str:
    """The page with its tables made anew."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{page()}\n{found[2]}", text)


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    with atomic_write(PAGE) as file:
        file.write(written(text).encode())
