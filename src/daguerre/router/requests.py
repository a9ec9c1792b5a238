"""What the router decides by, read from a request: its body and headers, never its text.

Wishes stand in the headers `x-slo-ms` and `x-route-backend`, `x-route-step`, `x-route-tags`, `x-route-max-cost`,
`x-route-cache`, `x-route-explore`, `x-route-test`, or under the same names in the body's `metadata`; a header goes
before metadata. A `model` that is the name of a backend is a wish for it; any other name stands for all backends.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from daguerre.errors import InputError, shown, unknown
from daguerre.router.choose import Features
from daguerre.router.config import STEPS, Config
from daguerre.router.reading import ParsedRequest, read, sized

PER_CHARACTER = 0.25
PER_EXTRA_BYTE = 0.32
"""Tokens for each character, and for each byte that UTF-8 needs beyond one a character: a rule of thumb for large
vocabularies. Daguerre's tokenizer of 2,048 tokens needs 1.7 times as many for the texts of the recorded requests."""
PER_TURN = 4
PER_IMAGE = 765
"""Tokens of a turn's frame, and of an image: OpenAI's count for one of 1024 x 1024."""
NAMES = {
    "x-slo-ms": "slo_ms",
    "x-route-backend": "backend",
    "x-route-step": "step",
    "x-route-tags": "tags",
    "x-route-max-cost": "max_cost",
    "x-route-cache": "cache",
    "x-route-explore": "explore",
    "x-route-test": "test",
}
CACHES = ("on", "off", "near")
MOST_IGNORED = 16
"""Wishes that are not allowed, of which the log tells."""
SPANS = frozenset({"spans", "lines", "gaps", "template"})
EDITS = frozenset({"pattern", "strength"})


@dataclass(frozen=True, kw_only=True)
class ObservedFeatures(Features):
    """Features but for what is predicted: the step type, quality, and where the conversation is; and the reading that
    these are predicted from.

    wishes   slo_ms and max_cost are floats, tags a sorted list, backend, step, cache (on, off, near) and test
             strings, explore a boolean
    ignored  wishes that the configuration does not allow, or that are none, each as a sentence for the log
    """

    step: str = ""
    reading: ParsedRequest
    ignored: tuple[str, ...] = ()

    def features(
        self, steps: Mapping[str, float], quality: Mapping[str, float] | None = None, conversation: str | None = None
    ) -> Features:
        """All features. steps: the probability of each step type; the likeliest is taken unless one is named."""
        step = self.wishes.get("step") or max(steps, key=lambda name: (steps[name], name))
        found = {"step": step, "steps": dict(steps), "quality": dict(quality or {}), "conversation": conversation}
        return Features(**{name: getattr(self, name) for name in KNOWN} | found)


KNOWN = tuple(one.name for one in fields(Features))


def features_of(
    operation: str,
    body: object,
    headers: Mapping[str, str],
    config: Config,
    request_id: str,
    tags: Sequence[str] = (),
) -> ObservedFeatures:
    """What a request asks for; `tags` are asked for by its key. InputError for a wish that is allowed and has a wrong
    value, and for tags that are not allowed; a body never raises.
    """
    reading = read(operation, body)
    wishes, ignored = wishes_of(body, headers, config)
    if tags:
        wishes["tags"] = sorted({*tags, *wishes.get("tags", ())})
    return ObservedFeatures(
        operation=operation,
        reading=reading,
        needs=needs_of(reading),
        input_tokens=input_tokens(reading),
        output_tokens=reading.limit,
        stream=reading.stream,
        wishes=wishes,
        draw=draw_of(request_id),
        ignored=ignored,
    )


