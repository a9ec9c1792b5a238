"""Evaluate a model: bits per byte, line infilling, drafts, speculation, with what is needed to measure the same again.

With the default limits, a model of 5 million parameters takes about ten minutes on one thread of a laptop, and the
standard error of a bound is below half a percent of its value. `QUICK` takes a minute, and is for a first look.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from daguerre.errors import DataError, InputError, UnsupportedError, unknown
from daguerre.evals.bits import BOUND_WINDOWS, bits_per_byte, spread
from daguerre.evals.frozen import SAMPLE_SHA256, Document, load_frozen
from daguerre.evals.infilling import ar_predictor, copy_nearest, infill_predictor, line_infilling
from daguerre.evals.lines import PREFIX_TOKENS, SUFFIX_TOKENS, MissingLine, make_examples
from daguerre.evals.machine import machine_facts
from daguerre.evals.speculation import NEW_TOKENS, TEMPERATURES, compare
from daguerre.generate import INFILL_TOKENS
from daguerre.model import Model, load
from daguerre.models.loading import CONFIG, model_folder
from daguerre.train.monitor import draft_match

PROMPT_TOKENS, DRAFT_TOKENS = 128, 16
Progress = Callable[[str, int, int], None]
Measure = Callable[[Progress], Any]
"""What is left of a task once it is known that model and data allow it."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much is measured; None: all there is.

    exact_windows, bound_windows, samples, layouts  see `bits_per_byte`
    lines    infilling examples, asked at known and at unknown length
    prompts  prompts of PROMPT_TOKENS that drafts and speculation continue
    """

    layouts: tuple[int | str, ...] | None = None
    exact_windows: int | None = None
    bound_windows: int | None = BOUND_WINDOWS
    samples: int | None = None
    lines: int = 200
    prompts: int = 64

    def __post_init__(self) -> None:
        lows = {"exact_windows": 2, "bound_windows": 2, "samples": 2, "lines": 0, "prompts": 2}
        for name, low in lows.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise InputError(f"{name} must be {low} or more, not {value}")


DEFAULT = Limits()
QUICK = Limits(exact_windows=32, bound_windows=8, lines=16, prompts=16)


def evaluate(
    model: Model | str | os.PathLike[str] = "default",
    documents: Sequence[Document] | None = None,
    *,
    what: Sequence[str] | None = None,
    limits: Limits = DEFAULT,
    seed: int = 0,
    skipped_files: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """A report that `json.dumps` takes: figures under the names of TASKS asked for, and what they were measured with.

    model          a Model, or a name that `daguerre.load` takes
    documents      None: the frozen held-out sample
    what           names of TASKS; None: all that the model's context and the documents allow, the others "skipped"
    skipped_files  {file that could not be read: reason}, for the report
    progress       called as progress(what, done, to do)

    Before anything is measured, UnsupportedError or DataError when a task asked for by name is beyond model or data.
    """
    for name in what or ():
        if name not in TASKS:
            raise unknown("task", name, TASKS)
    folder = None if isinstance(model, Model) else str(model)
    subject = model if isinstance(model, Model) else load(model)
    texts = load_frozen() if documents is None else list(documents)
    ready: dict[str, Measure] = {}
    skipped: dict[str, str] = {}
    for name in TASKS if what is None else what:
        try:
            ready[name] = TASKS[name](subject, texts, limits, seed)
        except (UnsupportedError, DataError) as error:
            if what is not None:
                raise
            skipped[name] = str(error)
    report: dict[str, Any] = {
        "model": _model_facts(subject, folder),
        "data": _data_facts(texts, skipped_files or {}, frozen=documents is None),
        "machine": machine_facts(subject.backbone.embedding.weight.device),
        "settings": {"seed": seed, **asdict(limits)},
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


def _bits(model: Model, documents: Sequence[Document], limits: Limits, seed: int) -> Measure:
    if not any(document.text for document in documents):
        raise DataError("there is no text to score: give files that are not empty")

    def measure(tell: Progress) -> Any:
        figures = bits_per_byte(
            model.backbone,
            model.tokenizer,
            documents,
            layouts=limits.layouts,
            exact_windows=limits.exact_windows,
            bound_windows=limits.bound_windows,
            samples=limits.samples,
            seed=seed,
            progress=tell,
        )
        return [asdict(figure) for figure in figures]

    return measure


def _infill(model: Model, documents: Sequence[Document], limits: Limits, seed: int) -> Measure:
    config = model.config
    if config.context == "block" or config.null_id is None:
        raise UnsupportedError("a model with block context, or without <null>, cannot infill: leave 'infill' out")
    if not limits.lines:
        raise DataError("no line is asked for: give a number of lines, or leave 'infill' out")
    shown = min(PREFIX_TOKENS, config.max_positions // 2), min(SUFFIX_TOKENS, config.max_positions // 4)
    examples = make_examples(documents, limits.lines, seed=seed, shown=shown)
    predictors = {"infill": infill_predictor(model), "copy": copy_nearest}
    if config.context == "causal" and config.shift:
        predictors["ar"] = ar_predictor(model)

    def measure(tell: Progress) -> Any:
        result = line_infilling(examples, predictors, lambda line: len(model.tokenizer.encode(line)), progress=tell)
        return {
            "unknown_length": INFILL_TOKENS,
            "shown_tokens": shown,
            "outcomes": [asdict(outcome) for outcome in result.outcomes],
            "comparisons": [asdict(comparison) for comparison in result.comparisons],
            "examples": [
                _shown(example, {length: dict(texts[index]) for length, texts in result.predictions.items()})
                for index, example in enumerate(examples)
            ],
        }

    return measure


def _shown(example: MissingLine, predictions: dict[str, dict[str, str]]) -> dict[str, Any]:
    document = example.document
    return {
        "package": document.package,
        "file": document.file,
        "line": example.number + 1,
        "truth": example.line,
        "predictions": predictions,
    }


def _draft(model: Model, documents: Sequence[Document], limits: Limits, seed: int) -> Measure:
    """One-shot drafts against the model's own greedy text."""
    kept = _prompts(model, documents, limits, "draft")

    def measure(tell: Progress) -> Any:
        tell("", 0, len(kept))
        rows = torch.tensor([[model.tokenizer.bos_id, *body] for body in kept])
        rows = rows.to(model.backbone.embedding.weight.device)
        match, accepted = draft_match(model.backbone, rows, DRAFT_TOKENS)
        tell("", len(kept), len(kept))
        return {"prompts": len(kept), "match_by_position": match.tolist(), "accepted_a_cycle": accepted}

    return measure


