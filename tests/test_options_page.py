"""The table of options: what is made of it says all of it."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
from pathlib import Path
from types import ModuleType

import daguerre
from daguerre import Decode
from daguerre.commands.options import LEFT_OUT, REQUEST
from daguerre.decoding.modes import mode_options
from daguerre.kinds import options_of
from daguerre.models.load_options import LoadOptions
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


def test_the_arguments_of_load_are_those_of_the_table() -> None:
    declared = {each.name: each.default for each in dataclasses.fields(LoadOptions)}
    assert {one.name: one.default for one in inspect.signature(daguerre.load).parameters.values()} == declared
    assert all(f"{name}: {one.says}" in str(daguerre.load.__doc__) for name, one in options_of(LoadOptions).items())
