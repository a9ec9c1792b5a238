"""What approximate caches are compared with: a slow session without a cache under the same rules; and whole decodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

import main_path
from daguerre.canvas import Canvas
from daguerre.decoding.request import Decode
from daguerre.decoding.result import Result
from daguerre.model import Model
from daguerre.models.forward import Answer, Ask, Logits
from daguerre.models.session import Asking, Counts
from driving import OnLogits
from main_path import start

PROMPT = "def area(w, h):\n    return w * h\n\n\ndef volume(w, h, d):\n    return "
SUFFIX = "\n\n\nprint(area(2, 3), volume(2, 3, 4))\n"
SHARED: dict[str, Any] = {"mode": "block"}
SURE = {"threshold": 0.6}
Call = Callable[..., Result]
Step = tuple[Canvas, np.ndarray, np.ndarray]
"""What a session was asked, and the logits that it answered."""


class Slow:
    """Computes every row of every forward, over the modules of a backbone. Where a position is frozen, attention reads
    the key and the value that it had when it was frozen; these are kept for every layer and position.
    """

    draws = explains = False

    def __init__(self, model: Model, rule: str, length: int) -> None:
        config = model.config
        shape = (config.num_layers, length, config.num_kv_heads, config.head_width)
        self.counts, self._backbone, self._rule = Counts(), model.backbone, rule
        self._keys, self._values = torch.zeros(shape), torch.zeros(shape)
        self._frozen = dict[int, int]()  # position: the token that it held
        self._span: Any = None
        self._since_all = 0

    def may_freeze(self, canvas: Canvas) -> set[int]:
        assert canvas.span is not None
        (start, end), every, shift = canvas.span, set(range(len(canvas))), self._backbone.config.shift
        if self._rule == "approximate_prefix":
            return {j for j in every if j < start - shift}
        if self._rule == "approximate_dual":
            return {j for j in every if j < start - shift or j >= end}
        if self._rule == "approximate_vicinity":
            return {j for j in every if j < start - 16 or j >= end + 16}
        opened = {j for j in every if canvas.open[j]}
        return every - opened - ({j - 1 for j in opened} if shift else set())

    def ask(self, canvas: Canvas, positions: np.ndarray, ask: Ask) -> Asking[Answer]:
        assert isinstance(ask, Logits)
        config = self._backbone.config
        shown = [config.placeholder if hidden else int(t) for t, hidden in zip(canvas.tokens, canvas.open, strict=True)]
        may, rows = self.may_freeze(canvas), positions - int(config.shift)
        changed = any(j not in may or shown[j] != token for j, token in self._frozen.items())
        asked = any(j in self._frozen for j in rows.tolist())
        due = self._since_all == 8 if self._rule == "approximate_delayed" else canvas.span != self._span
        if changed or asked or due:
            self._frozen, self._since_all = {}, 0
        frozen = torch.zeros(len(shown), dtype=torch.bool)
        frozen[list(self._frozen)] = True

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            for kept, new in ((self._keys[layer], k), (self._values[layer], v)):
                kept.copy_(torch.where(frozen[:, None, None], kept, new))
            groups = q.shape[1] // k.shape[1]
            keys, values = (x[layer].repeat_interleave(groups, dim=1) for x in (self._keys, self._values))
            scores = torch.einsum("rnh,cnh->nrc", q, keys) * q.shape[-1] ** -0.5
            return torch.einsum("nrc,cnh->rnh", scores.softmax(-1), values)

        level = torch.full((len(shown),), float(canvas.open.sum() / canvas.in_gap.sum()))
        time = level if config.time_input else None
        with torch.inference_mode():
            hidden = self._backbone(torch.tensor(shown), torch.arange(len(shown)), attend, time=time)
            logits = self._backbone.logits(hidden[torch.from_numpy(rows)]).numpy()
        self._frozen |= {j: shown[j] for j in may if j not in self._frozen}
        self._span, self._since_all = canvas.span, self._since_all + 1
        self.counts.forwards += 1
        yield from ()
        return Answer(logits=logits)


class SlowDenoiser:
    """A denoiser of slow sessions."""

    def __init__(self, model: Model) -> None:
        self.config, self.backend, self._model = model.config, model.denoiser.backend, model

    def session(self, canvas: Canvas, cache: Any) -> Any:
        return Slow(self._model, cache, len(canvas))


class Watched(OnLogits):
    """A denoiser that keeps what its sessions are asked and what they answer."""

    def __init__(self, denoiser: Any) -> None:
        super().__init__(denoiser)
        self.steps: list[Step] = []

    def session(self, canvas: Canvas, cache: Any = "auto") -> Any:
        session: Any = super().session(canvas, cache)
        inner = session.ask

        def ask(canvas: Canvas, positions: np.ndarray, ask: Ask) -> Asking[Answer]:
            answer = yield from inner(canvas, positions, ask)
            assert answer.logits is not None
            self.steps.append((canvas, positions, answer.logits.copy()))
            return answer

        session.ask = ask
        return session


# ---- whole decodes ------------------------------------------------------------------------------------------------


def completion(**options: Any) -> Call:
    how = SHARED | {"block_size": 8} | ({} if "policy" in options else SURE) | options
    return lambda denoiser, tokenizer, **more: main_path.generate(denoiser, tokenizer, PROMPT, 30, **how | more)


def infilling(**options: Any) -> Call:
    return lambda denoiser, tokenizer, **more: main_path.infill(
        denoiser, tokenizer, PROMPT, SUFFIX, 20, **SHARED | options | more
    )


def gaps(**options: Any) -> Call:
    text = PROMPT + "<gap>" + SUFFIX + "x = <gap>\ny = <gap>\n" + SUFFIX
    return lambda denoiser, tokenizer, **more: main_path.fill(
        denoiser, tokenizer, text, [9, 7, 5], **SHARED | options | more
    )


def changed(denoiser: Any, tokenizer: Any, **more: Any) -> Result:
    """A request whose caller pins a token behind the span, and opens finished text again."""
    running = start(denoiser, tokenizer, PROMPT, 24, Decode(**SHARED | {"block_size": 6} | more))
    for number, _ in enumerate(running):
        if number == 1:
            running.pin(15, "x")
        if number == 9:
            running.remask(0, 3)
    return running.result()


CALLS: dict[str, Call] = {
    "blocks": completion(),
    "sampled": completion(temperature=1.0, policy="confidence", steps=4, seed=2),
    "full": completion(mode="full", block_size=None, policy="confidence", steps=12),
    "gap": infilling(),
    "gap in blocks": infilling(block_size=6),
    "gaps": gaps(),
    "gaps in blocks": gaps(block_size=4, policy="entropy"),
    "unmasked": completion(revise=2, revise_threshold=0.1),
    "leave one out": completion(revise=1, revise_threshold=0.3, revise_reading="leave_one_out", block_size=15),
    "draft": completion(draft="w * h * d\n\n\nprint(1)", threshold=0.3),
    "guided": completion(guidance=2.0, guidance_schedule="linear"),
    "constrained": completion(regex="[a-z* ]+", block_size=6),
    "changed": changed,
}


def watch(call: Call, denoiser: Any, model: Model, rule: str) -> tuple[Result, list[Step]]:
    watched = Watched(denoiser)
    return call(watched, model.tokenizer, cache=rule), watched.steps


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference of two arrays of logits, as a share of the largest logit."""
    known = np.isfinite(other)
    assert np.array_equal(known, np.isfinite(one))
    return float(np.abs(one[known] - other[known]).max() / np.abs(other[known]).max())
