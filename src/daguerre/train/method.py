"""A training method: what a run reads, its micro-batches, their loss, what a checkpoint keeps besides, and its figures.

The trainer asks a method and never which one it is; `train/methods.py` has the table. A method is asked in this order:
`check` and `prepared` with the model, `begin` with the weights that are trained, `open` with the data, `keep` and
`restore` with the run's folder, and then `step`, `report` and `measure` as the run goes on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from daguerre.errors import InputError
from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.models.tokenizer import Tokenizer
from daguerre.train.batch import Batch, BatchLoss, LossReport, opened_over_time
from daguerre.train.feed import Maker
from daguerre.train.memory import BatchRows, largest
from daguerre.train.monitor import HeldOut
from daguerre.train.optim import Average
from daguerre.train.precision import Mixed
from daguerre.train.recipe import Recipe
from daguerre.train.self_generated import with_self_generated_tokens
from daguerre.train.sft.corpus import is_pairs
from daguerre.train.shards import Shard
from daguerre.train.stage import Stage
from daguerre.train.teach.teacher import FrozenTeacher


class Measurement(Protocol):
    """What a run is measured on. `num_rows`: how many rows its forwards have in all, by which its time is estimated."""

    num_rows: int

    def measure(self, model: Backbone, attn_impl: str, loss: BatchLoss) -> HeldOut:
        """The held-out figures of a model as it is."""


class Method(ABC):
    """What a recipe trains. `rows` says what its files hold, "" for plain text; `forecasts`, whether the gradients of a
    micro-batch say beforehand what a budget in minutes buys.
    """

    rows = ""
    forecasts = True
    loss: BatchLoss
    batches: Maker
    teacher: FrozenTeacher | None = None
    """The model that is learned from, where the recipe has one; set before `begin`."""

    def __init__(self, recipe: Recipe, *, quiet: bool = False) -> None:
        self.recipe, self.quiet = recipe, quiet

    # ---- before a run ---------------------------------------------------------------------------------------------

    def reading(self) -> dict[str, Any]:
        """How files of `rows` become a corpus: options of `AnswerFiles`."""
        return {}

    @abstractmethod
    def check(self, config: ModelConfig) -> None:
        """InputError or UnsupportedError for a model that cannot be trained so."""

    def prepared(self, model: Backbone, tokenizer: Tokenizer, family: str | None) -> Backbone:
        """The model with what is trained in it. `family`: that of a published model, else None."""
        return model

    def begin(
        self, model: Backbone, tokenizer: Tokenizer, average: Average, device: torch.device, mixed: Mixed
    ) -> None:
        """Make the loss, for a model as it is when a run begins, with the average of its weights. `mixed` is the
        precision that a run multiplies in.
        """
        self.model, self.tokenizer, self.average, self.device, self.mixed = model, tokenizer, average, device, mixed
        self.loss = self.make_loss()

    @abstractmethod
    def make_loss(self) -> BatchLoss:
        """The loss of a micro-batch."""

    def open(self, train: Shard, val: Shard) -> None:
        """Make the micro-batches. InputError where the data is not of the kind that is trained on."""
        self.train, self.val = train, val
        self.check_data(train)
        self.batches = self.maker(train, self.recipe.seed)

    def check_data(self, shard: Shard) -> None:
        """InputError where the data is not of the kind that is trained on."""
        if is_pairs(shard.folder):
            raise InputError(f"{shard.folder} holds pairs of answers: train on it with the recipe prefer")

    @abstractmethod
    def maker(self, shard: Shard, seed: int) -> Maker:
        """What makes micro-batches of a split."""

    @abstractmethod
    def line(self) -> str:
        """What is trained on, and what is held out of it."""

    def largest(self) -> BatchRows | None:
        """The largest micro-batch, for the arithmetic of memory; None where that knows no formula."""
        return largest(self.batches, self.recipe.stages)

    # ---- the run --------------------------------------------------------------------------------------------------

    def step(self, batches: Iterable[Batch], mean: Callable[[float], float]) -> Iterator[Batch]:
        """The micro-batches of a step, as their loss needs them. `mean` takes the mean of a number over processes."""
        return iter(batches)

    def report(self, batch: Batch, share: float, index: int, stage: Stage) -> LossReport:
        """The loss of micro-batch number `index` at this share of the run."""
        batch = self.annealed(batch.to(self.device), share, index)
        with self.mixed():
            batch = with_self_generated_tokens(self.model, batch, self.recipe.attn_impl)
            return self.loss_at(share)(self.model, batch, self.recipe.attn_impl)

    def loss_at(self, share: float) -> BatchLoss:
        """The loss at this share of the run."""
        return self.loss

    def annealed(self, batch: Batch, share: float, index: int) -> Batch:
        """The batch as the model sees it at this share of the run: see `Recipe.anneal`."""
        if share >= self.recipe.anneal:
            return batch
        rng = np.random.default_rng([self.recipe.seed, index, 1])
        return opened_over_time(batch, share / self.recipe.anneal, rng)

    # ---- held-out figures -----------------------------------------------------------------------------------------

    @cached_property
    def figures(self) -> Measurement:
        """What the run is measured on: drawn once."""
        return self.make_figures()

    @abstractmethod
    def make_figures(self) -> Measurement:
        """What the run is measured on, of the validation split."""

    @property
    def held_loss(self) -> BatchLoss:
        """The loss of held-out micro-batches."""
        return self.loss

    def measure(self) -> HeldOut:
        """The held-out figures of the model as it is."""
        with self.mixed():
            return self.figures.measure(self.model, self.recipe.attn_impl, self.held_loss)

    # ---- what a run keeps -----------------------------------------------------------------------------------------

    def keep(self, run: Path, resumed: bool) -> None:  # noqa: B027  # most keep nothing
        """Write into a run what must outlive it; of one that is resumed, read it."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of it, by names of its own."""
        return {}

    def restore(self, tensors: Mapping[str, Any]) -> None:  # noqa: B027  # most have no state
        """Go on from a checkpoint."""
