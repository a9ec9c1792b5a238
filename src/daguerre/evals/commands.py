"""Commands that measure a model: evaluation, speed, calibration."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from daguerre.commands.loading import BackendName, ModelChoice, ModelName, QuantizeName, parameters_in
from daguerre.commands.options import AsJson, takes
from daguerre.errors import InputError, MissingExtra

ReportFile = Annotated[
    Path | None, typer.Option(help="Add to this JSON file, and write tables (.md) and pictures (.png) beside it.")
]


# Fields of `evals.options.EvalOptions` and its `Limits`. Left out, each has its default there.
EVALUATION: dict[str, Any] = {
    **{one.name: one.annotation for one in parameters_in(ModelChoice) if one.name != "model"},
    "what": Annotated[
        list[str] | None,
        typer.Option(
            help="bits, infill, draft, completion, steps, tokens, correction, edit, constrained, speculation, "
            "deadline or decide; may be repeated. By default all that model and data allow. Or concepts, "
            "instructions or teacher, which are measured only where they are named."
        ),
    ],
    "lines": Annotated[int | None, typer.Option(help="Lines to infill, complete and correct; 200 by default.")],
    "grid_lines": Annotated[
        int | None,
        typer.Option(help="Lines that every setting completes; 100 by default. The best settings complete all lines."),
    ],
    "spans": Annotated[int | None, typer.Option(help="Token spans of each length to fill; 200 by default.")],
    "texts": Annotated[int | None, typer.Option(help="Prompts to continue in few steps and many; 16 by default.")],
    "edits": Annotated[int | None, typer.Option(help="Passages to edit, in every setting; 100 by default.")],
    "literals": Annotated[
        int | None, typer.Option(help="Literals of each type, and arguments of calls, to fill in; 100 by default.")
    ],
    "prompts": Annotated[
        int | None,
        typer.Option(help="Prompts of drafts, speculation, instructions and teacher; 256 by default."),
    ],
    "questions": Annotated[int | None, typer.Option(help="Questions of each kind to decide; 1000 by default.")],
    "concept_spans": Annotated[
        int | None, typer.Option(help="Spans of 64 tokens that concepts are detected in; 6000 by default.")
    ],
    "control_spans": Annotated[
        int | None,
        typer.Option(help="Spans of training text that the controls of concepts learn from; 12000 by default."),
    ],
    "generations": Annotated[
        int | None, typer.Option(help="Texts for each concept that is forbidden, in each way; 2000 by default.")
    ],
    "injections": Annotated[
        int | None, typer.Option(help="Texts for each concept that is asked for, in each way; 240 by default.")
    ],
    "corpus": Annotated[
        Path | None,
        typer.Option(help="Concepts: a folder of `daguerre data python`, for controls, alignment and more prompts."),
    ],
    "ifeval": Annotated[
        Path | None, typer.Option(help="Instructions: the file of IFEval's prompts, input_data.jsonl.")
    ],
    "decode": Annotated[
        list[str] | None,
        typer.Option(
            help="Instructions: name=value of decoding, such as mode=block or threshold=0.9; may be repeated."
        ),
    ],
    "teacher": Annotated[
        str | None, typer.Option(help="Teacher: the autoregressive model that the model was converted from.")
    ],
    "answers": Annotated[
        Path | None, typer.Option(help="Teacher: a folder of its answers, of `daguerre data self --from TEACHER`.")
    ],
    "plain": Annotated[
        str | None,
        typer.Option(
            help="Concepts: the model without concepts to compare with, or none; for the tax, of the same training."
        ),
    ],
    "twin": Annotated[
        str | None, typer.Option(help="Concepts: a model of the same training with another seed, for stability.")
    ],
    "keep": Annotated[
        Path | None, typer.Option(help="Concepts: keep finished parts in this folder, and go on from those there.")
    ],
    "parts": Annotated[
        list[str] | None,
        typer.Option(
            help="Concepts: detection, shares, suppression, injection, alignment, stability or audit; may be "
            "repeated. All that can be measured by default."
        ),
    ],
    "bound_windows": Annotated[
        int | None,
        typer.Option(
            "--windows",
            help="Windows for which bounds are computed; the figure of all is estimated from them and exact scores.",
        ),
    ],
    "samples": Annotated[int | None, typer.Option(help="Draws of masks in each of those windows.")],
    "backend": BackendName,
    "quantize": QuantizeName,
    "dtype": Annotated[
        str | None,
        typer.Option(
            help="float32, which is the default, bfloat16 or auto: bfloat16 where the processor multiplies it."
        ),
    ],
    "workers": Annotated[
        int | None,
        typer.Option(
            help="Processes, of one thread each, that examples are spread over (not in bits, draft and speculation); 1 "
            "by default."
        ),
    ],
}


def benchmarks() -> typer.Typer:
    """`bench`, and the command below it."""
    group = typer.Typer(invoke_without_command=True)
    group.callback()(bench)
    group.command("endpoint")(bench_endpoint)
    return group


@takes(EVALUATION)
def evaluate_model(
    model: Annotated[
        str, typer.Argument(help="A model folder, a name on a model hub, `default` or `concepts`.")
    ] = "default",
    data: Annotated[
        Path | None, typer.Option(help="A Python file or folder; the frozen held-out sample by default.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write this JSON file, and beside it the tables as .md and pictures as .png.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A first look: bits, infill and completion on few examples, in two minutes.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again what --out has already.")] = False,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Measure a model on held-out code: its likelihood, and how well and fast the model writes and corrects code.

    With --out each task is written as it ends, and the same command goes on where it was stopped.
    """
    from daguerre.evals import options
    from daguerre.evals.documents import read_documents
    from daguerre.evals.harness import evaluate
    from daguerre.evals.pictures import draw_pictures
    from daguerre.evals.report import check_path, markdown, write_report

    if out is not None:
        check_path(out)
    if quick and "what" not in given:
        given["what"] = list(options.QUICK_TASKS)
    chosen = options.EvalOptions.flat(options.QUICK if quick else options.DEFAULT, given)
    documents, skipped = (None, {}) if data is None else read_documents(data)
    with _progress("evaluating") as progress:
        store = None if out is None else _ReportFile(out, fresh)
        report = evaluate(model, documents, chosen, skipped_files=skipped, progress=progress, store=store)
    if quick:
        report["quick"] = True
    typer.echo(json.dumps(report, ensure_ascii=False) if as_json else markdown(report))
    if out is not None:
        write_report(report, out)
        _draw_if_possible(draw_pictures, report, out)


