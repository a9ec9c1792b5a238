"""The plan of a request, and what it asks of its mode: canvas, gaps, rules and spans, before the first forward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from daguerre.canvas import Canvas, Span
from daguerre.decoding.context import Context, Files, joined_files
from daguerre.decoding.drafters import Draft
from daguerre.decoding.healing import Healing, Vocabulary, num_to_take_back
from daguerre.decoding.options import DecodeOptions
from daguerre.errors import InputError, UnsupportedError
from daguerre.models.catalog import Catalog
from daguerre.models.chat_format import written
from daguerre.models.core.config import ModelConfig
from daguerre.models.forward import Answer, DraftStep, Forward
from daguerre.models.session import Counts
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.rules import EndOfText, GapFillers, Never, Rule
from daguerre.trace import Event

if TYPE_CHECKING:  # which is made for constraints alone, as is all that compiles them
    from daguerre.sampling.constrained import Constraint

Steps = Generator[Event | list[Forward | DraftStep], list[Answer] | None, Canvas]
"""A run. It yields batches of forwards, and is sent their answers; it yields events, and is sent None; it returns the
canvas."""

Distribution = Literal["left", "search", "canvas"]

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


class Mode(ABC):
    """A mode of decoding: its options, what it refuses, the size of its spans, its bound on forwards, and how it runs.

    A mode is one entry of `decoding.modes.MODES`. No other module compares the names of modes.
    """

    name: ClassVar[str]
    options: ClassVar[frozenset[str]] = frozenset()
    """Fields of `Decode` that this mode reads, in addition to those that every mode reads."""
    policies: ClassVar[frozenset[str] | None] = None
    """The policies that it can use; None: all of them, or it has no use for a policy."""
    autoregressive: ClassVar[bool] = False
    """Whether its tokens are those of the autoregressive distribution, whatever is drafted."""
    heals: ClassVar[bool] = True
    """Whether the last word before a gap may be drawn again."""
    heals_unasked: ClassVar[bool] = False
    """Whether it is in a published model, too, where the request does not say."""
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
    traced: ClassVar[bool] = True
    """Whether its forwards are those of the canvases in its trace."""
    distribution: ClassVar[Distribution | None] = None
    """What a token's distribution is computed again from: the tokens before it ("left"), the text before the gap and
    the tokens before it in the gap ("search"), or the canvas of its step; None: no canvas of a trace alone gives it."""
    searches_length: ClassVar[bool] = True
    """Whether the length of its gap can be searched first."""
    needs_next_token: ClassVar[bool] = False
    """Whether it takes a model with an autoregressive distribution."""
    num_arranging: ClassVar[int] = 0
    """How many tokens `arrange` adds without files."""

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
        if self.needs_next_token and not config.can_draft:
            shift = "a shift" if config.shift else "no shift"
            instead = 'mode "block"' if config.context == "block" else 'mode "block" or "full"'
            raise UnsupportedError(
                f'mode "{self.name}" needs causal context and a shift, and this model has {config.context} context '
                f"and {shift}: use {instead}"
            )

    def check_request(self, num_gaps: int, infilling: bool, heal: bool | None) -> None:
        """InputError or UnsupportedError for a request that this mode cannot serve."""
        if infilling and not self.infills:
            raise UnsupportedError(
                f'mode "{self.name}" cannot infill, since it never sees the suffix: use mode "block" or "full"'
            )
        if heal and not self.heals:
            raise InputError(f'mode "{self.name}" heals no word: leave out heal')

    def can_heal(self, config: ModelConfig) -> bool:
        """Whether the last word before a gap of this model may be drawn again."""
        return self.heals

    def num_healed(self, before: Sequence[int], vocabulary: Vocabulary) -> int:
        """How many tokens before a gap are drawn again."""
        return num_to_take_back(before, vocabulary)

    def arrange(
        self,
        config: ModelConfig,
        tokenizer: Tokenizer,
        segments: Sequence[Sequence[int]],
        files: Files | None,
        heals: bool,
    ) -> Sequence[Sequence[int]]:
        """The token ids around the gaps, in the order in which the model reads them; `segments` are in that of the
        text, and `files` the others of its repository. heals: the last word before each gap is drawn again.
        """
        first, *rest = segments
        extra = joined_files([text for _, text in files or ()])
        return [[*tokenizer.encode_plain(extra), *first], *rest] if extra else segments

    def num_firm(self, plan: Plan, text: str) -> int:
        """How many characters of a gap's text, which has not ended, stay whatever follows."""
        return len(text)

    def check_draft(self, settings: DecodeOptions) -> None:  # noqa: B027  # most modes take any
        """InputError or UnsupportedError where the mode cannot use the caller's draft."""

    def check_canvas(  # noqa: B027  # most modes fill any
        self, settings: DecodeOptions, config: ModelConfig, canvas: Canvas, budgets: Sequence[Span]
    ) -> None:
        """InputError or UnsupportedError for a canvas that this mode cannot fill. budgets: the fewest and the most
        tokens of each gap.
        """

    def span_size(self, settings: DecodeOptions, config: ModelConfig, max_tokens: int, infilling: bool) -> int:
        """The most positions of a span, in a request for `max_tokens`."""
        return max_tokens

    @abstractmethod
    def bound(self, plan: Plan) -> int:
        """The most forwards that a plan can take, without those of a length's search and those that guidance adds."""

    @abstractmethod
    def run(self, run: Any, canvas: Canvas) -> Steps:
        """The rest of a request from `canvas` on, by a `denoise.Run`; the spans before the active one are finished."""


