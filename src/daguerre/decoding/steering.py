"""Steering: a program of operations on concepts, which is data, and the numbers that it comes to in a forward.

A concept has a weight w in a hidden state h (`models.core.concept_heads`), and its vector K_c times that weight is its
part of h. An operation changes weights, and with them h; all else of h stays as it is, the residual included:

    add       w -> w + s / peak_c   a strength of s logits: the logit of c's top token rises by s above the mean's; s
                                    may be below 0
    suppress  w -> (1 - r) w        a share r of the weight, 0 to 1, goes
    set       w -> v                the weight is v; 1 is a concept that is fully on
    forbid    w -> 0                and the logits of the tokens that c promotes fall: by b relu(P_c) / peak_c, so its
                                    top token loses b logits and no token gains, as the tokens that point away from K_c
                                    would where b K_c were subtracted from h

P_c is how far K_c raises the logit of each token above the mean of those that can be predicted
(`Heads.promoted`), and peak_c the largest of these. (A number that is added to all logits changes no distribution,
and training leaves it open, so W K_c alone would be no measure.) Operations apply in their order, each to the
weights that those before it left: a `set` overrides an earlier `add` of the same concept, and an `add` after a
`suppress` is not suppressed. So the weights after a program are an affine function of those before it, w -> shift +
(1 + scale) w, which is what a backend computes (`models.forward.Edit`).

A schedule's factor f at a canvas makes an operation partial: s becomes f s, r becomes f r, b becomes f b, and `set`
and `forbid` move the weight by a share f of the way. Everything is a function of the canvas and the position alone, so
speculation, caches and batches do not change what is steered.

Letters: O operations, J concepts, A positions, D width, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from daguerre.canvas import Canvas
from daguerre.errors import DataError, InputError, shown, unknown
from daguerre.kinds import Instance, Number, OneOf, Several, Whole, check_unicode
from daguerre.models.catalog import Catalog
from daguerre.models.heads import Heads
from daguerre.models.json_files import parse_json

Kind = Literal["add", "suppress", "set", "forbid"]
ScheduleName = Literal["constant", "until", "fade"]
Where = int | tuple[int, int] | None
VERSION = 1
STRENGTHS: dict[str, float | None] = {"add": None, "suppress": 1.0, "set": None, "forbid": 10.0}
"""The strength of an operation that names none; None: it must name one."""
MOST_NAMED = 1000
"""No program names more concepts, counted once for each operation on them: all take time in every forward."""
MOST_STRENGTH = 1e6
"""No strength is larger: sums in float32 keep their meaning."""
Amounts = tuple[np.ndarray, np.ndarray, np.ndarray]
"""shift, scale and ban, float32 (A, J) each."""
LEAST_PEAK = 1e-6
"""Logits below which a vector promotes nothing, such as that of a concept that was never trained."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation of a program. InputError for values that are none.

    kind      add, suppress, set or forbid
    concepts  one or several, by names or numbers (`daguerre.models.catalog.Catalog.number`); each is changed alike
    strength  add: logits, of either sign; suppress: a share, 0 to 1 (default 1); set: a weight; forbid: logits above 0
              (default 10)
    span      where. None: everywhere; a number: the gap of that number, from 0; two numbers [start, end): tokens of the
              gaps, counted from 0 through all of them, what healing took back included. Modes "beam" and "expand" take
              no span
    schedule  when. constant: always; until: as long as fewer than `tokens` tokens of the gaps are committed; fade: the
              factor falls from 1 to 0 in proportion to the committed share of the gaps
    tokens    of schedule "until"
    """

    kind: Kind
    concepts: tuple[str | int, ...]
    strength: float | None = None
    span: Where = None
    schedule: ScheduleName = "constant"
    tokens: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in STRENGTHS:
            raise unknown("kind of steering", self.kind, STRENGTHS)
        OneOf(known=get_args(ScheduleName), what="schedule of steering")("schedule", self.schedule)
        object.__setattr__(self, "concepts", _several(self.concepts))
        object.__setattr__(self, "strength", self._checked_strength())
        object.__setattr__(self, "span", _checked_span(self.span))
        if (self.schedule == "until") != (self.tokens is not None):
            raise InputError('tokens belong to schedule="until", which needs them: give both or neither')
        object.__setattr__(self, "tokens", Whole(low=1, none=True)("tokens", self.tokens))

    def _checked_strength(self) -> float:
        value = STRENGTHS[self.kind] if self.strength is None else self.strength
        if value is None:
            what = "in logits, such as 4.0" if self.kind == "add" else "the weight, such as 1.0"
            raise InputError(f"{self.kind} needs a strength: give one {what}")
        value = Number(low=-MOST_STRENGTH, high=MOST_STRENGTH, what="a finite number")(
            f"the strength of {self.kind}", value
        )
        if self.kind == "suppress" and not 0 <= value <= 1:
            raise InputError(f"the strength of suppress is a share, 0 to 1, not {value}: use add to take more")
        if self.kind == "forbid" and not value > 0:
            raise InputError(f"the strength of forbid is in logits, above 0, not {value}")
        return float(value)

    def to_dict(self) -> dict[str, Any]:
        """All fields but those that are not given."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


