"""Sentences in the middle of a teacher's answers: filled by the model, which sees both sides, and by the teacher, which
goes on from the left; and which of the two the teacher finds likelier once it has read what follows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from daguerre.evals.following.checks import sentences
from daguerre.evals.statistics import wilson
from daguerre.evals.teaching.likelihoods import ToldAnswer, nats_of
from daguerre.evals.teaching.writing import write
from daguerre.evals.workers import Progress
from daguerre.model import Model

LONGEST = 48
"""Tokens of a sentence that is taken out, at most."""


@dataclass(frozen=True)
class MissingSentence:
    """A text without one of its sentences: token ids before and after, and the sentence."""

    before: list[int]
    middle: str
    after: list[int]


def missing_sentences(told: Sequence[ToldAnswer], model: Model, seed: int) -> list[MissingSentence]:
    """One of each answer that has a sentence between others, drawn at random."""
    rng, out, tokenizer = random.Random(seed), list[MissingSentence](), model.tokenizer
    for one in told:
        text = tokenizer.decode([token for token in one.new if token not in model.config.ends])
        inner = sentences(text)[1:-1]
        if not inner:
            continue
        middle = rng.choice(inner)
        left, _, right = text.partition(middle)
        kept = left.rstrip()  # tokens of words have the space before them
        middle, left = left[len(kept) :] + middle, kept
        if left and right and len(tokenizer.encode(middle, begins=False)) <= LONGEST:
            before = one.prompt + tokenizer.encode(left, begins=False)
            out.append(MissingSentence(before, middle, tokenizer.encode(right, begins=False)))
    return out


def fills(model: Model, teacher: Model, missing: Sequence[MissingSentence], progress: Progress) -> dict[str, Any]:
    """How many sentences are filled exactly, how many with nothing, and how often a fill and what follows are likelier
    to the teacher than its own next sentence and what follows: by sums of nats, in which a fill of nothing, which pays
    for no words, never counts as likelier.
    """
    own = {tuple(one.prompt): one.new for one in write(teacher, [m.before for m in missing], {"mode": "ar"}, LONGEST)}
    exact, likelier, empty, examples = 0, 0, 0, list[dict[str, Any]]()
    for done, one in enumerate(missing):
        progress("fills", done, len(missing))
        text = model.infill(one.before, one.after, LONGEST, temperature=0.0).text
        said = _first_sentence(teacher.tokenizer.decode(own[tuple(one.before)]))
        fill, rest = (teacher.tokenizer.encode(each, begins=False) for each in (text, said))
        nats = [_nats(teacher, one, middle) for middle in (fill, rest)]
        exact, empty = exact + (text.strip() == one.middle.strip()), empty + (not text.strip())
        likelier += bool(text.strip()) and nats[0] < nats[1]
        examples.append({"fill": text, "truth": one.middle, "left_to_right": said, "nats": nats})
    num = max(1, len(missing))
    return {
        "num": len(missing),
        "exact": exact / num,
        "empty": empty / num,
        "likelier": likelier / num,
        "likelier_interval": wilson(likelier, num),
        "examples": examples[:40],
    }


def _first_sentence(text: str) -> str:
    """A text up to the end of its first sentence."""
    found = sentences(text)
    return text if not found else text[: text.index(found[0]) + len(found[0])]


def _nats(teacher: Model, one: MissingSentence, middle: Sequence[int]) -> float:
    """-log p(middle, what follows | what is before) under the teacher."""
    return float(nats_of(teacher.backbone, [*one.before, *middle, *one.after], len(one.before))[0].sum())
