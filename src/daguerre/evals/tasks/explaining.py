"""The task of concepts, which is measured only where it is asked for: it takes hours, and training text beside it."""

from __future__ import annotations

from typing import Any

from daguerre.evals.tasks.setup import Measure, Setup
from daguerre.evals.workers import Progress
from daguerre.extras import pytorch
from daguerre.model import Model, load


def concepts(setup: Setup) -> Measure:
    """What a model's concepts are good for, beside controls."""
    pytorch()
    from daguerre.evals.concepts.measure import ConceptModel, measure_concepts

    plain, twin = (_other(name, setup.model) for name in (setup.options.plain, setup.options.twin))
    what = ConceptModel(model=setup.model, documents=setup.documents, options=setup.options, plain=plain, twin=twin)
    what.check()

    def measure(progress: Progress) -> Any:
        return measure_concepts(what, progress)

    return measure


def _other(name: str | None, like: Model) -> Model | None:
    """Another model, with numbers of the same type; None and "none": there is none."""
    return None if name in (None, "none") else load(name, dtype=like.numbers)
