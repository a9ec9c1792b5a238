"""What the commands share: their options, how text and files are given to a request, how its result is shown."""

from __future__ import annotations

import functools
import inspect
import json
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from daguerre.commands.loading import AsJson as AsJson
from daguerre.commands.loading import parameters_of, takes_groups, with_parameters
from daguerre.commands.streams import read_input
from daguerre.commands.viewing import print_explained
from daguerre.decoding.options import DecodeOptions, DrafterName
from daguerre.errors import InputError
from daguerre.kinds import Option, Switch, options_of

DraftText = Annotated[
    str | None, typer.Option("--draft", help="What the output will likely be, to start from; `@FILE` reads a file.")
]
SearchLength = Annotated[
    bool | None,
    typer.Option(
        "--search-length/--no-search-length",
        help="Ask the model how long the gap is, of the lengths up to --max-tokens; by default where it has no <null>.",
    ),
]
LEFT_OUT = ("logit_bias", "scorer")
"""Options of `Decode` that no command line can say."""
SPECIAL: dict[str, Any] = {
    **{name: Annotated[str | None, typer.Option(metavar="JSON|FILE")] for name in ("schema", "tools", "steer")},
    "parallel_calls": Annotated[bool | None, typer.Option("--parallel-calls/--one-call")],
    "n": Annotated[int | None, typer.Option("--n", "-n")],
    "pins": Annotated[
        list[str] | None,
        typer.Option(
            help="AT=TEXT: the output has TEXT at this token position, from 0, or from the right, -1; or with "
            "START:END=TEXT somewhere between two."
        ),
    ],
}
"""Options that have another form on the command line than their types say."""


def as_parameter(name: str, declared: Option) -> Any:
    """An option of `Decode` as one of the command line; left out, it is as `Decode` and the model have it."""
    flag = isinstance(declared.kind, Switch) and not declared.kind.none
    form = (
        SPECIAL.get(name)
        or Annotated[declared.kind.json | None, typer.Option(*([f"--{name.replace('_', '-')}"] if flag else []))]
    )
    kind, shown = get_args(form)
    again = " May be repeated." if kind == list[str] | None else ""
    shown.help = (shown.help or re.sub(r"\b\w+_\w+\b", _dashed, declared.sentence).replace("`", "")) + again
    return form


def _dashed(found: re.Match[str]) -> str:
    return f"--{found[0].replace('_', '-')}" if found[0] in {*OPTIONS, "max_tokens"} else found[0]


OPTIONS = {name: declared for name, declared in options_of(DecodeOptions).items() if name not in LEFT_OUT}
REQUEST: dict[str, Any] = {
    "max_tokens": Annotated[int | None, typer.Option(help="Most tokens to write.")],
    **{name: as_parameter(name, declared) for name, declared in OPTIONS.items()},
    "heal": Annotated[bool | None, typer.Option("--heal/--no-heal", help="Redraw a last word that may be cut off.")],
    "timeout": Annotated[
        float | None, typer.Option(help="Seconds for the output; as they run out, a step commits more.")
    ],
}
"""What a request may ask for, shared by the commands that make one."""


