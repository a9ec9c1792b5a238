"""Gaps in files, as editors ask for them: what is shown, how long the gap may be, and its job.

The length of a gap. Editors ask for "at most" hundreds of tokens whatever they need. A model that ends a gap with
fillers gets at most `GAP_TOKENS`, which is what is searched, unless the request says how to decode, by a mode or
`min_tokens`. Every gap and completion leaves half of the model's positions to the text around it.

A model with tokens of fill-in-the-middle (mode "fim") ends its gaps itself, or where the text after them fits, so it
gets as many tokens as are asked for; other texts are shown to it as files of a repository.

Stop strings. A search of the whole gap (mode "beam") takes a stop string as a text that may not occur; editors mean
that what follows it is not wanted. So it searches without them, and its text is cut.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from daguerre.decoding.context import HEALED, Files, Shown, Window, room_for, window
from daguerre.decoding.generate import INFILL_TOKENS, REPOSITORY_TOKENS
from daguerre.decoding.modes import MODES, SEARCHED_TOKENS, choose_mode
from daguerre.decoding.plan import Mode
from daguerre.decoding.request import Decode
from daguerre.decoding.result import Result
from daguerre.engine.job import Job
from daguerre.http.settings import Settings
from daguerre.models.core.config import ModelConfig
from daguerre.server.models import Served
from daguerre.server.streams import Delta, deltas

GAP_TOKENS = SEARCHED_TOKENS
"""The most tokens of a gap of a model that ends gaps with fillers."""


FIM_AFTER = 256
"""Tokens of the text after a gap that a model with tokens of fill-in-the-middle is shown. They stand behind most of the
text before the gap, so all of them are computed again when that grows (`decoding.modes.fim.MIDDLE_LINES`).
"""
HURRIED_BEAMS = 8
"""The hypotheses of a search with a deadline, in place of 32: it then gets four times as far in its time."""


@dataclass(frozen=True)
class Cut:
    """Where a text is cut off that is longer than requested.

    stop    before the first of these strings
    indent  before the first line, after the first one, that is not blank and begins with less white space than this
    """

    stop: tuple[str, ...] = ()
    indent: int = 0

    def __call__(self, text: str, last: bool = True) -> str:
        """The part of a text that is kept. last: nothing follows; else white space may be held back, that a later part
        decides about.
        """
        ends = [at for at in map(text.find, self.stop) if at >= 0]
        if self.indent:
            lines = re.finditer(r"\n([ \t]*)(?=[^ \t\n])", text)
            ends += [line.start() for line in lines if len(line[1]) < self.indent][:1]
            ends += [] if last else [len(text.rstrip())]
        return text[: min(ends, default=len(text))]


@dataclass(frozen=True)
class GapJob:
    """A gap that is being filled. max_tokens: those that it may have; cut: where its text is cut afterward."""

    job: Job
    window: Window
    max_tokens: int
    cut: Cut

    def shown(self) -> dict[str, Any]:
        """What the model is shown, for the answer."""
        return {
            "before": _facts(self.window.shown_before),
            "after": _facts(self.window.shown_after),
            "extra": [_facts(one) for one in self.window.shown_extra],
            "tokens": self.window.num_tokens,
            "max_tokens": self.max_tokens,
        }

    def result(self, result: Result) -> Result:
        """A result whose text is cut; so are its other choices."""
        others = tuple(self.result(one) for one in result.others)
        text = self.cut(result.text)
        if text == result.text:
            return replace(result, others=others)
        return replace(result, text=text, texts=(text,), finish_reason="stop", others=others)

    async def deltas(self, every: bool = False) -> AsyncIterator[Delta]:
        """The news of the job; see `streams.deltas`."""
        texts, sent = dict[int, str](), dict[int, int]()
        async with aclosing(deltas([self.job], every)) as source:  # type: ignore[type-var]
            async for delta in source:
                index, result = delta.index, delta.result
                texts[index], done = texts.get(index, "") + delta.text, sent.get(index, 0)
                text = self.cut(texts[index], last=result is not None)
                sent[index] = max(done, len(text))
                yield replace(delta, text=text[done:], result=None if result is None else self.result(result))


@dataclass(frozen=True)
class EditorGap:
    """A gap between two texts as an editor asks for it; without text after it, a completion.

    asked    the most new tokens, as the client says; default: where it does not, for a completion
    options  of the engine's request
    extra    names and texts of other files, to be shown where there is room; None: nothing is said of a repository
    indent   see `Cut`
    """

    before: str
    after: str
    asked: int | None
    default: int
    options: Mapping[str, Any]
    extra: Files | None = None
    indent: int = 0


def begin_gap(served: Served, gap: EditorGap, settings: Settings) -> GapJob:
    """The job of a gap. Not for the event loop."""
    options = dict(gap.options)
    if options.get("temperature", 0) == 0:  # they choose among what is drawn, and nothing is
        options.pop("top_k", None), options.pop("top_p", None)
    config, extra = served.model.config, gap.extra or ()
    writer = _writer(config, options) if gap.after else None
    max_tokens = _max_tokens(config, gap, settings, writer is not None)
    room = room_for(config, max_tokens)
    if writer is not None:
        room = max(1, room - writer.num_arranging - REPOSITORY_TOKENS * (1 + len(extra)))
    if settings.max_context is not None:
        room = max(1, min(room, settings.max_context - max_tokens - len(served.model.config.first) - HEALED))
    after = gap.after if writer is None else window(served.model.tokenizer, "", gap.after, FIM_AFTER).suffix
    shown = window(served.model.tokenizer, gap.before, after, room, [text for _, text in extra])
    shown = replace(shown, shown_after=Shown.of(shown.suffix, gap.after))
    stop = _search(served, options) if gap.after and writer is None else ()
    engine = served.engine
    if writer is not None:
        parts = [(name, part) for (name, _), part in zip(extra, shown.extra, strict=True) if part]
        options["files"] = None if gap.extra is None else parts
        job = engine.infill(shown.before, shown.suffix, max_tokens, **options)
    elif gap.after:
        job = engine.infill(shown.prefix, shown.suffix, max_tokens, **options)
    else:
        job = engine.generate(shown.prefix, max_tokens, **options)
    return GapJob(job, shown, max_tokens, Cut(stop, gap.indent))


def _writer(config: ModelConfig, options: Mapping[str, Any]) -> Mode | None:
    """The mode that writes a gap and reads files of a repository, where a request gets such a one."""
    name = options.get("mode")
    entry = MODES.get(choose_mode(Decode(), config, True) if name is None else name)
    return entry if entry is not None and entry.reads_files and config.fim is not None else None


def _max_tokens(config: ModelConfig, gap: EditorGap, settings: Settings, written: bool) -> int:
    """How many tokens a gap gets. Where the client does not say, no more than the operator allows. written: by a mode
    that ends it as a text ends.
    """
    half = max(1, config.max_positions // 2)
    default = INFILL_TOKENS if gap.after and not written else min(gap.default, max(1, half // 2))
    free = config.null_id is None or "mode" in gap.options or "min_tokens" in gap.options
    most = half if free or not gap.after else min(GAP_TOKENS, half)
    return min(gap.asked or min(default, settings.max_tokens or default), most)


def _search(served: Served, options: dict[str, Any]) -> tuple[str, ...]:
    """Have the gap searched where that is possible; returns the stop strings that its text is cut at."""
    beside = {"stop", "timeout", "priority", "owner", "heal"}
    if options.get("draft") is not None or served.model.defaults or "mode" in options:
        return ()
    of_decode = {name: value for name, value in options.items() if name not in beside and name != "draft"}
    resolved = Decode.of(**of_decode).resolved(served.model.config, True, searches=True)
    if "num_beams" not in resolved.mode_entry.options:
        return ()
    options["mode"] = resolved.mode
    if options.get("timeout") is not None:
        options.setdefault("num_beams", HURRIED_BEAMS)
    return tuple(options.pop("stop", None) or ())


def _facts(shown: Shown) -> dict[str, Any]:
    return {"characters": shown.characters, "lines": shown.lines, "complete": shown.complete}
