"""What each option of a request may be, whatever the others are; and each argument that calls have beside them.

`options.Decode` reads its fields by OPTIONS, and `plans`, `generate` and `running` read their arguments by CALLS. So
the library, the command line, the engine and the server refuse the same values in the same words.
"""

from __future__ import annotations

from collections.abc import ItemsView, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

from daguerre.arguments import (
    MAYBE,
    NATS,
    NOT_NEGATIVE,
    POSITIVE,
    PROBABILITY,
    SEED,
    SHARE,
    SWITCH,
    TEXT,
    TOKENS,
    WRONG,
    Call,
    ForEach,
    Instance,
    Kind,
    Number,
    OneOf,
    Pairs,
    Several,
    SeveralWords,
    Tokens,
    Whole,
    Words,
    check_fields,
    check_unicode,
)
from daguerre.decoding.context import SHOWING
from daguerre.decoding.modes import MODES
from daguerre.decoding.pins import Pin
from daguerre.decoding.revision import ODDS
from daguerre.decoding.settings import DrafterName, FillEnd, RankedBy, Settings
from daguerre.errors import InputError
from daguerre.models.chat_format.description import Thinks
from daguerre.models.denoiser import CACHE_MODES
from daguerre.models.wrappers.guidance import SCHEDULES
from daguerre.sampling import logits
from daguerre.sampling.policies import base
from daguerre.sampling.policies.kind import PolicyKind
from daguerre.sampling.rules import EndRule

PINS = 'several of daguerre.Pin, such as [Pin("x", at=3)]'
MOST_SAMPLES = 4096
MOST_BEAMS = 4096
MOST_READINGS = 1024
"""The most samples of a request, hypotheses of a search, and readings of a finished span."""


@dataclass(frozen=True, kw_only=True)
class TextsByName(Kind):
    """Names and texts of files; what is read is a tuple of both."""

    words: ClassVar[str] = "a dict of texts by file name, or pairs of a name and a text"

    def read(self, name: str, value: Any) -> Any:
        pairs = value.items() if isinstance(value, Mapping) else value
        if not isinstance(pairs, ItemsView | list | tuple):
            return WRONG
        each = [tuple(pair) if isinstance(pair, tuple | list) else () for pair in pairs]
        if not all(len(pair) == 2 and all(isinstance(text, str) for text in pair) for pair in each):
            return WRONG
        for pair in each:
            check_unicode("".join(pair), name)
        return tuple(each)


@dataclass(frozen=True, kw_only=True)
class Anything(Kind):
    """A value that its owner checks, as it depends on other options."""

    def read(self, name: str, value: Any) -> Any:
        return value


OPTIONS: dict[str, Kind] = {
    **base.KINDS,
    **logits.KINDS,
    "top_p": PROBABILITY,
    "top_k": Whole(low=-1, none=True),
    "mode": OneOf(known=MODES, none=True),
    "block_size": Whole(low=1, none=True),
    "sliding": SWITCH,
    "drafter": OneOf(known=get_args(DrafterName)),
    "start_tokens": Whole(low=1, none=True),
    "num_beams": Whole(low=1, high=MOST_BEAMS),
    "no_repeat_context_lines": SWITCH,
    "fill_end": OneOf(known=get_args(FillEnd)),
    "policy": PolicyKind(),
    "rank_by": OneOf(known=get_args(RankedBy)),
    "greedy_tail": SWITCH,
    "remask": PROBABILITY,
    "revise": Whole(high=MOST_READINGS),
    "revise_threshold": PROBABILITY,
    "revise_reading": OneOf(known=tuple(ODDS)),
    "t_max": POSITIVE,
    "t_min": POSITIVE,
    "max_entropy": NATS,
    "repetition_penalty": POSITIVE,
    "no_repeat_ngram_size": Whole(),
    "min_tokens": Whole(),
    "end_of_text": OneOf(known=get_args(EndRule)),
    "stop": SeveralWords(),
    "stop_loops": MAYBE,
    "n": Whole(low=1, high=MOST_SAMPLES),
    "seed": SEED,
    "guidance": NOT_NEGATIVE,
    "guidance_schedule": OneOf(known=tuple(SCHEDULES)),
    "negative": Words(none=True),
    "scorer": Call(none=True),
    "cache": OneOf(known=CACHE_MODES),
    "schema": Anything(),
    "regex": Words(none=True),
    "choices": Anything(),
    "tools": Anything(),
    "tool_choice": TEXT,
    "parallel_calls": SWITCH,
    "chat_format": OneOf(known=get_args(Thinks), none=True),
    "keywords": SeveralWords(),
    "forbidden": SeveralWords(),
    "ending": Words(empty=False, none=True),
    "pins": Several(one=Instance(of=(Pin,), what=PINS), what=PINS),
    "lenient": SWITCH,
    "strict": SWITCH,
    "explain": SWITCH,
    "steer": Anything(),
    "forbid": SeveralWords(),
    "forbid_exactly": SWITCH,
}
"""The kinds of the fields of `Decode`. Those of constraints and of steering are read by `options`."""

CALLS: dict[str, Kind] = {
    "prompt": TOKENS,
    "prefix": TOKENS,
    "suffix": Tokens(none=True),
    "template": TEXT,
    "text": TEXT,
    "max_tokens": Whole(low=1, none=True),
    "heal": MAYBE,
    "timeout": Number(low=0, above=True, infinite=True, none=True, what="a number of seconds"),
    "on_step": Call(none=True),
    "draft": Words(none=True),
    "context": OneOf(known=SHOWING),
    "files": TextsByName(none=True),
    "special_tokens": MAYBE,
    "search_length": MAYBE,
    "mark": Words(empty=False),
    "spans": Pairs(none=True),
    "lines": Pairs(none=True),
    "pattern": Words(none=True),
    "strength": SHARE,
    "changeable": SWITCH,
}
"""The kinds of the arguments of requests with one gap."""
REQUIRED = CALLS | {"max_tokens": Whole(low=1)}
"""Where max_tokens has a default that is no None."""
EDITS = CALLS | {
    "max_tokens": ForEach(one=Whole(low=1), none=True),
    "min_tokens": ForEach(one=Whole(), none=True),
}
"""The kinds of the arguments of edits, which have several gaps."""


def check_options(settings: Settings) -> None:
    """Read every option by its kind. InputError for one that is of another, or out of its range."""
    check_fields(settings, OPTIONS)
    if settings.t_min > settings.t_max:
        raise InputError(f"t_max={settings.t_max} and t_min={settings.t_min}: t_max must be the higher")
