"""From a request's texts and options to a canvas, its rules and its spans: all that is known before a forward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import index

import numpy as np

from daguerre.canvas import Canvas, Run
from daguerre.errors import InputError, UnsupportedError
from daguerre.models.config import ModelConfig
from daguerre.models.denoiser import Counts
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.constrained import Constraint, make_constraint
from daguerre.sampling.constraints.wording import Wording
from daguerre.sampling.decode import Decode
from daguerre.sampling.draft import Draft
from daguerre.sampling.guidance import hidden_prefix
from daguerre.sampling.healing import Healing, TokenBytes, num_to_take_back
from daguerre.sampling.pins import pinned
from daguerre.sampling.random import DRAFT, Counter
from daguerre.sampling.rules import EndOfText, Never, Nulls, Rule

Text = str | Sequence[int]


@dataclass(frozen=True)
class Request:
    """What is asked for: `segments` are token ids, with a gap between each and the next, which gets from least to most
    tokens (`budgets`); one gap with nothing behind it is a completion.

    heal: None is where it can be. `draft` is of the only gap. `around` are the texts of the segments where the result
    is the whole text; None: the gap alone.
    """

    decode: Decode
    segments: Sequence[Sequence[int]]
    budgets: Sequence[tuple[int, int]]
    heal: bool | None = None
    draft: str | None = None
    around: tuple[str, ...] | None = None

    @property
    def infilling(self) -> bool:
        """True unless it is a completion."""
        return len(self.budgets) > 1 or bool(self.segments[-1])


@dataclass(frozen=True)
class Slot:
    """One gap of a request: what `healing` took back at its left edge, and how many new tokens it may and must get."""

    healing: Healing
    max_tokens: int
    min_tokens: int

    @property
    def start(self) -> int:
        """Where the gap begins, with what was taken back."""
        return self.healing.start

    def open_run(self, canvas: Canvas) -> Run:
        """From the first position that healing leaves to the end of the budget; `canvas` is healed."""
        return self.healing.where(canvas)[0], self.healing.end(canvas)

    def floor(self, canvas: Canvas) -> int:
        """The first position at which the gap may have ended, behind its pins; `canvas` is healed."""
        end = self.healing.end(canvas)
        pins = canvas.pins[(canvas.pins >= self.start) & (canvas.pins < end)]
        return max([end - self.max_tokens + self.min_tokens, *(pins + 1).tolist()])


@dataclass(frozen=True)
class Search:
    """What a search found: `scores` of its candidate `lengths`, in tokens; and what it took, forwards and seconds.

    A score is in nats a token: the mean log-probability of the most likely tokens, less what is usual at that length.
    """

    lengths: tuple[int, ...]
    scores: tuple[float, ...]
    counts: Counts
    seconds: float

    @property
    def best(self) -> int:
        """The length with the highest score, the shortest of equals."""
        return self.lengths[int(np.argmax(self.scores))]


@dataclass(frozen=True)
class Plan:
    """One request, laid out: a slot for each gap of the canvas.

    `around` is that of the request. `original` is the text that is edited. One `constraint` holds for each gap by
    itself. `other` are the tokens that guidance puts in place of those before the first gap, int64; None without
    guidance. `draft` is of the only gap. `searched` is how the length of the gap was found, where it was.
    """

    config: ModelConfig
    decode: Decode
    canvas: Canvas
    slots: tuple[Slot, ...]
    num_prompt: int
    infilling: bool
    around: tuple[str, ...] | None = None
    original: str | None = None
    constraint: Constraint | None = None
    other: np.ndarray | None = None
    draft: Draft | None = None
    searched: Search | None = None

    @property
    def max_tokens(self) -> int:
        """New tokens of all gaps together, at most."""
        return sum(slot.max_tokens for slot in self.slots)

    @property
    def ending(self) -> int | None:
        """The token that ends the text: <null> in a gap, <eos> in a completion."""
        return self.config.null_id if self.infilling else self.config.eos_id

    def healed(self, canvas: Canvas) -> bool:
        """True when every slot has again the text that was taken back."""
        return not any(slot.healing.where(canvas)[1] for slot in self.slots)

    def rules(self, canvas: Canvas) -> list[Rule]:
        """What the healed canvas is denoised under."""
        never = self.config.eos_id if self.infilling else self.config.null_id
        rules: list[Rule] = [] if never is None else [Never((never,))]
        if not self.infilling:
            rules.append(EndOfText(self.config.eos_id, self.slots[0].floor(canvas)))
        elif self.config.null_id is not None:
            floors = tuple((gap, slot.floor(canvas)) for gap, slot in zip(canvas.gaps, self.slots, strict=True))
            rules.append(Nulls(self.config.null_id, floors))
        return rules

    def spans(self, canvas: Canvas) -> list[Run]:
        """The spans of the healed canvas, in the order they are denoised; gaps that are one span see each other."""
        runs = [slot.open_run(canvas) for slot in self.slots]
        runs = [(start, end) for start, end in runs if start < end]
        if self.infilling and self._span_size >= self.max_tokens:
            return [(runs[0][0], runs[-1][1])] if runs else []
        grid = self.config.block_size if self.config.context == "block" else None
        size = self._span_size
        out = []
        for start, end in runs:
            while start < end:
                stop = min(end, start + size if grid is None else (start // grid + 1) * grid)
                out.append((start, stop))
                start = stop
        return out

    def revisable(self, canvas: Canvas) -> np.ndarray:
        """Committed positions of the active span that may still change, int64: no end, nothing healed or given."""
        assert canvas.span is not None
        inside = np.zeros(len(canvas), dtype=bool)
        for slot in self.slots:
            start, end = slot.open_run(canvas)
            inside[max(start, canvas.span[0]) : min(end, canvas.span[1])] = True
        return np.flatnonzero(inside & canvas.drawn & ~np.isin(canvas.tokens, self.config.ends))

    def opened(self, canvas: Canvas) -> np.ndarray:
        """Open positions within the budget, int64, ascending."""
        runs = [(slot.start, slot.healing.end(canvas)) for slot in self.slots]
        return np.concatenate([start + np.flatnonzero(canvas.open[start:end]) for start, end in runs])

    def num_opened(self, canvas: Canvas) -> int:
        """How many positions `opened` has."""
        ends = [(slot.start, slot.healing.end(canvas)) for slot in self.slots]
        return sum(int(np.count_nonzero(canvas.open[start:end])) for start, end in ends)

    def drafted(self, canvas: Canvas) -> tuple[int, np.ndarray]:
        """Where the draft begins on the healed canvas, and its tokens, int64; none without a draft."""
        (slot, *_), table = self.slots, self.slots[0].healing.table
        start = slot.healing.where(canvas)[0]
        if self.draft is None:
            return start, np.zeros(0, dtype=np.int64)
        written = b"".join(table.of[token] for token in canvas.tokens[slot.start : start].tolist())
        return start, self.draft.tokens(written[len(slot.healing.text) :])

    def finished(self, canvas: Canvas) -> bool:
        """True when nothing within the budget is open."""
        return self.healed(canvas) and not self.opened(canvas).size

    def widened(self, canvas: Canvas, span: Run, least: int) -> Run:
        """The span, with what is behind it until it has `least` open positions. Blocks of a grid stay as they are."""
        opened = self.opened(canvas)
        opened = opened[opened >= span[0]]
        if self.config.context == "block" or (opened < span[1]).sum() >= min(least, len(opened)):
            return span
        return span[0], int(opened[min(least, len(opened)) - 1]) + 1

    @property
    def _span_size(self) -> int:
        return self.decode.span_size(self.config, self.max_tokens, self.infilling)

    @property
    def bound(self) -> int:
        """The most forwards that this request can take: a search's, healing's, and each span's by its policy."""
        size = min(self._span_size, self.max_tokens)
        num_spans = sum(-(-slot.max_tokens // size) for slot in self.slots) + int(self.config.context == "block")
        if self.decode.mode == "ancestral":
            return self.decode.steps or self.max_tokens
        if self.decode.mode == "beam":  # a forward for each token, and at most one for each filling
            return self.slots[0].healing.slots + self.max_tokens + 1 + self.decode.num_beams
        by_policy = num_spans * self.decode.rule_of_commit.bound(size)
        healing = sum(slot.healing.slots for slot in self.slots)
        readings = self._readings(num_spans, self.max_tokens) + num_spans * int(self.draft is not None)
        return self._searching + self._questions * (healing + min(by_policy, self.max_tokens) + readings)

    def _readings(self, num_spans: int, num_tokens: int) -> int:
        """Forwards that reading finished spans again takes, at most."""
        return self.decode.revise * (num_tokens if self.decode.revise_reading == "masked" else num_spans)

    def bound_from(self, canvas: Canvas, forwards: int) -> int:
        """The same once a request that has taken so many forwards has been changed to `canvas`: the policy's on what is
        open there, beside those.
        """
        num_open = [int(canvas.open[start:end].sum()) for start, end in self.spans(canvas)]
        by_policy = sum(self.decode.rule_of_commit.bound(num) for num in num_open if num)
        readings = self._readings(len(num_open), sum(end - start for start, end in self.spans(canvas)))
        return self._searching + forwards + self._questions * (by_policy + readings)

    @property
    def _searching(self) -> int:
        return 0 if self.searched is None else self.searched.counts.forwards

    @property
    def _questions(self) -> int:
        """Forwards that an answer takes, at most: guidance asks twice."""
        return 1 if self.other is None else 2


def make_plan(
    config: ModelConfig,
    tokenizer: Tokenizer,
    decode: Decode,
    prefix: Text,
    suffix: Text | None,
    max_tokens: int,
    heal: bool | None,
    draft: str | None = None,
) -> Plan:
    """`lay_out` of one gap between two texts."""
    segments = encoded(prefix, suffix, tokenizer, config)
    return lay_out(config, tokenizer, Request(decode, segments, [(decode.min_tokens, max_tokens)], heal, draft))


def lay_out(config: ModelConfig, tokenizer: Tokenizer, request: Request) -> Plan:
    """Check a request and lay it out. InputError or UnsupportedError, in one line."""
    decode, segments, budgets = request.decode, request.segments, request.budgets
    _check_beam(request)
    for least, most in budgets:
        check_budget(least, most)
    decode.check_model(config)
    infilling, total_budget = request.infilling, sum(most for _, most in budgets)
    decode.span_size(config, total_budget, infilling)
    heals = _check_healing(config, request)
    given = 1 + sum(len(segment) for segment in segments)
    room = config.max_positions - given - total_budget
    if room < 0:
        raise InputError(
            f"<bos>, the text and max_tokens={total_budget} need {given + total_budget} positions and the model has "
            f"{config.max_positions}: shorten the text or ask for fewer tokens"
        )
    table = TokenBytes.make(tokenizer)
    kept: list[list[int]] = []
    sizes: list[int] = []
    slots: list[Slot] = []
    start = 0
    for (least, most), segment in zip(budgets, segments, strict=False):
        taken = num_to_take_back(segment, table) if heals else 0
        spare = taken + int(taken > 0 and room > 0)
        room -= spare - taken
        kept.append([*([] if kept else [config.bos_id]), *segment[: len(segment) - taken]])
        sizes.append(spare + most)
        start += len(kept[-1])
        text = tokenizer.decode_bytes(segment[len(segment) - taken :])
        healing = Healing(table, start, text, spare, limit=most, filler=config.null_id if infilling else None)
        slots.append(Slot(healing, most, least))
        start += sizes[-1]
    canvas = Canvas.lay_out([*kept, segments[-1]], sizes, config.mask_id)
    if decode.pins:
        canvas = pinned(canvas, decode.pins, tokenizer)
    texts = [tokenizer.decode_bytes(segment) for segment in segments]
    constraint = _constrain(config, tokenizer, decode, canvas, slots, texts) if decode.constrained else None
    other = None if decode.guidance == 1 else _other_prefix(config, tokenizer, decode, canvas)
    return Plan(
        config,
        decode,
        canvas,
        tuple(slots),
        given - 1,
        infilling,
        around=request.around,
        constraint=constraint,
        other=other,
        draft=_read_draft(request, tokenizer),
    )


def _read_draft(request: Request, tokenizer: Tokenizer) -> Draft | None:
    """InputError or UnsupportedError for a draft that the request cannot begin with."""
    draft, decode = request.draft, request.decode
    if not isinstance(draft, str | None):
        raise InputError(f"the draft must be a text, not {draft!r:.40}")
    if draft is not None and decode.autoregressive and any(not pin.floats for pin in decode.pins):
        raise UnsupportedError(f'mode "{decode.mode}" tests a draft where nothing is pinned: leave out draft or pins')
    if draft is not None and decode.mode == "ancestral":
        raise UnsupportedError('mode "ancestral" begins with noise and not with a draft: leave out one of the two')
    if draft is not None and decode.mode == "beam":
        raise UnsupportedError('mode "beam" begins with nothing written: leave out the draft')
    return None if draft is None else Draft(draft, tokenizer)


def _other_prefix(config: ModelConfig, tokenizer: Tokenizer, decode: Decode, canvas: Canvas) -> np.ndarray:
    """What guidance compares the text before the first gap with. InputError when there is no difference, or no room."""
    first = canvas.gaps[0][0]
    other = hidden_prefix(config, first, tokenizer.encode(decode.negative or ""))
    if np.array_equal(other, canvas.tokens[:first]):
        raise InputError(
            "guidance has nothing to compare: the text before the first gap is empty, once its last word is taken back,"
            " or is the negative one; give another text, or heal=False"
        )
    if len(canvas) - first + len(other) > config.max_positions:
        raise InputError(
            f"the negative text has {len(other) - 1} tokens and leaves no room for the rest: shorten it or ask for less"
        )
    return other


def _constrain(
    config: ModelConfig,
    tokenizer: Tokenizer,
    decode: Decode,
    canvas: Canvas,
    slots: Sequence[Slot],
    texts: Sequence[bytes],
) -> Constraint:
    """The request's constraint, once it is sure that every gap can hold a text of it; `texts` are around the gaps."""
    option, value = decode.constraint or (None, None)
    filler = config.eos_id if canvas.continues else config.null_id
    total = sum(slot.max_tokens for slot in slots)
    floors = {gap: slot.start + slot.min_tokens for gap, slot in zip(canvas.gaps, slots, strict=True)}
    wordings = {gap: _wording(decode, tokenizer, canvas, number, texts) for number, gap in enumerate(canvas.gaps)}
    constraint = make_constraint(option, value, decode.lenient, wordings, tokenizer, filler, floors, decode.logit_bias)
    span_size = decode.span_size(config, total, not canvas.continues)
    constraint.check(canvas, min(span_size, max(end - start for start, end in canvas.gaps)))
    return constraint


def _wording(decode: Decode, tokenizer: Tokenizer, canvas: Canvas, number: int, texts: Sequence[bytes]) -> Wording:
    """What a gap's text must say and must not."""
    start, end = canvas.gaps[number]
    floating = [pin for pin in decode.pins if pin.floats and pin.gap in (None, number)]
    reach = max((len(word.encode()) for word in decode.forbidden), default=1) - 1
    before, after = texts[number], texts[number + 1] if number + 1 < len(texts) else b""
    return Wording(
        keywords=tuple(decode.keywords),
        forbidden=tuple(decode.forbidden),
        ending=decode.ending or "",
        within=tuple(pin.within(end - start, tokenizer) for pin in floating),
        before=before[max(0, len(before) - reach) :],
        after=after[:reach],
        followed=number + 1 < len(canvas.gaps) and len(after) < reach,
    )


def keep_drafts(plan: Plan, drafts: Sequence[Sequence[int]], strength: float) -> Plan:
    """The plan with each gap's draft, as long as the gap, in place: a share `strength` of its tokens is open again.

    Which ones is drawn by the request's seed; at least one in all.
    """
    if not 0 < strength <= 1:
        raise InputError(f"strength must be above 0 and at most 1, not {strength}")
    if plan.decode.mode == "beam":
        raise UnsupportedError('mode "beam" writes all of a gap anew: leave out strength')
    canvas = plan.canvas
    tokens, opened = canvas.tokens.copy(), canvas.open.copy()
    for (start, end), draft in zip(canvas.gaps, drafts, strict=True):
        tokens[start:end] = draft
    tokens[canvas.pins] = canvas.tokens[canvas.pins]
    inside = np.flatnonzero(canvas.open)
    order = np.argsort(Counter(plan.decode.seed, 0).uniform(DRAFT, inside, 0), kind="stable")
    opened[inside[order[math.ceil(strength * len(inside)) :]]] = False
    drafted = replace(canvas, tokens=tokens, open=opened)
    if plan.constraint is not None:
        plan.constraint.check(drafted, 1)
    return replace(plan, canvas=drafted)


def encoded(prefix: Text, suffix: Text | None, tokenizer: Tokenizer, config: ModelConfig) -> list[list[int]]:
    """The segments of a request with one gap: the tokens of two texts, or those that are given, checked; a suffix of
    None has none. InputError, in one line.
    """
    return [_encoded(text, tokenizer, config) for text in (prefix, "" if suffix is None else suffix)]


def _encoded(text: Text, tokenizer: Tokenizer, config: ModelConfig) -> list[int]:
    if isinstance(text, str):
        return tokenizer.encode(text)
    if isinstance(text, bytes | bytearray):
        raise InputError("the text is bytes: decode it first, with text.decode('utf-8')")
    try:
        ids = [index(token) for token in text]
    except TypeError:
        raise InputError(f"the text must be a string or a sequence of token ids, not {type(text).__name__}") from None
    for token in ids:
        if not 0 <= token < config.vocab_size:
            raise InputError(f"token id {token} is outside the vocabulary: ids are 0 to {config.vocab_size - 1}")
    return ids


def check_budget(least: int, most: int) -> None:
    """InputError for a number of tokens that a gap cannot have."""
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise InputError(f"max_tokens must be a whole number from 1 up, not {most!r}")
    if least > most:
        raise InputError(f"min_tokens={least} is more than max_tokens={most}: lower the first")


def _check_beam(request: Request) -> None:
    """InputError or UnsupportedError where mode "beam" has nothing to compare fillings by, or too much to fill."""
    if request.decode.mode != "beam":
        return
    if not request.infilling:
        raise InputError('mode "beam" compares fillings by what stands behind them: give a suffix, or use mode "ar"')
    if len(request.budgets) > 1:
        raise UnsupportedError(
            f'mode "beam" fills one gap, and these are {len(request.budgets)}: use mode "block" or "full"'
        )


def _check_healing(config: ModelConfig, request: Request) -> bool:
    """Whether the last words before the gaps are healed: unless told, where they can be."""
    decode = request.decode
    heal = _check_infilling(config, request) if request.infilling else request.heal
    if heal and decode.mode == "ancestral":
        raise InputError('mode "ancestral" writes all of a gap anew and heals no word: leave out heal')
    if heal and decode.shaping:
        raise InputError(f"with the option {decode.shaping[0]} the last word is not healed: leave out heal")
    return heal is not False and decode.mode != "ancestral" and not decode.shaping


def _check_infilling(config: ModelConfig, request: Request) -> bool | None:
    """Whether this model can infill as asked; returns `heal`, False where the model cannot."""
    if request.decode.autoregressive:
        raise UnsupportedError(
            f'mode "{request.decode.mode}" cannot infill, since it never sees the suffix: use mode "block" or "full"'
        )
    if config.context == "block":
        raise UnsupportedError("a model with block context cannot infill: no block sees what comes after it")
    if config.null_id is not None:
        return request.heal
    if any(least != most for least, most in request.budgets):
        raise UnsupportedError(
            "this model has no <null> to end a gap with: give each gap's length, min_tokens equal to max_tokens, or "
            "with one gap search_length=True"
        )
    if request.heal:
        raise UnsupportedError("this model has no <null>, so healing could not keep the gap's length: use heal=False")
    return False
