"""Evaluate a model: bits per byte, line infilling, and drafts, with what is needed to measure the same again.

With the default limits, a model of 5 million parameters takes about ten minutes on one thread of a laptop, and the
standard error of a bound is below half a percent of its value. `QUICK` takes half a minute, and is for a first look.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from daguerre.errors import DataError, UnsupportedError, unknown
from daguerre.evals.bits import BOUND_WINDOWS, bits_per_byte, spread
from daguerre.evals.frozen import SAMPLE_SHA256, Document, load_frozen
from daguerre.evals.infilling import UNKNOWN_LENGTH, ar_predictor, copy_nearest, infill_predictor, line_infilling
from daguerre.evals.lines import PREFIX_TOKENS, SUFFIX_TOKENS, make_examples
from daguerre.evals.machine import machine_facts
from daguerre.model import Model, load
from daguerre.models.loading import CONFIG, model_folder
from daguerre.train.monitor import draft_match

PROMPT_TOKENS, DRAFT_TOKENS = 128, 16
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much is measured; None: all there is.

    exact_windows, bound_windows, samples, layouts  see `bits_per_byte`
    lines    infilling examples, asked at known and at unknown length
    prompts  prompts of PROMPT_TOKENS that drafts continue
    """

    layouts: tuple[int | str, ...] | None = None
    exact_windows: int | None = None
    bound_windows: int | None = BOUND_WINDOWS
    samples: int | None = None
    lines: int = 200
    prompts: int = 64


DEFAULT = Limits()
QUICK = Limits(exact_windows=32, bound_windows=8, lines=16, prompts=16)


def evaluate(
    model: Model | str | os.PathLike[str] = "default",
    documents: Sequence[Document] | None = None,
    *,
    what: Sequence[str] | None = None,
    limits: Limits = DEFAULT,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """A report that `json.dumps` takes: figures under the names of TASKS asked for, and what they were measured with.

    model      a Model, or a name that `daguerre.load` takes
    documents  None: the frozen held-out sample
    what       names of TASKS; None: all that the model's context allows
    progress   called as progress(what, done, to do)

    UnsupportedError when a task is asked for by name that the model cannot do.
    """
    for name in what or ():
        if name not in TASKS:
            raise unknown("task", name, TASKS)
    folder = None if isinstance(model, Model) else str(model)
    subject = model if isinstance(model, Model) else load(model)
    chosen = tuple(what) if what is not None else _possible(subject)
    texts = load_frozen() if documents is None else list(documents)
    report: dict[str, Any] = {
        "model": _model_facts(subject, folder),
        "data": _data_facts(texts, frozen=documents is None),
        "machine": machine_facts(subject.backbone.embedding.weight.device),
        "settings": {"seed": seed, **asdict(limits)},
        "seconds": {},
    }
    tell = progress or (lambda name, done, total: None)
    for name in chosen:
        started = time.perf_counter()
        report[name] = TASKS[name](subject, texts, limits, seed, _prefixed(name, tell))
        report["seconds"][name] = round(time.perf_counter() - started, 1)
    return report


def _prefixed(name: str, tell: Progress) -> Progress:
    return lambda part, done, total: tell(f"{name}: {part}" if part else name, done, total)


def _possible(model: Model) -> tuple[str, ...]:
    config = model.config
    able = {
        "bits": True,
        "infill": config.context != "block" and config.null_id is not None,
        "draft": config.context == "causal" and config.shift,
    }
    return tuple(name for name in TASKS if able[name])


def _bits(model: Model, documents: Sequence[Document], limits: Limits, seed: int, tell: Progress) -> Any:
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


def _infill(model: Model, documents: Sequence[Document], limits: Limits, seed: int, tell: Progress) -> Any:
    context = model.config.max_positions
    shown = min(PREFIX_TOKENS, context // 2), min(SUFFIX_TOKENS, context // 4)
    examples = make_examples(documents, limits.lines, seed=seed, shown=shown)
    predictors = {"infill": infill_predictor(model), "copy": copy_nearest}
    if model.config.context == "causal" and model.config.shift:
        predictors["ar"] = ar_predictor(model)
    result = line_infilling(examples, predictors, lambda line: len(model.tokenizer.encode(line)), progress=tell)
    return {
        "unknown_length": UNKNOWN_LENGTH,
        "shown_tokens": shown,
        "outcomes": [asdict(outcome) for outcome in result.outcomes],
        "comparisons": [asdict(comparison) for comparison in result.comparisons],
        "examples": [
            {
                "package": example.document.package,
                "file": example.document.file,
                "line": example.number + 1,
                "truth": example.line,
                "predictions": {length: dict(texts[index]) for length, texts in result.predictions.items()},
            }
            for index, example in enumerate(examples)
        ],
    }


def _draft(model: Model, documents: Sequence[Document], limits: Limits, seed: int, tell: Progress) -> Any:
    """One-shot drafts against the model's own greedy text, after the middle of documents that are long enough."""
    if model.config.context != "causal" or not model.config.shift:
        raise UnsupportedError("drafts are for models with causal context and a shift: leave 'draft' out")
    encoded = [model.tokenizer.encode(document.text) for document in documents]
    bodies = [ids[len(ids) // 2 :][: PROMPT_TOKENS - 1] for ids in encoded]
    prompts = [[model.tokenizer.bos_id, *body] for body in bodies if len(body) == PROMPT_TOKENS - 1]
    if not prompts:
        raise DataError(f"no document has {2 * PROMPT_TOKENS} tokens: give longer ones, or leave 'draft' out")
    kept = [prompts[index] for index in spread(len(prompts), limits.prompts)]
    tell("", 0, len(kept))
    match, accepted = draft_match(
        model.backbone, torch.tensor(kept, device=model.backbone.embedding.weight.device), DRAFT_TOKENS
    )
    tell("", len(kept), len(kept))
    return {"prompts": len(kept), "match_by_position": match.tolist(), "accepted_a_cycle": accepted}


TASKS = {"bits": _bits, "infill": _infill, "draft": _draft}


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


def _data_facts(documents: Sequence[Document], *, frozen: bool) -> dict[str, Any]:
    return {
        "name": "frozen held-out sample" if frozen else "given documents",
        "sha256": SAMPLE_SHA256 if frozen else None,
        "documents": len(documents),
        "packages": len({document.package for document in documents}),
        "bytes": sum(len(document.text.encode("utf-8")) for document in documents),
    }
