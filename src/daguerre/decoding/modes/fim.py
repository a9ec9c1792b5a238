"""Mode "fim": the gap of a model that was trained to fill in the middle, written as the continuation of a prompt.

The model reads the text before the gap and the text after it, each behind a token that says which it is
(`models.core.shapes.FimTokens`), and writes the gap from the left. So everything that holds for a completion holds for
the gap: it is drafted and verified as in mode "speculative", and what ends a text ends it. Where the model does not
end it, `decoding.modes.joins` finds the place at which the text after the gap fits.

Where the text before a gap is read first, its last lines (`num_in_middle`) stand behind the text after the gap, as the
beginning of what is written, with the last word drawn again. So a key that is pressed there changes only the end of the
prompt, and the rows of both texts are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from daguerre.canvas import Canvas
from daguerre.decoding.context import Files, read_files
from daguerre.decoding.denoise import Run, heal
from daguerre.decoding.healing import Vocabulary
from daguerre.decoding.modes.ar import Speculative
from daguerre.decoding.modes.joins import MOST_CUTS, Join
from daguerre.decoding.plan import Plan, Steps
from daguerre.decoding.result import read
from daguerre.errors import InputError, UnsupportedError
from daguerre.models.core.config import ModelConfig
from daguerre.models.tokenizer import Tokenizer

PATIENCE = 3
"""So many places in a row at which the text after the gap fits less well end the writing."""
MIDDLE_LINES = 32
"""Once in so many lines the text after a gap is read again."""
MIDDLE_TOKENS = 1024
"""Tokens that stand behind it at most."""


def since_best(scores: Sequence[float]) -> int:
    """How many scores follow the best one, the first of several."""
    return len(scores) - 1 - int(np.argmax(scores)) if scores else 0


def num_in_middle(before: Sequence[int], vocabulary: Vocabulary) -> int:
    """How many tokens at the end of the text before a gap stand behind the text after it: the lines after the last
    whole MIDDLE_LINES, and of those, if they are long, the tokens after whole MIDDLE_TOKENS.
    """
    if not vocabulary.exact:
        return 0
    ends = [vocabulary.of[token].count(b"\n") for token in before]
    begun, left = 0, sum(ends) % MIDDLE_LINES
    while begun < len(before) and ends[-1 - begun] <= left:
        left -= ends[-1 - begun]
        begun += 1
    return begun % MIDDLE_TOKENS


def fits(plan: Plan) -> bool:
    """Whether the end of a gap is found by the text after it; a constraint says itself where its text ends."""
    return plan.decode.fill_end == "fit" and plan.constraint is None


class Fim(Speculative):
    """One gap, behind the texts around it."""

    name = "fim"
    distribution = None
    options = Speculative.options | {"fill_end"}
    infills = writes_gaps = reads_files = ends_gaps = True
    gap_tokens, num_arranging = 128, 3
    heals = heals_unasked = True
    searches_length = False

    def check_model(self, config: ModelConfig) -> None:
        """Tokens of fill-in-the-middle."""
        super().check_model(config)
        if config.fim is None:
            instead = '"beam", which needs none' if config.mask_id is None else '"block"'
            raise UnsupportedError(
                f'mode "fim" needs tokens of fill-in-the-middle, and this model has none: use mode {instead}'
            )

    def can_heal(self, config: ModelConfig) -> bool:
        """Where the end of the text before the gap can stand behind the text after it."""
        return config.fim is not None and config.fim.middle is not None and not config.fim.suffix_first

    def num_healed(self, before: Sequence[int], vocabulary: Vocabulary) -> int:
        """None before the line of the gap: a line that has ended is not written on."""
        start = len(before)
        while start and not vocabulary.of[before[start - 1]].endswith(b"\n"):
            start -= 1
        return super().num_healed(before[start:], vocabulary)

    def check_request(self, num_gaps: int, infilling: bool, heal: bool | None) -> None:
        """One gap, with a text after it."""
        super().check_request(num_gaps, infilling, heal)
        if not infilling:
            raise InputError(
                'mode "fim" is for a gap with a text after it, and there is none: give a suffix, or use mode "ar"'
            )
        if num_gaps > 1:
            raise UnsupportedError(
                f"this model writes one gap at a time, and these are {num_gaps}: fill them one after the other"
            )

    def arrange(
        self,
        config: ModelConfig,
        tokenizer: Tokenizer,
        segments: Sequence[Sequence[int]],
        files: Files | None,
        heals: bool,
    ) -> Sequence[Sequence[int]]:
        """A prompt of both texts, and nothing after the gap."""
        fim, (before, after) = config.fim, segments
        assert fim is not None
        start = len(before) - (num_in_middle(before, Vocabulary.make(tokenizer)) if heals else 0)
        begins, sides = [] if files is None else read_files(fim, tokenizer, files), [fim.prefix, *before[:start]]
        sides = [fim.suffix, *after, *sides] if fim.suffix_first else [*sides, fim.suffix, *after]
        return [*begins, *sides, *([] if fim.middle is None else [fim.middle]), *before[start:]], []

    def run(self, run: Run, canvas: Canvas) -> Steps:
        """Write the gap, and find its end where the model does not end it."""
        canvas = yield from heal(run, canvas)
        if not run.plan.healed(canvas):
            return canvas
        if not fits(run.plan):
            return (yield from self.verify(run, canvas))
        join, scores = Join.of(run.plan), list[float]()
        while True:
            num = len(join.places(canvas)) if join.judged_early else MOST_CUTS

            def stops(now: Canvas, num: int = num) -> bool:
                more = num < MOST_CUTS and len(join.places(now)) > num
                return more or run.has_ended(now) or join.has_come(now)

            canvas = yield from self.verify(run, canvas, stops)
            (gap,), places = read(run.plan, canvas, done=False).gaps, join.places(canvas)
            if (gap.stopped and not gap.looped) or run.deadline.late():
                return canvas
            scores += yield from join.scores(run, canvas, places[len(scores) :])
            written = run.has_ended(canvas) or join.has_come(canvas) or run.plan.finished(canvas)
            if written or since_best(scores) >= PATIENCE:
                return (yield from join.cut(run, canvas, places[int(np.argmax(scores))])) if scores else canvas

    def num_firm(self, plan: Plan, text: str) -> int:
        """What is before every place at which the gap may end."""
        return Join.of(plan).num_firm(text) if fits(plan) else len(text)

    def bound(self, plan: Plan) -> int:
        """One or two forwards more for each place at which the gap may end."""
        return super().bound(plan) + 2 * MOST_CUTS
