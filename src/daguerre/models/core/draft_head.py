"""A draft head: what a drafted token is once the one before it is known.

The noisy rows of a draft are computed together, so that none of them knows what the others will become. A small
recurrent step for each position makes up for that: it mixes the row's hidden state with the embedding of the token
before it and with what the step before made of its own row. The backbone runs once for a whole draft, the head once a
token (sequentially dependent heads: Hydra, arXiv 2402.05109, here over masked rows).

Letters: A rows, D width, I inner width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daguerre.models.core.config import ModelConfig


class DraftHead(nn.Module):
    """The two matrices of a draft head, `config.draft_head` wide inside; it leaves hidden states alone at the start."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(3 * config.width, 2 * config.draft_head, bias=False)
        self.down = nn.Linear(config.draft_head, config.width, bias=False)

    def forward(self, hidden: Tensor, before: Tensor, state: Tensor) -> Tensor:
        """The next states (A, D), from rows' hidden states, the embeddings before them and the states before them.

        A state stands in for a hidden state: its logits are the distribution of the drafted position.
        """
        x = torch.cat([F.rms_norm(y, y.shape[-1:]) for y in (hidden, before, state)], dim=-1)
        gate, value = self.up(x).chunk(2, dim=-1)
        return hidden + self.down(F.silu(gate) * value)
