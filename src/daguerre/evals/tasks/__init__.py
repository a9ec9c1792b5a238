"""What `daguerre eval` measures: one entry for each task.

A task refuses what the model or the documents do not allow, before anything is measured, and returns what measures it.
"""

from __future__ import annotations

from collections.abc import Callable

from daguerre.evals.tasks.explaining import concepts
from daguerre.evals.tasks.filling import constrained, correction, deadline, edit, infill, tokens
from daguerre.evals.tasks.following import instructions
from daguerre.evals.tasks.setup import Measure, Setup
from daguerre.evals.tasks.teaching import teacher
from daguerre.evals.tasks.writing import bits, completion, decide, draft, speculation, steps

TASKS: dict[str, Callable[[Setup], Measure]] = {
    "bits": bits,
    "infill": infill,
    "draft": draft,
    "completion": completion,
    "steps": steps,
    "tokens": tokens,
    "correction": correction,
    "edit": edit,
    "constrained": constrained,
    "speculation": speculation,
    "deadline": deadline,
    "decide": decide,
}
ASKED: dict[str, Callable[[Setup], Measure]] = {
    "concepts": concepts,
    "instructions": instructions,
    "teacher": teacher,
}
"""Measured only where they are named."""

__all__ = ["ASKED", "TASKS", "Measure", "Setup"]
