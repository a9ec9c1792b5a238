"""Input attribution: how much each visible token is a reason for a committed one, by integrated gradients.

The logit F of the committed token is a function of the embeddings x_1 .. x_L of what the forward saw, which the trace
has recorded. Between a baseline x' that says nothing, the mask's embedding at every position, and x runs a straight
line, and token i's part is (Sundararajan, Taly and Yan, arXiv 1703.01365)

    a_i = (x_i - x'_i) . integral over 0 < t < 1 of dF/dx_i (x' + t (x - x')),       sum_i a_i = F(x) - F(x')

The integral is the mean over the midpoints of `num_steps` equal parts, and by how much the sum misses is its error,
which comes with the result. A position that was masked is the baseline, and its part is exactly 0.

Where `suppress`, `set` or `forbid` steer, F depends on the weights of concepts, and a weight is 0 while its concept is
not among those that the heads keep (`models.core.concept_heads`). So F jumps where the line passes from one set of kept
concepts to another. Gradients do not see a jump: the parts then add up to F(x) - F(x') less the sum of the jumps, which
is owed to no position in particular, and more steps do not lessen this error. With `add` alone there are no such jumps.
In a mixture of experts F also jumps where other experts are chosen, steered or not.

Letters: B points of the line, R rows, N heads, H head width, D width, L positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from daguerre.canvas import Canvas
from daguerre.decoding.modes import MODES
from daguerre.decoding.result import Result
from daguerre.decoding.steering import controls
from daguerre.errors import InputError, UnsupportedError
from daguerre.extras import pytorch
from daguerre.models.backbone_session import BackboneSession
from daguerre.models.catalog import Catalog
from daguerre.models.forward import Edit, Forward, Logits
from daguerre.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from daguerre.models.core.backbone import Backbone


@dataclass(frozen=True)
class Attribution:
    """What a token's logit owes to each position.

    text, id, position   of the token
    scores     float64 (L,), in logits, by position on the canvas; 0 for what the forward did not see
    words      the texts of the positions; masked ones are empty
    logit, baseline_logit   F(x) and F(x')
    """

    text: str
    id: int
    position: int
    scores: np.ndarray = field(repr=False)
    words: tuple[str, ...] = field(repr=False)
    logit: float
    baseline_logit: float
    num_steps: int

    @property
    def error(self) -> float:
        """By how many logits the parts miss F(x) - F(x')."""
        return abs(float(self.scores.sum()) - (self.logit - self.baseline_logit))

    @property
    def relative_error(self) -> float:
        """`error` as a share of F(x) - F(x')."""
        return self.error / max(abs(self.logit - self.baseline_logit), np.finfo(np.float64).tiny)

    def top(self, num: int = 10) -> list[tuple[int, str, float]]:
        """The positions with the largest parts, their texts, and their parts."""
        best = np.argsort(-np.abs(self.scores), kind="stable")[:num]
        return [(int(at), self.words[at], float(self.scores[at])) for at in best if self.scores[at]]

    def __str__(self) -> str:
        lines = [f"{part:+8.3f}  {word!r} at {at}" for at, word, part in self.top()]
        return "\n".join(
            [
                f"{self.text!r} at {self.position}: logit {self.logit:.3f}, "
                f"{self.baseline_logit:.3f} with all inputs masked",
                *lines,
                f"completeness error {self.error:.4f} logits, {100 * self.relative_error:.1f}% of the difference "
                f"({self.num_steps} steps)",
            ]
        )


def attribute(
    backbone: Backbone,
    tokenizer: Tokenizer,
    catalog: Catalog | None,
    result: Result,
    index: int,
    num_steps: int,
) -> Attribution:
    """The attribution of token `index` of a result that was asked for with explain=True. Of a steered token it is that
    of the steered logit; of a guided one, that of the forward that saw the text before the gap; of one that was written
    with an approximate cache or rounded matrices, that of the exact forward of the same canvas.

    UnsupportedError for modes "ancestral", "renoise" and "expand", whose forwards the trace does not have; for a token
    that took the place of another; and for DiffusionGemma. InputError for a token that there is not, or that the model
    was not asked for.
    """
    forward, canvas, position, token = _recorded(backbone, result, index)
    edit = None
    if result.steering:
        assert catalog is not None
        program = controls(result.steering, backbone, catalog)
        edit = Edit(program.concepts, program.write, program.mask, *program.at(canvas, np.array([position])))
    pytorch()
    from daguerre.scoring.gradients import integrated_gradients

    found = integrated_gradients(backbone, forward, token, num_steps, edit)
    scores = np.zeros(len(canvas))
    seen = forward.layout.position < len(canvas)
    np.add.at(scores, forward.layout.position[seen], found.scores[seen])
    final = [*result.trace.replay()][-1]
    words = ["" if canvas.open[at] else tokenizer.decode([word]) for at, word in enumerate(final.tokens.tolist())]
    assert result.concepts is not None
    text = result.concepts.tokens[index].text
    return Attribution(text, token, position, scores, tuple(words), found.logit, found.baseline_logit, num_steps)


def _recorded(backbone: Backbone, result: Result, index: int) -> tuple[Forward, Canvas, int, int]:
    """The forward that committed a token, without a cache; the canvas that it saw; the token's position and id."""
    if result.concepts is None:
        raise InputError("a result knows where its tokens were committed if it is asked for with explain=True")
    if not -len(result.tokens) <= index < len(result.tokens):
        raise InputError(f"there is no token {index} (token, from 0): the result has {len(result.tokens)}")
    told, mode = result.concepts.tokens[index], MODES[result.usage.mode]
    if told.logit is None:
        raise InputError(f"the model was not asked for token {index}, {told.text!r}: choose another one")
    if not mode.traced:
        raise UnsupportedError(f'the trace of mode "{mode.name}" does not have its forwards: use another mode')
    states = [result.trace.canvas, *result.trace.replay()]
    last = max(at for at, one in enumerate(result.trace.steps) if told.position in one.decision.positions)
    step = result.trace.steps[last]
    if told.position in step.decision.replace:
        raise UnsupportedError(f"token {index}, {told.text!r}, took the place of another one: choose one that did not")
    canvas = seen = states[last].at(step.span)
    if mode.autoregressive or mode.distribution == "search":
        final, later = states[-1], np.arange(len(canvas)) >= told.position
        span = told.position, told.position + 1
        canvas = Canvas(final.tokens, final.in_gap & later, final.gaps, span)
        end = span[1]
        gaps = tuple((a, min(b, end)) for a, b in canvas.gaps if a < end)
        seen = Canvas(canvas.tokens[:end], canvas.open[:end], gaps, span)
    (forward,) = next(BackboneSession(backbone.config, None).ask(seen, np.array([told.position]), Logits()))
    assert isinstance(forward, Forward)
    return forward, canvas, told.position, told.id
