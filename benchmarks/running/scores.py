"""What a model writes for a case, in each mode, and the shares of cases that pass.

    ar, block, speculative   what follows the prefix; the suffix is not seen
    infill                   what stands between prefix and suffix, in mode "block"; its length is not told
    infill, beam             the same in mode "beam", which has one answer and draws none

A line is the first one written that is not blank. An expression that is written without its suffix is cut behind the
longest beginning of its line that is an expression.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from running.cases import DoctestCase, Judge

from daguerre.decoding.generate import INFILL_TOKENS
from daguerre.evals.infilling import BEAM, first_line
from daguerre.evals.statistics import clustered_wilson
from daguerre.model import Model

TOKENS = 48
Write = Callable[[DoctestCase, Mapping[str, Any]], list[str]]
"""write(case, options of decoding) -> the samples."""


@dataclass(frozen=True)
class CaseScore:
    """Of `num` cases: `greedy` the share that passes without sampling, and the share `exact` of greedy answers that are
    the original; of n samples each, the estimates of pass@1 and pass@n, None without samples. Intervals are of 95%, by
    function.
    """

    method: str
    kind: str
    num: int
    samples: int
    greedy: float
    greedy_interval: tuple[float, float]
    exact: float
    pass_1: float | None = None
    pass_1_interval: tuple[float, float] | None = None
    pass_n: float | None = None
    pass_n_interval: tuple[float, float] | None = None


def pass_at(k: int, samples: int, right: int) -> float:
    """The probability that one of k samples is right, if `right` of `samples` are: 1 - C(n - c, k) / C(n, k) (Chen et
    al. 2021, equation 1).
    """
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


def writers(model: Model) -> dict[str, Write]:
    """The ways in which a model writes that are compared."""
    modes = {mode: partial(_continue, model, mode) for mode in ("ar", "block", "speculative")}
    return {**modes, "infill": partial(_infill, model), BEAM: partial(_search, model)}


def _continue(model: Model, mode: str, case: DoctestCase, options: Mapping[str, Any]) -> list[str]:
    found = model.generate(case.prefix, TOKENS, mode=mode, **options)
    cut = first_line if case.kind == "line" else longest_expression
    return [cut(each.text) for each in found.choices]


def _infill(model: Model, case: DoctestCase, options: Mapping[str, Any]) -> list[str]:
    found = model.infill(case.prefix, case.suffix, INFILL_TOKENS, mode="block", stop="\n", **options)
    return [each.text for each in found.choices]


def _search(model: Model, case: DoctestCase, options: Mapping[str, Any]) -> list[str]:
    how: dict[str, Any] = {"mode": "beam", "min_tokens": 1, "stop": "\n"}
    return [model.infill(case.prefix, case.suffix, INFILL_TOKENS, **how).text]


def longest_expression(text: str) -> str:
    """The longest beginning of the first line that is an expression; empty where there is none."""
    line = text.split("\n")[0]
    for end in range(len(line), 0, -1):
        try:
            ast.parse(line[:end].strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        return line[:end].rstrip()
    return ""


def answers(write: Write, case: DoctestCase, samples: int, temperature: float, seed: int) -> tuple[str, list[str]]:
    """The greedy answer, and as many sampled ones."""
    sampled = write(case, {"temperature": temperature, "n": samples, "seed": seed}) if samples else []
    return write(case, {"temperature": 0.0})[0], sampled


def judged(judge: Judge, case: DoctestCase, greedy: str, sampled: Sequence[str]) -> tuple[bool, int]:
    """Whether the greedy answer passes, and how many of the sampled ones do."""
    return judge.passes(case, greedy), sum(judge.passes(case, part) for part in sampled)


def score(
    method: str, cases: Sequence[DoctestCase], greedy: Sequence[str], passed: Sequence[tuple[bool, int]], samples: int
) -> CaseScore:
    """The shares of one kind's cases. `greedy` are the answers, `passed` their verdicts (`judged`)."""
    once = np.array([float(first) for first, _ in passed])
    groups = np.array([f"{case.test.document.sha256} {case.test.name}" for case in cases])
    interval = partial(clustered_wilson, below=np.ones(len(cases)), group=groups)
    exact = sum(part.strip() == case.part.strip() for part, case in zip(greedy, cases, strict=True))
    found = CaseScore(
        method, cases[0].kind, len(cases), samples, float(once.mean()), interval(once), exact / len(cases)
    )
    if not samples:
        return found
    one = np.array([pass_at(1, samples, right) for _, right in passed])
    any_of = np.array([pass_at(samples, samples, right) for _, right in passed])
    return replace(
        found,
        pass_1=float(one.mean()),
        pass_1_interval=interval(one),
        pass_n=float(any_of.mean()),
        pass_n_interval=interval(any_of),
    )
