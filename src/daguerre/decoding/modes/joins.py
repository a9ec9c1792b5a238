"""Where a gap ends that the model does not end itself: at the place where the text after it fits best.

A small model writes on after a gap: the line that follows, or another function. Of the places at which the written text
may be cut, the best is the one after which the text after the gap is likeliest, in the order in which it is read:

    log p(first tokens of the text after | text before, written up to the cut)

with the last written token, since it may be one with what follows. The places are ends of lines and of statements, and
where the written text begins to repeat the text after the gap. Each is judged as it is written, in one forward, whose
rows see the text before the gap where it is in the prompt already. How often this is right is in docs/canvas.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from daguerre.canvas import Canvas, Decision
from daguerre.decoding.denoise import Run
from daguerre.decoding.plan import Plan, Steps
from daguerre.models.rows import Tree
from daguerre.models.session import Asking
from daguerre.trace import Event

MOST_CUTS = 8
SUFFIX_TOKENS = 8
"""Tokens of the text after the gap that a place is judged by. With 16 fewer gaps were right."""
REPEATED = 12
"""Characters of the text after the gap, at least, by whose repetition it is known to have come."""


@dataclass(frozen=True, eq=False)
class Join:
    """The end of a gap whose text is written from the left. before, after: the texts around it, as they are shown."""

    plan: Plan
    before: str
    after: str

    @classmethod
    def of(cls, plan: Plan) -> Join:
        """The end of a plan's only gap."""
        before, after = (
            b"".join(plan.vocabulary.of[token] for token in segment).decode("utf-8", "replace")
            for segment in plan.segments
        )
        return cls(plan, before, after)

    @property
    def judged_early(self) -> bool:
        """Whether places are judged while the gap is written: where the prompt begins with the text before it, whose
        rows are kept, and no draft of the caller's is followed.
        """
        fim = self.plan.config.fim
        return fim is not None and not fim.suffix_first and self.plan.draft is None

    def written(self, canvas: Canvas) -> str:
        """What is written so far, without what was healed; a character that is cut in two is left out."""
        written = self.plan.vocabulary.bytes_of(canvas.filled(canvas.gaps[0]))
        return written[len(self.plan.gaps[0].healing.text) :].decode("utf-8", "ignore")

    def has_come(self, canvas: Canvas) -> bool:
        """Whether what is written has repeated the beginning of the text after the gap."""
        return beginning(self.after) is not None and bool(repeats(self.written(canvas), self.after))

    def num_firm(self, written: str) -> int:
        """How many characters of what is written are before every place at which the gap may yet end."""
        ends, first = cuts(written, self.before, self.after), beginning(self.after) or ""
        begun = max((n for n in range(1, len(first)) if written.endswith(first[:n])), default=0)
        return min([*ends[:1], len(written) - begun])

    def scores(self, run: Run, canvas: Canvas, places: Sequence[Place]) -> Asking[list[float]]:
        """How well the text after the gap fits at each place: its log-probability, in nats, all in one forward."""
        if not places:
            return []
        tree, nodes = Tree.of([self.path(canvas, place) for place in places])
        judged = [path[self.num_same(place) :] for path, place in zip(nodes, places, strict=True)]
        wanted, rows = np.unique(np.concatenate(judged), return_inverse=True)
        nats = (yield from run.session.tree_log_probs(self._given(canvas), tree, wanted))[rows]
        starts = np.cumsum([0, *(len(path) for path in judged[:-1])])
        return np.add.reduceat(nats, starts).tolist()

    def places(self, canvas: Canvas) -> list[Place]:
        """The places where what is written may end."""
        written = self.written(canvas)
        found = [self._place(canvas, written, cut) for cut in cuts(written, self.before, self.after)]
        return [place for place in found if place is not None]

    @staticmethod
    def num_same(place: Place) -> int:
        """How many tokens of `path` are those that were written."""
        return max(0, place.num_kept - 1)

    def path(self, canvas: Canvas, place: Place) -> list[int]:
        """The tokens of what is written up to a place, and of the first text after the gap. The last token of the one
        and the first of the other are read as one text, as they are where texts are not cut.
        """
        of, tokens = self.plan.vocabulary.of, canvas.filled(canvas.gaps[0]).tolist()
        behind, again = self.plan.segments[1][:SUFFIX_TOKENS], self.num_same(place)
        text = b"".join(of[token] for token in (*tokens[again : place.num_kept], *place.part, *behind))
        return [*tokens[:again], *self._tokens(text)]

    def _place(self, canvas: Canvas, written: str, cut: int) -> Place | None:
        """The place after `cut` characters; None where the gap cannot end there."""
        gap, of, tokens = self.plan.gaps[0], self.plan.vocabulary.of, canvas.filled(canvas.gaps[0]).tolist()
        start, end = gap.open_run(canvas)
        left, kept = len(gap.healing.text) + len(written[:cut].encode()), 0
        while kept < len(tokens) and len(of[tokens[kept]]) <= left:
            left -= len(of[tokens[kept]])
            kept += 1
        part = self._tokens(of[tokens[kept]][:left]) if left else []
        num = gap.start + kept + len(part)
        return Place(kept, tuple(part)) if gap.min_tokens <= max(0, num - start) and num < end else None

    def _tokens(self, text: bytes) -> list[int]:
        """Tokens of a text, the longest from the left on."""
        vocabulary, out = self.plan.vocabulary, list[int]()
        longest = vocabulary.longest
        while text:
            out.append(vocabulary.proper_beginnings(text[:longest] + b" ")[-1])
            text = text[len(vocabulary.of[out[-1]]) :]
        return out

    def _given(self, canvas: Canvas) -> np.ndarray:
        """What is read before the written text: the prompt without the text after the gap and what names it, if the
        text before the gap comes first.
        """
        config, start = self.plan.config, canvas.gaps[0][0]
        assert config.fim is not None
        if config.fim.suffix_first:
            return np.array([*config.first, *self.plan.segments[0]], dtype=np.int64)
        middle, end = start, start  # where the middle begins, and the text after the gap has ended
        if config.fim.middle is not None:
            end = int(np.flatnonzero(canvas.tokens[:start] == config.fim.middle)[-1])
            middle = end + 1
        return np.concatenate([canvas.tokens[: end - len(self.plan.segments[1]) - 1], canvas.tokens[middle:start]])

    def cut(self, run: Run, canvas: Canvas, place: Place) -> Steps:
        """End the gap there."""
        start = canvas.gaps[0][0] + place.num_kept
        tokens = np.array([*place.part, self.plan.config.eos_id], dtype=np.int64)
        positions, sure = start + np.arange(len(tokens)), np.ones(len(tokens))
        decision = Decision(positions, tokens, sure, sure, replace=positions[~canvas.open[positions]])
        canvas = canvas.at((start, start + len(tokens))).apply(decision)
        yield Event(run.counts.forwards, decision, canvas)
        return canvas


