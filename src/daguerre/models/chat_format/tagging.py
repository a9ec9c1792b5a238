"""How a template writes arguments one by one, found by what stands around their names and values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from daguerre.models.chat_format.description import Arguments, BareObject, NestedTags, Tag, Tags
from daguerre.models.chat_format.marks import common_end, common_start
from daguerre.models.chat_format.probe import Probe, renders
from daguerre.models.chat_format.sentinels import KEYS, call

SAMPLES: dict[str, Any] = {
    "integer": 73501,
    "number": 73.25,
    "boolean": True,
    "null": None,
    "array": [73501, "qzin", None],
    "object": {"qzin": 73501, "qzon": True},
}


@dataclass(frozen=True)
class Around:
    """Literals around two arguments: before the first name, to its value, to the next name, behind the last value."""

    lead: str
    between: str
    middle: str
    tail: str


def around(region: str, lead: str, tail: str) -> Around | None:
    """The literals of a call with two arguments, whose region is from the first name to the last value."""
    first, second = (f"qzval0{key[-1]}" for key in KEYS)
    places = [region.find(what) for what in (KEYS[0], first, KEYS[1], second)]
    if min(places) < 0 or places != sorted(places):
        return None
    ends = [place + len(what) for place, what in zip(places, (KEYS[0], first, KEYS[1], second), strict=True)]
    return Around(lead, region[ends[0] : places[1]], region[ends[1] : places[2]], tail)


def arguments_of(given: Around, probe: Probe) -> tuple[Arguments, str, str] | None:
    """(how arguments are written, the literals before and behind all of them)."""
    return _nested(given) or _bare(given) or _tags(given, probe)


def _nested(given: Around) -> tuple[Arguments, str, str] | None:
    mark, found, rest = given.middle.partition(f"</{KEYS[0]}>")
    if not found or given.between != ">" or rest != f"{mark}<" or not given.lead.endswith(rest):
        return None
    return NestedTags(mark), given.lead.removesuffix(rest), given.tail


def _bare(given: Around) -> tuple[Arguments, str, str] | None:
    quote = given.between[1:]
    fits = given.between[:1] == ":" and given.middle == f"{quote}," and given.lead.endswith("{")
    if not quote or not fits or not given.tail.startswith(quote + "}"):
        return None
    return BareObject(quote), given.lead[:-1], given.tail[len(quote) + 1 :]


def _tags(given: Around, probe: Probe) -> tuple[Arguments, str, str] | None:
    before = common_end([given.lead, given.middle])
    rest = given.middle[: len(given.middle) - len(before)]
    after = common_start([rest, given.tail])
    whole = renders(probe, {"content": "", "tool_calls": [call(0, {KEYS[0]: "qzval0a"})]})
    if whole is None or given.between == "" or KEYS[0] not in whole:
        return None
    tail = whole.split("qzval0a", 1)[-1].removeprefix(after)
    tags, literals = {"string": Tag(given.between, after)}, set[str]()
    for kind, value in SAMPLES.items():
        found = _tag(probe, value, tail)
        if found is not None:
            tags[kind] = found[0]
            literals |= found[1]
    if "integer" not in tags or "object" not in tags:
        return None
    lead = given.lead[: len(given.lead) - len(before)]
    arguments = Tags(before, tags, rest[len(after) :], frozenset(literals or {"json"}), _wrapping(probe, tags, tail))
    return arguments, lead, given.tail[len(after) :]


def _wrapping(probe: Probe, tags: dict[str, Tag], tail: str) -> tuple[str, str] | None:
    """What is written around a string with characters that mean something in a mark."""
    odd = "qz<&>\nqz"
    text = renders(probe, {"content": "", "tool_calls": [call(0, {KEYS[0]: odd})]}) or ""
    start, after = f"{KEYS[0]}{tags['string'].between}", tags["string"].after + tail
    if odd not in text or start not in text or not text.endswith(after):
        return None
    around = text[text.index(start) + len(start) : len(text) - len(after)].split(odd)
    return (around[0], around[1]) if len(around) == 2 and around[0].strip() and around[1].strip() else None


def _tag(probe: Probe, value: Any, tail: str) -> tuple[Tag, set[str]] | None:
    """The tag around a value, and the literals that the value is one of."""
    text = renders(probe, {"content": "", "tool_calls": [call(0, {KEYS[0]: value})]})
    if text is None or KEYS[0] not in text or not text.endswith(tail):
        return None
    region = text[text.index(KEYS[0]) + len(KEYS[0]) : len(text) - len(tail)]
    for form, kinds in forms(value).items():
        place = region.rfind(form)
        if place >= 0:
            return Tag(region[:place], region[place + len(form) :]), kinds
    return None


def forms(value: Any) -> dict[str, set[str]]:
    """The texts of a value, and which literals each is one of."""
    compact, wide = json.dumps(value, separators=(",", ":")), json.dumps(value)
    out: dict[str, set[str]] = {}
    for text, kind in ((wide, "json"), (compact, "json"), (repr(value), "python")):
        out.setdefault(text, set()).add(kind)
    same = {text for text, kinds in out.items() if len(kinds) > 1}
    return {text: set() if text in same else kinds for text, kinds in out.items()}
