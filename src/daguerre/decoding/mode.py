"""The interface of a mode of decoding.

A mode is one entry of `decoding.modes.MODES`. It knows its options, what it refuses, the size of its spans, its bound
on forwards, and how it runs. No other module compares the names of modes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import TYPE_CHECKING, ClassVar

from daguerre.canvas import Canvas
from daguerre.errors import InputError, UnsupportedError
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import Answer, DraftStep, Forward
from daguerre.trace import Event

if TYPE_CHECKING:
    from daguerre.decoding.options import Decode
    from daguerre.decoding.plan import Plan
    from daguerre.decoding.request import Request
    from daguerre.decoding.run import Run

Steps = Generator[Event | list[Forward | DraftStep], list[Answer] | None, Canvas]
"""A run. It yields batches of forwards, and is sent their answers; it yields events, and is sent None; it returns the
canvas."""

SAMPLING = frozenset({"guidance", "scorer", "temperature", "top_p", "top_k", "n", "cache"})
"""Options of every mode that draws tokens one after the other, or a span of them."""


class Mode(ABC):
    """How a request is decoded."""

    name: ClassVar[str]
    options: ClassVar[frozenset[str]] = frozenset()
    """Fields of `Decode` that this mode reads, beside those that every mode reads."""
    autoregressive: ClassVar[bool] = False
    """Whether its tokens are those of the autoregressive distribution, whatever is drafted."""
    heals: ClassVar[bool] = True
    """Whether the last word before a gap may be drawn again."""
    shapes: ClassVar[bool] = True
    """Whether it can honor constraints, wordings and pins."""
    infills: ClassVar[bool] = True
    """Whether it sees the text behind a gap."""
    changeable: ClassVar[bool] = True
    """Whether the caller may change the canvas between its steps."""
    settles: ClassVar[bool] = True
    """Whether committed tokens stay as they are, so that a stream may show them."""
    keeps_drafts: ClassVar[bool] = True
    """Whether part of a gap's old text may be kept."""
    searches_length: ClassVar[bool] = True
    """Whether the length of its gap can be searched first."""

    def check_model(self, config: ModelConfig) -> None:
        """UnsupportedError for a model that this mode cannot decode."""
        if config.process != "absorbing":
            raise UnsupportedError(
                f'a model of the {config.process} process commits no token before the last step: use mode "ancestral"'
            )

    def check_request(self, config: ModelConfig, request: Request) -> None:
        """InputError or UnsupportedError for a request that this mode cannot serve."""
        if request.infilling and not self.infills:
            raise UnsupportedError(
                f'mode "{self.name}" cannot infill, since it never sees the suffix: use mode "block" or "full"'
            )
        if request.heal and not self.heals:
            raise InputError(f'mode "{self.name}" heals no word: leave out heal')

    def check_draft(self, decode: Decode) -> None:  # noqa: B027 (most modes take every draft)
        """InputError or UnsupportedError where the mode cannot use the caller's draft."""

    def span_size(self, decode: Decode, config: ModelConfig, max_tokens: int, infilling: bool) -> int:
        """The most positions of a span, in a request for `max_tokens`."""
        return max_tokens

    @abstractmethod
    def bound(self, plan: Plan) -> int:
        """The most forwards that a plan can take, without those of a length's search and those that guidance adds."""

    @abstractmethod
    def run(self, run: Run, canvas: Canvas) -> Steps:
        """The rest of a request from `canvas` on; the spans before the active one are finished."""


def needs_next_token(mode: Mode, config: ModelConfig) -> None:
    """UnsupportedError for a model without an autoregressive distribution."""
    if not config.can_draft:
        shift = "a shift" if config.shift else "no shift"
        raise UnsupportedError(
            f'mode "{mode.name}" needs causal context and a shift, and this model has {config.context} context and '
            f'{shift}: use mode "block" or "full"'
        )
