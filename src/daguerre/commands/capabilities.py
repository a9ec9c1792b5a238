"""Where the command line finds the capabilities beside the runtime: the one place of the runtime that names them.

They import the runtime, which imports none of them: a name in this table is a text, and is imported when it is used.
The table is not made of entry points of the installed distribution, since a checkout that is found by its path would
get those of whatever version is installed, and since reading the metadata of all distributions takes longer than
importing these modules.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer

COMMANDS = (
    "daguerre.router.commands",
    "daguerre.train.commands",
    "daguerre.evals.commands",
    "daguerre.concepts.commands",
    "daguerre.audit.commands",
)
"""Modules with a function `add_commands(app)`. All are imported at every start: what is slow they import when used."""
RECORDER = "daguerre.audit.recorder:Recorder"
"""Takes a ledger, a model, a key and the model's name: `--audit`."""
TRAINING_NEEDS = "daguerre.train.commands:print_needs"
"""Takes a model's folder, a recipe, a family, a number of devices and whether to print JSON: `inspect --train`."""


def add_commands(app: typer.Typer) -> None:
    """Add the commands of every capability."""
    for name in COMMANDS:
        import_module(name).add_commands(app)


def capability(name: str) -> Any:
    """What a name of this table, module:attribute, stands for."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
