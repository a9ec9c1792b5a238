"""Write the lists of options.md again: `python docs/write_options.py`."""

from __future__ import annotations

import re
import textwrap
from dataclasses import fields
from pathlib import Path
from typing import Any

from daguerre.decoding.modes import MODES, mode_options
from daguerre.decoding.options import DecodeOptions
from daguerre.files import atomic_write
from daguerre.kinds import Option, options_of
from daguerre.models.load_options import LoadOptions
from daguerre.sampling.policies import POLICIES

PAGE = Path(__file__).with_name("options.md")
BLOCK = re.compile(r"(<!-- (options|loading) -->\n).*?(<!-- end -->)", flags=re.DOTALL)


def readers(name: str) -> list[str]:
    """Which modes and policies read an option; [] for all."""
    modes = [mode.name for mode in MODES.values() if name in mode.options and name in mode_options()]
    policies = [policy for policy, kind in POLICIES.items() if name in kind.options]
    named = {("mode", "modes")[len(modes) > 1]: modes, ("policy", "policies")[len(policies) > 1]: policies}
    return [f"{kind} {', '.join(names)}" for kind, names in named.items() if names]


def entry(name: str, declared: Option, default: Any, whole: bool) -> str:
    """The lines of one option; `whole`: with all that it says."""
    if not whole:
        return textwrap.fill(f"* **`{name}`** = {default!r}: {declared.sentence}", 120, subsequent_indent="  ")
    read_by = readers(name)
    head = "; ".join([str(declared.kind), f"default {default!r}", *read_by])
    says = re.sub("^Mode (.*?): ", lambda found: "" if f"mode {found[1]}" in read_by else found[0], declared.says)
    return textwrap.fill(f"* **`{name}`** ({head}): {says}", 120, subsequent_indent="  ")


def listed(owner: Any, whole: bool = True) -> str:
    """The options of a table."""
    defaults = {field.name: field.default for field in fields(owner)}
    return "\n".join(entry(name, declared, defaults[name], whole) for name, declared in options_of(owner).items())


def written(text: str) -> str:
    """The page with its lists made anew."""
    lists = {"options": listed(DecodeOptions), "loading": listed(LoadOptions, whole=False)}
    return BLOCK.sub(lambda found: f"{found[1]}\n{lists[found[2]]}\n\n{found[3]}", text)


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    with atomic_write(PAGE) as file:
        file.write(written(text).encode())