@dataclass(frozen=True)
class Gap:
    """One gap of a request: the text that `healing` took back at its left edge, and the most and fewest new tokens."""

    healing: Healing
    max_tokens: int
    min_tokens: int

    @property
    def start(self) -> int:
        """Where the gap begins; the text that was taken back is in it."""
        return self.healing.start

    def open_run(self, canvas: Canvas) -> Span:
        """From the first position after the healed text to the end of the budget; `canvas` is healed."""
        return self.healing.where(canvas)[0], self.healing.end(canvas)


def filler_of(config: ModelConfig, mode: Mode) -> int | None:
    """The token after the text of a gap, where the gap has room for more: the gap filler, or where a mode writes gaps
    by a model that has none, the end of text; None: neither.
    """
    return config.eos_id if config.null_id is None and mode.writes_gaps else config.null_id


@dataclass(frozen=True)
class Search:
    """The result of a search: the candidate `lengths` in tokens, their `scores`, and what the search computed.

    A score is the mean log-probability of the most likely tokens, in nats, less what is usual at that length. seconds:
    that the search took.
    """

    lengths: tuple[int, ...]
    scores: tuple[float, ...]
    counts: Counts
    seconds: float

    @property
    def best(self) -> int:
        """The length with the highest score; the shortest of several."""
        return self.lengths[int(np.argmax(self.scores))]


