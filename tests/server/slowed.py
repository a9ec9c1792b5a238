"""A model whose forwards take time, so that a request can be met while it runs."""

from __future__ import annotations

import copy
import time
from typing import Any

from daguerre.model import Model
from daguerre.models.denoiser import BackboneDenoiser


class SlowBackend:
    """Computes the same, and waits a little before."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def forward(self, batch: Any) -> Any:
        time.sleep(0.02)
        return self._backend.forward(batch)


class SlowDenoiser(BackboneDenoiser):
    @property
    def backend(self) -> Any:
        return SlowBackend(super().backend)


def slowed(model: Model) -> Model:
    """The model, of which each batch takes 20 ms more."""
    out = copy.copy(model)
    out.denoiser = SlowDenoiser(model.backbone)
    return out
