"""Bodies of Daguerre's own routes: a request of the library that can be watched and changed, and candidates."""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from daguerre.decoding.generate import OPERATIONS
from daguerre.decoding.options import DecodeOptions
from daguerre.decoding.request import ELSEWHERE
from daguerre.errors import InputError, unknown
from daguerre.server.protocol.common import check_steered, pin_of, token_of
from daguerre.server.protocol.shaping import check_stops

Kind = Literal["generate", "infill", "fill", "edit"]
Span = tuple[int, int]
KINDS: tuple[Kind, ...] = get_args(Kind)
TEXTS = {kind: OPERATIONS[kind].required for kind in KINDS}
"""The texts that each kind of request needs."""
BESIDE = frozenset({"max_tokens", "min_tokens", "timeout", "special_tokens", "files"})
"""Arguments of operations that all kinds of bodies have, or none."""
OWN = {kind: OPERATIONS[kind].names - BESIDE - {*TEXTS[kind]} for kind in KINDS}
"""The arguments that it may have beside those of all."""
NAMES = frozenset(DecodeOptions.__dataclass_fields__) - {"scorer"}


def _wrong(message: str) -> PydanticCustomError:
    return PydanticCustomError("fields", "{message}", {"message": message})


class Strict(BaseModel):
    """A body whose unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")


class RequestBody(Strict):
    """A request of the library: the arguments of `Model.generate`, `infill`, `fill` or `edit`.

    options     fields of `daguerre.Decode`; `pins` are objects with "text" (or token ids), "at" and "gap"
    effort      one word for them: instant, low, medium or high
    timeout     seconds by which the text is finished (anytime)
    priority    lower goes first among the key's own requests
    changeable  its tokens may be pinned and opened while it runs (generate and infill)
    stream      True: the answer is its events; False: its result
    detach      the answer is the id alone, and the request runs whether or not somebody watches it
    drafts      whole: each step has all tokens; changes: those that are new or other than before
    """

    model: str | None = None
    kind: Kind = "generate"
    prompt: str | None = None
    prefix: str | None = None
    suffix: str | None = None
    template: str | None = None
    text: str | None = None
    spans: list[Span] | None = None
    lines: list[Span] | None = None
    pattern: str | None = None
    strength: float | None = None
    mark: str | None = None
    search_length: bool | None = None
    heal: bool | None = None
    draft: str | None = None
    context: Literal["auto", "whole"] | None = None
    max_tokens: int | list[int] | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    effort: Literal["instant", "low", "medium", "high"] | None = None
    timeout: float | None = Field(None, gt=0)
    priority: int = 0
    changeable: bool = False
    stream: bool = True
    detach: bool = False
    drafts: Literal["whole", "changes"] = "whole"

    @model_validator(mode="after")
    def _fits(self) -> RequestBody:
        """The texts of its kind, and no other's."""
        needed, own = TEXTS[self.kind], OWN[self.kind]
        for name in needed:
            if getattr(self, name) is None:
                raise _wrong(f"kind {self.kind!r} needs {name!r}")
        others = {name for names in (*TEXTS.values(), *OWN.values()) for name in names} - {*needed, *own}
        for name in sorted(others):
            if getattr(self, name) is not None:
                raise _wrong(f"{name!r} is not of kind {self.kind!r}: leave it out")
        if self.changeable and self.kind not in ("generate", "infill"):
            raise _wrong("requests of kind 'generate' and 'infill' alone are changeable")
        if self.changeable and (self.heal or self.search_length):
            raise _wrong("a changeable request heals no word and searches no length: leave out the one or the other")
        return self

    def texts(self) -> tuple[str, ...]:
        """The texts, in the order of the library's arguments."""
        return tuple(getattr(self, name) for name in TEXTS[self.kind])

    def own(self) -> dict[str, Any]:
        """The arguments of its kind that are given."""
        return {name: getattr(self, name) for name in OWN[self.kind] if getattr(self, name) is not None}

    def decode(self) -> dict[str, Any]:
        """The options as `Decode` takes them. InputError for one that it does not have."""
        options = dict(self.options)
        for name in options:
            if name not in NAMES:
                raise unknown("option", name, NAMES, ELSEWHERE)
        if options.get("n", 1) != 1:
            raise InputError("a request that is watched has one sample: leave out n")
        check_stops(options.get("stop") or (), "options.stop")
        check_steered(options.get("steer"), options.get("forbid"), "options.")
        if isinstance(options.get("logit_bias"), dict):
            options["logit_bias"] = {token_of(key): bias for key, bias in options["logit_bias"].items()}
        if "pins" in options:
            if not isinstance(options["pins"], list):
                raise InputError('pins must be a list of objects such as {"text": "x", "at": 3}')
            options["pins"] = [pin_of(one, "options.pins") for one in options["pins"]]
        return options


class PinBody(Strict):
    """A text for a position of the gap, which counts new tokens from 0."""

    at: int
    text: str


class ChangeBody(Strict):
    """One change of a running request; intervals are [start, end) of the gap's tokens."""

    pin: PinBody | None = None
    unpin: Span | None = None
    remask: Span | None = None

    @model_validator(mode="after")
    def _one(self) -> ChangeBody:
        """Exactly one."""
        if sum(value is not None for value in (self.pin, self.unpin, self.remask)) != 1:
            raise _wrong("one change at a time: give one of 'pin', 'unpin' and 'remask'")
        return self


class CandidatesBody(Strict):
    """Ask for the most likely tokens of one position: of a request's draft (`id`, after its step number `event`; None:
    the last), or of a `text` in which each "░" is an open position. `position` counts the gap's tokens from 0; in a
    text, all open positions.
    """

    id: str | None = None
    event: int | None = Field(None, ge=0)
    gap: int = Field(0, ge=0)
    model: str | None = None
    text: str | None = None
    position: int = Field(ge=0)
    top: int = Field(10, ge=1, le=100)

    @model_validator(mode="after")
    def _one(self) -> CandidatesBody:
        """A request or a text."""
        if (self.id is None) == (self.text is None):
            raise _wrong("give the 'id' of a request, or a 'text' with open positions")
        return self
