"""A draft head: predicts each token of a draft given the token before it.

The noisy rows of a draft are computed together, so none of them depends on the tokens chosen for the others. A small
recurrent step for each position adds that dependence: it mixes the row's hidden state with the embedding of the
previous token and with the result of the previous step. The backbone runs once for a whole draft, the head once for
each token (sequentially dependent heads: Hydra, arXiv 2402.05109, here over masked rows).

Letters: A rows, D width, I inner width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daguerre.models.core.config import ModelConfig


class DraftHead(nn.Module):
    """A draft head of inner width `config.draft_head`. At initialization it returns hidden states unchanged."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(3 * config.width, 2 * config.draft_head, bias=False)
        self.down = nn.Linear(config.draft_head, config.width, bias=False)

    def forward(self, hidden: Tensor, before: Tensor, state: Tensor) -> Tensor:
        """The next states (A, D), from hidden states, embeddings of the previous tokens and previous states, (A, D)
        each.

        A state replaces the hidden state: its logits are the distribution of the drafted position.
        """
        x = torch.cat([F.rms_norm(y, y.shape[-1:]) for y in (hidden, before, state)], dim=-1)
        gate, value = self.up(x).chunk(2, dim=-1)
        return hidden + self.down(F.silu(gate) * value)
