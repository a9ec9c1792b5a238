"""What a mode of decoding says about itself; `decoding.modes.base.Mode` adds how it runs."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, ClassVar

from daguerre.canvas import Canvas, Span
from daguerre.decoding.options import DecodeOptions
from daguerre.decoding.repository import Files, joined_files
from daguerre.errors import InputError, UnsupportedError
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import Answer, DraftStep, Forward
from daguerre.models.tokenizer import Tokenizer
from daguerre.trace import Event

Steps = Generator[Event | list[Forward | DraftStep], list[Answer] | None, Canvas]
"""A run. It yields batches of forwards, and is sent their answers; it yields events, and is sent None; it returns the
canvas."""

SAMPLING = frozenset(
    {
        "guidance",
        "scorer",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "n",
        "cache",
        "repetition_penalty",
        "no_repeat_ngram_size",
    }
)
"""Options of every mode that draws tokens one after the other, or a span of them."""


class ModeSpec:
    """The options of a mode, what it refuses, and the size of its spans."""

    name: ClassVar[str]
    options: ClassVar[frozenset[str]] = frozenset()
    """Fields of `Decode` that this mode reads, in addition to those that every mode reads."""
    policies: ClassVar[frozenset[str] | None] = None
    """The policies that it can use; None: all of them, or it has no use for a policy."""
    autoregressive: ClassVar[bool] = False
    """Whether its tokens are those of the autoregressive distribution, whatever is drafted."""
    heals: ClassVar[bool] = True
    """Whether the last word before a gap may be drawn again."""
    shapes: ClassVar[bool] = True
    """Whether it can honor constraints, wordings and pins."""
    holds_pins: ClassVar[bool] = False
    """Whether it honors pins at positions although it can honor nothing else of these."""
    infills: ClassVar[bool] = True
    """Whether it sees the text after a gap."""
    writes_gaps: ClassVar[bool] = False
    """Whether it writes a gap from the left, as a completion: it needs no masks, and where the model has no gap filler,
    what ends a text ends the gap."""
    reads_files: ClassVar[bool] = False
    """Whether it reads the other files of a repository behind tokens of their own."""
    gap_tokens: ClassVar[int] = 24
    """How many tokens a gap may have by default: well within the lengths that infilling is trained with."""
    ends_gaps: ClassVar[bool] = False
    """Whether `end_of_text` is about gaps, too."""
    changeable: ClassVar[bool] = True
    """Whether the caller may change the canvas between its steps."""
    keeps_commits: ClassVar[bool] = True
    """Whether committed tokens stay as they are, so that a stream may show them."""
    commits_each_step: ClassVar[bool] = True
    """Whether each step commits a position or more, so that a span has at most as many steps as positions."""
    keeps_drafts: ClassVar[bool] = True
    """Whether part of a gap's old text may be kept."""
    commits_last: ClassVar[bool] = False
    """Whether nothing is committed before the end, so that no schedule of steering has a place in it."""
    no_spans: ClassVar[str | None] = None
    """Why it does not know a token's place in its gap, so that no span of steering has a meaning in it; None: it does.
    """
    searches_length: ClassVar[bool] = True
    """Whether the length of its gap can be searched first."""

    def check_model(self, config: ModelConfig) -> None:
        """UnsupportedError for a model that this mode cannot decode."""
        if config.process != "absorbing":
            raise UnsupportedError(
                f"a model of the {config.process} process commits no token before the last step: use mode "
                + ('"ancestral"' if config.context == "full" else '"renoise"')
            )
        if config.mask_id is None and not (self.autoregressive or self.writes_gaps):
            raise UnsupportedError(
                f'mode "{self.name}" needs masked positions, and this model was trained without: use mode "ar" or '
                '"speculative"'
            )

    def check_request(self, num_gaps: int, infilling: bool, heal: bool | None) -> None:
        """InputError or UnsupportedError for a request that this mode cannot serve."""
        if infilling and not self.infills:
            raise UnsupportedError(
                f'mode "{self.name}" cannot infill, since it never sees the suffix: use mode "block" or "full"'
            )
        if heal and not self.heals:
            raise InputError(f'mode "{self.name}" heals no word: leave out heal')

    def arrange(
        self, config: ModelConfig, tokenizer: Tokenizer, segments: Sequence[Sequence[int]], files: Files | None
    ) -> Sequence[Sequence[int]]:
        """The token ids around the gaps, in the order in which the model reads them; `segments` are in that of the
        text, and `files` the others of its repository.
        """
        first, *rest = segments
        extra = joined_files([text for _, text in files or ()])
        return [[*tokenizer.encode_plain(extra), *first], *rest] if extra else segments

    def num_arranging(self, config: ModelConfig) -> int:
        """How many tokens `arrange` adds without files."""
        return 0

    def num_firm(self, plan: Any, text: str) -> int:
        """How many characters of a gap's text, which has not ended, stay whatever follows. plan: its `Plan`."""
        return len(text)

    def check_draft(self, settings: DecodeOptions) -> None:
        """InputError or UnsupportedError where the mode cannot use the caller's draft."""

    def check_canvas(
        self, settings: DecodeOptions, config: ModelConfig, canvas: Canvas, budgets: Sequence[Span]
    ) -> None:
        """InputError or UnsupportedError for a canvas that this mode cannot fill. budgets: the fewest and the most
        tokens of each gap.
        """

    def span_size(self, settings: DecodeOptions, config: ModelConfig, max_tokens: int, infilling: bool) -> int:
        """The most positions of a span, in a request for `max_tokens`."""
        return max_tokens


def needs_next_token(mode: ModeSpec, config: ModelConfig) -> None:
    """UnsupportedError for a model without an autoregressive distribution."""
    if not config.can_draft:
        shift = "a shift" if config.shift else "no shift"
        instead = 'mode "block"' if config.context == "block" else 'mode "block" or "full"'
        raise UnsupportedError(
            f'mode "{mode.name}" needs causal context and a shift, and this model has {config.context} context and '
            f"{shift}: use {instead}"
        )