class _ReportFile:
    """The file that an evaluation is kept in as it goes. fresh: what is there is not looked at."""

    def __init__(self, path: Path, fresh: bool) -> None:
        self._path, self._fresh = path, fresh

    def earlier(self, report: Mapping[str, Any], names: Sequence[str]) -> Any:
        """What the file has of these tasks; a note on standard error says which, or why none."""
        from daguerre.evals.resuming import KeptTasks

        kept = KeptTasks() if self._fresh else KeptTasks.of(self._path, report, names)
        if kept.differs is not None:
            print(f"daguerre: {self._path} is of another run ({kept.differs}): all is measured again", file=sys.stderr)
        if kept.tasks:
            print(f"daguerre: {', '.join(kept.tasks)} of {self._path}: kept; --fresh measures again", file=sys.stderr)
        return kept

    def save(self, report: dict[str, Any]) -> None:
        """Write the report so far, and make its folder."""
        from daguerre.evals.report import write_json

        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_json(report, self._path)


def bench(
    context: typer.Context,
    what: Annotated[
        list[str] | None,
        typer.Option(
            help="rows, batch, infill, context, peers or modes; may be repeated. All of them by default. Or families: "
            "shapes of published models, beside llama.cpp. Or real: a GGUF file, --model FILE.gguf, beside llama.cpp."
        ),
    ] = None,
    model: ModelName = "default",
    out: ReportFile = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of which figures are medians; 5 by default.")] = None,
    threads: Annotated[
        list[int] | None, typer.Option(help="CPU threads; may be repeated. 1 and then 2 by default.")
    ] = None,
    lines: Annotated[int | None, typer.Option(help="Lines that modes complete; 100 by default.")] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(help="Families: a shape such as sdar-1.7b; may be repeated. All published ones by default."),
    ] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(help="Families: int8, approximate_int4 or bfloat16; may be repeated. The first two by default."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Families: keep random weights here; in the folder of temporary files by default."),
    ] = None,
    llama_cpp: Annotated[
        Path | None,
        typer.Option(
            help="Real: the folder in which `npm install --prefix DIR node-llama-cpp` has put llama.cpp; the "
            "llama-server of PATH by default."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure speed: Daguerre beside other engines, what rows cost here, many requests at once. Leave the machine idle.

    `daguerre bench endpoint` measures a server.
    """
    from daguerre.evals.bench import run
    from daguerre.evals.report import check_path

    if context.invoked_subcommand is not None:
        _refuse_given(context)
        return
    if out is not None:
        check_path(out)
    given: dict[str, Any] = {"rounds": rounds, "lines": lines, "folder": str(folder) if folder else None}
    given["llama_cpp"] = str(llama_cpp) if llama_cpp else None
    given |= {
        name: tuple(some) for name, some in (("threads", threads), ("shapes", shape), ("weights", weights)) if some
    }
    options = run.BenchOptions(model=model, **{name: value for name, value in given.items() if value is not None})
    if what and "families" in what:
        print(f"daguerre: {run.needs(options)}", file=sys.stderr)
    with _progress("measuring") as progress:
        report = run.bench(what or None, options, out=out, progress=progress)
    _show_speed(report, out, as_json)


def bench_endpoint(
    url: Annotated[str, typer.Argument(help="An OpenAI-compatible server, such as http://HOST:8000/v1.")],
    model: Annotated[
        str | None, typer.Option(help="The server's name of a model; the first that it lists by default.")
    ] = None,
    out: ReportFile = None,
    chat: Annotated[bool, typer.Option("--chat", help="Use the server's chat completions, not completions.")] = False,
    concurrency: Annotated[
        list[int] | None, typer.Option(help="Requests at once; may be repeated. 1, 4 and 16 by default.")
    ] = None,
    requests: Annotated[int, typer.Option(help="Requests at each of those.")] = 16,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of a request.")] = 128,
    key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="The server's key; better given by the variable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure a server that speaks OpenAI's completions: time to the first text and tokens a second."""
    from daguerre.evals.bench import run
    from daguerre.evals.bench.endpoint import Target
    from daguerre.evals.report import check_path

    if out is not None:
        check_path(out)
    route: Literal["chat", "completions"] = "chat" if chat else "completions"
    target = Target(url=url, model=model, route=route, max_tokens=max_tokens, key=key)
    with _progress("measuring") as progress:
        report = run.endpoint(target, concurrency or (1, 4, 16), requests, out=out, progress=progress)
    _show_speed(report, out, as_json)


def _refuse_given(context: typer.Context) -> None:
    """InputError for an option given before the name of a subcommand that does not take it."""
    for option in context.command.params:
        if getattr(context.get_parameter_source(option.name or ""), "name", "") == "COMMANDLINE":
            raise InputError(
                f"{option.opts[0]} is not for `{context.invoked_subcommand}`: give options after the subcommand's name"
            )


def _show_speed(report: dict[str, Any], out: Path | None, as_json: bool) -> None:
    """Print a report of speed, and write its tables and pictures beside it."""
    from daguerre.evals.bench.pictures import draw
    from daguerre.evals.bench.report import markdown, write

    typer.echo(json.dumps(report, ensure_ascii=False) if as_json else markdown(report))
    if out is not None:
        write(report, out)
        _draw_if_possible(draw, report, out)


def calibrate(
    model: Annotated[str, typer.Argument(help="A model folder, `default` or `concepts`.")] = "default",
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
    with _progress("calibrating") as progress:
        path, fitted = calibrate_folder(model, documents, questions, workers=workers, progress=progress)
    if as_json:
        named = {name: asdict(calibration) for name, calibration in fitted.items()}
        typer.echo(json.dumps({"file": str(path), "calibrations": named}, ensure_ascii=False))
        return
    for name, calibration in fitted.items():
        biases = f", {len(calibration.bias)} biases" if calibration.bias else ""
        typer.echo(f"{name:10}temperature {calibration.temperature:.2f}{biases}")
    typer.echo(f"written to {path}")


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
