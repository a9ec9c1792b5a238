"""The training of concept heads on hidden states that are there: first the maps that tell concepts (`predictors`), then
all other weights. The folder of the heads is made at the end, and at every checkpoint.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daguerre.errors import CheckpointError, DataError
from daguerre.model import Model
from daguerre.models.bits import floats
from daguerre.models.core.concept_heads import ConceptHeads
from daguerre.models.head_files import save_head_folder
from daguerre.train.checkpoint import CHECKPOINTS, find_checkpoint, list_checkpoints, load_checkpoint, save_checkpoint
from daguerre.train.concept_loss import ConceptLoss
from daguerre.train.heads.figures import ConceptArea, held_out_areas
from daguerre.train.heads.loss import (
    DrawnWords,
    Normal,
    NormalRows,
    WordsOf,
    folded,
    fresh_heads,
    heads_loss,
    inner_shape,
)
from daguerre.train.heads.options import HeadOptions
from daguerre.train.heads.predictors import Prevalence, calibrate, drawn_spans, predictors_loss, rate_at
from daguerre.train.heads.states import WindowStates
from daguerre.train.heads.subject import HeadNames
from daguerre.train.heads.windows import rows_of
from daguerre.train.optim import Average, lr_factor
from daguerre.train.stopping import StopRequest, stopped_by_signals

HEADS, LOG = "concepts", "progress.jsonl"
"""The folder of the heads in that of a run, and its log."""
FEW = 20
"""Spans with a concept from which it can hardly be learned."""
SAMPLE = 20_000
"""Rows by which states are made normal, and at a time counted."""
MINUTES = 5.0
"""Between two checkpoints."""
CLIP, WARMUP, DECAY_OF_AVERAGE = 1.0, 0.01, 0.99
PREDICTORS_SHARE = 0.4
"""Of a budget in minutes, the share that the maps that tell concepts may take."""
PREDICTORS = ("known_predictor.", "read_predictor.")


@dataclass
class HeadProgress:
    """How far a run is: steps of the predictors and the seconds of these; steps of all other weights, and all seconds
    of learning.
    """

    predictor_step: int = 0
    predictor_seconds: float = 0.0
    step: int = 0
    seconds: float = 0.0


class HeadRun:
    """A run in a folder, whose states are there; `run` trains until the passes or the minutes are used up, or Ctrl-C.

    base  the model's name, and the fingerprint of its weights
    """

    def __init__(
        self,
        model: Model,
        states: WindowStates,
        base: Mapping[str, str],
        out: Path,
        options: HeadOptions,
        *,
        resume: bool = False,
        minutes: float | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        self.out, self.options, self._base, self._say = out, options, dict(base), say
        self.states, self.windows = states, states.windows.take(np.arange(states.done))
        self.names = HeadNames.kept(out)
        self.shape = options.shape(self.names.num, self.names.sha256)
        self._rng, self.progress = np.random.default_rng(options.seed), HeadProgress()
        self._minutes, self._began = minutes, time.monotonic()
        self._train, self._held = rows_of(self.windows, held=False), rows_of(self.windows, held=True)
        if not len(self._train):
            raise DataError("no states were computed yet that heads could learn from: give the run more minutes")
        self.spans = self.windows.take(np.flatnonzero(~self.windows.held)).counts().sum(axis=0, dtype=np.int64)
        normal = Normal.of(self._sample())
        self.words = WordsOf(self._parts(), self.names.num, model.config.vocab_size)
        self.words_usable = model.config.ordinary_ids
        read = np.concatenate([labels for _, labels in self._parts(1)])
        heads = fresh_heads(
            model.config.width, inner_shape(self.shape), self.words.prevalence, read.mean(axis=0), options.seed
        )
        self.heads = DrawnWords(heads, *projection_of(model), normal)
        self.prevalence = Prevalence.of(self.words.prevalence, self.windows)
        first = [weight for name, weight in heads.named_parameters() if name.startswith(PREDICTORS)]
        self._others = [weight for name, weight in heads.named_parameters() if not name.startswith(PREDICTORS)]
        self.optimizers = {
            "predictors": torch.optim.Adam(first, lr=0.0, betas=(0.9, 0.99)),
            "optimizer": torch.optim.AdamW(self._others, lr=0.0, betas=(0.9, 0.98), weight_decay=0.0),
        }
        self.average = Average(heads, DECAY_OF_AVERAGE)
        self.loss = ConceptLoss(options.losses(), training=True)
        checkpoint = find_checkpoint(out, resume) if list_checkpoints(out / CHECKPOINTS) else None
        if checkpoint is not None:
            self._restore(*load_checkpoint(checkpoint))

    @property
    def steps(self) -> int:
        """How many steps there are, where no minutes end the run first."""
        return max(1, round(self.options.passes * len(self._train) / self.options.rows))

    def _sample(self) -> torch.Tensor:
        some = np.sort(np.random.default_rng(0).choice(self._train, min(SAMPLE, len(self._train)), replace=False))
        return torch.from_numpy(self.states.all[some].astype(np.float32))

    def _parts(self, most: int | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The tokens of the rows to learn from, and their concepts, SAMPLE at a time."""
        for start in range(0, len(self._train), SAMPLE)[:most]:
            places = self._train[start : start + SAMPLE] + 1
            yield self.windows.tokens[places], self.windows.concepts(places)

    def _restore(self, tensors: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        if not self.optimizers.keys() <= tensors.keys():
            raise CheckpointError(
                f"{self.out / CHECKPOINTS} is of a version that learned in another order: remove it, and the heads are "
                "learned again from the same states"
            )
        self.heads.concepts.load_state_dict(tensors["heads"])
        self.average.values, self.average.count = tensors["average"], state["averaged"]
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(tensors[name])
        self._rng.bit_generator.state = state["order"]
        self.progress = HeadProgress(**state["progress"])

    def run(self) -> Path:
        """Train; returns the folder of the heads."""
        stop, last = StopRequest(), time.monotonic()
        with stopped_by_signals(stop):
            while self.share < 1 and not stop.asked:
                parts = self._next()
                if (
                    self.progress.step == 10
                    or (self.progress.predictor_step, self.progress.step) == (10, 0)
                    or time.monotonic() - last > 60 * MINUTES
                ):
                    self._tell(parts)
                if time.monotonic() - last > 60 * MINUTES:
                    self.save()
                    last = time.monotonic()
        return self.save()

    @property
    def predictor_share(self) -> float:
        """How much is over of the part that learns to tell concepts."""
        return max(self.progress.predictor_step / self.options.predictor_steps, self._spent / PREDICTORS_SHARE)

    @property
    def share(self) -> float:
        """How much of the part that follows is over."""
        return max(self.progress.step / self.steps, (self._spent - PREDICTORS_SHARE) / (1 - PREDICTORS_SHARE))

    @property
    def _spent(self) -> float:
        """The share of the minutes that is over; 0 where there is no limit."""
        return 0.0 if self._minutes is None else (time.monotonic() - self._began) / (60 * self._minutes)

    def _next(self) -> dict[str, float]:
        if not self.progress.step:
            if self.predictor_share < 1:
                return self._predictor_step()
            self._calibrate()
        return self._step()

    def _predictor_step(self) -> dict[str, float]:
        began = time.monotonic()
        places, span = drawn_spans(self.windows, self._rng, held=False)
        loss, parts = self._predictors_loss(places, span)
        loss.backward()
        _descend(self.optimizers["predictors"], rate_at(self.predictor_share))
        self.progress.predictor_step += 1
        self.average = Average(self.heads.concepts, DECAY_OF_AVERAGE)  # of one value: this part is not averaged
        self.progress.predictor_seconds += time.monotonic() - began
        self.progress.seconds += time.monotonic() - began
        return parts

    def _calibrate(self) -> None:
        heads = self.heads.concepts
        rows = self._rows(np.sort(np.random.default_rng(0).choice(self._train, min(SAMPLE, len(self._train)), False)))
        assert heads.read_predictor is not None
        calibrate(heads.known_predictor, rows.hidden, rows.come)
        calibrate(heads.read_predictor, rows.hidden, rows.read)
        self.average = Average(heads, DECAY_OF_AVERAGE)

    def _predictors_loss(self, places: np.ndarray, span: torch.Tensor) -> tuple[torch.Tensor, dict[str, float]]:
        rows = self._rows(places)
        return predictors_loss(self.heads.concepts, rows.hidden, rows.come, rows.read, span, self.prevalence)

    def _step(self) -> dict[str, float]:
        began, options = time.monotonic(), self.options
        rows = self._rows(np.sort(self._rng.choice(self._train, options.rows)))
        order = torch.from_numpy(self._rng.permutation(options.rows))
        rows = NormalRows(*(getattr(rows, name)[order] for name in ("hidden", "token", "read", "come")))
        loss, parts = self._loss(rows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._others, CLIP)
        _descend(self.optimizers["optimizer"], options.rate * lr_factor(self.share, WARMUP, options.decay))
        self.heads.zero_grad(set_to_none=True)
        self.average.update(self.heads.concepts)
        self.progress.step += 1
        self.progress.seconds += time.monotonic() - began
        return parts

    def _loss(self, rows: NormalRows) -> tuple[torch.Tensor, dict[str, float]]:
        options, usable = self.options, self.words_usable
        words = np.union1d(rows.token[: options.words].numpy(), self._rng.choice(usable, options.vocabulary))
        self.heads.draw(torch.from_numpy(words))
        loss = replace(self.loss, tokens=self.words.drawn(words), share=min(self.share, 0.999))
        return heads_loss(loss, self.heads, rows, options.words)

    def _rows(self, places: np.ndarray) -> NormalRows:
        windows = self.windows
        hidden = self.heads.normal(torch.from_numpy(self.states.all[places].astype(np.float32)))
        token = torch.from_numpy(windows.tokens[places + 1].astype(np.int64))
        return NormalRows(hidden, token, *(torch.from_numpy(windows.concepts(places + ahead)) for ahead in (0, 1)))

    @contextmanager
    def _averaged(self) -> Iterator[ConceptHeads]:
        """The heads with the averaged weights."""
        kept = {name: value.clone() for name, value in self.heads.concepts.state_dict().items()}
        self.heads.concepts.load_state_dict(self.average.values)
        try:
            yield self.heads.concepts
        finally:
            self.heads.concepts.load_state_dict(kept)

    @torch.no_grad()
    def measured(self) -> dict[str, float]:
        """The losses of held-out rows with the averaged weights, by name; empty where there are none."""
        if not len(self._held):
            return {}
        rng, self._rng = self._rng, np.random.default_rng(1)
        with self._averaged():
            found = self._loss(self._rows(np.sort(self._rng.choice(self._held, self.options.rows))))[1]
            found |= self._predictors_loss(*drawn_spans(self.windows, self._rng, held=True))[1]
        self._rng = rng
        return {name: round(value, 4) for name, value in found.items()}

    def rare(self) -> list[str]:
        """The named concepts that are in fewer than FEW spans of what the heads learn from, and in how many."""
        return [f"{one.name} {self.spans[one.number]}" for one in self.names.concepts if self.spans[one.number] < FEW]

    def areas(self) -> list[ConceptArea]:
        """How well the averaged weights tell each concept from the rest, in SAMPLE held-out rows at most."""
        rows = self._held[np.unique(np.linspace(0, len(self._held) - 1, min(SAMPLE, len(self._held))).astype(int))]
        with self._averaged() as heads:
            return held_out_areas(heads, self._rows(rows), self.names.concepts)

    def _tell(self, parts: Mapping[str, float]) -> None:
        progress, options = self.progress, self.options
        shown = ", ".join(f"{name} {value:.3f}" for name, value in parts.items())
        if not progress.step:
            step, steps, share, seconds = (
                progress.predictor_step,
                options.predictor_steps,
                self.predictor_share,
                progress.predictor_seconds,
            )
        else:
            step, steps, share, seconds = (
                progress.step,
                self.steps,
                self.share,
                progress.seconds - progress.predictor_seconds,
            )
        part = "" if progress.step else "of telling concepts apart, "
        left = (1 / max(share, 1e-9) - 1) * seconds / 3600
        self._say(f"step {step:,} of {steps:,}, {part}{left:.2f} hours to go: {shown}")

    def save(self) -> Path:
        """Measure, write a checkpoint and the heads, and a line of the log."""
        found = self.measured()
        tensors = {
            "heads": self.heads.concepts.state_dict(),
            "average": self.average.values,
        } | {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}
        order = self._rng.bit_generator.state
        state = {"progress": asdict(self.progress), "averaged": self.average.count, "order": order}
        save_checkpoint(self.out / CHECKPOINTS, self.progress.predictor_step + self.progress.step, tensors, state)
        trained = {
            "rows": len(self._train),
            "windows": int((~self.windows.held).sum()),
            "steps": self.progress.step,
            "seconds": round(self.progress.seconds),
            "held_out": found,
            "options": asdict(self.options),
        }
        weights, catalog = folded(self.average.values, self.heads.normal), self.names.catalog(self.shape)
        catalog = replace(catalog, concepts=tuple(one for one in catalog.concepts if self.spans[one.number]))
        save_head_folder(self.out / HEADS, weights, self._base, self.shape, catalog, trained)
        with (self.out / LOG).open("a") as file:
            file.write(json.dumps(asdict(self.progress) | found) + "\n")
        return self.out / HEADS


def _descend(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """A step at a rate; gradients are gone afterwards."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def projection_of(model: Model) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The vocabulary projection of a model and its bias, float32."""
    name = "embedding.weight" if model.config.tied else "output.weight"
    part = model.denoiser.weights.outside((name, "output.bias"))
    bias = part.get("output.bias")
    return torch.from_numpy(floats(part[name])), None if bias is None else torch.from_numpy(floats(bias))
