"""Integrated gradients of a forward in PyTorch; see `scoring.attribution`.

Letters: B points of the line, R rows, N heads, H head width, D width.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from daguerre.errors import UnsupportedError
from daguerre.models.core.attention import sdpa
from daguerre.models.core.backbone import Backbone
from daguerre.models.forward import Edit, Forward

ROWS_AT_ONCE = 2048
STEPS = 64


@dataclass(frozen=True, eq=False)
class Gradients:
    """The parts of the rows of a forward, float64 (R,), and the logit with and without them."""

    scores: np.ndarray
    logit: float
    baseline_logit: float


@torch.enable_grad()
def integrated_gradients(
    backbone: Backbone, forward: Forward, token: int, num_steps: int = STEPS, edit: Edit | None = None
) -> Gradients:
    """The parts of a forward's rows in the logit of a token at its only wanted row. The forward has no cache."""
    if backbone.config.gemma is not None:
        raise UnsupportedError("DiffusionGemma's forwards have no gradients here: use another model")
    line = _Line(backbone, forward, token, edit)
    sums, size = torch.zeros_like(line.end, dtype=torch.float64), max(1, ROWS_AT_ONCE // len(forward.tokens))
    points = (torch.arange(num_steps, dtype=torch.float64, device=line.end.device) + 0.5) / num_steps
    for some in points.split(size):
        x = line.at(some).requires_grad_(True)
        (gradient,) = torch.autograd.grad(line.logits(x).sum(), x)
        sums += gradient.double().sum(dim=0)
    scores = ((line.end - line.start).double() * sums / num_steps).sum(dim=-1)
    with torch.no_grad():
        start, end = line.logits(torch.stack([line.start, line.end])).tolist()
    return Gradients(scores.cpu().numpy(), end, start)


class _Given(nn.Module):
    """Embeddings (B, R, D) in place of those of tokens."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.x = x

    def forward(self, tokens: Tensor) -> Tensor:
        """They, whatever the tokens are."""
        return self.x


class _Line:
    """The logit of a token along the line from the baseline to the embeddings of a forward's rows, in float32."""

    def __init__(self, backbone: Backbone, forward: Forward, token: int, edit: Edit | None) -> None:
        assert forward.cache is None and len(forward.wanted) == 1
        weight = backbone.embedding.weight
        self._backbone = backbone if weight.dtype == torch.float32 else copy.deepcopy(backbone).float()
        self._forward, self._token, self._edit, self._device = forward, token, edit, weight.device
        config = backbone.config
        baseline = config.eos_id if config.mask_id is None else config.mask_id
        tokens = torch.tensor(forward.tokens).to(weight.device)
        self.end = self._backbone.embedding(tokens).detach()
        self.start = self._backbone.embedding(torch.full_like(tokens, baseline)).detach()
        layouts = (
            [forward.layout]
            if config.windows is None
            else [forward.layout, forward.layout.within(config.windows.size, 0)]
        )
        self._seen = [torch.tensor(layout.dense(0))[None, None].to(weight.device) for layout in layouts]

    def at(self, points: Tensor) -> Tensor:
        """Embeddings (B, R, D) at points (B,) of the line, 0 to 1."""
        return self.start + points.float()[:, None, None] * (self.end - self.start)

    def logits(self, x: Tensor) -> Tensor:
        """The token's logit, float32 (B,), for embeddings (B, R, D)."""
        shell = copy.copy(self._backbone)
        shell.__dict__["_modules"] = {**self._backbone._modules, "embedding": _Given(x)}
        num, rows = len(x), len(self._forward.tokens)
        position = torch.tensor(self._forward.layout.position).to(self._device).expand(num, rows)
        level = self._forward.level
        time = None if level is None else torch.full((num, rows), level, device=self._device)
        wanted = torch.tensor(self._forward.wanted).long().to(self._device)
        hidden = Backbone.forward(shell, position, position, self._attend, time=time, wanted=wanted)[:, 0]
        row = self._backbone.projection[self._token].float()
        out = self._edited(hidden.float()) @ row - self._banned()
        if self._backbone.output is not None and self._backbone.output.bias is not None:
            out = out + self._backbone.output.bias[self._token].float()
        return out

    def _attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        return sdpa(q, k, v, self._seen[self._backbone.config.is_sliding(layer)]).transpose(1, 2)

    def _edited(self, hidden: Tensor) -> Tensor:
        """Hidden states (B, D) as steering changes them, weights of concepts included."""
        edit, heads = self._edit, self._backbone.concepts
        if edit is None:
            return hidden
        assert heads is not None
        shift, scale, write = (torch.tensor(part).to(self._device) for part in (edit.shift, edit.scale, edit.write))
        concepts = torch.tensor(edit.concepts).long().to(self._device)
        return hidden + (shift + scale * heads.weights(hidden)[:, concepts]) @ write

    def _banned(self) -> float:
        edit = self._edit
        return 0.0 if edit is None or edit.mask is None else float(edit.ban[0] @ edit.mask[:, self._token])
