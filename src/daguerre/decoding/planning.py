"""What some plans need beside a canvas: a constraint, the text that guidance compares with, the texts of special
tokens, and old tokens that are kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from daguerre.canvas import Canvas
from daguerre.decoding.healing import Vocabulary
from daguerre.decoding.plan import Gap, Plan
from daguerre.decoding.request import Decode
from daguerre.errors import InputError, UnsupportedError, shown
from daguerre.models.core.config import ModelConfig
from daguerre.models.tokenizer import Tokenizer
from daguerre.sampling.random import DRAFT, Counter

if TYPE_CHECKING:
    from daguerre.sampling.constrained import Constraint
    from daguerre.sampling.constraints.wording import Wording


def special_texts(tokenizer: Tokenizer) -> Mapping[int, bytes]:
    """The texts of special tokens that are written out. InputError for a model without a format."""
    from daguerre.models.chat_format.tokens import format_of  # which brings Jinja

    found = format_of(tokenizer)
    if found is None:
        raise InputError("chat_format needs a model whose chat template writes calls: leave it out")
    return found.shown


def unconditional_tokens(config: ModelConfig, tokenizer: Tokenizer, decode: Decode, canvas: Canvas) -> np.ndarray:
    """The tokens that guidance compares the text before the first gap with. InputError where both are equal, or there
    is no room.
    """
    from daguerre.models.wrappers.guidance import unconditional_prefix

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


def constrain(
    config: ModelConfig,
    tokenizer: Tokenizer,
    decode: Decode,
    canvas: Canvas,
    gaps: Sequence[Gap],
    segments: Sequence[Sequence[int]],
) -> Constraint:
    """The request's constraint, checked: every gap has room for a text of it. `segments`: tokens around the gaps."""
    from daguerre.sampling.constrained import make_constraint  # which brings all that compiles one

    texts = [tokenizer.decode_bytes(segment) for segment in segments]
    _check_room(decode, max(gap.max_tokens for gap in gaps), Vocabulary.make(tokenizer))
    option, value = decode.language
    filler = config.eos_id if canvas.continues else config.null_id
    total = sum(gap.max_tokens for gap in gaps)
    floors = {run: gap.start + gap.min_tokens for run, gap in zip(canvas.gaps, gaps, strict=True)}
    wordings = {run: _wording(decode, tokenizer, canvas, number, texts) for number, run in enumerate(canvas.gaps)}
    how = (wordings, tokenizer, filler, floors, decode.logit_bias, decode.strict)
    constraint = make_constraint(option, value, decode.lenient, *how)
    span_size = decode.mode_entry.span_size(decode, config, total, not canvas.continues)
    constraint.check(canvas, min(span_size, max(end - start for start, end in canvas.gaps)))
    return constraint


def _check_room(decode: Decode, most: int, vocabulary: Vocabulary) -> None:
    """InputError for a string that no gap has room for, before an automaton of all its bytes is made."""
    room = most * vocabulary.longest
    for name, text in (*(("keywords", text) for text in decode.keywords), ("ending", decode.ending or "")):
        if len(text.encode()) > room:
            raise InputError(
                f"{name}: {shown(text)} has {len(text.encode()):,} bytes and max_tokens={most} have at most {room:,}: "
                "raise max_tokens"
            )


def _wording(decode: Decode, tokenizer: Tokenizer, canvas: Canvas, number: int, texts: Sequence[bytes]) -> Wording:
    """The strings that a gap's text must and must not have."""
    from daguerre.sampling.constraints.wording import Wording

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
