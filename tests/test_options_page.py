"""The table of options: what is made of it says all of it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from daguerre import Decode
from daguerre.arguments import options_of
from daguerre.commands.options import LEFT_OUT, REQUEST
from daguerre.decoding.modes import mode_options
from daguerre.sampling.policies import POLICIES

DOCS = Path(__file__).parents[1] / "docs"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_options", DOCS / "write_options.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_the_page_of_options_is_made_of_the_table() -> None:
    text = (DOCS / "options.md").read_text(encoding="utf-8")
    assert script().written(text) == text


def test_modes_and_policies_read_options_of_the_table_and_each_says_what_it_does() -> None:
    declared = options_of(Decode)
    assert mode_options() | {name for kind in POLICIES.values() for name in kind.options} <= declared.keys()
    assert REQUEST.keys() >= declared.keys() - {*LEFT_OUT}
    for name, one in declared.items():
        assert one.says and f"{name}: {one.says}" in str(Decode.__doc__)
