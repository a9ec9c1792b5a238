"""Commands about models: describe, export."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daguerre.commands.loading import (
    AdapterName,
    FamilyName,
    Revision,
    RopeScaling,
    TokenizerName,
    loading_bar,
)
from daguerre.commands.options import AsJson
from daguerre.commands.table import TRAINING_NEEDS, at
from daguerre.errors import InputError, unknown
from daguerre.models.load_options import DTYPES

if TYPE_CHECKING:
    from daguerre.models.core.config import ModelConfig
    from daguerre.models.scaling import Extension
    from daguerre.models.sources import ModelSource

AnyModel = Annotated[str, typer.Argument(help="A name, as `daguerre models` lists them, a folder or a GGUF file.")]

Which = tuple[str, str | None, str | None, str | None, "Extension | None"]
"""A model with its revision and family, an adapter to be merged, and more positions."""


def inspect_model(
    model: AnyModel = "default",
    revision: Revision = None,
    family: FamilyName = None,
    tokenizer: TokenizerName = None,
    train: Annotated[
        str | None, typer.Option("--train", metavar="RECIPE", help="Print the memory that training by a recipe takes.")
    ] = None,
    machine: Annotated[
        bool, typer.Option("--machine", help="Print what this machine has, and which compiled libraries it uses.")
    ] = False,
    devices: Annotated[int, typer.Option("--devices", min=1, help="With --train: the memory of each of so many.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Print what a model is and needs, from its small files alone: a folder with only config.json will do."""
    from daguerre.commands.describing import as_lines, facts_of, facts_of_machine
    from daguerre.models.loading import model_folder, tokenizer_folder

    if machine:
        typer.echo(json.dumps(facts_of_machine()) if as_json else as_lines(facts_of_machine()))
        return
    folder = model_folder(model, revision, family=family, weights=False)
    if train is not None:
        at(TRAINING_NEEDS)(folder, train, family, devices, as_json)
        return
    tokenizer_path = None if tokenizer is None else tokenizer_folder(folder, tokenizer, family)
    facts = facts_of(folder, family, tokenizer_path)
    typer.echo(json.dumps(facts, ensure_ascii=False) if as_json else as_lines(facts))


def chat_format(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A GGUF file, a folder, or a chat template (.jinja).")],
    as_json: AsJson = False,
) -> None:
    """Print how a model writes calls and thoughts, as its chat template shows: what opens and closes a call, how
    arguments are written, and what the template loses.
    """
    from daguerre.commands.describing import format_in
    from daguerre.models.chat_format.explaining import facts_of_format, lines_of_format

    form = format_in(Path(file))
    typer.echo(json.dumps(facts_of_format(form), ensure_ascii=False) if as_json else lines_of_format(form))


