"""Steering: a wrapper of a denoiser that adds concepts to hidden states, and takes them out.

With amounts shift, scale and ban of J concepts at a position, its hidden state h gives the logits of

    h + sum_j (shift_j + scale_j w_j) write_j   less   sum_j ban_j mask_j

where w_j is the weight of concept j in h (`models.core.concept_heads`). All else of h, the residual included, stays.
The amounts are those of the position that a row predicts, so drafts are drawn and verified with the same steering.

Where the wrapped denoiser explains (`models.wrappers.explaining`), each part of the evidence has h as it was and, after
it, the amounts: shift, scale, ban, J numbers each.

Letters: A wanted positions, J concepts, D width, V vocabulary.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from daguerre.canvas import Canvas
from daguerre.models.core.config import ModelConfig
from daguerre.models.denoiser import CacheMode, Denoiser
from daguerre.models.forward import Answer, Backend, Cycle, DraftStep, Edit, Forward
from daguerre.models.session import Session
from daguerre.models.wrappers.rewriting import About, Finish, RewritingSession, as_it_is, predicted, with_draft

Amounts = tuple[np.ndarray, np.ndarray, np.ndarray]
"""shift, scale and ban, float32 (A, J) each."""


class Controls(Protocol):
    """What is done, where and when. See `models.forward.Edit` for the arrays.

    concepts  int32 (J,): their numbers
    write     float32 (J, D)
    mask      float32 (J, V), 0 or more; None: nothing is banned

    With an attribute `steady` that is true, the amounts at a position are the same whatever is committed, and a draft
    is verified with one question.
    """

    @property
    def concepts(self) -> np.ndarray: ...

    @property
    def write(self) -> np.ndarray: ...

    @property
    def mask(self) -> np.ndarray | None: ...

    def at(self, canvas: Canvas, positions: np.ndarray) -> Amounts:
        """The amounts at positions, int64 (A,), whose tokens are predicted for a canvas. It is asked once for each
        forward, and in speculation for each token of a draft, with the canvas on which those before it are committed.

        A position may be committed, where a token is read again, or lie behind the end of the canvas. Under guidance
        the canvas may have another text before its first gap: positions count from there. In mode "beam" the canvas is
        that of the start.
        """


class Steered:
    """A `Denoiser` that wraps `denoiser`, which may be an `Explained` one."""

    def __init__(self, denoiser: Denoiser, controls: Controls) -> None:
        self.config, self._denoiser, self._controls = denoiser.config, denoiser, controls

    @property
    def backend(self) -> Backend:
        """The backend of the wrapped denoiser."""
        return self._denoiser.backend

    def session(self, canvas: Canvas, cache: CacheMode = "auto") -> SteeredSession:
        """A fresh session."""
        return SteeredSession(self.config, self._denoiser.session(canvas, cache), canvas, self._controls)


class SteeredSession(RewritingSession):
    """A `Session` whose distributions are steered."""

    def __init__(self, config: ModelConfig, inner: Session, canvas: Canvas, controls: Controls) -> None:
        super().__init__(config, inner, canvas)
        self._controls, self._steady = controls, bool(getattr(controls, "steady", False))
        self._last: tuple[bytes, Edit | None] = b"", None

    def change(self, one: Forward | DraftStep, about: About) -> Finish:
        """Edit the hidden states."""
        assert one.edit is None, "steered twice"
        amounts = self._amounts(one, about)
        one.edit = self._edit(amounts)
        return (lambda answer: _told(answer, amounts)) if one.explain else as_it_is

    def _edit(self, amounts: Amounts) -> Edit | None:
        """The edit of these amounts, None where they are all 0; the same object as last time if they are equal."""
        key = b"".join([amount.tobytes() for amount in amounts])
        if key != self._last[0]:
            controls = self._controls
            edit = Edit(controls.concepts, controls.write, controls.mask, *amounts)
            self._last = key, edit if any(amount.any() for amount in amounts) else None
        return self._last[1]

    def _amounts(self, one: Forward | DraftStep, about: About) -> Amounts:
        """Those of each row of a request."""
        positions = predicted(self.config, one) if isinstance(one, Forward) else about.positions
        assert positions is not None
        if self._steady or about.draft is None or not len(about.draft):
            return self._controls.at(about.canvas, positions)
        read = num_read(one, len(about.draft))
        out = tuple(np.zeros((len(positions), len(self._controls.concepts)), dtype=np.float32) for _ in range(3))
        for num in range(len(about.draft) + 1):
            rows = np.flatnonzero(read == num)
            found = self._controls.at(with_draft(about.canvas, about.draft[:num]), positions[rows])
            for to, amount in zip(out, found, strict=True):
                to[rows] = amount
        return out  # type: ignore[return-value]


def num_read(one: Forward | DraftStep, num_draft: int) -> np.ndarray:
    """How many tokens of a draft each row of a request that verifies it has read, int64 (A,)."""
    places = np.arange(num_draft + 1)
    if isinstance(one, DraftStep):
        return places
    assert isinstance(one.ask, Cycle)
    return np.concatenate([places, np.repeat(places, np.diff(one.ask.groups))])


def _told(answer: Answer, amounts: Amounts) -> Answer:
    """The answer with the amounts (A, J) behind each part of its evidence (a, ..., E), its first rows."""
    said, num = answer.evidence, amounts[0].shape[1]
    assert said is not None
    out = np.empty((*said.shape[:-1], said.shape[-1] + 3 * num), dtype=np.float32)
    out[..., : said.shape[-1]] = said
    for place, amount in enumerate(amounts):
        to = out[..., said.shape[-1] + place * num :][..., :num]
        to.swapaxes(0, -2)[...] = amount[: len(said)]
    answer.evidence = out
    return answer
