"""Commands that measure a model: what it knows, how fast it is, how sure it may be, what it is."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from daguerre.commands.options import AsJson, DtypeName, ExecutionName, ModelName
from daguerre.errors import InputError, MissingExtra


def evaluate_model(
    model: Annotated[str, typer.Argument(help="A model folder, or `default`.")] = "default",
    data: Annotated[
        Path | None, typer.Option(help="A Python file or folder; the frozen held-out sample by default.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write this JSON file, and beside it the tables as .md and pictures as .png.")
    ] = None,
    what: Annotated[
        list[str] | None,
        typer.Option(
            help="bits, infill, draft, completion, steps, tokens, correction, edit, constrained, speculation, "
            "deadline or decide; may be repeated. All that can be done by default."
        ),
    ] = None,
    lines: Annotated[int | None, typer.Option(help="Lines to infill, complete and correct; 200 by default.")] = None,
    grid_lines: Annotated[
        int | None, typer.Option(help="Lines that every setting completes, the best then all; 100 by default.")
    ] = None,
    spans: Annotated[int | None, typer.Option(help="Token spans of each length to infill; 200 by default.")] = None,
    texts: Annotated[int | None, typer.Option(help="Prompts continued in few steps and many; 16 by default.")] = None,
    edits: Annotated[int | None, typer.Option(help="Passages to edit, in every way; 100 by default.")] = None,
    literals: Annotated[
        int | None, typer.Option(help="Literals of each type to fill in, and arguments of calls; 100 by default.")
    ] = None,
    prompts: Annotated[
        int | None, typer.Option(help="Prompts for drafts and speculation to continue; 256 by default.")
    ] = None,
    questions: Annotated[int | None, typer.Option(help="Questions of each kind to decide; 1000 by default.")] = None,
    windows: Annotated[
        int | None,
        typer.Option(help="Windows to bound; from them the figure of all is estimated by regression on exact scores."),
    ] = None,
    samples: Annotated[int | None, typer.Option(help="Draws of masks in each window that is bounded.")] = None,
    execution: ExecutionName = None,
    dtype: DtypeName = "float32",
    workers: Annotated[
        int,
        typer.Option(
            help="Processes, of one thread each, that examples are spread over (not bits, draft, speculation)."
        ),
    ] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="A first look, in a minute or two.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure a model on held-out code: how likely it finds it, and how well and how fast it writes and mends it."""
    from daguerre.evals import harness, tasks
    from daguerre.evals.documents import read_documents
    from daguerre.evals.pictures import draw_pictures
    from daguerre.evals.report import check_path, markdown, write_report

    if out is not None:
        check_path(out)
    given = {"lines": lines, "bound_windows": windows, "samples": samples}
    given |= {"grid_lines": grid_lines, "spans": spans, "texts": texts, "edits": edits, "literals": literals}
    given |= {"prompts": prompts, "questions": questions}
    limits = replace(
        tasks.QUICK if quick else tasks.DEFAULT,
        **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
    )
    documents, skipped = (None, {}) if data is None else read_documents(data)
    with _progress("evaluating") as tell:
        report = harness.evaluate(
            model,
            documents,
            what=what or None,
            limits=limits,
            workers=workers,
            dtype=dtype,
            execution=execution,  # type: ignore[arg-type]
            skipped_files=skipped,
            progress=tell,
        )
    typer.echo(json.dumps(report, ensure_ascii=False) if as_json else markdown(report))
    if out is not None:
        write_report(report, out)
        _draw_if_possible(draw_pictures, report, out)


