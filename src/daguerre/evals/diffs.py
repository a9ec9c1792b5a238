"""Edits: how many tokens a forward writes where the old text of the place is known.

A hunk of `daguerre.train.corpus.diffs` is a region of a file in two versions, with the text before it. The model
writes as many tokens as the new region has, at temperature 0, from the text before the region (CONTEXT), or from the
old region and then that text, as an editor would show it (PASTED); the old region may be its draft. Every text is
compared with that of mode "ar" from the same prompt without a draft.

A base model was not trained to repeat an old text, so most of its texts leave it soon. `forced` shows what drafting
alone allows: the tokens a forward if the text written were the new region itself, whatever the model says. The model's
own drafts have no part in it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial
from typing import Any

import numpy as np

from daguerre.canvas import Canvas
from daguerre.decoding.drafters import MIN_ACCEPTED, NO_DRAFT, Alignment, best, given_by_caller, look_up
from daguerre.evals.speculation import KeptResult, median_ratio, share_that_loops, total_ratio
from daguerre.evals.workers import ItemProgress
from daguerre.model import Model
from daguerre.models.forward import Draws, Rules, num_agreed
from daguerre.models.processor import row_time
from daguerre.models.session import compute
from daguerre.train.corpus.diffs import Hunk

CONTEXT, PASTED = "the text before", "the old text, then the text before"
SETTINGS = (
    (CONTEXT, "ar", True),
    (CONTEXT, "speculative", False),
    (CONTEXT, "speculative", True),
    (PASTED, "speculative", False),
    (PASTED, "speculative", True),
)
"""Prompt, mode, and whether the old region is the draft."""
FORCED = ((CONTEXT, True, False), (CONTEXT, True, True), (PASTED, False, True), (PASTED, True, True))
"""Prompt, whether the old region is the draft, and whether tokens are looked up in the text."""


@dataclass(frozen=True, kw_only=True)
class DiffOutcome:
    """All hunks in one setting.

    shown, mode, draft   see SETTINGS
    identical            hunks whose tokens were those of mode "ar" from the same prompt without a draft
    tokens_per_forward   over all hunks
    speedup              seconds of that "ar" over those of this setting, prefill included, the median over hunks
    total_speedup        the same ratio of all seconds
    draft_accepted       the share of the draft's tokens that the text has where they were expected
    like_old, like_new   similarity of the written tokens to those of the regions (difflib's ratio), the means
    loops                share of the texts that loop
    """

    shown: str
    mode: str
    draft: bool
    edits: int
    identical: int
    tokens_per_forward: float
    speedup: float
    total_speedup: float
    draft_accepted: float | None
    like_old: float
    like_new: float
    loops: float


@dataclass(frozen=True, kw_only=True)
class ForcedOutcome:
    """All new regions, written by drafts alone; see FORCED.

    rows_per_forward        clean rows of a forward
    speedup, total_speedup  seconds of one forward a token over those of these forwards, drafting included and prefill
                            not: the median over hunks, and of all seconds
    loops                   share of the new regions that loop
    """

    shown: str
    draft: bool
    lookup: bool
    edits: int
    tokens_per_forward: float
    rows_per_forward: float
    speedup: float
    total_speedup: float
    loops: float


@dataclass(frozen=True)
class HunkPrompts:
    """A hunk as tokens: the prompts by their names, and the region in both versions."""

    hunk: Hunk
    prompts: dict[str, list[int]]
    old: list[int]
    new: list[int]

    @classmethod
    def of(cls, model: Model, hunk: Hunk) -> HunkPrompts:
        encode = model.tokenizer.encode
        prompts = {CONTEXT: encode(hunk.context), PASTED: encode(hunk.old + hunk.context)}
        return cls(hunk, prompts, encode(hunk.old), encode(hunk.new))

    @property
    def positions(self) -> int:
        """Positions that the longest prompt and either region need, <bos> included."""
        return 1 + max(map(len, self.prompts.values())) + max(len(self.old), len(self.new))


def make_edits(model: Model, hunks: Sequence[Hunk], limit: int) -> list[HunkPrompts]:
    """The first `limit` hunks that the model has the positions for."""
    edits = (HunkPrompts.of(model, hunk) for hunk in hunks)
    return [edit for edit in edits if edit.positions <= model.config.max_positions][:limit]


def measure_edits(
    model: Model, edits: Sequence[HunkPrompts], progress: ItemProgress
) -> tuple[list[DiffOutcome], list[ForcedOutcome]]:
    """Every hunk in all of SETTINGS and FORCED, in turn."""
    written, forced = [], []
    for number, edit in enumerate(edits, 1):
        written.append(_write(model, edit))
        forced.append(_write_forced(model, edit))
        progress(number, len(edits))
    return (
        [_outcome(setting, edits, written) for setting in SETTINGS],
        [_forced_outcome(setting, edits, forced) for setting in FORCED],
    )


Texts = dict[tuple[str, str, bool], KeptResult]
"""What was written, by setting; also by mode "ar" without a draft."""


def _write(model: Model, edit: HunkPrompts) -> Texts:
    out: Texts = {}
    for shown, prompt in edit.prompts.items():
        write = partial(model.generate, prompt, len(edit.new), heal=False)
        out[shown, "ar", False] = KeptResult.of(write(mode="ar"))
    for shown, mode, draft in SETTINGS:
        given: dict[str, Any] = {"draft": edit.hunk.old} if draft else {}
        result = model.generate(edit.prompts[shown], len(edit.new), heal=False, mode=mode, **given)
        out[shown, mode, draft] = KeptResult.of(result)
    return out


def _outcome(setting: tuple[str, str, bool], edits: Sequence[HunkPrompts], written: Sequence[Texts]) -> DiffOutcome:
    shown, mode, draft = setting
    ar, found = [texts[shown, "ar", False] for texts in written], [texts[setting] for texts in written]
    seconds = [(one.usage.seconds, other.usage.seconds) for one, other in zip(ar, found, strict=True)]
    accepted = sum(each.usage.accepted_prediction_tokens for each in found)
    return DiffOutcome(
        shown=shown,
        mode=mode,
        draft=draft,
        edits=len(found),
        identical=sum(one.ids == other.ids for one, other in zip(ar, found, strict=True)),
        tokens_per_forward=sum(len(each.ids) for each in found) / sum(each.usage.forwards for each in found),
        speedup=median_ratio(seconds),
        total_speedup=total_ratio(seconds),
        draft_accepted=int(accepted) / sum(len(edit.old) for edit in edits) if draft else None,
        like_old=_likeness([edit.old for edit in edits], found),
        like_new=_likeness([edit.new for edit in edits], found),
        loops=share_that_loops([each.ids for each in found]),
    )


def _likeness(texts: Sequence[Sequence[int]], written: Sequence[KeptResult]) -> float:
    pairs = zip(texts, written, strict=True)
    return float(np.mean([SequenceMatcher(None, text, each.ids, autojunk=False).ratio() for text, each in pairs]))


@dataclass(frozen=True)
class ForcedCost:
    """Forwards, their clean rows and seconds, and the seconds of as many forwards as there are tokens."""

    forwards: int
    rows: int
    seconds: float
    ar_seconds: float


def _write_forced(model: Model, edit: HunkPrompts) -> dict[tuple[str, bool, bool], ForcedCost]:
    out = {}
    for shown, draft, looks_up in FORCED:
        before = np.array([model.tokenizer.start_id, *edit.prompts[shown]], dtype=np.int64)
        new, old = (np.array(ids, dtype=np.int64) for ids in (edit.new, edit.old))
        out[shown, draft, looks_up] = forced(model, before, new, old if draft else None, looks_up)
    return out


def forced(model: Model, before: np.ndarray, new: np.ndarray, old: np.ndarray | None, looks_up: bool) -> ForcedCost:
    """Verify the tokens `new` after `before`, int64 arrays, with the draft `old` (None: none), and with what the text
    has after an earlier match, as `daguerre.decoding.modes.ar.speculate` would if the model drew those tokens.
    """
    text, start = np.concatenate([before, new]), len(before)
    end, given = len(text), None if old is None else Alignment(old)
    canvas = Canvas(text, np.zeros(end, dtype=bool), ((start, end),))
    session, backend = model.denoiser.session(canvas), model.denoiser.backend
    positions = np.arange(start, end)

    def draw(place: int) -> None:
        asking = session.ask(canvas.at((place, place + 1)), positions[[place - len(before)]], _draw_at(place))
        compute(asking, backend)

    draw(start)  # the prefill
    begun = time.perf_counter()
    for place in positions.tolist():
        draw(place)
    ar_seconds = time.perf_counter() - begun
    draw(start)  # forgets what came after
    forwards = rows = 0
    begun = time.perf_counter()
    while start < end:
        drafts = [NO_DRAFT]
        if looks_up:
            drafts.append(look_up(text[:start], 0.0))
        if given is not None:
            drafts.append(given_by_caller(given, end - start - 1, 0.5 if given.misses else 1.0))
        draft = best(drafts, end - start - 1, row_time())
        asking = session.cycle(canvas.at((start, end)), draft.tokens, 0, (), Rules(), MIN_ACCEPTED)
        compute(asking, backend)
        num = 1 + num_agreed(text[start:end], draft.tokens)
        start, forwards, rows = start + num, forwards + 1, rows + len(draft) + 1
        if given is not None:
            given = given.after(text[len(before) : start], num)
    return ForcedCost(forwards, rows, time.perf_counter() - begun, ar_seconds)


def _draw_at(place: int) -> Draws:
    return Draws(Rules(), np.array([place]))


def _forced_outcome(
    setting: tuple[str, bool, bool],
    edits: Sequence[HunkPrompts],
    found: Sequence[dict[tuple[str, bool, bool], ForcedCost]],
) -> ForcedOutcome:
    shown, draft, looks_up = setting
    parts = [each[setting] for each in found]
    seconds, forwards = [(part.ar_seconds, part.seconds) for part in parts], sum(part.forwards for part in parts)
    return ForcedOutcome(
        shown=shown,
        draft=draft,
        lookup=looks_up,
        edits=len(parts),
        tokens_per_forward=sum(len(edit.new) for edit in edits) / forwards,
        rows_per_forward=sum(part.rows for part in parts) / forwards,
        speedup=median_ratio(seconds),
        total_speedup=total_ratio(seconds),
        loops=share_that_loops([edit.new for edit in edits]),
    )
