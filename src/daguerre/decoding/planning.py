"""From a request to its plan: the canvas, its gaps and its constraint, before any forward."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from daguerre.canvas import Canvas
from daguerre.decoding.healing import Healing, Vocabulary, num_to_take_back
from daguerre.decoding.pins import pinned
from daguerre.decoding.plan import Gap, Plan, filler_of
from daguerre.decoding.request import Decode, Text, TokenRequest, check_request, encoded, is_infilling, read_draft
from daguerre.errors import ContextError, InputError, UnsupportedError, shown
from daguerre.models.core.config import ModelConfig
from daguerre.models.tokenizer import Tokenizer
from daguerre.models.wrappers.guidance import unconditional_prefix
from daguerre.sampling.constrained import Constraint, make_constraint
from daguerre.sampling.constraints.wording import Wording
from daguerre.sampling.random import DRAFT, Counter


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
    """`plan_request` for one gap between two texts."""
    segments = encoded((prefix, "" if suffix is None else suffix), tokenizer, config)
    budgets = [(decode.min_tokens, max_tokens)]
    decode = decode.resolved(config, is_infilling(segments, budgets))
    return plan_request(config, tokenizer, TokenRequest(decode, segments, budgets, heal, draft))


def plan_request(config: ModelConfig, tokenizer: Tokenizer, request: TokenRequest) -> Plan:
    """Check a request and lay it out. InputError or UnsupportedError, in one line."""
    decode = request.decode
    heals = check_request(config, request)
    decode.span_size(config, sum(most for _, most in request.budgets), request.infilling)
    mode = decode.mode_entry
    read = replace(request, segments=mode.arrange(config, tokenizer, request.segments, request.files))
    canvas, gaps = _lay_out(config, tokenizer, read, heals)
    mode.check_canvas(decode, config, canvas, request.budgets)
    if decode.pins:
        canvas = pinned(canvas, decode.pins, tokenizer)
    texts = [tokenizer.decode_bytes(segment) for segment in request.segments]
    return Plan(
        config,
        decode,
        mode,
        Vocabulary.make(tokenizer),
        canvas,
        gaps,
        sum(map(len, read.segments)),
        read.infilling,
        tuple(request.segments),
        around=request.around,
        constraint=_constrain(config, tokenizer, decode, canvas, gaps, texts) if decode.constrained else None,
        unconditional=None if decode.guidance == 1 else _unconditional_prefix(config, tokenizer, decode, canvas),
        draft=read_draft(request, tokenizer),
        context=request.context,
        shown=_shown(tokenizer, decode),
    )


def _shown(tokenizer: Tokenizer, decode: Decode) -> Mapping[int, bytes] | None:
    """The texts of special tokens that are written out. InputError for a model without a format."""
    if decode.chat_format is None:
        return None
    from daguerre.models.chat_format.tokens import format_of  # which brings Jinja

    found = format_of(tokenizer)
    if found is None:
        raise InputError("chat_format needs a model whose chat template writes calls: leave it out")
    return found.shown


def _lay_out(
    config: ModelConfig, tokenizer: Tokenizer, request: TokenRequest, heals: bool
) -> tuple[Canvas, tuple[Gap, ...]]:
    """The canvas. A gap is as long as its budget and the tokens that healing took back, and one longer where there is
    room.
    """
    segments, total_budget = request.segments, sum(most for _, most in request.budgets)
    room = config.max_positions - len(config.first) - sum(map(len, segments)) - total_budget
    if room < 0:
        raise ContextError(
            f"the text and max_tokens={total_budget} need {config.max_positions - room} positions and the model has "
            f"{config.max_positions}: shorten the text or ask for fewer tokens"
        )
    if config.shift and not (config.first or segments[0]):
        raise InputError("this model predicts a token from the one before it: begin with a text of a token or more")
    vocabulary = Vocabulary.make(tokenizer)
    filler = filler_of(config, request.decode.mode_entry) if request.infilling else None
    kept: list[list[int]] = []
    sizes: list[int] = []
    gaps: list[Gap] = []
    start = 0
    for (fewest, most), segment in zip(request.budgets, segments, strict=False):
        needed = int(config.shift and not (kept or config.first))  # the first token of all is predicted by none
        taken = num_to_take_back(segment[needed:], vocabulary) if heals else 0
        spare = taken + int(taken > 0 and room > 0)
        room -= spare - taken
        kept.append([*([] if kept else config.first), *segment[: len(segment) - taken]])
        sizes.append(spare + most)
        start += len(kept[-1])
        text = tokenizer.decode_bytes(segment[len(segment) - taken :])
        gaps.append(Gap(Healing(vocabulary, start, text, spare, limit=most, filler=filler), most, fewest))
        start += sizes[-1]
    return Canvas.lay_out([*kept, segments[-1]], sizes, config.placeholder), tuple(gaps)


def _unconditional_prefix(config: ModelConfig, tokenizer: Tokenizer, decode: Decode, canvas: Canvas) -> np.ndarray:
    """The tokens that guidance compares the text before the first gap with. InputError where both are equal, or there
    is no room.
    """
    first = canvas.gaps[0][0]
    prefix = unconditional_prefix(config, first, tokenizer.encode(decode.negative or ""))
    if np.array_equal(prefix, canvas.tokens[:first]):
        raise InputError(
            "guidance has nothing to compare: the text before the first gap is empty, once its last word is taken back,"
            " or is the negative one; give another text, or heal=False"
        )
    if len(canvas) - first + len(prefix) > config.max_positions:
        raise InputError(
            f"the negative text has {len(prefix) - len(config.first)} tokens and leaves no room for the rest: shorten "
            "it, or lower max_tokens"
        )
    return prefix


def _constrain(
    config: ModelConfig,
    tokenizer: Tokenizer,
    decode: Decode,
    canvas: Canvas,
    gaps: Sequence[Gap],
    texts: Sequence[bytes],
) -> Constraint:
    """The request's constraint, checked: every gap has room for a text of it. `texts` are those around the gaps."""
    _check_room(decode, max(gap.max_tokens for gap in gaps), Vocabulary.make(tokenizer))
    option, value = decode.language
    filler = config.eos_id if canvas.continues else config.null_id
    total = sum(gap.max_tokens for gap in gaps)
    floors = {run: gap.start + gap.min_tokens for run, gap in zip(canvas.gaps, gaps, strict=True)}
    wordings = {run: _wording(decode, tokenizer, canvas, number, texts) for number, run in enumerate(canvas.gaps)}
    how = (wordings, tokenizer, filler, floors, decode.logit_bias, decode.strict)
    constraint = make_constraint(option, value, decode.lenient, *how)
    span_size = decode.span_size(config, total, not canvas.continues)
    constraint.check(canvas, min(span_size, max(end - start for start, end in canvas.gaps)))
    return constraint


def _check_room(decode: Decode, most: int, vocabulary: Vocabulary) -> None:
    """InputError for a string that no gap has room for, before an automaton of all its bytes is made."""
    room = most * max(map(len, vocabulary.of))
    for name, text in (*(("keywords", text) for text in decode.keywords), ("ending", decode.ending or "")):
        if len(text.encode()) > room:
            raise InputError(
                f"{name}: {shown(text)} has {len(text.encode()):,} bytes and max_tokens={most} have at most {room:,}: "
                "raise max_tokens"
            )


def _wording(decode: Decode, tokenizer: Tokenizer, canvas: Canvas, number: int, texts: Sequence[bytes]) -> Wording:
    """The strings that a gap's text must and must not have."""
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
    """The plan with each gap's old text in place, of which a share `strength` is open again: positions that the
    request's seed draws, at least one in all.
    """
    if not plan.mode.keeps_drafts:
        instead = "" if plan.config.mask_id is None else ', or use mode "block"'
        raise UnsupportedError(f'mode "{plan.mode.name}" redraws all of a gap: leave out strength{instead}')
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
