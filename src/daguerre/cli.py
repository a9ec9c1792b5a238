"""The command line: parse, build, call. Errors are one line and exit status 2; long work shows progress."""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from typer.main import get_command

from daguerre import __version__
from daguerre.commands import applying, asking, caching, capabilities, deciding, models, scoring, serving
from daguerre.commands.loading import ModelName
from daguerre.commands.streams import LostOutput, end_without_output, fail, watch_output
from daguerre.errors import DaguerreError, MissingExtra

SPINS = "5000"
"""How often a thread checks whether the others are done before it sleeps. By default it spins for milliseconds; on a
core that another program uses too, each of a forward's hundred barriers would take that long."""

INTERRUPTED = 130
"""The exit status after Ctrl-C."""

app = typer.Typer(
    name="daguerre",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"daguerre {__version__}")
        raise typer.Exit


@app.callback()
def daguerre(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Diffusion language models: complete, infill, train, evaluate."""


@app.command()
def demo(
    model: ModelName = "default",
    plain: Annotated[bool, typer.Option("--plain", help="No colors, no drawing in place.")] = False,
) -> None:
    """Show the model completing and infilling held-out code, the draft sharpening as it runs."""
    from daguerre.view.demo import run_demo

    run_demo(model, plain=plain)


for command in (asking.generate, asking.complete, asking.infill, asking.fill, asking.edit, applying.apply):
    app.command()(command)
for command in (asking.chat, deciding.decide, scoring.score):
    app.command()(command)
app.command()(serving.serve)
app.command()(serving.batch)
capabilities.add_commands(app)
app.command()(models.pull)
app.command()(models.models)
app.command("inspect")(models.inspect_model)
app.command("chat-format")(models.chat_format)
app.command("export")(models.export_model)
app.command()(caching.cache)


def whole_command() -> Any:
    """The whole command line. Flags say no type in the help: they take no value."""
    made = get_command(app)
    for each in all_commands(made):
        context = typer.Context(each)
        for param in each.get_params(context):
            if getattr(param, "is_bool_flag", False):
                param.metavar = ""
    return made


def all_commands(one: Any) -> Iterator[Any]:
    """A command, and those below it."""
    yield one
    for below in getattr(one, "commands", {}).values():
        yield from all_commands(below)


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
    found = re.match(r"No such option: --([\w-]+)", message)
    if found is None:
        return message
    from daguerre.decoding.request import ELSEWHERE

    ours = ELSEWHERE.get(found[1].replace("-", "_"))
    return message if ours is None else f"No such option: --{found[1]}: did you mean --{ours.replace('_', '-')}?"
