"""Commands that make a model: from source to a corpus, from a corpus to weights, from weights to their mean."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from daguerre.commands.options import AsJson
from daguerre.errors import InputError
from daguerre.train.overlap_commands import data_where


def data() -> typer.Typer:
    """The commands of `data`."""
    group = typer.Typer(no_args_is_help=True)
    group.command("python")(data_python)
    group.command("self")(data_self)
    group.command("index")(data_index)
    group.command("where")(data_where)
    return group


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
    typer.echo(f"{summary.seen_bytes / 1e6:,.1f} MB read, {summary.seconds:,.0f} seconds")
    typer.echo(f"{dropped:,} files dropped, {skipped:,} packages skipped: see {out / 'report.json'}")


def data_index(
    data: Annotated[Path, typer.Option(help="A corpus of `daguerre data python`; its training split is indexed.")],
    out: Annotated[Path, typer.Option("--out", help="Folder of the index; an older index there is replaced.")],
    memory: Annotated[float, typer.Option(help="GB of memory to use; with less, a query takes longer.")] = 4,
    as_json: AsJson = False,
) -> None:
    """Index a corpus, so that `daguerre data where` can say which of its documents a text repeats.

    After Ctrl-C nothing is left of the new index, and an older one is as it was.
    """
    from daguerre.overlap.build import plan
    from daguerre.train.corpus.index import SPLIT, index_corpus
    from daguerre.train.shards import Shard

    began = time.monotonic()
    shard = Shard.open(data, SPLIT)
    planned = plan(shard.num_bytes, shard.num_documents, int(memory * 1e9))
    typer.echo(
        f"{shard.num_documents:,} documents, {shard.num_bytes / 1e6:,.1f} MB of text: takes about "
        f"{planned.memory / 1e9:,.1f} GB of memory, and {planned.disk / 1e9:,.2f} GB on disk",
        err=True,
    )
    with Console(stderr=True).status("reading") as status:
        overlap = index_corpus(
            data, out, memory=int(memory * 1e9), progress=lambda what, share: status.update(f"{what}  {share:.0%}")
        )
    size = sum(file["bytes"] for file in overlap.meta["files"].values())
    seconds = time.monotonic() - began
    if as_json:
        summary = {"out": str(out), "sha256": overlap.sha256, "bytes": size, "seconds": round(seconds, 2)}
        typer.echo(json.dumps(summary | {"corpus": overlap.meta["corpus"]}))
        return
    typer.echo(f"{out}: {size / 1e6:,.1f} MB, {seconds:,.0f} seconds")


def data_self(
    out: Annotated[Path, typer.Option("--out", help="Folder of the new corpus, or of the conversations.")],
    data: Annotated[
        Path | None,
        typer.Option(
            help="A corpus of `daguerre data python`: prompts, and half of the text. Without it a chat model writes "
            "conversations."
        ),
    ] = None,
    model: Annotated[
        str, typer.Option("--from", help="The model that writes: `default`, `concepts`, a folder or a GGUF file.")
    ] = "default",
    tokens: Annotated[int, typer.Option(help="How many tokens it writes.")] = 3_000_000,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(help="Files of prompts for conversations: JSON Lines, JSON or Parquet; half of them use one."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of prompts and samples.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Let a model write text for training its drafts on it: continue a corpus, or converse with itself.

    After Ctrl-C the same command goes on behind what is kept.
    """
    if data is not None and prompts:
        raise InputError("--prompts are for conversations, and --data for a corpus: leave out one of the two")
    if data is None:
        _data_chat(out, model, tokens, prompts or [], seed, as_json)
    else:
        _data_corpus(out, data, model, tokens, seed, as_json)


def _data_chat(out: Path, model: str, tokens: int, prompts: list[Path], seed: int, as_json: bool) -> None:
    from daguerre.model import load
    from daguerre.train.corpus.chat_text import write_chat_text

    with Console(stderr=True).status("writing") as status:

        def show(done: int, speed: float) -> None:
            hours = (tokens - done) / max(speed, 1e-9) / 3600
            status.update(f"tokens  {done:,}/{tokens:,}  {speed:,.0f} a second  {hours:.1f} hours to go")

        written = write_chat_text(load(model, drafts="none"), out, tokens, prompts, seed=seed, progress=show)
    facts = {"out": str(out), "tokens": written}
    typer.echo(json.dumps(facts) if as_json else f"{out}: answers of {written:,} tokens")


