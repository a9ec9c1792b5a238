"""Evaluate a model on held-out text by every one of TASKS, with what is needed to measure the same again.

With the default limits, a model of 5 million parameters takes about half an hour on one thread of a laptop, and the
standard error of a bound is below half a percent of its value. `QUICK` takes a minute or two, and is for a first look.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from daguerre.errors import DataError, InputError, UnsupportedError, unknown
from daguerre.evals.frozen import SAMPLE_SHA256, Document, load_frozen
from daguerre.evals.machine import machine_facts
from daguerre.evals.tasks import DEFAULT, TASKS, Limits, Measure, Progress
from daguerre.model import Model, load
from daguerre.models.denoiser import Execution
from daguerre.models.loading import CONFIG, model_folder


def evaluate(
    model: Model | str | os.PathLike[str] = "default",
    documents: Sequence[Document] | None = None,
    *,
    what: Sequence[str] | None = None,
    limits: Limits = DEFAULT,
    seed: int = 0,
    workers: int = 1,
    dtype: str = "float32",
    execution: Execution | None = None,
    skipped_files: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """A report that `json.dumps` takes: figures under the names of TASKS asked for, and what they were measured with.

    model          a Model, or a name that `daguerre.load` takes
    documents      None: the frozen held-out sample
    what           names of TASKS; None: all that the model's context and the documents allow, the others "skipped"
    dtype, execution  of a model that is named, as `daguerre.load` takes them; "bits" are always of the plain modules
    workers        processes that examples are spread over, with the same results; "bits", "draft" and "speculation" run
                   in this one
    skipped_files  {file that could not be read: reason}, for the report
    progress       called as progress(what, done, to do)

    Before anything is measured, UnsupportedError or DataError when a task asked for by name is beyond model or data.
    """
    if workers < 1:
        raise InputError(f"workers must be 1 or more, not {workers}")
    for name in what or ():
        if name not in TASKS:
            raise unknown("task", name, TASKS)
    folder = None if isinstance(model, Model) else str(model)
    subject = model if isinstance(model, Model) else load(model, dtype=dtype, execution=execution)
    texts = load_frozen() if documents is None else list(documents)
    ready: dict[str, Measure] = {}
    skipped: dict[str, str] = {}
    for name in TASKS if what is None else what:
        try:
            ready[name] = TASKS[name](subject, texts, limits, seed, workers)
        except (UnsupportedError, DataError) as error:
            if what is not None:
                raise
            skipped[name] = str(error)
    report: dict[str, Any] = {
        "model": _model_facts(subject, folder),
        "data": _data_facts(texts, skipped_files or {}, frozen=documents is None),
        "machine": machine_facts(subject.backbone.embedding.weight.device),
        "settings": {"seed": seed, "workers": workers, **asdict(limits)},
        "seconds": {},
        "skipped": skipped,
    }
    tell = progress or (lambda name, done, total: None)
    for name, measure in ready.items():
        started = time.perf_counter()
        report[name] = measure(_prefixed(name, tell))
        report["seconds"][name] = round(time.perf_counter() - started, 1)
    return report


def _prefixed(name: str, tell: Progress) -> Progress:
    return lambda part, done, total: tell(f"{name}: {part}" if part else name, done, total)


def _model_facts(model: Model, name: str | None) -> dict[str, Any]:
    config = model.config
    stored: dict[str, Any] = {}
    if name is not None:
        stored = json.loads((model_folder(name) / CONFIG).read_text(encoding="utf-8"))
    return {
        "name": name,
        "family": config.family,
        "context": config.context,
        "parameters": model.backbone.num_parameters,
        "max_positions": config.max_positions,
        "vocab_size": config.vocab_size,
        "execution": model.denoiser.execution,
        "dtype": str(model.backbone.embedding.weight.dtype).removeprefix("torch."),
        "weights_sha256": stored.get("weights_sha256"),
        "tokenizer_sha256": model.tokenizer.sha256,
    }


def _data_facts(documents: Sequence[Document], skipped: Mapping[str, str], *, frozen: bool) -> dict[str, Any]:
    return {
        "name": "frozen held-out sample" if frozen else "given documents",
        "sha256": SAMPLE_SHA256 if frozen else None,
        "documents": len(documents),
        "packages": len({document.package for document in documents}),
        "bytes": sum(len(document.text.encode("utf-8")) for document in documents),
        "skipped": dict(skipped),
        "carriage_returns": sum("\r" in document.text for document in documents),
    }
