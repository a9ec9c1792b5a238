"""Detection: does a model's concept head tell which concepts a span has, better than controls do?

The score of a concept in a case is log P(any) over the scored rows (`metrics.log_any`), of the logits before the few
largest are kept. A case is positive if a scored token has the concept. The figure is the mean, over the concepts with
enough cases of both kinds (`metrics.MIN_CASES`), of the area under the ROC curve. Differences to controls are paired:
the same cases, the same concepts, the same resamples of files.

"Lexical" are the concepts that the taxonomy reads from tokens alone (`Concept.lexical`); all others are structural.

Letters: S cases, R scored rows, D width, N concepts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from daguerre.concepts.taxonomy import taxonomy
from daguerre.concepts.texts import named_concepts
from daguerre.errors import DataError
from daguerre.evals.concepts.cases import CONDITIONS, SPAN, ConceptCase, Condition, read_cases
from daguerre.evals.concepts.cases import GROUPS as GROUPS
from daguerre.evals.concepts.cases import OURS as OURS
from daguerre.evals.concepts.controls import Fitted, Sets, logistic, naive_bayes, row_probe
from daguerre.evals.concepts.features import Presence, pooled, presence
from daguerre.evals.concepts.metrics import Areas, areas, log_any, resamples, scorable, summary
from daguerre.evals.concepts.partial_results import PartialResults
from daguerre.evals.workers import Progress
from daguerre.model import Model
from daguerre.models.catalog import NamedConcept

NAIVE_BAYES, LOGISTIC = "naive Bayes of tokens", "logistic regression of tokens"
POOLED, ROWS = "linear probe of pooled states", "linear probe of rows"
TARGETS = {"reading, clean": 0.96, "reading, half masked": 0.93, "reading, nine tenths masked": 0.85}
VALIDATION = 8
"""Of the training files, every so many-th is for validation."""


@dataclass(frozen=True, eq=False)
class Detection:
    """What detection is measured on: held-out cases; cases of training text for the controls; the plain model, whose
    hidden states two controls read. Without training cases there are no controls, without a plain model no probes.
    """

    model: Model
    cases: Sequence[ConceptCase]
    training: Sequence[ConceptCase] = ()
    plain: Model | None = None
    seed: int = 0


def measure_detection(what: Detection, kept: PartialResults, progress: Progress) -> dict[str, Any]:
    """The part "detection" of the report: an entry for each of CONDITIONS, and for each concept."""
    ours = kept.arrays("detection-ours", lambda: {"scores": our_scores(what.model, what.cases, progress)})["scores"]
    files = np.unique([case.text.file for case in what.cases], return_inverse=True)[1]
    states, tokens, conditions = _States(what, progress), dict[float, dict[str, Fitted]](), []
    for number, condition in enumerate(CONDITIONS):
        labels = np.stack([case.positives(condition) for case in what.cases])
        if condition.share not in tokens:  # equal shares have equal visible tokens
            tokens[condition.share] = _token_controls(what, number, kept, progress)
        probes = _probes(what, number, states, kept, progress)
        scores = {OURS: Fitted(ours[number])} | tokens[condition.share] | probes
        progress(f"areas, {condition.name}", number, len(CONDITIONS))
        figures = kept.figures(
            f"detection-{number}",
            lambda c=condition, s=scores, y=labels: condition_figures(c, s, y, files, what.seed),  # type: ignore[misc]
        )
        conditions.append(figures)
    return {
        "span": SPAN,
        "cases": len(what.cases),
        "files": int(files.max()) + 1,
        "training_cases": len(what.training),
        "targets": TARGETS,
        "conditions": conditions,
    }


def our_scores(model: Model, cases: Sequence[ConceptCase], progress: Progress) -> np.ndarray:
    """log P(any) of the model's known concepts, float64 (conditions, S, N)."""
    heads = model.backbone.concepts
    assert heads is not None
    out = np.empty((len(CONDITIONS), len(cases), taxonomy().num_ids))

    @torch.inference_mode()
    def keep(number: int, _: ConceptCase, found: list[np.ndarray]) -> None:
        for place, hidden in enumerate(found):
            out[place, number] = log_any(heads.known_logits(torch.from_numpy(hidden))).numpy()

    read_cases(model.config, model.denoiser.backend, cases, keep, lambda d, t: progress("concept head", d, t))
    return out


class _States:
    """The plain model's hidden states of the held-out cases and of the training cases, read once they are needed:
    float16 (S, R, D) for each condition.
    """

    def __init__(self, what: Detection, progress: Progress) -> None:
        self._what, self._progress, self._read = what, progress, dict[str, list[np.ndarray]]()

    def of(self, condition: int) -> tuple[np.ndarray, np.ndarray]:
        """Those of the training cases and of the held-out cases."""
        what = self._what
        for name, cases in (("training", what.training), ("held-out", what.cases)):
            if name not in self._read:
                self._read[name] = hidden_states(what.plain or what.model, cases, name, self._progress)
        return self._read["training"][condition], self._read["held-out"][condition]


def hidden_states(model: Model, cases: Sequence[ConceptCase], name: str, progress: Progress) -> list[np.ndarray]:
    """The hidden states of the scored rows, float16 (S, R, D), in each of CONDITIONS."""
    rows = [len(cases[0].scored(condition)) for condition in CONDITIONS]
    out = [np.empty((len(cases), num, model.config.width), dtype=np.float16) for num in rows]

    def keep(number: int, _: ConceptCase, found: list[np.ndarray]) -> None:
        for place, hidden in enumerate(found):
            out[place][number] = hidden

    read_cases(
        model.config, model.denoiser.backend, cases, keep, lambda d, t: progress(f"plain model, {name} text", d, t)
    )
    return out


