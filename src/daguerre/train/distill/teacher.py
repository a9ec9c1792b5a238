"""The teacher of a distillation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from daguerre.train.earlier import Earlier


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
