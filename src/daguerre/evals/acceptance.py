"""How often a drafted token is accepted, by its depth, given that the tokens before it are those of the text.

At a place of a text, held-out or the model's own greedy continuation of it, one forward computes the autoregressive
distributions p of the tokens from there on, as clean rows that read the text, and drafts behind the first of these
tokens: masked rows that see the text up to the place, with the draft head over its tokens. Depth 1 is the first token
behind the one that the autoregressive distribution draws. Three ways to accept:

    greedy   argmax q = argmax p: temperature 0
    overlap  sum_v min(p_v, q_v), at temperature 1: the most that any coupling accepts (Leviathan et al. 2023)
    race     argmin_v E_v / q_v = argmin_v E_v / p_v with the same exponential E: what is done at temperature 1
             (Daliri, Musco and Suresh 2024)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from daguerre.canvas import Canvas
from daguerre.evals.drafts import DraftPrompt
from daguerre.evals.statistics import mean_stderr
from daguerre.evals.workers import ItemProgress
from daguerre.model import Model
from daguerre.models.backbone_session import BackboneSession
from daguerre.models.session import compute
from daguerre.sampling.logits import race, softmax
from daguerre.sampling.random import TOKEN, Counter

DEPTHS = 4
PLACES, MOST_PLACES = 2000, 16
"""Places in all of each kind of text, and the most in a prompt."""
GREEDY_TOKENS = 64
"""The length of a greedy continuation."""
HELD_OUT, GREEDY = "held-out", "greedy"


@dataclass(frozen=True, kw_only=True)
class Depth:
    """Shares at one depth in one kind of text, HELD_OUT or GREEDY. Standard errors take the places of a document
    together; None where there is only one.
    """

    text: str
    depth: int
    places: int
    greedy: float
    greedy_stderr: float | None
    overlap: float
    overlap_stderr: float | None
    race: float
    race_stderr: float | None


def measure_acceptance(model: Model, prompts: Sequence[DraftPrompt], progress: ItemProgress) -> list[Depth]:
    """Acceptance at about PLACES places of each kind of text, spread evenly over the second halves of the prompts, and
    over the greedy continuations of the whole prompts.
    """
    each = min(MOST_PLACES, -(-PLACES // len(prompts)))
    found: dict[str, list[np.ndarray]] = {HELD_OUT: [], GREEDY: []}
    for number, prompt in enumerate(prompts):
        text = np.array(prompt.tokens, dtype=np.int64)
        written = model.generate(list(prompt.tokens[1:]), GREEDY_TOKENS, mode="speculative", heal=False).tokens
        greedy = np.concatenate([text, np.array([token.id for token in written], dtype=np.int64)])
        found[HELD_OUT].append(_accepted(model, text, len(text) // 2, each, number))
        found[GREEDY].append(_accepted(model, greedy, len(text), each, number))
        progress(number + 1, len(prompts))
    out = []
    for kind, parts in found.items():
        documents = [[prompt.document] * len(part) for prompt, part in zip(prompts, parts, strict=True)]
        shares, document = np.concatenate(parts), np.concatenate(documents)
        out += [_depth(kind, depth, shares[:, depth - 1], document) for depth in range(1, DEPTHS + 1)]
    return out


def _accepted(model: Model, text: np.ndarray, first: int, places: int, seed: int) -> np.ndarray:
    """Whether each of three ways accepts, or how much, at places of a text from `first` on, and at each depth: float64
    (places, DEPTHS, 3); without places where the text is too short.
    """
    session, last = model.denoiser.session(_canvas(text)), len(text) - DEPTHS - 2
    starts = np.unique(np.linspace(first, last, places).astype(int)).tolist() if last >= first else []
    accepted = [_accepted_at(model, session, text, start, Counter(seed)) for start in starts]
    return np.stack(accepted) if accepted else np.zeros((0, DEPTHS, 3))


def _canvas(text: np.ndarray) -> Canvas:
    """A canvas that begins with <bos>, all of it known."""
    return Canvas(text, np.zeros(len(text), dtype=bool), ((1, len(text)),))


def distributions(
    model: Model, session: BackboneSession, text: np.ndarray, start: int
) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities p and q, float64 (DEPTHS, V), of the tokens at start + 1, ..., start + DEPTHS of a text, int64
    (L,), given its tokens before each: p of autoregressive decoding, q of a draft that begins behind `start`.
    """
    canvas, backend = _canvas(text).at((start, len(text))), model.denoiser.backend
    draft = text[start : start + DEPTHS]
    verified = compute(session.verify(canvas, draft, DEPTHS, (0,)), backend)
    following = verified.following(0)
    drafted = np.empty_like(verified.logits[1:])
    for row, token in zip(drafted, draft.tolist(), strict=True):
        row[:] = compute(following.after(token), backend)
    return softmax(verified.logits[1:]), softmax(drafted)


def _accepted_at(model: Model, session: BackboneSession, text: np.ndarray, start: int, rng: Counter) -> np.ndarray:
    p, q = distributions(model, session, text, start)
    noise = rng.exponential(TOKEN, start + 1 + np.arange(DEPTHS), 0, p.shape[1])
    return np.stack(
        [p.argmax(axis=1) == q.argmax(axis=1), np.minimum(p, q).sum(axis=1), race(p, noise) == race(q, noise)], axis=1
    )


def _depth(text: str, depth: int, shares: np.ndarray, document: np.ndarray) -> Depth:
    """From what each way accepts, (places, 3)."""
    found = dict[str, Any]()
    for way, column in zip(("greedy", "overlap", "race"), shares.T, strict=True):
        found |= {way: float(column.mean()), f"{way}_stderr": mean_stderr(column, document)}
    return Depth(text=text, depth=depth, places=len(shares), **found)
