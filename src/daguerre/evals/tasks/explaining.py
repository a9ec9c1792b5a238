"""The task of concepts, which is measured only where it is asked for: it takes hours, and training text beside it."""

from __future__ import annotations

from typing import Any

from daguerre.evals.concepts.measure import PARTS, Amounts, ConceptModel, measure_concepts
from daguerre.evals.tasks.setup import Measure, Setup
from daguerre.evals.workers import Progress
from daguerre.model import Model, load


def concepts(setup: Setup) -> Measure:
    """What a model's concepts are good for, beside controls."""
    beside, limits = setup.beside, setup.limits
    what = ConceptModel(
        model=setup.model,
        documents=setup.documents,
        amounts=Amounts(
            cases=limits.concept_spans,
            training=limits.control_spans,
            generations=limits.generations,
            injections=limits.injections,
        ),
        plain=_other(beside.plain, setup.model),
        twin=_other(beside.twin, setup.model),
        corpus=beside.corpus,
        keep=beside.keep,
        parts=PARTS if beside.parts is None else beside.parts,
        seed=setup.seed,
    )
    what.check()

    def measure(progress: Progress) -> Any:
        return measure_concepts(what, progress)

    return measure


def _other(name: str | None, like: Model) -> Model | None:
    """Another model, with numbers of the same type; None and "none": there is none."""
    return None if name in (None, "none") else load(name, dtype=str(like.dtype).removeprefix("torch."))