@dataclass(frozen=True)
class Plan:
    """The plan of one request, with a `Gap` for each gap of the canvas.

    infilling      whether the canvas has something after a gap
    segments       token ids of the texts around the gaps, in the order of the text
    around         the texts around the gaps, where the result is the whole text; None: the result is the gap alone
    original       the text that is edited; None: nothing is
    constraint     holds for each gap by itself
    unconditional  int64, the tokens that guidance puts in place of those before the first gap; None without guidance
    draft          of the only gap
    searched       the search of the gap's length, where there was one
    catalog        names of the model's concepts; None: it has none
    shown          the texts of special tokens that are written out (`chat_format.written`); None: none is
    context        what the canvas shows of the text that the caller gave; None: that was token ids

    What follows from these is found once:

    max_tokens     the most new tokens of all gaps together
    filler         the token that ends a gap with text after it; None: the model has none, or there is no such gap
    ending         the tokens that end the text: the gap filler in a gap, the ends of text in a completion
    stops          the stop strings as they stand in texts
    stops_loops    whether a text ends where it loops
    span_size      the most positions of a span
    begins_alone   whether a block's first position is a span of its own, of the autoregressive distribution
    forwards_each  the most forwards of one step: two under guidance
    healing_forwards, num_searching   the most forwards that healing takes; those that the search of the length took
    """

    config: ModelConfig
    decode: DecodeOptions
    mode: Mode
    vocabulary: Vocabulary
    canvas: Canvas
    gaps: tuple[Gap, ...]
    num_prompt: int
    infilling: bool
    segments: tuple[Sequence[int], ...] = ()
    around: tuple[str, ...] | None = None
    original: str | None = None
    constraint: Constraint | None = None
    unconditional: np.ndarray | None = None
    draft: Draft | None = None
    searched: Search | None = None
    catalog: Catalog | None = None
    context: Context | None = None
    shown: Mapping[int, bytes] | None = None
    max_tokens: int = field(init=False)
    filler: int | None = field(init=False)
    ending: tuple[int, ...] = field(init=False)
    stops: Sequence[str] = field(init=False)
    stops_loops: bool = field(init=False)
    span_size: int = field(init=False)
    begins_alone: bool = field(init=False)
    forwards_each: int = field(init=False)
    healing_forwards: int = field(init=False)
    num_searching: int = field(init=False)

    def __post_init__(self) -> None:
        config, decode, infilling = self.config, self.decode, self.infilling
        max_tokens = sum(gap.max_tokens for gap in self.gaps)
        filler = filler_of(config, self.mode) if infilling else None
        greedy = self.mode.autoregressive and decode.temperature == 0 and not decode.min_tokens
        loops = config.ends_loops and greedy and self.draft is None and not decode.shaping
        facts: dict[str, Any] = {
            "max_tokens": max_tokens,
            "filler": filler,
            "ending": (() if filler is None else (filler,)) if infilling else (config.eos_id, *config.end_ids),
            "stops": decode.stop if self.shown is None else [written.ordinary(stop) for stop in decode.stop],
            "stops_loops": loops if decode.stop_loops is None else decode.stop_loops,
            "span_size": self.mode.span_size(decode, config, max_tokens, infilling),
            "begins_alone": config.masks_in_place and not infilling,
            "forwards_each": 1 if self.unconditional is None else 2,
            "healing_forwards": sum(gap.healing.num_tokens for gap in self.gaps),
            "num_searching": 0 if self.searched is None else self.searched.counts.forwards,
        }
        self.__dict__.update(facts)

    def is_special(self, token: int) -> bool:
        """Whether a token is one that is written out."""
        return self.shown is not None and token in self.shown

    def piece(self, token: int) -> bytes:
        """The bytes of a token's text."""
        return self.vocabulary.of[token] if self.shown is None else self.shown.get(token) or self.vocabulary.of[token]

    def written(self, token: int, text: str) -> str:
        """The text of a token, as it was decoded, as it stands in texts."""
        return text if self.shown is None or token in self.shown else written.ordinary(text)

    def plain(self, text: str) -> str:
        """What a text says, as whoever asked is shown it."""
        return text if self.shown is None else written.plain(text)

    def healed(self, canvas: Canvas) -> bool:
        """Whether every gap again has the text that was taken back."""
        return not any(gap.healing.where(canvas)[1] for gap in self.gaps)

    def rules(self, canvas: Canvas) -> list[Rule]:
        """The rules under which the healed canvas is denoised."""
        never = tuple(token for token in self.config.ends if token not in self.ending)
        rules: list[Rule] = [Never(never)] if never else []
        floors = []  # the first position at which each gap may end, after its pins
        for start, gap in ((gap.healing.start, gap) for gap in self.gaps):
            end = gap.healing.end(canvas)
            pins = canvas.pins[(canvas.pins >= start) & (canvas.pins < end)]
            floors.append(max([end - gap.max_tokens + gap.min_tokens, *(pins + 1).tolist()]))
        if not self.infilling:
            rules.append(EndOfText(self.ending, floors[0], self.decode.end_of_text))
        elif self.config.null_id is not None:
            rules.append(GapFillers(self.config.null_id, tuple(zip(canvas.gaps, floors, strict=True))))
        return rules

    def spans(self, canvas: Canvas) -> list[Span]:
        """The spans of the healed canvas, in the order in which they are denoised. Gaps in one span see each other."""
        runs = [gap.open_run(canvas) for gap in self.gaps]
        runs = [(start, end) for start, end in runs if start < end]
        if self.infilling and self.span_size >= self.max_tokens:
            return [(runs[0][0], runs[-1][1])] if runs else []
        size = self.span_size
        out = []
        for start, end in runs:
            while start < end:
                stop = min(end, start + size if self.config.context != "block" else self._end_in_block(start))
                if self.begins_alone and stop > start + 1:
                    out.append((start, start + 1))
                    start += 1
                out.append((start, stop))
                start = stop
        return out

    def _end_in_block(self, start: int) -> int:
        """Where a span of block context ends that begins at `start`: parts of a block lie on a grid, too."""
        grid, size = self.config.block_size, self.span_size
        assert grid is not None
        first = start // grid * grid
        if start == first and self.config.anchor == "clean":
            return start + 1
        return min(first + grid, first + ((start - first) // size + 1) * size)

    def revisable(self, canvas: Canvas, with_ends: bool = False) -> np.ndarray:
        """Committed positions of the active span that may still change, int64: nothing healed or given, and no ends
        unless asked for.
        """
        assert canvas.span is not None
        inside = np.zeros(len(canvas), dtype=bool)
        for gap in self.gaps:
            start, end = gap.open_run(canvas)
            inside[max(start, canvas.span[0]) : min(end, canvas.span[1])] = True
        inside &= canvas.drawn
        return np.flatnonzero(inside if with_ends else inside & ~np.isin(canvas.tokens, self.config.ends))

    def opened(self, canvas: Canvas) -> np.ndarray:
        """Open positions within the budget, int64, ascending."""
        runs = [(gap.healing.start, gap.healing.end(canvas)) for gap in self.gaps]
        return np.concatenate([start + np.flatnonzero(canvas.open[start:end]) for start, end in runs])

    def drafted(self, canvas: Canvas) -> tuple[int, np.ndarray]:
        """Where the draft begins on the healed canvas, and its tokens, int64, which are none without a draft."""
        gap = self.gaps[0]
        start = gap.healing.where(canvas)[0]
        if self.draft is None:
            return start, np.zeros(0, dtype=np.int64)
        written = self.vocabulary.bytes_of(canvas.tokens[gap.start : start])
        return start, self.draft.tokens(written[len(gap.healing.text) :])

    def finished(self, canvas: Canvas) -> bool:
        """Whether nothing within the budget is open."""
        return self.healed(canvas) and not len(self.opened(canvas))

    def window(self, canvas: Canvas) -> Span:
        """`span_size` positions from the first open one on, as far as its gap's budget goes, and no further than an end
        of text that fills what follows it; something is open.
        """
        start = int(self.opened(canvas)[0])
        until = (gap.healing.end(canvas) for gap in self.gaps)
        end = min(next(end for end in until if start < end), start + self.span_size)
        if not self.infilling and self.decode.end_of_text == "fill":
            ends = ~canvas.open[start:end] & np.isin(canvas.tokens[start:end], self.ending)
            end = start + int(ends.argmax()) if ends.any() else end
        return start, end

    def widened(self, canvas: Canvas, span: Span, min_open: int) -> Span:
        """The span, extended to the right until it has `min_open` open positions. Blocks of a grid stay as they are."""
        if not min_open or self.config.context == "block":
            return span
        opened = self.opened(canvas)
        opened = opened[opened >= span[0]]
        if (opened < span[1]).sum() >= min(min_open, len(opened)):
            return span
        return span[0], int(opened[min(min_open, len(opened)) - 1]) + 1

    @property
    def num_spans(self) -> int:
        """The most spans."""
        size = min(self.span_size, self.max_tokens)
        num = sum(-(-gap.max_tokens // size) for gap in self.gaps)
        if self.config.context != "block":
            return num * (1 + self.begins_alone)
        assert self.config.block_size is not None
        num_blocks = self.max_tokens // self.config.block_size + 2  # parts of blocks may be shorter
        return num + num_blocks * (1 + (self.config.anchor == "clean"))

    def num_readings(self, num_spans: int, num_tokens: int) -> int:
        """The most forwards that read finished spans again."""
        return self.decode.revise * (num_tokens if self.decode.revise_reading == "leave_one_out" else num_spans)

    def bound_from(self, canvas: Canvas, forwards: int) -> int:
        """The bound of a request that has taken this many forwards and is then changed to `canvas`: those, and the
        bounds of the policy on what is open there.
        """
        num_open = [int(canvas.open[start:end].sum()) for start, end in self.spans(canvas)]
        policy = self.decode.commit_policy
        by_policy = sum(policy.bound(num) for num in num_open if num) + len(num_open) * policy.num_extra
        readings = self.num_readings(len(num_open), sum(end - start for start, end in self.spans(canvas)))
        return self.num_searching + forwards + self.forwards_each * (by_policy + readings)

    @property
    def max_forwards(self) -> int:
        """The most forwards of the request: those of its mode, and of the search of its length."""
        return self.num_searching + self.forwards_each * self.mode.bound(self)
