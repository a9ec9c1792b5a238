"""What a task gets, and what several tasks check before they measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from daguerre.decoding.request import Decode
from daguerre.errors import DataError, UnsupportedError
from daguerre.evals.lines import MissingLine, make_examples
from daguerre.evals.options import EvalLimits, EvalOptions
from daguerre.evals.spans import MissingSpan, make_spans, shown_around
from daguerre.evals.workers import Progress
from daguerre.heldout import Document
from daguerre.model import Model

BLOCK = Decode(mode="block")

Measure = Callable[[Progress], Any]
"""Measures a task that the model and the documents allow; returns its part of the report."""


@dataclass(frozen=True)
class Setup:
    """What a task gets."""

    model: Model
    documents: Sequence[Document]
    options: EvalOptions

    @property
    def limits(self) -> EvalLimits:
        return self.options.limits

    @property
    def seed(self) -> int:
        return self.options.seed

    @property
    def workers(self) -> int:
        return self.options.workers

    @property
    def room(self) -> int:
        """Positions of the model."""
        return self.model.config.max_positions


def make_lines(setup: Setup, task: str, shown: tuple[int, int]) -> list[MissingLine]:
    """The lines of a task, with at most `shown` tokens before and after each."""
    check_process(setup.model)
    check_number("lines", setup.limits.lines, task)
    config, limit = setup.model.config, setup.limits.lines
    alone = bool(config.first) or not config.shift  # whether a first line has what predicts its first token
    return make_examples(setup.documents, limit, seed=setup.seed, shown=shown, after_text=not alone)


def make_token_spans(setup: Setup, length: int, task: str) -> list[MissingSpan]:
    """The token spans of a task. UnsupportedError for a model without room for them and what is shown around them."""
    check_process(setup.model)
    check_number("spans", setup.limits.spans, task)
    shown, limit = shown_around(setup.room), setup.limits.spans
    if sum(shown) + length + len(setup.model.config.first) > setup.room:
        raise UnsupportedError(
            f"'{task}' needs {4 * (length + 1)} positions and the model has {setup.room}: leave it out"
        )
    return make_spans(setup.documents, setup.model.tokenizer, length, limit, seed=setup.seed, shown=shown)


def check_process(model: Model) -> None:
    """UnsupportedError for a model that cannot be decoded span by span."""
    BLOCK.check_model(model.config)


def check_number(name: str, value: int, task: str) -> None:
    """DataError where the limit `name` is 0."""
    if not value:
        raise DataError(f"the number of {name} is 0: raise it, or leave {task!r} out")


def check_draft(model: Model, task: str) -> None:
    """UnsupportedError for a model without an autoregressive distribution."""
    if not model.config.can_draft:
        raise UnsupportedError(f"{task!r} is for models with causal context and a shift: leave it out")


def check_suffix(model: Model, task: str) -> None:
    """UnsupportedError for a model that cannot see the text after a gap."""
    if model.config.context == "block":
        raise UnsupportedError(f"a model with block context does not see a suffix: leave {task!r} out")


def check_gaps(model: Model, task: str) -> None:
    """UnsupportedError for a model that cannot fill gaps of unknown length."""
    if model.config.context == "block" or model.config.null_id is None:
        raise UnsupportedError(
            f"a model with block context, or without <null>, fills no gap of unknown length: leave {task!r} out"
        )
    check_process(model)
