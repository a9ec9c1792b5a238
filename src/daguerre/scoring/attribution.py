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
from typing import Protocol

import numpy as np

from daguerre.canvas import Canvas
from daguerre.decoding.modes import MODES
from daguerre.decoding.result import Result
from daguerre.decoding.steering import controls
from daguerre.errors import InputError, UnsupportedError
from daguerre.models.backbone_session import BackboneSession
from daguerre.models.catalog import Catalog
from daguerre.models.core.config import ModelConfig
from daguerre.models.denoiser import BackboneDenoiser
from daguerre.models.forward import Edit, Forward, Logits
from daguerre.models.heads import ArrayHeads
from daguerre.models.model_weights import ModelWeights
from daguerre.models.tokenizer import Tokenizer
from daguerre.scoring.derivatives import Back, Core

ROWS_AT_ONCE = 2048
"""Rows whose derivatives are computed together."""


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


class TokenLogit(Protocol):
    """The logit of a token at the only wanted row of a forward without a cache, as a function of the rows' embeddings,
    in float32.
    """

    def embeddings(self, tokens: np.ndarray) -> np.ndarray:
        """The embeddings of tokens (R,), float32 (R, D)."""

    def logits(self, x: np.ndarray) -> np.ndarray:
        """The logit, float32 (B,), for embeddings (B, R, D)."""

    def gradients(self, x: np.ndarray) -> np.ndarray:
        """Its derivatives by the embeddings, float32 (B, R, D)."""


class ArrayLine:
    """The `TokenLogit` of a model whose weights are on a CPU."""

    def __init__(
        self, weights: ModelWeights, heads: ArrayHeads, forward: Forward, token: int, edit: Edit | None = None
    ) -> None:
        self._core, self._heads, self._edit = Core(weights, forward), heads, edit
        self._row, self._bias = heads.rows(np.array([token]))[0], heads.bias(np.array([token]))[0]
        if edit is not None and edit.mask is not None:
            self._bias = self._bias - edit.ban[0] @ edit.mask[:, token]

    def embeddings(self, tokens: np.ndarray) -> np.ndarray:
        """The embeddings of tokens; see `TokenLogit`."""
        return self._core.embeddings(tokens)

    def logits(self, x: np.ndarray) -> np.ndarray:
        """The token's logits; see `TokenLogit`."""
        return self._logits(x)[0]

    def gradients(self, x: np.ndarray) -> np.ndarray:
        """Their derivatives; see `TokenLogit`."""
        logits, back = self._logits(x)
        return back(np.ones_like(logits))

    def _logits(self, x: np.ndarray) -> tuple[np.ndarray, Back]:
        hidden, of_hidden = self._core(x)
        edited, of_edited = self._edited(hidden)
        return edited @ self._row + self._bias, lambda g: of_hidden(of_edited(g[:, None] * self._row))

    def _edited(self, hidden: np.ndarray) -> tuple[np.ndarray, Back]:
        """Hidden states (B, D) as steering changes them, weights of concepts included."""
        edit = self._edit
        if edit is None:
            return hidden, lambda g: g
        weights = self._heads.weights(hidden)[:, edit.concepts]
        slopes = edit.scale * weights * (1 - weights)
        changed = hidden + (edit.shift + edit.scale * weights) @ edit.write
        return changed, lambda g: g + (g @ edit.write.T * slopes) @ self._heads.predictors(edit.concepts)


@dataclass(frozen=True, eq=False)
class Gradients:
    """The parts of the rows of a forward, float64 (R,), and the logit with and without them."""

    scores: np.ndarray
    logit: float
    baseline_logit: float


def integrated_gradients(line: TokenLogit, config: ModelConfig, tokens: np.ndarray, num_steps: int) -> Gradients:
    """The parts of a forward's rows, whose tokens are (R,), in the logit of a line."""
    baseline = config.eos_id if config.mask_id is None else config.mask_id
    end, start = line.embeddings(tokens), line.embeddings(np.full_like(tokens, baseline))
    sums, size = np.zeros(end.shape), max(1, ROWS_AT_ONCE // len(tokens))
    points = ((np.arange(num_steps) + 0.5) / num_steps).astype(np.float32)
    for first in range(0, num_steps, size):
        some = points[first : first + size, None, None]
        sums += line.gradients(start + some * (end - start)).sum(axis=0, dtype=np.float64)
    scores = ((end - start).astype(np.float64) * sums / num_steps).sum(axis=-1)
    without, with_all = line.logits(np.stack([start, end])).tolist()
    return Gradients(scores, with_all, without)


def line_of(denoiser: BackboneDenoiser, forward: Forward, token: int, edit: Edit | None) -> TokenLogit:
    """The line of a model: in PyTorch where PyTorch computes it. UnsupportedError for DiffusionGemma."""
    if denoiser.config.gemma is not None:
        raise UnsupportedError("DiffusionGemma's forwards have no gradients here: use another model")
    heads = denoiser.heads
    if isinstance(heads, ArrayHeads):
        return ArrayLine(denoiser.weights, heads, forward, token, edit)
    from daguerre.scoring.gradients import ModuleLine

    return ModuleLine(denoiser.backbone, forward, token, edit)


def attribute(
    denoiser: BackboneDenoiser,
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
    forward, canvas, position, token = _recorded(denoiser.config, result, index)
    edit = None
    if result.steering:
        assert catalog is not None
        program = controls(result.steering, denoiser.heads, catalog)
        edit = Edit(program.concepts, program.write, program.mask, *program.at(canvas, np.array([position])))
    found = integrated_gradients(line_of(denoiser, forward, token, edit), denoiser.config, forward.tokens, num_steps)
    scores = np.zeros(len(canvas))
    seen = forward.layout.position < len(canvas)
    np.add.at(scores, forward.layout.position[seen], found.scores[seen])
    final = [*result.trace.replay()][-1]
    words = ["" if canvas.open[at] else tokenizer.decode([word]) for at, word in enumerate(final.tokens.tolist())]
    assert result.concepts is not None
    text = result.concepts.tokens[index].text
    return Attribution(text, token, position, scores, tuple(words), found.logit, found.baseline_logit, num_steps)


def _recorded(config: ModelConfig, result: Result, index: int) -> tuple[Forward, Canvas, int, int]:
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
    (forward,) = next(BackboneSession(config, None).ask(seen, np.array([told.position]), Logits()))
    assert isinstance(forward, Forward)
    return forward, canvas, told.position, told.id
