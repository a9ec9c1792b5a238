"""The line of integrated gradients in PyTorch, by autograd, for models on any device; see `scoring.attribution`. It is
the reference for `scoring.derivatives`.

Letters: B points of the line, R rows, N heads, H head width, D width.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn

from daguerre.models.core.attention import sdpa
from daguerre.models.core.backbone import Backbone
from daguerre.models.forward import Edit, Forward


class _Given(nn.Module):
    """Embeddings (B, R, D) in place of those of tokens."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.weight = x  # whose device is that of a noise level

    def forward(self, tokens: Tensor) -> Tensor:
        """They, whatever the tokens are."""
        return self.weight


class ModuleLine:
    """The `TokenLogit` of a backbone."""

    def __init__(self, backbone: Backbone, forward: Forward, token: int, edit: Edit | None = None) -> None:
        assert forward.cache is None and len(forward.wanted) == 1
        weight = backbone.embedding.weight
        self._backbone = backbone if weight.dtype == torch.float32 else copy.deepcopy(backbone).float()
        self._forward, self._token, self._edit, self._device = forward, token, edit, weight.device
        config = backbone.config
        layouts = (
            [forward.layout]
            if config.windows is None
            else [forward.layout, forward.layout.within(config.windows.size, 0)]
        )
        self._seen = [torch.tensor(layout.dense(0))[None, None].to(weight.device) for layout in layouts]

    @torch.no_grad()
    def embeddings(self, tokens: np.ndarray) -> np.ndarray:
        """The embeddings of tokens; see `TokenLogit`."""
        return _array(self._backbone.embedding(torch.tensor(tokens).to(self._device)))

    @torch.no_grad()
    def logits(self, x: np.ndarray) -> np.ndarray:
        """The token's logits; see `TokenLogit`."""
        return _array(self._logits(torch.tensor(x).to(self._device)))

    @torch.enable_grad()
    def gradients(self, x: np.ndarray) -> np.ndarray:
        """Their derivatives; see `TokenLogit`."""
        given = torch.tensor(x).to(self._device).requires_grad_(True)
        (gradient,) = torch.autograd.grad(self._logits(given).sum(), given)
        return _array(gradient)

    def _logits(self, x: Tensor) -> Tensor:
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


def _array(x: Tensor) -> np.ndarray:
    out: np.ndarray = x.cpu().numpy()
    return out
