"""From a request to its plan: texts and options laid out as a canvas, its rules and its slots, before any forward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from daguerre.canvas import Canvas
from daguerre.errors import InputError, UnsupportedError
from daguerre.models.config import ModelConfig
from daguerre.models.tokenizer import Tokenizer
from daguerre.plan import Plan, Slot
from daguerre.request import Request, Text, check_request, encoded, read_draft
from daguerre.sampling.constrained import Constraint, make_constraint
from daguerre.sampling.constraints.wording import Wording
from daguerre.sampling.decode import Decode
from daguerre.sampling.guidance import hidden_prefix
from daguerre.sampling.healing import Healing, TokenBytes, num_to_take_back
from daguerre.sampling.pins import pinned
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
    """`lay_out` of one gap between two texts."""
    segments = encoded(prefix, suffix, tokenizer, config)
    return lay_out(config, tokenizer, Request(decode, segments, [(decode.min_tokens, max_tokens)], heal, draft))


def lay_out(config: ModelConfig, tokenizer: Tokenizer, request: Request) -> Plan:
    """Check a request and lay it out. InputError or UnsupportedError, in one line."""
    decode, segments, budgets = request.decode, request.segments, request.budgets
    heals = check_request(config, request)
    infilling, total_budget = request.infilling, sum(most for _, most in budgets)
    decode.span_size(config, total_budget, infilling)
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
        draft=read_draft(request, tokenizer),
    )


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