def _speculation(model: Model, documents: Sequence[Document], limits: Limits, seed: int) -> Measure:
    """Mode "speculative" against mode "ar"."""
    kept = _prompts(model, documents, limits, "speculation")
    if model.config.max_positions < PROMPT_TOKENS + NEW_TOKENS:
        raise DataError(f"speculation needs {PROMPT_TOKENS + NEW_TOKENS} positions: leave 'speculation' out")

    def measure(tell: Progress) -> Any:
        outcomes = []
        for temperature in TEMPERATURES:
            counted = partial(tell, f"temperature {temperature:g}")
            outcomes.append(asdict(compare(model, kept, temperature, counted)))
        return {"new_tokens": NEW_TOKENS, "outcomes": outcomes}

    return measure


def _prompts(model: Model, documents: Sequence[Document], limits: Limits, task: str) -> list[list[int]]:
    """The ids of prompts, <bos> not among them: from the middle of documents that are long enough."""
    if model.config.context != "causal" or not model.config.shift:
        raise UnsupportedError(f"drafts are for models with causal context and a shift: leave '{task}' out")
    encoded = [model.tokenizer.encode(document.text) for document in documents]
    bodies = [ids[len(ids) // 2 :][: PROMPT_TOKENS - 1] for ids in encoded]
    whole = [body for body in bodies if len(body) == PROMPT_TOKENS - 1]
    if not whole:
        raise DataError(f"no document has {2 * PROMPT_TOKENS} tokens: give longer ones, or leave '{task}' out")
    return [whole[index] for index in spread(len(whole), limits.prompts)]


TASKS = {"bits": _bits, "infill": _infill, "draft": _draft, "speculation": _speculation}


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
    }
