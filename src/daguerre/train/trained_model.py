"""The model of a run with what trains it: its optimizer and its average, how checkpoints hold them, and the export."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from daguerre.concepts.texts import catalog_of
from daguerre.errors import CheckpointError, TrainingError
from daguerre.models.core.backbone import Backbone
from daguerre.models.loading import open_source
from daguerre.train.acceptance import MEASURES
from daguerre.train.budget import RunProgress
from daguerre.train.checkpoint import CHECKPOINTS, list_checkpoints, save_checkpoint
from daguerre.train.chosen import choose_weights
from daguerre.train.devices import Devices
from daguerre.train.method import Method
from daguerre.train.optim import FACTORS, Average, Optimizer
from daguerre.train.origin import family_of, tokenizer_of_run, write_model
from daguerre.train.precision import choose_precision
from daguerre.train.recipe import OWN, Recipe
from daguerre.train.sft.presets import taught
from daguerre.train.sharded_checkpoint import ShardedState, load_shards, load_whole, save_shards
from daguerre.train.shards import manifest_hash
from daguerre.train.start import first_model
from daguerre.train.teach.teacher import FrozenTeacher, teacher_path
from daguerre.train.user_folder import own_vocabulary


class TrainedModel:
    """A model as it is trained by a method, on a device.

    config      that of the model that is exported
    starts      whether the run began with a model
    acceptance  the shares of drafted tokens that were accepted when the model was last measured
    """

    acceptance: tuple[tuple[float, ...], ...] = ()

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        method: Method,
        devices: Devices,
        device: torch.device,
        start_from: str | None,
        data: object,
        saved: dict[str, Any],
    ) -> None:
        """`data`: what the run was given to train on; `saved`: the state of its checkpoint, {} for a new run."""
        self.recipe, self.out, self.method, self.devices, self.device = recipe, out, method, devices, device
        self.starts = start_from is not None
        config = saved.get("model")
        start_from = start_from or saved.get("base", {}).get("path")
        tokenizer = None
        if config is not None and recipe.model is None and isinstance(data, Path):
            tokenizer = tokenizer_of_run(out, data, config)
        own = own_vocabulary(data) if recipe.tokenizer == OWN and start_from is None else None
        model, self.tokenizer = first_model(recipe, start_from, config, tokenizer, own)
        method.check(model.config)
        model = method.prepared(model, self.tokenizer, family_of(start_from, out))
        self.dtype, self.precision = choose_precision(recipe.precision, device)
        self.adapter = choose_weights(model, recipe, start_from, self.dtype)
        self.model = model.to(device)
        self.config = model.config
        devices.shard(self.model, self.dtype)
        if recipe.teacher is not None:
            known = saved.get("teacher", {}).get("path")
            path = teacher_path(recipe.teacher.model, start_from or known)
            method.teacher = FrozenTeacher.open(path, self.tokenizer, self.dtype, self._placed)
        self.optimizer = Optimizer(self.model, recipe.optim, devices.splits)
        self.average = Average(self.model, recipe.optim.ema)
        method.begin(self.model, self.tokenizer, self.average, device, self.autocast)
        if recipe.compile:
            for layer in self.model.layers:
                layer.compile(dynamic=False)

    def _placed(self, teacher: Backbone) -> Backbone:
        """A model that is not trained, where the trained one is."""
        placed = teacher.to(self.device)
        self.devices.share_out(placed, self.dtype)
        return placed

    def autocast(self) -> Any:
        """A context in which the model multiplies in the precision of the recipe."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.dtype is torch.bfloat16)

    def update(self, share: float, passes: float, loss: float, step: int) -> tuple[float, float]:
        """Take step number `step` with the gradients that are there; their norm, and the factor of learning rates.

        TrainingError, before anything reaches the weights, when the loss or a gradient is not a number.
        """
        norm = self.devices.clip(self.model, self.recipe.optim.clip)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            saved = list_checkpoints(self.out / CHECKPOINTS)
            raise TrainingError(
                f"step {step} has a loss of {loss} and a gradient of norm {norm}: lower optim.muon_lr and "
                f"optim.adamw_lr, then --resume: {saved[-1].name} is whole"
            )
        factor = self.optimizer.step(share, passes)
        self.average.update(self.model)
        return norm, factor

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """The model with its averaged weights inside the block, and with the trained ones again afterwards."""
        self.devices.cut()
        trained = {n: self.model.get_parameter(n).detach().clone() for n in self.average.values}
        try:
            self._load_weights(self.average.values)
            yield
        finally:
            self._load_weights(trained)

    @torch.no_grad()
    def _load_weights(self, values: dict[str, torch.Tensor]) -> None:
        self.devices.cut()
        for name, value in values.items():
            self.model.get_parameter(name).copy_(value)

    # ---- checkpoints ----------------------------------------------------------------------------------------------

    def save(self, progress: RunProgress, recipe: Recipe, data: dict[str, Any]) -> None:
        """Write a checkpoint, with the recipe as it is now, and facts of the data."""
        self.devices.cut()
        state = {
            "progress": asdict(progress),
            "average_count": self.average.count,
            "recipe": asdict(recipe),
            "model": self.config.to_dict(),
            "tokenizer_sha256": self.tokenizer.sha256,
            "data": data,
            "adapts": self.starts,
            **({} if self.adapter is None else {"base": self.adapter.base.facts()}),
            **({} if self.method.teacher is None else {"teacher": self.method.teacher.facts()}),
        }
        if self.devices.many:
            save_shards(self._held(), self.out / CHECKPOINTS, progress.step, state)
            return
        tensors = {
            "model": {n: p.detach() for n, p in self._kept_weights().items()},
            "average": self.average.values,
            "optimizer": self.optimizer.state_dict(),
            **self.method.state(),
        }
        save_checkpoint(self.out / CHECKPOINTS, progress.step, tensors, state)

    def _kept_weights(self) -> dict[str, torch.Tensor]:
        """The weights that a checkpoint holds: all, but for an adapter's base, which has a folder."""
        weights: dict[str, torch.Tensor] = dict(self.model.named_parameters())
        return weights if self.adapter is None else {name: weights[name] for name in self.average.values}

    def _held(self) -> ShardedState:
        """What a checkpoint of several processes holds."""
        weights = {name: weight.detach() for name, weight in self._kept_weights().items()}
        return ShardedState(self.devices, weights, self.average.values, self.optimizer)

    def check(self, path: Path, tensors: dict[str, Any], state: dict[str, Any]) -> None:
        """CheckpointError when a checkpoint is of another tokenizer or model."""
        if state["tokenizer_sha256"] != self.tokenizer.sha256:
            raise CheckpointError(f"{path} was trained with another tokenizer than the data has: pass that run's data")
        if self.adapter is not None:
            self.adapter.base.check(state["base"], path)
        if self.method.teacher is not None:
            self.method.teacher.check(state.get("teacher"), path)
        if tensors and not self.devices.many and _shapes(tensors["model"]) != _shapes(self._kept_weights()):
            raise CheckpointError(f"{path} holds another model than the recipe describes: resume with its own recipe")

    def restore(self, path: Path, tensors: dict[str, Any], state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.starts = state.get("adapts", self.starts)
        if not tensors:
            load_shards(path, self._held())
        elif self.devices.many:
            load_whole(tensors, self._held())
        else:
            self._load_weights(tensors["model"])
            self.average.values = {n: tensors["average"][n].to(self.device) for n in self.average.values}
            self.optimizer.load_state_dict(tensors["optimizer"])
            self.method.restore(tensors)
        self.average.count = state["average_count"]

    # ---- the end of a run -----------------------------------------------------------------------------------------

    def export(self, progress: RunProgress, data: Path) -> Path:
        """Write the averaged weights as a model folder, with the acceptance of drafts if measured; or an adapter. An
        adapter of a model that was converted or scaled first is merged, since it says nothing of that.
        """
        self.devices.cut()
        config, whole = self.config, self.devices.whole
        values = {name: whole(name, value) for name, value in self.average.values.items()}
        frozen = {name: whole(name, value) for name, value in self.model.state_dict().items() if name not in values}
        if not self.devices.is_first:
            return self.devices.folder(self.out)
        if self.acceptance:
            measured = dict(zip(MEASURES, self.acceptance, strict=True))
            config = replace(config, draft_acceptance=(measured["greedy"], measured["race"]))
        facts = {
            "trained": asdict(progress),
            "recipe": self.recipe.name,
            "run": self.out.resolve().name,
            "data_sha256": manifest_hash(data),
        } | taught(self.recipe.sft)
        if self.adapter is not None and open_source(self.adapter.base.folder).config() == self.config:
            facts["base_sha256"] = self.adapter.base.facts()["weights_sha256"]
            return self.adapter.write(self.out / "adapter", self.model, values, facts)
        averaged = Backbone(config)
        averaged.load_state_dict({name: value for name, value in (frozen | values).items() if FACTORS not in name})
        if self.adapter is not None:
            self.adapter.merge(averaged, self.model, values)
        names = None if self.recipe.concepts is None or config.concepts is None else catalog_of(config.concepts)
        return write_model(self.out, averaged, self.tokenizer, facts, names)


def _shapes(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}
