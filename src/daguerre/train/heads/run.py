"""`daguerre train heads --from MODEL`: concept heads for a published model that stays as it is.

A run has four parts, each of which goes on where it was interrupted: files are labeled and windows chosen (WINDOWS),
the model computes their hidden states (`states`), and from these first the maps that tell concepts (`predictors`) and
then all other weights of the heads are learned. The folder of the heads is made at the end, and at every checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from daguerre.errors import DataError, InputError, UnsupportedError
from daguerre.model import Model
from daguerre.models.added_weights import fingerprint
from daguerre.models.core.parameters import parameter_shapes
from daguerre.models.head_files import CONCEPTS, MOST_BYTES
from daguerre.models.loading import model_folder, open_source
from daguerre.train.heads.options import HeadOptions
from daguerre.train.heads.states import WindowStates
from daguerre.train.heads.subject import FILE as TAXONOMY
from daguerre.train.heads.subject import PYTHON, HeadNames, HeadSubject
from daguerre.train.heads.training import HeadRun
from daguerre.train.heads.windows import ChosenWindows, LabeledFiles, make_windows
from daguerre.train.settings import keep_options

WINDOWS, LABELED = "windows.npz", "labeled-"
"""Files of a run."""
STATES_SHARE = 0.6
"""Of a budget in minutes, the share that states may take."""


def train_heads(
    name: str,
    sources: Sequence[Path],
    out: Path,
    options: HeadOptions,
    *,
    subject: HeadSubject = PYTHON,
    resume: bool = False,
    minutes: float | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Train concept heads for a published model by its name, on the texts of folders; returns the heads' folder.

    UnsupportedError for a model that cannot have any; InputError for a run that is there and not to be resumed.
    """
    from daguerre.model import load

    began = time.monotonic()
    files = open_source(model_folder(name)).weight_files()
    model = load(name, drafts="none", concepts="none")
    check_model(model, options, names_of(out, subject))
    windows = _windows(model, sources, out, options, subject, resume, say)
    keep_options(out, options)
    states = WindowStates(out / "states", windows, model.config.width)
    say_hours(model, states, options, minutes, say)
    until = None if minutes is None else began + 60 * minutes * STATES_SHARE
    states.compute(model, _shown(say, until))
    if not states.is_whole and until is None:
        raise DataError(f"not all states are there: resume the run in {out}")
    base = {"name": files[0].name if len(files) == 1 else files[0].parent.name, "sha256": fingerprint(files)}
    left = None if minutes is None else max(0.1, minutes - (time.monotonic() - began) / 60)
    run = HeadRun(model, states, base, out, options, resume=resume, minutes=left, say=say)
    if rare := run.rare():
        say(f"in few spans of this text, so hardly learned (those in 0 are left out): {', '.join(rare)}")
    folder = run.run()
    for area in run.areas() if (out / TAXONOMY).exists() else ():
        say(str(area))
    return folder


def is_labeled(out: Path) -> bool:
    """Whether a run in a folder has its text, so that its concepts are known."""
    return (out / WINDOWS).exists()


def names_of(out: Path, subject: HeadSubject) -> HeadNames:
    """The concepts that heads of a run in a folder learn: its own, or those of a subject where it has not begun.

    InputError for a run that began with another subject.
    """
    if not is_labeled(out):
        return subject.names
    names = HeadNames.kept(out)
    if subject is not PYTHON and subject.names.given != names.given:
        raise InputError(f"the run in {out} began with another taxonomy: give that one, or another --out")
    return names


def check_model(model: Model, options: HeadOptions, names: HeadNames) -> None:
    """UnsupportedError unless heads can be trained for a model; InputError for heads that would be too large."""
    config = model.config
    if not config.can_draft or config.mask_id is not None or config.concepts is not None or model.family is None:
        raise UnsupportedError(
            "concept heads of their own are trained for a published autoregressive model without any, which this one "
            "is not: for a model in Daguerre's layout see `recipes/heads.toml`"
        )
    model.tokenizer.require_bytes("training concept heads")
    config = replace(config, concepts=options.shape(names.num, names.sha256))
    shapes = {name: shape for name, shape in parameter_shapes(config).items() if name.startswith(CONCEPTS)}
    size = 2 * sum(int(np.prod(shape)) for shape in shapes.values())
    if size > MOST_BYTES:
        raise InputError(
            f"these heads would take {size / 1e6:.1f} MB, and {MOST_BYTES / 1e6:.0f} is the most: lower rank"
        )


def _windows(
    model: Model,
    sources: Sequence[Path],
    out: Path,
    options: HeadOptions,
    subject: HeadSubject,
    resume: bool,
    say: Callable[[str], None],
) -> ChosenWindows:
    """The windows of a run, made if they are not there. InputError for a run that is there and not to be resumed."""
    kept = out / WINDOWS
    if is_labeled(out):
        if not resume:
            raise InputError(f"{out} has a run: go on with --resume, or give another --out")
        return ChosenWindows.load(kept)
    options = replace(options, window=min(options.window, model.config.max_positions - len(model.config.first)))
    most = int(options.gigabytes * 1e9 / (2 * model.config.width))
    if most < options.tokens + options.held:
        options = replace(options, tokens=max(1, most - options.held))
        say(f"{options.gigabytes:g} GB hold the states of {most:,} tokens: {options.tokens:,} are taken")
    out.mkdir(parents=True, exist_ok=True)
    told = [time.monotonic()]

    def progress(done: int, asked: int) -> None:
        if time.monotonic() - told[0] > 10:
            told[0] = time.monotonic()
            say(f"labeled {done / 1e6:.2f} of {asked / 1e6:.2f} million tokens")

    cut = hashlib.sha256(json.dumps([model.tokenizer.sha256, subject.asked]).encode()).hexdigest()
    files = LabeledFiles(out / f"{LABELED}{cut[:16]}")
    windows = make_windows(sources, model.tokenizer, options, progress, files, subject)
    if subject is not PYTHON:
        subject.names.keep(out)
    windows.save(kept)
    for folder in out.glob(f"{LABELED}*"):  # of other tokenizers, too
        LabeledFiles(folder).remove()
    return windows


def say_hours(
    model: Model, states: WindowStates, options: HeadOptions, minutes: float | None, say: Callable[[str], None]
) -> None:
    """Say how long a run will take, by the speed of the next windows' states."""
    if states.is_whole:
        return
    began = time.monotonic()
    speed = states.add(model) / (time.monotonic() - began)
    num, total = int((~states.windows.held).sum()), int(states.windows.sizes.sum())
    hours = (total - states.rows) / speed / 3600
    limit = "" if minutes is None else f"; the run ends after {minutes:g} minutes, with the states that it then has"
    say(
        f"{total:,} tokens in {num:,} windows to learn from and {len(states.windows.sizes) - num:,} held out: their "
        f"states take {hours:.2f} hours ({speed:,.0f} tokens a second) and {2 * model.config.width * total / 1e9:.1f} "
        f"GB, and about a third of that time follows for the heads{limit}"
    )


def _shown(say: Callable[[str], None], until: float | None) -> Callable[[int, int, float], bool]:
    """What tells how many states there are, every half minute, and ends at a time."""
    told = [time.monotonic()]

    def shown(done: int, total: int, speed: float) -> bool:
        if time.monotonic() - told[0] > 30:
            told[0] = time.monotonic()
            say(f"states {done:,} of {total:,}, {(total - done) / speed / 3600:.2f} hours to go")
        return until is None or time.monotonic() < until

    return shown
