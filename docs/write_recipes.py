"""Write the tables of recipes.md again, from the declarations of keys: `python docs/write_recipes.py`."""

from __future__ import annotations

import re
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from daguerre.files import atomic_write
from daguerre.train.concept_loss import ConceptTraining
from daguerre.train.convert import Convert
from daguerre.train.distill.options import Distill
from daguerre.train.keys import RecipeKey, Section
from daguerre.train.lora import Lora
from daguerre.train.prefer.options import Prefer
from daguerre.train.recipe import Optimization, Recipe, Share
from daguerre.train.reinforce.options import Reinforce
from daguerre.train.sft.presets import Sft
from daguerre.train.shape import TrainedShape
from daguerre.train.stage import Stage

PAGE = Path(__file__).with_name("recipes.md")
BLOCK = re.compile(r"(<!-- keys -->\n).*(<!-- end -->)", flags=re.DOTALL)
SECTIONS: tuple[tuple[str, str, type[Section]], ...] = (
    ("", "The run", Recipe),
    ("optim.", "[optim]: the optimizer", Optimization),
    ("stages.N.", "[[stages]]: lengths and batches", Stage),
    ("mixture.NAME.", "[mixture.NAME]: objectives and their shares", Share),
    ("convert.", "[convert]: an autoregressive model becomes another", Convert),
    ("sft.", "[sft]: fine-tuning on prompts and answers", Sft),
    ("prefer.", "[prefer]: learning from preferences", Prefer),
    ("distill.", "[distill]: fewer steps", Distill),
    ("reinforce.", "[reinforce]: answers that the model draws are rewarded", Reinforce),
    ("model.", "[model]: the shape of a model that is trained from scratch", TrainedShape),
    ("concepts.", "[concepts]: concept heads", ConceptTraining),
    ("lora.", "[lora]: an adapter", Lora),
)
"""The prefix of the keys, the heading, and the class of each section."""
TYPES = {int: "whole number", float: "number", str: "text", bool: "true or false"}


def written(text: str) -> str:
    """The page with its tables made anew."""
    tables = "\n".join(f"## {heading}\n\n{_table(prefix, kind)}" for prefix, heading, kind in SECTIONS)
    return BLOCK.sub(lambda found: f"{found[1]}\n{tables}\n{found[2]}", text)


def _table(prefix: str, section: type[Section]) -> str:
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    hints, keys = get_type_hints(section), section.keys()
    for each in fields(section):  # type: ignore[arg-type]
        key = keys[each.name]
        meaning = key.meaning + (f" (`{key.option}`)" if key.option else "")
        if key.methods:
            meaning += f"; read by {', '.join(key.methods)}"
        kind = _type(hints[each.name], key)
        rows.append(f"| `{prefix}{each.name}` | {kind} | {_default(each)} | {meaning} |")
    return "\n".join(rows) + "\n"


def _type(hint: Any, key: RecipeKey) -> str:
    """The type and the range, in words."""
    if key.names:
        names = ", ".join(key.names)
        return f"list of {names}" if get_origin(hint) not in (None, *_UNIONS) and str in get_args(hint) else names
    each = f"{key.num} numbers, each" if key.num else _plain(hint)
    return " ".join(part for part in (each + ("," if key.range() and not key.num else ""), key.range()) if part)


_UNIONS = (get_origin(int | None), get_origin(get_type_hints(TrainedShape)["context"]))


def _plain(hint: Any) -> str:
    if hint in TYPES:
        return TYPES[hint]
    values = get_args(hint)
    if values == (str,):
        return "list of texts"
    inner = next((TYPES[value] for value in values if value in TYPES), "table")
    return "tables" if get_origin(hint) not in (None, *_UNIONS) else inner


def _default(each: Field[Any]) -> str:
    if each.default is MISSING:
        return "needed" if each.default_factory is MISSING else "its defaults"
    if isinstance(each.default, tuple):
        return ", ".join(map(str, each.default)) or "none"
    if isinstance(each.default, bool):
        return str(each.default).lower()
    return "none" if each.default is None else str(each.default)


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    with atomic_write(PAGE) as file:
        file.write(written(text).encode())
