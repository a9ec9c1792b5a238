"""A model whose forwards take time, so that a request can be met while it runs."""

from __future__ import annotations

import copy
import threading
import time
from typing import Any

from daguerre.model import Model
from daguerre.models.denoiser import BackboneDenoiser


class SlowBackend:
    """Computes the same, and waits a little before, until `fast` is set."""

    def __init__(self, backend: Any, fast: threading.Event) -> None:
        self._backend, self._fast = backend, fast

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def forward(self, batch: Any) -> Any:
        if not self._fast.is_set():
            time.sleep(0.02)
        return self._backend.forward(batch)


class SlowDenoiser(BackboneDenoiser):
    fast = threading.Event()

    @property
    def backend(self) -> Any:
        return SlowBackend(super().backend, self.fast)


def slowed(model: Model, fast: threading.Event) -> Model:
    """The model, of which each batch takes 20 ms more until `fast` is set."""
    out = copy.copy(model)
    out.denoiser = SlowDenoiser(model.backbone)
    out.denoiser.fast = fast
    return out
