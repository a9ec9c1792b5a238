"""Tasks that fill gaps."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

from daguerre.decoding.generate import INFILL_TOKENS
from daguerre.decoding.request import Decode
from daguerre.errors import UnsupportedError
from daguerre.evals import literals
from daguerre.evals.correction import MAX_BROKEN, ROUNDS, line_correction
from daguerre.evals.deadline import LENGTH as DEADLINE_TOKENS
from daguerre.evals.deadline import quality_by_deadline
from daguerre.evals.editing import MAX_TOKENS, edit_locality, make_passages
from daguerre.evals.infilling import (
    BEAM,
    ENDED,
    NOVEL,
    SEARCH,
    Predict,
    ar_predictor,
    beam_predictor,
    copy_nearest,
    infill_predictor,
    line_infilling,
)
from daguerre.evals.lines import around, window
from daguerre.evals.spans import LENGTHS, shown_around, span_infilling, static
from daguerre.evals.tasks.setup import (
    BLOCK,
    Measure,
    Setup,
    check_gaps,
    check_number,
    check_suffix,
    make_lines,
    make_token_spans,
)
from daguerre.evals.workers import Progress
from daguerre.model import Model
from daguerre.models.tokenizer import Tokenizer


def infill(setup: Setup) -> Measure:
    """Lines, at known and at unknown length."""
    model = setup.model
    if model.config.context == "block" or model.config.null_id is None:
        raise UnsupportedError("a model with block context, or without <null>, cannot infill: leave 'infill' out")
    shown = window(setup.room)
    examples = make_lines(setup, "infill", shown)

    def measure(progress: Progress) -> Any:
        result = line_infilling(
            examples,
            _predictors(model),
            partial(_num_tokens, model.tokenizer),
            only_unknown=[ENDED, SEARCH, NOVEL],
            workers=setup.workers,
            progress=progress,
        )
        return {
            "unknown_length": INFILL_TOKENS,
            "shown_tokens": shown,
            "outcomes": [asdict(outcome) for outcome in result.outcomes],
            "comparisons": [asdict(comparison) for comparison in result.comparisons],
            "examples": [
                each.to_dict({length: dict(texts[index]) for length, texts in result.predictions.items()})
                for index, each in enumerate(examples)
            ],
        }

    return measure


def _predictors(model: Model) -> dict[str, Predict]:
    """What infills, by the name of the method."""
    out = {
        "infill": infill_predictor(model, stop="\n"),
        ENDED: infill_predictor(model),
        SEARCH: infill_predictor(model, search_length=True),
        "copy": copy_nearest,
    }
    if model.config.can_draft:
        out[BEAM] = beam_predictor(model)
        out[NOVEL] = beam_predictor(model, no_repeat_context_lines=True)
        out["ar"] = ar_predictor(model)
    return out


def _num_tokens(tokenizer: Tokenizer, line: str) -> int:
    return len(tokenizer.encode(line))


def tokens(setup: Setup) -> Measure:
    """Token spans of several lengths, their length known."""
    model = setup.model
    check_suffix(model, "tokens")
    methods = {"default policy": BLOCK, "one shot": static(1)}
    if model.config.can_draft:
        methods["ar"] = Decode(mode="ar")
    spans = {length: make_token_spans(setup, length, "tokens") for length in LENGTHS}

    def measure(progress: Progress) -> Any:
        out = []
        for length, some in spans.items():
            part = partial(progress, f"spans of {length}")
            out += span_infilling(model, some, methods, workers=setup.workers, progress=part)
        return {"outcomes": [asdict(outcome) for outcome in out]}

    return measure


def correction(setup: Setup) -> Measure:
    """Lines some of whose tokens are wrong."""
    check_suffix(setup.model, "correction")
    shown = around(setup.room)
    examples = make_lines(setup, "correction", shown)

    def measure(progress: Progress) -> Any:
        part = partial(progress, "")
        result = line_correction(setup.model, examples, seed=setup.seed, workers=setup.workers, progress=part)
        return {"shown_tokens": shown, "rounds": ROUNDS, "most_broken": MAX_BROKEN, **asdict(result)}

    return measure


def edit(setup: Setup) -> Measure:
    """Random spans of passages, rewritten."""
    model, seed, limit = setup.model, setup.seed, setup.limits.edits
    check_gaps(model, "edit")
    check_number("edits", limit, "edit")
    longest = min(MAX_TOKENS, setup.room // 2)
    passages = make_passages(setup.documents, model.tokenizer, limit, seed=seed, max_tokens=longest)

    def measure(progress: Progress) -> Any:
        outcomes = edit_locality(model, passages, seed=seed, workers=setup.workers, progress=partial(progress, ""))
        return {"most_tokens": longest, "outcomes": [asdict(outcome) for outcome in outcomes]}

    return measure


def constrained(setup: Setup) -> Measure:
    """Literals and arguments, with their type as a constraint and without."""
    model, limit = setup.model, setup.limits.literals
    check_gaps(model, "constrained")
    check_number("literals", limit, "constrained")
    shown = shown_around(setup.room)
    examples = literals.make_literals(setup.documents, model.tokenizer, limit, seed=setup.seed, shown=shown)

    def measure(progress: Progress) -> Any:
        part = partial(progress, "")
        result = literals.constrained_filling(model, examples, workers=setup.workers, progress=part)
        return {
            "gap_tokens": literals.GAP_TOKENS,
            "shown_tokens": shown,
            "compile_seconds": dict(result.compile_seconds),
            "outcomes": [asdict(outcome) for outcome in result.outcomes],
            "examples": [
                {"kind": example.kind, "file": example.document.file, "truth": example.text, "predictions": dict(texts)}
                for example, texts in zip(examples, result.written, strict=True)
            ],
        }

    return measure


def deadline(setup: Setup) -> Measure:
    """Token spans in a limited number of forwards."""
    spans = make_token_spans(setup, DEADLINE_TOKENS, "deadline")
    if setup.model.config.context == "block":
        tasks = {"completion": (BLOCK, False)}
    else:
        tasks = {"infill": (BLOCK, True), "completion": (Decode.of(BLOCK, block_size=DEADLINE_TOKENS // 2), False)}

    def measure(progress: Progress) -> Any:
        part = partial(progress, "")
        return asdict(quality_by_deadline(setup.model, spans, tasks, workers=setup.workers, progress=part))

    return measure
