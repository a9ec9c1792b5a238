"""From a chat template to how its model writes an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from daguerre.models.chat_format.calling import derive_calls
from daguerre.models.chat_format.description import Calls, Format
from daguerre.models.chat_format.losses import losses_of
from daguerre.models.chat_format.marks import MARK
from daguerre.models.chat_format.named import named
from daguerre.models.chat_format.probe import Probe, renders
from daguerre.models.chat_format.sentinels import TEXT, call, found_calls, message
from daguerre.models.chat_format.thoughts import Surroundings, surroundings, unthought, with_thinking
from daguerre.models.chat_template import ChatTemplate


@dataclass(frozen=True)
class Derived:
    """What was found: the format, what surrounds an answer, and the probe that knows how messages are handed over."""

    form: Format
    around: Surroundings
    probe: Probe


def derive(template: ChatTemplate) -> Derived:
    """How a model with a template writes an answer."""
    probe = with_thinking(_shaped(Probe(template)))
    around = surroundings(probe)
    calls = derive_calls(probe, around)
    ends = [around.end, *_ends(probe, around, calls)]
    calls = _unended(calls, ends[1:])
    glue = _glue(probe, around, calls)
    form = Format(
        "derived",
        calls,
        around.thinking,
        around.text,
        glue,
        tuple(dict.fromkeys(filter(None, ends))),
        around.header,
        _text_beside(probe, around, calls),
        () if calls is None else losses_of(probe),
    )
    form = named(form, "".join(template.sources.values()))
    return Derived(form, around, probe)


def _shaped(probe: Probe) -> Probe:
    """The probe with the shape in which the template wants calls, and of a missing text the form that leaves nothing
    behind.
    """
    wanted = probe.template.wants(tools=True).calls
    if wanted is None:
        return probe
    shapes = [probe.shaped(strings=wanted.arguments == "string", empty=empty) for empty in ("", None)]
    texts = [(renders(shape, message(1)) or "", shape) for shape in shapes]
    found = [(len(text), shape) for text, shape in texts if found_calls(text, [call(0)])]
    return min(found, key=lambda one: one[0], default=(0, probe))[1]


def _ends(probe: Probe, around: Surroundings, calls: Calls | None) -> list[str]:
    """What ends an answer beside the end of a text: the publisher's end, and a mark after calls."""
    token = probe.template.tokens.get("eos_token") or ""
    turn = renders(probe, message(2)) or renders(probe, message(1)) or ""
    marks = list(MARK.finditer(turn.rstrip()))
    mark = around.end.strip()
    own = marks and mark and mark not in turn and marks[-1].end() == len(turn.rstrip())
    return [token, marks[-1][0] if own else ""]


def _unended(calls: Calls | None, ends: Sequence[str]) -> Calls | None:
    """Calls without the mark that ends an answer behind them."""
    for end in ends:
        if calls is not None and end and calls.end.endswith(end):
            return replace(calls, end=calls.end.removesuffix(end))
        if calls is not None and end and isinstance(calls.parts[-1], str) and calls.parts[-1].endswith(end):
            parts = (*calls.parts[:-1], calls.parts[-1].removesuffix(end))
            return replace(calls, parts=tuple(part for part in parts if part != ""))
    return calls


def _text_beside(probe: Probe, around: Surroundings, calls: Calls | None) -> bool:
    """Whether a text stands before calls, as text."""
    both = renders(probe, message(1, TEXT)) if calls is not None else None
    if both is None or calls is None or TEXT not in both:
        return False
    before = unthought(both[len(around.header) :], around.thinking).split(TEXT, 1)[0]
    return before.strip() == around.text[0].strip()


def _glue(probe: Probe, around: Surroundings, calls: Calls | None) -> str:
    """What stands between a text and calls, beside what calls begin with."""
    both = renders(probe, message(1, TEXT)) if calls is not None else None
    if both is None or calls is None or TEXT not in both:
        return ""
    rest = unthought(both[len(around.header) :], around.thinking).split(TEXT, 1)[1].removeprefix(around.text[1])
    place = rest.find(calls.opening)
    return rest[:place] if 0 <= place < 40 else ""
