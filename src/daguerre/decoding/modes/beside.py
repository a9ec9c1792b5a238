"""Drafts of a second model (`models.drafting_model`) in mode "speculative": when they are worth their time, how long
they are, and how they are drawn.

Everything is weighed in the time that mode "ar" takes for a token, by what forwards of both models were measured to
take. In a crowd of N texts all are taken to do as this one does: a forward that verifies k tokens is one of N (k + 1)
rows, in place of one of N.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from daguerre.canvas import Canvas
from daguerre.decoding.denoise import Run
from daguerre.decoding.drafters import MIN_ACCEPTED, NO_DRAFT, Drafted
from daguerre.errors import InputError
from daguerre.models.drafting_model import KEPT_TOKENS, MOST, DraftingSession
from daguerre.models.forward import acceptance_of
from daguerre.models.session import Asking, Session
from daguerre.sampling.logits import Proposals
from daguerre.sampling.policies.base import commit_all
from daguerre.sampling.rules import Rule

MOST_DRAFTED = 8
"""The most tokens of a draft."""
SEEN = 8
"""As how many tokens of this text those of earlier texts count, by which the second model is judged at first."""
SOON, LASTS = 8, 2
"""A text is expected to go on for so many tokens, and this many times those that it has: so a short one is over before
a second model has read its prompt.
"""
MARGIN = 1.03
"""A second model drafts where this is faster by so much than what there is without it."""


class Beside:
    """The drafts of a second model for one request.

    most    tokens of a draft, at most
    always  it drafts wherever it can, `most` tokens
    asked   how it is asked: the session, or one whose logits a scorer changes as it does the model's
    """

    def __init__(self, session: DraftingSession, asked: Session, temperature: float, most: int, always: bool) -> None:
        self._session, self.asked, self._temperature = session, asked, temperature
        self._most, self._always = most, always
        self._right, self._tried = session.model.acceptance * SEEN, float(SEEN)
        self._costs, self._draft_cost, self._prompt_cost = [1.0], 1.0, 1.0
        self._speed = 1.0

    @classmethod
    def of(cls, run: Run, size: int) -> Beside:
        """For a run whose forwards verify fewer than `size` tokens, where the request says how many."""
        assert run.second is not None
        settings, (session, asked) = run.plan.decode, run.second
        most = MOST_DRAFTED if settings.block_size is None else size - 1
        return cls(session, asked, settings.temperature, most, settings.drafter == "second")

    def choose(self, run: Run, canvas: Canvas, rules: Sequence[Rule], drafts: list[Drafted]) -> Asking[Drafted]:
        """The draft to verify at the start of the active span: the best of these, and, where it is worth its time, of
        the second model's.
        """
        assert canvas.span is not None
        room = canvas.span[1] - canvas.span[0] - 1
        self._look(run.crowd)
        draft, speed = self._best(drafts, room)
        if not self.worth(canvas, speed, room):
            return draft
        made = yield from self._draft(run, canvas, rules, room)
        return made if self._always and len(made) else self._best([*drafts, made], room)[0]

    def _look(self, crowd: int) -> None:
        """Take note of what forwards take now, in a crowd of so many texts."""
        model, second = self._session.model.times
        curve, crowd = model.curve(), min(crowd, MOST)
        self._costs = (curve[crowd::crowd] / curve[crowd]).tolist()
        self._draft_cost = float(second.curve()[crowd] / curve[crowd])
        self._prompt_cost = crowd * second.prompt_row() / float(curve[crowd])

    @property
    def acceptance(self) -> float:
        """How often a token is right, given that those before it are."""
        return self._right / self._tried

    def _best(self, drafts: Iterable[Drafted], room: int) -> tuple[Drafted, float]:
        """The draft that is likely to commit the most tokens in its time, and the speed of that, in tokens."""
        chosen, highest = NO_DRAFT, 1.0
        for draft in drafts:
            tokens, kept = 0.0, 0
            for num, (chance, cost) in enumerate(zip(draft.reached[: room + 1], self._costs, strict=False)):
                if num and chance < MIN_ACCEPTED:
                    break
                tokens += chance
                if num and tokens > highest * cost:
                    highest, kept = tokens / cost, num
            if kept:
                chosen = draft.first(kept)
        return chosen, highest

    def worth(self, canvas: Canvas, speed: float, room: int) -> bool:
        """Whether to draft at the start of the active span, of which `room` tokens may be drafted, where the text is
        written at this speed without.
        """
        assert canvas.span is not None
        start = canvas.span[0]
        room = min(room, self._most)
        if room < 1 or start >= self._session.config.max_positions or not canvas.continues:
            return False
        if self._always:
            return True
        room = min(room, len(self._costs) - 1)
        chance, reached, tokens, self._speed = self.acceptance, 1.0, 1.0, 0.0
        for num in range(1, room + 1):
            reached *= chance
            tokens += reached
            self._speed = max(self._speed, tokens / (self._costs[num] + num * self._draft_cost))
        if self._speed < MARGIN * speed:
            return False
        late = self._session.missing(canvas, start) - 2  # what it reads first, before it can draft
        left = min(canvas.span[1] - start, SOON + LASTS * (start - canvas.gaps[0][0]))
        return late <= 0 or late * self._prompt_cost < left * (1 / speed - 1 / self._speed)

    def goes_on(self, draft: Sequence[float], room: int) -> bool:
        """Whether to draft one more token, behind those that are right with these chances, each given the others."""
        num, reached = len(draft), float(np.prod(draft))
        if num >= min(room, self._most) or reached < MIN_ACCEPTED:
            return False
        if not num or self._always:
            return True
        if num + 1 >= len(self._costs):
            return False
        more = self._costs[num + 1] - self._costs[num] + self._draft_cost
        return reached * self.acceptance > self._speed * more

    def count(self, draft: Drafted, right: int) -> None:
        """Count a draft that was verified."""
        tried, model = right + (right < len(draft)), self._session.model
        self._right, self._tried = self._right + right, self._tried + tried
        model.acceptance += (right - tried * model.acceptance) / KEPT_TOKENS

    def _draft(self, run: Run, canvas: Canvas, rules: Sequence[Rule], room: int) -> Asking[Drafted]:
        """A draft at the start of the active span, of at most `room` tokens, drawn one after the other with the random
        numbers with which they will be verified; under a constraint each is one that it allows.
        """
        assert canvas.span is not None
        tokens, chances = list[int](), list[float]()
        start, temperature = canvas.span[0], run.sampler.params.temperature
        room = min(room, self._session.config.max_positions - start)
        while self.goes_on(chances, room):
            canvas = canvas.at((start + len(tokens), start + len(tokens) + 1))
            made = yield from self._next(run, canvas, rules)
            if made is None or not self._session.model.shared[made.tokens[0]]:
                break
            tokens.append(int(made.tokens[0]))
            chances.append(acceptance_of(float(made.probabilities[0]), temperature))
            if tokens[-1] in run.plan.ending:
                break
            canvas = canvas.apply(commit_all(made))
        return Drafted.of(np.array(tokens, dtype=np.int64), chances, "second")

    def _next(self, run: Run, canvas: Canvas, rules: Sequence[Rule]) -> Asking[Proposals | None]:
        """The next token of a draft; None where none is allowed."""
        try:
            made = yield from run.sampler.propose(self.asked, canvas, rules, 0, canvas.active_positions())
        except InputError:  # no token is left to draw
            return None
        return made
