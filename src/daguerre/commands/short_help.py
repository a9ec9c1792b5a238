"""Short helps: `--help` shows what people use, in at most MOST_LINES lines; `--help-all` shows everything."""

from __future__ import annotations

import copy
import functools
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import typer

from daguerre.commands.table import COMMANDS, RARE

MOST_LINES = 40
LONGEST, SHORTEST = 100, 60
"""Characters of a line."""
LEFT = 26
"""Characters before what an option does."""
DECLARED = (("daguerre.decoding.options", "DecodeOptions"), ("daguerre.models.load_options", "LoadOptions"))
"""Where options of requests and of loading are declared."""
MOST_EACH = (3, 2, 1)
"""How many lines an option may take, of which the first number is taken that fits."""


def shorten(command: Any) -> None:
    """Have a command's `--help` be short, and `--help-all` show what it did."""
    everything = functools.partial(type(command).format_help, command)
    command.format_help = functools.partial(_write, command)
    one = copy.copy(command.get_help_option(typer.Context(command)))

    def show(context: Any, _: Any, asked: bool) -> None:
        if asked and not context.resilient_parsing:
            formatter = context.make_formatter()
            everything(context, formatter)
            typer.echo(formatter.getvalue(), nl=False)
            context.exit()

    one.name, one.opts, one.help, one.callback = "help_all", ["--help-all"], "Show all options, in full.", show
    command.params.append(one)


def _write(command: Any, context: Any, formatter: Any) -> None:
    """Write the short help: with every option where it fits, else with those that people use."""
    width = max(SHORTEST, min(LONGEST, shutil.get_terminal_size().columns))
    options = [one for one in command.get_params(context) if one.param_type_name == "option" and not one.hidden]
    common = [one for one in options if is_common(one)]
    ways = [(shown, most) for shown in (options, common) for most in MOST_EACH if shown is common or most > 1]
    made = (_text(command, context, shown, most, width) for shown, most in ways)
    lines = next((text for text in made if len(text) <= MOST_LINES), None) or _text(command, context, common, 1, width)
    formatter.write("\n".join(lines))


def is_common(option: Any) -> bool:
    """Whether people use an option: of requests and of loading as it is declared, of others unless it is in RARE."""
    if option.name in RARE:
        return False
    for place, owner in DECLARED:
        module = sys.modules.get(place)  # where it is not imported, the command has none of its options
        if module is not None:
            from daguerre.kinds import options_of

            declared = options_of(getattr(module, owner)).get(option.name)
            if declared is not None:
                return declared.common
    return True


def _text(command: Any, context: Any, options: list[Any], most: int, width: int) -> list[str]:
    """The lines of a help with these options, each of which takes so many lines at most."""
    arguments = [one for one in command.params if one.param_type_name == "argument" and not one.hidden]
    pieces = ["[OPTIONS]", *(_named(one) for one in arguments)]
    below = [*_below(command, context)]
    lines = [f"Usage: {context.command_path} {' '.join(pieces + ['COMMAND'] * bool(below))}", ""]
    lines += textwrap.wrap(" ".join((command.help or "").split()), width)
    for one in arguments:
        lines += _entry(f"  {_named(one)}", one.help or "", most, width)
    lines += ["", *(f"  {name:12} {_cut(sentence, width - 15)}" for name, sentence in below)] if below else []
    lines.append("")
    for one in options:
        lines += _entry(f"  {_flags(one)}", _first_sentence(one.help or ""), most, width)
    return lines


def _named(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper()) + ("..." if argument.nargs == -1 else "")


def _flags(option: Any) -> str:
    """An option's names, the shortest first, and what it takes."""
    names = "/".join([", ".join(sorted(option.opts, key=len)), *option.secondary_opts])
    kind = "" if option.is_flag else option.metavar or option.bare_type().removeprefix("list[").rstrip("]")
    return f"{names} {kind.upper()}".rstrip()


def _first_sentence(words: str) -> str:
    return words.partition(". ")[0].rstrip(".")


def _entry(left: str, words: str, most: int, width: int) -> Iterator[str]:
    """An argument or an option: its name, and what it is."""
    beside = len(left) < LEFT
    wrapped = textwrap.wrap(" ".join(words.split()), width - LEFT, max_lines=most, placeholder=" ...")
    yield f"{left:{LEFT}}{wrapped[0]}" if beside and wrapped else left
    for line in wrapped[beside:]:
        yield f"{'':{LEFT}}{line}"


def _below(command: Any, context: Any) -> Iterator[tuple[str, str]]:
    """The commands of a group, each with a sentence; none is made for it that is in the table."""
    if not hasattr(command, "list_commands"):
        return
    for name in command.list_commands(context):
        known = COMMANDS.get(name) if context.parent is None else None
        yield name, known.sentence if known is not None else command.commands[name].get_short_help_str(200)


def _cut(words: str, width: int) -> str:
    """A sentence, or, where it is longer than a line, its first part."""
    first = words if len(words) <= width else re.split(r"[:;(]|, and ", words)[0].strip()
    return textwrap.shorten(first, width, placeholder=" ...")