def _data_corpus(out: Path, data: Path, model: str, tokens: int, seed: int, as_json: bool) -> None:
    from daguerre.model import load
    from daguerre.train.corpus.self_text import PARTS, write_self_text

    kept = 0
    try:
        with Console(stderr=True).status("writing") as status:

            def show(done: int, in_parts: int) -> None:
                nonlocal kept
                kept = in_parts
                status.update(f"tokens  {done:,}/{tokens:,}  kept  {kept:,}")

            summary = write_self_text(load(model), data, out, tokens, seed=seed, progress=show)
    except KeyboardInterrupt:
        what = f"{kept:,} tokens are kept; the same command goes on from {out / PARTS}"
        typer.echo(f"stopped early; {what if kept else 'nothing was kept yet'}", err=True)
        raise
    if as_json:
        typer.echo(json.dumps(asdict(summary) | {"out": str(out)}))
        return
    own = f"{summary.texts:,} texts with {summary.new_tokens:,} new tokens"
    typer.echo(f"{own}, {summary.corpus_tokens:,} tokens of the corpus")


MaxMinutes = Annotated[float | None, typer.Option(help="Budget of the whole run, set-up and evaluation included.")]
TaxonomyFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="heads: concepts of your own, in TOML or labeled texts (docs/concepts.md)."),
]
AskedModel = Annotated[
    str | None, typer.Option(metavar="MODEL", help="heads: a chat model that finds concepts without a rule.")
]


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="tiny, small, refine, longer, settle, draft, verified, trajectory, concepts, full, adapt, lora, sft, "
            "prefer, reinforce, distill, convert, convert-chat, convert-policy, drafts, heads, or a .toml file."
        ),
    ] = None,
    folder: Annotated[Path | None, typer.Argument(help="What to train on, as --data.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, for example optim.muon_lr=0.01.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    start_from: Annotated[
        str | None,
        typer.Option("--from", help="A model to start from: `default`, `concepts`, a folder or a GGUF file."),
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help="A corpus, or a folder of Python source (tiny: of text in any language); sft, distill, prefer: files "
            "or folders of prompts and answers, reinforce: of prompts (JSON Lines, JSON, Parquet); drafts: of data self"
        ),
    ] = None,
    max_minutes: MaxMinutes = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/RECIPE by default.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    taxonomy: TaxonomyFile = None,
    ask: AskedModel = None,
    as_json: AsJson = False,
) -> None:
    """Train a model, or adapt one to your code. Ctrl-C finishes the step and saves.

    `daguerre train tiny FOLDER` makes a first model of any text in two minutes; `daguerre train --from default --data
    FOLDER` adapts the default model in five; docs/training.md has the others. What is held out is never trained on, and
    says what the run brought.
    """
    began = time.monotonic()  # loading PyTorch, which takes seconds, counts too
    recipe, data = recipe_and_data(recipe, folder, data or [], start_from)
    if sys.stderr.isatty():  # the first seconds are not silent
        reads = f" and reading {', '.join(map(str, data))}" if data and not resume else ""
        typer.echo(f"loading PyTorch{reads}", err=True)
    if (beside := training_beside(recipe, start_from, taxonomy, ask)) is not None:
        beside(start_from, data, out, overrides or [], resume, max_minutes, as_json)
        return
    from daguerre.train.run import run_training

    model = run_training(
        recipe,
        overrides=overrides or [],
        resume=resume,
        start_from=start_from,
        data=data,
        max_minutes=max_minutes,
        out=out,
        device=device,
        began=began,
    )
    if not int(os.environ.get("RANK", "0")):  # of torchrun: the first process says it
        say_made(model, as_json, sample=recipe == TINY)


TINY, ADAPTER, DRAFTS, HEADS = "tiny", "adapter", "drafts", "heads"
SAMPLE_TOKENS = 48


def _train_drafts(
    model: str | None,
    data: list[Path],
    out: Path | None,
    overrides: list[str],
    resume: bool,
    minutes: float | None,
    as_json: bool,
) -> None:
    """Train a draft head for an autoregressive model, and say where it is."""
    from daguerre.train.drafts.options import DraftOptions
    from daguerre.train.drafts.run import train_drafts
    from daguerre.train.settings import options_of

    if model is None or len(data) != 1:
        raise InputError(
            "drafts are trained for a model on what it writes: daguerre data self --from MODEL --out TEXTS, then "
            "daguerre train drafts --from MODEL --data TEXTS"
        )
    say, run = Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print, out or Path("runs") / DRAFTS
    options = options_of(DraftOptions, run, overrides, resume)
    folder = train_drafts(model, data[0], run, options, resume=resume, minutes=minutes, say=say)
    if as_json:
        typer.echo(json.dumps({"drafts": str(folder)}))
        return
    typer.echo(f"drafts: {folder}")
    typer.echo(f"try it:  daguerre chat -m {shlex.quote(model)} --drafts {shlex.quote(str(folder))}", err=True)


