"""A run's held-out figures: fixed batches and prompts of the validation split, drawn once."""

from __future__ import annotations

import numpy as np
import torch

from daguerre.models.core.backbone import Backbone
from daguerre.models.core.config import ModelConfig
from daguerre.train.batch import BatchLoss
from daguerre.train.data import MicroBatches
from daguerre.train.monitor import DRAFT, SLACK, Held, ends_gaps, held_out

VAL_SEED = 1
VAL_MICRO_BATCHES, VAL_SEQUENCES, VAL_TOKENS = 12, 4, 1024
"""Micro-batches, and the most windows and tokens of each; a window has the first stage's length."""
PROMPTS, PROMPT_LENGTH = 32, 96


class Evaluation:
    """What a run is measured on: the same for every step, and for a run that is resumed.

    num_rows: how many rows its forwards have in all, by which its time is estimated.
    """

    def __init__(self, maker: MicroBatches, config: ModelConfig, length: int, device: torch.device) -> None:
        sequences = max(1, min(VAL_SEQUENCES, VAL_TOKENS // length))
        self.batches = [maker.make(i, sequences, length).to(device) for i in range(VAL_MICRO_BATCHES)]
        rng = np.random.default_rng(VAL_SEED)
        drawn: list[np.ndarray] = []
        for _ in range(50 * PROMPTS):
            window = maker.windows.draw(PROMPT_LENGTH, rng)
            if len(window) == PROMPT_LENGTH and len(drawn) < PROMPTS:
                drawn.append(window)
        prompts = np.stack(drawn) if drawn else np.full((1, 2), config.bos_id)
        self.prompts_BP = torch.from_numpy(prompts).to(device)
        tokenizer = maker.cutter.tokenizer
        num_bytes = [len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size)]
        self.token_bytes_V = torch.tensor(num_bytes, device=device)
        self.num_rows = sum(batch.tokens.numel() for batch in self.batches)
        num, length = prompts.shape
        self.num_rows += num * (length + 2 * DRAFT) if config.can_draft else 0
        self.num_rows += 2 * num * (length + SLACK) if ends_gaps(config, length) else 0

    def measure(self, model: Backbone, attn_impl: str, loss: BatchLoss) -> Held:
        """The figures of a model as it is."""
        return held_out(model, self.batches, self.prompts_BP, self.token_bytes_V, attn_impl, loss)
