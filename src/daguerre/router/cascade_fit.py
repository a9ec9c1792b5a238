"""How likely an answer of a small backend must be to be accepted, so that a target of quality is kept.

Of N requests the likelihood u of the small backend's answer is known, and whether it (s) and the large one's (b) were
right, 0 to 1. A cascade with the threshold t gets S(t) = s where u >= t, else b. The target T is a share of the quality
of always asking the large one: E[S(t) - T b] >= 0. Thresholds of a fixed list are tested one after the other, the
strictest first, until one is not significant, and the last one before it is taken. By the rule of fixed sequences the
target is then missed with a probability of at most 1 - confidence, whatever the distribution and however the thresholds
depend on one another (Learn then Test: Angelopoulos et al., arXiv 2110.01052), if the requests to come are drawn like
these.

The test is a bet that wins where the target is kept: under the hypothesis that it is not, the product of 1 + k X over
X = S(t) - T b has an expectation of at most 1 for each stake k >= 0 that keeps it positive, and so has the mean over
several stakes, which thus exceeds 1 / (1 - confidence) with a probability of at most 1 - confidence (Markov; Waudby-
Smith and Ramdas, JRSS B 2024).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daguerre.errors import DataError
from daguerre.router.config import STEPS
from daguerre.router.estimators import wilson
from daguerre.router.quality_rows import grade_of, lines_of

Array = NDArray[np.float64]
THRESHOLDS = np.linspace(1.0, 0.0, 201)
STAKES = np.geomspace(0.02, 0.99, 12)
"""Parts of the greatest stake."""
LEAST_ROWS = 50
"""Requests of a step type, without which it has no threshold."""
NEVER = -1.0
"""The likelihood of an answer that is never accepted: it was cut off, or has none."""
DRAWS = 1000
ANY_STEP = "default"


@dataclass(frozen=True, kw_only=True, eq=False)
class CascadeRows:
    """N requests: how likely the small backend's answer was, and how right both were, 0 to 1, float64 (N,)."""

    likelihood: Array
    small: Array
    large: Array

    def accepted(self, threshold: float) -> NDArray[np.bool_]:
        """Which answers of the small backend are accepted."""
        return np.asarray(self.likelihood >= threshold)

    def outcomes(self, threshold: float) -> Array:
        """How right the cascade's answers are."""
        return np.where(self.accepted(threshold), self.small, self.large)


@dataclass(frozen=True, kw_only=True)
class ThresholdReport:
    """A threshold and what it did on the requests that it was fitted to, with 95% intervals.

    least     None: none is sure to keep the target
    accepted  the share of answers of the small backend that are accepted
    kept      the cascade's quality as a share of the large backend's
    """

    rows: int
    least: float | None
    small: float
    large: float
    cascade: float
    accepted: float
    accepted_interval: tuple[float, float]
    kept: float
    kept_interval: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class CascadeFit:
    """Thresholds by step type. unused: lines that say nothing, by the reason."""

    small: str
    target: float
    confidence: float
    steps: Mapping[str, ThresholdReport]
    unused: Mapping[str, int]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    def table(self) -> str:
        """The report as text."""
        width = max(map(len, [*self.steps, "step type"]))
        lines = [
            f"{self.small} answers first; {self.target:.0%} of the quality is kept with a confidence of "
            f"{self.confidence:.0%} in each step type, if requests stay as these are",
            f"{'step type':{width}}   rows  least  accepted             small  large  cascade  kept",
        ]
        for name, one in self.steps.items():
            least = "   - " if one.least is None else f"{one.least:.3f}"
            lines.append(
                f"{name:{width}}  {one.rows:5,}  {least}  {_between(one.accepted, one.accepted_interval)}  "
                f"{one.small:.3f}  {one.large:.3f}    {one.cascade:.3f}  {_between(one.kept, one.kept_interval)}"
            )
        few = [name for name, one in self.steps.items() if one.rows < LEAST_ROWS]
        lines += [f"left out, fewer than {LEAST_ROWS} requests with both grades: {', '.join(few)}"] if few else []
        return "\n".join([*lines, *(f"not used: {num:,} {why}" for why, num in self.unused.items())])

    def toml(self) -> str:
        """The tables of a configuration. DataError where no step type has a threshold."""
        found = {name: one.least for name, one in self.steps.items() if one.least is not None}
        if not found:
            raise DataError(
                f"no threshold is sure to keep {self.target:.0%} of the quality with a confidence of "
                f"{self.confidence:.0%}: grade more answers, or lower --target or --confidence"
            )
        lines = [f"{name} = {least:g}" for name, least in found.items()]
        return f'[cascade]\nsmall = "{self.small}"\n\n[cascade.least]\n' + "\n".join(lines) + "\n"


def fit_cascade(path: Path, small: str, large: str | None, target: float, confidence: float) -> CascadeFit:
    """Thresholds for a small backend from a file of outcomes or a router's log. large: the other backend; None: the one
    that the log's decisions were for, or the only other one of the outcomes. DataError for a file without any.
    """
    rows, unused = read_cascade(path, small, large)
    steps = {name: reported(some, threshold_of(some, target, confidence)) for name, some in rows.items()}
    return CascadeFit(small=small, target=target, confidence=confidence, steps=steps, unused=unused)


def threshold_of(rows: CascadeRows, target: float, confidence: float) -> float | None:
    """The least threshold that keeps the target; None: none is sure to."""
    least = None
    for threshold in THRESHOLDS.tolist() if len(rows.small) >= LEAST_ROWS else ():
        if evidence_for(rows.outcomes(threshold) - target * rows.large, target) * (1 - confidence) < 1:
            break
        if rows.accepted(threshold).any():  # of thresholds that accept nothing the data say nothing
            least = threshold
    return least