def export_model(
    model: Annotated[
        str | None,
        typer.Argument(help="As of other commands. Without one, the adapter alone is written, for the model it names."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A new folder, for transformers.")] = None,
    saelens: Annotated[
        Path | None, typer.Option(help="A new folder, for SAELens: the concept heads as sparse autoencoders.")
    ] = None,
    gguf: Annotated[
        Path | None, typer.Option(help="A new file, for llama.cpp: the model and its tokenizer in one.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype",
            help="Type of the weights: with --out bfloat16 (the default) or float32; with --gguf f32, f16, bf16 (the "
            "default), q8_0, q6_k, q5_k, q5_1, q5_0, q4_k_m, q4_k, q4_1 or q4_0.",
        ),
    ] = None,
    revision: Revision = None,
    family: FamilyName = None,
    adapter: AdapterName = None,
    rope_scaling: RopeScaling = None,
    alone: Annotated[
        bool, typer.Option("--alone", help="With --adapter and --gguf: write the adapter, and not the merged model.")
    ] = False,
) -> None:
    """Write a model of Llama's or Qwen's core as a folder that transformers reads or as a file that llama.cpp reads, or
    its concept heads as a folder that SAELens reads; README.md in a folder says what for. An adapter is merged, or
    written alone as a file for llama.cpp's --lora.
    """
    from daguerre.models.scaling import read_scaling

    if (alone or model is None) and (adapter is None or gguf is None):
        raise InputError("name a model; or write an adapter alone, with --adapter FOLDER --gguf FILE")
    scaling = None if rope_scaling is None else read_scaling(rope_scaling)
    if gguf is not None and (out is not None or saelens is not None):
        raise InputError("--gguf writes a file of its own: leave out --out and --saelens, and run them apart")
    if gguf is not None and gguf.exists():
        raise InputError(f"{gguf} is there already: give a new name")
    if gguf is not None and adapter is not None and (alone or model is None):
        _export_adapter(model, adapter, gguf, dtype or "f32", revision, family)
        return
    assert model is not None
    which: Which = (model, revision, family, adapter, scaling)
    if gguf is not None:
        _export_gguf(which, gguf, dtype or "bf16")
    else:
        _export_folders(which, out, saelens, dtype)


def _config_of(which: Which) -> tuple[ModelConfig, ModelSource]:
    """The configuration that is written, and where it is from: before the weights are there."""
    from daguerre.models.loading import model_folder, open_source

    model, revision, family, _, scaling = which
    source = open_source(model_folder(model, revision, family=family, weights=False), family=family)
    return source.config() if scaling is None else scaling(source.config()), source


def _with_heads(config: ModelConfig, source: ModelSource, which: Which) -> ModelConfig:
    """The configuration with the concept heads beside the model, if there are some that `_load` takes."""
    from daguerre.models.head_files import heads_of

    beside = None if config.concepts is not None or which[3] is not None else heads_of(source, None)
    return config if beside is None else replace(config, concepts=beside.shape)


def _load(which: Which, dtype: str, progress: Callable[[int, int], None]) -> Any:
    """The model, whose weights are read as they are written."""
    from daguerre.models import loading

    model, revision, family, adapter, scaling = which
    folder = loading.model_folder(model, revision, family=family)
    beside = None if adapter is None else loading.model_folder(adapter)
    words = loading.tokenizer_folder(folder, None, family)
    how: dict[str, Any] = {"family": family, "adapter": beside, "tokenizer": words, "rope_scaling": scaling}
    return loading.load_folder(folder, dtype, progress=progress, defer=True, **how)


def _export_folders(which: Which, out: Path | None, saelens: Path | None, dtype: str | None) -> None:
    from daguerre.models import export
    from daguerre.models import saelens as sparse

    if out is None and saelens is None:
        raise InputError("nothing to write: give --out FOLDER, --saelens FOLDER or both, or --gguf FILE")
    if dtype is not None and dtype not in DTYPES:
        raise unknown("dtype", dtype, DTYPES)
    if dtype is not None and out is None:
        raise InputError("--dtype is for --out: SAELens' weights are float32")
    if out == saelens:
        raise InputError(f"--out and --saelens are both {out}: give two folders")
    config, source = _config_of(which)
    if saelens is not None:
        sparse.prepare(_with_heads(config, source, which), saelens)
    if out is not None:
        export.prepare(config, out)
    kept = dtype or "bfloat16"
    with loading_bar() as progress:
        loaded = _load(which, kept if saelens is None else "float32", progress)
        named = "" if out is None else export.export(loaded.weights, loaded.tokenizer, out, kept)
    if out is not None:
        typer.echo(f"{out}  {named}: README.md says what transformers can do with it")
    if saelens is not None:
        name = which[0] if out is None else str(out)
        names = sparse.export_concepts(loaded.weights, loaded.concepts, saelens, name)
        typer.echo(f"{saelens}  {', '.join(names)}: README.md says how SAELens reads them")


def _export_gguf(which: Which, file: Path, dtype: str) -> None:
    from daguerre.models.gguf import writing

    writing.check_dtype(dtype)
    writing.package()
    config, source = _config_of(which)
    writing.arch_of(config, source.names().family)
    with loading_bar() as progress:
        loaded = _load(which, "bfloat16" if dtype == "bf16" else "float32", progress)
        written = writing.write_gguf(loaded.weights, loaded.tokenizer, file, dtype, loaded.family)
    kinds = ", ".join(f"{num} tensors of {kind}" for kind, num in sorted(written.kinds.items()))
    typer.echo(f"{file}  {written.arch}: {kinds}")
    for note in written.notes:
        typer.echo(f"daguerre: {note}", err=True)


def _export_adapter(
    model: str | None, adapter: str, file: Path, dtype: str, revision: str | None, family: str | None
) -> None:
    from daguerre.models import lora
    from daguerre.models.gguf.adapter import write_adapter
    from daguerre.models.loading import model_folder, open_source

    adapter_folder = model_folder(adapter, what="an adapter")
    base = model or lora.base_name(adapter_folder)
    source = open_source(model_folder(base, revision, family=family, weights=False), family=family)
    num = write_adapter(source.config(), source.names(), adapter_folder, file, dtype)
    typer.echo(f"{file}  factors of {num} matrices, for {base}: llama.cpp takes it with --lora")
