"""The published loop of LLaDA (arXiv 2502.09992, algorithm 5: low-confidence remasking), restated as a yardstick.

Every step runs the whole canvas, prompt and all, through a model without a cache, and takes logits of every position.
The answer is cut into blocks that are filled from left to right. A block of N positions gets S steps; step s commits
the k_s = floor(N/S) + [s < N mod S] masked positions of the block whose most likely token is most probable.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from daguerre.sampling.policies.base import static_count

Logits = Callable[[Tensor], Tensor]
"""Tokens (1, L) to logits (1, L, V), the row at i for position i."""


@torch.inference_mode()
def llada_loop(
    logits_of: Logits,
    prompt: Tensor,
    new_tokens: int,
    steps: int,
    block: int,
    mask_id: int,
    step_done: Callable[[], None],
) -> Tensor:
    """Tokens (L,) of the prompt (P,) and `new_tokens` after it, in `steps` forwards, greedily.

    `new_tokens` divides into blocks of `block`, and `steps` into as many parts. step_done: called after each forward.
    """
    num_blocks = new_tokens // block
    assert num_blocks * block == new_tokens and steps % num_blocks == 0
    tokens = torch.cat([prompt, torch.full((new_tokens,), mask_id)])[None]
    for index in range(num_blocks):
        end = len(prompt) + (index + 1) * block
        for step in range(steps // num_blocks):
            masked = tokens == mask_id
            masked[:, : len(prompt)] = False
            logits = logits_of(tokens)
            proposed = logits.argmax(-1)
            confidence = logits.softmax(-1).gather(-1, proposed[..., None])[..., 0]
            confidence = confidence.masked_fill(~masked, -torch.inf)
            confidence[:, end:] = -torch.inf
            count = static_count(block, steps // num_blocks, step)
            chosen = confidence[0].topk(count).indices
            tokens[0, chosen] = proposed[0, chosen]
            step_done()
    return tokens[0]
