"""A prompt with an answer that was drawn to it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class DrawnAnswer:
    """A prompt with the answer that was drawn.

    tokens     int64 (T,), the whole canvas
    asked      int64 (L,), the positions of the answer's tokens, up to the first end of text of each gap
    behind     int64 (P,), positions behind such an end, which follow from it
    end        int64 (P,), for each of these the number of its end among the answer's tokens
    steps      int64 (L,), the forward that committed each token
    reward, advantage   what it got, and by how much that is above the mean of its group
    """

    tokens: Tensor
    asked: Tensor
    behind: Tensor
    end: Tensor
    steps: Tensor
    reward: float = 0.0
    advantage: float = 0.0
