"""The commands that serve models: over HTTP, and to a file of requests."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from daguerre.commands.options import BackendName, DtypeName, QuantizeName
from daguerre.errors import InputError, MissingExtra

KEYS = "DAGUERRE_API_KEYS"
"""The environment variable with API keys, separated by commas."""
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model", "-m", help="A folder, a name on a hub, `default` or `concepts`; NAME=MODEL names it. Repeatable."
    ),
]
MaxRunning = Annotated[int, typer.Option("--max-running", help="Samples that share a step; more wait.")]
MaxRows = Annotated[int, typer.Option("--max-rows", help="Rows of a step, at which prompts are divided.")]
CacheRows = Annotated[int, typer.Option("--cache-rows", help="Tokens whose keys and values are kept in memory.")]


def serve(
    model: Models = None,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="0: any free one.")] = 8000,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda, or cuda:N.")] = "cpu",
    backend: BackendName = None,
    quantize: QuantizeName = None,
    dtype: DtypeName = "auto",
    keys: Annotated[
        Path | None,
        typer.Option(
            "--keys", help=f"A file of hashed API keys; keys may also be in {KEYS}. Without any, all may ask."
        ),
    ] = None,
    requests_per_minute: Annotated[int | None, typer.Option(help="Of each key; others get 429.")] = None,
    running_per_key: Annotated[
        int | None, typer.Option(min=1, help="Requests, and samples, at once of each key; others get 429.")
    ] = None,
    max_running: MaxRunning = 64,
    max_waiting: Annotated[int, typer.Option("--max-waiting", help="Samples that may wait; others get 429.")] = 256,
    max_rows: MaxRows = 2048,
    step_seconds: Annotated[
        float, typer.Option("--step-seconds", min=0.001, help="Seconds of a step, at which prompts are divided, too.")
    ] = 0.25,
    cache_rows: CacheRows = 1 << 17,
    memory: Annotated[
        float | None, typer.Option(help="GiB of weights at once; beyond, idle models are unloaded.")
    ] = None,
    max_body: Annotated[int, typer.Option("--max-body", help="Bytes of a request.")] = 4 << 20,
    body_timeout: Annotated[float, typer.Option(min=0.001, help="Seconds within which a body must be there.")] = 60.0,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", min=1, help="Most new tokens of a request.")] = None,
    max_context: Annotated[
        int | None, typer.Option("--max-context", min=1, help="Most tokens of a request, its text and new ones.")
    ] = None,
    max_schema: Annotated[
        int, typer.Option("--max-schema", min=1, help="Bytes of a schema, a pattern, or the tools of a request.")
    ] = 256 << 10,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.001, help="Seconds after which a request ends with status 408, and its longest deadline of its own."
        ),
    ] = None,
    drain: Annotated[float, typer.Option(min=0, help="Seconds that requests have to end after SIGTERM.")] = 30.0,
    share_prefixes: Annotated[
        bool, typer.Option("--share-prefixes", help="Let a key begin with what others' prompts have computed.")
    ] = False,
    origin: Annotated[
        list[str] | None, typer.Option(help="A site whose pages may ask, such as https://example.com. Repeatable.")
    ] = None,
    playground: Annotated[bool, typer.Option(help="Serve the playground at /.")] = True,
    log_text: Annotated[bool, typer.Option("--log-text", help="Write prompts and answers to the log.")] = False,
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

    settings = Settings(
        keys=Keys.read(keys, os.environ.get(KEYS)),
        requests_per_minute=requests_per_minute,
        running_per_key=running_per_key,
        max_body=max_body,
        body_timeout=body_timeout,
        max_tokens=max_tokens,
        max_context=max_context,
        max_schema=max_schema,
        timeout=timeout,
        drain=drain,
        origins=sites_of(origin or ()),
        playground=playground,
        log_text=log_text,
    )
    how = {"device": device, "backend": backend, "quantize": quantize, "dtype": dtype}
    limits: dict[str, Any] = {
        "max_running": max_running,
        "max_waiting": max_waiting,
        "max_rows": max_rows,
        "cache_rows": cache_rows,
    }
    limits |= {"share_prefixes": share_prefixes, "step_seconds": step_seconds}
    num_bytes = None if memory is None else int(memory * (1 << 30))
    run_server(make_pool(model, how, num_bytes, limits), settings, host, port)


def batch(
    requests: Annotated[Path, typer.Argument(help="A file of requests in OpenAI's batch format, one JSON a line.")],
    answers: Annotated[Path, typer.Argument(help="Where the answers go; those that are there already are kept.")],
    model: Models = None,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda, or cuda:N.")] = "cpu",
    backend: BackendName = None,
    quantize: QuantizeName = None,
    dtype: DtypeName = "auto",
    max_running: MaxRunning = 64,
    max_rows: MaxRows = 2048,
    cache_rows: CacheRows = 1 << 17,
) -> None:
    """Answer a file of requests. Interrupted, it goes on where it stopped: nothing is done twice."""
    need_serve()
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from daguerre.server.batch import answer_file

    how = {"device": device, "backend": backend, "quantize": quantize, "dtype": dtype}
    limits: dict[str, Any] = {
        "max_running": max_running,
        "max_waiting": 1 << 30,
        "max_rows": max_rows,
        "cache_rows": cache_rows,
    }
    limits |= {"step_seconds": None}  # nobody waits for a part of it
    pool = make_pool(model, how, None, limits)
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with closing(pool), Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("batch", total=None)
        num, failed = answer_file(
            pool, requests, answers, max_running, lambda done, total: bar.update(task, completed=done, total=total)
        )
    typer.echo(f"{num} requests answered, {failed} of them with an error: {answers}")


def make_pool(models: list[str] | None, how: dict[str, Any], memory: int | None, limits: dict[str, Any]) -> Any:
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
    read: dict[str, float] = {}

    def loader(name: str, source: str) -> Callable[[], Any]:
        return partial(load_tried, source, lambda done, total: read.update({name: done / max(1, total)}), **how)

    return ModelPool({name: loader(name, source) for name, source in sources.items()}, memory, read, **limits)


def load_tried(source: str, told: Callable[[int, int], object], **how: Any) -> Any:
    """A model, whose tokenizer another process has read first (`models.tokenizer_trial`). told: see `loading.load`."""
    from daguerre.commands.loading import load
    from daguerre.models.loading import PACKAGED, model_folder
    from daguerre.models.tokenizer_trial import try_tokenizer

    if source not in PACKAGED:
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