OPERATIONS = Several(one=Instance(of=(Operation,), what="a list of Operation"), what="a list of Operation")


@dataclass(frozen=True)
class Steering:
    """A program: operations, in order, which name at most MOST_NAMED concepts. InputError for more, and where one adds
    or sets what another forbids at the same place.
    """

    operations: tuple[Operation, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "operations", tuple(OPERATIONS("operations", self.operations)))
        if not all(isinstance(one, Operation) for one in self.operations):
            raise InputError("a steering program is a list of operations: see daguerre.decoding.steering.Operation")
        num = sum(len(one.concepts) for one in self.operations)
        if num > MOST_NAMED:
            raise InputError(
                f"the operations of a steering program name at most {MOST_NAMED:,} concepts in all, not {num:,}: leave "
                "some out"
            )
        _check_conflicts(self.operations)

    @classmethod
    def of(cls, given: object) -> Steering:
        """A program from one, or from a list of objects with the fields of `Operation`, such as JSON has. InputError
        for anything else.
        """
        if isinstance(given, Steering):
            return given
        if isinstance(given, Mapping | str | bytes) or not isinstance(given, Sequence):
            raise InputError(
                f"steer must be a list of operations, such as daguerre.decoding.steering has: {shown(given)}"
            )
        return cls(tuple(_operation(one) for one in given))

    def __add__(self, other: Steering) -> Steering:
        """This program, and after it another one."""
        return Steering(self.operations + other.operations)

    def __bool__(self) -> bool:
        return bool(self.operations)

    @property
    def steady(self) -> bool:
        """Whether no operation depends on what is committed."""
        return all(one.schedule == "constant" for one in self.operations)

    @property
    def everywhere(self) -> bool:
        """Whether no operation has a span."""
        return all(one.span is None for one in self.operations)

    def check_spans(self, canvas: Canvas, searched: bool = False) -> None:
        """InputError for an operation whose span is behind the last gap, where it would do nothing. searched: the
        length of the only gap was searched, so no number of tokens is wrong.
        """
        gaps, tokens = len(canvas.gaps), int(canvas.in_gap.sum())
        for one in self.operations:
            if isinstance(one.span, int) and one.span >= gaps:
                raise InputError(
                    f"steer: there is no gap {one.span}, since the gaps are 0 to {gaps - 1}: change the span"
                )
            if isinstance(one.span, tuple) and one.span[0] >= tokens and not searched:
                raise InputError(
                    f"steer: the span [{one.span[0]}, {one.span[1]}) begins behind the gaps, which have {tokens} "
                    "tokens: change it, or raise max_tokens"
                )

    def resolved(self, catalog: Catalog) -> Steering:
        """The program with concepts by their numbers, not their names. InputError for an unknown concept."""
        numbered = [
            replace(one, concepts=tuple(catalog.number(concept) for concept in one.concepts)) for one in self.operations
        ]
        return Steering(tuple(numbered))

    def to_json(self) -> str:
        """Canonical JSON: equal programs have equal texts; `from_json` reads them."""
        value = {"version": VERSION, "operations": [one.to_dict() for one in self.operations]}
        return json.dumps(value, sort_keys=True, allow_nan=False, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Steering:
        """The program of a text: of `to_json`, or a plain list of operations. DataError for what is no JSON of a
        version that is read, InputError for a wrong operation.
        """
        check_unicode(text, "the text of a steering program")
        if text.lstrip().startswith("["):
            text = f'{{"version": {VERSION}, "operations": {text}}}'
        value = parse_json(text, "the steering program", DataError)
        if value.get("version") != VERSION:
            said = "no version" if "version" not in value else f"version {value['version']!r}"
            raise DataError(
                f'this steering program has {said} and {VERSION} is read: give it "version": {VERSION}, or give '
                "a plain list of operations"
            )
        strange = sorted(value.keys() - {"version", "operations"})
        if strange:
            raise DataError(f"a steering program has no key {strange[0]!r}: leave it out")
        return cls.of(value.get("operations"))


def add(concept: str | int, strength: float, **more: Any) -> Steering:
    """A program that adds a concept, in logits of its top token."""
    return Steering((Operation(kind="add", concepts=(concept,), strength=strength, **more),))


def forbid(*concepts: str | int, strength: float = 10.0) -> Steering:
    """A program that forbids concepts everywhere."""
    return Steering((Operation(kind="forbid", concepts=concepts, strength=strength),))


def _several(given: object) -> tuple[str | int, ...]:
    several = (given,) if isinstance(given, str | int) else given
    if not isinstance(several, Sequence) or not several or not all(type(one) in (str, int) for one in several):
        raise InputError(f"concepts must be names or numbers of one concept or more, not {shown(given)}")
    return tuple(dict.fromkeys(several))


def _checked_span(span: object) -> Where:
    if span is None or (type(span) is int and span >= 0):
        return span
    if isinstance(span, Sequence) and not isinstance(span, str) and [type(edge) for edge in span] == [int, int]:
        start, end = span
        if 0 <= start < end:
            return start, end
    raise InputError(f"a span is the number of a gap, or two numbers [start, end), from 0, not {shown(span)}")


def _overlap(one: Where, other: Where) -> bool:
    """Whether two spans may share a place; a gap and a run of tokens may."""
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    if isinstance(one, tuple) and isinstance(other, tuple):
        return max(one[0], other[0]) < min(one[1], other[1])
    return True


def _check_conflicts(operations: Sequence[Operation]) -> None:
    """InputError where one operation forbids a concept and another adds or sets it at the same place."""
    forbidden, written = dict[str | int, dict[Where, Kind]](), dict[str | int, dict[Where, Kind]]()
    for one in operations:
        if one.kind == "suppress":
            continue
        alike, against = (forbidden, written) if one.kind == "forbid" else (written, forbidden)
        for concept in one.concepts:
            for span, kind in against.get(concept, {}).items():
                if _overlap(one.span, span):
                    other = kind if one.kind == "forbid" else one.kind
                    raise InputError(
                        f"the steering program forbids {concept!r} and {other}s it at the same place: leave out one of "
                        "the two"
                    )
            alike.setdefault(concept, {})[one.span] = one.kind


def _operation(given: object) -> Operation:
    if isinstance(given, Operation):
        return given
    if not isinstance(given, Mapping):
        raise InputError(f"an operation of steering is an object such as {{'kind': 'add', ...}}, not {shown(given)}")
    names = [one.name for one in fields(Operation)]
    for name in given:
        if name not in names:
            raise unknown("field of a steering operation", name, names)
    for name in ("kind", "concepts"):
        if name not in given:
            raise InputError(
                f"an operation of steering needs {name!r}: it has {', '.join(map(str, given)) or 'nothing'}"
            )
    return Operation(**given)


@dataclass(frozen=True, eq=False)
class ProgramControls:
    """What a program comes to in a model: the `Controls` of `models.wrappers.steering`.

    program   with numbers for concepts
    concepts  int32 (J,), those of the program, ascending
    write     float32 (J, D), their vectors
    mask      float32 (J, V): what each bans at a strength of 1; None where nothing is forbidden
    peaks     float64 (J,): by how much each concept's top token rises above the mean token at a weight of 1
    """

    program: Steering
    concepts: np.ndarray
    write: np.ndarray
    mask: np.ndarray | None
    peaks: np.ndarray
    _columns: tuple[np.ndarray, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        columns = tuple(np.searchsorted(self.concepts, one.concepts) for one in self.program.operations)
        object.__setattr__(self, "_columns", columns)

    @property
    def steady(self) -> bool:
        """Whether the amounts at a position are the same whatever is committed."""
        return self.program.steady

    @cached_property
    def _everywhere(self) -> Amounts | None:
        """The amounts of any position, float32 (1, J), where they are the same at all of them."""
        if not (self.steady and self.program.everywhere):
            return None
        return self._at(Canvas(np.zeros(1), np.zeros(1), ()), np.zeros(1, dtype=np.int64))

    def at(self, canvas: Canvas, positions: np.ndarray) -> Amounts:
        """shift, scale and ban, float32 (A, J) each, at the positions, int64 (A,), whose tokens are predicted from a
        canvas.
        """
        if self._everywhere is None:
            return self._at(canvas, positions)
        shift, scale, ban = (amount.repeat(len(positions), axis=0) for amount in self._everywhere)
        return shift, scale, ban

    def _at(self, canvas: Canvas, positions: np.ndarray) -> Amounts:
        shape = len(positions), len(self.concepts)
        shift, kept, ban = np.zeros(shape), np.ones(shape), np.zeros(shape)
        progress = _Progress(canvas, positions)
        for one, columns in zip(self.program.operations, self._columns, strict=True):
            assert one.strength is not None
            factor = progress.factor(one)[:, None]
            if one.kind == "add":
                shift[:, columns] += factor * one.strength / self.peaks[columns]
                continue
            share = factor * (one.strength if one.kind == "suppress" else 1.0)
            shift[:, columns] *= 1 - share
            kept[:, columns] *= 1 - share
            if one.kind == "set":
                shift[:, columns] += factor * one.strength
            elif one.kind == "forbid":
                ban[:, columns] = np.maximum(ban[:, columns], factor * one.strength)
        return shift.astype(np.float32), (kept - 1).astype(np.float32), ban.astype(np.float32)


class _Progress:
    """Where positions (A,) are in the gaps of a canvas, and how much of the gaps is committed."""

    def __init__(self, canvas: Canvas, positions: np.ndarray) -> None:
        self._canvas, self._positions = canvas, positions

    def factor(self, one: Operation) -> np.ndarray:
        """By how much an operation applies at each position, float64 (A,), 0 to 1."""
        return self._inside(one.span) * self._by_schedule(one)

    def _by_schedule(self, one: Operation) -> float:
        if one.schedule == "constant":
            return 1.0
        if one.schedule == "until":
            assert one.tokens is not None
            return float(self._num_committed < one.tokens)
        return 1 - self._num_committed / max(1, self._num)

    def _inside(self, span: Where) -> np.ndarray:
        if span is None:
            return np.ones(len(self._positions))
        gaps = self._canvas.gaps
        if isinstance(span, int):
            start, end = gaps[span] if span < len(gaps) else (0, 0)
            return ((self._positions >= start) & (self._positions < end)).astype(np.float64)
        inside = np.append(self._canvas.in_gap, False)  # what lies behind the end is in no gap
        place, at = np.cumsum(inside) - 1, np.minimum(self._positions, len(inside) - 1)
        return (inside[at] & (place[at] >= span[0]) & (place[at] < span[1])).astype(np.float64)

    @cached_property
    def _num(self) -> int:
        return sum(end - start for start, end in self._canvas.gaps)

    @cached_property
    def _num_committed(self) -> int:
        return self._num - int(self._canvas.open.sum())


def controls(program: Steering, heads: Heads, catalog: Catalog) -> ProgramControls:
    """What a program comes to in a model with concept heads. InputError for a concept that it does not have, and for
    one whose vector promotes no token, so that no strength in logits means anything.
    """
    numbered = program.resolved(catalog)
    concepts = np.unique([number for one in numbered.operations for number in one.concepts]).astype(np.int32)
    vectors = heads.vectors(concepts)
    promoted = heads.promoted(vectors)
    peaks = promoted.max(axis=-1, initial=-np.inf).astype(np.float64)
    in_logits = {number for one in numbered.operations if one.kind in ("add", "forbid") for number in one.concepts}
    for number, peak in zip(concepts.tolist(), peaks.tolist(), strict=True):
        if number in in_logits and not peak > LEAST_PEAK:
            raise InputError(
                f"the concept {catalog.name(number)!r} promotes no token of this model, so it cannot be steered in "
                "logits: leave it out"
            )
    forbidden = {number for one in numbered.operations if one.kind == "forbid" for number in one.concepts}
    mask = None
    if forbidden:
        relative = promoted.clip(0) / np.maximum(peaks, LEAST_PEAK)[:, None]
        mask = (relative * np.isin(concepts, list(forbidden))[:, None]).astype(np.float32)
    return ProgramControls(numbered, concepts, vectors, mask, np.maximum(peaks, LEAST_PEAK))
