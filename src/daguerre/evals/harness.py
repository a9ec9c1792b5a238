"""Evaluate a model on held-out text by every one of TASKS, and record what is needed to measure the same again.

With the default limits, a model of 5 million parameters takes about half an hour on one thread of a laptop, and the
standard error of a bound is below half a percent of its value. `QUICK` takes a minute or two, and is for a first look.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol

from daguerre.errors import DataError, MissingExtra, UnsupportedError, unknown
from daguerre.evals.machine import machine_facts
from daguerre.evals.options import EvalOptions
from daguerre.evals.resuming import KeptTasks
from daguerre.evals.tasks import ASKED, TASKS, Measure, Setup
from daguerre.evals.workers import Progress, no_progress
from daguerre.heldout import SAMPLE_SHA256, Document, load_frozen
from daguerre.model import Model, load
from daguerre.models.backends.native_backend import NativeBackend
from daguerre.models.loading import model_folder, open_source


class ReportStore(Protocol):
    """Where an evaluation is kept as it goes."""

    def earlier(self, report: Mapping[str, Any], names: Sequence[str]) -> KeptTasks:
        """What is kept of the tasks called `names`, for a report that begins so."""

    def save(self, report: dict[str, Any]) -> None:
        """Keep the report so far."""


def evaluate(
    model: Model | str | os.PathLike[str] = "default",
    documents: Sequence[Document] | None = None,
    options: EvalOptions | None = None,
    *,
    skipped_files: Mapping[str, str] | None = None,
    progress: Progress = no_progress,
    store: ReportStore | None = None,
    **given: Any,
) -> dict[str, Any]:
    """A report that `json.dumps` takes: figures under the names of TASKS, and what they were measured with.

    model          a Model, or a name that `daguerre.load` takes
    documents      None: the frozen held-out sample
    options, given fields of `EvalOptions`
    skipped_files  {file that could not be read: reason}, for the report
    progress       called as progress(task and its part, items done, items to do)
    store          where the report is kept as each task ends, and where finished tasks are taken from

    UnsupportedError or DataError, nearly always before anything is measured, where a named task is not possible with
    the model or the documents; other tasks that are not are under "skipped".
    """
    chosen = EvalOptions.of(options, **given)
    for name in chosen.what or ():
        if name not in TASKS | ASKED:
            raise unknown("task", name, TASKS | ASKED)
    loaded = model if isinstance(model, Model) else _load(model, chosen)
    texts = load_frozen() if documents is None else list(documents)
    ready, skipped = _prepare(Setup(loaded, texts, chosen))
    report: dict[str, Any] = {
        "model": _model_facts(loaded, None if isinstance(model, Model) else str(model), chosen.chosen),
        "data": _data_facts(texts, skipped_files or {}, frozen=documents is None),
        "machine": machine_facts(_device(loaded)),
        "settings": {"seed": chosen.seed, "workers": chosen.workers, **asdict(chosen.limits), **chosen.compared},
        "seconds": {},
        "skipped": skipped,
    }
    kept = KeptTasks() if store is None else store.earlier(report, list(ready))
    for number, (name, measure) in enumerate(ready.items(), 1):
        if name in kept.tasks:
            report[name], report["seconds"][name] = kept.tasks[name], kept.seconds[name]
            continue
        started = time.perf_counter()
        try:
            called = name if len(ready) == 1 else f"{name} ({number} of {len(ready)})"
            report[name] = measure(partial(_show, progress, called))
        except (UnsupportedError, DataError, MissingExtra) as error:  # what shows only once examples meet the model
            if chosen.what is not None:
                raise
            skipped[name] = str(error)
            continue
        report["seconds"][name] = round(time.perf_counter() - started, 1)
        if store is not None:
            store.save(report)
    return report


def _load(name: str | os.PathLike[str], options: EvalOptions) -> Model:
    return load(name, dtype=options.dtype, backend=options.backend, quantize=options.quantize, **options.chosen)


def _prepare(setup: Setup) -> tuple[dict[str, Measure], dict[str, str]]:
    """The tasks that can be measured, and why the others cannot."""
    ready, skipped, what = dict[str, Measure](), dict[str, str](), setup.options.what
    for name in TASKS if what is None else what:
        try:
            ready[name] = (TASKS | ASKED)[name](setup)
        except (UnsupportedError, DataError, MissingExtra) as error:
            if what is not None:
                raise
            skipped[name] = str(error)
    return ready, skipped


def _show(progress: Progress, name: str, part: str, done: int, total: int) -> None:
    """Show the progress of a part of the task called `name`."""
    progress(f"{name}: {part}" if part else name, done, total)


def _model_facts(model: Model, name: str | None, chosen: Mapping[str, Any]) -> dict[str, Any]:
    config, denoiser = model.config, model.denoiser
    weights: str | None = None
    if name is not None:
        folder = model_folder(name, chosen.get("revision"))
        source = open_source(folder)
        weights = None if source.is_published else source.weights_hash()
    return {
        "name": name,
        **(chosen if name is not None else {}),
        "context": config.context,
        "parameters": model.num_parameters,
        "max_positions": config.max_positions,
        "vocab_size": config.vocab_size,
        "backend": "native" if isinstance(denoiser.backend, NativeBackend) else "torch",
        "quantize": denoiser.quantize,
        "dtype": model.numbers,
        "weights_sha256": weights,
        "tokenizer_sha256": model.tokenizer.sha256,
    }


def _hash_of(documents: Sequence[Document]) -> str:
    return hashlib.sha256("".join(document.sha256 for document in documents).encode()).hexdigest()


def _data_facts(documents: Sequence[Document], skipped: Mapping[str, str], *, frozen: bool) -> dict[str, Any]:
    return {
        "name": "frozen held-out sample" if frozen else "given documents",
        "sha256": SAMPLE_SHA256 if frozen else _hash_of(documents),
        "documents": len(documents),
        "packages": len({document.package for document in documents}),
        "bytes": sum(len(document.text.encode("utf-8")) for document in documents),
        "skipped": dict(skipped),
        "carriage_returns": sum("\r" in document.text for document in documents),
    }


def _device(model: Model) -> Any:
    """The device that a model computes on."""
    native = isinstance(model.denoiser.backend, NativeBackend)
    return "cpu" if native else model.backbone.embedding.weight.device