def takes(table: dict[str, Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a table; it receives those that the user gave."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        kept = [one for one in parameters_of(command) if one.kind is not inspect.Parameter.VAR_KEYWORD]
        kind = inspect.Parameter.KEYWORD_ONLY
        added = [inspect.Parameter(name, kind, default=None, annotation=option) for name, option in table.items()]

        def wrapper(**values: Any) -> None:
            command(**{name: value for name, value in values.items() if name not in table or value not in (None, [])})

        return with_parameters(command, wrapper, [*kept, *added])

    return decorate


def makes_request(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of REQUEST, of which it receives those that the user gave, files and pins read; and
    those of its groups.
    """

    @takes(REQUEST)
    @functools.wraps(command)
    def wrapper(**given: Any) -> None:
        _name_second_model(given)
        given |= {name: _json(name, given[name]) for name in ("schema", "tools") if name in given}
        if "steer" in given:
            given["steer"] = _program(given["steer"])
        command(**given | ({"pins": _pins(given["pins"])} if "pins" in given else {}))

    return takes_groups(wrapper)


def _name_second_model(given: dict[str, Any]) -> None:
    """What --drafter names, if it is none of the option's own words, is a model: as if --drafts named it."""
    name, loading = given.get("drafter"), given.get("loading")
    if name is None or name in get_args(DrafterName) or loading is None:
        return
    if loading.drafts is not None:
        raise InputError("--drafter and --drafts name a model each: leave out one of the two")
    given["loading"] = replace(loading, drafts=given.pop("drafter"))


def read_pairs(given: list[str] | None) -> list[tuple[int, int]] | None:
    """START:END as numbers; one number means both. None where nothing is given."""
    out = []
    for text in given or []:
        first, _, last = text.partition(":")
        try:
            out.append((int(first), int(last or first)))
        except ValueError:
            raise InputError(f"{text!r} is not two numbers with a colon between, such as 3:5") from None
    return out or None


def _pins(given: list[str]) -> list[Any]:
    from daguerre.decoding.pins import Pin

    return [Pin.parse(text) for text in given]


def _program(given: str) -> Any:
    from daguerre.decoding.steering import Steering

    return Steering.from_json(_content(given))


def _content(given: str) -> str:
    """JSON that is given itself, or in a file."""
    return given if given.lstrip()[:1] in ("{", "[") or given in ("true", "false") else read_file(given)


def _json(name: str, given: str) -> Any:
    """JSON that is given itself, or in a file."""
    content = _content(given)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        where = f"--{name}" if content is given else given
        raise InputError(f"{where} is not JSON: {error}; correct it") from None


def read_file(path: str) -> str:
    """The file's text, line breaks as they are."""
    try:
        return Path(path).read_bytes().decode("utf-8")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start}): convert it first") from None


def read_text(argument: str) -> str:
    """The argument itself, or standard input for `-`. A note on standard error where it names a file, which is not
    read. InputError when the bytes are not UTF-8.
    """
    if names_file(argument):
        note = f"{argument} is taken as the text itself, and not read: for the file's text use - < {argument}"
        typer.echo(f"daguerre: {note}", err=True)
    raw = read_input() if argument == "-" else argument.encode("utf-8", errors="surrogateescape")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"the text is not valid UTF-8 (byte {error.start}): convert it first, for example with iconv"
        ) from None


def names_file(argument: str) -> bool:
    """Whether a text is the name of a file, with a folder or an ending: a word alone is hardly meant as one."""
    if argument == "-" or "\n" in argument or not ("." in argument or "/" in argument):
        return False
    try:
        return Path(argument).is_file()
    except (OSError, ValueError):
        return False


def read_draft(argument: str | None) -> str | None:
    """The argument itself, or the file that it names after an @."""
    return read_file(argument[1:]) if argument is not None and argument.startswith("@") else argument


def print_result(result: Any, as_json: bool) -> None:
    """One sample; of several all, each under its number, or in JSON as "choices" beside the first."""
    if as_json:
        bodies = [_body(choice) for choice in result.choices]
        body = bodies[0] | ({"choices": bodies} if result.others else {})
        typer.echo(json.dumps(body, ensure_ascii=False))
        return
    print_ignored(result)
    _say_looped(result)
    for number, choice in enumerate(result.choices, 1):
        if result.others:
            typer.echo(f"--- sample {number}")
        typer.echo(choice.text)
        print_explained(choice)


def print_notes(result: Any) -> None:
    """What there is to say of a text that was shown while it was written."""
    print_ignored(result)
    _say_looped(result)
    print_explained(result)


def _say_looped(result: Any) -> None:
    if any(choice.looped for choice in result.choices):
        note = "the text repeated itself and was ended there: --no-stop-loops writes on, --temperature 1 varies it"
        typer.echo(f"daguerre: {note}", err=True)


def print_ignored(result: Any) -> None:
    """What of a schema is not enforced, on standard error; in JSON it is a part of the body."""
    if result.ignored:
        print(f"daguerre: ignored in the schema: {', '.join(result.ignored)}", file=sys.stderr)


def _body(result: Any) -> dict[str, Any]:
    """One sample as JSON; what several gaps or an edit add comes last."""
    body = {"text": result.text, "finish_reason": result.finish_reason, "usage": asdict(result.usage)}
    if len(result.texts) > 1 or result.original is not None:
        body |= {"texts": result.texts, "spans": result.spans}
    if result.ignored:
        body["ignored"] = result.ignored
    if result.looped:
        body["looped"] = True
    if result.context is not None and not result.context.complete:
        body["context"] = {"complete": False, "lines": result.context.lines, "num_lines": result.context.num_lines}
    if result.searched is not None:
        body["searched"] = {"lengths": result.searched.lengths, "scores": result.searched.scores}
    if result.concepts is not None:
        body["concepts"] = result.concepts.to_dict()
    return body if result.original is None else body | {"diff": result.diff}
