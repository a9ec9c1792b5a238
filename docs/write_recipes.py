"""Write the lists of recipes.md again, from the declarations of keys: `python docs/write_recipes.py`."""

from __future__ import annotations

import json
import re
import textwrap
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
from daguerre.train.teach.options import Rollouts, Teaching

PAGE = Path(__file__).with_name("recipes.md")
BLOCK = re.compile(r"(<!-- keys -->\n).*(<!-- end -->)", flags=re.DOTALL)
SECTIONS: tuple[tuple[str, str, type[Section]], ...] = (
    ("", "The run", Recipe),
    ("optim", "[optim]: the optimizer", Optimization),
    ("stages", "[[stages]]: lengths and batches", Stage),
    ("mixture", "[mixture.NAME]: objectives and their shares", Share),
    ("convert", "[convert]: an autoregressive model becomes another", Convert),
    ("teacher", "[teacher]: a frozen model that is learned from", Teaching),
    ("rollouts", "[rollouts]: learning on the model's own answers", Rollouts),
    ("sft", "[sft]: fine-tuning on prompts and answers", Sft),
    ("prefer", "[prefer]: learning from preferences", Prefer),
    ("distill", "[distill]: fewer steps", Distill),
    ("reinforce", "[reinforce]: rewards for sampled answers", Reinforce),
    ("model", "[model]: the shape of a model that is trained from scratch", TrainedShape),
    ("concepts", "[concepts]: concept heads", ConceptTraining),
    ("lora", "[lora]: an adapter", Lora),
)
"""The name, the heading, and the class of each section."""
TYPES = {int: "integer", float: "number", str: "text", bool: "boolean"}
SIGNS = {"at least ": "≥ ", "above ": "> ", "at most ": "≤ ", "below ": "< ", " and ": ", "}
"""Words of a range, as the page writes them."""


def written(text: str) -> str:
    """The page with its lists made anew."""
    lists = "\n".join(f"## {heading}\n{_list(name, section)}" for name, heading, section in SECTIONS)
    return BLOCK.sub(lambda found: f"{found[1]}\n{lists}\n{found[2]}", text)


def _list(name: str, section: type[Section]) -> str:
    hints, keys = get_type_hints(section), section.keys()
    lines = [_line(each, hints[each.name], keys[each.name], name) for each in fields(section)]  # type: ignore[arg-type]
    return "\n".join(textwrap.fill(line, 120, subsequent_indent="  ", break_on_hyphens=False) for line in lines) + "\n"


def _line(each: Field[Any], hint: Any, key: RecipeKey, section: str) -> str:
    """`key` = default (values): meaning; read by METHODS, where the key or the section does not name them already."""
    default = _default(each)
    needed = "needed; " if each.default is MISSING and each.default_factory is MISSING else ""
    values = needed + _values(hint, key, default == "")
    meaning = key.meaning + (f" (`{key.option}`)" if key.option else "")
    if key.methods and tuple(key.methods) not in ((each.name,), (section,)):
        meaning += f"; read by {', '.join(key.methods)}"
    return (
        f"* `{each.name}`" + (f" = {default}" if default else "") + (f" ({values})" if values else "") + f": {meaning}"
    )


def _values(hint: Any, key: RecipeKey, needs_type: bool) -> str:
    """What a key may be: names, a range, or a type, which is left out where the default shows it."""
    if key.names:
        names = ", ".join(key.names)
        return f"list of {names}" if get_origin(hint) not in (None, *_UNIONS) and str in get_args(hint) else names
    limits = key.range()
    for words, sign in SIGNS.items():
        limits = limits.replace(words, sign)
    limits = re.sub(r"≥ (\S+), ≤ (\S+)", r"\1 to \2", limits)
    kind = _plain(hint)
    named = kind if needs_type or kind in ("table", "tables") else ""
    return " ".join(part for part in (f"{key.num} numbers, each" if key.num else named, limits) if part)


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
    """As in TOML; "" where there is none, or where it says nothing: None, a table, an empty list."""
    if each.default is MISSING or each.default is None or each.default == ():
        return ""
    if isinstance(each.default, tuple):
        return f"[{', '.join(map(json.dumps, each.default))}]"
    return json.dumps(each.default)


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    with atomic_write(PAGE) as file:
        file.write(written(text).encode())
