"""The interface of a mode of decoding.

A mode is one entry of `decoding.modes.MODES`. It knows its options, what it refuses, the size of its spans, its bound
on forwards, and how it runs. No other module compares the names of modes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from daguerre.canvas import Canvas
from daguerre.decoding.mode import ModeSpec, Steps
from daguerre.decoding.plan import Plan
from daguerre.decoding.run import Run


class Mode(ModeSpec, ABC):
    """How a request is decoded."""

    @abstractmethod
    def bound(self, plan: Plan) -> int:
        """The most forwards that a plan can take, without those of a length's search and those that guidance adds."""

    @abstractmethod
    def run(self, run: Run, canvas: Canvas) -> Steps:
        """The rest of a request from `canvas` on; the spans before the active one are finished."""
