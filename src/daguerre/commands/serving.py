"""The commands that serve models: over HTTP, and to a file of requests."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from daguerre.commands.loading import (
    BackendName,
    ConceptsName,
    DraftsQuantize,
    DtypeName,
    QuantizeName,
    fetch,
    load,
    takes_groups,
)
from daguerre.errors import InputError, MissingExtra

KEYS = "DAGUERRE_API_KEYS"
"""The environment variable with API keys, separated by commas."""
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        "-m",
        help="A name, as `daguerre models` lists them, a file or a folder; NAME=MODEL names it. Repeatable.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Computing:
    """How models are loaded."""

    device: Annotated[str, typer.Option("--device", help="cpu, cuda, or cuda:N.")] = "cpu"
    backend: BackendName = None
    quantize: QuantizeName = None
    dtype: DtypeName = "auto"
    drafts: Annotated[
        str | None,
        typer.Option("--drafts", "--drafter", help="A second model, of the same vocabulary, that drafts for each."),
    ] = None
    drafts_quantize: DraftsQuantize = None
    concepts: ConceptsName = None


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """Limits of `engine.engine.Engine`."""

    max_running: Annotated[int, typer.Option("--max-running", help="Samples that share a step; more wait.")] = 64
    max_rows: Annotated[int, typer.Option("--max-rows", help="Rows of a step, at which prompts are divided.")] = 2048
    cache_rows: Annotated[
        int, typer.Option("--cache-rows", help="Tokens whose keys and values are kept in memory.")
    ] = 1 << 17


@dataclass(frozen=True, kw_only=True)
class ServeLimits(BatchLimits):
    """The same, for clients who wait."""

    max_waiting: Annotated[int, typer.Option("--max-waiting", help="Samples that may wait; others get 429.")] = 256
    step_seconds: Annotated[
        float, typer.Option("--step-seconds", min=0.001, help="Seconds of a step, at which prompts are divided, too.")
    ] = 0.25
    share_prefixes: Annotated[
        bool, typer.Option("--share-prefixes", help="Let a key begin with what others' prompts have computed.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class RequestBounds:
    """Fields of `http.settings.Settings`."""

    requests_per_minute: Annotated[int | None, typer.Option(help="Of each key; others get 429.")] = None
    running_per_key: Annotated[
        int | None, typer.Option(min=1, help="Requests, and samples, at once of each key; others get 429.")
    ] = None
    max_body: Annotated[int, typer.Option("--max-body", help="Bytes of a request.")] = 4 << 20
    body_timeout: Annotated[float, typer.Option(min=0.001, help="Seconds within which a body must be there.")] = 60.0
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", min=1, help="Most new tokens of a request.")] = None
    max_context: Annotated[
        int | None, typer.Option("--max-context", min=1, help="Most tokens of a request, its text and new ones.")
    ] = None
    max_schema: Annotated[
        int, typer.Option("--max-schema", min=1, help="Bytes of a schema, a pattern, or the tools of a request.")
    ] = 256 << 10
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.001, help="Seconds after which a request ends with status 408, and its longest deadline of its own."
        ),
    ] = None
    drain: Annotated[float, typer.Option(min=0, help="Seconds that requests have to end after SIGTERM.")] = 30.0
    playground: Annotated[bool, typer.Option(help="Serve the playground at /.")] = True
    log_text: Annotated[bool, typer.Option("--log-text", help="Write prompts and answers to the log.")] = False


@dataclass(frozen=True, kw_only=True)
class PullLimits:
    """Who may bring models over the network, and how much."""

    pull: Annotated[
        str | None,
        typer.Option("--pull", metavar="NAME", help="The name of the key that may bring models."),
    ] = None
    pull_gib: Annotated[
        float, typer.Option("--pull-gib", min=0.001, help="GiB that it may bring while the server runs.")
    ] = 20.0


@takes_groups
def serve(
    model: Models = None,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="0: any free one.")] = 8000,
    *,
    computing: Computing,
    keys: Annotated[
        Path | None,
        typer.Option(
            "--keys", help=f"A file of hashed API keys; keys may also be in {KEYS}. Without any, all may ask."
        ),
    ] = None,
    limits: ServeLimits,
    memory: Annotated[
        float | None, typer.Option(help="GiB of weights at once; beyond, idle models are unloaded.")
    ] = None,
    bounds: RequestBounds,
    pulling: PullLimits,
    origin: Annotated[
        list[str] | None, typer.Option(help="A site whose pages may ask, such as https://example.com. Repeatable.")
    ] = None,
    hash_key: Annotated[
        bool, typer.Option("--hash-key", help="Read a key from standard input, print its hash for --keys, and stop.")
    ] = False,
) -> None:
    """Serve models over HTTP: OpenAI's and Mercury's interfaces, and a playground in the browser."""
    if hash_key:
        print_hash()
        return
    need_serve()
    from daguerre.http.settings import Keys, Settings, sites_of
    from daguerre.server.run import run_server

    settings = Settings(keys=Keys.read(keys, os.environ.get(KEYS)), origins=sites_of(origin or ()), **vars(bounds))
    num_bytes = None if memory is None else int(memory * (1 << 30))
    pulls = make_pulls(settings.keys, pulling, computing)
    run_server(make_pool(model, computing, num_bytes, **vars(limits)), settings, host, port, pulls)


@takes_groups
def batch(
    requests: Annotated[Path, typer.Argument(help="A file of requests in OpenAI's batch format, one JSON a line.")],
    answers: Annotated[Path, typer.Argument(help="Where the answers go; those that are there already are kept.")],
    model: Models = None,
    *,
    computing: Computing,
    limits: BatchLimits,
) -> None:
    """Answer a file of requests. Interrupted, it goes on where it stopped: nothing is done twice."""
    need_serve()
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from daguerre.server.batch import answer_file

    # Nobody waits for a part of it, so steps take as long as they do.
    pool = make_pool(model, computing, None, **vars(limits), max_waiting=1 << 30, step_seconds=None)
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with closing(pool), Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("batch", total=None)

        def progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        num, failed = answer_file(pool, requests, answers, limits.max_running, progress)
    typer.echo(f"{num} requests answered, {failed} of them with an error: {answers}")


def make_pool(models: list[str] | None, computing: Computing, memory: int | None, **limits: Any) -> Any:
    """The models of a server, by name. A name is what is before "=", or the model itself."""
    from daguerre.server.models import ModelPool

    sources: dict[str, str] = {}
    for given in models or ["default"]:
        name, equals, source = given.partition("=")
        name, source = (name, source) if equals else (given, given)
        name = Path(name).name if not equals and Path(name).exists() else name  # clients are told no path
        if name in sources:
            raise InputError(f"two models have the name {name!r}: give one another, with --model NAME=MODEL")
        sources[name] = source
    read, how = dict[str, float](), vars(computing)

    def loader(name: str, source: str) -> Callable[[], Any]:
        return partial(load_tried, source, lambda done, total: read.update({name: done / max(1, total)}), **how)

    return ModelPool({name: loader(name, source) for name, source in sources.items()}, memory, read, **limits)


def make_pulls(keys: Any, limits: PullLimits, computing: Computing) -> Any:
    """What brings models for the owner of the key with the name `limits.pull`; None where nobody may. InputError where
    there is no such key.
    """
    from daguerre.server.pulls import Pulls

    if limits.pull is None:
        return None
    owners = [owner for owner, name in keys.names.items() if name == limits.pull]
    if not owners:
        raise InputError(
            f"no key has the name {limits.pull!r}: --pull names one of --keys, by which models are brought"
        )

    def bring(name: str, told: Callable[[int, int], object]) -> Callable[[], Any]:
        bring_files(name, told)
        return partial(load_tried, name, lambda done, total: None, **vars(computing))

    return Pulls(bring, owners[0], int(limits.pull_gib * (1 << 30)))


def bring_files(name: str, told: Callable[[int, int], object]) -> None:
    """Bring the files of a model that has a short name, or is a GGUF file on a hub: sizes are told before anything is
    written. InputError for any other name, such as a path.
    """
    from daguerre.models.pulling.bring import path_of
    from daguerre.models.pulling.hub_files import listed
    from daguerre.models.pulling.wanted import files_of, is_wanted, wanted

    if not is_wanted(name):
        raise InputError(f"{name!r:.80} is no name of a model to bring: `daguerre models` lists them")
    asked = wanted(name)
    if asked.entry is not None:
        told(0, asked.entry.size)
    else:  # of a folder without GGUF files nobody says the size ahead
        assert asked.repository is not None
        files_of(asked, [*listed(asked.repository, asked.revision)])
    path_of(name, told=told)


def load_tried(source: str, told: Callable[[int, int], object], **how: Any) -> Any:
    """A model, whose tokenizer another process has read first (`models.tokenizer_trial`). told: see `loading.load`."""
    from daguerre.models.loading import PACKAGED, model_folder
    from daguerre.models.tokenizer_trial import try_tokenizer

    if source not in PACKAGED:
        fetch(source)
        try_tokenizer(model_folder(source))
    return load(source, told, **how)


def need_serve() -> None:
    """MissingExtra unless what the server needs is installed."""
    try:
        import fastapi  # noqa: F401
        import orjson  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise MissingExtra("fastapi", "serve") from None


def need_route() -> None:
    """MissingExtra unless what the router needs is installed."""
    need_serve()
    try:
        import aiohttp  # noqa: F401
        import ddsketch  # noqa: F401
        import httptools  # noqa: F401
    except ImportError:
        raise MissingExtra("ddsketch", "route") from None


def print_hash() -> None:
    """Print the hash of a key that is read from standard input. InputError for an empty one."""
    from daguerre.http.settings import hash_of

    key = typer.get_text_stream("stdin").readline().strip()
    if not key:
        raise InputError("there is no key on standard input: pipe one in, as in `openssl rand -hex 24 | daguerre ...`")
    typer.echo(hash_of(key))
