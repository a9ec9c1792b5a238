"""Values that the trained weights had earlier, put in place for forwards: the start that a run is compared to, or the
teacher that it learns from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


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
