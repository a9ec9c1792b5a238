"""What a record says of its concepts as a whole: shares of the logits, alerts, and which inputs mattered.

Over the tokens of a run that the model was asked for, with the sums of a record's evidence (`audit.evidence`):

    share of X   the mean of |X| / (|known| + |discovered| + |residual|), X one of the three; together they are 1
    alert        a watched concept is listed at a token (it is one of the `evidence.TOP` with the largest
                 contributions) with the weight of the alerts, or more
    unexplained  the share of known and discovered concepts together is below the coverage that is asked for

All three are functions of the recorded numbers alone, so whoever can open a record computes them again exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from daguerre.audit.evidence import short
from daguerre.decoding.result import Result
from daguerre.errors import DaguerreError, InputError
from daguerre.model import ATTRIBUTION_STEPS, Model
from daguerre.models.catalog import Catalog

RISK = "risk"
"""The group of a catalog whose concepts are watched unless others are named."""
METHOD = "integrated gradients from masks"
PARTS = ("known", "discovered", "residual")
Steps = Sequence[Mapping[str, Any] | None]


@dataclass(frozen=True, kw_only=True)
class Alerts:
    """When a record raises an alert. InputError for numbers that raise none.

    concepts   the watched ones, by names or numbers; None: those of the catalog's group "risk"
    weight     from which on a watched concept of a token raises one, above 0
    coverage   the share of concepts, 0 to 1, below which a text counts as unexplained
    """

    concepts: tuple[str | int, ...] | None = None
    weight: float = 0.5
    coverage: float = 0.5

    def __post_init__(self) -> None:
        numbers = all(isinstance(one, int | float) for one in (self.weight, self.coverage))
        if not (numbers and 0 < self.weight < math.inf and 0 <= self.coverage <= 1):
            raise InputError(
                f"alerts need a weight above 0 and a coverage of 0 to 1, not {self.weight!r} and {self.coverage!r}"
            )

    def rules(self, catalog: Catalog) -> dict[str, Any]:
        """These options as JSON values, with the concepts that a model has. InputError for one that it has not."""
        risky = [one.number for one in catalog.concepts if one.group == RISK]
        numbers = risky if self.concepts is None else map(catalog.number, self.concepts)
        watched = {catalog.name(number): number for number in numbers}
        return {"watched": watched, "weight": float(self.weight), "coverage": float(self.coverage)}


def concept_summary(rules: Mapping[str, Any], steps: Steps) -> dict[str, Any]:
    """The shares, the alerts and the flag of a run, from the rules of its alerts and the columns of its steps."""
    asked = [step for step in steps if step is not None and "known" in step]
    sizes = [sized for step in asked for sized in _sizes(step)]
    shares = {part: short(math.fsum(one[part] for one in sizes) / len(sizes)) for part in PARTS} if sizes else None
    return {
        "shares": shares,
        "alerts": list(_alerts(rules, asked)),
        "unexplained": None if shares is None else shares["known"] + shares["discovered"] < rules["coverage"],
    }


def _sizes(step: Mapping[str, Any]) -> Iterator[dict[str, float]]:
    """The shares of each token of a step that the model was asked for."""
    for sums in zip(*(step[part] for part in PARTS), strict=True):
        if None not in sums:
            total = max(math.fsum(map(abs, sums)), 1e-300)
            yield {part: abs(value) / total for part, value in zip(PARTS, sums, strict=True)}


def _alerts(rules: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for name, number in sorted(rules["watched"].items()):
        weights = [
            weight
            for step in steps
            for listed, each in zip(step["concepts"], step["weights"], strict=True)
            for concept, weight in zip(listed, each, strict=True)
            if concept == number and weight >= rules["weight"]
        ]
        if weights:
            yield {"concept": name, "tokens": len(weights), "most": max(weights)}


def input_attribution(
    model: Model, token: int = 0, num_steps: int = ATTRIBUTION_STEPS
) -> Callable[[Result], dict[str, Any]]:
    """For `Recorder(inputs=...)`: which inputs mattered to one token of each result, by `daguerre.Model.attribute`, or
    why that cannot be said. Requests then need explain=True, or their error is InputError.
    """

    def found(result: Result) -> dict[str, Any]:
        try:
            one = model.attribute(result, token, num_steps)
        except DaguerreError as error:
            if result.concepts is None:
                raise
            return {"method": METHOD, "token": token, "why_not": str(error)}
        return {
            "method": METHOD,
            "steps": one.num_steps,
            "token": token,
            "position": one.position,
            "logit": short(one.logit),
            "baseline_logit": short(one.baseline_logit),
            "completeness_error": short(one.error),
            "top": [[position, word, short(score)] for position, word, score in one.top()],
        }

    return found
