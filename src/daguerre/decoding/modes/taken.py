"""A draft of the caller's that is taken as it is, because the model finds it likely (`accept_draft`).

Reading a draft takes a forward for many tokens, where writing takes one for each; and what was read of the prompt is
kept, so that a model that does not take the draft writes on from there.
"""

from __future__ import annotations

import math

import numpy as np

from daguerre.canvas import Canvas, Decision
from daguerre.decoding.denoise import Run
from daguerre.decoding.plan import Plan, Steps
from daguerre.models.rows import Tree
from daguerre.models.session import Asking
from daguerre.trace import Event

ROWS = 128
"""Tokens whose log-probabilities are asked for at once."""


def take_draft(run: Run, canvas: Canvas, start: int, draft: np.ndarray) -> Steps:
    """Commit the tokens of a draft, int64 (D,), which begins at a position, and the end of the text, where the
    geometric mean of their probabilities is `accept_draft` or more; the canvas as it is where it is less, where
    something is written already, and where there is no room for them, too few tokens, or anything that changes the
    probabilities.
    """
    decode, opened, gap = run.plan.decode, run.plan.opened(canvas), run.plan.gaps[0]
    least, end = decode.accept_draft, run.plan.config.eos_id
    fits = gap.min_tokens <= len(draft) < len(opened) and opened[0] == start
    changed = run.sampler.constraint is not None or decode.logit_bias or decode.logit_guidance is not None
    if least is None or not len(draft) or not fits or changed:
        return canvas
    nats = yield from log_probs(run, canvas.tokens[:start], draft)
    if nats.mean() < (math.log(least) if least else -math.inf):
        return canvas
    positions, chances = start + np.arange(len(draft) + 1), np.exp(np.append(nats, 0.0))
    decision = Decision(positions, np.append(draft, end), chances, chances)
    canvas = canvas.at((start, start + len(positions))).apply(decision)
    run.counts.accept(len(draft))
    yield Event(run.counts.forwards, decision, canvas)
    return canvas


def bound(plan: Plan) -> int:
    """The most forwards that this takes."""
    return 0 if plan.decode.accept_draft is None else -(-plan.max_tokens // ROWS)


def log_probs(run: Run, given: np.ndarray, text: np.ndarray) -> Asking[np.ndarray]:
    """Log-probabilities, float64 (T,), of the tokens of a text, int64 (T,), each given those before it."""
    found = list[np.ndarray]()
    for first in range(0, len(text), ROWS):
        part = text[first : first + ROWS]
        tree, _ = Tree.of([part.tolist()])
        before = np.concatenate([given, text[:first]])
        found.append((yield from run.session.tree_log_probs(before, tree, np.arange(len(part)))))
    return np.concatenate(found)
