"""The teacher of a distillation: older values of the weights that are trained, put in place for its forwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Teacher:
    """`values` of the trained weights, by name; all other weights are the student's, which do not change."""

    def __init__(self, model: nn.Module) -> None:
        self.round = 0
        self.values: dict[str, Tensor] = {}
        self.renew({name: weight for name, weight in model.named_parameters() if weight.requires_grad}, 0)

    def renew(self, values: Mapping[str, Tensor], number: int) -> None:
        """Take these values, for round `number`."""
        self.values = {name: value.detach().clone() for name, value in values.items()}
        self.round = number

    @contextmanager
    def teaching(self, model: nn.Module) -> Iterator[None]:
        """The model with the teacher's weights inside the block, without gradient."""
        weights = {name: model.get_parameter(name) for name in self.values}
        student = {name: weight.data for name, weight in weights.items()}
        try:
            for name, weight in weights.items():
                weight.data = self.values[name]
            torch.clear_autocast_cache()  # which holds rounded copies by parameter, not by value
            with torch.no_grad():
                yield
        finally:
            for name, weight in weights.items():
                weight.data = student[name]
            torch.clear_autocast_cache()

    def state(self) -> dict[str, object]:
        """What a checkpoint holds of it."""
        return {"round": self.round, "values": self.values}

    def restore(self, state: Mapping[str, object]) -> None:
        """The inverse of `state`."""
        saved = state["values"]
        assert isinstance(saved, dict)
        self.round = int(str(state["round"]))
        self.values = {name: saved[name].to(value.device) for name, value in self.values.items()}
