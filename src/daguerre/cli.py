"""The command line: parse, build, call. Errors are one line and exit status 2; long work shows progress."""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
from difflib import get_close_matches
from typing import Annotated, Any

import typer
from typer.main import get_command

from daguerre.commands.group import CommandGroup, prepare
from daguerre.commands.streams import LostOutput, end_without_output, fail, watch_output
from daguerre.errors import DaguerreError, MissingExtra

SPINS = "5000"
"""How often a thread checks whether the others are done before it sleeps. By default it spins for milliseconds; on a
core that another program uses too, each of a forward's hundred barriers would take that long."""

INTERRUPTED = 130
"""The exit status after Ctrl-C."""

app = typer.Typer(
    name="daguerre",
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        from daguerre import __version__

        typer.echo(f"daguerre {__version__}")
        raise typer.Exit


@app.callback()
def daguerre(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Diffusion language models: complete, infill, train, evaluate."""


def whole_command() -> Any:
    """The whole command line."""
    made = get_command(app)
    prepare(made)
    return made


def main() -> None:
    """Console entry: a mistake is one line on standard error and exit status 2, and so is output that is lost."""
    if sys.argv[1:2] != ["bench"]:  # which measures with the default
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    if sys.stderr is not None and sys.stderr.isatty():  # report slow steps to an interactive user
        logging.basicConfig(format="daguerre: %(message)s")
        logging.getLogger("daguerre").setLevel(logging.INFO)
    try:
        watch_output()
        output = sys.stdout
        try:
            status = whole_command()(standalone_mode=False) or 0
            sys.stdout.flush()
        except SystemExit:
            if sys.stdout is not output:  # so typer ends a command whose reader has gone
                raise LostOutput(errno.EPIPE, "") from None
            raise
        if status == INTERRUPTED:  # Typer's word for Ctrl-C
            raise KeyboardInterrupt
        sys.exit(status)
    except LostOutput as error:
        end_without_output(error)
    except OSError as error:
        if error.filename is None:
            raise
        fail(f"{error.filename}: {error.strerror or error}")
    except typer.TyperException as error:
        message = getattr(error, "format_message", error.__str__)()
        if not message:  # no command: the help is printed already
            sys.exit(2)
        fail(f"{_in_our_words(message)} (see --help)")
    except DaguerreError as error:
        fail(_as_options(str(error)))
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        fail(str(MissingExtra("torch", "torch")))
    except (KeyboardInterrupt, typer.Abort):
        fail("interrupted", INTERRUPTED)


def _as_options(message: str) -> str:
    """A message of the library with its options as the command line has them: mode "block" is --mode block, heal=False
    is --no-heal, and min_tokens is --min-tokens.
    """
    from daguerre.commands.options import REQUEST

    names = "|".join(sorted({*REQUEST, "max_tokens", "search_length"}, key=len, reverse=True))
    message = re.sub(r'\b(mode|policy) "(\w+)"', r"--\1 \2", message)

    def option(found: re.Match[str]) -> str:
        name, value = found[1].replace("_", "-"), found[2]
        if value in (None, "True"):
            return f"--{name}"
        return f"--no-{name}" if value == "False" else f"--{name} {value.strip(chr(34))}"

    message = re.sub(rf'(?<![\w."-])({names})=("?[\w.]+"?)', option, message)
    words = [name for name in names.split("|") if "_" in name]
    return re.sub(
        rf'(?<![\w."\'-])({"|".join(words)})()(?![\w"\'])', lambda found: f"--{found[1].replace('_', '-')}", message
    )


def _in_our_words(message: str) -> str:
    """A message on an option that other libraries have, with the name of ours."""
    found = re.match(r"No such option: (--[\w-]+)( \(Possible options: (.*)\))?", message)
    if found is None:
        return message
    from daguerre.decoding.request import ELSEWHERE

    ours = ELSEWHERE.get(found[1][2:].replace("-", "_"))
    near = get_close_matches(found[1], (found[3] or "").split(", "), n=1, cutoff=0.1)
    meant = near[0] if ours is None and near else None if ours is None else f"--{ours.replace('_', '-')}"
    return message if not meant else f"No such option: {found[1]}: did you mean {meant}?"
