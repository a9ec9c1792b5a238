"""Values that the trained weights had earlier, put in place for forwards: the start that a run is compared to, or the
teacher that it learns from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from daguerre.errors import CheckpointError, InputError
from daguerre.files import synced_write
from daguerre.models.loading import load_model, model_folder

FILE = "reference.pt"
"""The file in a run of the trained weights as they were at its start."""


class Earlier:
    """`values` of the trained weights, by name; all other weights do not change. Of an adapter these are its factors,
    whose product is 0 at the start of a run: the model without the adapter.
    """

    def __init__(self, model: nn.Module) -> None:
        self.values: dict[str, Tensor] = {}
        self.renew({name: weight for name, weight in model.named_parameters() if weight.requires_grad})

    def renew(self, values: Mapping[str, Tensor]) -> None:
        """Take copies of these values."""
        self.values = {name: value.detach().clone() for name, value in values.items()}

    def restore(self, values: Mapping[str, Tensor]) -> None:
        """Take the values of a checkpoint."""
        self.values = {name: values[name].to(value) for name, value in self.values.items()}

    @contextmanager
    def in_place(self, model: nn.Module) -> Iterator[None]:
        """The model with these values inside the block, without gradient; nothing is copied.

        Autocast holds rounded copies by parameter, not by value: those of the other values are dropped.
        """
        weights = {name: model.get_parameter(name) for name in self.values}
        trained = {name: weight.data for name, weight in weights.items()}
        try:
            for name, weight in weights.items():
                weight.data = self.values[name]
            torch.clear_autocast_cache()
            with torch.no_grad():
                yield
        finally:
            for name, weight in weights.items():
                weight.data = trained[name]
            torch.clear_autocast_cache()


class Teacher(Earlier):
    """The model as it was at the start of a run, or the averaged student at the start of round `round`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.round = 0

    def begin(self, number: int, values: Mapping[str, Tensor]) -> None:
        """Take these values, for round `number`."""
        self.renew(values)
        self.round = number

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of it."""
        return {"round": self.round, "values": self.values}

    def load(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.round = int(state["round"])
        self.restore(state["values"])


class Reference(Earlier):
    """The trained weights as they were when a run began, or as another model has them; the run keeps them in a file."""

    def become(self, name: str) -> None:
        """Take the weights of another model. InputError where that has others than are trained."""
        other, _ = load_model(model_folder(name))
        found = dict(other.named_parameters())
        if {n: w.shape for n, w in found.items()} != {n: w.shape for n, w in self.values.items()}:
            raise InputError(
                f"sft.keep_of: {name} has other weights than this run trains: name the model that the one of --from "
                "was trained from, and train all weights"
            )
        self.restore(found)

    def keep(self, run: Path, resumed: bool, of: str = "") -> None:
        """Write them, or those of the model `of`, into a run; of one that is resumed, read them. CheckpointError where
        they are not there.
        """
        path = run / FILE
        if not resumed:
            if of:
                self.become(of)
            with synced_write(path) as file:
                torch.save({name: weight.cpu() for name, weight in self.values.items()}, file)
            return
        try:
            found: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch.load raises almost anything on a damaged file
            raise CheckpointError(
                f"{path}, the weights that the run began with, cannot be read: begin the run again without --resume"
            ) from error
        if {n: w.shape for n, w in found.items()} != {n: w.shape for n, w in self.values.items()}:
            raise CheckpointError(f"{path} holds other weights than this run trains: resume with its own recipe")
        self.restore(found)