def training_beside(
    recipe: str | None, start_from: str | None, taxonomy: Path | None = None, ask: str | None = None
) -> Callable[..., None] | None:
    """What trains a folder that lies beside a published model, which stays as it is; None for any other training."""
    if recipe == HEADS and start_from is not None:
        from daguerre.models.loading import model_folder, open_source

        if open_source(model_folder(start_from)).is_published:
            return partial(_train_heads, taxonomy, ask)
    if taxonomy is not None or ask is not None:
        raise InputError("--taxonomy and --ask are of `daguerre train heads --from MODEL`, for a published model")
    return _train_drafts if recipe == DRAFTS else None


def _train_heads(
    taxonomy: Path | None,
    ask: str | None,
    model: str,
    data: list[Path],
    out: Path | None,
    overrides: list[str],
    resume: bool,
    minutes: float | None,
    as_json: bool,
) -> None:
    """Train concept heads for a published model, and say where they are."""
    from daguerre.train.heads.options import HeadOptions
    from daguerre.train.heads.own_subject import head_subject
    from daguerre.train.heads.run import train_heads
    from daguerre.train.settings import options_of

    say, run = Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print, out or Path("runs") / HEADS
    options = options_of(HeadOptions, run, overrides, resume)
    subject = head_subject(taxonomy, ask, run, options, say)
    folder = train_heads(model, data, run, options, subject=subject, resume=resume, minutes=minutes, say=say)
    if as_json:
        typer.echo(json.dumps({"concepts": str(folder)}))
        return
    typer.echo(f"concepts: {folder}")
    how = f"-m {shlex.quote(model)} --concepts {shlex.quote(str(folder))}"
    trial = "generate {} --explain 'def area(points):'" if taxonomy is None else "concepts explain {} FILE"
    typer.echo(f"try it:  daguerre {trial.format(how)}", err=True)


def recipe_and_data(
    recipe: str | None, folder: Path | None, data: list[Path], start_from: str | None
) -> tuple[str | None, list[Path]]:
    """The recipe, and what to train on, which may be the only argument: a run from a model needs no recipe."""
    if folder is not None and data:
        raise InputError(f"{folder} and --data {data[0]} are both to train on: leave out one of the two")
    if folder is None and recipe is not None and start_from is not None and Path(recipe).is_dir():
        folder, recipe = Path(recipe), None
    return recipe, data or ([] if folder is None else [folder])


def say_made(folder: Path, as_json: bool, sample: bool) -> None:
    """Where a model or an adapter is, and how it is tried. sample: print what it writes, too."""
    from daguerre.models.lora import base_name
    from daguerre.train.sft.corpus import has_chat_template
    from daguerre.train.trainer import DATA

    if folder.name == ADAPTER:
        kind, base = "adapter", base_name(folder)
        facts, how = {"base": base}, f"-m {shlex.quote(base)} --adapter {shlex.quote(str(folder))}"
    else:
        kind, facts, how = "model", {}, f"-m {shlex.quote(str(folder))}"
    if as_json:
        typer.echo(json.dumps({kind: str(folder)} | facts))
        return
    typer.echo(f"{kind}: {folder}")
    begins = prompt_for(folder)
    if sample:
        write_sample(folder, begins)
    chats = has_chat_template(folder.parent / DATA)
    typer.echo(f"try it:  daguerre {f'chat {how}' if chats else f'generate {how} {shlex.quote(begins)}'}", err=True)


def prompt_for(model: Path) -> str:
    """How a text may begin for the model of a run: as those it was trained on."""
    from daguerre.train.sft.corpus import first_prompt
    from daguerre.train.trainer import DATA
    from daguerre.train.user_folder import PYTHON, sample_prompt

    data = model.parent / DATA
    if (prompt := first_prompt(data)) is not None:
        return prompt
    return sample_prompt(data) if (data / "manifest.jsonl").is_file() else PYTHON


def write_sample(model: Path, begins: str) -> None:
    """Print what a model writes, drawn at temperature 0.6."""
    from daguerre.model import load

    result = load(model, backend="torch").generate(begins, SAMPLE_TOKENS, temperature=0.6)
    typer.echo("it writes, for example:", err=True)
    typer.echo("\n".join(f"    {line}" for line in (begins + result.text).split("\n")), err=True)


def print_needs(folder: Path, recipe: str, family: str | None, devices: int, as_json: bool) -> None:
    """Print the memory that training a model by a recipe takes: `inspect --train`."""
    from daguerre.train.needs import training_facts, training_lines
    from daguerre.train.recipe import load_recipe

    needs = training_facts(folder, load_recipe(recipe), family, devices)
    typer.echo(json.dumps(needs) if as_json else training_lines(needs))


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
        raise InputError(f"{part!r} is not MODEL=SHARE, such as runs/settle/model=0.7") from None