def reported(rows: CascadeRows, least: float | None) -> ThresholdReport:
    """What a threshold does."""
    at = np.inf if least is None else least
    outcomes, accepted = rows.outcomes(at), rows.accepted(at)
    return ThresholdReport(
        rows=len(outcomes),
        least=least,
        small=float(rows.small.mean()),
        large=float(rows.large.mean()),
        cascade=float(outcomes.mean()),
        accepted=float(accepted.mean()),
        accepted_interval=wilson(float(accepted.mean()), len(accepted)),
        kept=float(outcomes.sum() / max(rows.large.sum(), 1e-9)),
        kept_interval=_ratio_interval(outcomes, rows.large),
    )


def _between(share: float, interval: tuple[float, float]) -> str:
    return f"{share:.3f} ({interval[0]:.3f}, {interval[1]:.3f})"


def evidence_for(gains: Array, lowest: float) -> float:
    """How much is won by betting that the mean of `gains` (N,), each -lowest or more, is above 0. Under the hypothesis
    that it is 0 or less the expectation is at most 1.
    """
    logs = np.log1p(STAKES[:, None] / max(lowest, 1e-9) * gains[None, :]).sum(axis=1)
    return float(np.exp(np.minimum(logs, 700.0)).mean())


def _ratio_interval(above: Array, below: Array) -> tuple[float, float]:
    """The 95% interval of sum(above) / sum(below), by a bootstrap over requests."""
    drawn = np.random.default_rng(0).integers(0, len(above), (DRAWS, len(above)))
    ratios = above[drawn].sum(axis=1) / np.maximum(below[drawn].sum(axis=1), 1e-9)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)


# ---- reading --------------------------------------------------------------------------------------------------------


@dataclass
class _Answers:
    """A request: its step type, how likely the small backend's answer was, the large one, which of them answered, and
    grades by backend.
    """

    step: str
    likelihood: float
    large: str | None
    main: str | None
    grades: dict[str, float]


def read_cascade(path: Path, small: str, large: str | None) -> tuple[dict[str, CascadeRows], dict[str, int]]:
    """By step type the requests of a file of which both answers are graded; and how many lines say nothing, by the
    reason. DataError for a file that is neither outcomes nor a log, and for one without any such request.
    """
    found, unused = dict[str, _Answers](), Counter[str]()
    for number, line in lines_of(path, unused):
        try:
            if "outcomes" in line:
                found[f"line {number}"] = _outcome(line, small, large)
            elif "shadow_of" in line:
                _add_shadow(line, found)
            elif "cascade" in line:
                if why := _says_nothing(line["cascade"], small):
                    unused[why] += 1
                else:
                    found[str(line["id"])] = _logged(line, large)
            elif "decision" in line:
                unused["requests without a cascade"] += 1
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            message = f"line {number} of {path} cannot be used: {error!s:.200}: see docs/routing-evaluation.md"
            raise DataError(message) from None
    steps = defaultdict[str, list[tuple[float, float, float]]](list)
    for one in found.values():
        if one.large is not None and one.grades.keys() >= {small, one.large} and one.large != small:
            steps[one.step].append((one.likelihood, one.grades[small], one.grades[one.large]))
        else:
            unused["requests without the grades of both answers"] += 1
    if not steps:
        raise DataError(f"{path} has no request with grades of {small} and another one: set a [shadow] and a [grader]")
    columns = {name: np.array(rows, np.float64).T for name, rows in sorted(steps.items())}
    rows = {name: CascadeRows(likelihood=one[0], small=one[1], large=one[2]) for name, one in columns.items()}
    return rows, dict(unused)


def _outcome(line: Mapping[str, Any], small: str, large: str | None) -> _Answers:
    """A line of outcomes."""
    grades = {str(name): grade_of(value) for name, value in line["outcomes"].items() if value is not None}
    others, step = [name for name in grades if name != small], line.get("step", ANY_STEP)
    if large is None and len(others) > 1:
        raise ValueError(f"name the larger backend with --large: {', '.join(others)}")
    if step not in (*STEPS, ANY_STEP):
        raise ValueError(f"{step!r:.40} is no step type")
    return _Answers(step, _likelihood(line.get("likelihood")), large or next(iter(others), None), None, grades)


def _says_nothing(told: Mapping[str, Any], small: str) -> str | None:
    """Why a request's cascade cannot be used; None: it can."""
    if told["small"] != small:
        return "requests that another backend answered first"
    if told.get("score") is not None:
        return "requests whose draft may have been taken as it is"
    whole = told.get("whole") and told.get("likelihood") is None
    return "answers without a likelihood" if whole else None


def _logged(line: Mapping[str, Any], large: str | None) -> _Answers:
    """A request's line in a log."""
    told, decision = line["cascade"], line["decision"]
    likelihood = _likelihood(told.get("likelihood")) if told.get("whole") else NEVER
    return _Answers(decision["step"], likelihood, large or decision["backend"], line.get("backend"), {})


def _add_shadow(line: Mapping[str, Any], found: Mapping[str, _Answers]) -> None:
    """Add the grades of both answers to their request. A comparison alone is none."""
    held, known = found.get(str(line["shadow_of"])), line.get("grade") is not None and line.get("grader") != "exact"
    if held is not None and held.main is not None and known and line.get("main_grade") is not None:
        held.grades |= {held.main: grade_of(line["main_grade"]), str(line["backend"]): grade_of(line["grade"])}


def _likelihood(value: object) -> float:
    return NEVER if value is None else grade_of(value)
