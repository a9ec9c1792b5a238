"""A draft head: what a drafted token is once the one before it is known.

The open rows of a draft are computed together, so that none of them knows what the others will become. A small
recurrent step for each position makes up for that: it mixes the row's hidden state with the embedding of the token
before it and with what the step before made of its own row. The backbone runs once for a whole draft, the head once a
token (sequentially dependent heads: Hydra, arXiv 2402.05109, here over masked rows).

Letters: A rows, D width, I inner width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daguerre.models.config import ModelConfig

Step = Callable[[int, int, Tensor], tuple[Tensor, Tensor]]
"""step(place, token, state): the state (1, D) of the row at `place`, from the token and the state (1, D) before it. A
state stands in for a hidden state: its logits, float32 (1, V), are the law of the drafted position, and come with it.
"""


class DraftHead(nn.Module):
    """The two matrices of a draft head, `config.draft_head` wide inside; it leaves hidden states alone at the start."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(3 * config.width, 2 * config.draft_head, bias=False)
        self.down = nn.Linear(config.draft_head, config.width, bias=False)

    def forward(self, hidden: Tensor, before: Tensor, state: Tensor) -> Tensor:
        """The next states (A, D), from rows' hidden states, the embeddings before them and the states before them."""
        told = torch.cat([F.rms_norm(x, x.shape[-1:]) for x in (hidden, before, state)], dim=-1)
        gate, value = self.up(told).chunk(2, dim=-1)
        return hidden + self.down(F.silu(gate) * value)


class Executor(Protocol):
    """What a chain needs of a backbone. `drafting`: the steps over rows' hidden states (A, D); None: no draft head.

    Steps may have a method `greedy(place, token, state, added, worth, threshold)`: what `Chain.greedy` does.
    """

    config: ModelConfig

    def drafting(self, rows: Tensor) -> Step | None: ...

    def logits(self, hidden: Tensor) -> Tensor: ...


class Chain:
    """The laws of consecutive positions, one after the other: chain(token) is float32 logits (V,) of the next of them,
    `token` standing before it; None: there is none left. Without a draft head a law does not depend on the token.

    rows   hidden states (A, D) of the positions; `state` (1, D), that of what stands before the first, or None where
           the first row has read that token itself, and its law is its own
    """

    @torch.inference_mode()
    def __init__(self, executor: Executor, rows: Tensor, state: Tensor | None = None) -> None:
        self._project, self._step = executor.logits, executor.drafting(rows)
        self._at_once = getattr(self._step, "greedy", None)
        self.vocab_size = executor.config.vocab_size
        self._rows, self._state, self._place = rows, state, 0

    @torch.inference_mode()
    def __call__(self, token: int) -> np.ndarray | None:
        place, state = self._place, self._state
        if place == len(self._rows):
            return None
        self._place += 1
        if self._step is None or state is None:
            self._state = self._rows[place : place + 1]
            logits = self._project(self._state)
        else:
            self._state, logits = self._step(place, token, state)
        out: np.ndarray = logits[0].cpu().numpy()
        return out

    def __len__(self) -> int:
        """How many laws are left."""
        return len(self._rows) - self._place

    @torch.inference_mode()
    def greedy(
        self, token: int, added: np.ndarray, worth: float = 0.0, threshold: float = 0.0
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The most likely tokens, int64 (D,), one after the other, their probabilities, float64, and logits (D, V), to
        which `added`, float32 (left, V), is added. The last is that with which the product of all falls below `worth`,
        or, from the second on, one below `threshold`. Ends the chain.
        """
        if self._at_once is not None:
            found: tuple[np.ndarray, np.ndarray, np.ndarray]
            found = self._at_once(self._place, token, self._state, added, worth, threshold)
            self._place = len(self._rows)
            return found
        tokens, probabilities, laws = list[int](), list[float](), list[np.ndarray]()
        while (law := self(token)) is not None:
            laws.append(law + added[len(laws)])
            tokens.append(int(laws[-1].argmax()))
            probabilities.append(1 / float(np.exp(laws[-1] - laws[-1].max()).sum()))
            token = tokens[-1]
            if not math.prod(probabilities) >= worth or (len(tokens) > 1 and probabilities[-1] < threshold):
                break
        return np.array(tokens, dtype=np.int64), np.array(probabilities), np.array(laws, dtype=np.float32)