def bench_speed(
    context: typer.Context,
    what: Annotated[
        list[str] | None,
        typer.Option(help="rows, infill, context, peers or modes; may be repeated. All of them by default."),
    ] = None,
    model: ModelName = "default",
    out: Annotated[
        Path | None, typer.Option(help="Add to this JSON file, and write tables (.md) and pictures (.png) beside it.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of which figures are medians; 5 by default.")] = None,
    threads: Annotated[
        list[int] | None, typer.Option(help="CPU threads; may be repeated. 1 and then 2 by default.")
    ] = None,
    lines: Annotated[int | None, typer.Option(help="Lines that modes complete; 100 by default.")] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="Measure this OpenAI-compatible server instead, such as http://HOST:8000/v1.")
    ] = None,
    endpoint_model: Annotated[
        str | None, typer.Option(help="The server's name of a model; the first that it lists by default.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Ask the server's chat completions, not completions.")] = False,
    concurrency: Annotated[
        list[int] | None, typer.Option(help="Requests at once; may be repeated. 1, 4 and 16 by default.")
    ] = None,
    requests: Annotated[int | None, typer.Option(help="Requests at each of those; 16 by default.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens of a request; 128 by default.")] = None,
    key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="The server's key; better given by the variable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure speed: ours beside other engines in one run, what rows cost here, or a server. Leave the machine idle."""
    from daguerre.evals.bench import report as tables
    from daguerre.evals.bench import run
    from daguerre.evals.bench.endpoint import Target
    from daguerre.evals.report import check_path

    of_bench = {"what": what, "rounds": rounds, "threads": tuple(threads) if threads else None, "lines": lines}
    of_endpoint = {"endpoint_model": endpoint_model, "concurrency": concurrency, "requests": requests}
    of_endpoint |= {"max_tokens": max_tokens, "chat": chat or None}
    of_endpoint["key"] = key if getattr(context.get_parameter_source("key"), "name", "") == "COMMANDLINE" else None
    idle = of_bench | {"model": None if model == "default" else model} if endpoint else of_endpoint
    for name, value in idle.items():
        if value not in (None, []):
            where = "together with --endpoint" if endpoint else "without --endpoint"
            raise InputError(f"--{name.replace('_', '-')} has no part {where}: leave out one of the two")
    if out is not None:
        check_path(out)
    with _progress("measuring") as tell:
        if endpoint:
            limits = {} if max_tokens is None else {"max_tokens": max_tokens}
            target = Target(
                url=endpoint, model=endpoint_model, route="chat" if chat else "completions", key=key, **limits
            )
            report = run.endpoint(
                target, concurrency or (1, 4, 16), 16 if requests is None else requests, out=out, progress=tell
            )
        else:
            given = {name: value for name, value in of_bench.items() if name != "what" and value is not None}
            options = run.Options(model=model, **given)  # type: ignore[arg-type]
            report = run.bench(what or None, options, out=out, progress=tell)
    typer.echo(json.dumps(report, ensure_ascii=False) if as_json else tables.markdown(report))
    if out is not None:
        tables.write(report, out)
        _draw_if_possible(tables.draw, report, out)


def calibrate(
    model: Annotated[str, typer.Argument(help="A model folder, or `default`.")] = "default",
    data: Annotated[
        Path | None, typer.Option(help="A Python file or folder; the frozen held-out sample by default.")
    ] = None,
    questions: Annotated[int, typer.Option(help="Questions of each kind to fit to.")] = 250,
    workers: Annotated[int, typer.Option(help="Processes, of one thread each.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Fit the probabilities of `decide` to held-out code, and keep them in the model's folder.

    A third of the documents is used, the third that `daguerre eval --what decide` does not test on.
    """
    from daguerre.evals.decisions import calibrate_folder
    from daguerre.evals.documents import read_documents

    documents = None if data is None else read_documents(data)[0]
    with _progress("calibrating") as tell:
        path, fitted = calibrate_folder(model, documents, questions, workers=workers, tell=tell)
    if as_json:
        named = {name: asdict(calibration) for name, calibration in fitted.items()}
        typer.echo(json.dumps({"file": str(path), "calibrations": named}, ensure_ascii=False))
        return
    for name, calibration in fitted.items():
        biases = f", {len(calibration.bias)} biases" if calibration.bias else ""
        typer.echo(f"{name:10}temperature {calibration.temperature:.2f}{biases}")
    typer.echo(f"written to {path}")


def inspect_model(
    model: Annotated[str, typer.Argument(help="A model folder, or `default`.")] = "default", as_json: AsJson = False
) -> None:
    """Check a model folder and print what it is."""
    import torch

    from daguerre.models.loading import load_model, model_folder

    backbone, tokenizer = load_model(model_folder(model), dtype=torch.float32)
    values = {"parameters": backbone.num_parameters, **asdict(backbone.config), "tokenizer_sha256": tokenizer.sha256}
    typer.echo(json.dumps(values) if as_json else "\n".join(f"{name:18}{value}" for name, value in values.items()))


@contextmanager
def _progress(what: str) -> Iterator[Callable[[str, int, int], None]]:
    """A line on standard error; call it with a part, how much of that is done, and of how much."""
    with Console(stderr=True).status(what) as status:
        yield lambda part, done, total: status.update(f"{part}  {done}/{total}")


def _draw_if_possible(draw: Callable[[dict[str, Any], Path], Any], report: dict[str, Any], out: Path) -> None:
    try:
        draw(report, out)
    except MissingExtra as error:
        print(f"daguerre: no pictures: {error}", file=sys.stderr)
