"""`daguerre train`: resolve recipe, data, starting point and device, then run the trainer."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from daguerre.errors import CheckpointError, DataError, InputError, TrainingError
from daguerre.files import atomic_write
from daguerre.models.core.config import ModelConfig
from daguerre.models.loading import model_folder, usable_device
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.checkpoint import CHECKPOINTS, find_checkpoint, list_checkpoints, load_state
from daguerre.train.corpus.harvest import NO_TIME
from daguerre.train.method import Method
from daguerre.train.methods import method_of
from daguerre.train.recipe import Recipe, changed_settings, load_recipe, recipe_from_dict
from daguerre.train.sft.corpus import AnswerFiles
from daguerre.train.sft.files import KINDS, data_files
from daguerre.train.shards import is_corpus
from daguerre.train.trainer import DATA, RECIPE, Corpus, Trainer
from daguerre.train.user_folder import UserFolder

ADAPT = "adapt"
ORIGIN = "origin.txt"  # in the copy of its data that a run keeps: the folder it was made from


def run_training(
    recipe_name: str | None,
    *,
    overrides: Sequence[str] = (),
    resume: bool = False,
    start_from: str | None = None,
    data: Path | Sequence[Path] | None = None,
    max_minutes: float | None = None,
    out: Path | None = None,
    device: str = "auto",
    quiet: bool = False,
    clock: Callable[[], float] = time.monotonic,
    began: float | None = None,
) -> Path:
    """Train and return the folder of the exported model.

    `data` is a corpus (a folder that `daguerre data` wrote) or a folder of source, which is tokenized into the
    run; with [sft] or [prefer] in the recipe it is files of prompts and answers, or folders of them. Without a recipe,
    a run that starts from a model adapts it, and a resumed run goes on with the recipe and data that it began with.
    Budgets in minutes count the whole run, over all its resumes, from set-up to export, by `clock`
    (seconds), from its reading `began` on (None: from this call on). A DaguerreError says what is wrong or missing;
    then nothing has been written but by a run that had begun.
    """
    timing: dict[str, Any] = {"clock": clock, "began": clock() if began is None else began}
    place = torch.device(
        usable_device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    )
    recipe = _with_minutes(_recipe(recipe_name, overrides, resume, start_from, out), max_minutes)
    given = [data] if isinstance(data, Path) else list(data or ())
    folder = out or Path("runs") / recipe.name
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: give --out a folder")
    source = str(model_folder(start_from)) if start_from is not None else None
    silent = quiet or os.environ.get("RANK", "0") != "0"  # of several processes the first one speaks
    say = Console(stderr=True, quiet=silent, highlight=False, markup=False, soft_wrap=True).print
    again = resume and bool(given) and folder.exists() and not list_checkpoints(folder / CHECKPOINTS)
    if again:  # killed after it had begun to write, before its first checkpoint
        say(f"{folder} holds no checkpoint yet: the run begins")
        resume = False
    checkpoint = find_checkpoint(folder, resume)
    has_time, left_out = _time_to_read(recipe.minutes, **timing), partial(_say_left_out, say)
    corpus: Corpus
    if checkpoint is not None:
        corpus = _corpus_of_run(given, folder, checkpoint)
        _say_changed(folder, recipe, say)
    elif (method := method_of(recipe)).rows and not (len(given) == 1 and is_corpus(given[0])):
        corpus = _answers(given, folder, method)
    else:
        corpus = _corpus(_one(given), folder, recipe.files, again, has_time, left_out)
    try:
        trainer = Trainer(recipe, folder, corpus, start_from=source, resume=resume, device=place, quiet=quiet, **timing)
    except OSError as error:
        raise TrainingError(f"cannot write a run at {folder}: {error}; fix this, or give another --out") from error
    return trainer.run()


def _with_minutes(recipe: Recipe, max_minutes: float | None) -> Recipe:
    if max_minutes is not None and max_minutes <= 0:
        raise InputError(f"--max-minutes must be positive, not {max_minutes}")
    return recipe if max_minutes is None else replace(recipe, minutes=max_minutes)


def _recipe(
    name: str | None, overrides: Sequence[str], resume: bool, start_from: str | None, out: Path | None
) -> Recipe:
    if name is not None:
        return load_recipe(name, overrides)
    if resume:
        return _recipe_of_run(out or Path("runs") / ADAPT, overrides)
    if start_from is None:
        raise InputError("name a recipe (small, full, or a .toml file), or start from a model with --from")
    return load_recipe(ADAPT, overrides)


def _recipe_of_run(folder: Path, overrides: Sequence[str]) -> Recipe:
    saved = folder / RECIPE
    if not saved.is_file():
        raise InputError(f"no run to resume at {folder}: give its folder with --out, or its recipe")
    try:
        values = json.loads(saved.read_text(encoding="utf-8"))
        recipe_from_dict(values)
    except (OSError, ValueError, InputError) as error:
        raise CheckpointError(f"{saved} is damaged ({error}): name the run's recipe, then --resume") from error
    return recipe_from_dict(values, overrides)


def _say_changed(folder: Path, recipe: Recipe, say: Callable[[str], None]) -> None:
    """Say which settings of a resumed run have changed: by an override that was not given again, for example."""
    try:
        before = recipe_from_dict(json.loads((folder / RECIPE).read_text(encoding="utf-8")))
    except (OSError, ValueError, InputError):  # nothing to compare with
        return
    for change in changed_settings(before, recipe):
        say(f"setting changed: {change}")


READING = 1 / 6
"""The share of a budget in minutes after which no more files are read."""


def _time_to_read(minutes: float, clock: Callable[[], float], began: float) -> Callable[[], bool]:
    return lambda: not minutes or clock() - began < READING * 60 * minutes


def _say_left_out(say: Callable[[str], None], num: int) -> None:
    if num:
        say(f"the budget has no time to read all files: {num:,} are left out")


def _one(data: Sequence[Path]) -> Path | None:
    """The folder of plain text, of which there is at most one."""
    if len(data) > 1:
        raise InputError("several --data are for prompts and answers (the recipe sft): give one folder")
    return data[0] if data else None


def _answers(data: Sequence[Path], folder: Path, method: Method) -> Corpus:
    """The corpus of a run on rows of files: made of `data`, or one that is in the run."""
    copy = folder / DATA
    if not data:
        if is_corpus(copy):
            return copy
        raise InputError(f"say what to train on: --data FILES of {method.rows} (docs/training.md)")
    data_files(data)
    return CopiedAnswers(data, copy, max(stage.length for stage in method.recipe.stages), **method.reading())


def _corpus(
    data: Path | None,
    folder: Path,
    files: str,
    again: bool,
    has_time: Callable[[], bool],
    left_out: Callable[[int], None],
) -> Corpus:
    """The corpus of a new run: `data` itself, or a copy in the run, to be made from a folder of source.

    again: a run that was killed may have made the copy.
    """
    copy = folder / DATA
    if data is None:
        if is_corpus(copy):
            return copy
        raise InputError(
            "say what to train on: --data CORPUS (made by `daguerre data python`) or --data FOLDER of source"
        )
    if data.suffix in KINDS and data.is_file():
        raise InputError(
            f"{data.name} has prompts and answers, which the recipe sft trains on: daguerre train sft --from MODEL "
            f"--data {data}, and --set lora.rank=16 for an adapter"
        )
    if not data.is_dir():
        raise DataError(f"no such folder: {data}")
    if is_corpus(data):
        return data
    if again and _is_copy(copy, data):
        return copy
    return Copied(data, files, has_time, copy=copy, left_out=left_out)


def _corpus_of_run(data: Sequence[Path], folder: Path, checkpoint: Path) -> Path:
    """The corpus that a run began with, or where `data` says it is now; the trainer checks that it is the same."""
    copy = folder / DATA
    if not data:
        first = folder / load_state(checkpoint).get("data", {}).get("path", DATA)
        if not is_corpus(first):
            raise DataError(f"the data of this run is not at {first}: say where it is with --data")
        return first
    for path in data:
        if not path.exists():
            raise DataError(f"no such {'file' if path.suffix in KINDS else 'folder'}: {path}")
    if len(data) == 1 and is_corpus(data[0]):
        return data[0]
    if _is_copy(copy, *data):
        return copy
    named = ", ".join(map(str, data))
    raise InputError(f"{folder} has not been trained on {named}: leave out --data, or start another run with --out")


@dataclass(frozen=True)
class Copied(UserFolder):
    """A user's folder that is tokenized into a run: called with the model's vocabulary, it is the corpus. `left_out` is
    told how many files there was no time to read.
    """

    copy: Path = field(kw_only=True)
    left_out: Callable[[int], None] = field(kw_only=True)

    def __call__(self, tokenizer: Tokenizer, config: ModelConfig) -> Path:
        with _made_from(self.copy, [self.path]):
            self.write(self.copy, tokenizer)
            self.left_out(self.kept.dropped.get(NO_TIME, 0))
        return self.copy


@dataclass(frozen=True)
class CopiedAnswers(AnswerFiles):
    """Files of prompts and answers that are written into a run as a corpus."""

    def __call__(self, tokenizer: Tokenizer, config: ModelConfig) -> Path:
        with _made_from(self.out, self.paths):
            return super().__call__(tokenizer, config)


@contextmanager
def _made_from(copy: Path, data: Sequence[Path]) -> Iterator[None]:
    """Say in a copy what it was made from, once it is whole."""
    (copy / ORIGIN).unlink(missing_ok=True)
    yield
    with atomic_write(copy / ORIGIN) as file:
        file.write(_names(data))


def _is_copy(copy: Path, *data: Path) -> bool:
    """Whether a whole corpus was made from a folder of source, or from these files."""
    origin = copy / ORIGIN
    return is_corpus(copy) and origin.is_file() and origin.read_bytes() == _names(data)


def _names(data: Sequence[Path]) -> bytes:
    return b"\n".join(os.fsencode(path.resolve()) for path in data)
