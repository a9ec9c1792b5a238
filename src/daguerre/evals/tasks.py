"""What `daguerre eval` measures: each of TASKS refuses what model or data cannot do, and returns what is left to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from daguerre.errors import DataError, InputError, UnsupportedError
from daguerre.evals import drafts, literals
from daguerre.evals.bits import BOUND_WINDOWS, bits_per_byte
from daguerre.evals.completion import LINE_TOKENS, MARGIN, next_line_completion
from daguerre.evals.correction import MOST_BROKEN, ROUNDS, line_correction
from daguerre.evals.deadline import LENGTH as DEADLINE_TOKENS
from daguerre.evals.deadline import quality_by_deadline
from daguerre.evals.decisions import MIN_FIT, make_all, measure_kind, part_documents
from daguerre.evals.editing import MOST_TOKENS, edit_locality, make_passages
from daguerre.evals.frozen import Document
from daguerre.evals.infilling import (
    BEAM,
    ENDED,
    NOVEL,
    SEARCH,
    ar_predictor,
    beam_predictor,
    copy_nearest,
    infill_predictor,
    line_infilling,
    search_predictor,
)
from daguerre.evals.lines import PREFIX_TOKENS, SUFFIX_TOKENS, MissingLine, make_examples
from daguerre.evals.questions import KINDS, SHOWN_TOKENS
from daguerre.evals.spans import (
    AFTER_TOKENS,
    BEFORE_TOKENS,
    LENGTHS,
    MissingSpan,
    make_spans,
    span_infilling,
    static,
)
from daguerre.evals.speculation import NEW_TOKENS, TEMPERATURES, compare
from daguerre.evals.steps import SPAN_STEPS, SPAN_TOKENS, has_law, make_prompts, text_quality
from daguerre.generate import INFILL_TOKENS
from daguerre.model import Model
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.decode import Decode

Progress = Callable[[str, int, int], None]
Measure = Callable[[Progress], Any]
"""What is left of a task once it is known that model and data allow it."""
CONTEXT, LINE_ROOM = 2048, 96
"""Tokens of the largest window that a missing line is shown in, and those of it that are left for the line."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much is measured; None: all there is.

    exact_windows, bound_windows, samples, layouts  see `bits_per_byte`
    lines       lines that are infilled (at known and at unknown length), completed and corrected
    grid_lines  of the lines completed, how many every setting is tried on; the promising ones run on all
    spans       token spans of each length
    texts       prompts continued in every number of steps
    edits       passages that are edited, in every way
    literals    literals of each type, and as many arguments of calls
    prompts     prompts that drafts and speculation continue
    questions   questions of each kind that decisions are tested on; a quarter as many are fitted to
    """

    layouts: tuple[int | str, ...] | None = None
    exact_windows: int | None = None
    bound_windows: int | None = BOUND_WINDOWS
    samples: int | None = None
    lines: int = 200
    grid_lines: int = 100
    spans: int = 200
    texts: int = 16
    edits: int = 100
    literals: int = 100
    prompts: int = 256
    questions: int = 1000

    def __post_init__(self) -> None:
        lows = {"exact_windows": 2, "bound_windows": 2, "samples": 2, "lines": 0, "prompts": 2}
        lows |= {"grid_lines": 1, "spans": 0, "texts": 0, "edits": 0, "literals": 0, "questions": 0}
        for name, low in lows.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise InputError(f"{name} must be {low} or more, not {value}")


DEFAULT = Limits()
QUICK = Limits(
    exact_windows=32,
    bound_windows=8,
    lines=16,
    grid_lines=4,
    spans=8,
    texts=1,
    edits=8,
    literals=4,
    prompts=16,
    questions=40,
)


def _bits(model: Model, documents: Sequence[Document], limits: Limits, seed: int, workers: int) -> Measure:
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


def _infill(model: Model, documents: Sequence[Document], limits: Limits, seed: int, workers: int) -> Measure:
    if model.config.context == "block" or model.config.null_id is None:
        raise UnsupportedError("a model with block context, or without <null>, cannot infill: leave 'infill' out")
    shown = window(model.config.max_positions)
    examples = _lines(model, documents, limits, seed, "infill", shown)
    predictors = {
        "infill": infill_predictor(model, stop="\n"),
        ENDED: infill_predictor(model),
        SEARCH: search_predictor(model),
        "copy": copy_nearest,
    }
    if has_law(model.config):
        predictors |= {BEAM: beam_predictor(model), NOVEL: beam_predictor(model, novel=True), "ar": ar_predictor(model)}

    def measure(tell: Progress) -> Any:
        count = partial(_num_tokens, model.tokenizer)
        result = line_infilling(
            examples, predictors, count, only_unknown=[ENDED, SEARCH, NOVEL], workers=workers, progress=tell
        )
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


def _lines(
    model: Model, documents: Sequence[Document], limits: Limits, seed: int, task: str, shown: tuple[int, int]
) -> list[MissingLine]:
    """The lines of `task`, with so many tokens `shown` before and after each."""
    Decode().check_model(model.config)
    if not limits.lines:
        raise DataError(f"no line is asked for: give a number of lines, or leave {task!r} out")
    return make_examples(documents, limits.lines, seed=seed, shown=shown)


def around(room: int) -> tuple[int, int]:
    """Tokens shown before and after a line, to a model with `room` for so many in all."""
    return min(PREFIX_TOKENS, room // 2), min(SUFFIX_TOKENS, room // 4)


def window(room: int) -> tuple[int, int]:
    """The same where the whole context is to be used, up to CONTEXT: before the line all that LINE_ROOM leaves."""
    _, after = around(room)
    return min(room, CONTEXT) - after - min(LINE_ROOM, room // 4), after


def _num_tokens(tokenizer: Tokenizer, line: str) -> int:
    return len(tokenizer.encode(line))


def _shown(example: MissingLine, predictions: Mapping[str, Any]) -> dict[str, Any]:
    document = example.document
    return {
        "package": document.package,
        "file": document.file,
        "line": example.number + 1,
        "truth": example.line,
        "predictions": dict(predictions),
    }


def _completion(model: Model, documents: Sequence[Document], limits: Limits, seed: int, workers: int) -> Measure:
    if not has_law(model.config):
        raise UnsupportedError(
            "completion is compared with mode 'ar', which needs causal context and a shift: leave 'completion' out"
        )
    shown = around(model.config.max_positions)
    examples = _lines(model, documents, limits, seed, "completion", shown)

    def measure(tell: Progress) -> Any:
        result = next_line_completion(model, examples, grid_lines=limits.grid_lines, workers=workers, progress=tell)
        return {
            "shown_tokens": shown[0],
            "line_tokens": LINE_TOKENS,
            "margin": MARGIN,
            "rows": [asdict(row) for row in result.rows],
            "best_within_margin": result.best_within_margin,
            "best_no_worse": result.best_no_worse,
            "prefill_seconds": result.prefill_seconds,
            "examples": [_shown(example, written) for example, written in zip(examples, result.lines, strict=True)],
        }

    return measure


def _correction(model: Model, documents: Sequence[Document], limits: Limits, seed: int, workers: int) -> Measure:
    if model.config.context == "block":
        raise UnsupportedError("a model with block context does not see a suffix: leave 'correction' out")
    shown = around(model.config.max_positions)
    examples = _lines(model, documents, limits, seed, "correction", shown)

    def measure(tell: Progress) -> Any:
        result = line_correction(model, examples, seed=seed, workers=workers, tell=partial(tell, ""))
        return {"shown_tokens": shown, "rounds": ROUNDS, "most_broken": MOST_BROKEN, **asdict(result)}

    return measure


def _tokens(model: Model, documents: Sequence[Document], limits: Limits, seed: int, workers: int) -> Measure:
    methods = {"default policy": Decode(), "one shot": static(1)}
    if has_law(model.config):
        methods["ar"] = Decode(mode="ar")
    spans = [_spans(model, documents, limits, seed, length, "tokens") for length in LENGTHS]

    def measure(tell: Progress) -> Any:
        out = []
        for some, length in zip(spans, LENGTHS, strict=True):
            out += span_infilling(model, some, methods, workers=workers, tell=partial(tell, f"spans of {length}"))
        return {"outcomes": [asdict(outcome) for outcome in out]}

    return measure


def _steps(model: Model, documents: Sequence[Document], limits: Limits, seed: int, workers: int) -> Measure:
    Decode().check_model(model.config)
    if not limits.texts:
        raise DataError("no text is asked for: give a number of texts, or leave 'steps' out")
    prompts = make_prompts(documents, model.tokenizer, model.config, limits.texts, seed=seed)
    spans = [] if model.config.context == "block" else _spans(model, documents, limits, seed, SPAN_TOKENS, "steps")
    schedules = {f"{steps} steps": static(steps) for steps in SPAN_STEPS}

    def measure(tell: Progress) -> Any:
        texts, examples = text_quality(model, prompts, seed=seed, workers=workers, tell=partial(tell, "texts"))
        filled = []
        if spans:
            filled = span_infilling(model, spans, schedules, workers=workers, tell=partial(tell, "spans"))
        return {
            "texts": [asdict(quality) for quality in texts],
            "spans": [asdict(outcome) for outcome in filled],
            "examples": [
                {"package": prompt.document.package, "file": prompt.document.file, "prompt": prompt.text, "texts": each}
                for prompt, each in zip(prompts, examples, strict=True)
            ],
        }

    return measure


def _spans(
    model: Model, documents: Sequence[Document], limits: Limits, seed: int, length: int, task: str
) -> list[MissingSpan]:
    if model.config.context == "block":
        raise UnsupportedError(f"a model with block context does not see a suffix: leave {task!r} out")
    Decode().check_model(model.config)
    if not limits.spans:
        raise DataError(f"no span is asked for: give a number of spans, or leave {task!r} out")
    room = model.config.max_positions
    shown = min(BEFORE_TOKENS, room // 2), min(AFTER_TOKENS, room // 4)
    return make_spans(documents, model.tokenizer, length, limits.spans, seed=seed, shown=shown)


def _draft(model: Model, documents: Sequence[Document], limits: Limits, seed: int, workers: int) -> Measure:
    if not has_law(model.config):
        raise UnsupportedError("drafts are for models with causal context and a shift: leave 'draft' out")
    prompts = drafts.make_prompts(documents, model.tokenizer, limits.prompts)
    return lambda tell: asdict(drafts.measure_drafts(model.backbone, prompts, tell))


def _speculation(model: Model, documents: Sequence[Document], limits: Limits, seed: int, workers: int) -> Measure:
    if not has_law(model.config):
        raise UnsupportedError("speculation is for models with causal context and a shift: leave 'speculation' out")
    room = drafts.PROMPT_TOKENS + NEW_TOKENS
    if model.config.max_positions < room:
        raise UnsupportedError(f"speculation needs a model of {room} positions or more: leave 'speculation' out")
    prompts = drafts.make_prompts(documents, model.tokenizer, limits.prompts, "speculation")
    bodies = [prompt.tokens[1:] for prompt in prompts]

    def measure(tell: Progress) -> Any:
        parts = [(each, partial(tell, f"temperature {each:g}")) for each in TEMPERATURES]
        outcomes = [asdict(compare(model, bodies, temperature, counted)) for temperature, counted in parts]
        return {"new_tokens": NEW_TOKENS, "outcomes": outcomes}

    return measure


def _deadline(model: Model, documents: Sequence[Document], limits: Limits, seed: int, workers: int) -> Measure:
    Decode().check_model(model.config)
    if not limits.spans:
        raise DataError("no span is asked for: give a number of spans, or leave 'deadline' out")
    room = model.config.max_positions
    shown = min(BEFORE_TOKENS, room // 2), min(AFTER_TOKENS, room // 4)
    spans = make_spans(documents, model.tokenizer, DEADLINE_TOKENS, limits.spans, seed=seed, shown=shown)
    if model.config.context == "block":
        tasks = {"completion": (Decode(), False)}
    else:
        tasks = {"infill": (Decode(), True), "completion": (Decode(block_size=DEADLINE_TOKENS // 2), False)}

    def measure(tell: Progress) -> Any:
        return asdict(quality_by_deadline(model, spans, tasks, workers=workers, tell=partial(tell, "")))

    return measure


def _edit(model: Model, documents: Sequence[Document], limits: Limits, seed: int, workers: int) -> Measure:
    _check_gaps(model, limits.edits, "edit")
    most = min(MOST_TOKENS, model.config.max_positions // 2)
    passages = make_passages(documents, model.tokenizer, limits.edits, seed=seed, most=most)

    def measure(tell: Progress) -> Any:
        outcomes = edit_locality(model, passages, seed=seed, workers=workers, tell=partial(tell, ""))
        return {"most_tokens": most, "outcomes": [asdict(outcome) for outcome in outcomes]}

    return measure


def _constrained(model: Model, documents: Sequence[Document], limits: Limits, seed: int, workers: int) -> Measure:
    _check_gaps(model, limits.literals, "constrained")
    room = model.config.max_positions
    shown = min(literals.BEFORE_TOKENS, room // 2), min(literals.AFTER_TOKENS, room // 4)
    examples = literals.make_literals(documents, model.tokenizer, limits.literals, seed=seed, shown=shown)

    def measure(tell: Progress) -> Any:
        result = literals.constrained_filling(model, examples, workers=workers, tell=partial(tell, ""))
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


def _check_gaps(model: Model, num: int, task: str) -> None:
    """UnsupportedError for a model that cannot fill gaps of unknown length; DataError where nothing is asked for."""
    if model.config.context == "block" or model.config.null_id is None:
        raise UnsupportedError(
            f"a model with block context, or without <null>, fills no gap of unknown length: leave {task!r} out"
        )
    Decode().check_model(model.config)
    if not num:
        raise DataError(f"nothing is asked for: give a number, or leave {task!r} out")


def _decide(model: Model, documents: Sequence[Document], limits: Limits, seed: int, workers: int) -> Measure:
    if model.config.process != "absorbing":
        raise UnsupportedError(f"a model of the {model.config.process} process cannot score labels: leave 'decide' out")
    if not limits.questions:
        raise DataError("no question is asked for: give a number of questions, or leave 'decide' out")
    room = model.config.max_positions
    parts = part_documents(documents, seed)
    limit = max(MIN_FIT, limits.questions // 4), max(MIN_FIT, limits.questions)
    to_fit, to_test = (make_all(part, most, room, seed) for part, most in zip(parts, limit, strict=True))
    kinds = [kind for kind in to_fit if kind in to_test]
    if not kinds:
        raise DataError("no question can be made: give Python files that parse, or leave 'decide' out")

    def measure_all(tell: Progress) -> Any:
        outcomes = [measure_kind(model, to_fit[kind], to_test[kind], kind, workers, tell) for kind in kinds]
        return {
            "shown_tokens": min(SHOWN_TOKENS, room // 4),
            "left_out": [kind for kind in KINDS if kind not in kinds],
            "outcomes": [asdict(outcome) for outcome in outcomes],
        }

    return measure_all


TASKS = {
    "bits": _bits,
    "infill": _infill,
    "draft": _draft,
    "completion": _completion,
    "steps": _steps,
    "tokens": _tokens,
    "correction": _correction,
    "edit": _edit,
    "constrained": _constrained,
    "speculation": _speculation,
    "deadline": _deadline,
    "decide": _decide,
}
