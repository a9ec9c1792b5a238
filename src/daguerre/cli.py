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
from daguerre.commands import (
    asking,
    auditing,
    concept_search,
    concepts,
    deciding,
    making,
    measuring,
    models,
    overlap,
    routing,
    scoring,
    serving,
)
from daguerre.commands.loading import ModelName
from daguerre.commands.streams import LostOutput, end_without_output, fail, watch_output
from daguerre.errors import DaguerreError

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
data_app = typer.Typer(help="Collect training data.", no_args_is_help=True)
bench_app = typer.Typer(invoke_without_command=True)
concepts_app = typer.Typer(help="Concepts of Python source: labels, examples, explanations.", no_args_is_help=True)
audit_app = typer.Typer(help="Ledgers of generations: check, show, erase.", no_args_is_help=True)


route_app = typer.Typer(invoke_without_command=True)


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


for command in (asking.generate, asking.complete, asking.infill, asking.fill, asking.edit):
    app.command()(command)
for command in (asking.chat, deciding.decide, scoring.score):
    app.command()(command)
app.command()(serving.serve)
app.command()(serving.batch)
app.add_typer(route_app, name="route")
route_app.callback()(routing.route)
route_app.command()(routing.replay)
route_app.command()(routing.analyze)
route_app.command()(routing.fit)
route_app.command()(routing.schema)
app.command()(measuring.calibrate)
app.add_typer(data_app, name="data")
data_app.command("python")(making.data_python)
data_app.command("self")(making.data_self)
data_app.command("index")(making.data_index)
data_app.command("where")(overlap.data_where)
app.command()(making.train)
app.command()(making.average)
app.command("eval")(measuring.evaluate_model)
app.add_typer(bench_app, name="bench")
bench_app.callback()(measuring.bench)
bench_app.command("endpoint")(measuring.bench_endpoint)
app.add_typer(concepts_app, name="concepts")
concepts_app.command()(concepts.label)
concepts_app.command("list")(concepts.list_concepts)
concepts_app.command()(concepts.show)
concepts_app.command()(concepts.explain)
concepts_app.command()(concept_search.find)
concepts_app.command()(concept_search.search)
app.add_typer(audit_app, name="audit")
for command in (auditing.key, auditing.verify, auditing.show, auditing.head, auditing.note, auditing.erase):
    audit_app.command()(command)
audit_app.command()(auditing.schema)
app.command()(models.pull)
app.command()(models.models)
app.command("inspect")(models.inspect_model)
app.command("chat-format")(models.chat_format)
app.command("export")(models.export_model)


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
