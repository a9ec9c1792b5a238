"""The command line: parse, build, call. Errors are one line and exit status 2; long work shows progress."""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from daguerre.errors import DaguerreError, InputError, MissingExtra
from daguerre.options import (
    AsJson,
    DraftText,
    DtypeName,
    ExecutionName,
    ModelName,
    Picture,
    SearchLength,
    check_picture,
    draw_picture,
    makes_request,
    print_ignored,
    print_result,
    read_draft,
    read_file,
    read_pairs,
    read_text,
)

SPINS = "5000"
"""How often a thread looks whether the others are done before it sleeps. PyTorch's threads would look for milliseconds,
and on a core that another program wants each of a forward's hundred meetings takes that long."""

app = typer.Typer(
    name="daguerre",
    help="Diffusion language models: complete, infill, train, evaluate.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Collect training data.", no_args_is_help=True)
app.add_typer(data_app, name="data")


@app.command()
def demo(
    model: ModelName = "default",
    plain: Annotated[bool, typer.Option("--plain", help="No colors, no drawing in place.")] = False,
) -> None:
    """Show the model completing and infilling held-out code, the draft sharpening as it runs."""
    from daguerre.demo import run_demo

    run_demo(model, plain=plain)


@app.command()
@makes_request
def generate(
    prompt: Annotated[str, typer.Argument(help="Text to complete; `-` reads standard input.")],
    model: ModelName = "default",
    execution: ExecutionName = None,
    dtype: DtypeName = "float32",
    draft: DraftText = None,
    picture: Picture = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Complete a prompt."""
    check_picture(picture, options)
    loaded = _load(model, execution, dtype)
    result = loaded.generate(read_text(prompt), draft=read_draft(draft), **options)
    print_result(result, as_json)
    draw_picture(result, loaded, picture)


@app.command()
@makes_request
def infill(
    prefix: Annotated[str, typer.Argument(help="Text before the gap; `-` reads standard input.")],
    suffix: Annotated[str, typer.Argument(help="Text after the gap; when empty, the prefix is completed.")],
    model: ModelName = "default",
    execution: ExecutionName = None,
    dtype: DtypeName = "float32",
    draft: DraftText = None,
    whole: Annotated[bool, typer.Option("--whole", help="Print prefix, middle and suffix, and nothing else.")] = False,
    search_length: SearchLength = None,
    picture: Picture = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Fill the gap between a prefix and a suffix."""
    check_picture(picture, options)
    if whole and (as_json or options.get("n", 1) != 1):
        raise InputError("--whole prints one text as it is: leave it out, or leave out --json and --n")
    if prefix == suffix == "-":
        raise InputError("standard input can be the prefix or the suffix, not both: give one of them as text")
    before, after = read_text(prefix), read_text(suffix)
    loaded = _load(model, execution, dtype)
    result = loaded.infill(before, after, draft=read_draft(draft), search_length=search_length, **options)
    if whole:
        print_ignored(result)
        sys.stdout.write(before + result.text + after)
    else:
        print_result(result, as_json)
    draw_picture(result, loaded, picture)


@app.command()
@makes_request
def fill(
    template: Annotated[str, typer.Argument(help="Text with `{}` where a gap goes; `-` reads standard input.")],
    model: ModelName = "default",
    execution: ExecutionName = None,
    dtype: DtypeName = "float32",
    mark: Annotated[str, typer.Option(help="What marks a gap.")] = "{}",
    search_length: SearchLength = None,
    picture: Picture = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Fill every gap of a template in one run, the gaps seeing each other; --max-tokens is of each."""
    check_picture(picture, options)
    loaded = _load(model, execution, dtype)
    result = loaded.fill(read_text(template), mark=mark, search_length=search_length, **options)
    print_result(result, as_json)
    draw_picture(result, loaded, picture)


@app.command()
@makes_request
def edit(
    file: Annotated[str, typer.Argument(help="File to edit, which stays as it is; `-` reads standard input.")],
    model: ModelName = "default",
    execution: ExecutionName = None,
    dtype: DtypeName = "float32",
    span: Annotated[list[str] | None, typer.Option(help="START:END in characters; may be repeated.")] = None,
    lines: Annotated[list[str] | None, typer.Option(help="FIRST:LAST, from 1; may be repeated.")] = None,
    pattern: Annotated[str | None, typer.Option(help="A regular expression: all its matches.")] = None,
    strength: Annotated[float, typer.Option(help="Share of the tokens to draw again; the others stay.")] = 1.0,
    search_length: SearchLength = None,
    picture: Picture = None,
    diff: Annotated[bool, typer.Option("--diff", help="Print the difference instead of the text.")] = False,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Write parts of a file anew, the rest verbatim, and print the whole."""
    if diff and as_json:
        raise InputError("--json holds the difference already: leave out --diff")
    if options.get("n", 1) != 1 and not as_json:
        raise InputError("edit prints one text: leave out --n, or take --json for all samples")
    chosen: dict[str, Any] = {
        "spans": read_pairs(span),
        "lines": read_pairs(lines),
        "pattern": pattern,
        "strength": strength,
    }
    chosen["search_length"] = search_length
    check_picture(picture, options)
    loaded = _load(model, execution, dtype)
    result = loaded.edit(read_text("-") if file == "-" else read_file(file), **chosen, **options)
    if as_json:
        print_result(result, as_json)
    else:
        print_ignored(result)
        sys.stdout.buffer.write((result.diff if diff else result.text).encode("utf-8"))
    draw_picture(result, loaded, picture)


@app.command()
def decide(
    state: Annotated[str, typer.Argument(help="Text that the question is about; `-` reads standard input.")],
    label: Annotated[list[str] | None, typer.Option(help="A text for the slot; two or more: a choice.")] = None,
    yes: Annotated[str | None, typer.Option(help="The text for the slot that means yes.")] = None,
    no: Annotated[str | None, typer.Option(help="The text for the slot that means no.")] = None,
    score: Annotated[str | None, typer.Option(help="LOW:HIGH: a whole number.")] = None,
    before: Annotated[str, typer.Option(help="Text between the state and the slot.")] = "",
    after: Annotated[str, typer.Option(help="Text behind the slot.")] = "",
    calibration: Annotated[str | None, typer.Option(help="One of the model's calibrations, by name.")] = None,
    model: ModelName = "default",
    as_json: AsJson = False,
) -> None:
    """Ask which text belongs into a slot: of several (--label), of --yes and --no, or a number (--score)."""
    question = _question(label, yes, no, score)(before=before, after=after, calibration=calibration)
    (answer,) = _load(model).decide(read_text(state), [question])
    if as_json:
        typer.echo(json.dumps(asdict(answer), ensure_ascii=False))
        return
    typer.echo(f"answer: {answer.answer}" + ("" if answer.expected is None else f"  expected: {answer.expected:.3f}"))
    for name, probability in sorted(answer.probabilities.items(), key=lambda item: -item[1]):
        typer.echo(f"{probability:.4f}  {name}")


def _question(label: list[str] | None, yes: str | None, no: str | None, score: str | None) -> Callable[..., Any]:
    """The one kind of question that was asked for, still without its template."""
    from daguerre.decide import Choice, Score, YesNo

    kinds = [name for name, given in (("label", label), ("yes", yes or no), ("score", score)) if given]
    if len(kinds) != 1:
        raise InputError("ask one kind of question: --label twice or more, --yes with --no, or --score LOW:HIGH")
    if label:
        return functools.partial(Choice, labels=label)
    if score:
        ((low, high),) = read_pairs([score]) or []
        return functools.partial(Score, low=low, high=high)
    if not (yes and no):
        raise InputError("a yes-no question needs two texts for the slot: give --yes and --no")
    return functools.partial(YesNo, yes=yes, no=no)


@app.command()
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


@data_app.command("python")
def data_python(
    out: Annotated[Path, typer.Option("--out", help="Folder of the corpus.")],
    source: Annotated[
        list[Path] | None, typer.Option("--source", help="Another folder of source, or a site-packages.")
    ] = None,
    tokenizer: Annotated[str, typer.Option(help="2k, 8k, or the path of a tokenizer.json.")] = "2k",
    workers: Annotated[int | None, typer.Option(help="Processes; all cores by default.")] = None,
    installed: Annotated[bool, typer.Option(help="Read this interpreter's installed distributions too.")] = True,
    max_share: Annotated[float, typer.Option(help="Largest share of the corpus that one package may have.")] = 0.08,
    as_json: AsJson = False,
) -> None:
    """Collect permissively licensed Python source into token shards."""
    from daguerre.train.corpus.collect import collect_python

    chosen: Any = tokenizer if tokenizer in ("2k", "8k") else Path(tokenizer)
    summary = collect_python(
        out, source or [], tokenizer=chosen, workers=workers, installed=installed, max_share=max_share
    )
    if as_json:
        typer.echo(json.dumps(asdict(summary) | {"out": str(summary.out)}))
        return
    for split, tokens in summary.tokens.items():
        megabytes = summary.bytes[split] / 1e6
        typer.echo(f"{split}: {summary.documents[split]:,} files, {megabytes:,.1f} MB, {tokens:,} tokens")
    dropped, skipped = sum(summary.dropped.values()), len(summary.skipped)
    typer.echo(f"{dropped:,} files dropped, {skipped:,} packages skipped: see {out / 'report.json'}")


@app.command()
def train(
    recipe: Annotated[
        str | None, typer.Argument(help="small, refine, longer, settle, draft, full, adapt, or a .toml file.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, for example optim.muon_lr=0.01.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    start_from: Annotated[
        str | None, typer.Option("--from", help="A model to start from: `default` or a folder.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="A corpus, or a folder of your own source.")] = None,
    max_minutes: Annotated[float | None, typer.Option(help="Budget of the whole run; its decay ends in time.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/RECIPE by default.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Train a model, or adapt one to your own code. Ctrl-C finishes the step and saves."""
    from daguerre.train.run import run_training

    folder = run_training(
        recipe,
        overrides=overrides or [],
        resume=resume,
        start_from=start_from,
        data=data,
        max_minutes=max_minutes,
        out=out,
        device=device,
    )
    typer.echo(json.dumps({"model": str(folder)}) if as_json else f"model: {folder}")


@app.command()
def average(
    parts: Annotated[list[str], typer.Argument(metavar="MODEL=SHARE...", help="Two or more; shares add up to 1.")],
    out: Annotated[Path, typer.Option(help="Folder of the new model.")],
    as_json: AsJson = False,
) -> None:
    """Average the weights of models that were trained on from the same one."""
    from daguerre.train.average import average_models

    folder = average_models([_model_and_share(part) for part in parts], out)
    typer.echo(json.dumps({"model": str(folder)}) if as_json else f"model: {folder}")


def _model_and_share(part: str) -> tuple[str, float]:
    model, _, share = part.rpartition("=")
    try:
        return model, float(share)
    except ValueError:
        raise InputError(f"{part!r} is no MODEL=SHARE, such as runs/settle/model=0.7") from None


@app.command("eval")
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


@app.command("bench")
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


@app.command("inspect")
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


def _load(name: str, execution: Any = None, dtype: str = "float32") -> Any:
    import daguerre

    return daguerre.load(name, dtype=dtype, execution=execution)


def main() -> None:
    """Console entry: a mistake is one line on standard error and exit status 2."""
    if sys.argv[1:2] != ["bench"]:  # which measures what everybody has
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    if sys.stderr.isatty():  # what takes long is told to who waits for it
        logging.basicConfig(format="daguerre: %(message)s")
        logging.getLogger("daguerre").setLevel(logging.INFO)
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except typer.TyperException as error:
        message = getattr(error, "format_message", error.__str__)()
        if not message:  # no command: the help is printed already
            sys.exit(2)
        _fail(f"{message} (see --help)")
    except DaguerreError as error:
        _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        print("daguerre: interrupted", file=sys.stderr)
        sys.exit(130)


def _fail(message: str) -> NoReturn:
    print(f"daguerre: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
