"""Tasks that score text, continue it, or decide about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from daguerre.errors import DataError, UnsupportedError
from daguerre.evals.acceptance import measure_acceptance
from daguerre.evals.bits import bits_per_byte
from daguerre.evals.completion import LINE_TOKENS, MARGIN, next_line_completion
from daguerre.evals.decisions import MIN_FIT, make_all, measure_kind, split_documents
from daguerre.evals.diffs import make_edits, measure_edits
from daguerre.evals.drafts import PROMPT_TOKENS, measure_drafts
from daguerre.evals.drafts import make_prompts as make_draft_prompts
from daguerre.evals.lines import around
from daguerre.evals.parallelism import curves
from daguerre.evals.questions import KINDS, SHOWN_TOKENS
from daguerre.evals.spans import span_infilling, static
from daguerre.evals.speculation import (
    DRAFTERS,
    EARLY,
    FEW_PROMPTS,
    FEW_TEMPERATURES,
    FIRST_TOKENS,
    NEW_TOKENS,
    RUN,
    TEMPERATURES,
    compare,
    compare_lines,
)
from daguerre.evals.steps import SPAN_STEPS, SPAN_TOKENS, make_prompts, text_quality
from daguerre.evals.tasks.setup import (
    Measure,
    Setup,
    check_draft,
    check_number,
    check_process,
    make_lines,
    make_token_spans,
)
from daguerre.evals.workers import Progress
from daguerre.extras import pytorch
from daguerre.train.corpus.diffs import load_diffs


def bits(setup: Setup) -> Measure:
    """Bits per byte, by layout."""
    if not any(document.text for document in setup.documents):
        raise DataError("there is no text to score: give files that are not empty")
    model, limits = setup.model, setup.limits

    def measure(progress: Progress) -> Any:
        figures = bits_per_byte(
            model.denoiser.backend,
            model.tokenizer,
            setup.documents,
            layouts=limits.layouts,
            exact_windows=limits.exact_windows,
            bound_windows=limits.bound_windows,
            samples=limits.samples,
            seed=setup.seed,
            progress=progress,
        )
        return [asdict(figure) for figure in figures]

    return measure


def completion(setup: Setup) -> Measure:
    """Next lines, by setting, compared with mode "ar"."""
    check_draft(setup.model, "completion")
    shown = around(setup.room)
    examples = make_lines(setup, "completion", shown)

    def measure(progress: Progress) -> Any:
        result = next_line_completion(
            setup.model, examples, grid_lines=setup.limits.grid_lines, workers=setup.workers, progress=progress
        )
        rows, grid_rows = ([asdict(row) for row in some] for some in (result.rows, result.grid_rows))
        return {
            "shown_tokens": shown[0],
            "line_tokens": LINE_TOKENS,
            "margin": MARGIN,
            "rows": rows,
            "grid_rows": grid_rows,
            "parallelism": [asdict(curve) for curve in curves([*rows, *grid_rows])],
            "best_within_margin": result.best_within_margin,
            "best_no_worse": result.best_no_worse,
            "prefill_seconds": result.prefill_seconds,
            "examples": [each.to_dict(written) for each, written in zip(examples, result.lines, strict=True)],
        }

    return measure


def steps(setup: Setup) -> Measure:
    """Texts, and token spans in their place, in few forwards and in many."""
    model, seed, workers = setup.model, setup.seed, setup.workers
    check_process(model)
    check_number("texts", setup.limits.texts, "steps")
    prompts = make_prompts(setup.documents, model.tokenizer, model.config, setup.limits.texts, seed=seed)
    spans = [] if model.config.context == "block" else make_token_spans(setup, SPAN_TOKENS, "steps")
    schedules = {f"{steps} steps": static(steps) for steps in SPAN_STEPS}

    def measure(progress: Progress) -> Any:
        texts, examples = text_quality(model, prompts, seed=seed, workers=workers, progress=partial(progress, "texts"))
        filled = []
        if spans:
            filled = span_infilling(model, spans, schedules, workers=workers, progress=partial(progress, "spans"))
        return {
            "texts": [asdict(quality) for quality in texts],
            "spans": [asdict(outcome) for outcome in filled],
            "examples": [
                {"package": prompt.document.package, "file": prompt.document.file, "prompt": prompt.text, "texts": each}
                for prompt, each in zip(prompts, examples, strict=True)
            ],
        }

    return measure


def draft(setup: Setup) -> Measure:
    """One-shot drafts compared with greedy text."""
    model = setup.model
    check_draft(model, "draft")
    pytorch()
    prompts = make_draft_prompts(setup.documents, model.tokenizer, setup.limits.prompts, "draft")
    return lambda progress: asdict(measure_drafts(model.backbone, prompts, progress))


def speculation(setup: Setup) -> Measure:
    """Mode "speculative" compared with mode "ar": texts, next lines, acceptance by depth, and edits."""
    model, needed, limits = setup.model, PROMPT_TOKENS + NEW_TOKENS, setup.limits
    check_draft(model, "speculation")
    if setup.room < needed:
        raise UnsupportedError(f"'speculation' needs a model of {needed} positions or more: leave it out")
    prompts = make_draft_prompts(setup.documents, model.tokenizer, limits.prompts, "speculation")
    bodies = [prompt.tokens[1:] for prompt in prompts]
    lines = make_lines(setup, "speculation", around(setup.room)) if limits.lines else []
    edits = make_edits(model, load_diffs(), limits.edits)

    def measure(progress: Progress) -> Any:
        def texts(what: str, temperatures: Sequence[float], some: Sequence[Sequence[int]], **options: Any) -> list[Any]:
            parts = [(each, partial(progress, f"{what}temperature {each:g}")) for each in temperatures]
            found = [compare(model, some, temperature, part, **options) for temperature, part in parts]
            return [asdict(outcome) for outcomes in found for outcome in outcomes]

        written, forced = measure_edits(model, edits, partial(progress, "edits")) if edits else ([], [])
        return {
            "new_tokens": NEW_TOKENS,
            "loop": {"run": RUN, "early": EARLY},
            "outcomes": texts("", TEMPERATURES, bodies),
            "first": texts("first, ", FEW_TEMPERATURES, bodies, new_tokens=FIRST_TOKENS),
            "drafters": texts("drafters, ", FEW_TEMPERATURES, bodies[:FEW_PROMPTS], drafters=DRAFTERS),
            "lines": asdict(compare_lines(model, lines, partial(progress, "lines"))) if lines else None,
            "acceptance": [asdict(row) for row in measure_acceptance(model, prompts, partial(progress, "acceptance"))],
            "edits": [asdict(outcome) for outcome in written],
            "forced_edits": [asdict(outcome) for outcome in forced],
        }

    return measure


def decide(setup: Setup) -> Measure:
    """Decisions about code, and their calibration."""
    model, num, room = setup.model, setup.limits.questions, setup.room
    if model.config.process != "absorbing":
        raise UnsupportedError(f"a model of the {model.config.process} process cannot score labels: leave 'decide' out")
    check_number("questions", num, "decide")
    to_fit, to_test = split_documents(setup.documents, setup.seed)
    fitted = make_all(model, to_fit, max(MIN_FIT, num // 4), setup.seed)
    tested = make_all(model, to_test, max(MIN_FIT, num), setup.seed)
    kinds = [kind for kind in fitted if kind in tested]
    if not kinds:
        raise DataError("no question can be made that fits: give Python files that parse, or leave 'decide' out")

    def measure(progress: Progress) -> Any:
        outcomes = [measure_kind(model, fitted[kind], tested[kind], kind, setup.workers, progress) for kind in kinds]
        return {
            "shown_tokens": min(SHOWN_TOKENS, room // 4),
            "left_out": [kind for kind in KINDS if kind not in kinds],
            "outcomes": [asdict(outcome) for outcome in outcomes],
        }

    return measure