def needs_of(reading: ParsedRequest) -> tuple[str, ...]:
    """What only some backends can do, sorted. What an operation is about it does not also need: serving `fim` is
    knowing suffixes, and serving `decisions` is knowing questions.
    """
    apart, uses_tools = reading.operation, any(turn.calls or turn.role == "tool" for turn in reading.turns)
    found = {
        "suffix": bool(reading.suffix) and apart != "fim",
        "pins": "pins" in reading.own,
        "spans": bool(reading.own & SPANS),
        "edit": apart != "edit" and bool(reading.own & EDITS),
        "decisions": "questions" in reading.own and apart != "decisions",
        "schema": reading.format != "text",
        "strict_schema": reading.strict,
        "tools": (bool(reading.tools) and reading.choice != "none") or uses_tools,
        "images": reading.images > 0,
        "logprobs": reading.logprobs,
        "daguerre": bool(reading.own - SPANS - EDITS - {"pins", "questions", "kind"}),
    }
    return tuple(sorted(name for name, needed in found.items() if needed))


def input_tokens(reading: ParsedRequest) -> int:
    """An estimate of the tokens of a request, from its characters and bytes."""
    texts = [*(turn.text for turn in reading.turns), reading.suffix]
    chars, size = sized(texts)
    chars, size = chars + reading.size[0], size + reading.size[1]
    fixed = PER_TURN * len(reading.turns) + PER_IMAGE * reading.images
    return fixed + round(PER_CHARACTER * chars + PER_EXTRA_BYTE * (size - chars))


def draw_of(request_id: str, purpose: str = "") -> float:
    """A uniform number in [0, 1) that the id of a request fixes, another one for each purpose."""
    digest = hashlib.sha256((purpose + request_id).encode("utf-8", "surrogatepass")).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def wishes_of(body: object, headers: Mapping[str, str], config: Config) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The wishes of a request that are allowed, and a sentence for each other one. Tags say where data may go, so they
    are never ignored: InputError where they are not allowed.
    """
    fields = body if isinstance(body, dict) else {}
    metadata, model = fields.get("metadata"), fields.get("model")
    given: dict[str, Any] = {}
    if isinstance(model, str) and any(each.name == model for each in config.backends):
        if "backend" not in config.overrides:
            raise InputError(f"this router chooses the backend itself, and model names {shown(model)}: send auto")
        given["x-route-backend"] = model
    for source in (metadata if isinstance(metadata, dict) else {}, headers):
        given |= {str(name).lower(): value for name, value in source.items() if _is_wish(str(name))}
    wishes, ignored = dict[str, Any](), list[str]()
    for name in sorted(given):
        wish = NAMES.get(name)
        if wish is None:
            ignored.append(f"{name[:60]} is no wish that a request can have: leave it out")
        elif wish == "tags" and wish not in config.overrides:
            raise InputError(f"{name} is not allowed by this router, which may send the request anywhere: leave it out")
        elif wish not in config.overrides:
            ignored.append(f"{name} is not allowed: add {wish!r} to overrides in the router's configuration")
        else:
            wishes[wish] = _value(name, wish, given[name], config)
    return wishes, tuple(ignored[:MOST_IGNORED])


def _is_wish(name: str) -> bool:
    name = name.lower()
    return name == "x-slo-ms" or name.startswith("x-route-")


def _value(name: str, wish: str, value: object, config: Config) -> Any:
    """The value of a wish. InputError for one that it cannot have."""
    if wish in ("slo_ms", "max_cost"):
        return _number(name, value, zero=wish == "max_cost")
    text = str(value).strip()[:200] if not isinstance(value, bool) else "on" if value else "off"
    if wish == "backend":
        return config.backend(text).name
    if wish == "tags":
        items = value if isinstance(value, list) else text.split(",")
        tags = sorted({str(tag).strip() for tag in items} - {""})
        if not tags:
            raise InputError(f"{name} names no tag: give tags with commas between them, or leave it out")
        return tags
    known = {"step": STEPS, "cache": CACHES, "explore": ("on", "off"), "test": tuple(config.cascade.tests)}[wish]
    if text not in known:
        raise unknown(f"value of {name}", text, known)
    return text == "on" if wish == "explore" else text


def _number(name: str, value: object, *, zero: bool) -> float:
    """A number above 0, or also 0."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
        what = "dollars, 0 or more, such as 0.01" if zero else "milliseconds above 0, such as 800"
        raise InputError(f"{name} cannot be {value!r:.40}: give {what}")
    return number
