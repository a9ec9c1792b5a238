"""The group of all commands, which imports a command and makes its options when that one is asked for."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from daguerre.commands.short_help import shorten
from daguerre.commands.table import COMMANDS, at
from daguerre.commands.values import read_plain_values


class CommandGroup(TyperGroup):
    """The commands of the table."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.commands = cast("Any", Commands())

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in the order of the table."""
        return list(self.commands)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help, whose list of commands has the sentences of the table."""
        listed = copy.copy(self)
        listed.commands = {name: TyperCommand(name, help=one.sentence) for name, one in COMMANDS.items()}
        super(CommandGroup, listed).format_help(ctx, formatter)


class Commands(Mapping[str, Any]):
    """The commands by name, each made when it is first used."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = made(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def made(name: str) -> Any:
    """A command of the table."""
    place, sentence, is_group = COMMANDS[name]
    if is_group:
        command: Any = get_group(at(place)())
        command.name, command.help = name, command.help or sentence
    else:
        app = typer.Typer(add_completion=False)
        app.command(name)(at(place))
        command = get_command(app)
    for each in all_commands(command):
        prepare(each)
    return command


def all_commands(one: Any) -> Iterator[Any]:
    """A command, and those below it."""
    yield one
    for below in getattr(one, "commands", {}).values():
        yield from all_commands(below)


def prepare(command: Any) -> None:
    """Have a command read plain values itself, its flags say no type in the help, since they take no value, and its
    help be short.
    """
    shorten(command)
    for param in command.get_params(typer.Context(command)):
        read_plain_values(param)
        if getattr(param, "is_bool_flag", False):
            param.metavar = ""
