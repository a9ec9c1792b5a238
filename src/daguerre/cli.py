"""The command line: parse, build, call. Errors are one line and exit status 2; long work shows progress."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from daguerre.errors import DaguerreError, InputError

app = typer.Typer(
    name="daguerre",
    help="Diffusion language models: complete, infill, train, evaluate.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Collect training data.", no_args_is_help=True)
app.add_typer(data_app, name="data")

ModelName = Annotated[str, typer.Option("--model", "-m", help="A model folder, or `default`.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
MaxTokens = Annotated[int, typer.Option(help="Most tokens to write.")]
Mode = Annotated[str, typer.Option(help="ar, block or full.")]
PolicyName = Annotated[str, typer.Option("--policy", help="threshold, confidence or random.")]
Threshold = Annotated[float, typer.Option(help="Confidence above which the threshold policy commits.")]
BlockSize = Annotated[int | None, typer.Option(help="Tokens denoised together in block mode.")]
Steps = Annotated[int | None, typer.Option(help="Forwards per span of the confidence and random policies.")]
Temperature = Annotated[float, typer.Option(help="0 takes the most likely token.")]
TopP = Annotated[float, typer.Option(help="Draw from the smallest set with this probability.")]
TopK = Annotated[int | None, typer.Option(help="Draw from this many most likely tokens.")]
Seed = Annotated[int, typer.Option(help="Seed of every random number.")]
Stop = Annotated[list[str] | None, typer.Option(help="Text that ends the output; may be repeated.")]


@app.command()
def demo(
    model: ModelName = "default",
    plain: Annotated[bool, typer.Option("--plain", help="No colors, no drawing in place.")] = False,
) -> None:
    """Show the model completing and infilling held-out code, the draft sharpening as it runs."""
    from daguerre.demo import run_demo

    run_demo(model, plain=plain)


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="Text to complete; `-` reads standard input.")],
    max_tokens: MaxTokens = 64,
    model: ModelName = "default",
    mode: Mode = "block",
    policy: PolicyName = "threshold",
    threshold: Threshold = 0.9,
    block_size: BlockSize = None,
    steps: Steps = None,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    top_k: TopK = None,
    seed: Seed = 0,
    stop: Stop = None,
    as_json: AsJson = False,
) -> None:
    """Complete a prompt."""
    decode = _decode(
        mode=mode,
        policy=policy,
        threshold=threshold,
        block_size=block_size,
        steps=steps,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        stop=tuple(stop or ()),
    )
    result = _load(model).generate(_text(prompt), max_tokens=max_tokens, decode=decode)
    _print_result(result, as_json)


@app.command()
def infill(
    prefix: Annotated[str, typer.Argument(help="Text before the gap; `-` reads standard input.")],
    suffix: Annotated[str, typer.Argument(help="Text after the gap.")] = "",
    max_tokens: MaxTokens = 24,
    min_tokens: Annotated[
        int, typer.Option(help="Least tokens to write; equal to --max-tokens: exactly that many.")
    ] = 0,
    model: ModelName = "default",
    mode: Mode = "block",
    policy: PolicyName = "threshold",
    threshold: Threshold = 0.9,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    whole: Annotated[bool, typer.Option("--whole", help="Print prefix and suffix too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fill the gap between a prefix and a suffix."""
    decode = _decode(
        mode=mode, policy=policy, threshold=threshold, temperature=temperature, seed=seed, min_tokens=min_tokens
    )
    before, after = _text(prefix), _text(suffix)
    result = _load(model).infill(before, after, max_tokens=max_tokens, decode=decode)
    _print_result(result, as_json, before if whole else "", after if whole else "")


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
) -> None:
    """Collect permissively licensed Python source into token shards."""
    from daguerre.train.corpus.collect import collect_python

    chosen: Any = tokenizer if tokenizer in ("2k", "8k") else Path(tokenizer)
    summary = collect_python(
        out, source or [], tokenizer=chosen, workers=workers, installed=installed, max_share=max_share
    )
    for split, tokens in summary.tokens.items():
        megabytes = summary.bytes[split] / 1e6
        typer.echo(f"{split}: {summary.documents[split]:,} files, {megabytes:,.1f} MB, {tokens:,} tokens")
    dropped, skipped = sum(summary.dropped.values()), len(summary.skipped)
    typer.echo(f"{dropped:,} files dropped, {skipped:,} packages skipped: see {out / 'report.json'}")


@app.command()
def train(
    recipe: Annotated[str | None, typer.Argument(help="small, full, adapt, or a .toml file.")] = None,
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
    typer.echo(f"model: {folder}")


@app.command("eval")
def evaluate_model(
    model: Annotated[str, typer.Argument(help="A model folder, or `default`.")] = "default",
    data: Annotated[
        Path | None, typer.Option(help="A Python file or folder; the frozen held-out sample by default.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write this JSON file, and the tables beside it as .md.")] = None,
    lines: Annotated[int | None, typer.Option(help="Lines to infill; 200 by default.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A first look, in about half a minute.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure bits per byte, line infilling and drafts on held-out code."""
    from dataclasses import replace

    from daguerre.evals import harness
    from daguerre.evals.documents import read_documents
    from daguerre.evals.report import markdown, write_json, write_markdown

    limits = harness.QUICK if quick else harness.DEFAULT
    if lines is not None:
        limits = replace(limits, lines=lines)
    documents = None if data is None else read_documents(data)
    with Console(stderr=True).status("evaluating") as status:
        report = harness.evaluate(
            model, documents, limits=limits, progress=lambda what, done, total: status.update(f"{what}  {done}/{total}")
        )
    if out is not None:
        write_json(report, out)
        write_markdown(report, out.with_suffix(".md"))
    typer.echo(json.dumps(report, ensure_ascii=False) if as_json else markdown(report))


@app.command("inspect")
def inspect_model(model: Annotated[str, typer.Argument(help="A model folder, or `default`.")] = "default") -> None:
    """Check a model folder and print what it is."""
    import torch

    from daguerre.models.loading import load_model, model_folder

    backbone, tokenizer = load_model(model_folder(model), dtype=torch.float32)
    values = {"parameters": backbone.num_parameters, **asdict(backbone.config), "tokenizer_sha256": tokenizer.sha256}
    typer.echo(json.dumps(values, indent=2))


def _decode(**options: Any) -> Any:
    from daguerre import Decode

    return Decode(**options)


def _load(name: str) -> Any:
    import daguerre

    return daguerre.load(name)


def _text(argument: str) -> str:
    """The argument itself, or standard input for `-`. InputError when the bytes are not UTF-8."""
    raw = sys.stdin.buffer.read() if argument == "-" else argument.encode("utf-8", errors="surrogateescape")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"the text is not valid UTF-8 (byte {error.start}): convert it first, for example with iconv"
        ) from None


def _print_result(result: Any, as_json: bool, before: str = "", after: str = "") -> None:
    if as_json:
        body = {"text": result.text, "finish_reason": result.finish_reason, "usage": asdict(result.usage)}
        typer.echo(json.dumps(body, ensure_ascii=False))
    else:
        typer.echo(before + result.text + after)


def main() -> None:
    """Console entry: a mistake is one line on standard error and exit status 2."""
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
