"""A draft head: predicts each token of a draft given the token before it.

The noisy rows of a draft are computed together, so none of them depends on the tokens chosen for the others. A small
recurrent step for each position adds that dependence: it mixes the row's hidden state with the embedding of the
previous token and with the result of the previous step. The backbone runs once for a whole draft, the head once for
each token (sequentially dependent heads: Hydra, arXiv 2402.05109, here over masked rows).

A model with low-rank weights for drafts also has a confidence: how likely each token of a draft is accepted, from the
state that it was drafted from (as DSpark's; DeepSpec).

Letters: A rows, D width, I inner width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daguerre.models.core.config import ModelConfig

ACCEPTED = 0.4
"""The confidence at initialization: the logit of about .6."""


class DraftHead(nn.Module):
    """A draft head of inner width `config.draft_head`. At initialization it returns hidden states unchanged."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(3 * config.width, 2 * config.draft_head, bias=False)
        self.down = nn.Linear(config.draft_head, config.width, bias=False)
        self.confidence = nn.Linear(config.width + 1, 2) if config.has_confidence else None

    def forward(self, hidden: Tensor, before: Tensor, state: Tensor) -> Tensor:
        """The next states (A, D), from hidden states, embeddings of the previous tokens and previous states, (A, D)
        each.

        A state replaces the hidden state: its logits are the distribution of the drafted position.
        """
        x = torch.cat([F.rms_norm(y, y.shape[-1:]) for y in (hidden, before, state)], dim=-1)
        gate, value = self.up(x).chunk(2, dim=-1)
        return hidden + self.down(F.silu(gate) * value)

    def acceptance_logits(self, state: Tensor, log_prob: Tensor) -> Tensor:
        """Logits (A, 2), float32, of the probability that a drafted token is accepted if all before it are: at
        temperature 0, and at 1. From the state (A, D) that it was drafted from and its log-probability (A,) at
        temperature 1.
        """
        assert self.confidence is not None
        state = F.rms_norm(state.float(), state.shape[-1:])
        x = torch.cat([state, log_prob.float()[..., None]], dim=-1)
        return F.linear(x, self.confidence.weight.float(), self.confidence.bias.float())

    def acceptance(self, state: Tensor, log_prob: Tensor, temperature: float) -> Tensor:
        """The probability (A,) of `acceptance_logits` at a temperature; between 0 and 1 its logit is interpolated, and
        above 1 it is that of 1.
        """
        greedy, sampled = self.acceptance_logits(state, log_prob).unbind(-1)
        share = min(temperature, 1.0)
        return torch.sigmoid((1 - share) * greedy + share * sampled)
