"""What stands in for captured graphs where there is no CUDA device: it repeats the call, as a graph does, in place."""

from __future__ import annotations

from torch import Tensor

from daguerre.models.backends.graph_backend import Call, GraphBackend
from daguerre.models.core.backbone import Backbone
from daguerre.models.denoiser import BackboneDenoiser


class Repeats:
    """Captures a call by calling it again, its answer always at one address; counts."""

    def __init__(self) -> None:
        self.captured, self.played = 0, 0

    def __call__(self, call: Call) -> Call:
        self.captured += 1
        out = call().clone()

        def play() -> Tensor:
            self.played += 1
            return out.copy_(call())

        return play


def replayed(backbone: Backbone, repeats: Repeats) -> BackboneDenoiser:
    """A denoiser whose steps are captured so."""
    out = BackboneDenoiser(backbone, "torch")
    out._make = lambda: GraphBackend(backbone, capture=repeats)  # type: ignore[method-assign]
    return out