@dataclass(frozen=True)
class Place:
    """Where a gap may end: after its first `num_kept` tokens, and the tokens `part` in place of the next one."""

    num_kept: int
    part: tuple[int, ...] = ()


@lru_cache(maxsize=256)
def beginning(after: str) -> str | None:
    """How the text after a gap begins, without blanks: whole lines, of REPEATED characters or more, or all of it; None
    where that has fewer than four.
    """
    lines, out = after.strip().splitlines(keepends=True), ""
    while lines and len(out.rstrip()) < REPEATED:
        out += lines.pop(0)
    return out.rstrip() if len(out.rstrip()) >= 4 else None


def repeats(written: str, after: str) -> list[int]:
    """Where `written` begins to repeat the text after the gap: at the beginning of a line, or where that text goes on
    with a line, anywhere.
    """
    first = beginning(after)
    if first is None:
        return []
    goes_on = not after[:1].isspace()
    return [
        found.start()
        for found in re.finditer(re.escape(first), written)
        if goes_on or not written[: found.start()].rpartition("\n")[2].strip()
    ]


@lru_cache(maxsize=256)
def ends_statements(before: str, after: str) -> bool:
    """Whether statements end with a semicolon in the language of the texts around a gap: where a line does."""
    return any(re.search(r";[ \t]*$", text, re.MULTILINE) is not None for text in (before, after))


def cuts(written: str, before: str, after: str) -> list[int]:
    """Where a written gap may end, in characters, ascending: at most MOST_CUTS places."""
    lead = after[: len(after) - len(after.lstrip())]  # which stands before what is repeated, too
    whole_lines = not before.rpartition("\n")[2] and "\n" not in lead
    found = {match.end() if whole_lines else match.start() for match in re.finditer(r"\n", written)}
    if not whole_lines and ends_statements(before, after):
        found |= {match.end() for match in re.finditer(r"[;}](?=[ \t]*[^\s;})])", written)}
    for place in repeats(written, after)[:1]:
        text = written[:place].rstrip(" \t") if lead or whole_lines else written[:place]
        found.add(len(text.removesuffix("\n") if "\n" in lead else text))
    return sorted(found - {0})[:MOST_CUTS]
