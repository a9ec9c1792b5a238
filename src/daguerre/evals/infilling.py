"""Line infilling: one real line is taken out of held-out Python (`lines.py`) and must come back exactly, once stripped.

Each predictor sees the same prefix and suffix and, at known length, the number of the line's tokens. Beside exact
matches, the similarity of the lines and the share of files that are Python with the prediction in place are reported.

    infill                   mode "block"; at unknown length its first line break ends it. A prediction that begins
                             with a line break is empty, and wrong
    infill, ended by itself  the same without that stop: exact only if the model ends the gap right after the line
    infill, length searched  the same, its length found by a search first (`daguerre.decoding.lengths`)
    infill, beam             mode "beam" (`daguerre.decoding.modes.beam`), which compares whole lines, none of them
                             empty
    infill, beam, novel      the same without lines that already occur around the gap. The benchmark never takes out
                             such a line (`lines.py`); only this method makes use of that
    copy                     baseline: the nearest line above that is not blank. A missing line occurs nowhere in the
                             text shown, so this is never exact; it shows what similarity and parsing are worth
    ar                       baseline: the same model's autoregressive mode, which does not see the suffix, cut after
                             its first line that is not blank

All methods see the same examples, so differences are counted in pairs.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from daguerre.decoding.generate import INFILL_TOKENS
from daguerre.evals.lines import MissingLine
from daguerre.evals.statistics import mcnemar, wilson
from daguerre.evals.workers import Progress, map_examples, no_progress
from daguerre.model import Model

Length = Literal["known", "unknown"]
LENGTHS: tuple[Length, ...] = ("known", "unknown")

BEAM, ENDED, SEARCH = "infill, beam", "infill, ended by itself", "infill, length searched"
NOVEL = "infill, beam, novel"
Predict = Callable[[str, str, int | None], str]
"""predict(prefix, suffix, tokens of the line or None) -> the text between."""


@dataclass(frozen=True)
class InfillOutcome:
    """One method at one length: shares of `num` examples, with their 95% intervals (Wilson).

    exact_line  what `exact` would be if every prediction were cut to its first line that is not blank
    """

    method: str
    length: Length
    num: int
    exact: float
    exact_interval: tuple[float, float]
    exact_line: float
    parses: float
    parses_interval: tuple[float, float]
    similarity: float
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """The first method and another on the same examples: how often only one of them was exact.

    difference  of the shares, with its standard error
    p_value     of no difference (McNemar's exact test)
    """

    method: str
    against: str
    length: Length
    only_first: int
    only_second: int
    difference: float
    difference_stderr: float
    p_value: float


@dataclass(frozen=True)
class Infilling:
    """Outcomes and comparisons; `predictions` are {method: text}, by length, then by example."""

    outcomes: tuple[InfillOutcome, ...]
    comparisons: tuple[Comparison, ...]
    predictions: Mapping[Length, Sequence[Mapping[str, str]]] = field(repr=False)


def infill_predictor(model: Model, *, stop: str | Sequence[str] = (), **options: Any) -> Predict:
    """`model.infill` in mode "block"; a line of unknown length gets a gap of INFILL_TOKENS, which gap fillers or `stop`
    may end.
    """
    return partial(_infill, model, stop, {"mode": "block"} | options)


def _infill(
    model: Model,
    stop: str | Sequence[str],
    options: Mapping[str, Any],
    prefix: str,
    suffix: str,
    length: int | None,
) -> str:
    if length is None:
        return model.infill(prefix, suffix, INFILL_TOKENS, stop=stop, **options).text
    return model.infill(prefix, suffix, length, min_tokens=length, **options).text


def beam_predictor(model: Model, *, no_repeat_context_lines: bool = False) -> Predict:
    """`model.infill` in mode "beam": one token or more, without a line break."""
    return partial(_search, model, no_repeat_context_lines)


def _search(model: Model, no_repeat: bool, prefix: str, suffix: str, length: int | None) -> str:
    shortest, longest = (1, INFILL_TOKENS) if length is None else (length, length)
    options: dict[str, Any] = {"min_tokens": shortest, "stop": "\n", "no_repeat_context_lines": no_repeat}
    return model.infill(prefix, suffix, longest, mode="beam", **options).text


def ar_predictor(model: Model) -> Predict:
    """The first line that is not blank of the prefix continued by `model.generate` in mode "ar"."""
    return partial(_continue, model)


def _continue(model: Model, prefix: str, suffix: str, length: int | None) -> str:
    return first_line(model.generate(prefix, length or INFILL_TOKENS, mode="ar").text)


def first_line(text: str) -> str:
    """The first line that is not blank, without its break; empty where there is none."""
    return next((line for line in text.split("\n") if line.strip()), "")


def copy_nearest(prefix: str, suffix: str, length: int | None) -> str:
    """The nearest line above that is not blank, else the nearest below, indentation and all."""
    above, below = prefix.split("\n")[::-1], suffix.split("\n")
    return next((line for line in [*above, *below] if line.strip()), "")


def line_infilling(
    examples: Sequence[MissingLine],
    predictors: Mapping[str, Predict],
    count_tokens: Callable[[str], int],
    *,
    lengths: Sequence[Length] = LENGTHS,
    only_unknown: Collection[str] = (),
    workers: int = 1,
    progress: Progress = no_progress,
) -> Infilling:
    """Run every predictor on every example; the first is compared with each of the others.

    count_tokens  tokens of a line for the model: what predictors get at known length
    only_unknown  predictors that do not run at known length
    workers       processes; with more than one, predictors and `count_tokens` must be picklable
    progress      called as progress(length, examples done, examples to do)
    """
    outcomes: list[InfillOutcome] = []
    comparisons: list[Comparison] = []
    predictions: dict[Length, list[dict[str, str]]] = {}
    for length in lengths:
        known = length == "known"
        some = {m: predict for m, predict in predictors.items() if not (known and m in only_unknown)}
        function = partial(_predict, some, count_tokens if known else None)
        found = map_examples(function, examples, workers, partial(progress, f"{length} length"))
        texts = [{method: text for method, (text, _) in each.items()} for each in found]
        seconds = {method: sum(each[method][1] for each in found) for method in some}
        predictions[length] = texts
        outcomes += [_outcome(m, length, examples, [t[m] for t in texts], seconds[m]) for m in some]
        first, *others = some
        comparisons += [_compare(first, other, length, examples, texts) for other in others]
    return Infilling(tuple(outcomes), tuple(comparisons), predictions)


def _predict(
    predictors: Mapping[str, Predict], count_tokens: Callable[[str], int] | None, example: MissingLine
) -> dict[str, tuple[str, float]]:
    """{method: (text, seconds)}; without `count_tokens` the length is unknown."""
    length = count_tokens(example.line) if count_tokens else None
    out = {}
    for method, predict in predictors.items():
        started = time.perf_counter()
        text = predict(example.prefix, example.suffix, length)
        out[method] = text, time.perf_counter() - started
    return out


def is_exact(example: MissingLine, prediction: str) -> bool:
    """Whether the prediction is the line, once both are stripped."""
    return prediction.strip() == example.line.strip()


def similarity(example: MissingLine, prediction: str) -> float:
    """How alike the two are once stripped, from 0 to 1 (difflib's ratio)."""
    return difflib.SequenceMatcher(None, example.line.strip(), prediction.strip(), autojunk=False).ratio()


def _outcome(
    method: str, length: Length, examples: Sequence[MissingLine], texts: Sequence[str], seconds: float
) -> InfillOutcome:
    num = len(examples)
    pairs = list(zip(examples, texts, strict=True))
    exact = sum(is_exact(example, text) for example, text in pairs)
    parses = sum(example.parses_with(text) for example, text in pairs)
    return InfillOutcome(
        method=method,
        length=length,
        num=num,
        exact=exact / num,
        exact_interval=wilson(exact, num),
        exact_line=sum(is_exact(example, first_line(text)) for example, text in pairs) / num,
        parses=parses / num,
        parses_interval=wilson(parses, num),
        similarity=sum(similarity(example, text) for example, text in pairs) / num,
        seconds=seconds / num,
    )


def _compare(
    first: str, other: str, length: Length, examples: Sequence[MissingLine], texts: Sequence[Mapping[str, str]]
) -> Comparison:
    num = len(examples)
    right = [(is_exact(e, t[first]), is_exact(e, t[other])) for e, t in zip(examples, texts, strict=True)]
    only_first, only_second = right.count((True, False)), right.count((False, True))
    difference = (only_first - only_second) / num
    variance = (only_first + only_second) / num**2 - difference**2 / num
    return Comparison(
        method=first,
        against=other,
        length=length,
        only_first=only_first,
        only_second=only_second,
        difference=difference,
        difference_stderr=max(0.0, variance) ** 0.5,
        p_value=mcnemar(only_first, only_second),
    )