def _token_controls(what: Detection, number: int, kept: PartialResults, progress: Progress) -> dict[str, Fitted]:
    """The controls of a condition that learn from its visible tokens, by name."""
    if not what.training:
        return {}
    condition, config = CONDITIONS[number], what.model.config
    sets = training_sets(what.training, condition)

    def tokens() -> tuple[Presence, Presence]:
        return presence(what.training, condition, config), presence(what.cases, condition, config)

    makers = {
        NAIVE_BAYES: lambda: naive_bayes(*tokens(), sets),
        LOGISTIC: lambda: logistic(*tokens(), sets, _shown(progress, condition)),
    }
    return {name: _fitted(number, name, make, kept) for name, make in makers.items()}


def _probes(
    what: Detection, number: int, states: _States, kept: PartialResults, progress: Progress
) -> dict[str, Fitted]:
    """The controls of a condition that learn from the plain model's hidden states, by name."""
    if not what.training or what.plain is None:
        return {}
    sets, show = training_sets(what.training, CONDITIONS[number]), _shown(progress, CONDITIONS[number])
    makers = {
        POOLED: lambda: _pooled(states.of(number), sets, show),
        ROWS: lambda: row_probe(*states.of(number), sets, show),
    }
    return {name: _fitted(number, name, make, kept) for name, make in makers.items()}


def _shown(progress: Progress, condition: Condition) -> Progress:
    return lambda part, done, total: progress(f"{condition.name}: {part}", done, total)


def _pooled(states: tuple[np.ndarray, np.ndarray], sets: Sets, show: Progress) -> Fitted:
    train, test = pooled(*states)
    return logistic(train, test, sets, show)


def training_sets(cases: Sequence[ConceptCase], condition: Condition) -> Sets:
    """The labels of training cases, and which of them are of files for validation. DataError for a single file."""
    labels = np.stack([case.positives(condition) for case in cases])
    number = np.unique([case.text.file for case in cases], return_inverse=True)[1]
    if number.max() == 0:
        raise DataError(
            "controls learn from one part of the training files and are chosen on another: give two or more"
        )
    return Sets(labels, number % VALIDATION == 0)


def _fitted(number: int, name: str, make: Callable[[], Fitted], kept: PartialResults) -> Fitted:
    """A control of a condition, which is made once."""

    def arrays() -> dict[str, np.ndarray]:
        made = make()
        chosen = np.array([f"{key}={value}" for key, value in made.chosen.items()])
        return {"scores": made.scores, "curve": np.array(made.curve).reshape(-1, 2), "chosen": chosen}

    found = kept.arrays(f"control-{number}-{name.replace(' ', '-')}", arrays)
    curve = [(int(step), float(loss)) for step, loss in found["curve"]]
    chosen = {key: int(value) for key, _, value in (str(each).partition("=") for each in found["chosen"])}
    return Fitted(found["scores"], curve, chosen)


def condition_figures(
    condition: Condition,
    scores: dict[str, Fitted],
    labels: np.ndarray,
    files: np.ndarray,
    seed: int,
    concepts: Sequence[NamedConcept] | None = None,
) -> dict[str, Any]:
    """The figures of a condition, by scorer and by group of concepts; bool labels (S, N), numbers of files (S,).
    concepts: those of the taxonomy, where no others are given.
    """
    concepts, some = named_concepts() if concepts is None else concepts, scorable(labels)
    lexical = np.zeros(len(some), dtype=bool)
    lexical[[one.number for one in concepts if one.lexical]] = True
    groups = {"all": some, "lexical": some & lexical, "structural": some & ~lexical}
    weights = resamples(int(files.max()) + 1, seed)
    found = {name: areas(each.scores, labels, files, weights, some) for name, each in scores.items()}
    return {
        "condition": condition.name,
        "concepts": {name: int(which.sum()) for name, which in groups.items()},
        "scorers": [
            {"name": name, **_figures(found, name, groups), **_summary(scores[name], labels, some)} for name in scores
        ],
        "by_concept": [
            {
                "name": one.name,
                "lexical": one.lexical,
                "prevalence": float(labels[:, one.number].mean()),
                **{name: float(each.each[one.number]) for name, each in found.items()},
            }
            for one in concepts
            if some[one.number]
        ],
    }


def _figures(found: dict[str, Areas], name: str, groups: dict[str, np.ndarray]) -> dict[str, Any]:
    """Mean areas by group with their intervals; and, of a control, how much larger ours are."""
    out: dict[str, Any] = {}
    for group, which in groups.items():
        if not which.any():
            continue
        value, spread = found[name].macro(which)
        out[group] = {"auc": value, "auc_interval": spread}
        if name != OURS:
            gain, spread = found[OURS].less(found[name], which)
            out[group] |= {"gain": gain, "gain_interval": spread}
    return out


def _summary(fitted: Fitted, labels: np.ndarray, some: np.ndarray) -> dict[str, Any]:
    figures: dict[str, Any] = dict(summary(fitted.scores, labels, some)) if some.any() else {}
    return figures | {"curve": fitted.curve, "chosen": fitted.chosen}
