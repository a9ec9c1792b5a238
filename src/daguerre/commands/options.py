"""What the commands share: their options, how text and files are given to a request, how its result is shown."""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from daguerre.commands.explaining import print_explained
from daguerre.commands.loading import chooses_model
from daguerre.commands.streams import read_input
from daguerre.errors import InputError

ModelName = Annotated[
    str, typer.Option("--model", "-m", help="A folder, a GGUF file, a name on a model hub, `default` or `concepts`.")
]
BackendName = Annotated[
    str | None,
    typer.Option("--backend", help="What runs the model: native or torch; by default native where it can be compiled."),
]
QuantizeName = Annotated[
    str | None,
    typer.Option(
        "--quantize",
        help="int8: matrices as 8-bit numbers, faster and approximate; approximate_int4: as 4-bit numbers.",
    ),
]
DtypeName = Annotated[
    str,
    typer.Option("--dtype", help="float32, bfloat16, or auto: the faster one here, mostly bfloat16."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
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
Picture = Annotated[
    Path | None, typer.Option("--picture", help="Draw the canvas over time to this PNG file (needs the train extra).")
]
AuditLedger = Annotated[
    Path | None,
    typer.Option("--audit", help="A ledger: what is asked and written becomes a record (needs --audit-key)."),
]
AuditKey = Annotated[
    Path | None, typer.Option("--audit-key", help="The key that signs it: make one with `daguerre audit key FILE`.")
]
# What a request may ask for, shared by the commands that make one. Left out, each is as `Decode` and the model have it.
REQUEST: dict[str, Any] = {
    "max_tokens": Annotated[int | None, typer.Option(help="Most tokens to write.")],
    "min_tokens": Annotated[
        int | None, typer.Option(help="Fewest tokens to write; if equal to --max-tokens, exactly that many.")
    ],
    "mode": Annotated[
        str | None,
        typer.Option(
            help="ar, block, full, speculative, beam, ancestral, renoise, expand; by default lossless, or beam."
        ),
    ],
    "block_size": Annotated[
        int | None,
        typer.Option(help="Tokens denoised together (block mode); most tokens a forward (speculative)."),
    ],
    "sliding": Annotated[
        bool | None,
        typer.Option("--sliding", help="Mode block: a window of --block-size from the first open token on, each step."),
    ],
    "drafter": Annotated[
        str | None, typer.Option(help="What drafts in mode speculative: head (the model), lookup (the text), or auto.")
    ],
    "start_tokens": Annotated[int | None, typer.Option(help="Tokens that a gap begins with in mode expand.")],
    "num_beams": Annotated[int | None, typer.Option(help="Fillings of a gap that mode beam compares.")],
    "no_repeat_context_lines": Annotated[
        bool | None,
        typer.Option(
            "--no-repeat-context-lines", help="Mode beam: no filling whose every line is in the context already."
        ),
    ],
    "fill_end": Annotated[
        str | None,
        typer.Option(
            help="Mode fim: a gap ends where the text after it fits (fit), or where the model ends it (model)."
        ),
    ],
    "policy": Annotated[
        str | None,
        typer.Option(
            help="What a step commits: threshold, joint_threshold, chain, factor, entropy_bounded, entropy_threshold, "
            "confidence, entropy, margin, random, origin or first_hitting."
        ),
    ],
    "threshold": Annotated[
        float | None, typer.Option(help="Probability from which policies threshold and chain commit.")
    ],
    "edit_threshold": Annotated[
        float | None, typer.Option(help="joint_threshold: replace a token by one of more than this probability.")
    ],
    "factor": Annotated[float | None, typer.Option(help="Policy factor: how unsure n positions may be together.")],
    "gamma": Annotated[
        float | None, typer.Option(help="Policy entropy_bounded: nats of entropy that a commit may have.")
    ],
    "entropy_threshold": Annotated[
        float | None, typer.Option(help="Policy entropy_threshold: nats of entropy below which a token is committed.")
    ],
    "position_penalty": Annotated[
        float | None, typer.Option(help="Policy entropy_threshold: nats added for each position from the first one.")
    ],
    "steps": Annotated[
        int | None,
        typer.Option(
            help="Most forwards per span of the confidence, entropy, margin, random, origin and first_hitting policies."
        ),
    ],
    "schedule": Annotated[
        str | None,
        typer.Option(help="Policies confidence, entropy, margin, random: even, or time, few at first as Dream does."),
    ],
    "rank_temperature": Annotated[
        float | None,
        typer.Option(help="Policies confidence, entropy, margin: 0 commits what ranks highest; above 0 draws by rank."),
    ],
    "rank_by": Annotated[
        str | None,
        typer.Option(help="Policies rank by the model's probabilities (model), or by those after the cuts (drawn)."),
    ],
    "greedy_tail": Annotated[
        bool | None,
        typer.Option("--greedy-tail", help="Mode ancestral: the last forward takes the most likely tokens."),
    ],
    "remask": Annotated[
        float | None, typer.Option(help="Mode ancestral: how often at most a written token becomes a mask again.")
    ],
    "revise": Annotated[int | None, typer.Option(help="How many times a finished span is read again and corrected.")],
    "revise_threshold": Annotated[float | None, typer.Option(help="Probability from which a token is replaced.")],
    "revise_reading": Annotated[
        str | None,
        typer.Option(
            help="unmasked: one forward sees all tokens; leave_one_out: a forward each, with that token masked."
        ),
    ],
    "temperature": Annotated[float | None, typer.Option(help="0 takes the most likely token.")],
    "t_max": Annotated[float | None, typer.Option(help="Mode renoise: temperature of a canvas' first step.")],
    "t_min": Annotated[float | None, typer.Option(help="Mode renoise: temperature that it falls to.")],
    "max_entropy": Annotated[
        float | None, typer.Option(help="Mode renoise: mean nats of entropy below which a canvas is done.")
    ],
    "top_p": Annotated[float | None, typer.Option(help="Draw from the smallest set with this probability.")],
    "top_k": Annotated[int | None, typer.Option(help="Draw from this many most likely tokens.")],
    "min_p": Annotated[float | None, typer.Option(help="Draw no token less likely than this share of the likeliest.")],
    "repetition_penalty": Annotated[
        float | None, typer.Option(help="Divide the logits of tokens that the text or the prompt has; 1 is none.")
    ],
    "no_repeat_ngram_size": Annotated[
        int | None, typer.Option(help="So many tokens in a row never stand twice in prompt and text; 0 is none.")
    ],
    "stop_loops": Annotated[
        bool | None,
        typer.Option(
            "--stop-loops/--no-stop-loops",
            help="End the text where it repeats itself; by default with the package's models at temperature 0.",
        ),
    ],
    "end_of_text": Annotated[
        str | None, typer.Option(help="What <eos> does in modes block, full, expand: fill, plain, last or never.")
    ],
    "stop": Annotated[list[str] | None, typer.Option(help="Text that ends the output; may be repeated.")],
    "regex": Annotated[str | None, typer.Option(help="The output matches this pattern as a whole.")],
    "schema": Annotated[
        str | None,
        typer.Option(metavar="JSON|FILE", help="The output is JSON of this JSON Schema, or of that in a file."),
    ],
    "choices": Annotated[list[str] | None, typer.Option(help="The output is this text, or another that is given.")],
    "tools": Annotated[
        str | None,
        typer.Option(
            metavar="JSON|FILE",
            help="The output is text, or calls of the functions that this JSON, or a file of it, lists.",
        ),
    ],
    "tool_choice": Annotated[
        str | None,
        typer.Option(help="With tools. auto: text or calls; none: text; required: calls; a name: one call of it."),
    ],
    "parallel_calls": Annotated[
        bool | None, typer.Option("--parallel-calls/--one-call", help="With tools: whether there may be several calls.")
    ],
    "chat_format": Annotated[
        str | None,
        typer.Option("--chat-format", help="The text is an answer as the model's chat template writes one: may, does."),
    ],
    "keywords": Annotated[list[str] | None, typer.Option(help="The output contains this text; may be repeated.")],
    "forbidden": Annotated[
        list[str] | None,
        typer.Option(help="This text is nowhere in the output, nor across its edges; may be repeated."),
    ],
    "ending": Annotated[str | None, typer.Option(help="The output ends with this text.")],
    "pins": Annotated[
        list[str] | None,
        typer.Option(
            help="AT=TEXT: the output has TEXT at this token position, from 0, or from the right, -1; or with "
            "START:END=TEXT somewhere between two. May be repeated."
        ),
    ],
    "lenient": Annotated[
        bool | None, typer.Option("--lenient", help="Ignore unsupported parts of a schema, and list them.")
    ],
    "strict": Annotated[
        bool | None,
        typer.Option("--strict", help="Refuse keywords and formats of a schema that no draft of JSON Schema knows."),
    ],
    "explain": Annotated[
        bool | None, typer.Option("--explain", help="Print which concepts each line's tokens consist of.")
    ],
    "steer": Annotated[
        str | None,
        typer.Option(metavar="JSON|FILE", help="A steering program: operations on concepts as JSON, or a file of it."),
    ],
    "forbid": Annotated[
        list[str] | None, typer.Option(help="A concept that steering makes unlikely; may be repeated.")
    ],
    "forbid_exactly": Annotated[
        bool | None,
        typer.Option("--forbid-exactly", help="With --forbid: also forbid the texts without which there is none."),
    ],
    "n": Annotated[int | None, typer.Option("--n", "-n", help="Samples.")],
    "seed": Annotated[int | None, typer.Option(help="Seed of every random number.")],
    "guidance": Annotated[
        float | None,
        typer.Option(help="Scale of guidance toward the text before the gap; 1 is none."),
    ],
    "guidance_schedule": Annotated[
        str | None, typer.Option(help="constant, or linear or cosine: guidance grows as the text is committed.")
    ],
    "negative": Annotated[str | None, typer.Option(help="The text to guide away from.")],
    "cache": Annotated[
        str | None,
        typer.Option(
            help="auto; none: compute everything in every forward; approximate_int8: half of the memory; for full "
            "context approximate_prefix, approximate_dual, approximate_vicinity or approximate_delayed: keys that are "
            "out of date, and fewer rows."
        ),
    ],
    "heal": Annotated[bool | None, typer.Option("--heal/--no-heal", help="Redraw a last word that may be cut off.")],
    "timeout": Annotated[
        float | None, typer.Option(help="Seconds for the output; as they run out, a step commits more.")
    ],
}


def takes(table: dict[str, Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a table; it receives those that the user gave."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters = inspect.signature(command, eval_str=True).parameters.values()
        kept = [parameter for parameter in parameters if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
            for name, option in table.items()
        ]

        @functools.wraps(command)
        def wrapper(**values: Any) -> None:
            command(**{name: value for name, value in values.items() if name not in table or value not in (None, [])})

        wrapper.__signature__ = inspect.Signature(kept + added)  # type: ignore[attr-defined]
        return wrapper

    return decorate


def makes_request(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of REQUEST, of which it receives those that the user gave, files and pins read; and
    those of `chooses_model`.
    """

    @takes(REQUEST)
    @functools.wraps(command)
    def wrapper(**given: Any) -> None:
        given |= {name: _json(name, given[name]) for name in ("schema", "tools") if name in given}
        if "steer" in given:
            given["steer"] = _program(given["steer"])
        command(**given | ({"pins": _pins(given["pins"])} if "pins" in given else {}))

    return chooses_model(wrapper)


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


def check_picture(path: Path | None, options: dict[str, Any]) -> None:
    """InputError or MissingExtra, before any work, for a requested picture that cannot be drawn."""
    if path is None:
        return
    from daguerre.view import picture

    if options.get("n", 1) != 1:
        raise InputError("a picture is of one sample: leave out --n or --picture")
    picture.check_picture(path)


def draw_picture(result: Any, model: Any, path: Path | None) -> None:
    """Draw the picture, if one is requested. Call it last: an error leaves what was printed."""
    if path is not None:
        from daguerre.view import picture

        picture.draw(result, model.tokenizer, path)


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
